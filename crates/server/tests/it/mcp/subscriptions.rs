//! Tests of subscriptions to change notifications in the stateless revision (rows SU and C1 of the
//! MCP checklist).

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{code, mcp_key, uri};
use crate::support::{
    HttpServerProcess, MODERN, NOTHING, ServerLaunchOptions, StdioServerProcess, TempWorkspace,
    TestClientTransport, TestHttpConnection, TestHttpRequest, TestMcpClient, call, modern,
    over_both, over_both_tuned,
};

const PROMPT: &str = "---\ndescription: d\n---\nSay.\n";

/// Open subscriptions of a client. Each has its own stream over HTTP, and all share one stream over
/// stdio.
enum OpenSubscriptions<'c> {
    Http(&'c HttpServerProcess, Vec<(Value, TestHttpConnection)>),
    Stdio(&'c mut StdioServerProcess),
}

impl<'c> OpenSubscriptions<'c> {
    fn new(client: &'c mut TestMcpClient) -> Self {
        match &mut client.wire {
            TestClientTransport::Http(served) => Self::Http(served, Vec::new()),
            TestClientTransport::Stdio(stdio) => Self::Stdio(stdio),
        }
    }

    /// Opens the subscription `id` for the notifications `wanted`. Returns the notifications that
    /// the server acknowledged.
    #[track_caller]
    fn listen(&mut self, id: impl Into<Value>, wanted: Value) -> Value {
        let id = id.into();
        let message =
            modern(id.clone(), "subscriptions/listen", json!({ "notifications": wanted }));
        match self {
            Self::Stdio(stdio) => stdio.send(&message),
            Self::Http(served, open) => {
                let mut connection = served.connect();
                connection.post(&TestHttpRequest::mcp(&message));
                let head = connection.head();
                assert!(head.is_stream(), "{head:?}");
                open.push((id.clone(), connection));
            }
        }
        let first = self.next_message(&id);
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        assert_eq!(subscription_id(&first), id, "{first}");
        first["params"]["notifications"].clone()
    }

    /// Returns the next message on the subscription `id`.
    #[track_caller]
    fn next_message(&mut self, id: &Value) -> Value {
        match self {
            Self::Stdio(stdio) => loop {
                let message = stdio.receive();
                if subscription_id(&message) == *id {
                    return message;
                }
            },
            Self::Http(_, open) => {
                let (_, connection) = open.iter_mut().find(|(other, _)| other == id).unwrap();
                connection.event().expect("the subscription ended")
            }
        }
    }
}

/// Returns the id of the subscription that a message belongs to.
fn subscription_id(message: &Value) -> Value {
    let key = mcp_key("subscriptionId");
    let carrier =
        if message.get("result").is_some() { &message["result"] } else { &message["params"] };
    carrier["_meta"][&key].clone()
}

#[test]
fn su1_the_first_message_acknowledges_the_requested_notifications() {
    let workspace = TempWorkspace::new();
    let file = uri(&workspace, "README.md");
    over_both(&workspace, |client| {
        let mut subscriptions = OpenSubscriptions::new(client);
        let wanted = json!({ "promptsListChanged": true, "resourceSubscriptions": [file] });
        assert_eq!(subscriptions.listen(1, wanted.clone()), wanted);
        let all = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
        });
        assert_eq!(subscriptions.listen(2, all.clone()), all);
        assert_eq!(subscriptions.listen(3, json!({})), json!({}));
        let acknowledged =
            subscriptions.listen(4, json!({ "promptsListChanged": false, "weatherChanged": true }));
        assert_eq!(acknowledged.get("weatherChanged"), None, "{acknowledged}");
        assert_ne!(acknowledged["promptsListChanged"], true, "{acknowledged}");
    });
}

#[test]
fn su1_unavailable_notifications_are_not_acknowledged() {
    let workspace = TempWorkspace::new();
    let good = uri(&workspace, "README.md");
    let tune = |launch: ServerLaunchOptions| launch.set("prompts_folder", "off");
    over_both_tuned(&workspace, tune, |client| {
        let mut subscriptions = OpenSubscriptions::new(client);
        let uris = [good.as_str(), "unheard:of", "file:///etc/passwd"];
        let wanted = json!({ "promptsListChanged": true, "resourceSubscriptions": uris });
        let acknowledged = subscriptions.listen("a", wanted);
        assert_ne!(acknowledged["promptsListChanged"], true, "{acknowledged}");
        assert_eq!(acknowledged["resourceSubscriptions"], json!([good]), "{acknowledged}");
    });
}

