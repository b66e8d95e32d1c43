//! Tests of Synesthetic frames: ids, sizes, spelling, and malformed frames.

use serde_json::{Value, json};

use super::adapter::{SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, line};
use super::backend::AssetBackendProcess;

/// Returns the lines of calls of each method: a call that succeeds and, if possible, one that
/// fails.
fn conversation() -> Vec<String> {
    let tone = json!({ "name": "Low hum", "frequency": 110.5 });
    let calls = [
        ("list_schemas", json!({})),
        ("get_schema", json!({ "name": "tone" })),
        ("get_schema", json!({ "name": "nothing" })),
        ("list_examples", json!({ "component": "all" })),
        ("get_example", json!({ "path": "Tone_Example.json" })),
        ("get_example", json!({ "path": "nothing.json" })),
        ("validate_asset", json!({ "asset": tone, "schema": "tone" })),
        ("validate_asset", json!({ "asset": { "name": 1, "z": 2, "y": [] }, "schema": "tone" })),
        ("diff_assets", json!({ "base": { "b": 1, "a": [1] }, "new": { "a": [2], "c": {} } })),
        ("populate_backend", json!({ "asset": { "schema": "tone", "name": "x" } })),
        ("explode", json!({})),
    ];
    calls.into_iter().enumerate().map(|(id, (method, params))| line(id, method, params)).collect()
}

/// Returns the adapter's answers to `lines`, sent one by one.
fn answers(adapter: &mut SynestheticAdapterProcess, lines: &[String]) -> Vec<String> {
    let mut answer = |line: &String| {
        adapter.send(line);
        adapter.receive()
    };
    lines.iter().map(&mut answer).collect()
}

#[test]
fn s0_01_36_80_answers_are_byte_identical_when_repeated_and_in_another_process() {
    let lines = conversation();
    let mut first = SynestheticAdapterOptions::at(&fixture()).ready();
    let mut second = SynestheticAdapterOptions::at(&fixture()).ready();
    let first_answers = answers(&mut first, &lines);
    assert_eq!(first_answers, answers(&mut first, &lines));
    assert_eq!(first_answers, answers(&mut second, &lines));
    assert!(
        first_answers[0].contains(r#""ok":true,"schemas":[{"name":"control","version":"","path":"#)
    );
}

#[test]
fn s0_05_33_34_81_methods_are_bare_tool_names_and_return_the_tools_result() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let reasons = ["", "", "not_found", "", "", "not_found", "", "validation_failed", ""];
    let reasons = reasons.into_iter().chain(["unsupported", "unsupported"]);
    for (line, reason) in conversation().iter().zip(reasons) {
        let answer = adapter.ask(line);
        let result = &answer["result"];
        assert_eq!(result["ok"], reason.is_empty(), "{line}: {answer}");
        assert_eq!(result["reason"].as_str().unwrap_or_default(), reason, "{line}: {answer}");
        assert!(answer.get("error").is_none(), "{line}: {answer}");
    }
    // The tool names of other dialects are unknown here.
    for method in ["assets.list_schemas", "assets_list_schemas", "tools/call", "initialize"] {
        let answer = adapter.call(method, json!({}));
        assert_eq!(answer["reason"], "unsupported", "{method}: {answer}");
    }
}

