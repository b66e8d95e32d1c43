//! Runs calls to upstreams to their end. A call may have several rounds of questions, and may
//! continue over several requests of a client.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use toolgate_contract::{
    Caller, ClientQuestions, QuestionKind, QuestionSupport, ToolContext, ToolError, ToolErrorKind,
    ToolFuture, lock_mutex,
};
use toolgate_dialects::mcp::upstream::{encode_answer, parse_question};

use crate::connection::UpstreamConnection;
use crate::server_requests::{CallMessageReceiver, UpstreamOpenQuestions};
use crate::upstream::dedicated::DedicatedConnection;
use crate::upstream::{StatelessCall, UpstreamTaskGuard};

/// Maximum number of calls that may be suspended at once.
const SUSPENDED_MAX: usize = 256;
/// Longest time that a suspended call waits for its client.
const SUSPENDED_FOR: Duration = Duration::from_secs(600);
/// Maximum number of questions of an upstream that the caller gets together.
const BATCHED_QUESTIONS_MAX: usize = 16;
/// Time for which the server waits for further questions of the upstream, to send them together.
const BATCH_WINDOW: Duration = Duration::from_millis(20);
/// Maximum number of rounds of questions in a call. In each round, the upstream asks and the caller
/// answers.
const ROUNDS_MAX: usize = 32;

/// Calls that are suspended until their clients return with answers, for at most ten minutes.
#[derive(Default)]
pub(crate) struct SuspendedCalls(Arc<Mutex<SuspendedCallsByName>>);

/// Suspended calls, by the name with which a client resumes them.
type SuspendedCallsByName = HashMap<String, SuspendedCall>;

/// A running call that waits until its client returns with answers.
struct SuspendedCall {
    caller: Caller,
    since: Instant,
    call: RunningUpstreamCall,
    /// Guard of the timer that drops the call when its waiting time has expired.
    _expiry: AbortOnDropHandle<()>,
}

/// The first response to a call to an upstream, with the connection on which the call continues.
pub(crate) struct InitialCallResponse {
    /// The result of the call, or the task that the call became.
    pub(crate) response: Value,
    pub(crate) connection: Arc<UpstreamConnection>,
    /// The dedicated connection of the call, if it has one.
    pub(crate) dedicated: Option<DedicatedConnection>,
    /// Guard of the task that the call became. The guard cancels the task if no call waits for the
    /// task any longer.
    pub(crate) task: Option<UpstreamTaskGuard>,
}

impl InitialCallResponse {
    pub(crate) fn new(
        response: Value,
        connection: Arc<UpstreamConnection>,
        dedicated: Option<DedicatedConnection>,
    ) -> Self {
        let id = response.pointer("/task/taskId").or_else(|| match &response["resultType"] {
            Value::String(word) if word == "task" => response.get("taskId"),
            _ => None,
        });
        let id = id.and_then(Value::as_str).map(str::to_owned);
        let task = id.map(|id| UpstreamTaskGuard::new(&connection, id));
        Self { response, connection, dedicated, task }
    }
}

/// A call to an upstream that is still running.
pub(crate) struct RunningUpstreamCall {
    task: AbortOnDropTask<InitialCallResponse>,
    incoming: mpsc::Receiver<UpstreamOpenQuestions>,
    receiver: Arc<CallMessageReceiver>,
    /// Questions of the upstream that wait for the caller's answers.
    waiting: Vec<UpstreamOpenQuestions>,
}

/// A spawned task that is aborted on drop.
struct AbortOnDropTask<T>(JoinHandle<Result<T, ToolError>>);

impl<T> AbortOnDropTask<T> {
    /// Waits for the result of the spawned task.
    async fn wait(&mut self) -> Result<T, ToolError> {
        let done = (&mut self.0).await;
        done.map_err(|err| ToolError::with_cause("the call of the upstream was aborted", err))?
    }
}

impl<T> Drop for AbortOnDropTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SuspendedCalls {
    fn resume(&self, name: &str) -> Option<RunningUpstreamCall> {
        lock_mutex(&self.0).remove(name).map(|suspended| suspended.call)
    }

