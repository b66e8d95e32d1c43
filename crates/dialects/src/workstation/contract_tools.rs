//! The contract's own tools: names, parameters and answers, and the catalog tools that implement
//! them.

use serde_json::{Map, Value, json};
use toolgate_contract::{CallEnding, CallError, OutputStream, ToolOutput, ValidationProblem};

use crate::sandbox_warning::with_sandbox_warning;

/// The requested limit of a program's output. The tools may have lower limits.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const DIFF_BYTES_MAX: u64 = 1 << 20;
/// The requested limit of a file, so high that only the server's own limit applies.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// The requested limit of names in a folder.
const NAMES_MAX: u64 = 10_000;

/// A tool of the contract.
#[derive(Debug)]
pub(crate) struct ContractTool {
    /// The name in this dialect.
    pub(crate) name: &'static str,
    /// The id of the catalog tool that implements it.
    pub(crate) tool: &'static str,
    /// The description for the agent.
    pub(crate) description: &'static str,
    parameters: &'static [ToolParameter],
    behavior: ToolBehavior,
}

/// A parameter of a contract tool.
#[derive(Debug)]
struct ToolParameter {
    name: &'static str,
    description: &'static str,
    value_type: ParameterType,
    /// The JSON pointer to the parameter in the catalog tool's input.
    pointer: &'static str,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterType {
    /// A required string.
    Text,
    /// An optional string, which may be `null`.
    MaybeText,
    /// A whole number from 1 to `most`; the default is `or`.
    Count { or: u64, most: u64 },
}

/// The behavior of a contract tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ToolBehavior {
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

const PATH: ToolParameter = text_parameter("path", "The path, relative to the workspace.", "/path");
const REPOSITORY: ToolParameter = ToolParameter {
    value_type: ParameterType::MaybeText,
    ..text_parameter(
        "repositoryPath",
        "A folder of the repository; the workspace itself by default.",
        "/repo",
    )
};
const PROJECT: ToolParameter = ToolParameter {
    value_type: ParameterType::MaybeText,
    ..text_parameter(
        "projectPath",
        "The project's folder; the workspace itself by default.",
        "/project",
    )
};

/// All tools, in the contract's order.
pub(crate) static CONTRACT_TOOLS: [ContractTool; 19] = [
    contract_tool(
        "filesystem/read",
        "files.read",
        "Read contents of a file",
        &[PATH],
        ToolBehavior::Read,
    ),
    contract_tool(
        "filesystem/write",
        "files.write",
        "Write a file, replacing what it held, and make missing folders on the way",
        &[PATH, text_parameter("content", "All that the file is to hold.", "/content")],
        ToolBehavior::Write,
    ),
    contract_tool(
        "filesystem/list",
        "files.list",
        "List the names in a folder",
        &[PATH],
        ToolBehavior::List,
    ),
    contract_tool(
        "filesystem/delete",
        "files.delete",
        "Delete a file, a symlink or an empty folder",
        &[PATH],
        ToolBehavior::Delete,
    ),
    contract_tool(
        "filesystem/mkdir",
        "files.mkdir",
        "Make a folder, and missing folders on the way",
        &[PATH],
        ToolBehavior::MakeFolder,
    ),
    contract_tool(
        "filesystem/file_exists",
        "files.exists",
        "Tell whether there is a file: `true` or `false`",
        &[PATH],
        ToolBehavior::FileExists,
    ),
    contract_tool(
        "filesystem/dir_exists",
        "files.exists",
        "Tell whether there is a folder: `true` or `false`",
        &[PATH],
        ToolBehavior::FolderExists,
    ),
    contract_tool(
        "git/status",
        "git.status",
        "What differs from the last commit, as `git status --porcelain` prints it",
        &[REPOSITORY],
        ToolBehavior::Status,
    ),
    contract_tool(
        "git/log",
        "git.log",
        "The newest commits, as `git log --oneline` prints them",
        &[
            REPOSITORY,
            ToolParameter {
                value_type: ParameterType::Count { or: 10, most: 1000 },
                ..text_parameter("maxCount", "How many commits at most.", "/count")
            },
        ],
        ToolBehavior::Log,
    ),
    contract_tool(
        "git/diff",
        "git.diff",
        "What is changed and not staged, as `git diff` prints it",
        &[REPOSITORY],
        ToolBehavior::Diff,
    ),
    contract_tool(
        "git/branches",
        "git.branches",
        "All branches, as `git branch -a` prints them",
        &[REPOSITORY],
        ToolBehavior::Branches,
    ),
    contract_tool(
        "git/current_branch",
        "git.current_branch",
        "The branch that is checked out; `HEAD` if none is",
        &[REPOSITORY],
        ToolBehavior::CurrentBranch,
    ),
    contract_tool(
        "git/add",
        "git.add",
        "Stage a file, a folder with all in it, or `.` for everything",
        &[
            text_parameter("files", "What to stage, relative to the repository.", "/paths"),
            REPOSITORY,
        ],
        ToolBehavior::Add,
    ),
    contract_tool(
        "git/commit",
        "git.commit",
        "Commit what is staged",
        &[text_parameter("message", "What the commit says.", "/message"), REPOSITORY],
        ToolBehavior::Commit,
    ),
    contract_tool("ci/build", "ci.build", "Build a project", &[PROJECT], ToolBehavior::Project),
    contract_tool("ci/test", "ci.test", "Run a project's tests", &[PROJECT], ToolBehavior::Project),
    contract_tool(
        "ci/restore",
        "ci.restore",
        "Fetch what a project depends on",
        &[PROJECT],
        ToolBehavior::Project,
    ),
    contract_tool(
        "ci/run",
        "ci.run",
        "Run a command line; its exit code comes first",
        &[
            text_parameter("command", "The program and its arguments.", "/command"),
            ToolParameter {
                value_type: ParameterType::MaybeText,
                ..text_parameter("workingDirectory", "The folder to run it in.", "/folder")
            },
        ],
        ToolBehavior::Run,
    ),
    contract_tool(
        "ci/diagnostics",
        "ci.diagnostics",
        "What machine this is and what is installed",
        &[],
        ToolBehavior::Diagnostics,
    ),
];

