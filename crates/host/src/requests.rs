//! Requests of dialects, and the answers of the host to them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    CallError, CallEventSink, CallMetadata, Caller, ConsumeRequestStateFn, EndedJobCancelReply,
    HostAnswer, HostRequest, JobSnapshot, JobSupport, PreparedCallValue, QuestionAsker,
    QuestionSupport, ToolCall, ToolError, ToolErrorKind,
};

use crate::jobs::{JobQuestionAvailability, StartJobRequest};
use crate::library::CallerContentRequest;
use crate::pipeline::multi_round::{RequestStateSealer, STATE_LIFETIME, state_code};
use crate::{Gate, Host, pipeline, tool_search};

/// Time for which the use of a confirmation is recorded: twice as long as a confirmation is valid,
/// because the clocks of the servers that share the records may differ.
const CONFIRMATION_MEMORY: Duration = STATE_LIFETIME.saturating_mul(2);

/// A request with its caller and its connection to the client.
pub struct IncomingRequest {
    /// The request to the host, as the dialect parsed it.
    pub request: HostRequest,
    /// The caller who made the request.
    pub caller: Caller,
    /// Name of the dialect in which the request was made, such as `mcp`.
    pub dialect: &'static str,
    /// Token that is cancelled when the client no longer wants the answer.
    pub cancel: CancellationToken,
    /// Sink for events of the call, such as progress.
    pub events: CallEventSink,
    /// Channel for questions to the client while the call runs.
    pub asker: QuestionAsker,
    /// Sealed state that the host sent with its questions, if this request answers them.
    pub state: Option<String>,
    /// Metadata that came with the request, such as headers and trace context.
    pub metadata: CallMetadata,
    /// Time limit of the dialect, if it is shorter than the tool's deadline.
    pub time_limit: Option<Duration>,
}

impl IncomingRequest {
    /// Creates a request of `caller` that can ask no questions and sends no events.
    pub fn without_client(request: HostRequest, caller: Caller, dialect: &'static str) -> Self {
        Self {
            request,
            caller,
            dialect,
            cancel: CancellationToken::new(),
            events: CallEventSink::none(),
            asker: QuestionAsker::none(),
            state: None,
            metadata: CallMetadata::default(),
            time_limit: None,
        }
    }
}

/// Caller, channel for questions and digest of a request, which are needed to seal its state if the
/// host answers with questions.
struct RequestStateInputs {
    caller: Caller,
    asker: QuestionAsker,
    /// Digest of the request, or an empty string if its client cannot be asked questions.
    digest: String,
}

impl Host {
    /// Answers one request of a client.
    ///
    /// Dropping the future stops a running call at once. Cancelling the token of `incoming` lets
    /// the call stop by itself. A job continues in both cases.
    pub async fn answer(&self, incoming: IncomingRequest) -> Result<HostAnswer, CallError> {
        let gate = self.gate();
        // Not inline: a local of an async function takes space in the future of each call.
        let (request, mut call, round) = self.prepare_request(&gate, incoming)?;
        let outcome = match request {
            HostRequest::CallTool { tool, input } => {
                (call.tool, call.input) = (tool, input);
                match tool_search::is_forwarder(&gate, &call) {
                    // Boxed: few calls are, and every call would reserve space for it.
                    true => Box::pin(tool_search::run_forwarded(&gate, &mut call)).await,
                    false => {
                        let outcome = pipeline::run_call(&gate, &mut call, None).await;
                        outcome.or_else(|error| tool_search::explain_gone(&gate, &call, error))
                    }
                }
                .map(HostAnswer::Output)
            }
            // Boxed: otherwise every call would reserve stack space for the largest request.
            request => Box::pin(self.answer_other(&gate, request, call)).await,
        };
        match outcome {
            Err(CallError::Asks { questions }) => {
                let so_far = (round.asker.answers(), round.asker.stored_note());
                let state =
                    gate.state_sealer.seal(&round.caller, &round.digest, so_far, &questions)?;
                Ok(HostAnswer::Questions { questions, state })
            }
            other => other,
        }
    }

