//! The contract's own tools: their names, parameters and answers, and the catalog tools that
//! implement them.

mod own_names;
mod results;

use serde_json::{Map, Value, json};
use toolgate_contract::ValidationProblem;

/// The limit of a program's output that a call requests, in bytes. The called tool may have a lower
/// limit.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// The limit of a diff that a call requests, in bytes. The called tool may have a lower limit.
const DIFF_BYTES_MAX: u64 = 1 << 20;
/// The limit of a file that a call requests, in bytes. It is so high that only the server's own
/// limit applies.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// The maximum number of names that a call requests if it lists a folder.
const NAMES_MAX: u64 = 10_000;

/// A tool of the workstation contract.
#[derive(Debug)]
pub(crate) struct WorkstationContractTool {
    /// The name of the tool in the workstation dialect.
    pub(crate) name: &'static str,
    /// The id of the catalog tool that implements this tool of the workstation contract.
    pub(crate) tool: &'static str,
    /// The description of the tool for the agent.
    pub(crate) description: &'static str,
    parameters: &'static [ContractToolParameter],
    behavior: ContractToolBehavior,
}

/// A parameter of a tool of the workstation contract.
#[derive(Debug)]
struct ContractToolParameter {
    name: &'static str,
    description: &'static str,
    value_type: ContractParameterType,
    /// The JSON pointer to the parameter in the catalog tool's input.
    pointer: &'static str,
}

/// The type of a parameter of the workstation contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContractParameterType {
    /// A required string.
    Text,
    /// An optional string, which may be `null`.
    MaybeText,
    /// A whole number from 1 to `most`. The default is `or`.
    Count { or: u64, most: u64 },
}

/// The behavior of a tool of the workstation contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContractToolBehavior {
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
    /// The tool runs a build, a test run or a restore of dependencies.
    Project,
    Run,
    Diagnostics,
}

const PATH: ContractToolParameter =
    text_parameter("path", "The path, relative to the workspace.", "/path");
const REPOSITORY: ContractToolParameter = ContractToolParameter {
    value_type: ContractParameterType::MaybeText,
    ..text_parameter(
        "repositoryPath",
        "A folder of the repository. Default: the workspace.",
        "/repo",
    )
};
const PROJECT: ContractToolParameter = ContractToolParameter {
    value_type: ContractParameterType::MaybeText,
    ..text_parameter("projectPath", "The project's folder. Default: the workspace.", "/path")
};

/// All tools of the workstation contract, in its order.
pub(crate) static CONTRACT_TOOLS: [WorkstationContractTool; 19] = [
    contract_tool(
        "filesystem/read",
        "files.read",
        "Read contents of a file",
        &[PATH],
        ContractToolBehavior::Read,
    ),
    contract_tool(
        "filesystem/write",
        "files.write",
        "Write a file, replacing its content, and create missing folders",
        &[PATH, text_parameter("content", "The new content of the file.", "/content")],
        ContractToolBehavior::Write,
    ),
    contract_tool(
        "filesystem/list",
        "files.list",
        "List the names in a folder",
        &[PATH],
        ContractToolBehavior::List,
    ),
    contract_tool(
        "filesystem/delete",
        "files.delete",
        "Delete a file, a symlink or an empty folder",
        &[PATH],
        ContractToolBehavior::Delete,
    ),
    contract_tool(
        "filesystem/mkdir",
        "files.mkdir",
        "Create a folder and missing parent folders",
        &[PATH],
        ContractToolBehavior::MakeFolder,
    ),
    contract_tool(
        "filesystem/file_exists",
        "files.exists",
        "Check whether a file exists: `true` or `false`",
        &[PATH],
        ContractToolBehavior::FileExists,
    ),
    contract_tool(
        "filesystem/dir_exists",
        "files.exists",
        "Check whether a folder exists: `true` or `false`",
        &[PATH],
        ContractToolBehavior::FolderExists,
    ),
    contract_tool(
        "git/status",
        "git.status",
        "Show changes since the last commit, as `git status --porcelain` prints them",
        &[REPOSITORY],
        ContractToolBehavior::Status,
    ),
    contract_tool(
        "git/log",
        "git.log",
        "Show the newest commits, as `git log --oneline` prints them",
        &[
            REPOSITORY,
            ContractToolParameter {
                value_type: ContractParameterType::Count { or: 10, most: 1000 },
                ..text_parameter("maxCount", "The maximum number of commits.", "/limit")
            },
        ],
        ContractToolBehavior::Log,
    ),
    contract_tool(
        "git/diff",
        "git.diff",
        "Show unstaged changes, as `git diff` prints them",
        &[REPOSITORY],
        ContractToolBehavior::Diff,
    ),
    contract_tool(
        "git/branches",
        "git.branches",
        "List all branches, as `git branch -a` prints them",
        &[REPOSITORY],
        ContractToolBehavior::Branches,
    ),
    contract_tool(
        "git/current_branch",
        "git.current_branch",
        "Show the current branch; `HEAD` if no branch is checked out",
        &[REPOSITORY],
        ContractToolBehavior::CurrentBranch,
    ),
    contract_tool(
        "git/add",
        "git.add",
        "Stage a file, a folder with its content, or `.` for everything",
        &[
            text_parameter("files", "The path to stage, relative to the repository.", "/paths"),
            REPOSITORY,
        ],
        ContractToolBehavior::Add,
    ),
    contract_tool(
        "git/commit",
        "git.commit",
        "Commit the staged changes",
        &[text_parameter("message", "The commit message.", "/message"), REPOSITORY],
        ContractToolBehavior::Commit,
    ),
    contract_tool(
        "ci/build",
        "ci.build",
        "Build a project",
        &[PROJECT],
        ContractToolBehavior::Project,
    ),
    contract_tool(
        "ci/test",
        "ci.test",
        "Run a project's tests",
        &[PROJECT],
        ContractToolBehavior::Project,
    ),
    contract_tool(
        "ci/restore",
        "ci.restore",
        "Fetch a project's dependencies",
        &[PROJECT],
        ContractToolBehavior::Project,
    ),
    contract_tool(
        "ci/run",
        "ci.run",
        "Run a command line; the answer starts with its exit code",
        &[
            text_parameter("command", "The program and its arguments.", "/command"),
            ContractToolParameter {
                value_type: ContractParameterType::MaybeText,
                ..text_parameter("workingDirectory", "The folder to run the program in.", "/path")
            },
        ],
        ContractToolBehavior::Run,
    ),
    contract_tool(
        "ci/diagnostics",
        "ci.diagnostics",
        "Report the machine and its installed tools",
        &[],
        ContractToolBehavior::Diagnostics,
    ),
];

