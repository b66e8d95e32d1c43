//! Requests in flight on one connection. Notifications and requests of the upstream are routed to
//! them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;
use toolgate_contract::lock_mutex;

use crate::message::UpstreamRpcError;
use crate::server_requests::ELICITATION_COMPLETE;
use crate::transport::{AnswerFuture, MessageReceiver, OutgoingMessage};

/// Maximum number of abandoned calls that are remembered. A server need not answer a cancelled
/// call, so the end of the call may never be known.
const ABANDONED_MAX: usize = 256;
/// Time for which an abandoned call to an upstream is remembered.
const ABANDONED_FOR: Duration = Duration::from_secs(60);

/// Requests to an upstream that are in flight, by id, each with data `T` of the transport.
pub(super) struct InFlightRequests<T> {
    all: Mutex<HashMap<u64, InFlightRequest<T>>>,
    /// Calls for whose answers no caller waits, and which the server may still process, oldest
    /// first.
    abandoned: Mutex<VecDeque<AbandonedUpstreamCall>>,
    /// Receiver of the upstream's messages that belong to no request.
    receiver: Arc<dyn MessageReceiver>,
}

/// A request to an upstream that has no answer yet.
struct InFlightRequest<T> {
    /// Receiver of the upstream's notifications and requests about this request.
    receiver: Arc<dyn MessageReceiver>,
    /// True if the request only listens for notifications.
    is_listen: bool,
    data: T,
}

/// Call whose caller no longer waits, while the upstream may still send messages about it.
struct AbandonedUpstreamCall {
    id: u64,
    since: Instant,
    caller: Arc<str>,
}

impl<T> InFlightRequests<T> {
    pub(super) fn new(receiver: Arc<dyn MessageReceiver>) -> Self {
        Self { all: Mutex::default(), abandoned: Mutex::default(), receiver }
    }

    fn abandoned(&self) -> MutexGuard<'_, VecDeque<AbandonedUpstreamCall>> {
        let mut all = lock_mutex(&self.abandoned);
        while all.front().is_some_and(|oldest| oldest.since.elapsed() >= ABANDONED_FOR) {
            all.pop_front();
        }
        all
    }

    pub(super) fn insert(
        &self,
        message: &OutgoingMessage,
        receiver: Arc<dyn MessageReceiver>,
        data: T,
    ) {
        let id = message.id.unwrap_or_default();
        let is_listen = message.is_listen();
        lock_mutex(&self.all).insert(id, InFlightRequest { receiver, is_listen, data });
    }

    /// Removes the request `id`, which is answered or abandoned.
    pub(super) fn remove(&self, id: u64) -> Option<T> {
        lock_mutex(&self.all).remove(&id).map(|one| one.data)
    }

    /// Returns true if exactly one request is in flight, not counting those that only listen for
    /// notifications.
    pub(super) fn is_sole_request(&self) -> bool {
        lock_mutex(&self.all).values().filter(|one| !one.is_listen).take(2).count() == 1
    }

    pub(super) fn remove_all(&self) -> Vec<T> {
        lock_mutex(&self.all).drain().map(|(_, one)| one.data).collect()
    }

    /// Removes the request `id`, for which no caller waits any longer. Remembers the call of the
    /// request, because the call may still ask questions.
    pub(super) fn abandon(&self, id: u64) -> Option<T> {
        let InFlightRequest { receiver, is_listen, data } = lock_mutex(&self.all).remove(&id)?;
        // Requests that belong to no caller cause no questions.
        if let Some(caller) = receiver.caller().filter(|_| !is_listen) {
            let mut all = self.abandoned();
            all.push_back(AbandonedUpstreamCall { id, since: Instant::now(), caller });
            if all.len() > ABANDONED_MAX {
                all.pop_front();
            }
        }
        Some(data)
    }

    /// Forgets an abandoned call that has ended.
    pub(super) fn forget_abandoned(&self, id: u64) {
        self.abandoned().retain(|one| one.id != id);
    }

    /// Records that the upstream sent a request of `method`, if a call that may have caused the
    /// request is in flight.
    pub(super) fn note_server_request(&self, method: &str) {
        let works = || lock_mutex(&self.all).values().any(|one| !one.is_listen);
        if method != "ping" && works() {
            self.receiver.record_question();
        }
    }

    /// Returns the receiver of an upstream's request that does not show to which call it belongs.
    ///
    /// If one call is in flight, returns the receiver of this call. If none is, returns the
    /// connection's own receiver. If several are, returns `None`, because a caller must not see the
    /// questions of a different call. For `roots/list`, returns the connection's own receiver
    /// instead of `None`.
    fn question_receiver(&self, method: &str) -> Option<Arc<dyn MessageReceiver>> {
        let sole = {
            let all = lock_mutex(&self.all);
            // Requests without a caller receive `roots/list` only.
            let may_ask = |one: &&InFlightRequest<T>| {
                !one.is_listen && (method == "roots/list" || one.receiver.caller().is_some())
            };
            let mut all = all.values().filter(may_ask);
            match (all.next(), all.next()) {
                (Some(one), None) => Some(one.receiver.clone()),
                (None, _) => Some(self.receiver.clone()),
                (Some(_), Some(_)) => None,
            }
        };
        match sole.filter(|_| self.abandoned().is_empty()) {
            // The connection's own receiver can answer `roots/list` at any time.
            None if method == "roots/list" => Some(self.receiver.clone()),
            sole => sole,
        }
    }

    /// If no caller with a call in flight supports an upstream's question, records the missing
    /// capability for all these calls. The call that caused the question then fails with this
    /// reason.
    fn record_unsupported(&self, method: &str, params: &Value) {
        let calls: Vec<_> = {
            let all = lock_mutex(&self.all);
            let calls = all.values().filter(|one| one.receiver.caller().is_some());
            calls.map(|one| one.receiver.clone()).collect()
        };
        let kinds: Option<Vec<_>> =
            calls.iter().map(|one| one.unsupported_kind(method, params)).collect();
        for (call, kind) in calls.iter().zip(kinds.unwrap_or_default()) {
            call.record_missing(kind);
        }
    }

    /// Returns the receivers of an upstream's log line, which does not show to which call it
    /// belongs.
    ///
    /// If all calls in flight have the same caller, returns the receivers of all these calls.
    /// Otherwise, returns none, because a caller must not read the log of a different caller.
    fn log_receivers(&self) -> Vec<Arc<dyn MessageReceiver>> {
        let calls: Vec<_> = {
            let all = lock_mutex(&self.all);
            all.values()
                .filter_map(|one| Some((one.receiver.caller()?, one.receiver.clone())))
                .collect()
        };
        let abandoned = self.abandoned();
        let abandoned_callers = abandoned.iter().map(|one| &one.caller);
        let mut callers = calls.iter().map(|(caller, _)| caller).chain(abandoned_callers);
        let first = callers.next();
        match callers.all(|caller| Some(caller) == first) {
            true => calls.iter().map(|(_, receiver)| receiver.clone()).collect(),
            false => Vec::new(),
        }
    }
}