const fn text_parameter(
    name: &'static str,
    about: &'static str,
    there: &'static str,
) -> ToolParameter {
    ToolParameter { name, description: about, value_type: ParameterType::Text, pointer: there }
}

const fn contract_tool(
    name: &'static str,
    tool: &'static str,
    about: &'static str,
    takes: &'static [ToolParameter],
    does: ToolBehavior,
) -> ContractTool {
    ContractTool { name, tool, description: about, parameters: takes, behavior: does }
}

/// Returns the contract's tool `name`.
pub(crate) fn find_tool(name: &str) -> Option<&'static ContractTool> {
    CONTRACT_TOOLS.iter().find(|tool| tool.name == name)
}

/// Returns the first contract tool that the catalog tool `id` implements.
pub(crate) fn implemented_by(id: &str) -> Option<&'static ContractTool> {
    CONTRACT_TOOLS.iter().find(|tool| tool.tool == id)
}

impl ContractTool {
    /// Returns the JSON Schema of the parameters.
    pub(crate) fn schema(&self) -> Value {
        let property = |parameter: &ToolParameter| {
            let about = parameter.description;
            let schema = match parameter.value_type {
                ParameterType::Text => json!({ "type": "string", "description": about }),
                ParameterType::MaybeText => {
                    json!({ "type": ["string", "null"], "description": about, "default": null })
                }
                ParameterType::Count { or, most } => json!({
                    "type": "integer", "description": about, "default": or,
                    "minimum": 1, "maximum": most,
                }),
            };
            (parameter.name.to_owned(), schema)
        };
        let required =
            self.parameters.iter().filter(|parameter| parameter.value_type == ParameterType::Text);
        json!({
            "type": "object",
            "properties": self.parameters.iter().map(property).collect::<Map<_, _>>(),
            "required": required.map(|parameter| parameter.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        })
    }

    /// Converts `arguments` to the input of the catalog tool, or returns the problems.
    pub(crate) fn input(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Value, Vec<ValidationProblem>> {
        let known = |name: &str| self.parameters.iter().any(|parameter| parameter.name == name);
        let mut problems: Vec<_> = arguments
            .keys()
            .filter(|name| !known(name))
            .map(|name| {
                problem(
                    name,
                    format!("`{}` takes no such argument; {}", self.name, self.parameter_phrase()),
                )
            })
            .collect();
        let wrong = self.parameters.iter().filter_map(|parameter| {
            let why = parameter.problem(arguments.get(parameter.name))?;
            Some(problem(parameter.name, why))
        });
        problems.extend(wrong);
        if !problems.is_empty() {
            return Err(problems);
        }
        let given = |name: &str| arguments.get(name).filter(|value| !value.is_null()).cloned();
        let mut input = Map::new();
        for parameter in self.parameters {
            let there = parameter.pointer.trim_start_matches('/');
            if let Some(value) = given(parameter.name) {
                let value = if self.behavior == ToolBehavior::Add && there == "paths" {
                    json!([value])
                } else {
                    value
                };
                input.insert(there.to_owned(), value);
            }
        }
        let more = match self.behavior {
            ToolBehavior::Read => json!({ "max_bytes": FILE_BYTES_MAX }),
            ToolBehavior::Write => json!({ "overwrite": true }),
            ToolBehavior::List => json!({ "limit": NAMES_MAX }),
            ToolBehavior::Log if !input.contains_key("count") => json!({ "count": 10 }),
            ToolBehavior::Diff => json!({ "max_bytes": DIFF_BYTES_MAX }),
            ToolBehavior::Project | ToolBehavior::Run => {
                json!({ "max_output_bytes": OUTPUT_BYTES_MAX })
            }
            ToolBehavior::Delete
            | ToolBehavior::MakeFolder
            | ToolBehavior::FileExists
            | ToolBehavior::FolderExists
            | ToolBehavior::Status
            | ToolBehavior::Log
            | ToolBehavior::Branches
            | ToolBehavior::CurrentBranch
            | ToolBehavior::Add
            | ToolBehavior::Commit
            | ToolBehavior::Diagnostics => json!({}),
        };
        input.extend(more.as_object().cloned().unwrap_or_default());
        Ok(Value::Object(input))
    }

    /// Returns a phrase that lists the parameters.
    fn parameter_phrase(&self) -> String {
        let names: Vec<_> = self.parameters.iter().map(|one| format!("`{}`", one.name)).collect();
        if names.is_empty() {
            "it takes none".to_owned()
        } else {
            format!("it takes {}", names.join(", "))
        }
    }

    /// Converts `output` to the contract's text.
    pub(crate) fn output_text(&self, output: &ToolOutput) -> Result<String, CallError> {
        let value = &output.value;
        let body = || output.text.body.clone();
        let whole = |cut: bool, why: &dyn Fn() -> String| {
            if cut { Err(CallError::TooLarge { message: why() }) } else { Ok(()) }
        };
        let cut = value["truncated"] == true;
        Ok(match self.behavior {
            ToolBehavior::Read => {
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
            ToolBehavior::List => {
                let left = value["left"].as_u64().unwrap_or_default();
                whole(left > 0, &|| {
                    format!(
                        "the folder has {} names, more than one answer holds ({NAMES_MAX}); \
                         `filesystem/search` finds some of them",
                        left + NAMES_MAX,
                    )
                })?;
                let entries = value["entries"].as_array().into_iter().flatten();
                let names = entries.filter_map(|entry| entry["name"].as_str());
                names.map(escape_line_breaks).collect::<Vec<_>>().join("\n")
            }
            ToolBehavior::FileExists => {
                (value["kind"] == "file" || value["kind"] == "other").to_string()
            }
            ToolBehavior::FolderExists => (value["kind"] == "dir").to_string(),
            ToolBehavior::Status | ToolBehavior::Diff | ToolBehavior::Branches => {
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
            ToolBehavior::Project => exit_report(value, &project_printed(value)),
            ToolBehavior::Run => exit_report(value, &run_printed(output)),
            ToolBehavior::Write
            | ToolBehavior::Delete
            | ToolBehavior::MakeFolder
            | ToolBehavior::Log
            | ToolBehavior::CurrentBranch
            | ToolBehavior::Add
            | ToolBehavior::Commit
            | ToolBehavior::Diagnostics => body(),
        })
    }

    /// Returns true if an output with this ending is a result. Programs that ran and failed are.
    pub(crate) fn is_result(&self, ending: CallEnding) -> bool {
        match (ending, self.behavior) {
            (CallEnding::Done, _)
            | (CallEnding::ProgramFailed, ToolBehavior::Project | ToolBehavior::Run) => true,
            (CallEnding::ToolFailed, _) => false,
            (
                CallEnding::ProgramFailed,
                ToolBehavior::Read
                | ToolBehavior::Write
                | ToolBehavior::List
                | ToolBehavior::Delete
                | ToolBehavior::MakeFolder
                | ToolBehavior::FileExists
                | ToolBehavior::FolderExists
                | ToolBehavior::Status
                | ToolBehavior::Log
                | ToolBehavior::Diff
                | ToolBehavior::Branches
                | ToolBehavior::CurrentBranch
                | ToolBehavior::Add
                | ToolBehavior::Commit
                | ToolBehavior::Diagnostics,
            ) => false,
        }
    }

    /// Converts `error` to the contract's parameter names.
    pub(crate) fn rename_parameters(&self, error: CallError) -> CallError {
        let CallError::InvalidInput { problems } = error else { return error };
        // The contract has no `encoding` parameter, so the error must concern the file's content.
        let of_text = |problem: &ValidationProblem| {
            self.behavior == ToolBehavior::Read && problem.pointer == "/encoding"
        };
        if let Some(problem) = problems.iter().find(|problem| of_text(problem)) {
            let why = problem.message.split("; ").next().unwrap_or_default();
            let message = format!("{why}, and this reads text; other tools read its bytes");
            return CallError::Failed { message, cause: String::new() };
        }
        let renamed = problems.into_iter().map(|ValidationProblem { pointer, message }| {
            let of =
                self.parameters.iter().find(|parameter| pointer.starts_with(parameter.pointer));
            let pointer = of.map_or(pointer, |parameter| format!("/{}", parameter.name));
            ValidationProblem { pointer, message }
        });
        CallError::InvalidInput { problems: renamed.collect() }
    }
}

impl ToolParameter {
    /// Returns the problem with `value` as this parameter.
    fn problem(&self, value: Option<&Value>) -> Option<String> {
        match (self.value_type, value) {
            (ParameterType::Text, None) => {
                Some(format!("it is missing: {}", lower_first(self.description)))
            }
            (ParameterType::Text | ParameterType::MaybeText, Some(Value::String(_)))
            | (ParameterType::MaybeText, None | Some(Value::Null))
            | (ParameterType::Count { .. }, None) => None,
            (ParameterType::Text, Some(_)) => Some("it must be a string".to_owned()),
            (ParameterType::MaybeText, Some(_)) => {
                Some("it must be a string, or left out".to_owned())
            }
            (ParameterType::Count { most, .. }, Some(value)) => {
                // JSON Schema counts `2.0` as an integer.
                let count = value.as_f64().filter(|count| count.fract() == 0.0);
                #[allow(clippy::cast_precision_loss, reason = "it is small")]
                let fits = count.is_some_and(|count| (1.0..=most as f64).contains(&count));
                (!fits).then(|| format!("it must be a whole number from 1 to {most}"))
            }
        }
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

fn problem(name: &str, message: String) -> ValidationProblem {
    let name = name.replace('~', "~0").replace('/', "~1");
    let name: String = name.chars().take(100).collect();
    ValidationProblem { pointer: format!("/{name}"), message }
}

/// Escapes line breaks in a name.
fn escape_line_breaks(name: &str) -> String {
    name.replace('\n', "\\n").replace('\r', "\\r")
}

/// Returns a program's output after its exit code.
fn exit_report(value: &Value, printed: &str) -> String {
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

fn run_printed(output: &ToolOutput) -> String {
    let value = &output.value;
    let cut = |extent: &str| !value[extent]["cut"].is_null();
    if cut("stdout_extent") || cut("stderr_extent") {
        let note = output.text.note.as_deref().unwrap_or_default();
        return format!("{}\n[{note}]", output.text.body.trim_end_matches('\n'));
    }
    let out = output.program_output(OutputStream::Stdout).unwrap_or_default();
    let err = with_sandbox_warning(
        output.program_output(OutputStream::Stderr).unwrap_or_default(),
        value,
    );
    if err.is_empty() {
        return out.into_owned();
    }
    let between = if out.is_empty() || out.ends_with('\n') { "" } else { "\n" };
    format!("{out}{between}{err}")
}