#[test]
fn su2_every_notification_has_its_subscription_id_as_given() {
    let workspace = TempWorkspace::new();
    let file = uri(&workspace, "README.md");
    over_both(&workspace, |client| {
        let mut subscriptions = OpenSubscriptions::new(client);
        for id in [json!(7), json!("7"), json!("ü"), json!(0)] {
            subscriptions.listen(id.clone(), json!({ "resourceSubscriptions": [file] }));
            workspace.put("README.md", format!("{id} {:?}", std::time::Instant::now()));
            let received = subscriptions.next_message(&id);
            assert_eq!(received["method"], "notifications/resources/updated", "{received}");
            assert_eq!(received["params"]["uri"], file, "{received}");
            assert_eq!(subscription_id(&received), id, "{received}");
        }
        workspace.put("README.md", TempWorkspace::README);
    });
}

#[test]
fn su3_only_requested_notifications_are_sent() {
    let workspace = TempWorkspace::new().file("other.txt", "1");
    let file = uri(&workspace, "README.md");
    let other = uri(&workspace, "other.txt");
    over_both(&workspace, |client| {
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
        let mut subscriptions = OpenSubscriptions::new(client);
        subscriptions.listen("file", json!({ "resourceSubscriptions": [file] }));
        subscriptions.listen(
            "all",
            json!({ "promptsListChanged": true, "resourceSubscriptions": [file, other] }),
        );
        workspace.put("other.txt", format!("{:?}", std::time::Instant::now()));
        let received = subscriptions.next_message(&json!("all"));
        assert_eq!(received["params"]["uri"], other, "{received}");
        workspace.put(".toolgate/prompts/say.md", PROMPT);
        let received = subscriptions.next_message(&json!("all"));
        assert_eq!(received["method"], "notifications/prompts/list_changed", "{received}");
        workspace.put("README.md", format!("{:?}", std::time::Instant::now()));
        // The first notification on this subscription.
        let received = subscriptions.next_message(&json!("file"));
        assert_eq!(received["params"]["uri"], file, "{received}");
    });
}

#[test]
fn su4_a_server_that_stops_ends_every_subscription() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let over_stdio = matches!(client.wire, TestClientTransport::Stdio(_));
        let mut subscriptions = OpenSubscriptions::new(client);
        subscriptions.listen(1, json!({ "promptsListChanged": true }));
        subscriptions.listen("b", json!({ "toolsListChanged": true }));
        match &subscriptions {
            OpenSubscriptions::Http(served, _) => served.signal(Signal::TERM),
            OpenSubscriptions::Stdio(stdio) => stdio.signal(Signal::TERM),
        }
        for id in [json!(1), json!("b")] {
            // Both end at once; over stdio their order is not fixed.
            let mut last = Value::Null;
            match &mut subscriptions {
                OpenSubscriptions::Http(_, open) => {
                    let (_, connection) = open.iter_mut().find(|(other, _)| *other == id).unwrap();
                    while let Some(message) = connection.event() {
                        last = message;
                    }
                }
                OpenSubscriptions::Stdio(stdio) => last = stdio.answer(id.clone()),
            }
            assert_eq!(last["id"], id, "{last}");
            assert_eq!(last["result"]["resultType"], "complete", "{last}");
            assert_eq!(subscription_id(&last), id, "{last}");
            let server = &last["result"]["_meta"][mcp_key("serverInfo")];
            assert_eq!(server["name"], "toolgate", "B13: {last}");
        }
        if let (true, OpenSubscriptions::Stdio(stdio)) = (over_stdio, subscriptions) {
            let rest = stdio.read_rest();
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
fn su5_progress_is_sent_with_its_request_and_never_on_a_subscription() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let script = "for n in 1 2 3; do echo $n; sleep 0.15; done";
        let call = json!({
            "name": "exec_run",
            "arguments": { "command": script, "shell": true },
            "_meta": { "progressToken": "p", mcp_key("logLevel"): "debug" },
        });
        let mut subscriptions = OpenSubscriptions::new(client);
        subscriptions.listen("s", json!({ "promptsListChanged": true, "toolsListChanged": true }));
        let call = modern("call", "tools/call", call);
        match &mut subscriptions {
            OpenSubscriptions::Http(served, open) => {
                let events = served.send(&TestHttpRequest::mcp(&call)).events();
                assert!(events.len() > 1, "{events:?}");
                workspace.put(".toolgate/prompts/later.md", PROMPT);
                let received = open[0].1.event().unwrap();
                assert_eq!(received["method"], "notifications/prompts/list_changed", "{received}");
            }
            OpenSubscriptions::Stdio(stdio) => {
                stdio.send(&call);
                loop {
                    let message = stdio.receive();
                    if message["id"] == "call" {
                        break;
                    }
                    assert_eq!(subscription_id(&message), Value::Null, "{message}");
                }
            }
        }
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
    });
}

