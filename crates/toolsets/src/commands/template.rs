//! `argv` templates: how arguments become words, so that none can become another's.

use serde_json::Value;
use toolgate_contract::ToolError;

use super::argument::{Argument, Given};
use super::note::{Count, Kind};
use super::table::{Dash, Many};

/// Something in an `argv` template that stands for words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// One word, made of text and arguments.
    Word { pieces: Vec<Piece>, optional: bool },
    /// `{--name}`: the option of an argument.
    Option(usize),
    /// `{name...}`: a word for each value of a list.
    Spread(usize),
    /// `{options}`: the options of all arguments that stand nowhere else.
    Rest,
    /// All of it, or nothing where an argument in it is absent.
    Group(Vec<Item>),
}

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Insert(usize),
}

/// What is between braces, before it is known which argument it names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Raw<'t> {
    Text(String),
    Insert { name: &'t str, optional: bool },
}

impl Item {
    /// Reads one element of a template, with `find` to look up the arguments it names.
    pub(super) fn parse(
        element: &str,
        arguments: &[Argument],
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
                return if note.count == Count::One && note.kind != Kind::Any {
                    Err(format!("`{name}` is no list; write `{{{name}}}`"))
                } else {
                    Ok(Self::Spread(index))
                };
            }
        }
        let mut pieces = Vec::new();
        let mut optional = false;
        for raw in raw_pieces(element)? {
            pieces.push(match raw {
                Raw::Text(text) => Piece::Text(text),
                Raw::Insert { name, optional: is_optional } => {
                    optional |= is_optional;
                    let index = find(name)?;
                    check_insert(&arguments[index], pieces.last())?;
                    Piece::Insert(index)
                }
            });
        }
        Ok(Self::Word { pieces, optional })
    }

    /// The arguments it stands for.
    pub(super) fn arguments(&self) -> Vec<usize> {
        match self {
            Self::Word { pieces, .. } => pieces
                .iter()
                .filter_map(|piece| match piece {
                    Piece::Insert(index) => Some(*index),
                    Piece::Text(_) => None,
                })
                .collect(),
            Self::Option(index) | Self::Spread(index) => vec![*index],
            Self::Rest => Vec::new(),
            Self::Group(items) => items.iter().flat_map(Self::arguments).collect(),
        }
    }

    /// The arguments it cannot do without.
    pub(super) fn needs(&self) -> Vec<usize> {
        match self {
            Self::Word { optional: false, .. } => self.arguments(),
            Self::Word { optional: true, .. }
            | Self::Option(_)
            | Self::Spread(_)
            | Self::Rest
            | Self::Group(_) => Vec::new(),
        }
    }

    /// Adds the words it stands for to `argv`; `rest` are the arguments that stand nowhere else.
    pub(super) fn render(
        &self,
        given: &Given<'_>,
        rest: &[usize],
        argv: &mut Vec<String>,
    ) -> Result<(), ToolError> {
        match self {
            Self::Word { pieces, optional } => {
                let is_absent = self.arguments().iter().any(|index| given.value(*index).is_none());
                if !(is_absent && *optional) {
                    argv.push(word(pieces, given)?);
                }
                Ok(())
            }
            Self::Option(index) => option(*index, given, argv),
            Self::Spread(index) => spread(*index, given, argv),
            Self::Rest => rest.iter().try_for_each(|index| option(*index, given, argv)),
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

/// The pieces of a template: text, and what is in braces; `{{` is a brace.
pub(super) fn raw_pieces(template: &str) -> Result<Vec<Raw<'_>>, String> {
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
            return Err(format!("`{template}` has a `}}` that closes nothing; a brace is `}}}}`"));
        } else {
            let (inner, after) = rest.split_once('}').ok_or_else(|| {
                format!("`{template}` has a `{{` that is not closed; a brace is `{{{{`")
            })?;
            if !text.is_empty() {
                pieces.push(Raw::Text(std::mem::take(&mut text)));
            }
            let (name, optional) = match inner.strip_suffix('?') {
                Some(name) => (name, true),
                None => (inner, false),
            };
            if name.starts_with("--") || name.ends_with("...") || name == "options" {
                return Err(format!("`{{{inner}}}` must be a string of its own in the array"));
            }
            pieces.push(Raw::Insert { name, optional });
            rest = after;
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(Raw::Text(text));
    }
    Ok(pieces)
}

