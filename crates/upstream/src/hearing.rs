//! What is heard while a call of an upstream runs, and how whoever called is asked.

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

/// How a person is asked, and that one has been where they were sent.
const ELICIT: &str = "elicitation/create";
pub(crate) const VISITED: &str = "notifications/elicitation/complete";

/// Hears for one call.
pub(crate) struct Hearing {
    /// Whose call it is.
    caller: Arc<str>,
    events: Mutex<EventSink>,
    way: Way,
    can: Askable,
    /// The folders that are told, whatever those of whoever called are.
    folders: OnceLock<Value>,
    asked: AtomicU64,
    /// What was asked that whoever called cannot be.
    lacks: Mutex<Option<Kind>>,
    /// The visits that were asked for.
    visits: Mutex<BTreeSet<String>>,
}

enum Way {
    /// Whoever called answers while the call runs.
    Now(Asker),
    /// The questions go to whoever carries the call on.
    Handed(mpsc::Sender<Open>),
}

/// Questions that wait for their answers.
pub(crate) struct Open {
    pub(crate) questions: Questions,
    pub(crate) reply: oneshot::Sender<Result<Given, ToolError>>,
}

impl Hearing {
    /// For a call whose caller answers while it runs, if at all.
    pub(crate) fn now(ctx: &Ctx) -> Arc<Self> {
        Self::by(ctx, Way::Now(ctx.asker.clone()))
    }

    /// For a call whose questions are handed to whoever takes them from the other end.
    pub(crate) fn handed(ctx: &Ctx, open: mpsc::Sender<Open>) -> Arc<Self> {
        Self::by(ctx, Way::Handed(open))
    }

    fn by(ctx: &Ctx, way: Way) -> Arc<Self> {
        let (caller, events) = (ctx.caller.name.clone(), ctx.events.clone().into());
        let (can, asked) = (ctx.asker.can(), AtomicU64::new(0));
        let (lacks, visits, folders) = (Mutex::default(), Mutex::default(), OnceLock::new());
        Arc::new(Self { caller, events, way, can, folders, asked, lacks, visits })
    }

    /// Has `folders`, if there are any, told in place of whoever called.
    pub(crate) fn has_folders(&self, folders: Option<Value>) {
        if let Some(folders) = folders {
            let _ = self.folders.set(folders);
        }
    }

    /// What was asked that whoever called cannot be, if anything was.
    pub(crate) fn lacked(&self) -> Option<Kind> {
        *self.lacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whoever called can be asked questions of `kind`.
    pub(crate) fn can(&self, kind: Kind) -> bool {
        self.can.has(kind)
    }

    /// Sends whoever called to `pages`, each as a server names it that asks for a visit.
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

    /// What the next question is known by where it has no name of its own.
    fn key(&self, method: &str) -> String {
        let at = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        format!("{}-{at}", method.replace('/', "-"))
    }

    fn may_visit(&self, question: &Question) {
        if let Question::Visit { id, .. } = question {
            self.visits.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        }
    }

    /// Whether it was sent on the visit that `event` says is done, if it says that.
    fn is_of_it(&self, event: &Event) -> bool {
        match event {
            Event::Visited { id } => {
                self.visits.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
            }
            _ => true,
        }
    }

    /// Tells what happens to `events` from now on.
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

/// What is said, as an event of a call.
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

/// Hears nothing: for requests that nobody follows.
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
