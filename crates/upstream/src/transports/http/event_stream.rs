//! Reads event streams, and resumes a stream that ends without an answer.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::value::RawValue;
use toolgate_net::{SseEvent, SseParser};

use super::{ERROR_BODY_BYTES_MAX, ResponseStreamPosition, UpstreamHttpEndpoint, read_body};
use crate::message::truncated::{TruncatedMessageKind, kind_of_truncated};
use crate::transport::{MessageReceiver, UpstreamRequestFailure};
use crate::transports::conversation::too_long_error;

/// Default pause before a broken event stream is resumed.
pub(super) const RESUME_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of attempts in a row to resume an event stream that brings no new messages.
const RESUMES_MAX: u32 = 5;

/// The outcome of reading an event stream.
pub(super) enum EventStreamOutcome {
    /// The stream contained the answer to the request.
    Answered(Result<Box<RawValue>, UpstreamRequestFailure>),
    /// The stream ended before the answer. The values are the id of the last event, and the pause
    /// in milliseconds that the server requested.
    Ended(Option<String>, Option<u64>),
}

impl UpstreamHttpEndpoint {
    /// Reads the answer to the request `id` from its event stream. If the stream breaks off, it is
    /// resumed.
    pub(super) async fn answer_in_stream(
        self: &Arc<Self>,
        response: Response<Incoming>,
        id: u64,
        receiver: &Arc<dyn MessageReceiver>,
    ) -> Result<Box<RawValue>, UpstreamRequestFailure> {
        let mut streamed = self.read_stream(response, id, receiver).await?;
        // A stream of a session may break off and be resumed over another connection.
        let mut tried = 0;
        loop {
            let (last, wait) = match streamed {
                EventStreamOutcome::Answered(outcome) => return outcome,
                EventStreamOutcome::Ended(Some(last), wait) if !self.is_stateless() => (last, wait),
                EventStreamOutcome::Ended(..) => {
                    return Err(UpstreamRequestFailure::Lost(
                        "the stream ended without an answer".to_owned(),
                    ));
                }
            };
            if tried == RESUMES_MAX {
                return Err(UpstreamRequestFailure::Lost(
                    "the stream ended repeatedly without an answer".to_owned(),
                ));
            }
            tokio::time::sleep(wait.map_or(RESUME_PAUSE, Duration::from_millis)).await;
            streamed = match self.resume(&last, id, receiver).await? {
                EventStreamOutcome::Ended(None, wait) => {
                    tried += 1;
                    EventStreamOutcome::Ended(Some(last), wait)
                }
                EventStreamOutcome::Ended(Some(new), wait) => {
                    tried = if new == last { tried + 1 } else { 0 };
                    EventStreamOutcome::Ended(Some(new), wait)
                }
                answered @ EventStreamOutcome::Answered(_) => answered,
            };
        }
    }

    /// Opens an event stream again after the event with the id `last`, and reads the rest of the
    /// stream.
    async fn resume(
        self: &Arc<Self>,
        last: &str,
        id: u64,
        receiver: &Arc<dyn MessageReceiver>,
    ) -> Result<EventStreamOutcome, UpstreamRequestFailure> {
        let response = self.send(Method::GET, None, Some(last)).await.map_err(as_lost)?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(UpstreamRequestFailure::Lost(format!(
                "the stream cannot be resumed: {status}"
            )));
        }
        self.read_stream(response, id, receiver).await
    }

    /// Reads an event stream until it answers the request `id` or ends.
    pub(super) async fn read_stream(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        id: u64,
        receiver: &Arc<dyn MessageReceiver>,
    ) -> Result<EventStreamOutcome, UpstreamRequestFailure> {
        let mut events = SseParser::new(self.site.bytes_max);
        let mut last = None;
        let mut retry = None;
        let mut position = ResponseStreamPosition::Start;
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(frame) = frame else { break };
            let Ok(piece) = frame.into_data() else { continue };
            for SseEvent { data, cut, id: event, retry: wait, .. } in events.parse(&piece) {
                last = event.filter(|id| !id.is_empty()).or(last);
                retry = wait.or(retry);
                let cut_kind = cut.as_ref().map(kind_of_truncated);
                if cut_kind == Some(TruncatedMessageKind::Answer(Some(id))) {
                    return Ok(EventStreamOutcome::Answered(Err(too_long_error(
                        self.site.bytes_max,
                    ))));
                }
                let handled = self.handle_messages(data.as_bytes(), id, receiver, position);
                position = ResponseStreamPosition::Later;
                if let Some(outcome) = handled {
                    // Nothing follows the answer. The connection is reused if the stream ends soon.
                    toolgate_net::spawn_task(async move {
                        let rest = read_body(&mut response, ERROR_BODY_BYTES_MAX);
                        let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
                    });
                    return Ok(EventStreamOutcome::Answered(outcome));
                }
            }
        }
        Ok(EventStreamOutcome::Ended(last, retry))
    }
}

fn as_lost(failure: UpstreamRequestFailure) -> UpstreamRequestFailure {
    match failure {
        UpstreamRequestFailure::NotSent(why) => UpstreamRequestFailure::Lost(why),
        other => other,
    }
}
