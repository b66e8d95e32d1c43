//! SU, C1: what a client of the stateless revision is told of changes.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{code, of_mcp, uri};
use crate::support::{
    Client, Connection, Launch, MODERN, NOTHING, Post, Served, Stdio, Wire, Workspace, call,
    modern, over_both, over_both_tuned,
};

const PROMPT: &str = "---\ndescription: d\n---\nSay.\n";

/// A client's open subscriptions: each a stream of its own over HTTP, all on one line over stdio.
enum Line<'c> {
    Http(&'c Served, Vec<(Value, Connection)>),
    Stdio(&'c mut Stdio),
}

impl<'c> Line<'c> {
    fn of(client: &'c mut Client) -> Self {
        match &mut client.wire {
            Wire::Http(served) => Self::Http(served, Vec::new()),
            Wire::Stdio(stdio) => Self::Stdio(stdio),
        }
    }

    /// Listens for `wanted` as `id`; what is told will come.
    #[track_caller]
    fn listen(&mut self, id: impl Into<Value>, wanted: Value) -> Value {
        let id = id.into();
        let message =
            modern(id.clone(), "subscriptions/listen", json!({ "notifications": wanted }));
        match self {
            Self::Stdio(stdio) => stdio.send(&message),
            Self::Http(served, open) => {
                let mut connection = served.connect();
                connection.post(&Post::mcp(&message));
                let head = connection.head();
                assert!(head.is_stream(), "{head:?}");
                open.push((id.clone(), connection));
            }
        }
        let first = self.heard(&id);
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        assert_eq!(tag(&first), id, "{first}");
        first["params"]["notifications"].clone()
    }

    /// The next thing told on the subscription `id`.
    #[track_caller]
    fn heard(&mut self, id: &Value) -> Value {
        match self {
            Self::Stdio(stdio) => loop {
                let message = stdio.receive();
                if tag(&message) == *id {
                    return message;
                }
            },
            Self::Http(_, open) => {
                let (_, connection) = open.iter_mut().find(|(other, _)| other == id).unwrap();
                connection.event().expect("it ended")
            }
        }
    }
}

/// Which subscription a message is of.
fn tag(message: &Value) -> Value {
    let key = of_mcp("subscriptionId");
    let carrier =
        if message.get("result").is_some() { &message["result"] } else { &message["params"] };
    carrier["_meta"][&key].clone()
}

#[test]
fn su1_the_first_thing_told_is_what_will_be() {
    let workspace = Workspace::new();
    let file = uri(&workspace, "README.md");
    over_both(&workspace, |client| {
        let mut line = Line::of(client);
        let wanted = json!({ "promptsListChanged": true, "resourceSubscriptions": [file] });
        assert_eq!(line.listen(1, wanted.clone()), wanted);
        let all = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
        });
        assert_eq!(line.listen(2, all.clone()), all);
        assert_eq!(line.listen(3, json!({})), json!({}));
        let told = line.listen(4, json!({ "promptsListChanged": false, "weatherChanged": true }));
        assert_eq!(told.get("weatherChanged"), None, "{told}");
        assert_ne!(told["promptsListChanged"], true, "{told}");
    });
}

#[test]
fn su1_what_is_not_there_to_be_watched_is_not_promised() {
    let workspace = Workspace::new();
    let good = uri(&workspace, "README.md");
    let tune = |launch: Launch| launch.set("prompts_enabled", false);
    over_both_tuned(&workspace, tune, |client| {
        let mut line = Line::of(client);
        let uris = [good.as_str(), "unheard:of", "file:///etc/passwd"];
        let wanted = json!({ "promptsListChanged": true, "resourceSubscriptions": uris });
        let told = line.listen("a", wanted);
        assert_ne!(told["promptsListChanged"], true, "{told}");
        assert_eq!(told["resourceSubscriptions"], json!([good]), "{told}");
    });
}

#[test]
fn su2_all_that_is_told_names_its_subscription_by_the_id_as_it_was_given() {
    let workspace = Workspace::new();
    let file = uri(&workspace, "README.md");
    over_both(&workspace, |client| {
        let mut line = Line::of(client);
        for id in [json!(7), json!("7"), json!("ü"), json!(0)] {
            line.listen(id.clone(), json!({ "resourceSubscriptions": [file] }));
            workspace.put("README.md", format!("{id} {:?}", std::time::Instant::now()));
            let told = line.heard(&id);
            assert_eq!(told["method"], "notifications/resources/updated", "{told}");
            assert_eq!(told["params"]["uri"], file, "{told}");
            assert_eq!(tag(&told), id, "{told}");
        }
        workspace.put("README.md", Workspace::README);
    });
}