    /// Returns the request of `incoming` with its call, and the data for a sealed state if the host
    /// answers with questions.
    ///
    /// # Errors
    /// The sealed state belongs to another caller or request, or is too old.
    fn prepare_request(
        &self,
        gate: &Gate,
        incoming: IncomingRequest,
    ) -> Result<(HostRequest, ToolCall, RequestStateInputs), CallError> {
        let IncomingRequest {
            request,
            caller,
            dialect,
            cancel,
            events,
            asker,
            state,
            metadata,
            time_limit,
        } = incoming;
        let sealer = &gate.state_sealer;
        // A request that ends with questions is made again and must then be recognized.
        let may_ask = state.is_some() || asker.supported() != QuestionSupport::default();
        let digest =
            if may_ask { pipeline::multi_round::request_digest(&request) } else { String::new() };
        let answers = asker.answers();
        let asker = if state.is_some() || !answers.is_empty() {
            let (answers, note) =
                sealer.open_request_state(&caller, &digest, state.as_deref(), answers)?;
            let asker = QuestionAsker::on_repeat(asker.supported(), answers).with_note(note);
            match &state {
                Some(sealed) => asker.with_single_use(self.consent_consumer(sealer, sealed)),
                None => asker.with_unsolicited_answers(),
            }
        } else {
            asker
        };
        let round = RequestStateInputs { caller: caller.clone(), asker: asker.clone(), digest };
        let call = ToolCall {
            tool: String::new(),
            input: Value::Null,
            caller,
            dialect: Cow::Borrowed(dialect),
            cancel,
            events,
            job: None,
            asker,
            metadata,
            time_limit,
            started_work: PreparedCallValue::default(),
        };
        Ok((request, call, round))
    }

    /// Returns the function that marks a person's consents in the request state `sealed` as used,
    /// all consents of one request together.
    ///
    /// If other processes accept the state, the function records the use in the job store.
    /// Otherwise, and without jobs, it records the use in the memory of this process.
    fn consent_consumer(
        &self,
        sealer: &Arc<RequestStateSealer>,
        sealed: &str,
    ) -> ConsumeRequestStateFn {
        let code = state_code(sealed);
        let jobs = self.jobs.clone().filter(|_| sealer.is_shared());
        let sealer = sealer.clone();
        let is_first_use = Arc::new(OnceCell::new());
        Arc::new(move || {
            let (jobs, sealer, is_first_use) = (jobs.clone(), sealer.clone(), is_first_use.clone());
            Box::pin(async move {
                let redeem = || async {
                    let Some(jobs) = &jobs else { return Ok(sealer.use_code(code)) };
                    jobs.use_confirmation(code, CONFIRMATION_MEMORY).await.map_err(|err| {
                        let message = format!(
                            "the confirmation could not be recorded, so nothing was done: {err}; \
                             try again, or set `jobs.to` to a folder that the server can write"
                        );
                        ToolError::new(ToolErrorKind::Unavailable, message)
                    })
                };
                is_first_use.get_or_try_init(redeem).await.copied()
            })
        })
    }

