//! Tests of the trace spans that are sent to a collector.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::exposition::MetricsExposition;
use crate::support::{
    REVISIONS, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestHttpRequest,
    TestMcpClient, call, modern, structured, wait_until,
};

/// Collector of OTLP trace spans over HTTP, whose answer a test configures.
struct TraceCollector {
    addr: SocketAddr,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl TraceCollector {
    /// Starts a collector that answers each request with the HTTP `status`, or never answers.
    fn answering(status: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::default();
        let received: Arc<Mutex<Vec<Value>>> = Arc::clone(&requests);
        spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                received.lock().unwrap().push(request(&mut stream));
                match status {
                    Some(status) => {
                        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                        let _ = stream.write_all(answer.as_bytes());
                    }
                    None => unanswered.push(stream),
                }
            }
        });
        Self { addr, requests }
    }

    fn launch(&self) -> ServerLaunchOptions {
        let url = format!("http://{}", self.addr);
        ServerLaunchOptions::over(&TempWorkspace::new()).set("telemetry_otlp", url)
    }

    fn spans(&self) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        let spans = |request: &Value| {
            let resource = &request["resourceSpans"][0];
            let service = json!({ "key": "service.name", "value": { "stringValue": "toolgate" } });
            let attributes = resource["resource"]["attributes"].as_array().unwrap();
            assert!(attributes.contains(&service), "{request}");
            resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
        };
        requests.iter().flat_map(spans).collect()
    }
}

/// Reads an HTTP request that exports trace spans, and returns its JSON body.
fn request(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert_ne!(count, 0, "the request is incomplete: {}", String::from_utf8_lossy(&bytes));
        bytes.extend(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
        if body.len() == length {
            return serde_json::from_str(body).unwrap();
        }
    }
}

