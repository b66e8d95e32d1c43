//! Templates of command lines. They convert argument values to words in such a way that no value
//! can act as a different argument.

use serde_json::{Number, Value};
use toolgate_contract::{ToolError, exact_json};

use super::argument::{CommandArgument, CommandArgumentValues};
use super::table::{LeadingDashPolicy, ListOptionStyle};
use super::type_note::{ArgumentValueCount, ArgumentValueKind};

/// An element of an `argv` template, which produces words of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgvTemplateItem {
    /// A single word, made of literal text and argument values. An `optional` word is left out if
    /// one of its arguments is absent.
    Word { pieces: Vec<ArgvTemplatePiece>, optional: bool },
    /// The option and value of the argument at this index, written `{--name}`.
    Option(usize),
    /// One word for each value of the list argument at this index, written `{name...}`.
    Spread(usize),
    /// The options of all arguments that the template does not name, written `{options}`.
    Rest,
    /// A group of elements. The group produces no words if one of its arguments is absent.
    Group(Vec<ArgvTemplateItem>),
}

/// A piece of a word in an `argv` template: literal text, or the index of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgvTemplatePiece {
    Text(String),
    Insert(usize),
}

/// A piece of a template, in which an argument is still given by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RawTemplatePiece<'t> {
    Text(String),
    Insert { name: &'t str, optional: bool },
}

impl ArgvTemplateItem {
    /// Parses one element of an `argv` template. `find` returns the index of an argument that the
    /// element names in braces.
    pub(super) fn parse(
        element: &str,
        arguments: &[CommandArgument],
        find: impl Fn(&str) -> Result<usize, String>,
    ) -> Result<Self, String> {
        if let Some(inner) = element.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            if inner == "--" || inner == "options" {
                return Ok(Self::Rest);
            }
            if let Some(name) = inner.strip_prefix("--") {
                return find(name).map(Self::Option);
            }
            if let Some(name) = inner.strip_suffix("...") {
                let index = find(name)?;
                let note = &arguments[index].note;
                return if note.count == ArgumentValueCount::One
                    && note.kind != ArgumentValueKind::Any
                {
                    Err(format!("`{name}` is not a list; write `{{{name}}}`"))
                } else {
                    Ok(Self::Spread(index))
                };
            }
        }
        let mut pieces = Vec::new();
        let mut optional = false;
        for raw in split_pieces(element)? {
            pieces.push(match raw {
                RawTemplatePiece::Text(text) => ArgvTemplatePiece::Text(text),
                RawTemplatePiece::Insert { name, optional: is_optional } => {
                    optional |= is_optional;
                    let index = find(name)?;
                    check_insert(&arguments[index], pieces.last())?;
                    ArgvTemplatePiece::Insert(index)
                }
            });
        }
        Ok(Self::Word { pieces, optional })
    }

    /// Returns the indexes of the arguments that this element of an `argv` template names.
    pub(super) fn arguments(&self) -> Vec<usize> {
        match self {
            Self::Word { pieces, .. } => pieces
                .iter()
                .filter_map(|piece| match piece {
                    ArgvTemplatePiece::Insert(index) => Some(*index),
                    ArgvTemplatePiece::Text(_) => None,
                })
                .collect(),
            Self::Option(index) | Self::Spread(index) => vec![*index],
            Self::Rest => Vec::new(),
            Self::Group(items) => items.iter().flat_map(Self::arguments).collect(),
        }
    }

    /// Returns the indexes of the arguments without which this element cannot be rendered, because
    /// they are inserted into a word that is not optional.
    pub(super) fn required_arguments(&self) -> Vec<usize> {
        match self {
            Self::Word { optional: false, .. } => self.arguments(),
            Self::Word { optional: true, .. }
            | Self::Option(_)
            | Self::Spread(_)
            | Self::Rest
            | Self::Group(_) => Vec::new(),
        }
    }

    /// Appends the words that this element produces to `argv`. `rest` contains the indexes of the
    /// arguments that the template does not name.
    pub(super) fn render(
        &self,
        given: &CommandArgumentValues<'_>,
        rest: &[usize],
        argv: &mut Vec<String>,
    ) -> Result<(), ToolError> {
        match self {
            Self::Word { pieces, optional } => {
                let is_absent = self.arguments().iter().any(|index| given.value(*index).is_none());
                if !(is_absent && *optional) {
                    argv.push(join_word(pieces, given)?);
                }
                Ok(())
            }
            Self::Option(index) => push_option(*index, given, argv),
            Self::Spread(index) => push_values(*index, given, argv),
            Self::Rest => rest.iter().try_for_each(|index| push_option(*index, given, argv)),
            Self::Group(items) => {
                let indices = items.iter().flat_map(Self::arguments);
                if indices.into_iter().any(|index| given.is_absent(index)) {
                    return Ok(());
                }
                items.iter().try_for_each(|item| item.render(given, rest, argv))
            }
        }
    }
}

