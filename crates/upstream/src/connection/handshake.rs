//! Agrees on a protocol revision with an upstream.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use toolgate_contract::QuestionSupport;
use toolgate_dialects::mcp::upstream::{
    McpRevision, NEWEST_SESSION, REVISIONS, SessionModel, discover_params, initialize_params,
};

use super::new_message;
use crate::message::UpstreamRpcError;
use crate::transport::{
    MessageReceiver, TransportConnection, UpstreamRequestFailure, describe_failure,
};

/// Time after which a server that has not answered `server/discover` gets `initialize` as well. The
/// server may be slow to start, or it may not know the method and never answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// JSON-RPC error code for an unsupported protocol version.
const UNSUPPORTED_VERSION: i64 = -32022;

/// The protocol revision that both sides use, and the server's description of itself.
#[derive(Debug)]
pub(super) struct NegotiatedRevision {
    pub(super) revision: &'static McpRevision,
    pub(super) server_info: Value,
}

/// A handshake with an upstream that opens a connection. The caller limits its duration.
pub(super) struct UpstreamHandshake<'a> {
    transport: &'a Arc<dyn TransportConnection>,
    capabilities: QuestionSupport,
    receiver: &'a Arc<dyn MessageReceiver>,
    ids: AtomicU64,
}

impl<'a> UpstreamHandshake<'a> {
    pub(super) fn new(
        transport: &'a Arc<dyn TransportConnection>,
        capabilities: QuestionSupport,
        receiver: &'a Arc<dyn MessageReceiver>,
    ) -> Self {
        Self { transport, capabilities, receiver, ids: AtomicU64::new(1) }
    }

    /// Agrees with the server on the protocol revision `wanted` or, without `wanted`, on the newest
    /// revision that both sides support. Fails if there is no common revision or no answer.
    pub(super) async fn agree(
        &self,
        wanted: Option<&'static McpRevision>,
    ) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        match wanted {
            None => self.find_revision().await,
            Some(wanted) => match wanted.era {
                SessionModel::Stateless => self.discover().await,
                SessionModel::Session => self.initialize(wanted).await,
            },
        }
    }

    async fn find_revision(&self) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        let mut discovery = pin!(self.discover());
        match tokio::time::timeout(PROBE_TIMEOUT, &mut discovery).await {
            Ok(Ok(agreement)) => Ok(agreement),
            Ok(Err(failure)) => {
                let is_final = self.transport.closed().is_cancelled()
                    || matches!(failure, UpstreamRequestFailure::Unauthorized(_));
                if is_final {
                    return Err(failure);
                }
                // Older servers answer an unknown method in many ways.
                let stateless = McpRevision::newest(SessionModel::Stateless);
                let named = named_revision(&failure, stateless, Some(SessionModel::Session));
                self.initialize_or_follow(named.unwrap_or(&NEWEST_SESSION)).await
            }
            Err(_) => self.initialize_meanwhile(discovery).await,
        }
    }

    /// Sends `initialize` while `discovery` waits for its answer. The first success decides.
    async fn initialize_meanwhile(
        &self,
        mut discovery: Pin<
            &mut impl Future<Output = Result<NegotiatedRevision, UpstreamRequestFailure>>,
        >,
    ) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        let mut session = pin!(self.initialize(&NEWEST_SESSION));
        let refusal = tokio::select! {
            biased;
            discovered = &mut discovery => match discovered {
                Ok(agreement) => return Ok(agreement),
                Err(_) => return self.follow(session.await, &NEWEST_SESSION).await,
            },
            begun = &mut session => match begun {
                Err(refusal @ UpstreamRequestFailure::Refused(_)) => refusal,
                begun => return begun,
            },
        };
        match named_revision(&refusal, &NEWEST_SESSION, None) {
            Some(named) if named.era == SessionModel::Session => self.initialize(named).await,
            // A server of a stateless revision also refuses `initialize` before it has answered
            // `server/discover`.
            Some(_) | None => match discovery.await {
                Ok(agreement) => Ok(agreement),
                Err(_) => self.follow(Err(refusal), &NEWEST_SESSION).await,
            },
        }
    }

    async fn initialize_or_follow(
        &self,
        revision: &'static McpRevision,
    ) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        self.follow(self.initialize(revision).await, revision).await
    }

    /// Returns `begun`, the outcome of `initialize` with the revision `asked`. If the server
    /// refused and named a different revision, sends `initialize` again with the named revision.
    async fn follow(
        &self,
        begun: Result<NegotiatedRevision, UpstreamRequestFailure>,
        asked: &McpRevision,
    ) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        let Err(refusal) = &begun else { return begun };
        match named_revision(refusal, asked, None) {
            None => begun,
            Some(named) => match named.era {
                SessionModel::Stateless => self.discover().await,
                SessionModel::Session => self.initialize(named).await,
            },
        }
    }

    /// Asks for the server's protocol revisions with `server/discover`, the request of the
    /// stateless protocol.
    async fn discover(&self) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        let stateless = McpRevision::newest(SessionModel::Stateless);
        self.transport.set_revision(Some(stateless));
        let params = discover_params(stateless);
        let mut found = self.ask("server/discover", stateless, &params).await;
        // Some servers refuse a revision and list it as supported in the same answer. A second
        // attempt decides.
        if let Err(refusal) = &found
            && named_revision(refusal, stateless, Some(SessionModel::Stateless)).is_some()
        {
            found = self.ask("server/discover", stateless, &params).await;
        }
        let server_info: Value = serde_json::from_str(found?.get()).unwrap_or_default();
        match lists_revision(&server_info["supportedVersions"], stateless) {
            true => Ok(NegotiatedRevision { revision: stateless, server_info }),
            false => Err(unsupported_revision(&server_info["supportedVersions"])),
        }
    }

    /// Begins a session with the protocol revision `revision`, or with the revision in the server's
    /// answer.
    async fn initialize(
        &self,
        revision: &'static McpRevision,
    ) -> Result<NegotiatedRevision, UpstreamRequestFailure> {
        self.transport.set_revision(None);
        let params = initialize_params(self.capabilities, revision);
        let answer = match self.ask("initialize", revision, &params).await {
            // Without a list of revisions, the server's own message may name them.
            Err(UpstreamRequestFailure::Refused(error))
                if error.code == UNSUPPORTED_VERSION && supported_in(&error).is_array() =>
            {
                return Err(unsupported_revision(&supported_in(&error)));
            }
            answer => answer?,
        };
        let server_info: Value = serde_json::from_str(answer.get()).unwrap_or_default();
        let name = server_info["protocolVersion"].as_str().unwrap_or_default();
        match McpRevision::find(name, SessionModel::Session) {
            Some(revision) => Ok(NegotiatedRevision { revision, server_info }),
            None => Err(UpstreamRequestFailure::Refused(UpstreamRpcError::new(
                -32603,
                format!("it uses the protocol revision `{name}`, which is unknown here"),
            ))),
        }
    }

    /// Sends a request of the handshake and notes the outcome in the start report.
    async fn ask(
        &self,
        method: &str,
        revision: &McpRevision,
        params: &Value,
    ) -> Result<Box<RawValue>, UpstreamRequestFailure> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let asked = format!("`{method}` ({})", revision.name);
        self.receiver.record_exchange(&asked, None);
        let message = new_message(Some(id), method, None, params);
        let answer = self.transport.request(message, self.receiver.clone()).await;
        self.receiver.record_exchange(&asked, Some(&describe_answer(&answer)));
        answer
    }
}

