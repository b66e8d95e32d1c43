//! Results of the contract's tools: their texts, and the endings that count as results.

use serde_json::Value;
use toolgate_contract::{CallError, OutputStreamKind, ToolOutput, ToolRunStatus};

use super::{ContractToolBehavior, NAMES_MAX, WorkstationContractTool};
use crate::sandbox_warning::with_sandbox_warning;

impl WorkstationContractTool {
    /// Converts the `output` of a catalog tool to the text that the workstation contract expects.
    pub(crate) fn output_text(&self, output: &ToolOutput) -> Result<String, CallError> {
        let value = &output.value;
        let body = || output.text.body.clone();
        let check_whole = |is_truncated: bool, message: &dyn Fn() -> String| {
            if is_truncated { Err(CallError::TooLarge { message: message() }) } else { Ok(()) }
        };
        let is_truncated = value["truncated"] == true;
        Ok(match self.behavior {
            ContractToolBehavior::Read => {
                if let Some(encoding) = value["file_encoding"].as_str() {
                    let path = value["path"].as_str().unwrap_or_default();
                    return Err(not_text(&format!("`{path}` is {encoding}, not UTF-8")));
                }
                check_whole(is_truncated, &|| {
                    format!(
                        "`{}` has {} bytes, too many for one answer; read a part of it with \
                         `ci/run`, e.g. `head -c 100000 FILE`",
                        value["path"].as_str().unwrap_or_default(),
                        value["size"],
                    )
                })?;
                value["content"].as_str().unwrap_or_default().to_owned()
            }
            ContractToolBehavior::List => {
                let remaining = value["left"].as_u64().unwrap_or_default();
                check_whole(remaining > 0, &|| {
                    format!(
                        "the folder has {} names, and one answer holds at most {NAMES_MAX}; use \
                         `filesystem/search` to find what you need",
                        remaining + NAMES_MAX,
                    )
                })?;
                let entries = value["entries"].as_array().into_iter().flatten();
                let names = entries.filter_map(|entry| entry["name"].as_str());
                names.map(escape_line_breaks).collect::<Vec<_>>().join("\n")
            }
            ContractToolBehavior::FileExists => {
                (value["kind"] == "file" || value["kind"] == "other").to_string()
            }
            ContractToolBehavior::FolderExists => (value["kind"] == "dir").to_string(),
            ContractToolBehavior::Status
            | ContractToolBehavior::Diff
            | ContractToolBehavior::Branches => {
                let example = if self.behavior == ContractToolBehavior::Branches {
                    "git branch --list PATTERN".to_owned()
                } else {
                    format!("git {} -- PATH", self.name.trim_start_matches("git/"))
                };
                check_whole(is_truncated, &|| {
                    format!(
                        "the output of `{}` is too large for one answer; request a part of it \
                         with `ci/run`, e.g. `{example}`",
                        self.name,
                    )
                })?;
                body()
            }
            ContractToolBehavior::Project => exit_report(value, &project_printed(value)),
            ContractToolBehavior::Run => {
                let note = output.text.note.as_deref().unwrap_or_default();
                exit_report(value, &run_printed(output, &self.in_own_names(note)))
            }
            ContractToolBehavior::Write
            | ContractToolBehavior::Delete
            | ContractToolBehavior::MakeFolder
            | ContractToolBehavior::Log
            | ContractToolBehavior::CurrentBranch
            | ContractToolBehavior::Add
            | ContractToolBehavior::Commit
            | ContractToolBehavior::Diagnostics => body(),
        })
    }

    /// Returns true if an output with this ending is a result of the contract tool, not an error.
    /// The output of a program that ran and failed is a result, too.
    pub(crate) fn is_result(&self, ending: ToolRunStatus) -> bool {
        match (ending, self.behavior) {
            (ToolRunStatus::Done, _)
            | (
                ToolRunStatus::ProgramFailed,
                ContractToolBehavior::Project | ContractToolBehavior::Run,
            ) => true,
            (ToolRunStatus::ToolFailed, _) => false,
            (
                ToolRunStatus::ProgramFailed,
                ContractToolBehavior::Read
                | ContractToolBehavior::Write
                | ContractToolBehavior::List
                | ContractToolBehavior::Delete
                | ContractToolBehavior::MakeFolder
                | ContractToolBehavior::FileExists
                | ContractToolBehavior::FolderExists
                | ContractToolBehavior::Status
                | ContractToolBehavior::Log
                | ContractToolBehavior::Diff
                | ContractToolBehavior::Branches
                | ContractToolBehavior::CurrentBranch
                | ContractToolBehavior::Add
                | ContractToolBehavior::Commit
                | ContractToolBehavior::Diagnostics,
            ) => false,
        }
    }
}

/// Returns the refusal to read a file that is not UTF-8, for the reason `why`.
pub(super) fn not_text(why: &str) -> CallError {
    let message = format!(
        "{why}, and this tool reads only text; read the bytes with `ci/run`, e.g. `base64 FILE`"
    );
    CallError::Failed { message, cause: String::new() }
}

/// Escapes line breaks in the name of a file.
fn escape_line_breaks(name: &str) -> String {
    name.replace('\n', "\\n").replace('\r', "\\r")
}

/// Returns a program's output, with a line about its exit code first.
fn exit_report(value: &Value, printed: &str) -> String {
    format!("Exit Code: {}\n{printed}", value["exit_code"].as_i64().unwrap_or(-1))
}

fn project_printed(value: &Value) -> String {
    let printed = value["output"].as_str().unwrap_or_default();
    match value["output_id"].as_str() {
        Some(id) => format!(
            "[this is the end of the output; read all of it with `exec/output`, output_id \
             `{id}`]\n{printed}"
        ),
        None => printed.to_owned(),
    }
}

/// Returns the output that a program printed, with `note` if it is incomplete.
fn run_printed(output: &ToolOutput, note: &str) -> String {
    let value = &output.value;
    let is_cut = |extent: &str| !value[extent]["cut"].is_null();
    if is_cut("stdout_extent") || is_cut("stderr_extent") {
        return format!("{}\n[{note}]", output.text.body.trim_end_matches('\n'));
    }
    let stdout = output.program_output(OutputStreamKind::Stdout).unwrap_or_default();
    let stderr = with_sandbox_warning(
        output.program_output(OutputStreamKind::Stderr).unwrap_or_default(),
        value,
    );
    if stderr.is_empty() {
        return stdout.into_owned();
    }
    let separator = if stdout.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    format!("{stdout}{separator}{stderr}")
}
