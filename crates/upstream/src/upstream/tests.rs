//! Upstreams that are listened to, idle, or slow of understanding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use toolgate_contract::{Caller, QuestionSupport};

use super::callers::NoStorage;
use super::*;
use crate::transports::scripted::{ScriptedAnswer, ScriptedRequest, ScriptedServer, result, until};

/// The upstream that `server` is, with `more` of its settings.
fn upstream(server: &Arc<ScriptedServer>, more: impl Fn(&mut UpstreamSettings)) -> Arc<Upstream> {
    let mut settings = UpstreamSettings {
        url: Some("http://a.example/mcp".into()),
        ..UpstreamSettings::default()
    };
    more(&mut settings);
    let handed =
        (server.world(), Arc::new(NoStorage) as _, ResultStore::default(), UriOwnership::default());
    Upstream::new("it", settings, handed, ChangeFeed::default(), (None, InstanceOwner::Shared))
}

/// What a server of 2026-07-28 answers that tells of its tools.
fn stateless(request: &ScriptedRequest) -> ScriptedAnswer {
    let said = match request.body["method"].as_str() {
        Some("server/discover") => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } },
        }),
        _ => json!({ "tools": [] }),
    };
    ScriptedAnswer::Whole(200, result(request, &said).to_string())
}

/// What a server of sessions answers.
fn in_session(request: &ScriptedRequest) -> ScriptedAnswer {
    let method = request.body["method"].as_str().unwrap_or_default();
    match method {
        "initialize" => {
            let said = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
            ScriptedAnswer::Whole(200, result(request, &said).to_string())
        }
        _ if request.method == "GET" => ScriptedAnswer::Whole(405, String::new()),
        _ if request.body["id"].is_null() => ScriptedAnswer::Whole(202, String::new()),
        _ => ScriptedAnswer::Whole(200, result(request, &json!({})).to_string()),
    }
}

#[tokio::test]
async fn what_is_listened_to_is_again_once_it_ended_and_looked_at_for_what_was_missed() {
    let server = ScriptedServer::new(|server, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") if server.times("subscriptions/listen") == 1 => {
            ScriptedAnswer::Short(String::new())
        }
        Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    upstream.connection().await.expect("a connection");
    until("it is listened to again", || server.times("subscriptions/listen") == 2).await;
    until("it is looked at again", || server.times("tools/list") == 2).await;
    server.send_to_streams(
        &json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }),
    );
    until("it is heard", || server.times("tools/list") == 3).await;
}

#[tokio::test(start_paused = true)]
async fn lists_that_nobody_tells_the_changes_of_are_looked_at_again_once_they_are_not_good() {
    let server = ScriptedServer::new(|_, request| {
        let said = match request.body["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {}, "prompts": { "listChanged": true } },
            }),
            Some("tools/list") => json!({ "tools": [], "ttlMs": 90_000 }),
            _ => json!({ "prompts": [], "ttlMs": 100_000 }),
        };
        match request.body["method"].as_str() {
            Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
            _ => ScriptedAnswer::Whole(200, result(request, &said).to_string()),
        }
    });
    let upstream = upstream(&server, |_| {});
    upstream.connection().await.expect("a connection");
    for times in 1..=3 {
        until("it is looked at", || server.times("tools/list") == times).await;
        tokio::time::sleep(Duration::from_secs(88)).await;
        assert_eq!(server.times("tools/list"), times);
    }
}

#[tokio::test]
async fn a_server_that_lists_the_same_for_ever_has_it_once() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("tools/list") => {
            let said = json!({ "tools": [{ "name": "a" }], "nextCursor": "again" });
            ScriptedAnswer::Whole(200, result(request, &said).to_string())
        }
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    let listing = upstream.list().await.expect("a list");
    assert_eq!(listing.tools.len(), 1);
    // Twice each time that it is looked at.
    assert!(server.times("tools/list") <= 4);
}

