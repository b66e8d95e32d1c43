//! Sessions that end over there, streams that break off, and what must have a bound.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::transports::scripted::{
    ScriptedAnswer, ScriptedRequest, ScriptedServer, event, new_request, no_receiver, result, until,
};

/// How `server-everything` and the SDK in Python say that they know no session.
const UNKNOWN: &str = r#"{"jsonrpc":"2.0","id":null,
    "error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;

/// One that has begun its session.
async fn begun(server: &Arc<ScriptedServer>) -> HttpTransport {
    let http = HttpTransport::new(server.site(), no_receiver()).expect("a wire");
    http.request(new_request(2, "initialize"), no_receiver()).await.expect("it begins");
    http
}

fn answers(request: &ScriptedRequest) -> ScriptedAnswer {
    ScriptedAnswer::Whole(200, result(request, &json!({})).to_string())
}

#[test]
fn a_session_is_gone_where_a_refusal_names_it_and_nowhere_else() {
    let error = |code, message: &str| RpcError::new(code, message);
    let gone = |status, error: Option<&RpcError>, body: &str| {
        is_session_unknown(StatusCode::from_u16(status).expect("a status"), error, body.as_bytes())
    };
    let unknown = error(-32000, "Bad Request: No valid session ID provided");
    assert!(gone(400, Some(&unknown), "") && gone(404, Some(&unknown), ""));
    assert!(gone(400, Some(&error(-32600, "Session has been terminated")), ""));
    assert!(gone(404, None, "") && gone(400, None, "") && gone(400, None, "Invalid session ID"));
    assert!(!gone(400, Some(&error(-32602, "no such session variable")), ""));
    assert!(!gone(400, Some(&error(-32600, "no JSON")), ""));
    assert!(!gone(400, None, "the header is too long") && !gone(500, Some(&unknown), ""));
}

#[tokio::test]
async fn a_session_that_is_refused_with_400_is_gone() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("initialize") => answers(request),
        _ => ScriptedAnswer::Whole(400, UNKNOWN.to_owned()),
    });
    let http = begun(&server).await;
    let asked = http.request(new_request(3, "tools/list"), no_receiver()).await;
    assert!(matches!(asked, Err(RequestFailure::SessionGone)), "{asked:?}");
    assert!(http.closed().is_cancelled());
}

#[tokio::test]
async fn a_stream_of_a_session_that_is_not_known_any_more_ends_the_session() {
    let opened = AtomicUsize::new(0);
    let server = ScriptedServer::new(move |_, request| match &*request.method {
        "GET" if opened.fetch_add(1, Ordering::AcqRel) == 0 => ScriptedAnswer::Short(String::new()),
        "GET" => ScriptedAnswer::Whole(400, UNKNOWN.to_owned()),
        _ => answers(request),
    });
    let http = begun(&server).await;
    http.start_listening();
    until("the session is gone", || http.closed().is_cancelled()).await;
}

/// Counts what may have been missed.
#[derive(Default)]
struct Counts(AtomicUsize);

impl MessageReceiver for Counts {
    fn record_missed(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    fn notify(&self, _: &str, _: &Value) {}

    fn answer_request(
        self: Arc<Self>,
        _: String,
        _: Value,
    ) -> BoxFuture<'static, Result<Value, RpcError>> {
        Box::pin(async { Ok(json!({})) })
    }
}

#[tokio::test]
async fn a_stream_of_a_session_that_ends_is_opened_again_also_where_that_fails() {
    let opened = AtomicUsize::new(0);
    let server = ScriptedServer::new(move |_, request| match &*request.method {
        "GET" => match opened.fetch_add(1, Ordering::AcqRel) {
            0 => ScriptedAnswer::Short(String::new()),
            1..=2 => ScriptedAnswer::Whole(503, "later".to_owned()),
            _ => ScriptedAnswer::Stream(String::new()),
        },
        _ => answers(request),
    });
    let counts = Arc::new(Counts::default());
    let http = HttpTransport::new(server.site(), counts.clone()).expect("a wire");
    http.request(new_request(2, "initialize"), no_receiver()).await.expect("it begins");
    http.start_listening();
    until("it is open again", || counts.0.load(Ordering::Acquire) == 1).await;
    assert_eq!(server.requests().iter().filter(|one| one.method == "GET").count(), 4);
}

#[tokio::test]
async fn a_cancellation_that_nobody_takes_is_waited_for_no_longer_than_a_moment() {
    // What holds the endpoint then is the wire and this test.
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("initialize") => answers(request),
        _ => ScriptedAnswer::Silence,
    });
    let http = begun(&server).await;
    let call = http.request(new_request(3, "tools/call"), no_receiver());
    tokio::select! {
        _ = call => unreachable!("it is never answered"),
        () = until("it is called", || server.times("tools/call") == 1) => {}
    }
    until("it is cancelled", || server.times("notifications/cancelled") == 1).await;
    let endpoint = http.0.clone();
    until("nobody waits", || Arc::strong_count(&endpoint) == 2).await;
}

#[tokio::test]
async fn what_is_asked_beyond_a_bound_is_refused() {
    let asked = AtomicBool::new(false);
    let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
        Some("tools/call") if !asked.swap(true, Ordering::AcqRel) => {
            let ask = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "roots/list" });
            ScriptedAnswer::Stream((0..200).map(|id| event(&ask(id))).collect())
        }
        _ => answers(request),
    });
    /// Never answers.
    struct Thinks;
    impl MessageReceiver for Thinks {
        fn notify(&self, _: &str, _: &Value) {}

        fn answer_request(
            self: Arc<Self>,
            _: String,
            _: Value,
        ) -> BoxFuture<'static, Result<Value, RpcError>> {
            Box::pin(std::future::pending())
        }
    }
    let http = begun(&server).await;
    let call = http.request(new_request(3, "tools/call"), Arc::new(Thinks));
    let refused = || {
        let came = server.requests();
        came.iter().filter(|one| one.body["error"]["code"] == -32603).count()
    };
    tokio::select! {
        _ = call => unreachable!("it is never answered"),
        () = until("what is too much is refused", || refused() > 0) => {}
    }
    assert!(http.0.questions.available_permits() == 0);
    assert!(refused() <= 200 - QUESTIONS_MAX);
}

#[test]
fn what_no_header_can_say_is_said_in_base64() {
    assert_eq!(header_text("plain text"), "plain text");
    assert_eq!(header_text("é"), "=?base64?w6k=?=");
    assert_eq!(header_text(" x"), "=?base64?IHg=?=");
    assert_eq!(header_text("=?base64?eA==?="), "=?base64?PT9iYXNlNjQ/ZUE9PT89?=");
}
