//! Tests of envelopes and their log.
#![allow(clippy::disallowed_methods, reason = "a test looks at the files it made")]

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::schemas::{SchemaFile, SchemaFiles};

fn discover(transport: &'static str) -> EnvelopeRequestInfo {
    EnvelopeRequestInfo {
        transport,
        route: "discover".to_owned(),
        method: "mcp.discover".to_owned(),
        payload: json!({}),
        tool: None,
        prompt: None,
        io: None,
    }
}

fn builder(settings: EnvelopeSettings) -> EnvelopeBuilder {
    EnvelopeBuilder::new(settings, Arc::default(), None)
}

/// Builds an envelope for a test: the answer to a discovery request.
pub(super) fn discovered() -> CallEnvelope {
    seal(&builder(EnvelopeSettings::default()), &discover("stdio"))
}

fn seal(envelopes: &EnvelopeBuilder, via: &EnvelopeRequestInfo) -> CallEnvelope {
    let took = Duration::from_micros(1500);
    envelopes.build(via, Ok(json!({ "tools": ["é"] })), took, None)
}

#[test]
fn in_deterministic_mode_equal_requests_have_equal_ids_on_any_transport() {
    let settings = EnvelopeSettings { deterministic: true, ..EnvelopeSettings::default() };
    let envelopes = builder(settings);
    let [http, stdio] = ["http", "stdio"].map(|transport| seal(&envelopes, &discover(transport)));
    assert_eq!(http.meta.request_id, "f8f3eb42-5b88-5811-bebf-7d8e1a90ea79");
    assert_eq!(http.meta.duration_ms, 0.0);
    assert_eq!(EnvelopeMetadata { transport: "http".to_owned(), ..stdio.meta }, http.meta);
    let other = EnvelopeRequestInfo { payload: json!({ "a": 1 }), ..discover("http") };
    assert_ne!(seal(&envelopes, &other).meta.request_id, http.meta.request_id);
}

#[test]
fn by_default_ids_are_random_and_durations_are_measured() {
    let envelopes = builder(EnvelopeSettings::default());
    let [one, two] = [(), ()].map(|()| seal(&envelopes, &discover("http")).meta);
    assert_ne!(one.request_id, two.request_id);
    assert_ne!(one.request_id, one.trace_id);
    assert_eq!(one.duration_ms, 1.5);
    assert_eq!((one.input_bytes, one.output_bytes), (2, 20), "in ASCII");
}

#[test]
fn tool_input_that_lacks_the_common_fields_is_refused() {
    let envelopes = builder(EnvelopeSettings::default());
    let call = |io: Value| EnvelopeRequestInfo {
        tool: Some("mcp.tool:a.b".to_owned()),
        io: Some(io),
        ..discover("http")
    };
    let valid = json!({ "tool": "mcp.tool:a.b", "input": {} });
    assert_eq!(envelopes.check_tool_io(&call(valid)), Ok(()));
    for (io, expected) in [
        (json!({ "tool": "mcp.tool:a.b" }), "`input` is missing"),
        (json!({ "tool": "mcp.tool:a.c", "input": {} }), "`mcp.tool:a.b`"),
        (json!({ "tool": "a.b", "input": {} }), "/tool"),
    ] {
        let why = envelopes.check_tool_io(&call(io)).expect_err("it is refused").to_string();
        assert!(why.contains(expected), "{why}");
    }
}

/// Creates an envelope builder with a log in `folder`, and with a schema that no envelope matches.
fn impossible(validation: OutputSchemaCheck, folder: &Path) -> EnvelopeBuilder {
    let schema = json!({ "required": ["never"] });
    let file = SchemaFile { path: "envelope.schema.json".to_owned(), schema };
    let files = SchemaFiles { shared: vec![(SharedSchemaId::Envelope, file)], tools: Vec::new() };
    let schemas = SchemaRegistry::new(files).expect("a schema");
    let settings = EnvelopeSettings { validation, deterministic: true };
    let log = EnvelopeLog::open(folder, true).expect("a log");
    EnvelopeBuilder::new(settings, Arc::new(schemas), Some(log))
}