#[tokio::test]
async fn an_upstream_that_is_only_listened_to_is_let_go() {
    let server = ScriptedServer::new(|_, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") => ScriptedAnswer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream = upstream(&server, |settings| settings.idle_ms = 1500);
    let link = Arc::downgrade(&upstream.connection().await.expect("a connection"));
    until("it is listened to", || server.times("subscriptions/listen") == 1).await;
    until("nobody has it", || link.upgrade().is_none()).await;
    assert!(upstream.live_connection().is_none());
}

#[tokio::test]
async fn a_connection_of_a_calls_own_is_let_go_when_it_has_nothing_to_do() {
    let server = ScriptedServer::new(|_, request| in_session(request));
    let upstream = upstream(&server, |settings| settings.idle_ms = 100);
    let lane = upstream
        .dedicated
        .take(&upstream, (&Caller::local(), None), QuestionSupport::default())
        .await;
    let lane = lane.map_err(|why| why.message).expect("a connection");
    let link = Arc::downgrade(&lane.connection);
    let main = || upstream.live_connection();
    until("the shared one is let go", || main().is_none()).await;
    assert!(link.upgrade().is_some(), "a call has it");
    lane.finish();
    until("nobody has it", || link.upgrade().is_none()).await;
}

#[tokio::test]
async fn a_connection_that_may_have_been_told_somebodys_folders_is_nobody_elses() {
    let server = ScriptedServer::new(|_, request| in_session(request));
    let able = QuestionSupport { roots: true, ..QuestionSupport::default() };
    let [ann, bob] = ["ann", "bob"].map(Caller::with_key);
    let begun = |more: fn(&mut UpstreamSettings)| upstream(&server, more);
    let take = async |upstream: &Arc<Upstream>, caller: &Caller, session: &str, can| {
        let lane = upstream.dedicated.take(upstream, (caller, Some(session.into())), can).await;
        let lane = lane.map_err(|why| why.message).expect("a connection");
        let link = Arc::as_ptr(&lane.connection);
        lane.finish();
        link
    };
    let told = begun(|_| {});
    let anns = take(&told, &ann, "one", able).await;
    assert_eq!(take(&told, &ann, "one", able).await, anns);
    assert_ne!(take(&told, &bob, "one", able).await, anns);
    assert_ne!(take(&told, &ann, "two", able).await, anns);
    // Whose folders are the settings', or who has none to tell, has told nothing.
    let set = begun(|settings| settings.roots = vec!["/srv".to_owned()]);
    let anns = take(&set, &ann, "one", able).await;
    assert_eq!(take(&set, &bob, "two", able).await, anns);
    let forms = QuestionSupport { form: true, ..QuestionSupport::default() };
    let anns = take(&told, &ann, "one", forms).await;
    assert_eq!(take(&told, &bob, "two", forms).await, anns);
}

#[tokio::test]
async fn a_connection_of_a_calls_own_that_does_not_begin_is_not_tried_again_at_once() {
    let server = ScriptedServer::new(|server, request| match request.body["method"].as_str() {
        Some("initialize") if server.times("initialize") > 1 => {
            ScriptedAnswer::Whole(500, "no more".to_owned())
        }
        _ => in_session(request),
    });
    let upstream = upstream(&server, |_| {});
    for (says, times) in [("no more", 2), ("tried again in", 2)] {
        let why = upstream
            .connect_dedicated(QuestionSupport::default())
            .await
            .err()
            .expect("it does not begin");
        assert!(why.message.contains(says), "{}", why.message);
        assert_eq!(server.times("initialize"), times);
    }
    assert!(upstream.connection().await.is_ok(), "the shared one goes on");
}

#[tokio::test]
async fn a_server_that_answers_what_it_does_not_know_in_whatever_way_is_asked_what_it_may_know() {
    for odd in [
        || ScriptedAnswer::Whole(500, "what?".to_owned()),
        || ScriptedAnswer::Whole(202, String::new()),
        || ScriptedAnswer::Whole(200, "[]".to_owned()),
        || ScriptedAnswer::Short(": nothing\n\n".to_owned()),
    ] {
        let server = ScriptedServer::new(move |_, request| match request.body["method"].as_str() {
            Some("server/discover") => odd(),
            _ => in_session(request),
        });
        let link = upstream(&server, |_| {}).connection().await.map_err(|why| why.message);
        assert_eq!(link.expect("a connection").revision.name, "2025-06-18");
    }
}

#[tokio::test]
async fn a_server_that_answers_no_more_is_failing_and_is_not_once_it_does() {
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