#[test]
fn s0_20_requests_and_answers_declare_json_rpc_2_0() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    // `is_frame` checks the version of every frame that these tests receive.
    assert_eq!(adapter.ask(&line(1, "list_schemas", json!({})))["jsonrpc"], "2.0");
    for (version, id) in [
        (r#""jsonrpc":"1.0","#, "7"),
        (r#""jsonrpc":"","#, r#""a""#),
        (r#""jsonrpc":2.0,"#, "12345678901234567890123"),
        (r#""jsonrpc":null,"#, "1.0"),
        ("", "0"),
    ] {
        adapter.send(&format!("{{{version}\"id\":{id},\"method\":\"list_schemas\"}}"));
        let answer = adapter.receive();
        let wanted = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32600,");
        assert!(answer.starts_with(&wanted), "{answer}");
    }
}

#[test]
fn s0_21_a_frame_is_a_line_that_ends_with_lf_or_crlf_only() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    adapter.write(b"\n\r\n  \n\t\r\n");
    let crlf = format!("{}\r\n", line(1, "explode", json!({})));
    adapter.write(crlf.as_bytes());
    assert!(adapter.receive().starts_with(r#"{"jsonrpc":"2.0","id":1,"result""#));

    // Unicode line separators and an escaped carriage return in a string do not end a line.
    let odd = "a\u{2028}b\u{2029}c\u{85}d";
    adapter.send(&format!(
        r#"{{"jsonrpc":"2.0","id":"{odd}","method":"diff_assets","params":{{"base":null,"new":"{odd}\r\n"}}}}"#
    ));
    let answer = adapter.receive();
    let wanted = format!(
        r#"{{"jsonrpc":"2.0","id":"{odd}","result":{{"ok":true,"patch":[{{"op":"replace","path":"","value":"{odd}\r\n"}}]}}}}"#
    );
    assert_eq!(answer, wanted);

    // Two lines in one write are two frames, and the last one needs no line feed.
    let two = format!("{}\n{}", line(2, "explode", json!({})), line(3, "explode", json!({})));
    adapter.write(two.as_bytes());
    adapter.close_input();
    let ids: Vec<_> = adapter.read_rest().iter().map(|line| frame(line)["id"].clone()).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn s0_22_a_batch_is_refused_with_one_error_and_the_next_line_is_served() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let one = line(1, "list_schemas", json!({}));
    for batch in [format!("[{one}]"), format!("[{one},{one}]"), "[]".to_owned()] {
        let answer = adapter.ask(&batch);
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        assert_eq!(answer["id"], Value::Null);
    }
    assert_eq!(adapter.ask(&one)["result"]["ok"], true);
}

#[test]
fn s0_23_58_67_a_line_over_one_mebibyte_is_refused_unparsed_and_the_next_is_served() {
    const MEBIBYTE: usize = 1 << 20;
    const REFUSED: &str = r#"{"jsonrpc":"2.0","id":null,"result":{"ok":false,"reason":"validation_failed","errors":[{"path":"","msg":"payload_too_large"}]}}"#;
    let request_of = |bytes: usize, filling: &str| {
        let (head, tail) =
            (r#"{"jsonrpc":"2.0","id":1,"method":"list_schemas","params":{"x":""#, r#""}}"#);
        let room = bytes - head.len() - tail.len();
        let times = room / filling.len();
        let rest = room - times * filling.len();
        format!("{head}{}{}{tail}", filling.repeat(times), "x".repeat(rest))
    };
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    // Bytes are counted, not characters: "ü" has two bytes.
    for filling in ["x", "ü", "✨"] {
        let fits = request_of(MEBIBYTE, filling);
        assert_eq!(fits.len(), MEBIBYTE);
        assert_eq!(adapter.ask(&fits)["result"]["ok"], true, "{filling}");
        let beyond = request_of(MEBIBYTE + 1, filling);
        adapter.send(&beyond);
        assert_eq!(adapter.receive(), REFUSED, "{filling}");
    }
    // The line end does not count, whether LF or CRLF.
    adapter.write(format!("{}\r\n", request_of(MEBIBYTE, "x")).as_bytes());
    assert_eq!(frame(&adapter.receive())["result"]["ok"], true);
    // The size is checked before parsing.
    for beyond in ["[".repeat(MEBIBYTE + 1), "\u{1}".repeat(MEBIBYTE + 1), "[".repeat(5 * MEBIBYTE)]
    {
        adapter.send(&beyond);
        assert_eq!(adapter.receive(), REFUSED);
    }
    assert_eq!(adapter.call("list_schemas", json!({}))["ok"], true);
    // A last line without a line feed counts too.
    adapter.write("[".repeat(MEBIBYTE + 1).as_bytes());
    adapter.close_input();
    assert_eq!(adapter.read_rest(), [REFUSED]);
}

#[test]
fn s0_24_a_string_or_number_id_is_returned_as_written() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    for id in [
        r#""é""#,
        r#""1""#,
        r#""""#,
        r#""\u00e9\"\/""#,
        "0",
        "-0",
        "-1",
        "1.5",
        "1.0",
        "1e2",
        "1E+2",
        "9007199254740993",
        "12345678901234567890123",
        "-0.10",
    ] {
        for (method, key) in [("list_schemas", "result"), ("explode", "result"), ("5", "error")] {
            let method = if method == "5" { method.to_owned() } else { format!("\"{method}\"") };
            adapter.send(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method}}}"));
            let received = adapter.receive();
            // Text may be escaped in another way.
            let id = if id.starts_with('"') {
                serde_json::from_str::<Value>(id).unwrap().to_string()
            } else {
                id.to_owned()
            };
            let wanted = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":");
            assert!(received.starts_with(&wanted), "{id}: {received}");
        }
    }
    for id in ["null", "{}", "[]", "[1]", "true", "false", r#"{"id":1}"#] {
        let answer =
            adapter.ask(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"list_schemas"}}"#));
        assert_eq!(answer["id"], Value::Null, "{id}");
        assert_eq!(answer["error"]["code"], -32600, "{id}: {answer}");
    }
}