    /// Drops one suspended call, so that a call of `caller` can use its connection.
    ///
    /// Prefers the suspended call of `caller` that has waited longest. If `caller` has none and all
    /// callers share the connections (`is_shared`), drops a call of the caller with the most
    /// suspended calls.
    pub(crate) fn evict_one(&self, caller: &Caller, is_shared: bool) {
        let mut all = lock_mutex(&self.0);
        let mut counts = HashMap::<_, usize>::new();
        all.values().for_each(|call| *counts.entry(&call.caller).or_default() += 1);
        let order = |call: &SuspendedCall| {
            let is_own = call.caller == *caller;
            (!is_own, Reverse(counts[&call.caller]), call.since)
        };
        let candidates = all.iter().filter(|(_, call)| is_shared || call.caller == *caller);
        let first = candidates.min_by_key(|(_, call)| order(call));
        if let Some(name) = first.map(|(name, _)| name.clone()) {
            let evicted = all.remove(&name);
            drop(all);
            drop(evicted);
        }
    }

    /// Suspends a call of `caller`, and returns the name with which the client resumes it. Fails if
    /// too many calls are suspended.
    fn suspend(&self, caller: &Caller, running: RunningUpstreamCall) -> Result<String, ToolError> {
        let mut all = lock_mutex(&self.0);
        if all.len() >= SUSPENDED_MAX {
            let message = "too many calls are waiting for answers";
            return Err(ToolError::new(ToolErrorKind::Unavailable, message));
        }
        let mut name = [0; 16];
        getrandom::fill(&mut name)
            .map_err(|err| ToolError::with_cause("the call cannot be suspended", err))?;
        let name = blake3::hash(&name).to_hex().to_string();
        let calls = Arc::downgrade(&self.0);
        let expiring = name.clone();
        // A timer drops the call even if no other call arrives.
        let timer = toolgate_net::spawn_task(async move {
            sleep(SUSPENDED_FOR).await;
            let Some(calls) = calls.upgrade() else { return };
            let expired = lock_mutex(&calls).remove(&expiring);
            drop(expired);
        });
        let caller = caller.clone();
        let since = Instant::now();
        let call =
            SuspendedCall { caller, since, call: running, _expiry: AbortOnDropHandle::new(timer) };
        all.insert(name.clone(), call);
        Ok(name)
    }
}

/// The state of a call to an upstream when it ends or the time limit of the wait is reached.
pub(crate) enum UpstreamCallProgress {
    Done(InitialCallResponse),
    Running(RunningUpstreamCall),
    /// A call in the stateless protocol for whose last request the upstream has not sent an answer.
    Unanswered(Box<(StatelessCall, UnansweredStatelessRequest)>),
}

impl UpstreamCallProgress {
    /// Returns true if the call has its final result and did not become a task.
    pub(crate) fn has_result(&self) -> bool {
        match self {
            Self::Done(begun) => begun.task.is_none() && begun.response["resultType"] != "task",
            Self::Running(_) | Self::Unanswered(_) => false,
        }
    }
}

/// Runs a call to an upstream to its end. Questions of the upstream go to the caller.
///
/// If the caller answers in a later request, the call stays alive meanwhile, instead of starting
/// again.
pub(crate) async fn drive_to_end(
    suspended_calls: &SuspendedCalls,
    ctx: &ToolContext,
    begin: impl FnOnce(Arc<CallMessageReceiver>) -> ToolFuture<'static, InitialCallResponse>,
) -> Result<InitialCallResponse, ToolError> {
    if !ctx.asker.repeats_calls() || ctx.asker.supported() == QuestionSupport::default() {
        return begin(CallMessageReceiver::for_live_caller(ctx)).await;
    }
    drive_running(suspended_calls, ctx, resume_or_start(suspended_calls, ctx, begin)?).await
}

/// Runs a call to an upstream for at most `within`. Returns the call if it is then still running.
pub(crate) async fn drive_for(
    suspended_calls: &SuspendedCalls,
    ctx: &ToolContext,
    begin: impl FnOnce(Arc<CallMessageReceiver>) -> ToolFuture<'static, InitialCallResponse>,
    within: Duration,
) -> Result<UpstreamCallProgress, ToolError> {
    drive(suspended_calls, ctx, resume_or_start(suspended_calls, ctx, begin)?, within).await
}

