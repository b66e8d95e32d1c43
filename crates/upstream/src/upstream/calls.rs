//! Calls to an upstream, in sessions and in the stateless protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use toolgate_contract::{
    BoxFuture, QuestionKind, QuestionSupport, ToolContext, ToolError, ToolFuture,
};
use toolgate_dialects::mcp::upstream::{
    SessionModel, TASKS_EXTENSION, TaskSupport, UpstreamRequestMetadata,
};

use super::Upstream;
use super::visits::UrlElicitations;
use crate::connection::{UpstreamConnection, UpstreamRequest};
use crate::message::UpstreamRpcError;
use crate::server_requests::CallMessageReceiver;
use crate::transport::UpstreamRequestFailure;
use crate::upstream::call_driver::{
    self, InitialCallResponse, StatelessCallOutcome, StatelessCallStart, UpstreamCallProgress,
};

/// Method that calls a tool.
const TOOLS_CALL: &str = "tools/call";

impl Upstream {
    /// Sends the request of a call to the upstream and waits for the result. Asks the caller the
    /// upstream's questions, and polls a task that the call becomes.
    pub(crate) async fn call(
        &self,
        ctx: &ToolContext,
        asked: UpstreamCallRequest,
    ) -> Result<Value, ToolError> {
        let begun = self.start_call(ctx, asked).await?;
        self.wait_for_result(ctx, begun).await
    }