/// Describes an answer of the handshake in one line.
fn describe_answer(answer: &Result<Box<RawValue>, UpstreamRequestFailure>) -> String {
    match answer {
        Ok(result) => format!("it answered {}", result.get()),
        Err(
            failure @ UpstreamRequestFailure::Refused(UpstreamRpcError { data: Some(data), .. }),
        ) => {
            format!("{}: {data}", describe_failure(failure))
        }
        Err(failure) => describe_failure(failure),
    }
}

/// Returns the newest known revision that the refusal of `asked` names as supported, among those of
/// `era` if it is set.
///
/// Servers of older revisions have other error codes for this refusal. Some name their revisions
/// only in the message.
fn named_revision(
    failure: &UpstreamRequestFailure,
    asked: &McpRevision,
    era: Option<SessionModel>,
) -> Option<&'static McpRevision> {
    let UpstreamRequestFailure::Refused(error) = failure else { return None };
    let supported = supported_in(error);
    let mut known = REVISIONS.iter().filter(|known| era.is_none_or(|era| known.era == era));
    known.find(|known| match supported.is_array() {
        true => lists_revision(&supported, known),
        false => known.name != asked.name && error.message.contains(known.name),
    })
}

/// Returns the list of protocol versions that the server supports, from the data of its refusal.
fn supported_in(error: &UpstreamRpcError) -> Value {
    let data = error.data.as_ref();
    let list = |name: &str| data.and_then(|data| data.get(name)).cloned();
    list("supported").or_else(|| list("supportedVersions")).unwrap_or_default()
}

fn lists_revision(supported: &Value, revision: &McpRevision) -> bool {
    supported.as_array().is_some_and(|all| all.iter().any(|one| one == revision.name))
}