/// Waits for the end of a running call to an upstream, and asks the caller the upstream's
/// questions.
pub(crate) async fn drive_running(
    suspended_calls: &SuspendedCalls,
    ctx: &ToolContext,
    mut running: RunningUpstreamCall,
) -> Result<InitialCallResponse, ToolError> {
    running.receiver.redirect_events(ctx.events.clone());
    loop {
        match drive(suspended_calls, ctx, running, Duration::from_secs(3600)).await? {
            UpstreamCallProgress::Done(begun) => return Ok(begun),
            UpstreamCallProgress::Running(more) => running = more,
            UpstreamCallProgress::Unanswered(_) => {
                unreachable!("only a call in rounds is unanswered")
            }
        }
    }
}

/// Resumes the call that `ctx` refers to, or starts a new one.
fn resume_or_start(
    suspended_calls: &SuspendedCalls,
    ctx: &ToolContext,
    begin: impl FnOnce(Arc<CallMessageReceiver>) -> ToolFuture<'static, InitialCallResponse>,
) -> Result<RunningUpstreamCall, ToolError> {
    let Some(name) = ctx.asker.stored_note().filter(|_| ctx.asker.repeats_calls()) else {
        let (open, asked) = mpsc::channel(BATCHED_QUESTIONS_MAX);
        let receiver = CallMessageReceiver::for_call_driver(ctx, open);
        let task = AbortOnDropTask(toolgate_net::spawn_task(begin(receiver.clone())));
        return Ok(RunningUpstreamCall { task, incoming: asked, receiver, waiting: Vec::new() });
    };
    let running = suspended_calls.resume(&name).ok_or_else(|| {
        let message = "the suspended call no longer exists: it waited too long, or it was made on \
                       another server; check what it did, then call again without `requestState`";
        ToolError::new(ToolErrorKind::Unavailable, message)
    })?;
    running.receiver.redirect_events(ctx.events.clone());
    Ok(running)
}

async fn drive(
    suspended_calls: &SuspendedCalls,
    ctx: &ToolContext,
    mut running: RunningUpstreamCall,
    within: Duration,
) -> Result<UpstreamCallProgress, ToolError> {
    loop {
        if !running.waiting.is_empty() {
            let all = running.waiting.iter().flat_map(|open| open.questions.clone());
            let asked: ClientQuestions = all.collect();
            match ctx.asker.ask(asked).await {
                Err(why) if matches!(why.fault, ToolErrorKind::Asks(_)) => {
                    ctx.asker.set_note(Some(suspended_calls.suspend(&ctx.caller, running)?));
                    return Err(why);
                }
                // The receiver is gone if the call has ended meanwhile.
                answers => {
                    running
                        .waiting
                        .drain(..)
                        .for_each(|open| drop(open.reply.send(answers.clone())));
                }
            }
        }
        tokio::select! {
            biased;
            done = running.task.wait() => return done.map(UpstreamCallProgress::Done),
            Some(open) = running.incoming.recv() => {
                running.waiting.push(open);
                // Questions that arrive within a few milliseconds are sent to the caller together.
                while running.waiting.len() < BATCHED_QUESTIONS_MAX
                    && let Ok(Some(open)) = timeout(BATCH_WINDOW, running.incoming.recv()).await
                {
                    running.waiting.push(open);
                }
            }
            () = sleep(within) => return Ok(UpstreamCallProgress::Running(running)),
        }
    }
}

/// State of a call in the stateless protocol between two rounds of questions. The client gets the
/// state in `requestState`, and sends it back with the answers.
#[derive(Serialize, Deserialize)]
struct StatelessQuestionState {
    asked: ClientQuestions,
    #[serde(default)]
    state: Option<String>,
}

/// A request of a call in the stateless protocol that has no answer yet.
pub(crate) struct UnansweredStatelessRequest {
    params: Map<String, Value>,
    answer: AbortOnDropTask<Value>,
}

/// The first step of the code that runs a call in the stateless protocol: send a request, or wait
/// for the answer to an earlier request.
pub(crate) enum StatelessCallStart {
    Start(Map<String, Value>),
    Unanswered(UnansweredStatelessRequest),
}

