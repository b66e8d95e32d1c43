//! Tests of the HTTP transport: sessions that the server ends, streams that break, and limits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use toolgate_dialects::mcp::upstream::NEWEST_SESSION;

use super::*;
use crate::transport::AnswerFuture;
use crate::transports::scripted::{
    ScriptedAnswer, ScriptedRequest, ScriptedServer, event, new_request, no_receiver, result, until,
};

/// Response of `server-everything` and the Python SDK to a request in an unknown session.
const UNKNOWN: &str = r#"{"jsonrpc":"2.0","id":null,
    "error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}"#;

/// Opens an HTTP transport that has a session.
async fn with_session(server: &Arc<ScriptedServer>) -> HttpTransport {
    let http = HttpTransport::new(server.site(), no_receiver()).expect("a transport");
    http.request(new_request(2, "initialize"), no_receiver()).await.expect("it begins");
    http.set_revision(Some(&NEWEST_SESSION));
    http
}

fn answers(request: &ScriptedRequest) -> ScriptedAnswer {
    ScriptedAnswer::Whole(200, result(request, &json!({})).to_string())
}

#[tokio::test]
async fn a_session_that_is_refused_with_400_has_ended() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("initialize") => answers(request),
        _ => ScriptedAnswer::Whole(400, UNKNOWN.to_owned()),
    });
    let http = with_session(&server).await;
    let listed = http.request(new_request(3, "tools/list"), no_receiver()).await;
    assert!(matches!(listed, Err(UpstreamRequestFailure::SessionGone(_))), "{listed:?}");
    assert!(http.closed().is_cancelled());
}

#[tokio::test]
async fn an_error_without_an_id_ends_the_session_unless_the_call_has_begun() {
    let error = json!({ "jsonrpc": "2.0", "error": { "code": -32000, "message": "who are you?" } });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
    let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
        Some("tools/call") => {
            let answer = result(request, &json!({ "done": true }));
            ScriptedAnswer::Short(event(&progress) + &event(&error) + &event(&answer))
        }
        Some("tools/list") => ScriptedAnswer::Short(event(&error)),
        _ => answers(request),
    });
    let http = with_session(&server).await;
    let called = http.request(new_request(3, "tools/call"), no_receiver()).await;
    assert_eq!(called.expect("an answer").get(), r#"{"done":true}"#);
    let listed = http.request(new_request(4, "tools/list"), no_receiver()).await;
    assert_eq!(listed.err(), Some(UpstreamRequestFailure::SessionGone("who are you?".to_owned())));
    assert!(http.closed().is_cancelled());
}

#[tokio::test]
async fn an_unknown_session_in_the_error_of_a_request_ends_it_unless_the_call_has_begun() {
    let error = |request: &ScriptedRequest| {
        let error = json!({ "code": -32001, "message": "Session not found" });
        json!({ "jsonrpc": "2.0", "id": request.body["id"], "error": error })
    };
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
    let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
        Some("tools/call") => ScriptedAnswer::Short(event(&progress) + &event(&error(request))),
        Some("tools/list") => ScriptedAnswer::Whole(200, error(request).to_string()),
        _ => answers(request),
    });
    let http = with_session(&server).await;
    let called = http.request(new_request(3, "tools/call"), no_receiver()).await;
    assert!(matches!(called, Err(UpstreamRequestFailure::Refused(_))), "{called:?}");
    assert!(!http.closed().is_cancelled());
    let listed = http.request(new_request(4, "tools/list"), no_receiver()).await;
    assert_eq!(
        listed.err(),
        Some(UpstreamRequestFailure::SessionGone("Session not found".to_owned()))
    );
    assert!(http.closed().is_cancelled());
}

#[test]
fn the_content_type_of_an_event_stream_is_recognized_in_any_case() {
    for (kind, expected) in [
        ("text/event-stream", true),
        ("Text/Event-Stream; charset=UTF-8", true),
        (" TEXT/EVENT-STREAM", true),
        ("application/json", false),
        ("text/event", false),
    ] {
        assert_eq!(is_event_stream(&HeaderValue::from_static(kind)), expected, "{kind}");
    }
}

#[tokio::test]
async fn a_refusal_before_the_session_begins_does_not_end_it() {
    let server = ScriptedServer::new(|_, _| ScriptedAnswer::Whole(400, UNKNOWN.to_owned()));
    let http = HttpTransport::new(server.site(), no_receiver()).expect("a transport");
    let begun = http.request(new_request(2, "initialize"), no_receiver()).await;
    assert!(matches!(begun, Err(UpstreamRequestFailure::Refused(_))), "{begun:?}");
    assert!(!http.closed().is_cancelled());
}

#[tokio::test]
async fn a_redirect_within_the_server_is_followed_once_and_remembered() {
    for status in [301, 302, 307, 308] {
        let server = ScriptedServer::new(move |_, request| match &*request.path {
            "/mcp" => ScriptedAnswer::Redirect(status, "mcp/?a=b".to_owned()),
            _ => answers(request),
        });
        let http = HttpTransport::new(server.site(), no_receiver()).expect("a transport");
        for id in [1, 2] {
            http.request(new_request(id, "ping"), no_receiver()).await.expect("an answer");
        }
        let paths: Vec<_> = server.requests().into_iter().map(|one| (one.path, one.body)).collect();
        let [(first, _), (second, body), (third, _)] = &paths[..] else { panic!("{paths:?}") };
        assert_eq!([&**first, &**second, &**third], ["/mcp", "/mcp/?a=b", "/mcp/?a=b"]);
        assert_eq!(body["method"], "ping");
    }
}

