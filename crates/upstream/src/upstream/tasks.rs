//! Waits for the results of tasks that run at an upstream.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolgate_contract::{LogLevel, ToolContext, ToolError, ToolErrorKind};
use toolgate_dialects::mcp::upstream::{UpstreamRequestMetadata, encode_answer};

use super::Upstream;
use crate::connection::{UpstreamConnection, UpstreamRequest};
use crate::message::UpstreamRpcError;
use crate::server_requests::{CallMessageReceiver, RefusingMessageReceiver};
use crate::transport::UpstreamRequestFailure;
use crate::upstream::call_driver::{self, InitialCallResponse};

/// Default interval between two polls of an upstream's task.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout of the request that cancels an upstream's task.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);

impl Upstream {
    /// Waits for the final result of a started call to the upstream. Polls the task that the call
    /// became, if there is one.
    pub(crate) async fn wait_for_result(
        &self,
        ctx: &ToolContext,
        begun: InitialCallResponse,
    ) -> Result<Value, ToolError> {
        let InitialCallResponse { response: first, connection: link, dedicated, task } = begun;
        let work = async {
            if let Some(id) = first.pointer("/task/taskId").and_then(Value::as_str) {
                let params = Map::from_iter([("taskId".to_owned(), json!(id))]);
                let receiver = CallMessageReceiver::for_live_caller(ctx);
                let ends = task;
                let asked = link
                    .request(UpstreamRequest::new("tasks/result", params).with_target(id), receiver)
                    .await;
                ends.into_iter().for_each(UpstreamTaskGuard::finish);
                return asked.map_err(|failure| self.tool_error("tools/call", failure));
            }
            match first.get("resultType").and_then(Value::as_str) {
                Some("task") => self.poll_task(ctx, &link, &first, task).await,
                _ => Ok(first),
            }
        };
        let done = tokio::select! {
            biased;
            done = work => done?,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        if let Some(dedicated) = dedicated {
            dedicated.finish();
        }
        Ok(done)
    }

    /// Polls a task of the upstream until it ends.
    async fn poll_task(
        &self,
        ctx: &ToolContext,
        link: &Arc<UpstreamConnection>,
        created: &Value,
        task_guard: Option<UpstreamTaskGuard>,
    ) -> Result<Value, ToolError> {
        let missing =
            |what: &str| ToolError::new(ToolErrorKind::Failed, format!("its task has no {what}"));
        let id = created["taskId"].as_str().or(created["task"]["taskId"].as_str());
        let id = id.ok_or_else(|| missing("id"))?.to_owned();
        let params = || Map::from_iter([("taskId".to_owned(), json!(id))]);
        let meta = || UpstreamRequestMetadata {
            questions: ctx.asker.supported(),
            accepts_tasks: true,
            ..UpstreamRequestMetadata::default()
        };
        let guard = task_guard.unwrap_or_else(|| UpstreamTaskGuard::new(link, id.clone()));
        let mut task = created.clone();
        let mut logged = None;
        loop {
            if let Some(message) =
                task["statusMessage"].as_str().filter(|now| logged.as_deref() != Some(*now))
            {
                ctx.log(LogLevel::Info, message);
                logged = Some(message.to_owned());
            }
            match task["status"].as_str().unwrap_or_default() {
                "completed" => {
                    guard.finish();
                    return Ok(task.get("result").cloned().unwrap_or_default());
                }
                "failed" => {
                    guard.finish();
                    let error = serde_json::from_value(task["error"].clone());
                    let error =
                        error.unwrap_or_else(|_| UpstreamRpcError::new(-32603, "the task failed"));
                    return Err(
                        self.tool_error("tools/call", UpstreamRequestFailure::Refused(error))
                    );
                }
                "cancelled" => {
                    guard.finish();
                    return Err(ToolError::new(
                        ToolErrorKind::Failed,
                        "the upstream cancelled the task",
                    ));
                }
                "input_required" => {
                    let asked = call_driver::parse_questions(task.get("inputRequests"))?;
                    let answers = ctx.asker.ask(asked).await?;
                    let answers =
                        answers.iter().map(|(key, answer)| (key.clone(), encode_answer(answer)));
                    let mut params = params();
                    params.insert("inputResponses".into(), Value::Object(answers.collect()));
                    let request = UpstreamRequest {
                        meta: meta(),
                        ..UpstreamRequest::new("tasks/update", params)
                    };
                    let updated = link
                        .request(request.with_target(&id), Arc::new(RefusingMessageReceiver))
                        .await;
                    updated.map_err(|failure| self.tool_error("tasks/update", failure))?;
                }
                _ => {}
            }
            let wait = task["pollIntervalMs"].as_u64().map_or(POLL_INTERVAL, Duration::from_millis);
            tokio::time::sleep(wait.clamp(Duration::from_millis(20), Duration::from_secs(10)))
                .await;
            let request =
                UpstreamRequest { meta: meta(), ..UpstreamRequest::new("tasks/get", params()) };
            let polled =
                link.request(request.with_target(&id), Arc::new(RefusingMessageReceiver)).await;
            task = polled.map_err(|failure| self.tool_error("tasks/get", failure))?;
        }
    }
}

/// Guard that cancels an upstream's task on drop, unless the task has ended.
pub(crate) struct UpstreamTaskGuard {
    link: Arc<UpstreamConnection>,
    id: Option<String>,
}

impl UpstreamTaskGuard {
    /// Creates a guard for the upstream's task `id`.
    pub(crate) fn new(link: &Arc<UpstreamConnection>, id: String) -> Self {
        Self { link: link.clone(), id: Some(id) }
    }

    /// Records that the task of the upstream has ended, so that dropping the guard does not cancel
    /// it.
    fn finish(mut self) {
        self.id = None;
    }
}

impl Drop for UpstreamTaskGuard {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let link = self.link.clone();
        toolgate_net::spawn_task_on(&runtime, async move {
            let params = Map::from_iter([("taskId".to_owned(), json!(id))]);
            let meta = UpstreamRequestMetadata {
                accepts_tasks: true,
                ..UpstreamRequestMetadata::default()
            };
            let request = UpstreamRequest { meta, ..UpstreamRequest::new("tasks/cancel", params) };
            let asked = link.request(request.with_target(&id), Arc::new(RefusingMessageReceiver));
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, asked).await;
        });
    }
}