    /// Answers a request that is not a tool call. `call` contains the caller and the metadata of
    /// the request.
    async fn answer_other(
        &self,
        gate: &Gate,
        request: HostRequest,
        call: ToolCall,
    ) -> Result<HostAnswer, CallError> {
        let caller = call.caller.clone();
        let reader = |call| CallerContentRequest::new(gate, call);
        match request {
            HostRequest::ListTools { after } => {
                gate.catalog.wait_for_listings(None).await;
                let page =
                    gate.listed_tools(&caller, &call.dialect, &call.metadata, after.as_ref());
                Ok(HostAnswer::Tools(page))
            }
            HostRequest::Discover => {
                gate.catalog.wait_for_listings(None).await;
                Ok(HostAnswer::Everything {
                    tools: gate.tool_page(&caller, None, usize::MAX).tools,
                    prompts: reader(call).all_prompts().await?,
                })
            }
            HostRequest::Refuse(error) => Err(pipeline::refuse_call(gate, &call, error).await),
            HostRequest::RefuseCall { tool, why } => {
                let call = ToolCall { tool, ..call };
                Err(pipeline::refuse_call(gate, &call, why).await)
            }
            HostRequest::CallTool { tool, input } => {
                run_call(gate, ToolCall { tool, input, ..call }).await
            }
            HostRequest::StartJob { tool, input, terms } => {
                let mut call = ToolCall { tool, input, ..call };
                if tool_search::is_forwarder(gate, &call) {
                    tool_search::forward(gate, &mut call).await?;
                }
                // A call that may run inline does so if it cannot be a job or would gain nothing by
                // it.
                let may_run_inline = terms.answer_within.is_some();
                match &self.jobs {
                    None if may_run_inline && !requires_job(gate, &call) => {
                        run_call(gate, call).await
                    }
                    Some(jobs) if may_run_inline && !jobs.should_run_as_job(&call) => {
                        run_call(gate, call).await
                    }
                    Some(_) | None => {
                        let late_questions = JobQuestionAvailability::Possible;
                        self.jobs()?.start(StartJobRequest { call, terms, late_questions }).await
                    }
                }
            }
            HostRequest::GetJob { id } => {
                Ok(job_answer(self.jobs()?.get_with_printed(&caller, &id).await?))
            }
            HostRequest::AwaitJob { id } => {
                let jobs = self.jobs()?;
                tokio::select! {
                    ended = jobs.wait_until_ended(&caller, &id, &call.asker) => ended.map(job_answer),
                    () = call.cancel.cancelled() => Err(CallError::Canceled),
                }
            }
            HostRequest::ListJobs { after } => {
                let size = gate.settings.page_size;
                Ok(HostAnswer::Jobs(self.jobs()?.list(Some(&caller), after, size).await?))
            }
            HostRequest::CancelJob { id, if_ended } => {
                let jobs = self.jobs()?;
                let job = match (jobs.cancel(&caller, &id).await, if_ended) {
                    (Err(CallError::Conflict { .. }), EndedJobCancelReply::Job) => {
                        jobs.get_with_printed(&caller, &id).await?
                    }
                    (job, _) => job?,
                };
                Ok(job_answer(job))
            }
            HostRequest::OpenArtefact { id, which } => {
                Ok(HostAnswer::Artefact(self.jobs()?.open_artefact(&caller, &id, which).await?))
            }
            HostRequest::AnswerJob { id, given } => {
                Ok(job_answer(self.jobs()?.answer_questions(&caller, &id, given).await?))
            }
            HostRequest::ListResources { after } => reader(call).list_resources(after).await,
            HostRequest::ListTemplates => Ok(reader(call).list_templates()),
            HostRequest::ReadResource { uri } => reader(call).read_resource(&uri).await,
            HostRequest::ReadFolder { uri, after } => {
                reader(call).list_folder(&uri, after.as_deref()).await
            }
            HostRequest::WatchResource { uri } => reader(call).watch_resource(uri).await,
            HostRequest::ListPrompts { after } => reader(call).list_prompts(after).await,
            HostRequest::GetPrompt { name, arguments } => {
                reader(call).make_prompt(&name, arguments).await
            }
            HostRequest::Complete(completion) => reader(call).complete(&completion).await,
            HostRequest::ListSkills { after } => reader(call).list_skills(after).await,
            HostRequest::GetSkill { uri } => reader(call).get_skill(&uri).await,
        }
    }
}

/// Returns true if the tool of `call` runs only as a job.
fn requires_job(gate: &Gate, call: &ToolCall) -> bool {
    let entry = gate.find(&call.caller, &call.tool);
    entry.is_ok_and(|entry| entry.spec().job == JobSupport::Required)
}

async fn run_call(gate: &Gate, mut call: ToolCall) -> Result<HostAnswer, CallError> {
    pipeline::run_call(gate, &mut call, None).await.map(HostAnswer::Output)
}

fn job_answer(job: JobSnapshot) -> HostAnswer {
    HostAnswer::Job(Box::new(job))
}
