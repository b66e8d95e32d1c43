//! Tests of upstream connections: listening for changes, closing when idle, and servers with
//! unusual answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolgate_contract::{Caller, QuestionSupport, ToolContext};

use super::callers::CallerInstanceUpstreamHost;
use super::*;
use crate::transports::scripted::{ScriptedAnswer, ScriptedRequest, ScriptedServer, result, until};

/// Creates an upstream for the test server `server`. `more` changes its settings.
fn upstream(server: &Arc<ScriptedServer>, more: impl Fn(&mut UpstreamSettings)) -> Arc<Upstream> {
    let mut settings = UpstreamSettings {
        url: Some("http://a.example/mcp".into()),
        ..UpstreamSettings::default()
    };
    more(&mut settings);
    let handed = (
        server.world(),
        Arc::new(CallerInstanceUpstreamHost) as _,
        UpstreamResultStore::default(),
        UriOwnership::default(),
    );
    Upstream::new(
        "it",
        settings,
        handed,
        ChangeFeed::default(),
        (None, UpstreamInstanceOwner::Shared),
    )
}

/// Answers a request as a server of revision 2026-07-28 does that announces changes of its tools.
fn stateless(request: &ScriptedRequest) -> ScriptedAnswer {
    let body = match request.body["method"].as_str() {
        Some("server/discover") => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } },
        }),
        _ => json!({ "tools": [] }),
    };
    ScriptedAnswer::Whole(200, result(request, &body).to_string())
}

/// Answers a request as a server with sessions does.
fn in_session(request: &ScriptedRequest) -> ScriptedAnswer {
    let method = request.body["method"].as_str().unwrap_or_default();
    match method {
        "initialize" => {
            let body = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
            ScriptedAnswer::Whole(200, result(request, &body).to_string())
        }
        _ if request.method == "GET" => ScriptedAnswer::Whole(405, String::new()),
        _ if request.body["id"].is_null() => ScriptedAnswer::Whole(202, String::new()),
        _ => ScriptedAnswer::Whole(200, result(request, &json!({})).to_string()),
    }
}

#[tokio::test]
async fn a_listening_request_that_ends_is_repeated_and_lists_are_refreshed() {
    let server = ScriptedServer::new(|server, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") if server.times("subscriptions/listen") == 1 => {
            ScriptedAnswer::Short(String::new())
        }
        Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    upstream.connection().await.expect("a connection");
    until("the request is repeated", || server.times("subscriptions/listen") == 2).await;
    until("the lists are refreshed", || server.times("tools/list") == 2).await;
    server.send_to_streams(
        &json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }),
    );
    until("the notification is handled", || server.times("tools/list") == 3).await;
}

#[tokio::test(start_paused = true)]
async fn lists_without_notifications_are_refreshed_when_they_expire() {
    let server = ScriptedServer::new(|_, request| {
        let body = match request.body["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {}, "prompts": { "listChanged": true } },
            }),
            Some("tools/list") => json!({ "tools": [], "ttlMs": 90_000 }),
            _ => json!({ "prompts": [], "ttlMs": 100_000 }),
        };
        match request.body["method"].as_str() {
            Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
            _ => ScriptedAnswer::Whole(200, result(request, &body).to_string()),
        }
    });
    let upstream = upstream(&server, |_| {});
    upstream.connection().await.expect("a connection");
    for times in 1..=3 {
        until("the lists are requested", || server.times("tools/list") == times).await;
        tokio::time::sleep(Duration::from_secs(88)).await;
        assert_eq!(server.times("tools/list"), times);
    }
}

#[tokio::test]
async fn a_server_that_repeats_the_same_page_is_listed_once() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("tools/list") => {
            let body = json!({ "tools": [{ "name": "a" }], "nextCursor": "again" });
            ScriptedAnswer::Whole(200, result(request, &body).to_string())
        }
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    let listing = upstream.list().await.expect("a list");
    assert_eq!(listing.tools.len(), 1);
    // Each listing takes two requests.
    assert!(server.times("tools/list") <= 4);
}

