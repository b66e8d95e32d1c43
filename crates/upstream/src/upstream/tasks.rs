//! Waits for tasks of an upstream.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolgate_contract::{Ctx, Fault, Level, ToolError};
use toolgate_dialects::mcp::upstream::{Beside, answer};

use super::Upstream;
use crate::carried::{self, Begun};
use crate::hearing::{Deaf, Hearing};
use crate::link::{Asks, Link};
use crate::message::RpcError;
use crate::wire::Trouble;

/// Default interval between two polls of a task.
const POLL: Duration = Duration::from_millis(500);

/// Timeout of a task cancellation.
const CANCELLING: Duration = Duration::from_secs(30);

impl Upstream {
    /// Waits for the result of a call that has started.
    pub(crate) async fn ended(&self, ctx: &Ctx, begun: Begun) -> Result<Value, ToolError> {
        let Begun { first, link, lane, task } = begun;
        let work = async {
            if let Some(id) = first.pointer("/task/taskId").and_then(Value::as_str) {
                let params = Map::from_iter([("taskId".to_owned(), json!(id))]);
                let hearing = Hearing::now(ctx);
                let ends = task;
                let asked = link.ask(Asks::of("tasks/result", params).about(id), hearing).await;
                ends.into_iter().for_each(EndsTask::over);
                return asked.map_err(|trouble| self.failed("tools/call", trouble));
            }
            match first.get("resultType").and_then(Value::as_str) {
                Some("task") => self.followed(ctx, &link, &first, task).await,
                _ => Ok(first),
            }
        };
        let done = tokio::select! {
            biased;
            done = work => done?,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        if let Some(lane) = lane {
            lane.done();
        }
        Ok(done)
    }

    /// Polls a task of the upstream until it ends.
    async fn followed(
        &self,
        ctx: &Ctx,
        link: &Arc<Link>,
        created: &Value,
        ends: Option<EndsTask>,
    ) -> Result<Value, ToolError> {
        let odd = |what: &str| ToolError::new(Fault::Failed, format!("its task has no {what}"));
        let id = created["taskId"].as_str().or(created["task"]["taskId"].as_str());
        let id = id.ok_or_else(|| odd("id"))?.to_owned();
        let params = || Map::from_iter([("taskId".to_owned(), json!(id))]);
        let beside = || Beside { can: ctx.asker.can(), tasks: true, ..Beside::default() };
        let ended = ends.unwrap_or_else(|| EndsTask::of(link, id.clone()));
        let mut task = created.clone();
        let mut said = None;
        loop {
            if let Some(message) =
                task["statusMessage"].as_str().filter(|now| said.as_deref() != Some(*now))
            {
                ctx.log(Level::Info, message);
                said = Some(message.to_owned());
            }
            match task["status"].as_str().unwrap_or_default() {
                "completed" => {
                    ended.over();
                    return Ok(task.get("result").cloned().unwrap_or_default());
                }
                "failed" => {
                    ended.over();
                    let error = serde_json::from_value(task["error"].clone());
                    let error = error.unwrap_or_else(|_| RpcError::new(-32603, "the task failed"));
                    return Err(self.failed("tools/call", Trouble::Refused(error)));
                }
                "cancelled" => {
                    ended.over();
                    return Err(ToolError::new(Fault::Failed, "the upstream cancelled it"));
                }
                "input_required" => {
                    let asked = carried::questions(task.get("inputRequests"))?;
                    let given = ctx.asker.ask(asked).await?;
                    let given = given.iter().map(|(key, told)| (key.clone(), answer(told)));
                    let mut params = params();
                    params.insert("inputResponses".into(), Value::Object(given.collect()));
                    let asks = Asks { beside: beside(), ..Asks::of("tasks/update", params) };
                    let told = link.ask(asks.about(&id), Arc::new(Deaf)).await;
                    told.map_err(|trouble| self.failed("tasks/update", trouble))?;
                }
                _ => {}
            }
            let wait = task["pollIntervalMs"].as_u64().map_or(POLL, Duration::from_millis);
            tokio::time::sleep(wait.clamp(Duration::from_millis(20), Duration::from_secs(10)))
                .await;
            let asks = Asks { beside: beside(), ..Asks::of("tasks/get", params()) };
            let got = link.ask(asks.about(&id), Arc::new(Deaf)).await;
            task = got.map_err(|trouble| self.failed("tasks/get", trouble))?;
        }
    }
}

/// Guard that cancels an upstream's task on drop, unless it has ended.
pub(crate) struct EndsTask {
    link: Arc<Link>,
    id: Option<String>,
}

impl EndsTask {
    /// Creates a guard for the task `id`.
    pub(crate) fn of(link: &Arc<Link>, id: String) -> Self {
        Self { link: link.clone(), id: Some(id) }
    }

    /// Records that the task has ended.
    fn over(mut self) {
        self.id = None;
    }
}

impl Drop for EndsTask {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let link = self.link.clone();
        runtime.spawn(async move {
            let params = Map::from_iter([("taskId".to_owned(), json!(id))]);
            let beside = Beside { tasks: true, ..Beside::default() };
            let asks = Asks { beside, ..Asks::of("tasks/cancel", params) };
            let asked = link.ask(asks.about(&id), Arc::new(Deaf));
            let _ = tokio::time::timeout(CANCELLING, asked).await;
        });
    }
}
