//! Evaluates expressions that only compare texts without CEL, as most rules do.
//!
//! The result is the same as with CEL. Missing members, other types and errors are left to CEL.

use std::borrow::Cow;

use cel::common::ast::operators::{
    EQUALS, IN, INDEX, LOGICAL_AND, LOGICAL_NOT, LOGICAL_OR, NOT_EQUALS,
};
use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue};
use serde_json::Value;

use super::PolicyRequest;
use super::plain_path::{normalize_path, touches, under};

/// Longest path in an input that is compared without CEL, in bytes. Systems accept no longer paths.
const PATH_BYTES_MAX: usize = 4096;

/// A policy expression that only compares texts, so that it is evaluated without CEL.
pub(super) enum TextOnlyExpression {
    All(Box<[Self; 2]>),
    Any(Box<[Self; 2]>),
    Not(Box<Self>),
    Compare(ComparedTextVariable, TextComparison),
}

/// A variable of a policy expression whose text is compared.
pub(super) enum ComparedTextVariable {
    CallerName,
    CallerKind,
    ToolId,
    ToolToolset,
    ToolRuledAs,
    ToolEffects,
    /// Text in the field of the call's input that has this name.
    Input(String),
}

/// Comparison of a text with constants, in a policy expression.
pub(super) enum TextComparison {
    OneOf(Vec<String>),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Under(String),
    Touches(String),
}

impl TextOnlyExpression {
    /// Converts the policy `expression`, or returns `None` if it does more than compare texts.
    pub(super) fn from_expression(expression: &IdedExpr) -> Option<Self> {
        let Expr::Call(call) = &expression.expr else { return None };
        let CallExpr { func_name, target, args } = call;
        let both = |a, b| Some(Box::new([Self::from_expression(a)?, Self::from_expression(b)?]));
        let one_of = |text, all| {
            Some(Self::Compare(
                ComparedTextVariable::from_expression(text)?,
                TextComparison::OneOf(all),
            ))
        };
        Some(match (func_name.as_str(), target.as_deref(), &args[..]) {
            (LOGICAL_AND, None, [a, b]) => Self::All(both(a, b)?),
            (LOGICAL_OR, None, [a, b]) => Self::Any(both(a, b)?),
            (LOGICAL_NOT, None, [not]) => Self::Not(Box::new(Self::from_expression(not)?)),
            (EQUALS, None, [a, b]) => one_of(a, vec![literal(b)?])?,
            (NOT_EQUALS, None, [a, b]) => Self::Not(Box::new(one_of(a, vec![literal(b)?])?)),
            (IN, None, [a, b]) => {
                let Expr::List(list) = &b.expr else { return None };
                let all = list.optional_indices.is_empty().then_some(&list.elements)?;
                one_of(a, all.iter().map(literal).collect::<Option<_>>()?)?
            }
            ("startsWith", Some(a), [b]) => Self::Compare(
                ComparedTextVariable::from_expression(a)?,
                TextComparison::StartsWith(literal(b)?),
            ),
            ("endsWith", Some(a), [b]) => Self::Compare(
                ComparedTextVariable::from_expression(a)?,
                TextComparison::EndsWith(literal(b)?),
            ),
            ("contains", Some(a), [b]) => Self::Compare(
                ComparedTextVariable::from_expression(a)?,
                TextComparison::Contains(literal(b)?),
            ),
            ("under", None, [a, b]) => Self::Compare(
                ComparedTextVariable::from_expression(a)?,
                TextComparison::Under(literal(b)?),
            ),
            ("touches", None, [a, b]) => Self::Compare(
                ComparedTextVariable::from_expression(a)?,
                TextComparison::Touches(literal(b)?),
            ),
            _ => return None,
        })
    }

    /// Evaluates the expression for `request` and a workspace at `root`. Returns `None` if only CEL
    /// can decide.
    pub(super) fn evaluate(&self, request: &PolicyRequest<'_>, root: Option<&str>) -> Option<bool> {
        Some(match self {
            // Both sides are evaluated: an error on either side is left to CEL.
            Self::All(both) => {
                let [a, b] = both.each_ref().map(|it| it.evaluate(request, root));
                a? & b?
            }
            Self::Any(both) => {
                let [a, b] = both.each_ref().map(|it| it.evaluate(request, root));
                a? | b?
            }
            Self::Not(not) => !not.evaluate(request, root)?,
            Self::Compare(text, how) => how.matches(&text.value(request, root)?, root),
        })
    }
}

impl ComparedTextVariable {
    fn from_expression(expression: &IdedExpr) -> Option<Self> {
        let (operand, member) = match &expression.expr {
            Expr::Select(select) if !select.test => (&*select.operand, select.field.clone()),
            Expr::Call(CallExpr { func_name, target: None, args }) if func_name == INDEX => {
                let [operand, member] = &args[..] else { return None };
                (operand, literal(member)?)
            }
            _ => return None,
        };
        let Expr::Ident(operand) = &operand.expr else { return None };
        Some(match (operand.as_str(), member.as_str()) {
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

    fn value<'o>(&self, request: &PolicyRequest<'o>, root: Option<&str>) -> Option<Cow<'o, str>> {
        let PolicyRequest { caller, spec, input, kind: _ } = *request;
        Some(Cow::Borrowed(match self {
            Self::CallerName => &caller.name,
            Self::CallerKind => caller.kind.as_str(),
            Self::ToolId => spec.id.as_str(),
            Self::ToolToolset => spec.id.toolset(),
            Self::ToolRuledAs => spec.ruled_as.as_ref().unwrap_or(&spec.id).as_str(),
            Self::ToolEffects => spec.effects.as_str(),
            Self::Input(member) => {
                let Value::String(text) = input.as_object()?.get(member)? else { return None };
                match spec.paths.iter().any(|path| path == member) {
                    // Each comparison normalizes the path again, whereas CEL does so once.
                    true if text.len() > PATH_BYTES_MAX => return None,
                    true => return Some(normalize_path(text, root)),
                    false => text,
                }
            }
        }))
    }
}

impl TextComparison {
    fn matches(&self, text: &str, root: Option<&str>) -> bool {
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