/// Returns the attribute `key` of a span.
fn attribute(span: &Value, key: &str) -> Option<String> {
    let attributes = span["attributes"].as_array().unwrap();
    let value = &attributes.iter().find(|one| one["key"] == key)?["value"];
    Some(match value["boolValue"].as_bool() {
        Some(is) => is.to_string(),
        None => value["stringValue"].as_str().unwrap().to_owned(),
    })
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn traced(id: u64, flags: &str) -> Value {
    let meta =
        json!({ "traceparent": format!("00-{TRACE}-{PARENT}-{flags}"), "tracestate": "a=b" });
    let params = json!({ "name": "exec_run", "arguments": { "command": "env" }, "_meta": meta });
    modern(id, "tools/call", params)
}

/// Returns the variable `TRACEPARENT` of the program whose output is in `answer`.
fn program_parent(answer: &Value) -> String {
    let stdout = structured(answer)["stdout"].as_str().unwrap().to_owned();
    assert!(stdout.contains("TRACESTATE=a=b"), "{stdout}");
    let (_, parent) = stdout.split_once("TRACEPARENT=").expect("a parent");
    parent.lines().next().unwrap().to_owned()
}

#[test]
fn a_named_secret_in_a_trace_state_reaches_neither_a_program_nor_the_collector() {
    const SECRET: &str = "hunter2-of-a-variable";
    let collector = TraceCollector::answering(Some("200 OK"));
    let launch = collector.launch().set("secrets_values_from", "DEPLOY").env("DEPLOY", SECRET);
    let mut stdio = launch.stdio();
    let state = format!("a={SECRET}");
    let meta = json!({ "traceparent": format!("00-{TRACE}-{PARENT}-01"), "tracestate": state });
    let params = json!({ "name": "exec_run", "arguments": { "command": "env" }, "_meta": meta });
    let answer = stdio.ask(&modern(1, "tools/call", params));
    let stdout = structured(&answer)["stdout"].as_str().unwrap();
    assert!(stdout.contains("TRACESTATE=a=[redacted]"), "{stdout}");
    stdio.close_input();
    stdio.wait_for_exit();
    let sent = json!(collector.spans()).to_string();
    assert!(sent.contains("a=[redacted]") && !sent.contains(SECRET), "{sent}");
}

#[test]
fn a_call_is_a_span_in_the_clients_trace_and_its_programs_continue_it() {
    let collector = TraceCollector::answering(Some("200 OK"));
    let mut stdio = collector.launch().stdio();
    let sampled = program_parent(&stdio.ask(&traced(1, "01")));
    let unsampled = program_parent(&stdio.ask(&traced(2, "00")));
    stdio.ask(&call(3, "made_up", json!({})));
    stdio.ask(&call(4, "exec_run", json!({ "command": "false" })));
    stdio.ask(&modern(5, "prompts/get", json!({ "name": "bootstrap" })));
    stdio.ask(&modern(6, "resources/read", json!({ "uri": "audit://tail" })));
    stdio.close_input();
    stdio.wait_for_exit();
    let spans = collector.spans();
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    let expected = [
        "tools/call exec.run",
        "tools/call",
        "tools/call exec.run",
        "prompts/get bootstrap",
        "resources/read",
    ];
    assert_eq!(names, expected);
    let sent = json!(spans).to_string();
    assert!(!sent.contains("made_up") && !sent.contains("audit://"), "{sent}");

    assert_eq!((&spans[0]["traceId"], &spans[0]["parentSpanId"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!(sampled, format!("00-{TRACE}-{}-01", spans[0]["spanId"].as_str().unwrap()));
    assert_eq!(unsampled, format!("00-{TRACE}-{PARENT}-00"), "an unsampled call has no span");
    assert_eq!(spans[0]["traceState"], "a=b");
    let nanos = |span: &Value, at: &str| span[at].as_str().unwrap().parse::<u64>().unwrap();
    for span in &spans {
        assert_eq!(span["kind"], 2, "the kind is server");
        assert!(nanos(span, "endTimeUnixNano") > nanos(span, "startTimeUnixNano"));
        assert_eq!(attribute(span, "network.transport").unwrap(), "pipe");
        assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
    }
    for (span, method, outcome, error) in [
        (&spans[0], "tools/call", "ok", None),
        (&spans[1], "tools/call", "unknown_tool", Some("unknown_tool")),
        (&spans[2], "tools/call", "program_failed", Some("tool_error")),
        (&spans[3], "prompts/get", "ok", None),
        (&spans[4], "resources/read", "ok", None),
    ] {
        assert_eq!(attribute(span, "mcp.method.name").unwrap(), method);
        assert_eq!(attribute(span, "toolgate.outcome").unwrap(), outcome);
        assert_eq!(attribute(span, "error.type").as_deref(), error);
        assert_eq!(span["status"]["code"].as_u64(), error.map(|_| 2));
    }
    assert_eq!(attribute(&spans[2], "gen_ai.tool.name").unwrap(), "exec.run");
    assert_eq!(attribute(&spans[2], "toolgate.policy.decision").unwrap(), "allow");
    assert_eq!(attribute(&spans[3], "gen_ai.prompt.name").unwrap(), "bootstrap");
    assert_eq!(spans[2].get("parentSpanId"), None);
    assert_ne!(spans[2]["traceId"], spans[3]["traceId"]);
    // The audit record has the trace of the client.
    let received = format!("00-{TRACE}-{PARENT}-01");
    assert_eq!(stdio.records()[0]["trace"], received);
}

#[test]
fn a_span_has_the_session_of_its_record_and_is_sent_while_the_server_runs() {
    let collector = TraceCollector::answering(Some("200 OK"));
    let wire = TestClientTransport::Http(collector.launch().served());
    let mut client = TestMcpClient::open(wire, REVISIONS[1], json!({}));
    client.call("files_exists", json!({ "path": "." }));
    client.server().outcomes(1);
    wait_until("the span is sent", || collector.spans().len() == 1);
    let span = &collector.spans()[0];
    let record = &client.server().records()[0];
    assert_eq!(attribute(span, "mcp.session.id").unwrap(), record["session"]);
    assert_eq!(attribute(span, "network.transport").unwrap(), "tcp");
    assert_eq!(attribute(span, "network.protocol.name").unwrap(), "http");
}

#[test]
fn spans_that_the_collector_rejects_are_dropped_and_counted() {
    let collector = TraceCollector::answering(Some("400 Bad Request"));
    let served = collector.launch().set("telemetry_metrics", "true").served();
    for id in 0..5 {
        structured(&served.ask(&call(id, "files_exists", json!({ "path": "." }))));
    }
    wait_until("the spans are dropped", || {
        let page = served.send(&TestHttpRequest::bare("GET", "/metrics")).text();
        let metrics = MetricsExposition::parse(&page);
        assert_eq!(metrics.value("toolgate_spans_sent_total"), 0.0);
        metrics.value("toolgate_spans_dropped_total") == 5.0
    });
    wait_until("the drop is logged", || served.log().contains("spans are dropped"));
    assert_eq!(served.log().matches("spans are dropped").count(), 1, "{}", served.log());
}

#[test]
fn a_collector_that_never_answers_does_not_keep_the_server_from_stopping() {
    let collector = TraceCollector::answering(None);
    let mut stdio = collector.launch().stdio();
    structured(&stdio.ask(&call(1, "files_exists", json!({ "path": "." }))));
    wait_until("a request is received", || !collector.requests.lock().unwrap().is_empty());
    let started = Instant::now();
    stdio.close_input();
    assert_eq!(stdio.wait_for_exit().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
