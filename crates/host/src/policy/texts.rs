//! Evaluates expressions that only compare texts without CEL, as most rules do.
//!
//! The result is the same as with CEL. Missing members, other types and errors are left to CEL.

use std::borrow::Cow;

use cel::common::ast::operators::{
    EQUALS, IN, INDEX, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, NOT_EQUALS,
};
use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

use super::Of;
use super::binding;
use super::plain::{plain, touches, under};

/// Longest path that is handled here, in bytes. Systems accept no longer ones.
const PATH_BYTES: usize = 4096;

/// An expression that only compares texts.
pub(super) enum Test {
    All(Box<[Self; 2]>),
    Any(Box<[Self; 2]>),
    Not(Box<Self>),
    Is(Text, How),
}

/// A text that an expression names.
pub(super) enum Text {
    CallerName,
    CallerKind,
    ToolId,
    ToolToolset,
    ToolRuledAs,
    ToolEffects,
    /// Member of the input.
    Input(String),
}

/// Comparison of a text with constants.
pub(super) enum How {
    OneOf(Vec<String>),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Under(String),
    Touches(String),
}

impl Test {
    /// Converts `expression`, or returns `None` if it does more than compare texts.
    pub(super) fn of(expression: &IdedExpr) -> Option<Self> {
        let Expr::Call(call) = &expression.expr else { return None };
        let CallExpr { func_name, target, args } = call;
        let both = |a, b| Some(Box::new([Self::of(a)?, Self::of(b)?]));
        let one_of = |text, all| Some(Self::Is(Text::of(text)?, How::OneOf(all)));
        Some(match (func_name.as_str(), target.as_deref(), &args[..]) {
            (LOGICAL_AND, None, [a, b]) => Self::All(both(a, b)?),
            (LOGICAL_OR, None, [a, b]) => Self::Any(both(a, b)?),
            (LOGICAL_NOT, None, [not]) => Self::Not(Box::new(Self::of(not)?)),
            (EQUALS, None, [a, b]) => one_of(a, vec![literal(b)?])?,
            (NOT_EQUALS, None, [a, b]) => Self::Not(Box::new(one_of(a, vec![literal(b)?])?)),
            (IN, None, [a, b]) => {
                let Expr::List(list) = &b.expr else { return None };
                let all = list.optional_indices.is_empty().then_some(&list.elements)?;
                one_of(a, all.iter().map(literal).collect::<Option<_>>()?)?
            }
            ("startsWith", Some(a), [b]) => Self::Is(Text::of(a)?, How::StartsWith(literal(b)?)),
            ("endsWith", Some(a), [b]) => Self::Is(Text::of(a)?, How::EndsWith(literal(b)?)),
            ("contains", Some(a), [b]) => Self::Is(Text::of(a)?, How::Contains(literal(b)?)),
            ("under", None, [a, b]) => Self::Is(Text::of(a)?, How::Under(literal(b)?)),
            ("touches", None, [a, b]) => Self::Is(Text::of(a)?, How::Touches(literal(b)?)),
            _ => return None,
        })
    }

    /// Evaluates the expression for a workspace at `root`. Returns `None` if only CEL can decide.
    pub(super) fn is_true(&self, asked: &Of<'_>, root: Option<&str>) -> Option<bool> {
        Some(match self {
            // Both sides are evaluated: an error on either side is left to CEL.
            Self::All(both) => {
                let [a, b] = both.each_ref().map(|it| it.is_true(asked, root));
                a? & b?
            }
            Self::Any(both) => {
                let [a, b] = both.each_ref().map(|it| it.is_true(asked, root));
                a? | b?
            }
            Self::Not(not) => !not.is_true(asked, root)?,
            Self::Is(text, how) => how.is(&text.get(asked, root)?, root),
        })
    }
}

impl Text {
    fn of(expression: &IdedExpr) -> Option<Self> {
        let (of, member) = match &expression.expr {
            Expr::Select(select) if !select.test => (&*select.operand, select.field.clone()),
            Expr::Call(CallExpr { func_name, target: None, args }) if func_name == INDEX => {
                let [of, member] = &args[..] else { return None };
                (of, literal(member)?)
            }
            _ => return None,
        };
        let Expr::Ident(of) = &of.expr else { return None };
        Some(match (of.as_str(), member.as_str()) {
            ("input", _) => Self::Input(member),
            ("caller", "name") => Self::CallerName,
            ("caller", "kind") => Self::CallerKind,
            ("tool", "id") => Self::ToolId,
            ("tool", "toolset") => Self::ToolToolset,
            ("tool", "ruled_as") => Self::ToolRuledAs,
            ("tool", "effects") => Self::ToolEffects,
            _ => return None,
        })
    }

    fn get<'o>(&self, asked: &Of<'o>, root: Option<&str>) -> Option<Cow<'o, str>> {
        let Of { caller, spec, input, what: _ } = *asked;
        Some(Cow::Borrowed(match self {
            Self::CallerName => &caller.name,
            Self::CallerKind => caller.kind.word(),
            Self::ToolId => spec.id.as_str(),
            Self::ToolToolset => spec.id.toolset(),
            Self::ToolRuledAs => spec.ruled_as.as_ref().unwrap_or(&spec.id).as_str(),
            Self::ToolEffects => binding::effects(spec.effects),
            Self::Input(member) => {
                let Value::String(text) = input.as_object()?.get(member)? else { return None };
                match spec.paths.iter().any(|path| path == member) {
                    // Each comparison normalizes the path again, whereas CEL does so once.
                    true if text.len() > PATH_BYTES => return None,
                    true => return Some(plain(text, root)),
                    false => text,
                }
            }
        }))
    }
}

impl How {
    fn is(&self, text: &str, root: Option<&str>) -> bool {
        match self {
            Self::OneOf(all) => all.iter().any(|it| it == text),
            Self::StartsWith(start) => text.starts_with(start),
            Self::EndsWith(end) => text.ends_with(end),
            Self::Contains(part) => text.contains(part),
            Self::Under(folder) => under(text, folder, root),
            Self::Touches(folder) => touches(text, folder, root),
        }
    }
}

fn literal(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
        _ => None,
    }
}
