//! What a file that declares commands may say, and where in it each thing is said.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use toml::Spanned;

/// A pack file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Pack {
    /// What holds for every command in the file that does not say otherwise.
    pub(super) defaults: Option<Spanned<Table>>,
    /// The commands, by id.
    pub(super) command: Entries<Table>,
}

/// What the configuration says of commands; the rest of it is others' to read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Configured {
    pub(super) command: Entries<Table>,
}

/// One command, `[command."stage.name"]`, or what holds for all in a file, `[defaults]`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Table {
    /// What it does, for the agent that will use it.
    #[schemars(with = "Option<String>")]
    pub(super) about: Option<Spanned<String>>,
    /// A short name for people; by default made from the id.
    #[schemars(with = "Option<String>")]
    pub(super) title: Option<Spanned<String>>,
    /// The program: a name sought in PATH, or a path, relative to the file that says so.
    #[schemars(with = "Option<String>")]
    pub(super) program: Option<Spanned<String>>,
    /// The variable of the server's own environment that says where the program is instead.
    pub(super) program_env: Option<String>,
    /// What follows the program, a string each: text, `{name}`, `{name?}`, `{name...}`,
    /// `{--name}`, `{options}`; an array in it is left out whole where an argument in it is absent.
    #[schemars(with = "Option<Vec<Value>>")]
    pub(super) argv: Option<Spanned<Vec<Spanned<Element>>>>,
    /// The arguments: a type note such as `"string!"` each, or a table.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub(super) args: Entries<Spanned<Noted>>,
    /// Whether a call may add words of its own, in the argument `argv`, as they are.
    pub(super) passthrough: Option<bool>,
    /// Whether arguments that are not declared are ignored; they are refused by default.
    pub(super) ignore_extra: Option<bool>,
    /// The directory to start in, inside the workspace; its root by default.
    pub(super) cwd: Option<String>,
    /// Variables to set.
    #[schemars(with = "BTreeMap<String, String>")]
    pub(super) env: Entries<Spanned<String>>,
    /// Variables of the server's own environment that it gets besides those of `exec.env_keep`.
    pub(super) env_keep: Vec<String>,
    /// The argument whose value it reads from standard input.
    #[schemars(with = "Option<String>")]
    pub(super) stdin: Option<Spanned<String>>,
    /// How long it may run; `exec.timeout_ms` by default.
    #[schemars(with = "Option<u64>")]
    pub(super) deadline_ms: Option<Spanned<u64>>,
    /// The exit codes that are no failure; 0 by default.
    pub(super) success: Option<Vec<i32>>,
    /// The files it leaves, beneath the workspace: globs in which `{name}` inserts an argument.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) artefacts: Option<Vec<Spanned<String>>>,
    /// Whether it takes the place of the built-in tool that has its id; without, such an id is
    /// refused.
    pub(super) replaces: Option<bool>,
    /// Whether running it again is harmless.
    pub(super) idempotent: Option<bool>,
    /// What running it can change; `runs` by default.
    pub(super) effects: Option<Effect>,
    /// How many calls of it may run at once.
    #[schemars(with = "Option<usize>")]
    pub(super) at_once: Option<Spanned<usize>>,
    /// Which of the jobs that wait goes first: the higher.
    pub(super) priority: Option<i32>,
    /// What its output says of how far it is: a regular expression with one group, a percentage,
    /// or two, done and total.
    #[schemars(with = "Option<String>")]
    pub(super) progress: Option<Spanned<String>>,
}

/// What running a command can change, as a file says it.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effect {
    Reads,
    Adds,
    Changes,
    Runs,
}

/// An element of `argv`.
#[derive(Debug)]
pub(super) enum Element {
    Word(String),
    Group(Vec<Spanned<String>>),
}

/// An argument as a file declares it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Arg {
    /// Its type note.
    pub(super) r#type: Option<Spanned<String>>,
    /// What it means.
    pub(super) about: Option<String>,
    /// The value it has where a call does not give it.
    pub(super) default: Option<Spanned<Value>>,
    /// The value the program takes where it is not given: told, never passed.
    pub(super) assumed: Option<Value>,
    /// Other names for it.
    pub(super) aliases: Vec<Spanned<String>>,
    /// The option that passes it, `--kebab-name` by default.
    pub(super) option: Option<Spanned<String>>,
    /// How a list is passed as an option.
    pub(super) many: Many,
    /// Whether an option and its value are one word, `--name=value`.
    pub(super) joined: bool,
    /// Whether its value may begin with `-`.
    pub(super) dash: Dash,
    /// Whether a call must give it, where `schema` says what it is.
    pub(super) required: bool,
    /// Its whole JSON Schema, instead of a type note.
    pub(super) schema: Option<Spanned<Value>>,
}

/// How a list is passed as an option.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Many {
    /// `--in a --in b`.
    #[default]
    Repeat,
    /// `--in a b`.
    Spread,
}

/// Whether a value may begin with `-`, where it is a word of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Dash {
    /// In no place where it could be read as an option; a number may, and `-` alone, after one.
    #[default]
    Never,
    /// `-` alone may stand anywhere.
    Alone,
    /// Any.
    Any,
}

/// The entries of a table in the order in which they were written.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Vec<(Spanned<String>, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Read<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries: Vec<(Spanned<String>, T)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                entries.sort_by_key(|(name, _)| name.span().start);
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Read(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or an array of strings that is left out whole")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Element, E> {
                Ok(Element::Word(word.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut words: A) -> Result<Element, A::Error> {
                let mut group = Vec::new();
                while let Some(word) = words.next_element()? {
                    group.push(word);
                }
                Ok(Element::Group(group))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// An argument: a type note alone, or a table. Spanned, so that the note has its place.
pub(super) fn noted(arg: Spanned<Noted>) -> Arg {
    let span = arg.span();
    match arg.into_inner() {
        Noted::Note(note) => Arg { r#type: Some(Spanned::new(span, note)), ..Arg::default() },
        Noted::Table(arg) => *arg,
    }
}

/// What stands for an argument.
#[derive(Debug)]
pub(super) enum Noted {
    Note(String),
    Table(Box<Arg>),
}

impl<'de> Deserialize<'de> for Noted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Noted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type note such as \"string!\", or a table")
            }

            fn visit_str<E: Error>(self, note: &str) -> Result<Noted, E> {
                Ok(Noted::Note(note.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Noted, A::Error> {
                Arg::deserialize(MapAccessDeserializer::new(map)).map(Box::new).map(Noted::Table)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl<'de> Deserialize<'de> for Dash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Dash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"alone\"")
            }

            fn visit_bool<E: Error>(self, any: bool) -> Result<Dash, E> {
                Ok(if any { Dash::Any } else { Dash::Never })
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Dash, E> {
                match word {
                    "alone" => Ok(Dash::Alone),
                    other => Err(E::custom(format!("`{other}` is not true, false or \"alone\""))),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}