/// Splits a template into text and placeholders in braces. `{{` stands for a literal brace. Fails
/// if a brace is not closed.
pub(super) fn split_pieces(template: &str) -> Result<Vec<RawTemplatePiece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
        } else if brace == "}" {
            return Err(format!("`{template}` has an unmatched `}}`; write `}}}}` for a brace"));
        } else {
            let (inner, after) = rest.split_once('}').ok_or_else(|| {
                format!("`{template}` has a `{{` that is not closed; write `{{{{` for a brace")
            })?;
            if !text.is_empty() {
                pieces.push(RawTemplatePiece::Text(std::mem::take(&mut text)));
            }
            let (name, optional) = match inner.strip_suffix('?') {
                Some(name) => (name, true),
                None => (inner, false),
            };
            if name.starts_with("--") || name.ends_with("...") || name == "options" {
                return Err(format!("`{{{inner}}}` must be a separate string in the array"));
            }
            pieces.push(RawTemplatePiece::Insert { name, optional });
            rest = after;
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(RawTemplatePiece::Text(text));
    }
    Ok(pieces)
}

/// Refuses a template that inserts a list or a flag into a word, or a value into the name of an
/// option. `before` is the piece in front of `argument`.
fn check_insert(
    argument: &CommandArgument,
    before: Option<&ArgvTemplatePiece>,
) -> Result<(), String> {
    let name = &argument.name;
    if argument.note.count != ArgumentValueCount::One {
        return Err(format!("`{name}` is a list; write `{{{name}...}}` or `{{--{name}}}`"));
    }
    if argument.note.kind == ArgumentValueKind::Flag {
        return Err(format!("`{name}` is a flag; write `{{--{name}}}`"));
    }
    let is_bounded =
        matches!(argument.note.kind, ArgumentValueKind::Integer | ArgumentValueKind::Choice(_));
    match before {
        Some(ArgvTemplatePiece::Text(text)) if text.bytes().all(|b| b == b'-') && !is_bounded => {
            Err(format!(
                "`{text}{{{name}}}` would let a call choose the option; write `{{--{name}}}`, or \
                 declare the argument's choices"
            ))
        }
        Some(_) | None => Ok(()),
    }
}

/// Joins the `pieces` of a word, with the argument values inserted. Refuses a value that could act
/// as an option.
fn join_word(
    pieces: &[ArgvTemplatePiece],
    given: &CommandArgumentValues<'_>,
) -> Result<String, ToolError> {
    let mut word = String::new();
    for piece in pieces {
        match piece {
            ArgvTemplatePiece::Text(text) => word.push_str(text),
            ArgvTemplatePiece::Insert(index) => {
                let argument = given.argument(*index);
                let value = given.value(*index).ok_or_else(|| {
                    ToolError::invalid(argument.pointer(), "the argument is missing")
                })?;
                let text = value_text(value, &argument.pointer())?;
                // The first character decides whether a program reads the word as an option.
                let is_first = word.bytes().all(|b| b == b'-');
                if is_first && text.starts_with('-') {
                    let is_allowed = match argument.dash {
                        LeadingDashPolicy::Any => true,
                        LeadingDashPolicy::Alone => {
                            word.is_empty() && text == "-" && pieces.len() == 1
                        }
                        LeadingDashPolicy::Never => false,
                    };
                    if !is_allowed {
                        return Err(option_like_error(&argument.pointer(), &text));
                    }
                }
                word.push_str(&text);
            }
        }
    }
    Ok(word)
}

