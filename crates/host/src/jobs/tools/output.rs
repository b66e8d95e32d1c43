//! `jobs.output`: reads the printed output of a job's program, from any position.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Happened, Stream, Text, Tool, ToolError};

use super::{Handle, refusal};

/// Default size of one answer in bytes.
const BYTES: usize = 32 << 10;
/// Largest size of one answer in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Tool that reads the output of jobs.
pub(super) struct Output(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The job's id.
    job_id: String,
    /// The `next` of the previous answer; 0 by default.
    #[serde(default)]
    after: u64,
    /// Approximate answer size in bytes; 32768 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Printed {
    /// The printed pieces, in order.
    pieces: Vec<Piece>,
    /// Value of `after` to read on.
    next: u64,
    /// True if the job has ended and this is the rest.
    ended: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Piece {
    /// The stream.
    stream: StreamName,
    /// The text.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum StreamName {
    Stdout,
    Stderr,
}

impl Tool for Output {
    const NAME: &'static str = "jobs.output";
    const TITLE: &'static str = "Read job output";
    const ABOUT: &'static str = "Reads what a job's program has printed so far, from the beginning \
        or from where the last answer ended. Works while the job runs and after.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Input;
    type Output = Printed;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Printed, ToolError> {
        let bytes = input.max_bytes.unwrap_or(BYTES);
        let page = self.0.jobs()?.page(&ctx.caller, &input.job_id, input.after, bytes).await;
        let (job, events) = page.map_err(|err| refusal(err, "/job_id"))?;
        let next = events.last().map_or(input.after, |last| last.seq);
        let mut pieces: Vec<Piece> = Vec::new();
        for event in events {
            let Happened::Output { stream, text } = event.what else { continue };
            let stream = match stream {
                Stream::Stdout => StreamName::Stdout,
                Stream::Stderr => StreamName::Stderr,
            };
            match pieces.last_mut().filter(|last| last.stream == stream) {
                Some(last) => last.text.push_str(&text),
                None => pieces.push(Piece { stream, text }),
            }
        }
        Ok(Printed { pieces, next, ended: job.state.is_terminal() && next >= job.last_event })
    }

    fn text(output: &Printed) -> Text {
        let text =
            Text::body(output.pieces.iter().map(|piece| piece.text.as_str()).collect::<String>());
        if output.ended {
            text.with_note("the job has ended; this is all")
        } else {
            text.with_note(format!("read on with `after`: {}", output.next))
        }
    }
}
