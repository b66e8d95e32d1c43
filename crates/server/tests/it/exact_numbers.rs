//! Tests that numbers keep their exact text in every dialect that passes values on.

use std::io::Write;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpRequest, binary, checkout, path, trust_config,
};

/// Numbers that a conversion to a float or to a 64-bit integer would change.
const NUMBERS: [&str; 9] = [
    "12345678901234567890123",
    "-9223372036854775809",
    "1e2",
    "1E400",
    "1e+2",
    "-0",
    "1.10",
    "0.1000000000000000055511151231257827",
    "2.50e-3",
];

/// Sends `lines` to a server of `dialect` over stdio, and returns the lines that it answers.
fn answers(workspace: &TempWorkspace, dialect: &str, lines: &[String]) -> String {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.args(["stdio", "--dialect", dialect]).current_dir(workspace.root());
    command.env_clear().env("PATH", path()).env("HOME", home.path());
    trust_config(&mut command, workspace.root());
    command.env("MCP_READY_FILE", home.path().join("ready"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    let input = format!("{}\n", lines.join("\n"));
    // The server answers what it has read when its input closes.
    server.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    String::from_utf8(server.wait_with_output().unwrap().stdout).unwrap()
}

#[test]
fn a_number_keeps_its_text_through_the_tools_for_assets() {
    let workspace = TempWorkspace::new();
    for (at, number) in NUMBERS.iter().enumerate() {
        let schema = format!(r#"{{"type":"object","properties":{{"n":{{"const":{number}}}}}}}"#);
        workspace.put(&format!("libs/synesthetic-schemas/jsonschema/s{at}.schema.json"), schema);
    }
    for (at, number) in NUMBERS.iter().enumerate() {
        let request = |id: &str, method: &str, params: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
        };
        let asset = format!(r#"{{"asset":{{"n":{number}}},"schema":"s{at}"}}"#);
        let printed = answers(
            &workspace,
            "synesthetic",
            &[
                request(number, "get_schema", &format!(r#"{{"name":"s{at}"}}"#)),
                request(
                    "\"d\"",
                    "diff_assets",
                    &format!(r#"{{"base":{{}},"new":{{"a":[{number}]}}}}"#),
                ),
                request("\"v\"", "validate_asset", &asset),
            ],
        );
        assert!(printed.contains(&format!(r#""id":{number},"#)), "{printed}");
        assert!(printed.contains(&format!(r#""const":{number}}}"#)), "{printed}");
        assert!(printed.contains(&format!(r#""value":[{number}]"#)), "{printed}");
        assert!(printed.contains(r#""ok":true,"errors":[]"#), "{printed}");
    }
}

/// Returns true if, in the output `printed`, the answer to the request `id` reports a valid asset.
fn is_valid(printed: &str, id: &str) -> bool {
    let answer = printed.lines().find(|line| line.contains(&format!(r#""id":{id},"#)));
    answer.expect("an answer").contains(r#""ok":true"#)
}

#[test]
fn an_integer_beyond_the_maximum_by_one_is_invalid() {
    let workspace = TempWorkspace::new();
    let folder = "libs/synesthetic-schemas/jsonschema";
    for (name, rule) in [
        ("maximum", r#""maximum":12345678901234567890123"#),
        ("const", r#""const":12345678901234567890123"#),
        ("enum", r#""enum":[1,12345678901234567890123]"#),
        ("multiple", r#""multipleOf":12345678901234567890123"#),
    ] {
        let schema = format!(r#"{{"type":"object","properties":{{"n":{{{rule}}}}}}}"#);
        workspace.put(&format!("{folder}/{name}.schema.json"), schema);
        let lines = ["12345678901234567890123", "12345678901234567890124"].map(|number| {
            let params = format!(r#"{{"asset":{{"n":{number}}},"schema":"{name}"}}"#);
            format!(
                r#"{{"jsonrpc":"2.0","id":{number},"method":"validate_asset","params":{params}}}"#
            )
        });
        let printed = answers(&workspace, "synesthetic", &lines);
        let valid = |id: &str| is_valid(&printed, id);
        assert!(valid("12345678901234567890123"), "{name}: {printed}");
        assert!(!valid("12345678901234567890124"), "{name}: {printed}");
    }
}

#[test]
fn numbers_with_the_same_value_match_a_schema_however_they_are_written() {
    let workspace = TempWorkspace::new();
    let schema = r#"{"type":"object","properties":{"n":{"enum":[100,0]}}}"#;
    workspace.put("libs/synesthetic-schemas/jsonschema/same.schema.json", schema);
    let (same, other) = (["100", "100.0", "1e2", "1E+2", "-0", "0.0"], ["101", "1e400"]);
    let lines = same.iter().chain(&other).map(|number| {
        let params = format!(r#"{{"asset":{{"n":{number}}},"schema":"same"}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"validate_asset","params":{params}}}"#)
    });
    let lines: Vec<_> = lines.collect();
    let printed = answers(&workspace, "synesthetic", &lines);
    assert!(same.iter().all(|id| is_valid(&printed, id)), "{printed}");
    assert!(!other.iter().any(|id| is_valid(&printed, id)), "{printed}");
}

#[test]
fn an_id_keeps_its_text_in_every_dialect_with_numbers_as_ids() {
    let workspace = TempWorkspace::new();
    for (dialect, method) in [
        ("workstation", "tools/list"),
        ("envelope", "mcp.discover"),
        ("synesthetic", "list_schemas"),
        ("mira", "tools/list"),
    ] {
        let lines = NUMBERS.map(|number| {
            format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{{}}}}"#)
        });
        let printed = answers(&workspace, dialect, &lines);
        for number in NUMBERS {
            let expected = format!(r#""id":{number},"#);
            assert!(printed.contains(&expected), "{dialect}, {number}: {printed}");
        }
    }
    let server = ServerLaunchOptions::over(&workspace).served();
    for number in NUMBERS {
        let request = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"statusReport"}}"#);
        let answer = server.send(&TestHttpRequest::bytes(request.as_bytes()).to("/v1/mcp")).text();
        assert!(answer.contains(&format!(r#""id":{number},"#)), "{number}: {answer}");
    }
}

#[test]
fn a_number_that_is_too_long_or_too_large_for_a_tool_is_refused() {
    let workspace = TempWorkspace::new().file("a.txt", "one\n");
    let call = |id: &str, limit: &str| {
        let params = format!(r#"{{"name":"filesystem/list","arguments":{{"maxItems":{limit}}}}}"#);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#)
    };
    let lines = [call("1", &"9".repeat(5_000)), call("2", "1E400"), call("3", "2e0")];
    let printed = answers(&workspace, "workstation", &lines);
    assert!(printed.contains("a number may have at most 4096 characters"), "{printed}");
    assert_eq!(printed.lines().count(), 3, "{printed}");
}

/// MCP server in Python, whose tool returns its arguments, as they were written, as a structured
/// result.
const ECHO: &str = r#"
import json, re, sys
SCHEMA = '{"type":"object","properties":{"n":{"type":"number","default":1E2}}}'
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"e","version":"1"}}'
    elif request["method"] == "tools/list":
        result = '{"tools":[{"name":"echo","inputSchema":%s}]}' % SCHEMA
    else:
        given = re.search(r'"arguments":(\{.*?\})', line).group(1)
        result = '{"content":[],"structuredContent":%s}' % given
    print('{"jsonrpc":"2.0","id":%d,"result":%s}' % (request["id"], result), flush=True)
"#;

#[test]
fn an_upstream_gets_and_returns_numbers_as_they_were_written() {
    let python = checkout().join(".tools/python/bin/python");
    let workspace = TempWorkspace::new().file("echo.py", ECHO);
    let script = workspace.path("echo.py");
    let revision = "revision = \"2025-06-18\"";
    let settings = format!("[upstream.up]\ncommand = [{python:?}, {script:?}]\n{revision}\n");
    let workspace = workspace.file("toolgate.toml", settings);
    let request = |id: usize, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
    };
    let client = r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}"#;
    let mut lines = vec![
        request(1, "initialize", client),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
        request(2, "tools/list", "{}"),
    ];
    lines.extend(NUMBERS.iter().enumerate().map(|(at, number)| {
        let params = format!(r#"{{"name":"up_echo","arguments":{{"n":{number}}}}}"#);
        request(at + 3, "tools/call", &params)
    }));
    let printed = answers(&workspace, "mcp", &lines);
    assert!(printed.contains(r#""default":1E2"#), "{printed}");
    for number in NUMBERS {
        let expected = format!(r#"{{\"n\":{number}}}"#);
        assert!(printed.contains(&expected), "{number}: {printed}");
    }
}