/// Refuses to insert what has no one text, or what would choose the option itself.
fn check_insert(argument: &Argument, before: Option<&Piece>) -> Result<(), String> {
    let name = &argument.name;
    if argument.note.count != Count::One {
        return Err(format!("`{name}` is a list; write `{{{name}...}}` or `{{--{name}}}`"));
    }
    if argument.note.kind == Kind::Flag {
        return Err(format!("`{name}` is a flag; write `{{--{name}}}`"));
    }
    let is_bounded = matches!(argument.note.kind, Kind::Integer | Kind::Choice(_));
    match before {
        Some(Piece::Text(text)) if text.bytes().all(|b| b == b'-') && !is_bounded => Err(format!(
            "`{text}{{{name}}}` would let a call choose the option; write `{{--{name}}}`, or give \
             the argument its choices"
        )),
        Some(_) | None => Ok(()),
    }
}

/// The word that `pieces` make.
fn word(pieces: &[Piece], given: &Given<'_>) -> Result<String, ToolError> {
    let mut word = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => word.push_str(text),
            Piece::Insert(index) => {
                let argument = given.argument(*index);
                let value = given.value(*index).ok_or_else(|| {
                    ToolError::invalid(argument.pointer(), "the argument is missing")
                })?;
                let text = text(value, &argument.pointer())?;
                // What comes first decides how a program reads the word.
                let is_first = word.bytes().all(|b| b == b'-');
                if is_first && text.starts_with('-') {
                    let may = match argument.dash {
                        Dash::Any => true,
                        Dash::Alone => word.is_empty() && text == "-" && pieces.len() == 1,
                        Dash::Never => false,
                    };
                    if !may {
                        return Err(like_an_option(&argument.pointer(), &text));
                    }
                }
                word.push_str(&text);
            }
        }
    }
    Ok(word)
}

/// A word for each value of a list.
fn spread(index: usize, given: &Given<'_>, argv: &mut Vec<String>) -> Result<(), ToolError> {
    let argument = given.argument(index);
    for (at, value) in given.values(index).iter().enumerate() {
        let pointer = format!("{}/{at}", argument.pointer());
        let text = text(value, &pointer)?;
        let may = match argument.dash {
            Dash::Any => true,
            Dash::Alone => text == "-" || !text.starts_with('-'),
            Dash::Never => !text.starts_with('-'),
        };
        if !may {
            return Err(like_an_option(&pointer, &text));
        }
        argv.push(text);
    }
    Ok(())
}

/// The option of an argument, and its value or values.
fn option(index: usize, given: &Given<'_>, argv: &mut Vec<String>) -> Result<(), ToolError> {
    let argument = given.argument(index);
    let Some(value) = given.value(index) else { return Ok(()) };
    let (option, pointer) = (&argument.option, argument.pointer());
    let items = match value {
        Value::Bool(false) => return Ok(()),
        Value::Bool(true) => {
            argv.push(option.clone());
            return Ok(());
        }
        Value::Array(items) => items.as_slice(),
        one => return pair(argument, option, one, &pointer, argv),
    };
    if argument.many == Many::Repeat {
        return items.iter().enumerate().try_for_each(|(at, item)| {
            pair(argument, option, item, &format!("{pointer}/{at}"), argv)
        });
    }
    if !items.is_empty() {
        argv.push(option.clone());
    }
    for (at, item) in items.iter().enumerate() {
        argv.push(value_after(argument, item, &format!("{pointer}/{at}"))?);
    }
    Ok(())
}

/// An option and one value.
fn pair(
    argument: &Argument,
    option: &str,
    value: &Value,
    pointer: &str,
    argv: &mut Vec<String>,
) -> Result<(), ToolError> {
    if argument.joined {
        let equals = if option.starts_with("--") { "=" } else { "" };
        argv.push(format!("{option}{equals}{}", text(value, pointer)?));
    } else {
        argv.push(option.to_owned());
        argv.push(value_after(argument, value, pointer)?);
    }
    Ok(())
}

/// A value that is the word after its option.
fn value_after(argument: &Argument, value: &Value, pointer: &str) -> Result<String, ToolError> {
    let text = text(value, pointer)?;
    let may =
        !text.starts_with('-') || text == "-" || value.is_number() || argument.dash == Dash::Any;
    if may { Ok(text) } else { Err(like_an_option(pointer, &text)) }
}

fn like_an_option(pointer: &str, text: &str) -> ToolError {
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

/// A value as one word.
pub(super) fn text(value: &Value, pointer: &str) -> Result<String, ToolError> {
    let text = match value {
        Value::String(text) => text.clone(),
        // Written out: an exponent is not a number to every program.
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => whole.to_string(),
            (None, Some(whole), _) => whole.to_string(),
            (None, None, float) => float.unwrap_or_default().to_string(),
        },
        other => other.to_string(),
    };
    if text.contains('\0') {
        return Err(ToolError::invalid(pointer, "the argument contains a NUL character"));
    }
    Ok(text)
}
