//! Upstreams that are listened to, idle, or slow of understanding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use toolgate_contract::{Askable, Caller};

use super::callers::Nothing;
use super::*;
use crate::wires::scripted::{Answer, Request, Scripted, result, until};

/// The upstream that `server` is, with `more` of its settings.
fn upstream(server: &Arc<Scripted>, more: impl Fn(&mut Settings)) -> Arc<Upstream> {
    let mut settings = Settings { url: Some("http://a.example/mcp".into()), ..Settings::default() };
    more(&mut settings);
    let handed = (server.world(), Arc::new(Nothing) as _, Results::default(), Claims::default());
    Upstream::new("it", settings, handed, Changes::default(), (None, Whose::All))
}

/// What a server of 2026-07-28 answers that tells of its tools.
fn stateless(request: &Request) -> Answer {
    let said = match request.body["method"].as_str() {
        Some("server/discover") => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": { "tools": { "listChanged": true } },
        }),
        _ => json!({ "tools": [] }),
    };
    Answer::Whole(200, result(request, &said).to_string())
}

/// What a server of sessions answers.
fn in_session(request: &Request) -> Answer {
    let method = request.body["method"].as_str().unwrap_or_default();
    match method {
        "initialize" => {
            let said = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
            Answer::Whole(200, result(request, &said).to_string())
        }
        _ if request.method == "GET" => Answer::Whole(405, String::new()),
        _ if request.body["id"].is_null() => Answer::Whole(202, String::new()),
        _ => Answer::Whole(200, result(request, &json!({})).to_string()),
    }
}

#[tokio::test]
async fn what_is_listened_to_is_again_once_it_ended_and_looked_at_for_what_was_missed() {
    let server = Scripted::new(|server, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") if server.times("subscriptions/listen") == 1 => {
            Answer::Short(String::new())
        }
        Some("subscriptions/listen") => Answer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    upstream.link().await.expect("a connection");
    until("it is listened to again", || server.times("subscriptions/listen") == 2).await;
    until("it is looked at again", || server.times("tools/list") == 2).await;
    server.tells(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    until("it is heard", || server.times("tools/list") == 3).await;
}

#[tokio::test(start_paused = true)]
async fn lists_that_nobody_tells_the_changes_of_are_looked_at_again_once_they_are_not_good() {
    let server = Scripted::new(|_, request| {
        let said = match request.body["method"].as_str() {
            Some("server/discover") => json!({
                "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": {}, "prompts": { "listChanged": true } },
            }),
            Some("tools/list") => json!({ "tools": [], "ttlMs": 90_000 }),
            _ => json!({ "prompts": [], "ttlMs": 100_000 }),
        };
        match request.body["method"].as_str() {
            Some("subscriptions/listen") => Answer::Stream(String::new()),
            _ => Answer::Whole(200, result(request, &said).to_string()),
        }
    });
    let upstream = upstream(&server, |_| {});
    upstream.link().await.expect("a connection");
    for times in 1..=3 {
        until("it is looked at", || server.times("tools/list") == times).await;
        tokio::time::sleep(Duration::from_secs(88)).await;
        assert_eq!(server.times("tools/list"), times);
    }
}

