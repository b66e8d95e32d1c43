//! Notification stream of a session over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use toolgate_net::RetryBackoff;

use super::event_stream::{EventStreamOutcome, RESUME_PAUSE};
use super::{ERROR_BODY_BYTES_MAX, NO_REQUEST, NOTIFY_TIMEOUT, UpstreamHttpEndpoint, read_body};
use crate::transport::MessageReceiver;
use crate::transports::refusals::{RpcResponseError, is_session_unknown, names_session};

/// Longest pause before the notification stream is opened again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Duration after which a notification stream counts as stable.
const STABLE_AFTER: Duration = Duration::from_secs(10);

impl UpstreamHttpEndpoint {
    /// Receives notifications of the session. A stream that ends is opened again while the session
    /// lasts.
    pub(super) async fn keep_listening(self: Arc<Self>) {
        let mut last: Option<String> = None;
        let mut was_open = false;
        let mut backoff = RetryBackoff::new(RESUME_PAUSE, RETRY_MAX);
        loop {
            let mut wait = None;
            match self.send(Method::GET, None, last.as_deref()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    if was_open && last.is_none() {
                        self.receiver.record_missed();
                    }
                    was_open = true;
                    let begun = Instant::now();
                    let receiver: Arc<dyn MessageReceiver> = self.in_flight.clone();
                    if let Ok(EventStreamOutcome::Ended(new, retry)) =
                        self.read_stream(response, NO_REQUEST, &receiver).await
                    {
                        if begun.elapsed() > STABLE_AFTER || (new.is_some() && new != last) {
                            backoff.reset();
                            wait = retry.map(Duration::from_millis);
                        }
                        last = new.or(last);
                    }
                }
                Ok(mut response) => {
                    let status = response.status();
                    let body = tokio::time::timeout(
                        NOTIFY_TIMEOUT,
                        read_body(&mut response, ERROR_BODY_BYTES_MAX),
                    )
                    .await;
                    let body = body.unwrap_or_else(|_| Ok(Bytes::new())).unwrap_or_default();
                    let error = RpcResponseError::in_body(&body);
                    // A stream that never opened may be refused for another reason.
                    let is_about_session =
                        was_open || names_session(&String::from_utf8_lossy(&body));
                    if is_about_session && is_session_unknown(status, error.as_ref(), &body) {
                        return self.gone.cancel();
                    }
                    let is_temporary = status.is_server_error()
                        || matches!(
                            status,
                            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
                        );
                    if !is_temporary {
                        // The stream is optional in the protocol.
                        return self.receiver.record_unheard();
                    }
                }
                Err(_) => {}
            }
            let pause = backoff.next_pause();
            tokio::time::sleep(wait.unwrap_or(pause)).await;
        }
    }
}
