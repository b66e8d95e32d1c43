//! Tests of lines that `toolgate serve` prints about calls, upstreams and failed authentication.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, call, initialize,
    keys_of, wait_for, wait_until,
};

/// Returns the first line of the log that contains `part`.
#[track_caller]
fn line_with(served: &HttpServerProcess, part: &str) -> String {
    wait_for(&format!("a line with {part}"), || {
        served.log().lines().find(|line| line.contains(part)).map(str::to_owned)
    })
}

#[test]
fn a_call_prints_its_caller_tool_subject_and_outcome() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    served.ask(&call(2, "files_read", json!({ "path": "missing\u{1b}[2J.md" })));
    served.ask(&call(3, "files_write", json!({ "path": "new.md", "content": "private text" })));
    let line = line_with(&served, "README.md");
    assert!(line.contains("  http        files_read          README.md  ok  "), "{line}");
    assert!(line.ends_with(" ms"), "{line}");
    let line = line_with(&served, "missing");
    assert!(line.contains("not_found") && !line.contains('\u{1b}'), "{line}");
    line_with(&served, "new.md");
    assert!(!served.log().contains("private text"));
}

#[test]
fn the_subject_of_a_declared_command_without_a_path_is_its_command_line() {
    let settings = "[command.\"say.hello\"]\nabout = \"Says hello.\"\nprogram = \"echo\"\n\
                    argv = [\"hello\", \"{who}\", \"{--token}\"]\n\
                    args = { who = \"string!\", token = \"string\" }\n";
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", settings)).served();
    let arguments = json!({ "who": "ada", "token": "hunter2-and-more" });
    served.ask(&call(1, "say_hello", arguments));
    served.outcomes(1);
    let record = &served.records()[0];
    assert_eq!(record["outcome"], "ok", "{record}");
    let subject = record["subject"].as_str().expect("a subject");
    assert!(subject.starts_with("echo hello ada"), "{record}");
    assert!(subject.contains("[redacted]") && !subject.contains("hunter2"), "{record}");
}

#[test]
fn calls_are_printed_even_if_the_audit_log_is_off() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).set("audit_to", "off").served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    line_with(&served, "README.md");
}

#[test]
fn json_lines_are_the_records_and_quiet_prints_none() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).arg("--log").arg("json").served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    let record: Value = serde_json::from_str(&line_with(&served, "\"subject\"")).unwrap();
    assert_eq!((&record["tool"], &record["subject"]), (&json!("files_read"), &json!("README.md")));

    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("log_calls", "quiet").served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    served.outcomes(1);
    assert!(!served.log().contains("README.md"), "{}", served.log());
}

#[test]
fn calls_beyond_the_lines_of_a_second_are_counted() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    let mut connection = served.connect();
    for id in 0..300 {
        connection.post(&TestHttpRequest::mcp(&call(id, "files_exists", json!({ "path": "." }))));
        connection.response();
    }
    served.outcomes(300);
    let omitted = wait_for("the omitted calls are counted", || {
        let log = served.log();
        let printed = log.lines().filter(|line| line.contains("files_exists")).count();
        let lines = log.lines().filter_map(|line| line.split_once(" more calls"));
        let omitted: usize = lines.filter_map(|(number, _)| number.parse::<usize>().ok()).sum();
        (printed + omitted == 300).then_some(omitted)
    });
    // A slow machine may need several seconds for the calls.
    assert!(omitted < 300);
}

#[test]
fn the_first_unknown_key_is_logged_without_the_key() {
    let workspace = TempWorkspace::new().file("toolgate.toml", keys_of(&["ada"]));
    let served = ServerLaunchOptions::over(&workspace).served();
    let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
    let status = served.send(&post.with("authorization", "Bearer wrong-key-of-bob")).status;
    assert_eq!(status, 401);
    let line =
        line_with(&served, "refused an unknown key or token from 127.0.0.1 (attempt 1 of 10");
    assert!(!line.contains("wrong-key"), "{line}");
}

#[test]
fn an_unreachable_upstream_is_logged_once_for_each_reason() {
    let settings = "[upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\nprivate_network = true\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    // An upstream is connected when a caller first needs it.
    wait_until("a call is refused", || {
        served.ask(&call(1, "far_read", json!({})))["error"].is_object()
    });
    line_with(&served, "the upstream `far` is unavailable: ");
    let log = served.log();
    let lines = log.lines().filter(|line| line.contains("`far` is unavailable")).count();
    assert_eq!(lines, 1, "{log}");
}
