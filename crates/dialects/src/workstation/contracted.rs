//! The contract's own tools: names, parameters and answers, and the catalog tools that implement
//! them.

use serde_json::{Map, Value, json};
use toolgate_contract::{CallError, Ending, Output, Problem, Stream};

use crate::confined::told;

/// The requested limit of a program's output. The tools may have lower limits.
const OUTPUT_BYTES: u64 = 1 << 20;
const DIFF_BYTES: u64 = 1 << 20;
/// The requested limit of a file, so high that only the server's own limit applies.
const FILE_BYTES: u64 = 1 << 40;
/// The requested limit of names in a folder.
const NAMES: u64 = 10_000;

/// A tool of the contract.
#[derive(Debug)]
pub(crate) struct Contracted {
    /// The name in this dialect.
    pub(crate) name: &'static str,
    /// The id of the catalog tool that implements it.
    pub(crate) tool: &'static str,
    /// The description for the agent.
    pub(crate) about: &'static str,
    takes: &'static [Parameter],
    does: Does,
}

/// A parameter of a contract tool.
#[derive(Debug)]
struct Parameter {
    name: &'static str,
    about: &'static str,
    takes: Takes,
    /// The JSON pointer to the parameter in the catalog tool's input.
    there: &'static str,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// A required string.
    Text,
    /// An optional string, which may be `null`.
    MaybeText,
    /// A whole number from 1 to `most`; the default is `or`.
    Count { or: u64, most: u64 },
}

/// The behavior of a contract tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Read,
    Write,
    List,
    Delete,
    MakeFolder,
    FileExists,
    FolderExists,
    Status,
    Log,
    Diff,
    Branches,
    CurrentBranch,
    Add,
    Commit,
    /// Build, test or restore.
    Project,
    Run,
    Diagnostics,
}

const PATH: Parameter = text("path", "The path, relative to the workspace.", "/path");
const REPOSITORY: Parameter = Parameter {
    takes: Takes::MaybeText,
    ..text(
        "repositoryPath",
        "A folder of the repository; the workspace itself by default.",
        "/repo",
    )
};
const PROJECT: Parameter = Parameter {
    takes: Takes::MaybeText,
    ..text("projectPath", "The project's folder; the workspace itself by default.", "/project")
};

/// All tools, in the contract's order.
pub(crate) static ALL: [Contracted; 19] = [
    one("filesystem/read", "files.read", "Read contents of a file", &[PATH], Does::Read),
    one(
        "filesystem/write",
        "files.write",
        "Write a file, replacing what it held, and make missing folders on the way",
        &[PATH, text("content", "All that the file is to hold.", "/content")],
        Does::Write,
    ),
    one("filesystem/list", "files.list", "List the names in a folder", &[PATH], Does::List),
    one(
        "filesystem/delete",
        "files.delete",
        "Delete a file, a symlink or an empty folder",
        &[PATH],
        Does::Delete,
    ),
    one(
        "filesystem/mkdir",
        "files.mkdir",
        "Make a folder, and missing folders on the way",
        &[PATH],
        Does::MakeFolder,
    ),
    one(
        "filesystem/file_exists",
        "files.exists",
        "Tell whether there is a file: `true` or `false`",
        &[PATH],
        Does::FileExists,
    ),
    one(
        "filesystem/dir_exists",
        "files.exists",
        "Tell whether there is a folder: `true` or `false`",
        &[PATH],
        Does::FolderExists,
    ),
    one(
        "git/status",
        "git.status",
        "What differs from the last commit, as `git status --porcelain` prints it",
        &[REPOSITORY],
        Does::Status,
    ),
    one(
        "git/log",
        "git.log",
        "The newest commits, as `git log --oneline` prints them",
        &[
            REPOSITORY,
            Parameter {
                takes: Takes::Count { or: 10, most: 1000 },
                ..text("maxCount", "How many commits at most.", "/count")
            },
        ],
        Does::Log,
    ),
    one(
        "git/diff",
        "git.diff",
        "What is changed and not staged, as `git diff` prints it",
        &[REPOSITORY],
        Does::Diff,
    ),
    one(
        "git/branches",
        "git.branches",
        "All branches, as `git branch -a` prints them",
        &[REPOSITORY],
        Does::Branches,
    ),
    one(
        "git/current_branch",
        "git.current_branch",
        "The branch that is checked out; `HEAD` if none is",
        &[REPOSITORY],
        Does::CurrentBranch,
    ),
    one(
        "git/add",
        "git.add",
        "Stage a file, a folder with all in it, or `.` for everything",
        &[text("files", "What to stage, relative to the repository.", "/paths"), REPOSITORY],
        Does::Add,
    ),
    one(
        "git/commit",
        "git.commit",
        "Commit what is staged",
        &[text("message", "What the commit says.", "/message"), REPOSITORY],
        Does::Commit,
    ),
    one("ci/build", "ci.build", "Build a project", &[PROJECT], Does::Project),
    one("ci/test", "ci.test", "Run a project's tests", &[PROJECT], Does::Project),
    one("ci/restore", "ci.restore", "Fetch what a project depends on", &[PROJECT], Does::Project),
    one(
        "ci/run",
        "ci.run",
        "Run a command line; its exit code comes first",
        &[
            text("command", "The program and its arguments.", "/command"),
            Parameter {
                takes: Takes::MaybeText,
                ..text("workingDirectory", "The folder to run it in.", "/folder")
            },
        ],
        Does::Run,
    ),
    one(
        "ci/diagnostics",
        "ci.diagnostics",
        "What machine this is and what is installed",
        &[],
        Does::Diagnostics,
    ),
];