#[test]
fn su6_a_client_can_have_many_subscriptions() {
    let workspace = TempWorkspace::new();
    let files: Vec<_> = (0..12).map(|n| format!("{n}.txt")).collect();
    files.iter().for_each(|file| workspace.put(file, "1"));
    over_both(&workspace, |client| {
        let mut subscriptions = OpenSubscriptions::new(client);
        for file in &files {
            subscriptions
                .listen(file.as_str(), json!({ "resourceSubscriptions": [uri(&workspace, file)] }));
        }
        for file in files.iter().rev() {
            workspace.put(file, format!("{:?}", std::time::Instant::now()));
            let received = subscriptions.next_message(&json!(file));
            assert_eq!(received["params"]["uri"], uri(&workspace, file), "{received}");
        }
    });
}

#[test]
fn su6_a_cancelled_subscription_gets_nothing_more_and_the_others_continue() {
    let workspace = TempWorkspace::new();
    let file = uri(&workspace, "README.md");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let mut subscriptions = OpenSubscriptions::new(&mut client);
    subscriptions.listen("a", json!({ "resourceSubscriptions": [file] }));
    subscriptions.listen("b", json!({ "resourceSubscriptions": [file] }));
    let OpenSubscriptions::Stdio(stdio) = subscriptions else { unreachable!() };
    let cancel = json!({ "requestId": "a" });
    stdio.send(&crate::support::notification("notifications/cancelled", cancel));
    assert!(stdio.ask(&modern(1, "server/discover", json!({})))["result"].is_object());
    workspace.put("README.md", "changed");
    assert_eq!(subscription_id(&stdio.receive()), "b");
    stdio.close_input();
    let rest = stdio.read_rest();
    assert!(
        rest.iter().all(|message| subscription_id(message) != "a" && message["id"] != "a"),
        "{rest:?}"
    );
}

#[test]
fn su6_closing_the_stream_ends_the_subscription() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).set("server_connections_max", 4).served();
    // More in sequence than are allowed at once.
    for n in 0..12 {
        let mut connection = served.connect();
        let wanted = json!({ "notifications": { "promptsListChanged": true } });
        connection.post(&TestHttpRequest::mcp(&modern(n, "subscriptions/listen", wanted)));
        assert!(connection.head().is_stream());
        assert_eq!(subscription_id(&connection.event().unwrap()), n);
        connection.close();
    }
    assert_eq!(served.send(&TestHttpRequest::mcp(&modern(1, "tools/list", json!({})))).status, 200);
}

#[test]
fn su7_list_changes_are_sent_to_their_subscribers() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let _ = std::fs::remove_dir_all(workspace.path(".toolgate"));
        let _ = std::fs::remove_file(workspace.path("fresh.txt"));
        let mut subscriptions = OpenSubscriptions::new(client);
        subscriptions.listen("p", json!({ "promptsListChanged": true }));
        subscriptions.listen("r", json!({ "resourcesListChanged": true }));
        workspace.put("fresh.txt", "x");
        let received = subscriptions.next_message(&json!("r"));
        assert_eq!(received["method"], "notifications/resources/list_changed", "{received}");
        workspace.put(".toolgate/prompts/say.md", PROMPT);
        let received = subscriptions.next_message(&json!("p"));
        assert_eq!(received["method"], "notifications/prompts/list_changed", "{received}");
    });
}

#[test]
fn su8_an_invalid_subscription_request_is_refused() {
    over_both(&TempWorkspace::new(), |client| {
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
fn c1_the_server_sends_cancellations_only_to_end_subscriptions() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let sleep = json!({ "command": "sleep", "args": ["60"], "timeout_ms": 100 });
    let answer = stdio.ask(&call(1, "exec_run", sleep));
    assert!(answer["result"].is_object(), "{answer}");
    stdio.send(&call(2, "files_list", json!({})));
    stdio.close_input();
    let rest = stdio.read_rest();
    assert!(rest.iter().all(|message| message.get("method").is_none()), "{rest:?}");
    assert_ne!(rest, NOTHING);
}