/// Appends each value of the list argument at `index` to `argv` as a word.
fn push_values(
    index: usize,
    given: &CommandArgumentValues<'_>,
    argv: &mut Vec<String>,
) -> Result<(), ToolError> {
    let argument = given.argument(index);
    for (at, value) in given.values(index).iter().enumerate() {
        let pointer = format!("{}/{at}", argument.pointer());
        let text = value_text(value, &pointer)?;
        let is_allowed = match argument.dash {
            LeadingDashPolicy::Any => true,
            LeadingDashPolicy::Alone => text == "-" || !text.starts_with('-'),
            LeadingDashPolicy::Never => !text.starts_with('-'),
        };
        if !is_allowed {
            return Err(option_like_error(&pointer, &text));
        }
        argv.push(text);
    }
    Ok(())
}

/// Appends the option of the argument at `index`, and its values, to `argv`. Appends nothing if the
/// argument is absent.
fn push_option(
    index: usize,
    given: &CommandArgumentValues<'_>,
    argv: &mut Vec<String>,
) -> Result<(), ToolError> {
    let argument = given.argument(index);
    let Some(value) = given.value(index) else { return Ok(()) };
    let option = &argument.option;
    let pointer = argument.pointer();
    let items = match value {
        Value::Bool(false) => return Ok(()),
        Value::Bool(true) => {
            argv.push(option.clone());
            return Ok(());
        }
        Value::Array(items) => items.as_slice(),
        one => return push_pair(argument, option, one, &pointer, argv),
    };
    if argument.many == ListOptionStyle::Repeat {
        return items.iter().enumerate().try_for_each(|(at, item)| {
            push_pair(argument, option, item, &format!("{pointer}/{at}"), argv)
        });
    }
    if !items.is_empty() {
        argv.push(option.clone());
    }
    for (at, item) in items.iter().enumerate() {
        argv.push(option_value(argument, item, &format!("{pointer}/{at}"))?);
    }
    Ok(())
}

/// Appends an option and one value to `argv`, as two words or joined as `--name=value`.
fn push_pair(
    argument: &CommandArgument,
    option: &str,
    value: &Value,
    pointer: &str,
    argv: &mut Vec<String>,
) -> Result<(), ToolError> {
    if argument.joined {
        let equals = if option.starts_with("--") { "=" } else { "" };
        argv.push(format!("{option}{equals}{}", value_text(value, pointer)?));
    } else {
        argv.push(option.to_owned());
        argv.push(option_value(argument, value, pointer)?);
    }
    Ok(())
}

/// Returns `value` as the word that follows its option on the command line. Refuses a value that a
/// program could take for an option.
fn option_value(
    argument: &CommandArgument,
    value: &Value,
    pointer: &str,
) -> Result<String, ToolError> {
    let text = value_text(value, pointer)?;
    let is_allowed = !text.starts_with('-')
        || text == "-"
        || value.is_number()
        || argument.dash == LeadingDashPolicy::Any;
    if is_allowed { Ok(text) } else { Err(option_like_error(pointer, &text)) }
}

fn option_like_error(pointer: &str, text: &str) -> ToolError {
    let text: String = text.chars().take(60).collect();
    ToolError::invalid(
        pointer,
        format!(
            "`{}` begins with `-` and would be read as an option; if it is a file, write `./` \
             before it",
            text.escape_debug()
        ),
    )
}

/// Returns `number` as one word, with all its digits. Writes exponents out, because not every
/// program reads them, and `2.0` becomes `2`.
fn number_text(number: &Number, pointer: &str) -> Result<String, ToolError> {
    let text = number.as_str();
    if exact_json::is_plain_integer(number) {
        return Ok(if text == "-0" { "0" } else { text }.to_owned());
    }
    let float =
        number.as_f64().ok_or_else(|| ToolError::invalid(pointer, "the number is too large"))?;
    let is_decimal = !text.contains(['e', 'E']) && float.fract() != 0.0;
    Ok(if is_decimal { text.to_owned() } else { float.to_string() })
}

/// Returns an argument's value as one word of the command line. Errors name the input field
/// `pointer`.
pub(super) fn value_text(value: &Value, pointer: &str) -> Result<String, ToolError> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number_text(number, pointer)?,
        other => other.to_string(),
    };
    if text.contains('\0') {
        return Err(ToolError::invalid(pointer, "the argument contains a NUL character"));
    }
    Ok(text)
}