#[tokio::test]
async fn a_numeric_cursor_is_sent_back_as_a_number() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("tools/list") => {
            let body = match request.body["params"]["cursor"].as_u64() {
                None => json!({ "tools": [{ "name": "a" }], "nextCursor": 7 }),
                Some(7) => json!({ "tools": [{ "name": "b" }], "nextCursor": null }),
                Some(_) => json!({ "tools": [] }),
            };
            ScriptedAnswer::Whole(200, result(request, &body).to_string())
        }
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    let listing = upstream.list().await.expect("a list");
    assert_eq!(listing.tools.iter().map(|tool| &tool["name"]).collect::<Vec<_>>(), ["a", "b"]);
}

/// Lists the tools of a test server. `page` returns the answer of `tools/list` for a cursor.
async fn list(
    page: impl Fn(Option<&str>) -> Result<(&'static [&'static str], Option<&'static str>), ()>
    + Send
    + Sync
    + 'static,
) -> (Vec<String>, Vec<Value>) {
    let server = ScriptedServer::new(move |_, request| {
        if request.body["method"] != "tools/list" {
            return stateless(request);
        }
        let answer = match page(request.body["params"]["cursor"].as_str()) {
            Ok((names, next)) => {
                let tools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
                let mut answer = result(request, &json!({ "tools": tools }));
                if let Some(next) = next {
                    answer["result"]["nextCursor"] = json!(next);
                }
                answer
            }
            Err(()) => json!({ "jsonrpc": "2.0", "id": request.body["id"],
                "error": { "code": -32602, "message": "no such cursor" } }),
        };
        ScriptedAnswer::Whole(200, answer.to_string())
    });
    let upstream = upstream(&server, |_| {});
    let listing = upstream.list().await.expect("a list");
    let names = listing.tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().into());
    let requests = server.requests().into_iter().filter(|one| one.body["method"] == "tools/list");
    (names.collect(), requests.map(|one| one.body["params"]["cursor"].clone()).collect())
}

#[tokio::test]
async fn an_empty_cursor_is_followed_once() {
    // Cursors of the next page: absent, empty, or different.
    let (names, _) = list(|cursor| match cursor {
        None => Ok((&["a"], Some(""))),
        Some(_) => Ok((&["b"], None)),
    })
    .await;
    assert_eq!(names, ["a", "b"]);
    let (names, _) = list(|cursor| match cursor {
        None => Ok((&["a"], Some("1"))),
        Some("1") => Ok((&["b"], Some(""))),
        Some("") => Ok((&["c"], Some("3"))),
        Some(_) => Ok((&["d"], Some(""))),
    })
    .await;
    assert_eq!(names, ["a", "b", "c", "d"]);
    // Answers at the end: the first page again, or a refusal.
    for page in [
        (|_| Ok((&["a", "b"] as &[_], Some("")))) as fn(Option<&str>) -> _,
        |cursor| Ok((&["a", "b"], cursor.is_none().then_some(""))),
        |cursor| if cursor.is_none() { Ok((&["a", "b"], Some(""))) } else { Err(()) },
        |cursor| Ok((if cursor.is_none() { &["a", "b"] } else { &[] }, Some(""))),
    ] {
        let (names, cursors) = list(page).await;
        assert_eq!(names, ["a", "b"]);
        assert!(cursors.iter().filter(|cursor| **cursor == "").count() <= 2, "{cursors:?}");
    }
}

async fn call(upstream: &Upstream) -> Result<Value, String> {
    let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(20));
    let asked = UpstreamCallRequest::new("resources/read", "x:y", Map::new());
    upstream.call(&ctx, asked).await.map_err(|why| why.message)
}

