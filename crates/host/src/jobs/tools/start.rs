//! `jobs.start`: runs any tool as a job.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolgate_contract::{
    Ahead, Answer, Beside, Call, Ctx, Effects, EventSink, JobTerms, Text, Tool, ToolError, fold,
};

use super::{Handle, Told, refusal};
use crate::jobs::{AskLater, Wanted};

/// Tool that starts jobs.
pub(super) struct Start(pub(super) Handle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    /// The tool to call.
    tool: String,
    /// The arguments.
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl Tool for Start {
    const NAME: &'static str = "jobs.start";
    const TITLE: &'static str = "Start job";
    const ABOUT: &'static str = "Calls any of the other tools as a job: it answers at once with the \
        job's id, and the work goes on for as long as the server runs, whoever disconnects; what \
        waits is run by the next server of the folder. Use it for work that takes longer than a few \
        seconds; look after it with jobs_get, jobs_output and jobs_cancel.";
    /// The started tool is checked by its own effects, and waits for its own slot.
    const EFFECTS: Effects = Effects::Changes;
    type Input = Input;
    type Output = Told;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Told, ToolError> {
        let jobs = self.0.jobs()?;
        if fold(&input.tool) == fold(Self::NAME) {
            return Err(ToolError::invalid("/tool", "a job that only starts a job is none"));
        }
        let call = Call {
            tool: input.tool,
            input: Value::Object(input.arguments),
            caller: ctx.caller.clone(),
            dialect: "jobs".into(),
            cancel: ctx.cancel.clone(),
            events: EventSink::none(),
            job: None,
            asker: ctx.asker.clone(),
            beside: Beside { trace: ctx.trace.clone(), ..Beside::default() },
            within: None,
            ahead: Ahead::default(),
        };
        // Questions of the job reach clients whose protocol has jobs, not these tools.
        let terms = JobTerms::default();
        let later = AskLater::Never;
        let started = jobs.start(Wanted { call, terms, later }).await;
        match started.map_err(|err| refusal(err, "/arguments"))? {
            Answer::Job(job) => Ok(Told::of(*job)),
            _ => Err(ToolError::because("the job was not started", "answered with no job")),
        }
    }

    fn text(output: &Told) -> Text {
        Text::body(output.line()).with_note("jobs_get waits for its result")
    }
}