impl<T: Send + 'static> MessageReceiver for InFlightRequests<T> {
    /// Passes an upstream's progress notification to the request with its token, and log lines to
    /// the only caller with calls in flight.
    fn notify(&self, method: &str, params: &Value) {
        if method == "notifications/progress" {
            let token = params.get("progressToken").and_then(Value::as_u64);
            let receiver =
                token.and_then(|id| Some(lock_mutex(&self.all).get(&id)?.receiver.clone()));
            if let Some(receiver) = receiver {
                receiver.notify(method, params);
            }
            return;
        }
        if method == "notifications/message" {
            self.log_receivers().iter().for_each(|receiver| receiver.notify(method, params));
        }
        if method == ELICITATION_COMPLETE {
            // Each receiver knows which visits it requested.
            let all: Vec<_> =
                lock_mutex(&self.all).values().map(|one| one.receiver.clone()).collect();
            all.iter().for_each(|receiver| receiver.notify(method, params));
        }
        self.receiver.notify(method, params);
    }

    fn record_output(&self, output: &[u8]) {
        self.receiver.record_output(output);
    }

    fn record_error_output(&self, output: &[u8]) {
        self.receiver.record_error_output(output);
    }

    fn answer_request(self: Arc<Self>, method: String, params: Value) -> AnswerFuture {
        Box::pin(async move {
            match self.question_receiver(&method) {
                Some(receiver) => receiver.answer_request(method, params).await,
                None => {
                    self.record_unsupported(&method, &params);
                    Err(UpstreamRpcError::new(
                        -32603,
                        "several calls are in flight, and the question does not show which call \
                         it belongs to",
                    ))
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use serde_json::json;
    use toolgate_contract::QuestionKind;

    use super::super::scripted::new_request;
    use super::*;

    /// Message receiver of one caller. It counts the notifications.
    struct CountingMessageReceiver(&'static str, AtomicUsize);

    impl MessageReceiver for CountingMessageReceiver {
        fn caller(&self) -> Option<Arc<str>> {
            (!self.0.is_empty()).then(|| self.0.into())
        }

        fn notify(&self, _: &str, _: &Value) {
            self.1.fetch_add(1, Ordering::AcqRel);
        }

        fn answer_request(self: Arc<Self>, _: String, _: Value) -> AnswerFuture {
            Box::pin(async { Ok(json!("asked")) })
        }
    }

    fn receiver_of(caller: &'static str) -> Arc<CountingMessageReceiver> {
        Arc::new(CountingMessageReceiver(caller, AtomicUsize::new(0)))
    }

    fn in_flight() -> InFlightRequests<()> {
        InFlightRequests::new(receiver_of(""))
    }

    #[test]
    fn a_log_line_reaches_the_calls_of_a_sole_caller_only() {
        let all = in_flight();
        let ada = receiver_of("ada");
        let again = receiver_of("ada");
        let bob = receiver_of("bob");
        let counts = || [&ada, &again, &bob].map(|one| one.1.load(Ordering::Acquire));
        let line = || all.notify("notifications/message", &json!({ "data": "a secret" }));
        all.insert(&new_request(1, "tools/call"), ada.clone(), ());
        all.insert(&new_request(2, "tools/call"), again.clone(), ());
        all.insert(&new_request(3, "tools/list"), receiver_of(""), ());
        line();
        assert_eq!(counts(), [1, 1, 0]);
        all.insert(&new_request(4, "tools/call"), bob.clone(), ());
        line();
        assert_eq!(counts(), [1, 1, 0]);
        all.remove(1);
        all.abandon(2);
        line();
        assert_eq!(counts(), [1, 1, 0], "a cancelled call may still run");
        all.forget_abandoned(2);
        line();
        assert_eq!(counts(), [1, 1, 1]);
    }

    #[test]
    fn a_list_request_without_a_caller_gets_no_questions() {
        let all = in_flight();
        all.insert(&new_request(1, "tools/list"), receiver_of(""), ());
        all.insert(&new_request(2, "tools/call"), receiver_of("ada"), ());
        assert!(
            all.question_receiver("elicitation/create").is_some_and(|one| one.caller().is_some())
        );
        assert!(all.question_receiver("roots/list").is_some_and(|one| one.caller().is_none()));
    }

    /// Test receiver of a caller that supports no questions. The flag is true after a notification.
    struct NoQuestionsMessageReceiver(AtomicBool);

    impl MessageReceiver for NoQuestionsMessageReceiver {
        fn caller(&self) -> Option<Arc<str>> {
            Some("eve".into())
        }

        fn unsupported_kind(&self, _: &str, _: &Value) -> Option<QuestionKind> {
            Some(QuestionKind::Sample)
        }

        fn record_missing(&self, _: QuestionKind) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[tokio::test]
    async fn a_missing_capability_is_recorded_if_no_call_in_flight_has_it() {
        let ask = async |with: Option<Arc<CountingMessageReceiver>>| {
            let all = Arc::new(in_flight());
            let one = Arc::new(NoQuestionsMessageReceiver(false.into()));
            let other = Arc::new(NoQuestionsMessageReceiver(false.into()));
            all.insert(&new_request(1, "tools/call"), one.clone(), ());
            all.insert(&new_request(2, "tools/call"), other.clone(), ());
            if let Some(with) = with {
                all.insert(&new_request(3, "tools/call"), with, ());
            }
            let asked = all.answer_request("sampling/createMessage".to_owned(), json!({})).await;
            assert!(asked.is_err(), "does not show which call it belongs to");
            [one, other].map(|one| one.0.load(Ordering::Acquire))
        };
        assert_eq!(ask(None).await, [true, true]);
        assert_eq!(ask(Some(receiver_of("ada"))).await, [false, false], "this call may have asked");
    }

    #[test]
    fn a_listening_request_is_not_counted_as_a_call() {
        let all = in_flight();
        all.insert(&new_request(1, "subscriptions/listen"), receiver_of(""), ());
        assert!(!all.is_sole_request());
        all.insert(&new_request(2, "tools/call"), receiver_of("ada"), ());
        assert!(all.is_sole_request() && all.question_receiver("elicitation/create").is_some());
        all.insert(&new_request(3, "tools/call"), receiver_of("ada"), ());
        assert!(!all.is_sole_request() && all.question_receiver("elicitation/create").is_none());
    }

    #[test]
    fn a_cancelled_call_blocks_questions_to_others_for_a_limited_time() {
        let all = in_flight();
        for id in 0..1000 {
            all.insert(&new_request(id, "tools/call"), receiver_of("ada"), ());
            all.abandon(id);
        }
        assert_eq!(all.abandoned().len(), ABANDONED_MAX);
        all.insert(&new_request(1000, "tools/call"), receiver_of("ada"), ());
        assert!(all.question_receiver("elicitation/create").is_none());
        for one in &mut *all.abandoned() {
            one.since = one.since.checked_sub(ABANDONED_FOR).expect("the machine runs for longer");
        }
        assert!(all.question_receiver("elicitation/create").is_some());
    }
}