const fn text_parameter(
    name: &'static str,
    description: &'static str,
    pointer: &'static str,
) -> ContractToolParameter {
    ContractToolParameter { name, description, value_type: ContractParameterType::Text, pointer }
}

const fn contract_tool(
    name: &'static str,
    tool: &'static str,
    description: &'static str,
    parameters: &'static [ContractToolParameter],
    behavior: ContractToolBehavior,
) -> WorkstationContractTool {
    WorkstationContractTool { name, tool, description, parameters, behavior }
}

/// Returns the tool of the workstation contract with the name `name`, if there is one.
pub(crate) fn find_tool(name: &str) -> Option<&'static WorkstationContractTool> {
    CONTRACT_TOOLS.iter().find(|tool| tool.name == name)
}

/// Returns the first tool of the workstation contract that the catalog tool `id` implements, if
/// there is one.
pub(crate) fn implemented_by(id: &str) -> Option<&'static WorkstationContractTool> {
    CONTRACT_TOOLS.iter().find(|tool| tool.tool == id)
}

impl WorkstationContractTool {
    /// Returns the JSON Schema of the contract tool's parameters.
    pub(crate) fn schema(&self) -> Value {
        let property = |parameter: &ContractToolParameter| {
            let description = parameter.description;
            let schema = match parameter.value_type {
                ContractParameterType::Text => {
                    json!({ "type": "string", "description": description })
                }
                ContractParameterType::MaybeText => {
                    json!({ "type": ["string", "null"], "description": description, "default": null })
                }
                ContractParameterType::Count { or, most } => json!({
                    "type": "integer", "description": description, "default": or,
                    "minimum": 1, "maximum": most,
                }),
            };
            (parameter.name.to_owned(), schema)
        };
        let required = self
            .parameters
            .iter()
            .filter(|parameter| parameter.value_type == ContractParameterType::Text);
        json!({
            "type": "object",
            "properties": self.parameters.iter().map(property).collect::<Map<_, _>>(),
            "required": required.map(|parameter| parameter.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        })
    }

    /// Converts `arguments` of the contract tool to the input of the catalog tool, or returns the
    /// problems.
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
                    format!("unknown argument; `{}` takes {}", self.name, self.parameter_phrase()),
                )
            })
            .collect();
        let invalid = self.parameters.iter().filter_map(|parameter| {
            let message = parameter.problem(arguments.get(parameter.name))?;
            Some(problem(parameter.name, message))
        });
        problems.extend(invalid);
        if !problems.is_empty() {
            return Err(problems);
        }
        let argument = |name: &str| arguments.get(name).filter(|value| !value.is_null()).cloned();
        let mut input = Map::new();
        for parameter in self.parameters {
            let field = parameter.pointer.trim_start_matches('/');
            if let Some(value) = argument(parameter.name) {
                let value = if self.behavior == ContractToolBehavior::Add && field == "paths" {
                    json!([value])
                } else {
                    value
                };
                input.insert(field.to_owned(), value);
            }
        }
        let additional = match self.behavior {
            ContractToolBehavior::Read => {
                json!({ "max_bytes": FILE_BYTES_MAX, "encoding": "utf-8" })
            }
            ContractToolBehavior::Write => json!({ "overwrite": true }),
            ContractToolBehavior::List => json!({ "limit": NAMES_MAX }),
            ContractToolBehavior::Log if !input.contains_key("limit") => json!({ "limit": 10 }),
            ContractToolBehavior::Diff => json!({ "max_bytes": DIFF_BYTES_MAX }),
            ContractToolBehavior::Project | ContractToolBehavior::Run => {
                json!({ "max_output_bytes": OUTPUT_BYTES_MAX })
            }
            ContractToolBehavior::Delete
            | ContractToolBehavior::MakeFolder
            | ContractToolBehavior::FileExists
            | ContractToolBehavior::FolderExists
            | ContractToolBehavior::Status
            | ContractToolBehavior::Log
            | ContractToolBehavior::Branches
            | ContractToolBehavior::CurrentBranch
            | ContractToolBehavior::Add
            | ContractToolBehavior::Commit
            | ContractToolBehavior::Diagnostics => json!({}),
        };
        input.extend(additional.as_object().cloned().unwrap_or_default());
        Ok(Value::Object(input))
    }

    /// Returns a phrase that lists the contract tool's parameters.
    fn parameter_phrase(&self) -> String {
        let names: Vec<_> = self.parameters.iter().map(|one| format!("`{}`", one.name)).collect();
        if names.is_empty() { "no arguments".to_owned() } else { names.join(", ") }
    }
}

