//! Tests of misbehaving tools with a server over in-memory streams.
#![allow(clippy::disallowed_methods, reason = "a test reads the log that it configured")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{AnyTool, Effects, Tool, ToolContext, ToolError, erase_tool};
use toolgate_transports::memory;

use crate::assembly::transport_limits;
use crate::config::Config;
use crate::sessions::server_state::ServerState;
use crate::{LineStreamLimits, ServerBuilder, serve_lines};

#[derive(Deserialize, JsonSchema)]
struct EmptyTestInput {}

#[derive(Serialize, JsonSchema)]
struct NumberTestOutput {
    #[schemars(range(max = 10))]
    number: u32,
}

/// Defines a test tool by its name and its code.
macro_rules! tool {
    ($name:ident, $id:literal, $ctx:ident => $run:expr) => {
        struct $name;

        impl Tool for $name {
            const NAME: &'static str = $id;
            const TITLE: &'static str = "";
            const DESCRIPTION: &'static str = "";
            const EFFECTS: Effects = Effects::Reads;
            type Input = EmptyTestInput;
            type Output = NumberTestOutput;

            async fn run(
                &self,
                $ctx: &ToolContext,
                _: EmptyTestInput,
            ) -> Result<NumberTestOutput, ToolError> {
                $run
            }
        }
    };
}

tool!(Sound, "odd.sound", _ctx => Ok(NumberTestOutput { number: 1 }));
tool!(Panics, "odd.panics", _ctx => panic!("a detail of the tool's code"));
tool!(Lies, "odd.lies", _ctx => Ok(NumberTestOutput { number: 11 }));
tool!(Deaf, "odd.deaf", _ctx => {
    std::future::pending::<()>().await;
    Ok(NumberTestOutput { number: 2 })
});
tool!(Chatty, "odd.chatty", ctx => {
    for step in 0..10_000 {
        ctx.report_progress(f64::from(step), None, None);
    }
    Ok(NumberTestOutput { number: 3 })
});

/// Server in the test process, with the tools of this module and one open session.
struct TestServer {
    client: memory::InMemoryClient,
    records: PathBuf,
    _folder: tempfile::TempDir,
}

