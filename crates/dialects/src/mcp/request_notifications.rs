//! Progress and log notifications of one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};
use toolgate_contract::{JobId, LogLevel};

use super::message::{McpError, RequestId, notification, read_id};
use super::revision::McpRevision;
use super::tasks::related_task_meta;
use crate::ServerInfo;
use crate::json::RpcParams;
use crate::rpc::invalid_id_reason;

/// The notifications about one request that its client wants.
pub(crate) struct RequestedNotifications {
    revision: &'static McpRevision,
    facts: Arc<ServerInfo>,
    /// The client's token for progress notifications, if the client wants progress.
    progress_token: Option<Value>,
    /// The lowest level of log lines that the client wants for the request.
    log_level: Option<LogLevel>,
    /// The last progress value that was sent, as the bits of a float. The value only grows.
    progress: AtomicU64,
    /// The task to which the notifications belong, if there is one.
    task: Option<JobId>,
}

impl RequestedNotifications {
    /// Parses the progress token of a request.
    pub(crate) fn parse(
        id: &RequestId,
        params: &RpcParams,
        revision: &'static McpRevision,
        facts: Arc<ServerInfo>,
        log_level: Option<LogLevel>,
    ) -> Result<Self, McpError> {
        let progress_token = match params.get("_meta").and_then(|meta| meta.get("progressToken")) {
            None | Some(Value::Null) => None,
            Some(token) if read_id(token).is_some() => Some(token.clone()),
            Some(token) => {
                let why = invalid_id_reason("_meta.progressToken", token, "a string or an integer");
                return Err(McpError::invalid_params(Some(id.clone()), why));
            }
        };
        let progress = AtomicU64::new((-1.0_f64).to_bits());
        Ok(Self { revision, facts, progress_token, log_level, progress, task: None })
    }

    /// Returns a copy whose notifications name `task`, the task that the request created.
    pub(crate) fn for_task(&self, task: JobId) -> Self {
        Self {
            revision: self.revision,
            facts: self.facts.clone(),
            progress_token: self.progress_token.clone(),
            log_level: self.log_level,
            progress: AtomicU64::new(self.progress.load(Ordering::Acquire)),
            task: Some(task),
        }
    }

    /// Returns the task to which the notifications belong, if there is one.
    pub(crate) fn task(&self) -> Option<JobId> {
        self.task
    }

    /// Returns true if the client wants any notification about its request.
    pub(crate) fn wants_any(&self) -> bool {
        self.progress_token.is_some() || self.log_level.is_some()
    }

    /// Encodes a progress notification for the client. `None` if the client wants none or the
    /// progress did not grow.
    pub(crate) fn encode_progress(
        &self,
        done: f64,
        total: Option<f64>,
        message: Option<&str>,
    ) -> Option<Bytes> {
        let token = self.progress_token.as_ref()?;
        let grows =
            |last: u64| (done.is_finite() && done > f64::from_bits(last)).then(|| done.to_bits());
        self.progress.fetch_update(Ordering::AcqRel, Ordering::Acquire, grows).ok()?;
        let mut params = json!({ "progressToken": token, "progress": done });
        if let Some(total) = total.filter(|total| total.is_finite()) {
            params["total"] = json!(total);
        }
        if let Some(message) = message.filter(|_| self.revision.annotations) {
            params["message"] = json!(message);
        }
        Some(self.encode_notification("notifications/progress", params))
    }

    /// Returns the lowest level of log lines that are sent for the request.
    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        self.log_level
    }

    /// Encodes a log notification from the component `logger`, or from this server if `logger` is
    /// `None`.
    pub(crate) fn encode_log(
        &self,
        level: LogLevel,
        logger: Option<&str>,
        data: &Value,
    ) -> Option<Bytes> {
        let wanted = self.log_level.is_some_and(|least| level >= least);
        wanted.then(|| {
            let logger = logger.unwrap_or(&self.facts.name);
            let mut params = json!({ "level": level, "logger": logger });
            params["data"] = data.clone();
            self.encode_notification("notifications/message", params)
        })
    }

    fn encode_notification(&self, method: &'static str, mut params: Value) -> Bytes {
        if let Some(task) = self.task {
            params["_meta"] = related_task_meta(task);
        }
        notification(method, &params)
    }
}