impl ContractToolParameter {
    /// Returns the problem of `value` if it is not valid for this parameter.
    fn problem(&self, value: Option<&Value>) -> Option<String> {
        match (self.value_type, value) {
            (ContractParameterType::Text, None) => {
                Some(format!("it is missing: {}", lower_first(self.description)))
            }
            (
                ContractParameterType::Text | ContractParameterType::MaybeText,
                Some(Value::String(_)),
            )
            | (ContractParameterType::MaybeText, None | Some(Value::Null))
            | (ContractParameterType::Count { .. }, None) => None,
            (ContractParameterType::Text, Some(_)) => Some("it must be a string".to_owned()),
            (ContractParameterType::MaybeText, Some(_)) => {
                Some("it must be a string or omitted".to_owned())
            }
            (ContractParameterType::Count { most, .. }, Some(value)) => {
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

/// Converts the `arguments` of a call that starts a job. If they name a tool of the workstation
/// contract, the result names the catalog tool that implements it, with the input for that tool.
pub(crate) fn job_arguments(
    mut arguments: Map<String, Value>,
) -> Result<Map<String, Value>, Vec<ValidationProblem>> {
    let tool = arguments.get("tool").and_then(Value::as_str).and_then(find_tool);
    let Some(tool) = tool else { return Ok(arguments) };
    let own = match arguments.get("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(own)) => own.clone(),
        // The host refuses it.
        Some(_) => return Ok(arguments),
    };
    let input = tool.input(&own).map_err(|problems| {
        let within = problems.into_iter().map(|ValidationProblem { pointer, message }| {
            ValidationProblem { pointer: format!("/arguments{pointer}"), message }
        });
        within.collect::<Vec<_>>()
    })?;
    arguments.insert("tool".to_owned(), json!(tool.tool));
    arguments.insert("arguments".to_owned(), input);
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_a_contract_tool_takes_the_arguments_of_the_contract() {
        let start = |arguments: Value| {
            job_arguments(arguments.as_object().cloned().expect("an object")).map(Value::Object)
        };
        let command = json!({ "command": "make", "workingDirectory": "a" });
        let started = start(json!({ "tool": "ci/run", "arguments": command })).expect("valid");
        assert_eq!(started["tool"], "ci.run");
        assert_eq!(started["arguments"]["path"], "a");
        let other = json!({ "tool": "exec/run", "arguments": { "command": "make" } });
        assert_eq!(start(other.clone()), Ok(other));
        let problems = start(json!({ "tool": "ci/run", "arguments": { "folder": "a" } }));
        let pointers: Vec<_> =
            problems.expect_err("invalid").into_iter().map(|problem| problem.pointer).collect();
        assert_eq!(pointers, ["/arguments/folder", "/arguments/command"]);
    }
}