impl TestServer {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_bounded(change, |_| {}).await
    }

    async fn start_bounded(
        change: impl FnOnce(&mut Config),
        bound: impl FnOnce(&mut LineStreamLimits),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let records = folder.path().join("audit.jsonl");
        let mut config = Config::default();
        config.audit.to = records.display().to_string();
        config.audit.key = folder.path().join("audit.key").display().to_string();
        change(&mut config);
        let tools: Vec<Arc<dyn AnyTool>> = vec![
            erase_tool(Sound),
            erase_tool(Panics),
            erase_tool(Lies),
            erase_tool(Deaf),
            erase_tool(Chatty),
        ];
        let served =
            tools.into_iter().fold(ServerBuilder::new("test", "0"), ServerBuilder::any_tool);
        let served = served.open(&config).expect("a server");
        let (client, server) = memory::stream_pair(64 << 10);
        let mut bounds = transport_limits::line_bounds(&config);
        bound(&mut bounds);
        let mcp = served.dialect("mcp").expect("a dialect");
        tokio::spawn(async move {
            let state = ServerState::new(served.host.clone());
            let stop = CancellationToken::new();
            serve_lines(state, mcp, server, bounds, stop).await.expect("memory does not fail");
            served.host.flush();
        });
        let mut served = Self { client, records, _folder: folder };
        let hello = json!({ "protocolVersion": "2025-11-25" });
        served.send(0, "initialize", hello).await;
        served.answer().await;
        served
    }

    async fn send(&mut self, id: u32, method: &str, params: Value) {
        let frame = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.client.send(&frame.to_string()).await.expect("the server reads");
    }

    async fn call(&mut self, id: u32, tool: &str) {
        self.send(id, "tools/call", json!({ "name": tool })).await;
    }

    async fn answer(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(5), self.client.receive()).await;
        let line = line.expect("an answer in time").expect("no failure").expect("an answer");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Ends the session and returns the recorded outcomes of its calls.
    async fn outcomes(mut self) -> Vec<String> {
        self.client.close().await.expect("the server lives");
        while self.client.receive().await.expect("no failure").is_some() {}
        let mut lines = String::new();
        // The server writes its records after its last answer.
        for _ in 0..500 {
            lines = std::fs::read_to_string(&self.records).unwrap_or_default();
            if lines.ends_with('\n') {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        records.map(|record| record["outcome"].as_str().expect("an outcome").to_owned()).collect()
    }
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_panic_fails_its_call_and_the_next_call_succeeds() {
    let mut served = TestServer::start(|_| {}).await;
    served.call(1, "odd_panics").await;
    let answer = served.answer().await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert!(!answer.to_string().contains("a detail"), "{answer}");
    served.call(2, "odd_sound").await;
    assert_eq!(served.answer().await["result"]["structuredContent"]["number"], 1);
    assert_eq!(served.outcomes().await, ["failed", "ok"]);
}

#[tokio::test]
async fn a_result_that_breaks_its_schema_is_refused_or_only_logged_as_configured() {
    let mut served = TestServer::start(|_| {}).await;
    served.call(1, "odd_lies").await;
    let answer = served.answer().await;
    assert!(text(&answer).contains("/number"), "{answer}");
    assert_eq!(served.outcomes().await, ["invalid_output"]);

    let shadow = vec!["odd.*".to_owned()];
    let mut served = TestServer::start(|config| config.validation.shadow = shadow).await;
    served.call(1, "odd_lies").await;
    assert_eq!(served.answer().await["result"]["structuredContent"]["number"], 11);
    assert_eq!(served.outcomes().await, ["ok"]);
}

#[tokio::test]
async fn a_tool_that_never_ends_is_stopped_at_its_deadline() {
    let mut served = TestServer::start(|config| config.limits.deadline_ms = 100).await;
    served.call(1, "odd_deaf").await;
    let answer = served.answer().await;
    assert!(text(&answer).contains("longer than 100 ms"), "{answer}");
    assert_eq!(served.outcomes().await, ["timed_out"]);
}

#[tokio::test]
async fn a_tool_that_ignores_its_cancellation_is_dropped_after_the_grace() {
    let mut served = TestServer::start(|_| {}).await;
    served.call(1, "odd_deaf").await;
    let cancelled =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    served.client.send(cancelled).await.expect("the server reads");
    served.call(2, "odd_sound").await;
    assert_eq!(served.answer().await["id"], 2);
    let mut outcomes = served.outcomes().await;
    outcomes.sort();
    assert_eq!(outcomes, ["canceled", "ok"]);
}

#[tokio::test]
async fn a_line_waits_to_be_read_while_the_most_requests_are_in_flight() {
    let deadline = |config: &mut Config| config.limits.deadline_ms = 100;
    let mut served = TestServer::start_bounded(deadline, |bounds| bounds.in_flight_max = 2).await;
    served.call(1, "odd_deaf").await;
    served.call(2, "odd_deaf").await;
    served.call(3, "odd_sound").await;
    // The third line is not read before one of the first two calls has ended.
    assert_ne!(served.answer().await["id"], 3);
    let rest = [served.answer().await, served.answer().await];
    assert!(rest.iter().any(|answer| answer["id"] == 3), "{rest:?}");
}

#[tokio::test]
async fn a_flood_of_events_loses_events_but_not_the_answer() {
    let mut served = TestServer::start(|_| {}).await;
    let params = json!({ "name": "odd_chatty", "_meta": { "progressToken": "p" } });
    served.send(1, "tools/call", params).await;
    let mut last = -1.0;
    loop {
        let message = served.answer().await;
        if message["id"] == 1 {
            assert_eq!(message["result"]["structuredContent"]["number"], 3);
            break;
        }
        let progress = message["params"]["progress"].as_f64().expect("progress");
        assert!(progress > last, "{progress} after {last}");
        last = progress;
    }
    assert_eq!(served.outcomes().await, ["ok"]);
}