/// The outcome of running a call in the stateless protocol for some time.
pub(crate) enum StatelessCallOutcome {
    Done(Value),
    Unanswered(UnansweredStatelessRequest),
}

/// Runs a call in the stateless protocol. Each of its requests may end with questions
/// (`input_required`), and is then repeated with the answers.
///
/// With `within`, returns early if an answer takes longer. If `folders` is set, it answers the
/// upstream's requests for roots.
pub(crate) async fn drive_rounds<F>(
    ctx: &ToolContext,
    from: StatelessCallStart,
    within: Option<Duration>,
    folders: Option<&Value>,
    mut send: impl FnMut(Map<String, Value>) -> F,
) -> Result<StatelessCallOutcome, ToolError>
where
    F: Future<Output = Result<Value, ToolError>> + Send + 'static,
{
    let mut before = BTreeSet::new();
    let (mut params, mut sent) = match from {
        StatelessCallStart::Unanswered(UnansweredStatelessRequest { params, answer }) => {
            (params, Some(answer))
        }
        StatelessCallStart::Start(mut params) => {
            let noted = ctx.asker.stored_note();
            let noted =
                noted.and_then(|note| serde_json::from_str::<StatelessQuestionState>(&note).ok());
            if let Some(round) = noted {
                before.extend(round.asked.keys().cloned());
                answer_round(ctx, round, folders, &mut params).await?;
            }
            (params, None)
        }
    };
    for at in 0..ROUNDS_MAX {
        let result = match (sent.take(), within) {
            (Some(mut answer), _) => answer.wait().await?,
            (None, None) => send(params.clone()).await?,
            (None, Some(within)) => {
                let mut answer = AbortOnDropTask(toolgate_net::spawn_task(send(params.clone())));
                match timeout(within, answer.wait()).await {
                    Ok(result) => result?,
                    Err(_) => {
                        return Ok(StatelessCallOutcome::Unanswered(UnansweredStatelessRequest {
                            params,
                            answer,
                        }));
                    }
                }
            }
        };
        if result.get("resultType").and_then(Value::as_str) != Some("input_required") {
            return Ok(StatelessCallOutcome::Done(result));
        }
        let round = parse_round(&result)?;
        if round.asked.is_empty() {
            // A round without questions asks to be called again later.
            sleep(Duration::from_millis(50 << at.min(6))).await;
        }
        // An earlier answer under the same key belongs to an earlier question.
        ctx.asker.remove_answers(round.asked.keys().filter(|key| before.contains(*key)));
        before.extend(round.asked.keys().cloned());
        answer_round(ctx, round, folders, &mut params).await?;
    }
    let message = format!("it asked questions more than {ROUNDS_MAX} times");
    Err(ToolError::new(ToolErrorKind::Failed, message))
}

/// Asks the caller the questions of one round, and adds the answers to the `params` of the call's
/// next request. Fails if the caller cannot answer.
async fn answer_round(
    ctx: &ToolContext,
    round: StatelessQuestionState,
    folders: Option<&Value>,
    params: &mut Map<String, Value>,
) -> Result<(), ToolError> {
    let note = serde_json::to_string(&round);
    let note =
        note.map_err(|err| ToolError::with_cause("the state of the call cannot be saved", err))?;
    let (roots, asked): (ClientQuestions, ClientQuestions) = round
        .asked
        .into_iter()
        .partition(|(_, question)| folders.is_some() && question.kind() == QuestionKind::Roots);
    let mut answers: Map<String, Value> =
        roots.into_keys().map(|key| (key, folders.cloned().unwrap_or_default())).collect();
    if !asked.is_empty() || answers.is_empty() {
        ctx.asker.set_note(Some(note));
        let given = ctx.asker.ask(asked).await?;
        answers.extend(given.iter().map(|(key, answer)| (key.clone(), encode_answer(answer))));
    }
    params.insert("inputResponses".into(), Value::Object(answers));
    match round.state {
        Some(state) => params.insert("requestState".into(), json!(state)),
        None => params.remove("requestState"),
    };
    Ok(())
}