    /// Sends the request of a call to the upstream and runs the call until it has a result or
    /// becomes a task of the upstream.
    pub(crate) async fn start_call(
        &self,
        ctx: &ToolContext,
        asked: UpstreamCallRequest,
    ) -> Result<InitialCallResponse, ToolError> {
        if let Some(instance) = self.instance_for(ctx)? {
            return Box::pin(instance.start_call(ctx, asked)).await;
        }
        let work = async {
            let _permit = self.permits.acquire().await.map_err(|_| ToolError::canceled())?;
            // A suspended call resumes on its own connection.
            let link = self.connection_for_call().await?;
            self.check_called_pin(&link, &asked).await?;
            match link.revision.era {
                SessionModel::Session => {
                    call_driver::drive_to_end(
                        &self.lasting.suspended,
                        ctx,
                        self.session_call(ctx, asked, link),
                    )
                    .await
                }
                SessionModel::Stateless => {
                    let (rounds, params) = StatelessCall::new(self.this(), ctx, asked, link, None);
                    rounds.drive_to_end(ctx, StatelessCallStart::Start(params)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Runs a call for at most `within`. A call that is still running after that continues with its
    /// own permit.
    pub(crate) async fn start_call_for(
        &self,
        ctx: &ToolContext,
        asked: UpstreamCallRequest,
        within: Duration,
    ) -> Result<UpstreamCallProgress, ToolError> {
        if let Some(instance) = self.instance_for(ctx)? {
            return Box::pin(instance.start_call_for(ctx, asked, within)).await;
        }
        let work = async {
            let link = self.connection_for_call().await?;
            self.check_called_pin(&link, &asked).await?;
            match link.revision.era {
                SessionModel::Session => {
                    let begin = self.session_call(ctx, asked, link);
                    let permits = self.permits.clone();
                    let begin = |receiver| -> BoxFuture<'static, _> {
                        Box::pin(async move {
                            let _permit = permits.acquire_owned().await;
                            begin(receiver).await
                        })
                    };
                    call_driver::drive_for(&self.lasting.suspended, ctx, begin, within).await
                }
                SessionModel::Stateless => {
                    let permits = Some(self.permits.clone());
                    let (rounds, params) =
                        StatelessCall::new(self.this(), ctx, asked, link, permits);
                    rounds.drive(ctx, StatelessCallStart::Start(params), Some(within)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Continues a call to the upstream that was started before.
    pub(crate) async fn continue_call(
        &self,
        ctx: &ToolContext,
        driven: UpstreamCallProgress,
    ) -> Result<InitialCallResponse, ToolError> {
        let work = async {
            match driven {
                UpstreamCallProgress::Done(begun) => Ok(begun),
                UpstreamCallProgress::Running(going) => {
                    call_driver::drive_running(&self.lasting.suspended, ctx, going).await
                }
                UpstreamCallProgress::Unanswered(sent) => {
                    let (rounds, sent) = *sent;
                    rounds.receiver.redirect_events(ctx.events.clone());
                    rounds.drive_to_end(ctx, StatelessCallStart::Unanswered(sent)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Checks that the tool which `asked` calls matches its pin.
    async fn check_called_pin(
        &self,
        link: &UpstreamConnection,
        asked: &UpstreamCallRequest,
    ) -> Result<(), ToolError> {
        match asked.method == TOOLS_CALL {
            true => self.check_pin(link, &asked.target).await,
            false => Ok(()),
        }
    }

    fn session_call(
        &self,
        ctx: &ToolContext,
        asked: UpstreamCallRequest,
        link: Arc<UpstreamConnection>,
    ) -> impl FnOnce(Arc<CallMessageReceiver>) -> ToolFuture<'static, InitialCallResponse> + use<>
    {
        let UpstreamCallRequest { method, mut params, target: name, as_task, .. } = asked;
        let this = self.this();
        let trace = ctx.trace.clone();
        let wants_progress = ctx.events.has_receiver();
        let caller = ctx.caller.clone();
        let session = ctx.session.clone();
        let log_level = ctx.events.log_level();
        let capabilities = ctx.asker.supported();
        let calls_again = ctx.asker.repeats_calls();
        let needs_dedicated =
            self.has_asked.load(Ordering::Acquire) && capabilities != QuestionSupport::default();
        if as_task && link.revision.tasks == TaskSupport::Param {
            params.insert("task".into(), json!({}));
        }
        move |receiver: Arc<CallMessageReceiver>| -> BoxFuture<'static, _> {
            receiver.set_folders(this.folders());
            Box::pin(async move {
                let mut dedicated = match needs_dedicated {
                    true => {
                        let owner = (&caller, session.clone());
                        Some(this.dedicated.take(&this, owner, capabilities).await?)
                    }
                    false => None,
                };
                let mut link =
                    dedicated.as_ref().map_or(link, |dedicated| dedicated.connection.clone());
                if dedicated.is_some() && method == TOOLS_CALL {
                    this.check_pin(&link, &name).await?;
                }
                link.set_log_level(log_level).await;
                let mut is_repeated = false;
                let mut visits = UrlElicitations::new();
                let asked = loop {
                    let visits_pages = receiver.supports(QuestionKind::Visit);
                    let repeats = visits_pages || link.transport.may_lose_session();
                    let repeated = repeats.then(|| params.clone());
                    let meta = UpstreamRequestMetadata {
                        trace: trace.as_ref(),
                        ..UpstreamRequestMetadata::default()
                    };
                    let upstream_request = UpstreamRequest {
                        meta,
                        wants_progress,
                        ..UpstreamRequest::new(method, params)
                    };
                    // The upstream did nothing yet for a request that is repeated here.
                    params = match (
                        link.request(upstream_request.with_target(&name), receiver.clone()).await,
                        repeated,
                    ) {
                        (Err(UpstreamRequestFailure::SessionGone(_)), Some(params))
                            if !is_repeated =>
                        {
                            is_repeated = true;
                            link = match dedicated.take() {
                                Some(lost) => {
                                    // The lost connection holds the permit that a new one needs.
                                    drop(lost);
                                    let owner = (&caller, session.clone());
                                    let other = this.dedicated.take(&this, owner, capabilities);
                                    dedicated.insert(other.await?).connection.clone()
                                }
                                None => this.connection_for_call().await?,
                            };
                            if method == TOOLS_CALL {
                                this.check_pin(&link, &name).await?;
                            }
                            params
                        }
                        (Err(UpstreamRequestFailure::Refused(error)), Some(params))
                            if visits_pages && UrlElicitations::is_required(&error) =>
                        {
                            visits.complete(&this, &receiver, &error).await?;
                            params
                        }
                        (Err(UpstreamRequestFailure::Refused(error)), _)
                            if calls_again && UrlElicitations::is_required(&error) =>
                        {
                            return Err(ToolError::cannot_ask(QuestionKind::Visit));
                        }
                        (asked, _) => break asked,
                    };
                };
                let is_task = |first: &Value| first.pointer("/task/taskId").is_some();
                if !asked.as_ref().is_ok_and(is_task)
                    && let Some(dedicated) = dedicated.take()
                {
                    dedicated.finish();
                }
                let first = asked.map_err(|trouble| this.tool_error(method, trouble))?;
                match receiver.missing_capability() {
                    // A server can usually work without roots.
                    Some(kind) if kind != QuestionKind::Roots && first["isError"] == true => {
                        Err(ToolError::cannot_ask(kind))
                    }
                    _ => Ok(InitialCallResponse::new(first, link, dedicated)),
                }
            })
        }
    }
}

/// A call in the stateless protocol. Each of its requests may end with questions, and is then
/// repeated with the answers.
pub(crate) struct StatelessCall {
    upstream: Arc<Upstream>,
    connection: Arc<UpstreamConnection>,
    receiver: Arc<CallMessageReceiver>,
    method: &'static str,
    target: String,
    as_task: bool,
    header_params: Vec<(String, String)>,
    /// The semaphore that limits concurrent calls, if each request of the call takes its own
    /// permit.
    permits: Option<Arc<Semaphore>>,
}

impl StatelessCall {
    /// Creates the call for the request `asked` over the connection `link`. Returns the call and
    /// the parameters of its first request.
    fn new(
        upstream: Arc<Upstream>,
        ctx: &ToolContext,
        asked: UpstreamCallRequest,
        link: Arc<UpstreamConnection>,
        permits: Option<Arc<Semaphore>>,
    ) -> (Self, Map<String, Value>) {
        let UpstreamCallRequest { method, params, target, as_task, header_params } = asked;
        let receiver = CallMessageReceiver::for_live_caller(ctx);
        (
            Self {
                upstream,
                connection: link,
                receiver,
                method,
                target,
                as_task,
                header_params,
                permits,
            },
            params,
        )
    }

    /// Runs the call until it has a result or becomes a task of the upstream.
    async fn drive_to_end(
        self,
        ctx: &ToolContext,
        from: StatelessCallStart,
    ) -> Result<InitialCallResponse, ToolError> {
        match self.drive(ctx, from, None).await? {
            UpstreamCallProgress::Done(begun) => Ok(begun),
            UpstreamCallProgress::Running(_) | UpstreamCallProgress::Unanswered(_) => {
                unreachable!("the drive has no time limit")
            }
        }
    }

    /// Runs the call until it ends or, with `within`, until an answer takes longer.
    async fn drive(
        self,
        ctx: &ToolContext,
        from: StatelessCallStart,
        within: Option<Duration>,
    ) -> Result<UpstreamCallProgress, ToolError> {
        let send = |params| self.send(ctx, params);
        let folders = self.upstream.folders();
        match call_driver::drive_rounds(ctx, from, within, folders.as_ref(), send).await? {
            StatelessCallOutcome::Done(first) => Ok(UpstreamCallProgress::Done(
                InitialCallResponse::new(first, self.connection, None),
            )),
            StatelessCallOutcome::Unanswered(sent) => {
                Ok(UpstreamCallProgress::Unanswered(Box::new((self, sent))))
            }
        }
    }

    /// Sends one request of the call.
    fn send(
        &self,
        ctx: &ToolContext,
        params: Map<String, Value>,
    ) -> impl Future<Output = Result<Value, ToolError>> + Send + 'static + use<> {
        let upstream = self.upstream.clone();
        let link = self.connection.clone();
        let receiver = self.receiver.clone();
        let method = self.method;
        let name = self.target.clone();
        let as_task = self.as_task;
        let header_params = self.header_params.clone();
        let permits = self.permits.clone();
        let trace = ctx.trace.clone();
        let capabilities = ctx.asker.supported();
        let log_level = ctx.events.log_level();
        let wants_progress = ctx.events.has_receiver();
        let capabilities = QuestionSupport {
            roots: capabilities.roots || self.upstream.folders().is_some(),
            ..capabilities
        };
        let calls_again = ctx.asker.repeats_calls();
        async move {
            let _permit = match permits {
                Some(permits) => permits.acquire_owned().await.ok(),
                None => None,
            };
            let new_request = |params, tasks| {
                let trace = trace.as_ref();
                let meta = UpstreamRequestMetadata {
                    questions: capabilities,
                    accepts_tasks: tasks,
                    log_level,
                    trace,
                    ..UpstreamRequestMetadata::default()
                };
                let header_params = header_params.clone();
                UpstreamRequest {
                    meta,
                    wants_progress,
                    header_params,
                    ..UpstreamRequest::new(method, params)
                }
                .with_target(&name)
            };
            let repeated = Map::clone(&params);
            let asked = match link.request(new_request(params, as_task), receiver.clone()).await {
                // Nothing was done yet. The caller accepts no jobs, so the task is treated as a
                // call.
                Err(UpstreamRequestFailure::Refused(error))
                    if !as_task && !calls_again && needs_tasks(&error) =>
                {
                    link.request(new_request(repeated, true), receiver).await
                }
                asked => asked,
            };
            asked.map_err(|trouble| upstream.tool_error(method, trouble))
        }
    }
}

/// A request to an upstream on behalf of a call, such as `tools/call`.
pub(crate) struct UpstreamCallRequest {
    pub(crate) method: &'static str,
    pub(crate) params: Map<String, Value>,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) target: String,
    /// True if the request may become a task of the upstream.
    pub(crate) as_task: bool,
    /// Arguments that are repeated in HTTP headers, if the protocol revision supports that.
    pub(crate) header_params: Vec<(String, String)>,
}

impl UpstreamCallRequest {
    /// Creates a request of `method` for the target `name`.
    pub(crate) fn new(method: &'static str, name: &str, params: Map<String, Value>) -> Self {
        Self { method, params, target: name.to_owned(), as_task: false, header_params: Vec::new() }
    }
}

/// Returns true if the upstream refuses the request because it requires support for tasks.
fn needs_tasks(error: &UpstreamRpcError) -> bool {
    let required = error.data.as_ref().and_then(|data| data.get("requiredCapabilities"));
    let extensions = required.and_then(|required| required.get("extensions"));
    error.code == -32021 && extensions.is_some_and(|all| all.get(TASKS_EXTENSION).is_some())
}
