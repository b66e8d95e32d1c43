//! `jobs.output`: reads the printed output of a job's program, from any position.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{
    Effects, JobEventKind, OutputStreamKind, ResultText, Tool, ToolContext, ToolError,
};

use super::{JOB_ID, JobsToolHandle, tool_error};

/// Default size of one answer of `jobs.output`, in bytes.
const BYTES_DEFAULT: usize = 32 << 10;
/// Maximum size of one answer of `jobs.output`, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Tool `jobs.output`, which reads the printed output of a job.
pub(super) struct ReadJobOutput(pub(super) JobsToolHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadJobOutputInput {
    /// The job's id.
    job_id: String,
    /// `next` value of the previous answer.
    #[serde(default)]
    cursor: u64,
    /// Approximate answer size in bytes; 32768 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct JobOutputPage {
    /// The printed pieces, in order.
    pieces: Vec<JobOutputPiece>,
    /// Value of `cursor` for the next call.
    next: u64,
    /// True if the job has ended and this is the last part of its output.
    ended: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct JobOutputPiece {
    /// The stream.
    stream: OutputStreamName,
    /// The text.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OutputStreamName {
    Stdout,
    Stderr,
}

impl Tool for ReadJobOutput {
    const NAME: &'static str = "jobs.output";
    const TITLE: &'static str = "Read job output";
    const DESCRIPTION: &'static str = "Read what a job's program has printed so far.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("id", "job_id")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["max_bytes"];
    type Input = ReadJobOutputInput;
    type Output = JobOutputPage;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let bytes = input.max_bytes.unwrap_or(BYTES_DEFAULT);
        let page =
            self.0.jobs()?.read_events(&ctx.caller, &input.job_id, input.cursor, bytes).await;
        let (job, events) = page.map_err(|err| tool_error(err, JOB_ID))?;
        let next = events.last().map_or(input.cursor, |last| last.seq);
        let mut pieces: Vec<JobOutputPiece> = Vec::new();
        for event in events {
            let JobEventKind::Output { stream, text } = event.kind else { continue };
            let stream = match stream {
                OutputStreamKind::Stdout => OutputStreamName::Stdout,
                OutputStreamKind::Stderr => OutputStreamName::Stderr,
            };
            match pieces.last_mut().filter(|last| last.stream == stream) {
                Some(last) => last.text.push_str(&text),
                None => pieces.push(JobOutputPiece { stream, text }),
            }
        }
        Ok(JobOutputPage { pieces, next, ended: job.state.is_terminal() && next >= job.last_event })
    }

    fn result_text(output: &JobOutputPage) -> ResultText {
        let text = ResultText::from_body(
            output.pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(),
        );
        if output.ended {
            text.with_note("the job has ended, and this is the end of its output")
        } else {
            text.with_note(format!("read on with `cursor`: {}", output.next))
        }
    }
}