#[test]
fn su3_nobody_is_told_what_they_did_not_ask_for() {
    let workspace = Workspace::new().file("other.txt", "1");
    let file = uri(&workspace, "README.md");
    let other = uri(&workspace, "other.txt");
    over_both(&workspace, |client| {
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
        let mut line = Line::of(client);
        line.listen("file", json!({ "resourceSubscriptions": [file] }));
        line.listen(
            "all",
            json!({ "promptsListChanged": true, "resourceSubscriptions": [file, other] }),
        );
        workspace.put("other.txt", format!("{:?}", std::time::Instant::now()));
        let told = line.heard(&json!("all"));
        assert_eq!(told["params"]["uri"], other, "{told}");
        workspace.put(".toolgate/prompts/say.md", PROMPT);
        let told = line.heard(&json!("all"));
        assert_eq!(told["method"], "notifications/prompts/list_changed", "{told}");
        workspace.put("README.md", format!("{:?}", std::time::Instant::now()));
        // The first that this one is told of.
        let told = line.heard(&json!("file"));
        assert_eq!(told["params"]["uri"], file, "{told}");
    });
}

#[test]
fn su4_a_server_that_ends_says_so_on_every_subscription() {
    let workspace = Workspace::new();
    over_both(&workspace, |client| {
        let over_stdio = matches!(client.wire, Wire::Stdio(_));
        let mut line = Line::of(client);
        line.listen(1, json!({ "promptsListChanged": true }));
        line.listen("b", json!({ "toolsListChanged": true }));
        match &line {
            Line::Http(served, _) => served.signal(Signal::TERM),
            Line::Stdio(stdio) => stdio.signal(Signal::TERM),
        }
        for id in [json!(1), json!("b")] {
            // Both end at once, and stdio has one line: whatever comes first.
            let mut last = Value::Null;
            match &mut line {
                Line::Http(_, open) => {
                    let (_, connection) = open.iter_mut().find(|(other, _)| *other == id).unwrap();
                    while let Some(message) = connection.event() {
                        last = message;
                    }
                }
                Line::Stdio(stdio) => last = stdio.answer(id.clone()),
            }
            assert_eq!(last["id"], id, "{last}");
            assert_eq!(last["result"]["resultType"], "complete", "{last}");
            assert_eq!(tag(&last), id, "{last}");
            let server = &last["result"]["_meta"][of_mcp("serverInfo")];
            assert_eq!(server["name"], "toolgate", "B13: {last}");
        }
        if let (true, Line::Stdio(stdio)) = (over_stdio, line) {
            let rest = stdio.rest();
            for id in [json!(1), json!("b")] {
                let cancelled = |message: &&Value| {
                    message["method"] == "notifications/cancelled"
                        && message["params"]["requestId"] == id
                };
                assert_eq!(rest.iter().filter(cancelled).count(), 1, "{id}: {rest:?}");
            }
        }
    });
}

#[test]
fn su5_progress_is_told_with_its_request_and_never_on_a_subscription() {
    let workspace = Workspace::new();
    over_both(&workspace, |client| {
        let script = "for n in 1 2 3; do echo $n; sleep 0.15; done";
        let call = json!({
            "name": "exec_run",
            "arguments": { "command": script, "shell": true },
            "_meta": { "progressToken": "p", of_mcp("logLevel"): "debug" },
        });
        let mut line = Line::of(client);
        line.listen("s", json!({ "promptsListChanged": true, "toolsListChanged": true }));
        let call = modern("call", "tools/call", call);
        match &mut line {
            Line::Http(served, open) => {
                let events = served.send(&Post::mcp(&call)).events();
                assert!(events.len() > 1, "{events:?}");
                workspace.put(".toolgate/prompts/later.md", PROMPT);
                let told = open[0].1.event().unwrap();
                assert_eq!(told["method"], "notifications/prompts/list_changed", "{told}");
            }
            Line::Stdio(stdio) => {
                stdio.send(&call);
                loop {
                    let message = stdio.receive();
                    if message["id"] == "call" {
                        break;
                    }
                    assert_eq!(tag(&message), Value::Null, "{message}");
                }
            }
        }
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
    });
}