#[tokio::test]
async fn a_call_of_a_forgotten_session_is_repeated_once_in_a_new_one() {
    let forgotten = || {
        let error = json!({ "code": -32000, "message": "Server not initialized" });
        json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string()
    };
    for (status, body) in
        [(400, forgotten()), (200, forgotten()), (404, "no".to_owned()), (410, String::new())]
    {
        let server = ScriptedServer::new(move |server, request| {
            let is_new = server.times("initialize") > 1;
            match request.body["method"].as_str() {
                Some("resources/read") if !is_new => ScriptedAnswer::Whole(status, body.clone()),
                Some("server/discover") => ScriptedAnswer::Whole(400, String::new()),
                _ => in_session(request),
            }
        });
        let upstream = upstream(&server, |_| {});
        assert_eq!(call(&upstream).await, Ok(json!({})), "{status}");
        assert_eq!((server.times("initialize"), server.times("resources/read")), (2, 2));
    }
}

#[tokio::test]
async fn a_call_is_repeated_only_once_and_never_if_it_may_have_run() {
    let error = json!({ "code": -32000, "message": "no thanks" });
    let refusal = json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
    for (status, body, times, expected) in [
        (400, refusal.clone(), 2, "no thanks"),
        (200, refusal.clone(), 2, "no thanks"),
        (500, refusal, 1, "no thanks"),
        (502, "bad gateway".to_owned(), 1, "was not repeated"),
    ] {
        let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
            Some("resources/read") => ScriptedAnswer::Whole(status, body.clone()),
            Some("server/discover") => ScriptedAnswer::Whole(400, String::new()),
            _ => in_session(request),
        });
        let upstream = upstream(&server, |_| {});
        let why = call(&upstream).await.expect_err("it is refused");
        assert!(why.contains(expected), "{status}: {why}");
        assert_eq!(server.times("resources/read"), times, "{status}");
    }
}

#[tokio::test]
async fn the_report_of_a_start_has_each_request_with_its_outcome() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("server/discover") => ScriptedAnswer::Whole(200, "<html>Sign in".to_owned()),
        _ => ScriptedAnswer::Redirect(302, "https://login.example/?next=mcp".to_owned()),
    });
    let upstream = upstream(&server, |_| {});
    let why = upstream.list().await.expect_err("it is refused");
    assert!(why.contains("302") && why.contains("`https://login.example/`"), "{why}");
    let report = upstream.start_report();
    let [discover, initialize] = &report.exchange_lines()[..] else { panic!("{report:?}") };
    assert!(discover.starts_with("asked `server/discover` (2026-07-28): "), "{discover}");
    assert!(discover.contains("without a JSON-RPC message: <html>Sign in"), "{discover}");
    assert!(initialize.contains("`https://login.example/`"), "{initialize}");
    assert_eq!(report.output_lines(), ["output that is not a message: <html>Sign in"]);
}

#[tokio::test]
async fn a_connection_that_only_listens_is_closed_when_idle() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream =
        upstream(&server, |settings| settings.limits.idle = Some(Duration::from_millis(1500)));
    let link = Arc::downgrade(&upstream.connection().await.expect("a connection"));
    until("the request is sent", || server.times("subscriptions/listen") == 1).await;
    until("the connection is dropped", || link.upgrade().is_none()).await;
    assert!(upstream.live_connection().is_none());
}

#[tokio::test]
async fn a_dedicated_connection_is_closed_when_idle() {
    let server = ScriptedServer::new(|_, request| in_session(request));
    let upstream =
        upstream(&server, |settings| settings.limits.idle = Some(Duration::from_millis(100)));
    let dedicated = upstream
        .dedicated
        .take(&upstream, (&Caller::local(), None), QuestionSupport::default())
        .await;
    let dedicated = dedicated.map_err(|why| why.message).expect("a connection");
    let link = Arc::downgrade(&dedicated.connection);
    let main = || upstream.live_connection();
    until("the shared connection is closed", || main().is_none()).await;
    assert!(link.upgrade().is_some(), "a call uses it");
    dedicated.finish();
    until("the connection is dropped", || link.upgrade().is_none()).await;
}

