//! Tool names and results of the Zyra dialect, in the form of a command line.

use std::borrow::Cow;

use serde_json::{Value, json};
use toolgate_contract::{
    CallError, JobId, JobOutputText, JobSnapshot, OutputStreamKind, ToolOutput, ToolRunStatus,
    ToolSpec, fold_name,
};

use crate::sandbox_warning::with_sandbox_warning;
use crate::tool_mentions::{rename_tools, rename_tools_in_error};

/// Converts a tool id to Zyra's spelling: `process.decode_grib2` becomes `process-decode-grib2`.
pub(crate) fn tool_name(id: &str) -> String {
    fold_name(id).replace('_', "-")
}

/// Splits a tool's name into Zyra's stage and command, for error messages.
pub(crate) fn split_tool_name(name: &str) -> (String, String) {
    let cut = name.split_once(['.', ':', ' ', '/']).or_else(|| name.split_once(['-', '_']));
    let (stage, command) = cut.unwrap_or((name, ""));
    (stage.to_owned(), tool_name(command))
}

/// Returns the input schema of a tool, with `properties` even if there are none.
pub(crate) fn input_schema(spec: &ToolSpec) -> Cow<'_, Value> {
    let schema: &Value = &spec.input_schema;
    if schema.get("properties").is_some() {
        return Cow::Borrowed(schema);
    }
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("properties".to_owned(), json!({}));
    }
    Cow::Owned(schema)
}

/// Returns `error` with tool names in Zyra's spelling. `called` is the id of the called tool, if it
/// is known.
pub(crate) fn in_own_names(error: &CallError, called: Option<&str>) -> CallError {
    rename_tools_in_error(error, called, |id| Some(tool_name(id)))
}

/// Returns a tool's `note` with tool names in Zyra's spelling.
pub(crate) fn note_in_own_names(note: &str, called: Option<&str>) -> String {
    rename_tools(note, called, |id| Some(tool_name(id)))
}

/// A call's result, represented as a program's result: output streams and exit code.
#[derive(Debug, Default)]
pub(crate) struct ZyraCommandResult<'a> {
    pub(crate) stdout: Cow<'a, str>,
    pub(crate) stderr: Cow<'a, str>,
    /// The exit code of the program. `None` if no program ran.
    pub(crate) exit_code: Option<i64>,
}

impl<'a> ZyraCommandResult<'a> {
    /// Converts the output of a call: a program's streams, or the text of another tool.
    pub(crate) fn from_output(output: &'a ToolOutput) -> Self {
        let exit_code = output.value.get("exit_code").and_then(Value::as_i64);
        let body = || output.body_text();
        match (exit_code, output.ending) {
            (None, ToolRunStatus::Done) => Self { stdout: body(), ..Self::default() },
            (Some(_), _) | (None, ToolRunStatus::ProgramFailed | ToolRunStatus::ToolFailed) => {
                Self {
                    stdout: output.program_output(OutputStreamKind::Stdout).unwrap_or_else(body),
                    stderr: with_sandbox_warning(
                        output.program_output(OutputStreamKind::Stderr).unwrap_or_default(),
                        &output.value,
                    ),
                    exit_code,
                }
            }
        }
    }

    /// Converts the outcome of a job to the result of a program. The result is empty until the job
    /// has ended. An error is appended to the job's output.
    pub(crate) fn from_job(job: &'a JobSnapshot) -> Self {
        match &job.outcome {
            None => Self::default(),
            Some(Ok(output)) => Self::from_output(output),
            Some(Err(error)) => {
                let error = in_own_names(error, Some(job.tool.as_str()));
                let JobOutputText { stdout, stderr } = &job.printed;
                let end = if stderr.is_empty() || stderr.ends_with('\n') { "" } else { "\n" };
                Self {
                    stdout: stdout.as_str().into(),
                    stderr: format!("{stderr}{end}{error}").into(),
                    exit_code: None,
                }
            }
        }
    }
}

/// Returns the path at which a job's files can be downloaded, with the prefix `/v1`. Returns `None`
/// if the job has no download.
pub(crate) fn output_path(job: &JobSnapshot) -> Option<String> {
    (!job.downloads().is_empty()).then(|| format!("/v1{}", download_path(job.id)))
}

/// Returns the path of the download of the job `id`, as the answer to the job's start contains it.
pub(crate) fn download_path(id: JobId) -> String {
    format!("/jobs/{id}/download")
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{ContentBlock, MetaFields, ResultText};

    use super::*;

    #[test]
    fn the_standard_output_of_a_tool_has_all_its_content() {
        let output = ToolOutput {
            value: Value::Null,
            structured: false,
            text: ResultText::from_body("one"),
            content: vec![ContentBlock::text("two")],
            meta: MetaFields::new(),
            ending: ToolRunStatus::Done,
            from_upstream: true,
        };
        assert_eq!(ZyraCommandResult::from_output(&output).stdout, "one\ntwo");
    }

    #[test]
    fn every_spelling_of_a_tool_has_the_same_parts() {
        for name in ["decode-grib2", "decode_grib2"].iter().flat_map(|command| {
            ["-", ".", ":", " ", "_", "/"].map(|between| format!("process{between}{command}"))
        }) {
            assert_eq!(
                split_tool_name(&name),
                ("process".to_owned(), "decode-grib2".to_owned()),
                "{name}"
            );
        }
    }
}
