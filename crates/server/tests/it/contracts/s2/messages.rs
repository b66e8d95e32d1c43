//! Tests of JSON-RPC 2.0: malformed messages, unknown methods, and messages without an answer.

use serde_json::{Value, json};

use super::client::{error_parts, over_all};
use crate::support::TempWorkspace;

/// Returns malformed messages, each with the error code of its refusal.
fn malformed() -> Vec<(i64, Vec<u8>)> {
    let deep = |count: usize| "[".repeat(count).into_bytes();
    let texts: [(i64, &str); 17] = [
        (-32700, "{"),
        (-32700, "nonsense"),
        (-32700, r#"{"jsonrpc":"2.0","id":1,"method":"ping"}}"#),
        (-32700, r#"{"jsonrpc":"2.0","id":01,"method":"ping"}"#),
        (-32600, "[]"),
        (-32600, r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#),
        (-32600, "7"),
        (-32600, "null"),
        (-32600, r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#),
        (-32600, r#"{"id":1,"method":"ping"}"#),
        (-32600, r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#),
        (-32600, r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#),
        (-32600, r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#),
        (-32600, r#"{"jsonrpc":"2.0","id":1}"#),
        (-32600, r#"{"jsonrpc":"2.0","id":1,"method":{}}"#),
        (-32601, r#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#),
        (-32602, r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}"#),
    ];
    let mut all: Vec<_> =
        texts.into_iter().map(|(code, text)| (code, text.as_bytes().to_vec())).collect();
    all.extend([(-32700, b"\"\xff\"".to_vec()), (-32700, deep(1_000)), (-32700, deep(200_000))]);
    all
}

#[test]
fn s2_05_10_14_15_24_27_malformed_messages_are_refused_and_the_next_is_answered() {
    over_all(&TempWorkspace::new(), |client| {
        for (code, bytes) in malformed() {
            let answer = client.raw(&bytes);
            let (actual, message, _) = error_parts(&answer);
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
            assert_eq!(actual, code, "{shown}: {answer}");
            let expected_message = match code {
                -32700 => "Parse error",
                -32600 => "Invalid Request",
                -32601 => "Method not found",
                _ => "Invalid params",
            };
            assert_eq!(message, expected_message, "{shown}");
            assert_eq!(client.ask("ping", Value::Null)["result"], json!({}), "after {shown}");
        }
        // An id is returned as sent.
        for id in [json!(1), json!("a"), json!(-7), json!(1.5), json!(""), json!("\u{0}é")] {
            let answer = client.exchange(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
            assert_eq!(answer["id"], id);
        }
    });
}

#[test]
fn s2_05_14_a_message_without_an_id_gets_no_answer_and_runs_nothing() {
    over_all(&TempWorkspace::new(), |client| {
        let delete = json!({ "name": "filesystem/delete", "arguments": { "path": "README.md" } });
        for message in [
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            json!({ "jsonrpc": "2.0", "method": "tools/call", "params": delete }),
            json!({ "jsonrpc": "2.0", "method": "no/such/method", "params": 5 }),
            json!({ "jsonrpc": "2.0", "id": 9, "result": {} }),
        ] {
            client.tell(&message);
        }
        // The next answer is to the next request.
        assert_eq!(client.ask("ping", Value::Null)["result"], json!({}));
        assert_eq!(
            client.content("filesystem/file_exists", json!({ "path": "README.md" })),
            "true"
        );
    });
}

#[test]
fn s2_06_20_an_answer_has_either_a_result_or_an_error() {
    over_all(&TempWorkspace::new(), |client| {
        // The client checks the shape of each answer.
        let good = client.call("filesystem/read", json!({ "path": "README.md" }));
        assert!(good["result"].is_object() && good.get("error").is_none());
        for (tool, arguments) in [
            ("filesystem/read", json!({ "path": "none" })),
            ("filesystem/read", json!({})),
            ("no/such", json!({})),
            ("exec/run", json!({ "command": "false" })),
        ] {
            let bad = client.call(tool, arguments);
            assert!(bad["error"].is_object() && bad.get("result").is_none(), "{bad}");
        }
    });
}

#[test]
fn s2_04_12_19_20_the_contracts_example_of_reading_a_file_is_reproduced() {
    let workspace = TempWorkspace::new().file("path/to/file", "file contents here");
    over_all(&workspace, |client| {
        let request = json!({
            "jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": { "name": "filesystem/read", "arguments": { "path": "path/to/file" } },
        });
        let expected = r#"{"jsonrpc":"2.0","id":2,"result":{"content":"file contents here"}}"#;
        assert_eq!(client.exchange(&request).to_string(), expected);
        let write = json!({ "path": "made/now.txt", "content": "by a call\n" });
        client.content("filesystem/write", write);
        assert_eq!(workspace.read("made/now.txt"), "by a call\n");
    });
}

#[test]
fn s2_09_40_41_42_errors_have_the_contracts_messages_and_say_what_to_do() {
    over_all(&TempWorkspace::new(), |client| {
        let rows = [
            ("filesystem/raed", json!({}), -32601, "Method not found", "filesystem/read"),
            ("files/read", json!({}), -32601, "Method not found", "filesystem/read"),
            ("no/such/tool", json!({}), -32601, "Method not found", "tools/list"),
            ("filesystem/read", json!({}), -32602, "Invalid params", "/path"),
            ("filesystem/read", json!({ "path": 5 }), -32602, "Invalid params", "string"),
            (
                "filesystem/read",
                json!({ "path": "none.txt" }),
                -32603,
                "Internal error",
                "none.txt",
            ),
            ("filesystem/read", json!({ "path": "../x" }), -32603, "Internal error", "../x"),
            (
                "exec/run",
                json!({ "command": "no-such-program" }),
                -32602,
                "Invalid params",
                "no-such-program",
            ),
        ];
        for (tool, arguments, code, expected_message, detail) in rows {
            let (actual, message, data) = client.refusal(tool, arguments);
            assert_eq!((actual, message.as_str()), (code, expected_message), "{tool}: {data}");
            assert!(data["detail"].as_str().unwrap().contains(detail), "{tool}: {data}");
            assert!(data["reason"].is_string(), "{data}");
        }
    });
}
