//! Calls to an upstream, in sessions and in the stateless protocol.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use toolgate_contract::{Askable, BoxFuture, Ctx, Kind, ToolError};
use toolgate_dialects::mcp::upstream::{Beside, Era, TASKS, Tasks};

use super::Upstream;
use super::visits::Visits;
use crate::carried::{self, Begun, Driven, Rounded, Whence};
use crate::hearing::Hearing;
use crate::link::{Asks, Link};
use crate::message::RpcError;
use crate::wire::Trouble;

/// Method that calls a tool.
const TOOLS_CALL: &str = "tools/call";

impl Upstream {
    /// Sends a request for `ctx` and drives it to its result, including questions and tasks.
    pub(crate) async fn carry(&self, ctx: &Ctx, asked: Asked) -> Result<Value, ToolError> {
        let begun = self.begin(ctx, asked).await?;
        self.ended(ctx, begun).await
    }

    /// Sends a request for `ctx` and drives it until it has a result or becomes a task.
    pub(crate) async fn begin(&self, ctx: &Ctx, asked: Asked) -> Result<Begun, ToolError> {
        if let Some(theirs) = self.of(ctx)? {
            return Box::pin(theirs.begin(ctx, asked)).await;
        }
        let work = async {
            let _place = self.places.acquire().await.map_err(|_| ToolError::canceled())?;
            // A suspended call resumes on its own connection.
            let link = self.link().await?;
            self.is_called_as_agreed(&link, &asked).await?;
            match link.revision.era {
                Era::Session => {
                    carried::in_one(&self.lasting.parking, ctx, self.in_session(ctx, asked, link))
                        .await
                }
                Era::Stateless => {
                    let (rounds, params) = Rounds::of(self.this(), ctx, asked, link, None);
                    rounds.ended(ctx, Whence::Start(params)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Drives a request for at most `within`. A call that is still running then continues with its
    /// own permit.
    pub(crate) async fn begin_in_time(
        &self,
        ctx: &Ctx,
        asked: Asked,
        within: Duration,
    ) -> Result<Driven, ToolError> {
        if let Some(theirs) = self.of(ctx)? {
            return Box::pin(theirs.begin_in_time(ctx, asked, within)).await;
        }
        let work = async {
            let link = self.link().await?;
            self.is_called_as_agreed(&link, &asked).await?;
            match link.revision.era {
                Era::Session => {
                    let begin = self.in_session(ctx, asked, link);
                    let places = self.places.clone();
                    let begin = |hearing| -> BoxFuture<'static, _> {
                        Box::pin(async move {
                            let _place = places.acquire_owned().await;
                            begin(hearing).await
                        })
                    };
                    carried::in_time(&self.lasting.parking, ctx, begin, within).await
                }
                Era::Stateless => {
                    let places = Some(self.places.clone());
                    let (rounds, params) = Rounds::of(self.this(), ctx, asked, link, places);
                    rounds.carried(ctx, Whence::Start(params), Some(within)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Continues a call that was started before.
    pub(crate) async fn go_on(&self, ctx: &Ctx, driven: Driven) -> Result<Begun, ToolError> {
        let work = async {
            match driven {
                Driven::Done(begun) => Ok(begun),
                Driven::Going(going) => carried::go_on(&self.lasting.parking, ctx, going).await,
                Driven::Sent(sent) => {
                    let (rounds, sent) = *sent;
                    rounds.hearing.tells(ctx.events.clone());
                    rounds.ended(ctx, Whence::Sent(sent)).await
                }
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = ctx.cancel.cancelled() => Err(ToolError::canceled()),
        }
    }

    /// Checks the pin of the tool that `asked` calls.
    async fn is_called_as_agreed(&self, link: &Link, asked: &Asked) -> Result<(), ToolError> {
        match asked.method == TOOLS_CALL {
            true => self.is_as_agreed(link, &asked.name).await,
            false => Ok(()),
        }
    }

    fn in_session(
        &self,
        ctx: &Ctx,
        asked: Asked,
        link: Arc<Link>,
    ) -> impl FnOnce(Arc<Hearing>) -> BoxFuture<'static, Result<Begun, ToolError>> + use<> {
        let Asked { method, mut params, name, as_task, .. } = asked;
        let this = self.this();
        let trace = ctx.trace.clone();
        let tells = ctx.events.is_watched();
        let caller = ctx.caller.clone();
        let session = ctx.session.clone();
        let lines = ctx.events.lines();
        let can = ctx.asker.can();
        let calls_again = ctx.asker.calls_again();
        let apart = self.asks.load(Ordering::Acquire) && can != Askable::default();
        if as_task && link.revision.tasks == Tasks::Param {
            params.insert("task".into(), json!({}));
        }
        move |hearing: Arc<Hearing>| -> BoxFuture<'static, _> {
            hearing.has_folders(this.folders());
            Box::pin(async move {
                let mut lane = match apart {
                    true => Some(this.lanes.take(&this, (&caller, session), can).await?),
                    false => None,
                };
                let mut link = lane.as_ref().map_or(link, |lane| lane.link.clone());
                if lane.is_some() && method == TOOLS_CALL {
                    this.is_as_agreed(&link, &name).await?;
                }
                link.logs(lines).await;
                let mut is_anew = false;
                let mut visits = Visits::new();
                let asked = loop {
                    let visits_pages = hearing.can(Kind::Visit);
                    let repeats = visits_pages || link.wire.tells_who_asks();
                    let repeated = repeats.then(|| params.clone());
                    let beside = Beside { trace: trace.as_ref(), ..Beside::default() };
                    let asks = Asks { beside, tells, ..Asks::of(method, params) };
                    // The upstream did nothing yet for a request that is repeated here.
                    params = match (link.ask(asks.about(&name), hearing.clone()).await, repeated) {
                        (Err(Trouble::SessionGone), Some(params)) if !is_anew => {
                            is_anew = true;
                            link = this.link().await?;
                            if method == TOOLS_CALL {
                                this.is_as_agreed(&link, &name).await?;
                            }
                            params
                        }
                        (Err(Trouble::Refused(error)), Some(params))
                            if visits_pages && Visits::are_wanted(&error) =>
                        {
                            visits.done(&this, &hearing, &error).await?;
                            params
                        }
                        (Err(Trouble::Refused(error)), _)
                            if calls_again && Visits::are_wanted(&error) =>
                        {
                            return Err(ToolError::cannot_ask(Kind::Visit));
                        }
                        (asked, _) => break asked,
                    };
                };
                let is_task = |first: &Value| first.pointer("/task/taskId").is_some();
                if !asked.as_ref().is_ok_and(is_task)
                    && let Some(lane) = lane.take()
                {
                    lane.done();
                }
                let first = asked.map_err(|trouble| this.failed(method, trouble))?;
                match hearing.lacked() {
                    // A server can usually work without roots.
                    Some(kind) if kind != Kind::Roots && first["isError"] == true => {
                        Err(ToolError::cannot_ask(kind))
                    }
                    _ => Ok(Begun::of(first, link, lane)),
                }
            })
        }
    }
}

/// A call in the stateless protocol. It ends with its questions and is repeated with the answers.
pub(crate) struct Rounds {
    upstream: Arc<Upstream>,
    link: Arc<Link>,
    hearing: Arc<Hearing>,
    method: &'static str,
    name: String,
    as_task: bool,
    mirrored: Vec<(String, String)>,
    /// Permits for each request of the call, if it takes them one by one.
    places: Option<Arc<Semaphore>>,
}

impl Rounds {
    /// Creates the call for `asked` over `link`. Returns it with the parameters of its first
    /// request.
    fn of(
        upstream: Arc<Upstream>,
        ctx: &Ctx,
        asked: Asked,
        link: Arc<Link>,
        places: Option<Arc<Semaphore>>,
    ) -> (Self, Map<String, Value>) {
        let Asked { method, params, name, as_task, mirrored } = asked;
        let hearing = Hearing::now(ctx);
        (Self { upstream, link, hearing, method, name, as_task, mirrored, places }, params)
    }

    /// Drives the call until it has a result or becomes a task.
    async fn ended(self, ctx: &Ctx, from: Whence) -> Result<Begun, ToolError> {
        match self.carried(ctx, from, None).await? {
            Driven::Done(begun) => Ok(begun),
            Driven::Going(_) | Driven::Sent(_) => unreachable!("it has all the time it takes"),
        }
    }

    /// Drives the call until an answer takes longer than `within`.
    async fn carried(
        self,
        ctx: &Ctx,
        from: Whence,
        within: Option<Duration>,
    ) -> Result<Driven, ToolError> {
        let send = |params| self.send(ctx, params);
        let folders = self.upstream.folders();
        match carried::in_rounds(ctx, from, within, folders.as_ref(), send).await? {
            Rounded::Done(first) => Ok(Driven::Done(Begun::of(first, self.link, None))),
            Rounded::Sent(sent) => Ok(Driven::Sent(Box::new((self, sent)))),
        }
    }

    /// Sends one request of the call.
    fn send(
        &self,
        ctx: &Ctx,
        params: Map<String, Value>,
    ) -> impl Future<Output = Result<Value, ToolError>> + Send + 'static + use<> {
        let upstream = self.upstream.clone();
        let link = self.link.clone();
        let hearing = self.hearing.clone();
        let method = self.method;
        let name = self.name.clone();
        let as_task = self.as_task;
        let mirrored = self.mirrored.clone();
        let places = self.places.clone();
        let trace = ctx.trace.clone();
        let can = ctx.asker.can();
        let log = ctx.events.lines();
        let tells = ctx.events.is_watched();
        let can = Askable { roots: can.roots || self.upstream.folders().is_some(), ..can };
        let calls_again = ctx.asker.calls_again();
        async move {
            let _place = match places {
                Some(places) => places.acquire_owned().await.ok(),
                None => None,
            };
            let asks = |params, tasks| {
                let trace = trace.as_ref();
                let beside = Beside { can, tasks, log, trace, ..Beside::default() };
                let mirrored = mirrored.clone();
                Asks { beside, tells, mirrored, ..Asks::of(method, params) }.about(&name)
            };
            let again = Map::clone(&params);
            let asked = match link.ask(asks(params, as_task), hearing.clone()).await {
                // Nothing was done yet. The caller accepts no jobs, so the task is treated as a
                // call.
                Err(Trouble::Refused(error)) if !as_task && !calls_again && needs_tasks(&error) => {
                    link.ask(asks(again, true), hearing).await
                }
                asked => asked,
            };
            asked.map_err(|trouble| upstream.failed(method, trouble))
        }
    }
}

/// A request on behalf of a call.
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) params: Map<String, Value>,
    /// Target of the request: a tool, a prompt or a URI.
    pub(crate) name: String,
    /// True if the request may become a task.
    pub(crate) as_task: bool,
    /// Arguments that are repeated in headers, if the revision supports that.
    pub(crate) mirrored: Vec<(String, String)>,
}

impl Asked {
    /// Creates a request of `method` for the target `name`.
    pub(crate) fn of(method: &'static str, name: &str, params: Map<String, Value>) -> Self {
        Self { method, params, name: name.to_owned(), as_task: false, mirrored: Vec::new() }
    }
}

/// Returns true if the server refuses because it needs task support.
fn needs_tasks(error: &RpcError) -> bool {
    let required = error.data.as_ref().and_then(|data| data.get("requiredCapabilities"));
    let extensions = required.and_then(|required| required.get("extensions"));
    error.code == -32021 && extensions.is_some_and(|all| all.get(TASKS).is_some())
}
