//! The TOML format of files that declare commands. Values keep their locations in the file for
//! error messages.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use toml::Spanned;

/// The content of a command pack: a file that declares commands.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CommandPackFile {
    /// Defaults for every command in the pack.
    pub(super) defaults: Option<Spanned<CommandDeclarationTable>>,
    /// The declared commands of the pack, by id.
    pub(super) command: OrderedTableEntries<CommandDeclarationTable>,
}

/// The command tables of the configuration file. Other tables of the file are ignored here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConfiguredCommands {
    pub(super) command: OrderedTableEntries<CommandDeclarationTable>,
}

/// One command, `[command."stage.name"]`, or the defaults of a file, `[defaults]`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a table with the name of the command, `[command.\"stage.name\"]`"
)]
pub(super) struct CommandDeclarationTable {
    /// Description of the tool for the agent.
    #[schemars(with = "Option<String>")]
    pub(super) about: Option<Spanned<String>>,
    /// Program to run: a name in PATH, or a path. A relative path starts from the folder of the
    /// file that declares the command.
    #[schemars(with = "Option<String>")]
    pub(super) program: Option<Spanned<String>>,
    /// Environment variable of the server that overrides the program's path.
    pub(super) program_env: Option<String>,
    /// Arguments of the program, one string for each: text, `{name}`, `{name?}`, `{name...}`,
    /// `{--name}`, `{options}`. If a call leaves out an argument of a nested array, toolgate leaves
    /// out the array.
    #[schemars(with = "Option<Vec<Value>>")]
    pub(super) argv: Option<Spanned<Vec<Spanned<DeclaredArgvElement>>>>,
    /// Arguments of the tool, with the type of each. A type is a note such as `"string!"`, or a
    /// table.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub(super) args: OrderedTableEntries<Spanned<ArgumentDeclaration>>,
    /// Directory in which the program starts, inside the workspace. Default: the workspace root.
    pub(super) cwd: Option<String>,
    /// Environment variables to set for the program.
    #[schemars(with = "BTreeMap<String, String>")]
    pub(super) env: OrderedTableEntries<Spanned<String>>,
    /// Server environment variables to pass on, in addition to `exec.env_keep`.
    pub(super) env_keep: Vec<String>,
    /// Hosts that the program may reach, as in `sandbox.hosts`. With this setting, the program
    /// reaches no other hosts, even if its sandbox profile is `network`.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) hosts: Option<Spanned<Vec<String>>>,
    /// Argument that is passed to the program on standard input.
    #[schemars(with = "Option<String>")]
    pub(super) stdin: Option<Spanned<String>>,
    /// Time limit in milliseconds. Default: 60000.
    #[schemars(with = "Option<u64>")]
    pub(super) deadline_ms: Option<Spanned<u64>>,
    /// Exit codes that mean success. Default: 0.
    pub(super) success: Option<Vec<i32>>,
    /// Files that the command creates in the workspace: globs in which `{name}` inserts an
    /// argument.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) artefacts: Option<Vec<Spanned<String>>>,
    /// Allows this command to replace the built-in tool that has the same id. If false (the
    /// default), toolgate refuses a command with the id of a built-in tool.
    pub(super) replaces: Option<bool>,
    /// True if the command may safely run again, for example after a crash. Default: false.
    pub(super) idempotent: Option<bool>,
    /// Effects of running the command. Default: `runs`.
    pub(super) effects: Option<DeclaredEffects>,
    /// Maximum number of concurrent calls.
    #[schemars(with = "Option<usize>")]
    pub(super) at_once: Option<Spanned<usize>>,
    /// Regular expression that finds progress in the program's output, with one group (a
    /// percentage) or two (done and total).
    #[schemars(with = "Option<String>")]
    pub(super) progress: Option<Spanned<String>>,
}

/// Effects of running a command.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeclaredEffects {
    Reads,
    Adds,
    Changes,
    Runs,
}

/// An element of the `argv` list in a command's declaration.
#[derive(Debug)]
pub(super) enum DeclaredArgvElement {
    Word(String),
    Group(Vec<Spanned<String>>),
}