/// Parses the questions in a result or a task of the upstream.
pub(crate) fn parse_questions(requests: Option<&Value>) -> Result<ClientQuestions, ToolError> {
    let requests = requests.and_then(Value::as_object);
    let read = |(key, request): (&String, &Value)| {
        let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
        let params = request.get("params").unwrap_or(&Value::Null);
        let question = parse_question(method, params, key);
        let question = question.map_err(|why| {
            let message = format!("its question `{key}` is invalid: {why}");
            ToolError::new(ToolErrorKind::Failed, message)
        })?;
        Ok((key.clone(), question))
    };
    requests.into_iter().flatten().map(read).collect()
}

fn parse_round(result: &Value) -> Result<StatelessQuestionState, ToolError> {
    let state = result.get("requestState").and_then(Value::as_str).map(str::to_owned);
    Ok(StatelessQuestionState { asked: parse_questions(result.get("inputRequests"))?, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a call that never ends, and a counted reference that the call holds while it runs.
    fn running() -> (RunningUpstreamCall, Arc<()>) {
        let alive = Arc::new(());
        let held = alive.clone();
        let task = AbortOnDropTask(tokio::spawn(async move {
            let _held = held;
            std::future::pending().await
        }));
        let (sender, open) = mpsc::channel(1);
        let ctx = ToolContext::detached(Caller::local(), Instant::now());
        let receiver = CallMessageReceiver::for_call_driver(&ctx, sender);
        (RunningUpstreamCall { task, incoming: open, receiver, waiting: Vec::new() }, alive)
    }

    async fn is_dropped(alive: &Arc<()>) -> bool {
        tokio::task::yield_now().await;
        Arc::strong_count(alive) == 1
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_call_is_dropped_after_ten_minutes() {
        let suspended_calls = SuspendedCalls::default();
        let (running, alive) = running();
        suspended_calls.suspend(&Caller::with_key("ann"), running).expect("there is room");
        tokio::task::yield_now().await;
        assert!(!is_dropped(&alive).await);
        sleep(SUSPENDED_FOR + Duration::from_secs(1)).await;
        assert!(is_dropped(&alive).await);
    }

    #[tokio::test]
    async fn an_eviction_drops_the_callers_own_call_or_one_of_the_caller_with_most() {
        let suspended_calls = SuspendedCalls::default();
        let mut calls = Vec::new();
        for name in ["ann", "bob", "cat", "bob"] {
            let (running, alive) = running();
            suspended_calls.suspend(&Caller::with_key(name), running).expect("there is room");
            calls.push(alive);
            tokio::task::yield_now().await;
        }
        suspended_calls.evict_one(&Caller::with_key("dan"), false);
        for alive in &calls {
            assert!(!is_dropped(alive).await, "an unshared connection was evicted");
        }
        for (name, gone) in [("cat", 2), ("cat", 1), ("bob", 3), ("bob", 0)] {
            suspended_calls.evict_one(&Caller::with_key(name), true);
            assert!(is_dropped(&calls[gone]).await, "{name}");
        }
    }

    fn ctx() -> ToolContext {
        ToolContext::detached(Caller::with_key("ann"), Instant::now() + Duration::from_secs(5))
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_round_continues_and_is_not_sent_again() {
        let ctx = ctx();
        let mut times = 0;
        let slow = |_| {
            times += 1;
            async {
                sleep(Duration::from_secs(600)).await;
                Ok(json!({ "content": [] }))
            }
        };
        let start = StatelessCallStart::Start(Map::new());
        let within = Some(Duration::from_millis(150));
        let begun = drive_rounds(&ctx, start, within, None, slow).await.expect("it is sent");
        let StatelessCallOutcome::Unanswered(sent) = begun else { panic!("it has its answer") };
        let never = |_| async { Err(ToolError::failed("it was sent before")) };
        let ended = drive_rounds(&ctx, StatelessCallStart::Unanswered(sent), None, None, never)
            .await
            .expect("an answer");
        assert!(
            matches!(ended, StatelessCallOutcome::Done(result) if result == json!({ "content": [] }))
        );
        assert_eq!(times, 1);
    }
}
