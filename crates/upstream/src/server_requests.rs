//! Handles notifications and requests that an upstream sends during a call, and asks the caller the
//! upstream's questions.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use toolgate_contract::{
    CallEvent, CallEventSink, ClientAnswers, ClientQuestion, ClientQuestions, LogLevel,
    QuestionAsker, QuestionKind, QuestionSupport, SandboxReport, ToolContext, ToolError,
    ToolErrorKind, lock_mutex,
};
use toolgate_dialects::mcp::upstream::{QUESTION_KEY, encode_answer, parse_question};

use crate::message::UpstreamRpcError;
use crate::transport::{AnswerFuture, MessageReceiver};
use crate::world::UpstreamRefusedHost;

/// Method of an upstream's request that asks the caller for input (elicitation).
const ELICITATION_CREATE: &str = "elicitation/create";
/// Method of an upstream's notification that the user has finished on the web page of an
/// elicitation.
pub(crate) const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";

/// Receiver of an upstream's notifications and requests during one call.
pub(crate) struct CallMessageReceiver {
    /// Name of the caller whose call runs.
    caller: Arc<str>,
    events: Mutex<CallEventSink>,
    /// Report of the call about hosts that were refused to the upstream's program.
    sandbox_report: SandboxReport,
    route: UpstreamQuestionRoute,
    capabilities: QuestionSupport,
    /// Folders that toolgate sends as the answer to `roots/list`, instead of the caller's own
    /// folders.
    folders: OnceLock<Value>,
    questions_asked: AtomicU64,
    /// Kind of a question that the upstream asked and that the caller does not support.
    missing: Mutex<Option<QuestionKind>>,
    /// Ids of the page visits that the upstream requested in this call.
    visits: Mutex<BTreeSet<String>>,
}

/// The route by which an upstream's questions reach the caller.
enum UpstreamQuestionRoute {
    /// The caller answers questions while the call runs.
    Live(QuestionAsker),
    /// The task that runs the call receives the questions. The task may suspend the call until the
    /// caller answers.
    Driver(mpsc::Sender<UpstreamOpenQuestions>),
}

/// Questions of an upstream that wait for the caller's answers.
pub(crate) struct UpstreamOpenQuestions {
    pub(crate) questions: ClientQuestions,
    pub(crate) reply: oneshot::Sender<Result<ClientAnswers, ToolError>>,
}

impl CallMessageReceiver {
    /// Creates a receiver for a call whose caller answers while it runs.
    pub(crate) fn for_live_caller(ctx: &ToolContext) -> Arc<Self> {
        Self::new(ctx, UpstreamQuestionRoute::Live(ctx.asker.clone()))
    }

    /// Creates a receiver for a call whose questions go through the channel `open` to the task that
    /// runs the call.
    pub(crate) fn for_call_driver(
        ctx: &ToolContext,
        open: mpsc::Sender<UpstreamOpenQuestions>,
    ) -> Arc<Self> {
        Self::new(ctx, UpstreamQuestionRoute::Driver(open))
    }

    fn new(ctx: &ToolContext, route: UpstreamQuestionRoute) -> Arc<Self> {
        let caller = ctx.caller.name.clone();
        let events = ctx.events.clone().into();
        let sandbox_report = ctx.sandbox_report.clone();
        let capabilities = ctx.asker.supported();
        let questions_asked = AtomicU64::new(0);
        let missing = Mutex::default();
        let visits = Mutex::default();
        let folders = OnceLock::new();
        Arc::new(Self {
            caller,
            events,
            sandbox_report,
            route,
            capabilities,
            folders,
            questions_asked,
            missing,
            visits,
        })
    }

    /// Sets the folders that toolgate sends as the answer to `roots/list`, instead of the caller's
    /// own folders. `None` changes nothing.
    pub(crate) fn set_folders(&self, folders: Option<Value>) {
        if let Some(folders) = folders {
            let _ = self.folders.set(folders);
        }
    }

    /// Returns the kind of a question that the upstream asked and that the caller does not support,
    /// if there is one.
    pub(crate) fn missing_capability(&self) -> Option<QuestionKind> {
        *lock_mutex(&self.missing)
    }

    /// Returns true if the caller of the call supports questions of `kind`.
    pub(crate) fn supports(&self, kind: QuestionKind) -> bool {
        self.capabilities.supports(kind)
    }

    /// Asks the caller to visit the web pages `pages`, each given as the parameters of a URL
    /// elicitation.
    pub(crate) async fn ask_visits(&self, pages: &[&Value]) -> Result<ClientAnswers, ToolError> {
        let read = |page: &&Value| {
            let key = self.next_key(ELICITATION_CREATE);
            let question =
                parse_question(ELICITATION_CREATE, page, &key).and_then(
                    |question| match question {
                        ClientQuestion::Visit { .. } => Ok(question),
                        _ => Err("it has no URL".to_owned()),
                    },
                );
            let question = question.map_err(|why| {
                ToolError::failed(format!(
                    "the upstream asks the user to open a URL, but its request is invalid: \
                     {why}"
                ))
            })?;
            self.remember_visit(&question);
            Ok((key, question))
        };
        self.ask_caller(pages.iter().map(read).collect::<Result<_, ToolError>>()?).await
    }

