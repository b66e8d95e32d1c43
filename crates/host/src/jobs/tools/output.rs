//! `jobs.output`: what a job's program has printed, from anywhere on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Happened, Stream, Text, Tool, ToolError};

use super::{Handle, refusal};

/// How much one answer holds where the call does not say.
const BYTES: usize = 32 << 10;
/// How much one answer holds at most.
const BYTES_MAX: usize = 1 << 20;

/// Reads what jobs print.
pub(super) struct Output(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The job's id.
    job_id: String,
    /// The `next` of the answer before; the beginning by default.
    #[serde(default)]
    after: u64,
    /// About how many bytes to answer with; 32768 by default.
    #[serde(default)]
    #[schemars(range(min = 1, max = BYTES_MAX))]
    max_bytes: Option<usize>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Printed {
    /// What it printed, in order, piece by piece.
    pieces: Vec<Piece>,
    /// What to give as `after` to read on.
    next: u64,
    /// Whether the job has ended and nothing comes after this.
    ended: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Piece {
    /// Where it printed it.
    stream: StreamName,
    /// What.
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
