//! Drives calls to upstreams to their ends, over rounds of questions and over several requests of
//! one client.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use toolgate_contract::{Askable, BoxFuture, Caller, Ctx, Fault, Kind, Questions, ToolError};
use toolgate_dialects::mcp::upstream::{answer, question};

use crate::hearing::{Hearing, Open};
use crate::lanes::Lane;
use crate::link::Link;
use crate::upstream::{EndsTask, Rounds};

/// Most calls that may be suspended at once.
const PARKED_MAX: usize = 256;
/// Longest time that a suspended call waits for its client.
const PARKED_FOR: Duration = Duration::from_secs(600);
/// Most questions that are asked together.
const TOGETHER_MAX: usize = 16;
const TOGETHER: Duration = Duration::from_millis(20);
/// Most rounds of questions per call.
const ROUNDS_MAX: usize = 32;

/// Calls that are suspended until their clients return with answers, for at most ten minutes.
#[derive(Default)]
pub(crate) struct Parking(Arc<Mutex<Parked>>);

/// Suspended calls by the name that resumes them.
type Parked = HashMap<String, Waits>;

/// A suspended call.
struct Waits {
    whose: Caller,
    since: Instant,
    going: Going,
    /// Timer that drops the call when its time is over.
    _over: AbortOnDrop,
}

/// The first response to a call, with the connection that the call continues on.
pub(crate) struct Begun {
    /// The result, or the task that the call became.
    pub(crate) first: Value,
    pub(crate) link: Arc<Link>,
    /// The dedicated connection, if the call has one.
    pub(crate) lane: Option<Lane>,
    /// The task that the call became. It is cancelled if nobody waits for it.
    pub(crate) task: Option<EndsTask>,
}

impl Begun {
    pub(crate) fn of(first: Value, link: Arc<Link>, lane: Option<Lane>) -> Self {
        let id = first.pointer("/task/taskId").or_else(|| match &first["resultType"] {
            Value::String(word) if word == "task" => first.get("taskId"),
            _ => None,
        });
        let id = id.and_then(Value::as_str).map(str::to_owned);
        let task = id.map(|id| EndsTask::of(&link, id));
        Self { first, link, lane, task }
    }
}

/// A call that is still running.
pub(crate) struct Going {
    task: Task<Begun>,
    open: mpsc::Receiver<Open>,
    hearing: Arc<Hearing>,
    /// Questions that wait for the caller's answers.
    waits: Vec<Open>,
}

/// A spawned task that is aborted on drop.
struct Task<T>(JoinHandle<Result<T, ToolError>>);