fn lines(folder: &Path) -> Vec<Value> {
    let latest = folder.join("mcp_server/envelope_validation.latest.jsonl");
    let text = fs::read_to_string(latest).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_validation_mode_decides_about_an_envelope_that_breaks_its_schema() {
    for (validation, ok, logged) in [
        (OutputSchemaCheck::Off, true, Value::Null),
        (OutputSchemaCheck::Shadow, true, json!("INVALID_OUTPUT")),
        (OutputSchemaCheck::Enforce, false, json!("INVALID_OUTPUT")),
    ] {
        let folder = TempDir::new().expect("a folder");
        let envelopes = impossible(validation, folder.path());
        let sealed = seal(&envelopes, &discover("http"));
        assert_eq!(sealed.ok, ok, "{validation:?}");
        assert_eq!(sealed.data.is_some(), ok);
        assert_eq!(
            sealed.error.map(|why| why.code),
            (!ok).then_some(EnvelopeErrorCode::InvalidOutput)
        );
        envelopes.flush();
        let line = &lines(folder.path())[0];
        assert_eq!(line["error"]["code"], logged);
        assert_eq!(line["requestId"], sealed.meta.request_id);
    }
}

#[test]
fn a_line_has_17_fields_and_deterministic_runs_are_identical() {
    let folder = TempDir::new().expect("a folder");
    let run = || {
        let settings = EnvelopeSettings { deterministic: true, ..EnvelopeSettings::default() };
        let log = EnvelopeLog::open(folder.path(), true).expect("a log");
        let envelopes = EnvelopeBuilder::new(settings, Arc::default(), Some(log));
        seal(&envelopes, &discover("http"));
        let trace = TraceContext::parse(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            None,
            None,
        );
        let secret = CallError::NotFound { message: "no file hunter2".to_owned() };
        envelopes.build(&discover("stdio"), Err(secret), Duration::ZERO, trace.as_ref());
        drop(envelopes);
        let latest = folder.path().join("mcp_server/envelope_validation.latest.jsonl");
        fs::read_to_string(latest).expect("a log")
    };
    let one = run();
    let two = run();
    assert_eq!(one, two);
    let lines = lines(folder.path());
    assert_eq!(lines.len(), 2);
    let fields: Vec<_> = lines[0].as_object().expect("an object").keys().collect();
    assert_eq!(fields.len(), 17, "{fields:?}");
    assert_eq!(lines[0]["ts"], "2025-01-01T00:00:00Z");
    assert_eq!(lines[1]["ts"], "2025-01-01T00:00:01Z");
    assert_eq!(lines[1]["stepId"], 2);
    assert_eq!(lines[1]["error"]["httpStatus"], 404);
    assert!(lines[1]["metadata"]["traceparent"].is_string());
    // No line contains text of the caller.
    assert!(!one.contains("hunter2"));
}

#[test]
fn names_chosen_by_a_caller_are_logged_redacted_and_shortened() {
    let folder = TempDir::new().expect("a folder");
    let settings = EnvelopeSettings { deterministic: true, ..EnvelopeSettings::default() };
    let log = EnvelopeLog::open(folder.path(), true).expect("a log");
    let envelopes = EnvelopeBuilder::new(settings, Arc::default(), Some(log));
    let known = "deadbeef".repeat(8);
    envelopes.set_secrets(SecretSet::from_variables([("API_KEY", known.as_str())]));
    let via = EnvelopeRequestInfo {
        method: format!("mira:ghp_{}", "a1B2".repeat(10)),
        tool: Some(format!("{}{known}", "é".repeat(180))),
        prompt: Some("long".repeat(100_000)),
        ..discover("http")
    };
    let sealed = seal(&envelopes, &via);
    envelopes.flush();
    let line = &lines(folder.path())[0];
    assert_eq!(line["method"], "mira:[redacted]");
    assert_eq!(line["metadata"]["toolId"], format!("{}[redacted]", "é".repeat(180)));
    assert_eq!(line["metadata"]["promptId"], "long".repeat(50));
    // The caller receives its own text.
    assert_eq!(sealed.meta.tool_id, via.tool);
}

#[test]
fn the_last_five_files_are_kept() {
    let folder = TempDir::new().expect("a folder");
    for _ in 0..7 {
        drop(EnvelopeLog::open(folder.path(), true).expect("a log"));
    }
    let names = fs::read_dir(folder.path().join("mcp_server")).expect("a folder");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    let (links, files): (Vec<_>, Vec<_>) =
        names.partition(|name| name.to_string_lossy().contains("latest"));
    assert_eq!((links.len(), files.len()), (1, 5), "{files:?}");
}
