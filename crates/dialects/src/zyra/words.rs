//! Zyra's words: how it spells tools, and a result as a command line leaves it.

use std::borrow::Cow;

use serde_json::{Value, json};
use toolgate_contract::{CallError, Ending, Job, JobId, JobState, Output, Stream, ToolSpec, fold};

use crate::confined::told;

/// A tool's id as it is listed: `process.decode_grib2` is `process-decode-grib2`.
pub(crate) fn spell(id: &str) -> String {
    fold(id).replace('_', "-")
}

/// The stage and the command that a tool's name is made of, to be said back with what went wrong.
pub(crate) fn parts(name: &str) -> (String, String) {
    let cut = name.split_once(['.', ':', ' ', '/']).or_else(|| name.split_once(['-', '_']));
    let (stage, command) = cut.unwrap_or((name, ""));
    (stage.to_owned(), spell(command))
}

/// What a tool takes; `properties` is there even where nothing is declared.
pub(crate) fn parameters(spec: &ToolSpec) -> Cow<'_, Value> {
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

/// A refusal's sentence, with tools named as they are listed.
pub(crate) fn wording(error: &CallError) -> String {
    match error {
        CallError::UnknownTool { name, nearest: Some(nearest) } => {
            format!("no tool is named `{name}`; did you mean `{}`?", spell(nearest))
        }
        other => other.to_string(),
    }
}

/// A result as a command line leaves it.
#[derive(Debug, Default)]
pub(crate) struct Printed<'a> {
    pub(crate) stdout: Cow<'a, str>,
    pub(crate) stderr: Cow<'a, str>,
    /// `None` where no program ran.
    pub(crate) exit_code: Option<i64>,
}

impl<'a> Printed<'a> {
    /// Of a program, what it printed; of another tool, its text.
    pub(crate) fn of(output: &'a Output) -> Self {
        let exit_code = output.value.get("exit_code").and_then(Value::as_i64);
        let body = output.text.body.as_str();
        match (exit_code, output.ending) {
            (None, Ending::Done) => Self { stdout: body.into(), ..Self::default() },
            (Some(_), _) | (None, Ending::ProgramFailed | Ending::ToolFailed) => Self {
                stdout: output.printed(Stream::Stdout).unwrap_or(body.into()),
                stderr: told(output.printed(Stream::Stderr).unwrap_or_default(), &output.value),
                exit_code,
            },
        }
    }

    /// Of a job, what has come of it; nothing before it has ended.
    pub(crate) fn of_job(job: &'a Job) -> Self {
        match &job.outcome {
            None => Self::default(),
            Some(Ok(output)) => Self::of(output),
            Some(Err(error)) => Self { stderr: wording(error).into(), ..Self::default() },
        }
    }
}

/// Where a job's file is fetched, once there is one.
pub(crate) fn output_file(job: &Job) -> Option<String> {
    match job.state {
        JobState::Succeeded => Some(format!("/v1{}", download(job.id))),
        JobState::Queued | JobState::Running | JobState::Failed | JobState::Canceled => None,
    }
}

/// Where a job's file is fetched, as the answer to its acceptance says.
pub(crate) fn download(id: JobId) -> String {
    format!("/jobs/{id}/download")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_tool_has_the_same_parts() {
        for name in ["decode-grib2", "decode_grib2"].iter().flat_map(|command| {
            ["-", ".", ":", " ", "_", "/"].map(|between| format!("process{between}{command}"))
        }) {
            assert_eq!(parts(&name), ("process".to_owned(), "decode-grib2".to_owned()), "{name}");
        }
    }
}
