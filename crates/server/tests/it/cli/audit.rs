//! Tests of `toolgate audit tail` and `toolgate audit stats`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{CliCommandResult, TestCommandLine};
use crate::support::{HttpServerProcess, ServerLaunchOptions, TempWorkspace, binary, call, path};

/// Returns a server that has answered calls of two tools, of which one failed.
fn served() -> HttpServerProcess {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    served.ask(&call(1, "files_read", json!({ "path": "README.md" })));
    served.ask(&call(2, "files_read", json!({ "path": "missing.md" })));
    served.ask(&call(3, "exec_run", json!({ "command": "echo", "args": ["hi", "there"] })));
    served.outcomes(3);
    served
}

fn audit(served: &HttpServerProcess, args: &[&str]) -> CliCommandResult {
    let log = served.home().join("audit.jsonl");
    let args: Vec<_> = ["audit"].iter().chain(args).copied().collect();
    TestCommandLine::new(served.home(), &args).env("TOOLGATE_AUDIT_TO", log).run()
}

#[test]
fn tail_prints_a_line_for_people_and_filters_by_tool_outcome_and_caller() {
    let served = served();
    let all = audit(&served, &["tail"]);
    assert_eq!(all.out.lines().count(), 3, "{all:?}");
    assert!(all.out.contains("  files_read          README.md  ok  "), "{all:?}");
    assert!(all.out.contains("echo hi there  ok  "), "{all:?}");
    for (args, expected) in [
        (&["--failed"][..], &["missing.md"][..]),
        (&["--tool", "files.*"], &["README.md", "missing.md"]),
        (&["--tool", "exec.run", "--since", "1h"], &["echo"]),
        (&["--caller", "http", "-n", "1"], &["echo"]),
        (&["--caller", "ada"], &[]),
        (&["--since", "2999-01-01T00:00Z"], &[]),
    ] {
        let shown = audit(&served, &[&["tail"], args].concat());
        assert_eq!(shown.code, 0, "{shown:?}");
        assert_eq!(shown.out.lines().count(), expected.len(), "{args:?}: {shown:?}");
        for (line, part) in shown.out.lines().zip(expected) {
            assert!(line.contains(part), "{args:?}: {shown:?}");
        }
    }
    let wrong = audit(&served, &["tail", "--since", "yesterday"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("write a period such as 30m"), "{wrong:?}");
}

#[test]
fn tail_follows_the_log() {
    let served = served();
    let mut command = Command::new(binary());
    command.args(["audit", "tail", "-f", "-n", "0"]).current_dir(served.home()).env_clear();
    command.env("PATH", path()).env("HOME", served.home());
    command.env("TOOLGATE_AUDIT_TO", served.home().join("audit.jsonl"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Calls until the command has begun to follow.
    let line = std::thread::scope(|scope| {
        let following = scope.spawn(move || lines.next().unwrap().unwrap());
        while !following.is_finished() {
            served.ask(&call(4, "files_exists", json!({ "path": "followed" })));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        following.join().unwrap()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("files_exists        followed  ok"), "{line}");
}

#[test]
fn stats_count_calls_by_several_properties() {
    let served = served();
    let table = audit(&served, &["stats"]);
    assert_eq!(table.code, 0, "{table:?}");
    let lines: Vec<&str> = table.out.lines().collect();
    assert!(lines[0].starts_with("tool        calls  failed"), "{table:?}");
    assert!(lines[1].starts_with("files_read      2       1"), "{table:?}");
    let rows = audit(&served, &["stats", "--by", "caller,outcome", "--json", "--since", "1d"]);
    let rows: Vec<Value> = rows.out.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!(rows[0]["caller"], "http");
    assert_eq!((&rows[0]["outcome"], &rows[0]["calls"]), (&json!("ok"), &json!(2)));
    assert_eq!((&rows[1]["calls"], &rows[1]["failed"]), (&json!(1), &json!(1)));
    let days = audit(&served, &["stats", "--by", "day", "--tool", "exec.run"]);
    assert_eq!(days.out.lines().count(), 2, "{days:?}");
}

#[test]
fn a_deleted_index_is_rebuilt_from_the_log() {
    let served = served();
    let before = audit(&served, &["stats", "--by", "outcome"]).out;
    let index = served.home().join("audit.jsonl.index");
    assert!(index.exists());
    for name in ["audit.jsonl.index", "audit.jsonl.index-wal", "audit.jsonl.index-shm"] {
        let _ = fs::remove_file(Path::new(served.home()).join(name));
    }
    assert_eq!(audit(&served, &["stats", "--by", "outcome"]).out, before);
}

#[test]
fn arguments_are_recorded_as_the_settings_say() {
    let input = json!({ "path": "new.md", "content": "x".repeat(1000) });
    for (setting, subject, has_arguments) in [
        ("none", Value::Null, false),
        ("subject", json!("new.md"), false),
        ("redacted", json!("new.md"), true),
    ] {
        let served = ServerLaunchOptions::over(&TempWorkspace::new())
            .set("audit_arguments", setting)
            .served();
        served.ask(&call(1, "files_write", input.clone()));
        served.outcomes(1);
        let record = &served.records()[0];
        assert_eq!(record["subject"], subject, "{record}");
        assert_eq!(record["arguments"].is_object(), has_arguments, "{record}");
        assert!(record.to_string().len() < 1200, "{record}");
        let key = served.home().join(".local/state/toolgate/audit.key");
        let verified = audit(&served, &["verify", "--key", key.to_str().unwrap()]);
        assert_eq!(verified.code, 0, "{verified:?}");
    }
}

#[test]
fn the_options_for_folder_and_settings_work_before_and_after_the_subcommand() {
    let served = served();
    let settings = served.home().join("audit-settings.toml");
    let log = served.home().join("audit.jsonl");
    let key = served.home().join(".local/state/toolgate/audit.key");
    fs::write(&settings, format!("[audit]\nkey = {key:?}\n")).unwrap();
    let (root, settings) = (served.home().to_str().unwrap(), settings.to_str().unwrap());
    let options = ["--root", root, "--config", settings];
    for command in ["verify", "tail", "stats"] {
        for args in [[&[command][..], &options].concat(), [&options[..], &[command]].concat()] {
            let args = [&["audit"], &args[..]].concat();
            let line = TestCommandLine::new(served.home(), &args);
            let done = line.env("TOOLGATE_AUDIT_TO", &log).run();
            assert_eq!(done.code, 0, "{args:?}: {done:?}");
        }
    }
}

#[test]
fn without_a_log_every_command_says_that_no_call_was_recorded() {
    let workspace = TempWorkspace::new();
    let log = workspace.path("none/audit.jsonl");
    for (args, code) in [(&["tail"][..], 0), (&["stats"], 0), (&["verify"], 2)] {
        let args = [&["audit"], args].concat();
        let line = TestCommandLine::new(workspace.root(), &args);
        let done = line.env("TOOLGATE_AUDIT_TO", &log).run();
        assert_eq!((done.code, done.out.as_str()), (code, ""), "{done:?}");
        assert!(done.err.contains("no call was recorded yet"), "{done:?}");
    }
}