    /// Returns a key for the next question, if the upstream's request has none.
    fn next_key(&self, method: &str) -> String {
        let at = self.questions_asked.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{at}", method.replace('/', "-"))
    }

    fn remember_visit(&self, question: &ClientQuestion) {
        if let ClientQuestion::Visit { id, .. } = question {
            lock_mutex(&self.visits).insert(id.clone());
        }
    }

    /// Returns true if the call must receive the event. An event about a page visit concerns the
    /// call only if the call requested this visit.
    fn concerns_call(&self, event: &CallEvent) -> bool {
        match event {
            CallEvent::VisitFinished { id } => lock_mutex(&self.visits).contains(id),
            _ => true,
        }
    }

    /// Sends all further events of the call to `events`.
    pub(crate) fn redirect_events(&self, events: CallEventSink) {
        *lock_mutex(&self.events) = events;
    }

    async fn ask_caller(&self, questions: ClientQuestions) -> Result<ClientAnswers, ToolError> {
        match &self.route {
            UpstreamQuestionRoute::Live(asker) => asker.ask(questions).await,
            UpstreamQuestionRoute::Driver(open) => {
                let (reply, answers) = oneshot::channel();
                let canceled = |_| ToolError::canceled();
                open.send(UpstreamOpenQuestions { questions, reply })
                    .await
                    .map_err(|_| ToolError::canceled())?;
                answers.await.map_err(canceled)?
            }
        }
    }
}

impl MessageReceiver for CallMessageReceiver {
    fn caller(&self) -> Option<Arc<str>> {
        Some(self.caller.clone())
    }

    fn unsupported_kind(&self, method: &str, params: &Value) -> Option<QuestionKind> {
        let kind = parse_question(method, params, "").ok()?.kind();
        let ours = kind == QuestionKind::Roots && self.folders.get().is_some();
        (!ours && !self.capabilities.supports(kind)).then_some(kind)
    }

    fn record_missing(&self, kind: QuestionKind) {
        *lock_mutex(&self.missing) = Some(kind);
    }

    fn record_refused_host(&self, refused: &UpstreamRefusedHost) {
        self.sandbox_report.add_refused_host(&refused.host, refused.summary());
    }

    fn notify(&self, method: &str, params: &Value) {
        let event =
            event_from_notification(method, params).filter(|event| self.concerns_call(event));
        let Some(event) = event else { return };
        let events = lock_mutex(&self.events).clone();
        events.send(event);
    }

    fn answer_request(self: Arc<Self>, method: String, params: Value) -> AnswerFuture {
        Box::pin(async move {
            if let Some(folders) = self.folders.get().filter(|_| method == "roots/list") {
                return Ok(folders.clone());
            }
            let named = params.get("_meta").and_then(|meta| meta.get(QUESTION_KEY)?.as_str());
            let key = named.map_or_else(|| self.next_key(&method), str::to_owned);
            let question = parse_question(&method, &params, &key);
            let question = question.map_err(|why| UpstreamRpcError::new(-32602, why))?;
            self.remember_visit(&question);
            let answers = self.ask_caller(ClientQuestions::from([(key.clone(), question)])).await;
            let answers = answers.map_err(|err| {
                if let ToolErrorKind::CannotAsk(kind) = err.fault {
                    self.record_missing(kind);
                }
                UpstreamRpcError::new(-32603, err.message)
            })?;
            let answer = answers
                .get(&key)
                .ok_or_else(|| UpstreamRpcError::new(-32603, "the client did not answer"))?;
            Ok(encode_answer(answer))
        })
    }
}

/// Converts an upstream's notification into an event of the call. `None` if the notification is
/// malformed or concerns no call.
pub(crate) fn event_from_notification(method: &str, params: &Value) -> Option<CallEvent> {
    match method {
        "notifications/progress" => Some(CallEvent::Progress {
            done: params.get("progress")?.as_f64()?,
            total: params.get("total").and_then(Value::as_f64),
            message: params.get("message").and_then(Value::as_str).map(str::to_owned),
        }),
        "notifications/message" => {
            let level = params.get("level")?;
            let level: LogLevel = serde_json::from_value(level.clone()).ok()?;
            let logger = params.get("logger").and_then(Value::as_str).map(str::to_owned);
            Some(CallEvent::Log { level, logger, data: params.get("data")?.clone() })
        }
        ELICITATION_COMPLETE => {
            Some(CallEvent::VisitFinished { id: params.get("elicitationId")?.as_str()?.to_owned() })
        }
        _ => None,
    }
}

/// Receiver that ignores an upstream's notifications and refuses all of its requests.
pub(crate) struct RefusingMessageReceiver;

impl MessageReceiver for RefusingMessageReceiver {}