/// Returns the error for a server that supports only the revisions in `supported`.
fn unsupported_revision(supported: &Value) -> UpstreamRequestFailure {
    let shown = match supported.is_null() {
        true => "other ones".to_owned(),
        false => supported.to_string(),
    };
    let message = format!("it does not support this protocol revision; it supports {shown}");
    let data = serde_json::json!({ "supported": supported });
    UpstreamRequestFailure::Refused(UpstreamRpcError {
        data: Some(data),
        ..UpstreamRpcError::new(UNSUPPORTED_VERSION, message)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use toolgate_contract::{BoxFuture, lock_mutex};

    use super::*;
    use crate::server_requests::RefusingMessageReceiver;
    use crate::transport::OutgoingMessage;

    /// Delay in seconds, and the answer that a server sends after it.
    type TimedAnswer = (u64, Result<Value, UpstreamRpcError>);

    /// A test server with a list of answers for each method. It sends the next answer of the list
    /// for each request, and none after the last.
    struct ScriptedHandshake {
        answers: Mutex<Vec<(&'static str, TimedAnswer)>>,
        asked: Mutex<Vec<String>>,
        closed: CancellationToken,
    }

    impl TransportConnection for ScriptedHandshake {
        fn request(
            &self,
            message: OutgoingMessage,
            _: Arc<dyn MessageReceiver>,
        ) -> BoxFuture<'_, Result<Box<RawValue>, UpstreamRequestFailure>> {
            Box::pin(async move {
                let body: Value = serde_json::from_slice(&message.body).expect("a message");
                let revision = body["params"]["protocolVersion"].as_str().unwrap_or_default();
                let asked = format!("{} {revision}", message.method);
                lock_mutex(&self.asked).push(asked);
                let answer = {
                    let mut all = lock_mutex(&self.answers);
                    let at = all.iter().position(|(method, _)| *method == message.method);
                    at.map(|at| all.remove(at).1)
                };
                let Some((seconds, answer)) = answer else { return std::future::pending().await };
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                let text = answer.map_err(UpstreamRequestFailure::Refused)?.to_string();
                Ok(RawValue::from_string(text).expect("JSON"))
            })
        }

        fn send_notification(
            &self,
            _: OutgoingMessage,
        ) -> BoxFuture<'_, Result<(), UpstreamRequestFailure>> {
            Box::pin(async { Ok(()) })
        }

        fn may_lose_session(&self) -> bool {
            false
        }

        fn has_lost_session(&self) -> bool {
            false
        }

        fn closed(&self) -> &CancellationToken {
            &self.closed
        }

        fn closed_reason(&self) -> String {
            String::new()
        }
    }

    /// Runs the handshake with a server that sends `answers`. `wanted` is the configured MCP
    /// revision, if any. Returns the agreed revision or the reason for the failure, and the
    /// requests that were sent.
    async fn agree(
        wanted: Option<&str>,
        answers: Vec<(&'static str, TimedAnswer)>,
    ) -> (Result<&'static str, String>, Vec<String>) {
        let server = Arc::new(ScriptedHandshake {
            answers: Mutex::new(answers),
            asked: Mutex::default(),
            closed: CancellationToken::new(),
        });
        let transport: Arc<dyn TransportConnection> = server.clone();
        let receiver: Arc<dyn MessageReceiver> = Arc::new(RefusingMessageReceiver);
        let handshake = UpstreamHandshake::new(&transport, QuestionSupport::default(), &receiver);
        let wanted = wanted.and_then(|name| REVISIONS.iter().find(|known| known.name == name));
        let agreed = tokio::time::timeout(Duration::from_secs(30), handshake.agree(wanted)).await;
        let agreed = match agreed {
            Ok(agreed) => {
                agreed.map(|it| it.revision.name).map_err(|failure| describe_failure(&failure))
            }
            Err(_) => Err("no answer".to_owned()),
        };
        let asked = lock_mutex(&server.asked).clone();
        (agreed, asked)
    }

    fn discovered(revisions: &[&str]) -> Result<Value, UpstreamRpcError> {
        Ok(json!({ "supportedVersions": revisions, "capabilities": {} }))
    }

    fn begun(revision: &str) -> Result<Value, UpstreamRpcError> {
        Ok(json!({ "protocolVersion": revision, "capabilities": {} }))
    }

    fn unsupported(revisions: &[&str]) -> Result<Value, UpstreamRpcError> {
        let data = Some(json!({ "supported": revisions }));
        Err(UpstreamRpcError { data, ..UpstreamRpcError::new(UNSUPPORTED_VERSION, "unsupported") })
    }

    fn unknown() -> Result<Value, UpstreamRpcError> {
        Err(UpstreamRpcError::new(-32601, "unknown method"))
    }

    const DISCOVER: &str = "server/discover";
    const INITIALIZE: &str = "initialize";
    const MODERN: &str = "2026-07-28";

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_a_refusal_names_in_another_form_is_used() {
        let invalid = |message: &str, data: Option<Value>| {
            Err(UpstreamRpcError { data, ..UpstreamRpcError::new(-32602, message) })
        };
        let supported = json!({ "supported": ["2024-11-05"], "requested": "2025-11-25" });
        for refusal in [
            invalid("Unsupported protocol version", Some(supported)),
            invalid("version 2025-11-25 is not supported; use 2024-11-05", None),
            Err(UpstreamRpcError::new(UNSUPPORTED_VERSION, "only 2024-11-05 is supported")),
        ] {
            let answers = vec![
                (DISCOVER, (0, unknown())),
                (INITIALIZE, (0, refusal)),
                (INITIALIZE, (0, begun("2024-11-05"))),
            ];
            let (agreed, asked) = agree(None, answers).await;
            assert_eq!(agreed, Ok("2024-11-05"));
            let expected = ["server/discover ", "initialize 2025-11-25", "initialize 2024-11-05"];
            assert_eq!(asked, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_to_discover_settles_the_revision() {
        for refusal in [unsupported(&[MODERN]), unknown()] {
            let answers =
                vec![(DISCOVER, (25, discovered(&[MODERN]))), (INITIALIZE, (10, refusal))];
            let (agreed, asked) = agree(None, answers).await;
            assert_eq!(agreed, Ok(MODERN));
            assert_eq!(asked, ["server/discover ", "initialize 2025-11-25"]);
        }
        let answers =
            vec![(DISCOVER, (20, discovered(&[MODERN]))), (INITIALIZE, (25, begun("2025-11-25")))];
        assert_eq!(agree(None, answers).await.0, Ok(MODERN), "the first success decides");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_discover_begins_a_session() {
        let answers = vec![(INITIALIZE, (20, begun("2025-03-26")))];
        assert_eq!(agree(None, answers).await.0, Ok("2025-03-26"));
        let answers = vec![
            (INITIALIZE, (1, unsupported(&["2025-06-18"]))),
            (INITIALIZE, (1, begun("2025-06-18"))),
        ];
        let (agreed, asked) = agree(None, answers).await;
        assert_eq!(agreed, Ok("2025-06-18"));
        assert_eq!(asked.last().map(String::as_str), Some("initialize 2025-06-18"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_server_of_sessions_may_refuse_discover() {
        let answers = vec![(DISCOVER, (8, unknown())), (INITIALIZE, (9, begun("2025-06-18")))];
        assert_eq!(agree(None, answers).await.0, Ok("2025-06-18"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_names_a_known_revision_leads_to_it() {
        let (agreed, asked) = agree(
            None,
            vec![
                (DISCOVER, (0, unsupported(&["2024-11-05", "2025-06-18", "2199-01-01"]))),
                (INITIALIZE, (0, begun("2025-06-18"))),
            ],
        )
        .await;
        assert_eq!(agreed, Ok("2025-06-18"));
        assert_eq!(asked, ["server/discover ", "initialize 2025-06-18"]);
        let (agreed, asked) = agree(
            None,
            vec![
                (DISCOVER, (0, discovered(&["2025-06-18"]))),
                (INITIALIZE, (0, unsupported(&["2024-11-05"]))),
                (INITIALIZE, (0, begun("2024-11-05"))),
            ],
        )
        .await;
        assert_eq!(agreed, Ok("2024-11-05"));
        assert_eq!(asked[1..], ["initialize 2025-06-18", "initialize 2024-11-05"]);
        let (agreed, _) = agree(
            None,
            vec![
                (DISCOVER, (0, Err(UpstreamRpcError::new(-32000, "not ready")))),
                (INITIALIZE, (0, unsupported(&[MODERN]))),
                (DISCOVER, (0, discovered(&[MODERN]))),
            ],
        )
        .await;
        assert_eq!(agreed, Ok(MODERN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_names_no_known_revision_is_the_outcome() {
        let (agreed, _) = agree(
            None,
            vec![(DISCOVER, (0, unknown())), (INITIALIZE, (0, unsupported(&["2199-01-01"])))],
        )
        .await;
        assert!(agreed.as_ref().is_err_and(|why| why.contains("2199-01-01")), "{agreed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_revision_that_is_set_is_the_only_one_that_is_tried() {
        let (agreed, asked) =
            agree(Some("2025-06-18"), vec![(INITIALIZE, (9, unsupported(&[MODERN])))]).await;
        assert!(agreed.is_err_and(|why| why.contains(MODERN)));
        assert_eq!(asked, ["initialize 2025-06-18"]);
        let answers = vec![(DISCOVER, (0, unsupported(&["2025-11-25"])))];
        let (agreed, asked) = agree(Some(MODERN), answers).await;
        assert!(agreed.is_err_and(|why| why.contains("unsupported")));
        assert_eq!(asked, ["server/discover "]);
        let (agreed, asked) =
            agree(Some(MODERN), vec![(DISCOVER, (20, discovered(&[MODERN])))]).await;
        assert_eq!((agreed, asked.len()), (Ok(MODERN), 1));
    }
}
