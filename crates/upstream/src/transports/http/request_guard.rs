//! Cancels HTTP requests whose callers no longer wait for the answer.

use std::sync::Arc;

use super::{NOTIFY_TIMEOUT, UpstreamHttpEndpoint};
use crate::message;
use crate::transport::OutgoingMessage;

/// An HTTP request that waits for its answer. Dropping the guard before the answer arrives sends a
/// cancellation, if the protocol has one.
pub(super) struct HttpRequestGuard {
    pub(super) endpoint: Arc<UpstreamHttpEndpoint>,
    pub(super) id: u64,
    pub(super) cancellable: bool,
}

impl Drop for HttpRequestGuard {
    fn drop(&mut self) {
        let id = self.id;
        let endpoint = self.endpoint.clone();
        let sends_cancellation = self.cancellable && !endpoint.is_stateless();
        match sends_cancellation {
            true => endpoint.in_flight.abandon(id),
            false => endpoint.in_flight.remove(id),
        };
        let Some(runtime) =
            tokio::runtime::Handle::try_current().ok().filter(|_| sends_cancellation)
        else {
            return;
        };
        toolgate_net::spawn_task_on(&runtime, async move {
            let reason = "the caller no longer waits for the answer";
            let params = serde_json::json!({ "requestId": id, "reason": reason });
            let method = "notifications/cancelled".to_owned();
            let body = message::encode_message(None, &method, &params);
            let cancellation =
                OutgoingMessage { id: None, method, target: None, header_params: Vec::new(), body };
            let _ = tokio::time::timeout(NOTIFY_TIMEOUT, endpoint.post(&cancellation)).await;
            endpoint.in_flight.forget_abandoned(id);
        });
    }
}