#[test]
fn su6_a_client_has_as_many_subscriptions_as_it_likes() {
    let workspace = Workspace::new();
    let files: Vec<_> = (0..12).map(|n| format!("{n}.txt")).collect();
    files.iter().for_each(|file| workspace.put(file, "1"));
    over_both(&workspace, |client| {
        let mut line = Line::of(client);
        for file in &files {
            line.listen(file.as_str(), json!({ "resourceSubscriptions": [uri(&workspace, file)] }));
        }
        for file in files.iter().rev() {
            workspace.put(file, format!("{:?}", std::time::Instant::now()));
            let told = line.heard(&json!(file));
            assert_eq!(told["params"]["uri"], uri(&workspace, file), "{told}");
        }
    });
}

#[test]
fn su6_one_that_is_cancelled_is_told_nothing_more_and_the_others_are() {
    let workspace = Workspace::new();
    let file = uri(&workspace, "README.md");
    let mut client = Client::stdio(Launch::over(&workspace), MODERN);
    let mut line = Line::of(&mut client);
    line.listen("a", json!({ "resourceSubscriptions": [file] }));
    line.listen("b", json!({ "resourceSubscriptions": [file] }));
    let Line::Stdio(stdio) = line else { unreachable!() };
    let cancel = json!({ "requestId": "a" });
    stdio.send(&crate::support::notification("notifications/cancelled", cancel));
    assert!(stdio.ask(&modern(1, "server/discover", json!({})))["result"].is_object());
    workspace.put("README.md", "changed");
    assert_eq!(tag(&stdio.receive()), "b");
    stdio.close_input();
    let rest = stdio.rest();
    assert!(rest.iter().all(|message| tag(message) != "a" && message["id"] != "a"), "{rest:?}");
}

#[test]
fn su6_closing_the_stream_ends_the_subscription() {
    let workspace = Workspace::new();
    let served = Launch::over(&workspace).set("server_connections_max", 4).served();
    // More one after another than there may be at once.
    for n in 0..12 {
        let mut connection = served.connect();
        let wanted = json!({ "notifications": { "promptsListChanged": true } });
        connection.post(&Post::mcp(&modern(n, "subscriptions/listen", wanted)));
        assert!(connection.head().is_stream());
        assert_eq!(tag(&connection.event().unwrap()), n);
        connection.close();
    }
    assert_eq!(served.send(&Post::mcp(&modern(1, "tools/list", json!({})))).status, 200);
}

#[test]
fn su7_lists_that_change_are_told_to_those_who_asked() {
    let workspace = Workspace::new();
    over_both(&workspace, |client| {
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
        let _ = std::fs::remove_file(workspace.path("fresh.txt"));
        let mut line = Line::of(client);
        line.listen("p", json!({ "promptsListChanged": true }));
        line.listen("r", json!({ "resourcesListChanged": true }));
        workspace.put("fresh.txt", "x");
        let told = line.heard(&json!("r"));
        assert_eq!(told["method"], "notifications/resources/list_changed", "{told}");
        workspace.put(".toolgate/prompts/say.md", PROMPT);
        let told = line.heard(&json!("p"));
        assert_eq!(told["method"], "notifications/prompts/list_changed", "{told}");
    });
}

#[test]
fn su8_what_asks_for_nothing_that_can_be_understood_is_refused() {
    over_both(&Workspace::new(), |client| {
        for params in [
            json!({}),
            json!({ "notifications": [] }),
            json!({ "notifications": true }),
            json!({ "notifications": { "promptsListChanged": "yes" } }),
            json!({ "notifications": { "resourceSubscriptions": "file:///a" } }),
            json!({ "notifications": { "resourceSubscriptions": [5] } }),
        ] {
            let answer = client.ask("subscriptions/listen", params.clone());
            assert_eq!(code(&answer), -32602, "{params}: {answer}");
        }
    });
}

#[test]
fn c1_no_cancellation_is_ever_sent_but_to_end_a_subscription() {
    let mut stdio = Launch::over(&Workspace::new()).stdio();
    let sleep = json!({ "command": "sleep", "args": ["60"], "timeout_ms": 100 });
    let answer = stdio.ask(&call(1, "exec_run", sleep));
    assert!(answer["result"].is_object(), "{answer}");
    stdio.send(&call(2, "files_list", json!({})));
    stdio.close_input();
    let rest = stdio.rest();
    assert!(rest.iter().all(|message| message.get("method").is_none()), "{rest:?}");
    assert_ne!(rest, NOTHING);
}
