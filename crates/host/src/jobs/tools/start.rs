//! `jobs.start`: runs any tool as a job.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolgate_contract::{
    CallEventSink, CallMetadata, Effects, HostAnswer, JobOptions, PreparedCallValue, ResultText,
    Tool, ToolCall, ToolContext, ToolError, exact_json, fold_name,
};

use super::{JobView, JobsToolHandle, tool_error};
use crate::jobs::{JobQuestionAvailability, StartJobRequest};

/// Tool `jobs.start`, which starts any tool as a job.
pub(super) struct StartJob(pub(super) JobsToolHandle);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StartJobInput {
    /// Name of the tool.
    tool: String,
    /// Arguments of the tool.
    #[serde(default, deserialize_with = "exact_json::deserialize_object")]
    arguments: Map<String, Value>,
}

impl Tool for StartJob {
    const NAME: &'static str = "jobs.start";
    const TITLE: &'static str = "Start job";
    const DESCRIPTION: &'static str =
        "Call another tool as a job, for long work. Returns the job's id at once.";
    /// Effects of starting a job. The tool that the job runs is checked by its own effects, and
    /// waits for its own slot.
    const EFFECTS: Effects = Effects::Changes;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("name", "tool"), ("args", "arguments"), ("input", "arguments")];
    type Input = StartJobInput;
    type Output = JobView;

    async fn run(&self, ctx: &ToolContext, input: StartJobInput) -> Result<JobView, ToolError> {
        let jobs = self.0.jobs()?;
        if fold_name(&input.tool) == fold_name(Self::NAME) {
            return Err(ToolError::invalid(
                "/tool",
                "jobs_start cannot run as a job; name the tool to run",
            ));
        }
        let call = ToolCall {
            tool: input.tool,
            input: Value::Object(input.arguments),
            caller: ctx.caller.clone(),
            dialect: "jobs".into(),
            cancel: ctx.cancel.clone(),
            events: CallEventSink::none(),
            job: None,
            asker: ctx.asker.clone(),
            metadata: CallMetadata { trace: ctx.trace.clone(), ..CallMetadata::default() },
            time_limit: None,
            started_work: PreparedCallValue::default(),
        };
        // Questions of the job reach clients whose protocol has jobs, not these tools.
        let terms = JobOptions::default();
        let later = JobQuestionAvailability::Never;
        let started = jobs.start(StartJobRequest { call, terms, late_questions: later }).await;
        match started.map_err(|err| tool_error(err, "/arguments"))? {
            HostAnswer::Job(job) => Ok(JobView::from_job(*job)),
            _ => Err(ToolError::with_cause("the job was not started", "the answer was not a job")),
        }
    }

    fn result_text(output: &JobView) -> ResultText {
        ResultText::from_body(output.summary_line()).with_note(
            "use jobs_get to wait for its result; in a shell, `toolgate jobs` lists the jobs",
        )
    }
}
