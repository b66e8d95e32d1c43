//! Handles notifications and requests that an upstream sends during a call, and asks the caller its
//! questions.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use toolgate_contract::{
    Askable, Asker, BoxFuture, Ctx, Event, EventSink, Fault, Given, Kind, Level, Question,
    Questions, ToolError,
};
use toolgate_dialects::mcp::upstream::{QUESTION_KEY, answer, question};

use crate::message::RpcError;
use crate::wire::Hears;

/// Method of a request that asks the caller for input.
const ELICIT: &str = "elicitation/create";
pub(crate) const VISITED: &str = "notifications/elicitation/complete";

/// Receiver of an upstream's notifications and requests during one call.
pub(crate) struct Hearing {
    /// Name of the caller.
    caller: Arc<str>,
    events: Mutex<EventSink>,
    way: Way,
    can: Askable,
    /// Folders that answer `roots/list` in place of the caller's own.
    folders: OnceLock<Value>,
    asked: AtomicU64,
    /// Kind of a question that was asked but that the caller does not support.
    lacks: Mutex<Option<Kind>>,
    /// Ids of the page visits that were requested.
    visits: Mutex<BTreeSet<String>>,
}

enum Way {
    /// The caller answers while the call runs.
    Now(Asker),
    /// The questions go to the driver of the call.
    Handed(mpsc::Sender<Open>),
}

/// Questions that wait for their answers.
pub(crate) struct Open {
    pub(crate) questions: Questions,
    pub(crate) reply: oneshot::Sender<Result<Given, ToolError>>,
}

impl Hearing {
    /// Creates a receiver for a call whose caller answers while it runs.
    pub(crate) fn now(ctx: &Ctx) -> Arc<Self> {
        Self::by(ctx, Way::Now(ctx.asker.clone()))
    }

    /// Creates a receiver for a call whose questions are taken from the other end of `open`.
    pub(crate) fn handed(ctx: &Ctx, open: mpsc::Sender<Open>) -> Arc<Self> {
        Self::by(ctx, Way::Handed(open))
    }

    fn by(ctx: &Ctx, way: Way) -> Arc<Self> {
        let caller = ctx.caller.name.clone();
        let events = ctx.events.clone().into();
        let can = ctx.asker.can();
        let asked = AtomicU64::new(0);
        let lacks = Mutex::default();
        let visits = Mutex::default();
        let folders = OnceLock::new();
        Arc::new(Self { caller, events, way, can, folders, asked, lacks, visits })
    }

    /// Sets the folders that answer `roots/list` in place of the caller's, if `folders` has any.
    pub(crate) fn has_folders(&self, folders: Option<Value>) {
        if let Some(folders) = folders {
            let _ = self.folders.set(folders);
        }
    }

    /// Returns the kind of a question that the caller does not support, if one was asked.
    pub(crate) fn lacked(&self) -> Option<Kind> {
        *self.lacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the caller supports questions of `kind`.
    pub(crate) fn can(&self, kind: Kind) -> bool {
        self.can.has(kind)
    }

    /// Asks the caller to visit `pages`, each given as the parameters of a URL elicitation.
    pub(crate) async fn visits(&self, pages: &[&Value]) -> Result<Given, ToolError> {
        let read = |page: &&Value| {
            let key = self.key(ELICIT);
            let question = question(ELICIT, page, &key).and_then(|question| match question {
                Question::Visit { .. } => Ok(question),
                _ => Err("it names no page".to_owned()),
            });
            let question = question.map_err(|why| {
                ToolError::failed(format!("it wants a page to be visited in no known way: {why}"))
            })?;
            self.may_visit(&question);
            Ok((key, question))
        };
        self.given(pages.iter().map(read).collect::<Result<_, ToolError>>()?).await
    }

    /// Returns a key for the next question that has none of its own.
    fn key(&self, method: &str) -> String {
        let at = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{at}", method.replace('/', "-"))
    }

    fn may_visit(&self, question: &Question) {
        if let Question::Visit { id, .. } = question {
            self.visits.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        }
    }

    /// Returns false for an event that completes a visit this call did not request.
    fn is_of_it(&self, event: &Event) -> bool {
        match event {
            Event::Visited { id } => {
                self.visits.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
            }
            _ => true,
        }
    }

    /// Sends events to `events` from now on.
    pub(crate) fn tells(&self, events: EventSink) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner) = events;
    }

    async fn given(&self, questions: Questions) -> Result<Given, ToolError> {
        match &self.way {
            Way::Now(asker) => asker.ask(questions).await,
            Way::Handed(open) => {
                let (reply, given) = oneshot::channel();
                let gone = |_| ToolError::canceled();
                open.send(Open { questions, reply }).await.map_err(|_| ToolError::canceled())?;
                given.await.map_err(gone)?
            }
        }
    }
}

impl Hears for Hearing {
    fn caller(&self) -> Option<Arc<str>> {
        Some(self.caller.clone())
    }

    fn cannot(&self, method: &str, params: &Value) -> Option<Kind> {
        let kind = question(method, params, "").ok()?.kind();
        let ours = kind == Kind::Roots && self.folders.get().is_some();
        (!ours && !self.can.has(kind)).then_some(kind)
    }

    fn lacks(&self, kind: Kind) {
        *self.lacks.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    fn said(&self, method: &str, params: &Value) {
        let event = event(method, params).filter(|event| self.is_of_it(event));
        let Some(event) = event else { return };
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.send(event);
    }

    fn asked(
        self: Arc<Self>,
        method: String,
        params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async move {
            if let Some(folders) = self.folders.get().filter(|_| method == "roots/list") {
                return Ok(folders.clone());
            }
            let named = params.get("_meta").and_then(|meta| meta.get(QUESTION_KEY)?.as_str());
            let key = named.map_or_else(|| self.key(&method), str::to_owned);
            let question = question(&method, &params, &key);
            let question = question.map_err(|why| RpcError::new(-32602, why))?;
            self.may_visit(&question);
            let given = self.given(Questions::from([(key.clone(), question)])).await;
            let given = given.map_err(|err| {
                if let Fault::CannotAsk(kind) = err.fault {
                    self.lacks(kind);
                }
                RpcError::new(-32603, err.message)
            })?;
            let told = given.get(&key).ok_or_else(|| RpcError::new(-32603, "nobody answered"))?;
            Ok(answer(told))
        })
    }
}

/// Converts a notification into an event of the call.
pub(crate) fn event(method: &str, params: &Value) -> Option<Event> {
    match method {
        "notifications/progress" => Some(Event::Progress {
            done: params.get("progress")?.as_f64()?,
            total: params.get("total").and_then(Value::as_f64),
            message: params.get("message").and_then(Value::as_str).map(str::to_owned),
        }),
        "notifications/message" => {
            let level = params.get("level")?;
            let level: Level = serde_json::from_value(level.clone()).ok()?;
            let logger = params.get("logger").and_then(Value::as_str).map(str::to_owned);
            Some(Event::Log { level, logger, data: params.get("data")?.clone() })
        }
        VISITED => Some(Event::Visited { id: params.get("elicitationId")?.as_str()?.to_owned() }),
        _ => None,
    }
}

/// Receiver that ignores notifications and refuses every request.
pub(crate) struct Deaf;

impl Hears for Deaf {
    fn said(&self, _method: &str, _params: &Value) {}

    fn asked(
        self: Arc<Self>,
        method: String,
        _params: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async move {
            Err(RpcError::new(-32601, format!("nobody can be asked `{method}` here")))
        })
    }
}