#[test]
fn s0_24_a_request_without_an_id_is_neither_answered_nor_run() {
    let mut backend = AssetBackendProcess::start();
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", backend.url()).ready();
    let asset = json!({ "schema": "tone", "name": "x" });
    let params = json!({ "asset": asset, "validate_first": false });
    let note = json!({ "jsonrpc": "2.0", "method": "populate_backend", "params": params });
    adapter.send(&note.to_string());
    adapter.send(r#"{"jsonrpc":"2.0","method":"explode"}"#);
    // Lines are read in order, so an answer to them would come before this.
    assert_eq!(adapter.ask(&line("next", "list_schemas", json!({})))["id"], "next");
    assert_eq!(backend.requests(), [] as [Value; 0]);
}

#[test]
fn s0_25_26_standard_output_has_only_frames_and_logs_go_to_standard_error() {
    // `receive` and `rest` check that each line is a frame.
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("TOOLGATE_LOG_LEVEL", "trace").ready();
    for line in conversation() {
        adapter.ask(&line);
    }
    for line in ["nonsense", "[", "7", "[]", r#"{"id":1}"#, r#"{"jsonrpc":"2.0","id":{}}"#] {
        assert!(adapter.ask(line)["error"]["code"].is_number());
    }
    adapter.write(b"\xff\xfe\n");
    assert_eq!(frame(&adapter.receive())["error"]["code"], -32700);
    adapter.signal(rustix::process::Signal::TERM);
    assert_eq!(adapter.read_rest(), [] as [&str; 0]);
    assert!(adapter.wait_for_exit().success());
    let log = adapter.log();
    assert!(log.starts_with("mcp:ready mode=stdio"), "{log}");
    assert!(log.contains("\nmcp:shutdown mode=stdio"), "{log}");
}

#[test]
fn s0_32_the_contracts_example_exchange_is_reproduced() {
    let folder = super::adapter::folder();
    let schema = r#"{"version":"0.7.0","type":"object"}"#;
    let name = format!("{}/synesthetic-asset.schema.json", super::adapter::SCHEMAS);
    super::adapter::put(folder.path(), &name, schema);
    let mut adapter = SynestheticAdapterOptions::at(folder.path()).ready();
    adapter.send(r#"{"jsonrpc":"2.0","id":1,"method":"list_schemas","params":{}}"#);
    let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":true,"schemas":[{"name":"synesthetic-asset","version":"0.7.0","path":"libs/synesthetic-schemas/jsonschema/synesthetic-asset.json"}]}}"#;
    assert_eq!(adapter.receive(), wanted);
}

#[test]
fn s0_35_a_frame_has_no_whitespace_outside_strings() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    for line in conversation().iter().chain([&"nonsense".to_owned()]) {
        adapter.send(line);
        let answer = adapter.receive();
        let mut in_text = false;
        let mut escaped = false;
        for byte in answer.bytes() {
            assert!(in_text || !byte.is_ascii_whitespace(), "{answer}");
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = !in_text,
                _ => {}
            }
        }
        assert!(!in_text, "{answer}");
    }
}

#[test]
fn s0_56_an_unknown_method_returns_an_unsupported_result() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let wanted = json!({ "ok": false, "reason": "unsupported", "detail": "tool not implemented" });
    for method in ["explode", "", "LIST_SCHEMAS", "list_schemas ", "validate", "files.read"] {
        assert_eq!(adapter.call(method, json!({ "path": "version.json" })), wanted, "{method}");
    }
    // A malformed request is a JSON-RPC error.
    for (line, code) in [
        (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"explode","params":[]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"list_schemas","params":"x"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"list_schemas""#, -32700),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"list_schemas"}"#, -32600),
    ] {
        assert_eq!(adapter.ask(line)["error"]["code"], code, "{line}");
    }
}

fn frame(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}