/// The TOML table that declares an argument of a command.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ArgumentDeclarationTable {
    /// The argument's type note, such as `"string!"`.
    pub(super) r#type: Option<Spanned<String>>,
    /// The argument's description.
    pub(super) about: Option<String>,
    /// The argument's value in calls that do not set the argument.
    pub(super) default: Option<Spanned<Value>>,
    /// The default that the program itself uses. The argument's JSON Schema shows this value, but
    /// toolgate never passes it.
    pub(super) assumed: Option<Value>,
    /// Alternative names of the argument.
    pub(super) aliases: Vec<Spanned<String>>,
    /// The option that passes the argument on the command line. Default: `--kebab-name`.
    pub(super) option: Option<Spanned<String>>,
    /// The style in which a list is passed on the command line. Default: the option is repeated.
    pub(super) many: ListOptionStyle,
    /// True to pass the option and its value as one word, `--name=value`. Default: false.
    pub(super) joined: bool,
    /// The policy for values that begin with `-`. Default: such values are refused.
    pub(super) dash: LeadingDashPolicy,
    /// True if each call must set the argument. Only used if `schema` replaces the type note.
    pub(super) required: bool,
    /// The argument's JSON Schema, which replaces the type note.
    pub(super) schema: Option<Spanned<Value>>,
}

/// The style in which a list is passed as options on the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ListOptionStyle {
    /// The option is repeated for each value: `--in a --in b`.
    #[default]
    Repeat,
    /// All values follow a single option: `--in a b`.
    Spread,
}

/// Policy for argument values that begin with `-`, if they are separate words of the command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LeadingDashPolicy {
    /// A value that starts with `-` is refused if the program could mistake it for an option. A
    /// number, or `-` alone, is still allowed as the value of an option.
    #[default]
    Never,
    /// The value `-` is allowed anywhere. Other values are treated as in `Never`.
    Alone,
    /// Any value is allowed, even if it starts with `-`.
    Any,
}

/// The entries of a TOML table, in the order of the file.
#[derive(Debug)]
pub(super) struct OrderedTableEntries<T>(pub(super) Vec<(Spanned<String>, T)>);

impl<T> Default for OrderedTableEntries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedTableEntries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DeclarationVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for DeclarationVisitor<T> {
            type Value = OrderedTableEntries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<OrderedTableEntries<T>, A::Error> {
                let mut entries: Vec<(Spanned<String>, T)> = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                entries.sort_by_key(|(name, _)| name.span().start);
                Ok(OrderedTableEntries(entries))
            }
        }
        deserializer.deserialize_map(DeclarationVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for DeclaredArgvElement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor;
        impl<'de> Visitor<'de> for OneOrManyVisitor {
            type Value = DeclaredArgvElement;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, or an array of strings, all of which is left out if an argument is \
                     absent",
                )
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<DeclaredArgvElement, E> {
                Ok(DeclaredArgvElement::Word(word.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut words: A,
            ) -> Result<DeclaredArgvElement, A::Error> {
                let mut group = Vec::new();
                while let Some(word) = words.next_element()? {
                    group.push(word);
                }
                Ok(DeclaredArgvElement::Group(group))
            }
        }
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

/// Converts an argument's declaration to a table. Errors about a type note still point to its
/// location in the file.
pub(super) fn into_table(arg: Spanned<ArgumentDeclaration>) -> ArgumentDeclarationTable {
    let span = arg.span();
    match arg.into_inner() {
        ArgumentDeclaration::Note(note) => ArgumentDeclarationTable {
            r#type: Some(Spanned::new(span, note)),
            ..ArgumentDeclarationTable::default()
        },
        ArgumentDeclaration::Table(arg) => *arg,
    }
}

/// The declaration of a command's argument: a type note such as `"string!"`, or a table.
#[derive(Debug)]
pub(super) enum ArgumentDeclaration {
    Note(String),
    Table(Box<ArgumentDeclarationTable>),
}

impl<'de> Deserialize<'de> for ArgumentDeclaration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpannedMapVisitor;
        impl<'de> Visitor<'de> for SpannedMapVisitor {
            type Value = ArgumentDeclaration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a type note such as \"string!\", or a table")
            }

            fn visit_str<E: Error>(self, note: &str) -> Result<ArgumentDeclaration, E> {
                Ok(ArgumentDeclaration::Note(note.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ArgumentDeclaration, A::Error> {
                ArgumentDeclarationTable::deserialize(MapAccessDeserializer::new(map))
                    .map(Box::new)
                    .map(ArgumentDeclaration::Table)
            }
        }
        deserializer.deserialize_any(SpannedMapVisitor)
    }
}

impl<'de> Deserialize<'de> for LeadingDashPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeNumberVisitor;
        impl Visitor<'_> for WholeNumberVisitor {
            type Value = LeadingDashPolicy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or \"alone\"")
            }

            fn visit_bool<E: Error>(self, any: bool) -> Result<LeadingDashPolicy, E> {
                Ok(if any { LeadingDashPolicy::Any } else { LeadingDashPolicy::Never })
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<LeadingDashPolicy, E> {
                match word {
                    "alone" => Ok(LeadingDashPolicy::Alone),
                    other => Err(E::custom(format!("`{other}` is not true, false or \"alone\""))),
                }
            }
        }
        deserializer.deserialize_any(WholeNumberVisitor)
    }
}
