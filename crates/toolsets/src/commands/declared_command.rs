//! A declared command with all names resolved and all patterns compiled.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grep_regex::RegexMatcher;
use serde_json::{Map, Value, json};
use toolgate_contract::{Effects, ToolId};
use toolgate_world::forwarder::ProgramHostAccess;

use super::argument::CommandArgument;
use super::artefacts::ArtefactPattern;
use super::template::ArgvTemplateItem;

/// A command that a pack or the configuration declares as a tool.
#[derive(Debug, Clone)]
pub struct DeclaredCommand {
    pub(super) id: ToolId,
    /// The command's id as written in the file, which may contain `-`.
    pub(super) written_id: String,
    pub(super) place: CommandDeclarationLocation,
    pub(super) title: String,
    pub(super) about: String,
    pub(super) program: CommandProgram,
    pub(super) argv: Vec<ArgvTemplateItem>,
    pub(super) arguments: Vec<CommandArgument>,
    /// The indexes of the arguments that only the placeholder `{options}` in `argv` passes.
    pub(super) rest: Vec<usize>,
    pub(super) stdin: Option<usize>,
    pub(super) cwd: Option<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) env_keep: Vec<String>,
    /// The hosts that the program may reach. `None` means that the sandbox profile decides.
    pub(super) hosts: Option<Arc<ProgramHostAccess>>,
    pub(super) deadline: Option<Duration>,
    pub(super) success: Vec<i32>,
    pub(super) artefacts: Vec<ArtefactPattern>,
    pub(super) idempotent: bool,
    /// True if the command replaces a built-in tool.
    pub(super) replaces: bool,
    pub(super) effects: Effects,
    pub(super) at_once: Option<usize>,
    pub(super) progress: Option<RegexMatcher>,
}

/// The location of a command's declaration in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandDeclarationLocation {
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) column: usize,
}

/// The program that a declared command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommandProgram {
    /// The program's name in the declaration, which is also its key in the setting
    /// `commands.programs`.
    pub(super) name: String,
    /// The program's name or absolute path, used unless the environment variable in `env` is set.
    pub(super) at: String,
    /// The name of the environment variable that overrides the program's path.
    pub(super) env: Option<String>,
}

impl DeclaredCommand {
    /// Returns the tool id of the command. It has `_` instead of each `-`.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Returns the command's id as written in the file, `stage.command`.
    pub fn written_id(&self) -> &str {
        &self.written_id
    }

    /// Returns true if the command replaces the built-in tool that has the same id.
    pub fn replaces(&self) -> bool {
        self.replaces
    }

    /// Returns the location of the command's declaration, as `FILE:LINE:COLUMN`.
    pub fn location(&self) -> String {
        let CommandDeclarationLocation { file, line, column } = &self.place;
        format!("{}:{line}:{column}", file.display())
    }

    /// Returns the file that declares the command.
    pub fn file(&self) -> &Path {
        &self.place.file
    }

    /// Returns a text that describes the program and its command line, to detect changes of the
    /// declaration. The path of the program is not included, because it differs between machines.
    pub(super) fn fingerprint(&self) -> String {
        let Self { argv, arguments, stdin, cwd, env, env_keep, hosts, success, .. } = self;
        let CommandProgram { name, at: _, env: program_env } = &self.program;
        let passed: Vec<_> = arguments
            .iter()
            .map(|it| (&it.name, &it.note, &it.option, &it.many, it.joined, &it.dash))
            .collect();
        format!(
            "program={name:?} {program_env:?} argv={argv:?} {passed:?} stdin={stdin:?} cwd={cwd:?} \
             env={env:?} keep={env_keep:?} hosts={hosts:?} success={success:?}"
        )
    }

    /// Returns the program's path if it is absolute. `variable` looks up an environment variable of
    /// the server, because a variable can override the path.
    pub fn program_path(&self, variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let CommandProgram { name: _, at, env } = &self.program;
        let set = env.as_deref().and_then(variable).filter(|at| !at.is_empty());
        Some(PathBuf::from(set.as_ref().unwrap_or(at))).filter(|path| path.is_absolute())
    }

    /// Returns the hosts that the program may reach. `None` means that the sandbox profile decides.
    pub fn hosts(&self) -> Option<&Arc<ProgramHostAccess>> {
        self.hosts.as_ref()
    }

    /// Returns true if the declaration says that the program only reads.
    pub fn only_reads(&self) -> bool {
        self.effects == Effects::Reads
    }

    /// Returns the names of the command's arguments whose values are file paths.
    pub(super) fn paths(&self) -> Vec<String> {
        let paths = self.arguments.iter().filter(|argument| argument.note.is_path());
        paths.map(|argument| argument.name.clone()).collect()
    }

    /// Returns the JSON Schema (2020-12) of the command's input.
    pub(super) fn schema(&self) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for argument in &self.arguments {
            properties.insert(argument.name.clone(), argument.full_schema());
            if argument.note.required {
                required.push(argument.name.as_str());
            }
        }
        let mut schema = json!({
            "type": "object", "properties": properties, "additionalProperties": false,
        });
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    /// Finds the argument that has `name` as an alias or as a variant spelling. Returns the
    /// argument's real name.
    pub(super) fn find_alias(&self, name: &str) -> Option<&str> {
        let has_alias =
            |argument: &&CommandArgument| argument.aliases.iter().any(|alias| alias == name);
        let has_same_name = |argument: &&CommandArgument| snake(&argument.name) == snake(name);
        let mut arguments = self.arguments.iter();
        let argument = arguments.clone().find(has_alias).or_else(|| {
            arguments.find(|argument| {
                has_same_name(argument)
                    || argument.aliases.iter().any(|alias| snake(alias) == snake(name))
            })
        });
        argument.map(|argument| argument.name.as_str())
    }

    /// Returns true if `name` is exactly the name of an argument.
    pub(super) fn has_argument(&self, name: &str) -> bool {
        self.arguments.iter().any(|argument| argument.name == name)
    }

    /// Renames aliases in `input` to the names of their arguments. If a call gives one argument two
    /// different values, the alias stays, so that the call is refused.
    pub(super) fn normalised(&self, input: Value) -> Value {
        let Value::Object(fields) = input else { return input };
        if fields.keys().all(|name| self.has_argument(name)) {
            return Value::Object(fields);
        }
        let (mut own, others): (Map<_, _>, Map<_, _>) =
            fields.into_iter().partition(|(name, _)| self.has_argument(name));
        for (name, value) in others {
            let target = self.find_alias(&name).map(str::to_owned);
            match target.as_ref().and_then(|target| own.get(target)) {
                Some(same) if *same == value => {}
                Some(_) => drop(own.insert(name, value)),
                None => drop(own.insert(target.unwrap_or(name), value)),
            }
        }
        Value::Object(own)
    }
}

/// Replaces `-` with `_` in `name`, because argument names do not distinguish the two characters.
pub(super) fn snake(name: &str) -> String {
    name.replace('-', "_")
}