#[tokio::test]
async fn a_redirect_to_another_server_or_in_a_circle_is_refused_with_its_target() {
    for (status, location, times) in [
        (307, "https://a.example/mcp", 1),
        (308, "//b.example/mcp?key=secret", 1),
        (303, "/mcp", 1),
        (307, "/mcp", 2),
    ] {
        let server =
            ScriptedServer::new(move |_, _| ScriptedAnswer::Redirect(status, location.to_owned()));
        let http = HttpTransport::new(server.site(), no_receiver()).expect("a transport");
        let failure = http.request(new_request(1, "ping"), no_receiver()).await.err();
        let Some(UpstreamRequestFailure::NotSent(why)) = failure else { panic!("{failure:?}") };
        assert!(why.contains(location.split('?').next().expect("a part")), "{why}");
        assert!(why.contains("`url`") && !why.contains("secret"), "{why}");
        assert_eq!(server.requests().len(), times, "{location}");
    }
}

#[tokio::test]
async fn a_stream_refused_for_an_unknown_session_ends_the_session() {
    let opened = AtomicUsize::new(0);
    let server = ScriptedServer::new(move |_, request| match &*request.method {
        "GET" if opened.fetch_add(1, Ordering::AcqRel) == 0 => ScriptedAnswer::Short(String::new()),
        "GET" => ScriptedAnswer::Whole(400, UNKNOWN.to_owned()),
        _ => answers(request),
    });
    let http = with_session(&server).await;
    http.start_listening();
    until("the session is gone", || http.closed().is_cancelled()).await;
}

/// Message receiver that counts the reports of missed notifications.
#[derive(Default)]
struct MissedNotificationCounter(AtomicUsize);

impl MessageReceiver for MissedNotificationCounter {
    fn record_missed(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

#[tokio::test]
async fn a_session_stream_that_ends_is_opened_again_after_failures() {
    let opened = AtomicUsize::new(0);
    let server = ScriptedServer::new(move |_, request| match &*request.method {
        "GET" => match opened.fetch_add(1, Ordering::AcqRel) {
            0 => ScriptedAnswer::Short(String::new()),
            1..=2 => ScriptedAnswer::Whole(503, "later".to_owned()),
            _ => ScriptedAnswer::Stream(String::new()),
        },
        _ => answers(request),
    });
    let counts = Arc::new(MissedNotificationCounter::default());
    let http = HttpTransport::new(server.site(), counts.clone()).expect("a transport");
    http.request(new_request(2, "initialize"), no_receiver()).await.expect("it begins");
    http.set_revision(Some(&NEWEST_SESSION));
    http.start_listening();
    until("it is open again", || counts.0.load(Ordering::Acquire) == 1).await;
    assert_eq!(server.requests().iter().filter(|one| one.method == "GET").count(), 4);
}

#[tokio::test]
async fn a_cancellation_without_an_answer_is_waited_for_briefly() {
    // Only the transport and this test hold the endpoint then.
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("initialize") => answers(request),
        _ => ScriptedAnswer::Silence,
    });
    let http = with_session(&server).await;
    let call = http.request(new_request(3, "tools/call"), no_receiver());
    tokio::select! {
        _ = call => unreachable!("it is never answered"),
        () = until("it is called", || server.times("tools/call") == 1) => {}
    }
    until("it is cancelled", || server.times("notifications/cancelled") == 1).await;
    let endpoint = http.0.clone();
    until("the cancellation is given up", || Arc::strong_count(&endpoint) == 2).await;
}

#[tokio::test]
async fn server_requests_beyond_the_limit_are_refused() {
    let asked = AtomicBool::new(false);
    let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
        Some("tools/call") if !asked.swap(true, Ordering::AcqRel) => {
            let ask = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "roots/list" });
            ScriptedAnswer::Stream((0..200).map(|id| event(&ask(id))).collect())
        }
        _ => answers(request),
    });
    /// Message receiver that never answers a request of the upstream.
    struct UnansweringMessageReceiver;
    impl MessageReceiver for UnansweringMessageReceiver {
        fn answer_request(self: Arc<Self>, _: String, _: Value) -> AnswerFuture {
            Box::pin(std::future::pending())
        }
    }
    let http = with_session(&server).await;
    let call = http.request(new_request(3, "tools/call"), Arc::new(UnansweringMessageReceiver));
    let refused = || {
        let requests = server.requests();
        requests.iter().filter(|one| one.body["error"]["code"] == -32603).count()
    };
    tokio::select! {
        _ = call => unreachable!("it is never answered"),
        () = until("further requests are refused", || refused() > 0) => {}
    }
    assert!(http.0.questions.available_permits() == 0);
    assert!(refused() <= 200 - QUESTIONS_MAX);
}

#[test]
fn text_that_a_header_cannot_hold_is_base64() {
    assert_eq!(header_text("plain text"), "plain text");
    assert_eq!(header_text("é"), "=?base64?w6k=?=");
    assert_eq!(header_text(" x"), "=?base64?IHg=?=");
    assert_eq!(header_text("=?base64?eA==?="), "=?base64?PT9iYXNlNjQ/ZUE9PT89?=");
}