const fn text(name: &'static str, about: &'static str, there: &'static str) -> Parameter {
    Parameter { name, about, takes: Takes::Text, there }
}

const fn one(
    name: &'static str,
    tool: &'static str,
    about: &'static str,
    takes: &'static [Parameter],
    does: Does,
) -> Contracted {
    Contracted { name, tool, about, takes, does }
}

/// Returns the contract's tool `name`.
pub(crate) fn named(name: &str) -> Option<&'static Contracted> {
    ALL.iter().find(|tool| tool.name == name)
}

/// Returns the first contract tool that the catalog tool `id` implements.
pub(crate) fn done_by(id: &str) -> Option<&'static Contracted> {
    ALL.iter().find(|tool| tool.tool == id)
}

impl Contracted {
    /// Returns the JSON Schema of the parameters.
    pub(crate) fn schema(&self) -> Value {
        let property = |parameter: &Parameter| {
            let about = parameter.about;
            let schema = match parameter.takes {
                Takes::Text => json!({ "type": "string", "description": about }),
                Takes::MaybeText => {
                    json!({ "type": ["string", "null"], "description": about, "default": null })
                }
                Takes::Count { or, most } => json!({
                    "type": "integer", "description": about, "default": or,
                    "minimum": 1, "maximum": most,
                }),
            };
            (parameter.name.to_owned(), schema)
        };
        let required = self.takes.iter().filter(|parameter| parameter.takes == Takes::Text);
        json!({
            "type": "object",
            "properties": self.takes.iter().map(property).collect::<Map<_, _>>(),
            "required": required.map(|parameter| parameter.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        })
    }

    /// Converts `arguments` to the input of the catalog tool, or returns the problems.
    pub(crate) fn input(&self, arguments: &Map<String, Value>) -> Result<Value, Vec<Problem>> {
        let known = |name: &str| self.takes.iter().any(|parameter| parameter.name == name);
        let mut problems: Vec<_> = arguments
            .keys()
            .filter(|name| !known(name))
            .map(|name| {
                problem(name, format!("`{}` takes no such argument; {}", self.name, self.told()))
            })
            .collect();
        let wrong = self.takes.iter().filter_map(|parameter| {
            let why = parameter.wrong(arguments.get(parameter.name))?;
            Some(problem(parameter.name, why))
        });
        problems.extend(wrong);
        if !problems.is_empty() {
            return Err(problems);
        }
        let given = |name: &str| arguments.get(name).filter(|value| !value.is_null()).cloned();
        let mut input = Map::new();
        for parameter in self.takes {
            let there = parameter.there.trim_start_matches('/');
            if let Some(value) = given(parameter.name) {
                let value =
                    if self.does == Does::Add && there == "paths" { json!([value]) } else { value };
                input.insert(there.to_owned(), value);
            }
        }
        let more = match self.does {
            Does::Read => json!({ "max_bytes": FILE_BYTES }),
            Does::Write => json!({ "overwrite": true }),
            Does::List => json!({ "limit": NAMES }),
            Does::Log if !input.contains_key("count") => json!({ "count": 10 }),
            Does::Diff => json!({ "max_bytes": DIFF_BYTES }),
            Does::Project | Does::Run => json!({ "max_output_bytes": OUTPUT_BYTES }),
            Does::Delete
            | Does::MakeFolder
            | Does::FileExists
            | Does::FolderExists
            | Does::Status
            | Does::Log
            | Does::Branches
            | Does::CurrentBranch
            | Does::Add
            | Does::Commit
            | Does::Diagnostics => json!({}),
        };
        input.extend(more.as_object().cloned().unwrap_or_default());
        Ok(Value::Object(input))
    }

    /// Returns a phrase that lists the parameters.
    fn told(&self) -> String {
        let names: Vec<_> = self.takes.iter().map(|one| format!("`{}`", one.name)).collect();
        if names.is_empty() {
            "it takes none".to_owned()
        } else {
            format!("it takes {}", names.join(", "))
        }
    }

    /// Converts `output` to the contract's text.
    pub(crate) fn text(&self, output: &Output) -> Result<String, CallError> {
        let value = &output.value;
        let body = || output.text.body.clone();
        let whole = |cut: bool, why: &dyn Fn() -> String| {
            if cut { Err(CallError::TooLarge { message: why() }) } else { Ok(()) }
        };
        let cut = value["truncated"] == true;
        Ok(match self.does {
            Does::Read => {
                whole(cut, &|| {
                    format!(
                        "`{}` has {} bytes, more than one answer holds; read a part of it with \
                         `ci/run`, e.g. `head -c 100000 FILE`, or raise files.answer_bytes_max",
                        value["path"].as_str().unwrap_or_default(),
                        value["size"],
                    )
                })?;
                value["content"].as_str().unwrap_or_default().to_owned()
            }
            Does::List => {
                let left = value["left"].as_u64().unwrap_or_default();
                whole(left > 0, &|| {
                    format!(
                        "the folder has {} names, more than one answer holds ({NAMES}); \
                         `filesystem/search` finds some of them",
                        left + NAMES,
                    )
                })?;
                let entries = value["entries"].as_array().into_iter().flatten();
                let names = entries.filter_map(|entry| entry["name"].as_str());
                names.map(on_a_line).collect::<Vec<_>>().join("\n")
            }
            Does::FileExists => (value["kind"] == "file" || value["kind"] == "other").to_string(),
            Does::FolderExists => (value["kind"] == "dir").to_string(),
            Does::Status | Does::Diff | Does::Branches => {
                whole(cut, &|| {
                    format!(
                        "what `{}` prints is more than one answer holds; ask for a part of it \
                         with `ci/run`, e.g. `git {} -- PATH`",
                        self.name,
                        self.name.trim_start_matches("git/"),
                    )
                })?;
                body()
            }
            Does::Project => exit(value, &project_printed(value)),
            Does::Run => exit(value, &run_printed(output)),
            Does::Write
            | Does::Delete
            | Does::MakeFolder
            | Does::Log
            | Does::CurrentBranch
            | Does::Add
            | Does::Commit
            | Does::Diagnostics => body(),
        })
    }

    /// Returns true if an output with this ending is a result. Programs that ran and failed are.
    pub(crate) fn tells(&self, ending: Ending) -> bool {
        match (ending, self.does) {
            (Ending::Done, _) | (Ending::ProgramFailed, Does::Project | Does::Run) => true,
            (Ending::ToolFailed, _) => false,
            (
                Ending::ProgramFailed,
                Does::Read
                | Does::Write
                | Does::List
                | Does::Delete
                | Does::MakeFolder
                | Does::FileExists
                | Does::FolderExists
                | Does::Status
                | Does::Log
                | Does::Diff
                | Does::Branches
                | Does::CurrentBranch
                | Does::Add
                | Does::Commit
                | Does::Diagnostics,
            ) => false,
        }
    }

    /// Converts `error` to the contract's parameter names.
    pub(crate) fn blamed(&self, error: CallError) -> CallError {
        let CallError::InvalidInput { problems } = error else { return error };
        // The contract has no `encoding` parameter, so the error must concern the file's content.
        let of_text = |problem: &Problem| self.does == Does::Read && problem.pointer == "/encoding";
        if let Some(problem) = problems.iter().find(|problem| of_text(problem)) {
            let why = problem.message.split("; ").next().unwrap_or_default();
            let message = format!("{why}, and this reads text; other tools read its bytes");
            return CallError::Failed { message, cause: String::new() };
        }
        let renamed = problems.into_iter().map(|Problem { pointer, message }| {
            let of = self.takes.iter().find(|parameter| pointer.starts_with(parameter.there));
            let pointer = of.map_or(pointer, |parameter| format!("/{}", parameter.name));
            Problem { pointer, message }
        });
        CallError::InvalidInput { problems: renamed.collect() }
    }
}

impl Parameter {
    /// Returns the problem with `value` as this parameter.
    fn wrong(&self, value: Option<&Value>) -> Option<String> {
        match (self.takes, value) {
            (Takes::Text, None) => Some(format!("it is missing: {}", lower(self.about))),
            (Takes::Text | Takes::MaybeText, Some(Value::String(_)))
            | (Takes::MaybeText, None | Some(Value::Null))
            | (Takes::Count { .. }, None) => None,
            (Takes::Text, Some(_)) => Some("it must be a string".to_owned()),
            (Takes::MaybeText, Some(_)) => Some("it must be a string, or left out".to_owned()),
            (Takes::Count { most, .. }, Some(value)) => {
                // JSON Schema counts `2.0` as an integer.
                let count = value.as_f64().filter(|count| count.fract() == 0.0);
                #[allow(clippy::cast_precision_loss, reason = "it is small")]
                let fits = count.is_some_and(|count| (1.0..=most as f64).contains(&count));
                (!fits).then(|| format!("it must be a whole number from 1 to {most}"))
            }
        }
    }
}

fn lower(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn problem(name: &str, message: String) -> Problem {
    let name = name.replace('~', "~0").replace('/', "~1");
    let name: String = name.chars().take(100).collect();
    Problem { pointer: format!("/{name}"), message }
}

/// Escapes line breaks in a name.
fn on_a_line(name: &str) -> String {
    name.replace('\n', "\\n").replace('\r', "\\r")
}

/// Returns a program's output after its exit code.
fn exit(value: &Value, printed: &str) -> String {
    format!("Exit Code: {}\n{printed}", value["exit_code"].as_i64().unwrap_or(-1))
}

fn project_printed(value: &Value) -> String {
    let printed = value["output"].as_str().unwrap_or_default();
    match value["output_id"].as_str() {
        Some(id) => format!(
            "[the end of it; all of it is read with `exec/output`, output_id `{id}`]\n{printed}"
        ),
        None => printed.to_owned(),
    }
}

fn run_printed(output: &Output) -> String {
    let value = &output.value;
    let cut = |extent: &str| !value[extent]["cut"].is_null();
    if cut("stdout_extent") || cut("stderr_extent") {
        let note = output.text.note.as_deref().unwrap_or_default();
        return format!("{}\n[{note}]", output.text.body.trim_end_matches('\n'));
    }
    let out = output.printed(Stream::Stdout).unwrap_or_default();
    let err = told(output.printed(Stream::Stderr).unwrap_or_default(), value);
    if err.is_empty() {
        return out.into_owned();
    }
    let between = if out.is_empty() || out.ends_with('\n') { "" } else { "\n" };
    format!("{out}{between}{err}")
}