impl<T> Task<T> {
    /// Waits for the task's result.
    async fn done(&mut self) -> Result<T, ToolError> {
        let done = (&mut self.0).await;
        done.map_err(|err| ToolError::because("the call broke off", err))?
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Handle of a task that is aborted on drop.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Parking {
    fn all(&self) -> MutexGuard<'_, Parked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, name: &str) -> Option<Going> {
        self.all().remove(name).map(|waits| waits.going)
    }

    /// Drops one suspended call to make room for a call of `caller`.
    ///
    /// Prefers the caller's own call that has waited longest. If the caller has none and the
    /// connections are shared (`is_shared`), drops a call of the caller who has most.
    pub(crate) fn give_one_up(&self, caller: &Caller, is_shared: bool) {
        let mut all = self.all();
        let mut counts = HashMap::<_, usize>::new();
        all.values().for_each(|waits| *counts.entry(&waits.whose).or_default() += 1);
        let order = |waits: &Waits| {
            let is_own = waits.whose == *caller;
            (!is_own, Reverse(counts[&waits.whose]), waits.since)
        };
        let all_of_use = all.iter().filter(|(_, waits)| is_shared || waits.whose == *caller);
        let first = all_of_use.min_by_key(|(_, waits)| order(waits));
        if let Some(name) = first.map(|(name, _)| name.clone()) {
            let given_up = all.remove(&name);
            drop(all);
            drop(given_up);
        }
    }

    /// Suspends a call of `whose` and returns the name that resumes it.
    fn put(&self, whose: &Caller, going: Going) -> Result<String, ToolError> {
        let mut all = self.all();
        if all.len() >= PARKED_MAX {
            let message = "too many calls wait for answers already";
            return Err(ToolError::new(Fault::Unavailable, message));
        }
        let mut name = [0; 16];
        getrandom::fill(&mut name)
            .map_err(|err| ToolError::because("a call cannot be named", err))?;
        let name = blake3::hash(&name).to_hex().to_string();
        let parked = Arc::downgrade(&self.0);
        let over = name.clone();
        // A timer drops the call even if no other call arrives.
        let over = tokio::spawn(async move {
            sleep(PARKED_FOR).await;
            let Some(parked) = parked.upgrade() else { return };
            let given_up = parked.lock().unwrap_or_else(PoisonError::into_inner).remove(&over);
            drop(given_up);
        });
        let whose = whose.clone();
        let since = Instant::now();
        let waits = Waits { whose, since, going, _over: AbortOnDrop(over.abort_handle()) };
        all.insert(name.clone(), waits);
        Ok(name)
    }
}

/// The state of a call when the time for it is over.
pub(crate) enum Driven {
    Done(Begun),
    Going(Going),
    /// A call in rounds whose last request has no answer yet.
    Sent(Box<(Rounds, Sent)>),
}

impl Driven {
    /// Returns true if the call has its final result and did not become a task.
    pub(crate) fn has_result(&self) -> bool {
        match self {
            Self::Done(begun) => begun.task.is_none() && begun.first["resultType"] != "task",
            Self::Going(_) | Self::Sent(_) => false,
        }
    }
}

/// Drives a call to an upstream that asks questions while it runs, until it ends.
///
/// If the caller answers with another request, the call keeps running meanwhile and is not started
/// again.
pub(crate) async fn in_one(
    parking: &Parking,
    ctx: &Ctx,
    begin: impl FnOnce(Arc<Hearing>) -> BoxFuture<'static, Result<Begun, ToolError>>,
) -> Result<Begun, ToolError> {
    if !ctx.asker.calls_again() || ctx.asker.can() == Askable::default() {
        return begin(Hearing::now(ctx)).await;
    }
    go_on(parking, ctx, going(parking, ctx, begin)?).await
}

/// Drives a call for at most `within` and returns the call if it is still running then.
pub(crate) async fn in_time(
    parking: &Parking,
    ctx: &Ctx,
    begin: impl FnOnce(Arc<Hearing>) -> BoxFuture<'static, Result<Begun, ToolError>>,
    within: Duration,
) -> Result<Driven, ToolError> {
    drive(parking, ctx, going(parking, ctx, begin)?, within).await
}

/// Drives a running call until it ends.
pub(crate) async fn go_on(
    parking: &Parking,
    ctx: &Ctx,
    mut going: Going,
) -> Result<Begun, ToolError> {
    going.hearing.tells(ctx.events.clone());
    loop {
        match drive(parking, ctx, going, Duration::from_secs(3600)).await? {
            Driven::Done(begun) => return Ok(begun),
            Driven::Going(more) => going = more,
            Driven::Sent(_) => unreachable!("what is driven asks while it runs"),
        }
    }
}

/// Resumes the call that `ctx` refers to, or starts a new one.
fn going(
    parking: &Parking,
    ctx: &Ctx,
    begin: impl FnOnce(Arc<Hearing>) -> BoxFuture<'static, Result<Begun, ToolError>>,
) -> Result<Going, ToolError> {
    let Some(name) = ctx.asker.noted().filter(|_| ctx.asker.calls_again()) else {
        let (open, asked) = mpsc::channel(TOGETHER_MAX);
        let hearing = Hearing::handed(ctx, open);
        let task = Task(tokio::spawn(begin(hearing.clone())));
        return Ok(Going { task, open: asked, hearing, waits: Vec::new() });
    };
    let going = parking.take(&name).ok_or_else(|| {
        let message = "the call that asked is not here any more: it waited for too long, or it was \
                       made at another server; see what it did, then make it again without \
                       `requestState`";
        ToolError::new(Fault::Unavailable, message)
    })?;
    going.hearing.tells(ctx.events.clone());
    Ok(going)
}

async fn drive(
    parking: &Parking,
    ctx: &Ctx,
    mut going: Going,
    within: Duration,
) -> Result<Driven, ToolError> {
    loop {
        if !going.waits.is_empty() {
            let all = going.waits.iter().flat_map(|open| open.questions.clone());
            let asked: Questions = all.collect();
            match ctx.asker.ask(asked).await {
                Err(why) if matches!(why.fault, Fault::Asks(_)) => {
                    ctx.asker.note(Some(parking.put(&ctx.caller, going)?));
                    return Err(why);
                }
                // The receiver is gone if the call has ended meanwhile.
                told => going.waits.drain(..).for_each(|open| drop(open.reply.send(told.clone()))),
            }
        }
        tokio::select! {
            biased;
            done = going.task.done() => return done.map(Driven::Done),
            Some(open) = going.open.recv() => {
                going.waits.push(open);
                // Questions that arrive within a few milliseconds are sent to the caller together.
                while going.waits.len() < TOGETHER_MAX
                    && let Ok(Some(open)) = timeout(TOGETHER, going.open.recv()).await
                {
                    going.waits.push(open);
                }
            }
            () = sleep(within) => return Ok(Driven::Going(going)),
        }
    }
}

/// State of a call between two rounds. The client carries it in `requestState`.
#[derive(Serialize, Deserialize)]
struct Round {
    asked: Questions,
    #[serde(default)]
    state: Option<String>,
}

/// A request of a call in rounds that has no answer yet.
pub(crate) struct Sent {
    params: Map<String, Value>,
    answer: Task<Value>,
}

/// The point at which a call in rounds starts or continues.
pub(crate) enum Whence {
    Start(Map<String, Value>),
    Sent(Sent),
}

/// The outcome of a call in rounds.
pub(crate) enum Rounded {
    Done(Value),
    Sent(Sent),
}

/// Drives a call that ends with questions and is repeated with the answers (`input_required`).
///
/// With `within`, returns early when an answer takes longer than that. If `folders` is set, they
/// answer the upstream's questions for roots.
pub(crate) async fn in_rounds<F>(
    ctx: &Ctx,
    from: Whence,
    within: Option<Duration>,
    folders: Option<&Value>,
    mut send: impl FnMut(Map<String, Value>) -> F,
) -> Result<Rounded, ToolError>
where
    F: Future<Output = Result<Value, ToolError>> + Send + 'static,
{
    let mut before = BTreeSet::new();
    let (mut params, mut sent) = match from {
        Whence::Sent(Sent { params, answer }) => (params, Some(answer)),
        Whence::Start(mut params) => {
            let noted = ctx.asker.noted();
            let noted = noted.and_then(|note| serde_json::from_str::<Round>(&note).ok());
            if let Some(round) = noted {
                before.extend(round.asked.keys().cloned());
                answered(ctx, round, folders, &mut params).await?;
            }
            (params, None)
        }
    };
    for at in 0..ROUNDS_MAX {
        let result = match (sent.take(), within) {
            (Some(mut answer), _) => answer.done().await?,
            (None, None) => send(params.clone()).await?,
            (None, Some(within)) => {
                let mut answer = Task(tokio::spawn(send(params.clone())));
                match timeout(within, answer.done()).await {
                    Ok(result) => result?,
                    Err(_) => return Ok(Rounded::Sent(Sent { params, answer })),
                }
            }
        };
        if result.get("resultType").and_then(Value::as_str) != Some("input_required") {
            return Ok(Rounded::Done(result));
        }
        let round = asked(&result)?;
        if round.asked.is_empty() {
            // A round without questions asks to be called again later.
            sleep(Duration::from_millis(50 << at.min(6))).await;
        }
        // An earlier answer under the same key belongs to an earlier question.
        ctx.asker.forget(round.asked.keys().filter(|key| before.contains(*key)));
        before.extend(round.asked.keys().cloned());
        answered(ctx, round, folders, &mut params).await?;
    }
    let message = format!("it asks more than {ROUNDS_MAX} times");
    Err(ToolError::new(Fault::Failed, message))
}

/// Asks the caller the questions of a round and adds the answers to `params`.
async fn answered(
    ctx: &Ctx,
    round: Round,
    folders: Option<&Value>,
    params: &mut Map<String, Value>,
) -> Result<(), ToolError> {
    let note = serde_json::to_string(&round);
    let note = note.map_err(|err| ToolError::because("a round cannot be remembered", err))?;
    let (ours, asked): (Questions, Questions) = round
        .asked
        .into_iter()
        .partition(|(_, question)| folders.is_some() && question.kind() == Kind::Roots);
    let mut answers: Map<String, Value> =
        ours.into_keys().map(|key| (key, folders.cloned().unwrap_or_default())).collect();
    if !asked.is_empty() || answers.is_empty() {
        ctx.asker.note(Some(note));
        let given = ctx.asker.ask(asked).await?;
        answers.extend(given.iter().map(|(key, told)| (key.clone(), answer(told))));
    }
    params.insert("inputResponses".into(), Value::Object(answers));
    match round.state {
        Some(state) => params.insert("requestState".into(), json!(state)),
        None => params.remove("requestState"),
    };
    Ok(())
}

/// Parses the questions of a result or a task.
pub(crate) fn questions(requests: Option<&Value>) -> Result<Questions, ToolError> {
    let requests = requests.and_then(Value::as_object);
    let read = |(key, request): (&String, &Value)| {
        let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
        let params = request.get("params").unwrap_or(&Value::Null);
        let question = question(method, params, key);
        let question = question.map_err(|why| {
            ToolError::new(Fault::Failed, format!("it asks `{key}` in no known way: {why}"))
        })?;
        Ok((key.clone(), question))
    };
    requests.into_iter().flatten().map(read).collect()
}

fn asked(result: &Value) -> Result<Round, ToolError> {
    let state = result.get("requestState").and_then(Value::as_str).map(str::to_owned);
    Ok(Round { asked: questions(result.get("inputRequests"))?, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that goes on for ever, and whether it does still.
    fn going() -> (Going, Arc<()>) {
        let alive = Arc::new(());
        let held = alive.clone();
        let task = Task(tokio::spawn(async move {
            let _held = held;
            std::future::pending().await
        }));
        let (sender, open) = mpsc::channel(1);
        let ctx = Ctx::alone(Caller::local(), Instant::now());
        let hearing = Hearing::handed(&ctx, sender);
        (Going { task, open, hearing, waits: Vec::new() }, alive)
    }

    async fn is_given_up(alive: &Arc<()>) -> bool {
        tokio::task::yield_now().await;
        Arc::strong_count(alive) == 1
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_client_does_not_come_back_is_given_up_though_nobody_comes() {
        let parking = Parking::default();
        let (going, alive) = going();
        parking.put(&Caller::named("ann"), going).expect("there is room");
        tokio::task::yield_now().await;
        assert!(!is_given_up(&alive).await);
        sleep(PARKED_FOR + Duration::from_secs(1)).await;
        assert!(is_given_up(&alive).await);
    }

    #[tokio::test]
    async fn who_needs_a_place_gives_up_a_call_of_their_own_or_of_whoever_has_most() {
        let parking = Parking::default();
        let mut calls = Vec::new();
        for whose in ["ann", "bob", "cat", "bob"] {
            let (going, alive) = going();
            parking.put(&Caller::named(whose), going).expect("there is room");
            calls.push(alive);
            tokio::task::yield_now().await;
        }
        parking.give_one_up(&Caller::named("dan"), false);
        for alive in &calls {
            assert!(!is_given_up(alive).await, "what they hold is of no use to another");
        }
        for (whose, gone) in [("cat", 2), ("cat", 1), ("bob", 3), ("bob", 0)] {
            parking.give_one_up(&Caller::named(whose), true);
            assert!(is_given_up(&calls[gone]).await, "{whose}");
        }
    }

    fn ctx() -> Ctx {
        Ctx::alone(Caller::named("ann"), Instant::now() + Duration::from_secs(5))
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_takes_long_goes_on_and_is_not_sent_again() {
        let ctx = ctx();
        let mut times = 0;
        let slow = |_| {
            times += 1;
            async {
                sleep(Duration::from_secs(600)).await;
                Ok(json!({ "content": [] }))
            }
        };
        let start = Whence::Start(Map::new());
        let within = Some(Duration::from_millis(150));
        let begun = in_rounds(&ctx, start, within, None, slow).await.expect("it is sent");
        let Rounded::Sent(sent) = begun else { panic!("it has its answer") };
        let never = |_| async { Err(ToolError::failed("it was sent before")) };
        let ended =
            in_rounds(&ctx, Whence::Sent(sent), None, None, never).await.expect("an answer");
        assert!(matches!(ended, Rounded::Done(result) if result == json!({ "content": [] })));
        assert_eq!(times, 1);
    }
}