#[tokio::test]
async fn a_connection_that_knows_a_callers_folders_is_reused_by_that_session_only() {
    let server = ScriptedServer::new(|_, request| in_session(request));
    let with_roots = QuestionSupport { roots: true, ..QuestionSupport::default() };
    let [ann, bob] = ["ann", "bob"].map(Caller::with_key);
    let new_upstream = |more: fn(&mut UpstreamSettings)| upstream(&server, more);
    let take = async |upstream: &Arc<Upstream>, caller: &Caller, session: &str, can| {
        let dedicated =
            upstream.dedicated.take(upstream, (caller, Some(session.into())), can).await;
        let dedicated = dedicated.map_err(|why| why.message).expect("a connection");
        let link = Arc::as_ptr(&dedicated.connection);
        dedicated.finish();
        link
    };
    let without_roots = new_upstream(|_| {});
    let anns = take(&without_roots, &ann, "one", with_roots).await;
    assert_eq!(take(&without_roots, &ann, "one", with_roots).await, anns);
    assert_ne!(take(&without_roots, &bob, "one", with_roots).await, anns);
    assert_ne!(take(&without_roots, &ann, "two", with_roots).await, anns);
    // Configured folders are the same for all, and a client without roots sends none.
    let configured = new_upstream(|settings| settings.roots = vec!["/srv".to_owned()]);
    let anns = take(&configured, &ann, "one", with_roots).await;
    assert_eq!(take(&configured, &bob, "two", with_roots).await, anns);
    let forms = QuestionSupport { form: true, ..QuestionSupport::default() };
    let anns = take(&without_roots, &ann, "one", forms).await;
    assert_eq!(take(&without_roots, &bob, "two", forms).await, anns);
}

#[tokio::test]
async fn a_dedicated_connection_that_fails_is_not_retried_at_once() {
    let server = ScriptedServer::new(|server, request| match request.body["method"].as_str() {
        Some("initialize") if server.times("initialize") > 1 => {
            ScriptedAnswer::Whole(500, "no more".to_owned())
        }
        _ => in_session(request),
    });
    let upstream = upstream(&server, |_| {});
    for (expected, times) in [("no more", 2), ("can try again in", 2)] {
        let why =
            upstream.connect_dedicated(QuestionSupport::default()).await.err().expect("it fails");
        assert!(why.message.contains(expected), "{}", why.message);
        assert_eq!(server.times("initialize"), times);
    }
    assert!(upstream.connection().await.is_ok(), "the shared connection still works");
}

#[tokio::test]
async fn any_answer_to_an_unknown_method_leads_to_the_older_handshake() {
    for unusual in [
        || ScriptedAnswer::Whole(500, "what?".to_owned()),
        || ScriptedAnswer::Whole(202, String::new()),
        || ScriptedAnswer::Whole(200, "[]".to_owned()),
        || ScriptedAnswer::Short(": nothing\n\n".to_owned()),
    ] {
        let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
            Some("server/discover") => unusual(),
            _ => in_session(request),
        });
        let link = upstream(&server, |_| {}).connection().await.map_err(|why| why.message);
        assert_eq!(link.expect("a connection").revision.name, "2025-06-18");
    }
}

#[tokio::test]
async fn a_server_that_stops_answering_is_failing_until_it_answers_again() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let server = ScriptedServer::new(move |_, request| match down.load(Ordering::Relaxed) {
        true => ScriptedAnswer::Whole(503, String::new()),
        false => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    assert_eq!(upstream.state(), UpstreamState::Idle);
    upstream.list().await.expect("it answers");
    assert_eq!(upstream.state(), UpstreamState::Connected);
    is_down.store(true, Ordering::Relaxed);
    upstream.list().await.expect_err("it is down");
    assert_eq!(upstream.state(), UpstreamState::Failing);
    is_down.store(false, Ordering::Relaxed);
    upstream.list().await.expect("it answers again");
    assert_eq!(upstream.state(), UpstreamState::Connected);
}