#[tokio::test]
async fn a_server_that_lists_the_same_for_ever_has_it_once() {
    let server = Scripted::new(|_, request| match request.body["method"].as_str() {
        Some("tools/list") => {
            let said = json!({ "tools": [{ "name": "a" }], "nextCursor": "again" });
            Answer::Whole(200, result(request, &said).to_string())
        }
        _ => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    let listing = upstream.ask_all().await.expect("a list");
    assert_eq!(listing.tools.len(), 1);
    // Twice each time that it is looked at.
    assert!(server.times("tools/list") <= 4);
}

#[tokio::test]
async fn an_upstream_that_is_only_listened_to_is_let_go() {
    let server = Scripted::new(|_, request| match request.body["method"].as_str() {
        Some("subscriptions/listen") => Answer::Stream(String::new()),
        _ => stateless(request),
    });
    let upstream = upstream(&server, |settings| settings.idle_ms = 1500);
    let link = Arc::downgrade(&upstream.link().await.expect("a connection"));
    until("it is listened to", || server.times("subscriptions/listen") == 1).await;
    until("nobody has it", || link.upgrade().is_none()).await;
    assert!(upstream.live().is_none());
}

#[tokio::test]
async fn a_connection_of_a_calls_own_is_let_go_when_it_has_nothing_to_do() {
    let server = Scripted::new(|_, request| in_session(request));
    let upstream = upstream(&server, |settings| settings.idle_ms = 100);
    let lane = upstream.lanes.take(&upstream, (&Caller::local(), None), Askable::default()).await;
    let lane = lane.map_err(|why| why.message).expect("a connection");
    let link = Arc::downgrade(&lane.link);
    let main = || upstream.live();
    until("the shared one is let go", || main().is_none()).await;
    assert!(link.upgrade().is_some(), "a call has it");
    lane.done();
    until("nobody has it", || link.upgrade().is_none()).await;
}

#[tokio::test]
async fn a_connection_that_may_have_been_told_somebodys_folders_is_nobody_elses() {
    let server = Scripted::new(|_, request| in_session(request));
    let able = Askable { roots: true, ..Askable::default() };
    let [ann, bob] = ["ann", "bob"].map(Caller::named);
    let begun = |more: fn(&mut Settings)| upstream(&server, more);
    let take = async |upstream: &Arc<Upstream>, caller: &Caller, session: &str, can| {
        let lane = upstream.lanes.take(upstream, (caller, Some(session.into())), can).await;
        let lane = lane.map_err(|why| why.message).expect("a connection");
        let link = Arc::as_ptr(&lane.link);
        lane.done();
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
    let forms = Askable { form: true, ..Askable::default() };
    let anns = take(&told, &ann, "one", forms).await;
    assert_eq!(take(&told, &bob, "two", forms).await, anns);
}

#[tokio::test]
async fn a_connection_of_a_calls_own_that_does_not_begin_is_not_tried_again_at_once() {
    let server = Scripted::new(|server, request| match request.body["method"].as_str() {
        Some("initialize") if server.times("initialize") > 1 => {
            Answer::Whole(500, "no more".to_owned())
        }
        _ => in_session(request),
    });
    let upstream = upstream(&server, |_| {});
    for (says, times) in [("no more", 2), ("tried again in", 2)] {
        let why = upstream.another(Askable::default()).await.err().expect("it does not begin");
        assert!(why.message.contains(says), "{}", why.message);
        assert_eq!(server.times("initialize"), times);
    }
    assert!(upstream.link().await.is_ok(), "the shared one goes on");
}

#[tokio::test]
async fn a_server_that_answers_what_it_does_not_know_in_whatever_way_is_asked_what_it_may_know() {
    for odd in [
        || Answer::Whole(500, "what?".to_owned()),
        || Answer::Whole(202, String::new()),
        || Answer::Whole(200, "[]".to_owned()),
        || Answer::Short(": nothing\n\n".to_owned()),
    ] {
        let server = Scripted::new(move |_, request| match request.body["method"].as_str() {
            Some("server/discover") => odd(),
            _ => in_session(request),
        });
        let link = upstream(&server, |_| {}).link().await.map_err(|why| why.message);
        assert_eq!(link.expect("a connection").revision.name, "2025-06-18");
    }
}

#[tokio::test]
async fn a_server_that_answers_no_more_is_failing_and_is_not_once_it_does() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let server = Scripted::new(move |_, request| match down.load(Ordering::Relaxed) {
        true => Answer::Whole(503, String::new()),
        false => stateless(request),
    });
    let upstream = upstream(&server, |_| {});
    assert_eq!(upstream.state(), State::Idle);
    upstream.ask_all().await.expect("it answers");
    assert_eq!(upstream.state(), State::Connected);
    is_down.store(true, Ordering::Relaxed);
    upstream.ask_all().await.expect_err("it is down");
    assert_eq!(upstream.state(), State::Failing);
    is_down.store(false, Ordering::Relaxed);
    upstream.ask_all().await.expect("it answers again");
    assert_eq!(upstream.state(), State::Connected);
}
