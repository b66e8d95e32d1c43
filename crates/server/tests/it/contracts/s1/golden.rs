//! Tests of the envelope log, of the check that writes it, and of its comparison with a golden log.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio as Pipe};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::client::{read_log, run, run_with, stderr, stdout};
use crate::support::{TempWorkspace, binary, checkout, path};

const GOLDEN: &str = "tests/fixtures/mcp/envelope_validation_golden.jsonl";
const FIXTURES: [&str; 3] = [
    "tests/fixtures/mcp/docs/sample_article.md",
    "tests/fixtures/mcp/toolgate.toml",
    "tests/fixtures/mcp/envelope_validation_golden.jsonl",
];
const ONCE: [&str; 6] = ["contract", "check", "--once", "--deterministic-ids", "--log-dir", "runs"];

/// Returns a folder with the files that a run of the check needs.
fn fixtures() -> TempWorkspace {
    let workspace = TempWorkspace::new();
    for name in FIXTURES {
        workspace.put(name, fs::read(checkout().join(name)).unwrap());
    }
    workspace
}

fn golden_log() -> String {
    fs::read_to_string(checkout().join(GOLDEN)).unwrap()
}

#[test]
fn s1_29_34_35_a_check_ends_by_itself_and_reproduces_the_golden_log_byte_for_byte() {
    let workspace = fixtures();
    for _ in 0..2 {
        let output = run(workspace.root(), &ONCE);
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 3);
        let latest = workspace.path("runs/mcp_server/envelope_validation.latest.jsonl");
        assert!(fs::symlink_metadata(&latest).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&latest).unwrap(), golden_log());
    }
    // In this checkout, with the log elsewhere.
    let runs = tempfile::TempDir::new().unwrap();
    let into = runs.path().display().to_string();
    let args = [
        "contract",
        "check",
        "--once",
        "--deterministic-ids",
        "--log-dir",
        &into,
        "--golden",
        GOLDEN,
    ];
    let output = run(&checkout(), &args);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).ends_with("the logs are equal\n"));
    assert_eq!(read_log(runs.path()).len(), 3);
}

/// Returns the processes that the process `pid` left running: in its group, with its home, or in
/// its folder.
fn processes_left(pid: u32, home: &Path, folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let home = format!("HOME={}", home.display());
    let is_left = |one: &u32| {
        let stat = fs::read_to_string(format!("/proc/{one}/stat")).unwrap_or_default();
        // The name is in parentheses and may contain anything; state, parent and group follow.
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let group = fields.nth(2).and_then(|group| group.parse::<u32>().ok());
        let environ = fs::read(format!("/proc/{one}/environ")).unwrap_or_default();
        let is_at_home = environ.split(|byte| *byte == 0).any(|word| word == home.as_bytes());
        let cwd = fs::read_link(format!("/proc/{one}/cwd")).unwrap_or_default();
        group == Some(pid) || is_at_home || cwd.starts_with(folder)
    };
    pids.filter(is_left).collect()
}

#[test]
fn s1_34_a_check_leaves_no_process_running() {
    let workspace = fixtures();
    let folder = workspace.root().canonicalize().unwrap();
    let home = tempfile::TempDir::with_prefix("toolgate-home-").unwrap();
    let start = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(&folder).env_clear().env("PATH", path());
        command.env("HOME", home.path()).process_group(0);
        command.stdin(Pipe::null()).stdout(Pipe::null()).stderr(Pipe::null()).spawn().unwrap()
    };
    let mut check = start(binary(), &ONCE);
    assert_eq!(check.wait().unwrap().code(), Some(0));
    assert_eq!(processes_left(check.id(), home.path(), &folder), [0; 0]);
    // A command that does leave a process is detected, even in another folder and environment.
    let mut shell = start(Path::new("/bin/sh"), &["-c", "cd / && env -i /bin/sleep 300 &"]);
    shell.wait().unwrap();
    let found = processes_left(shell.id(), home.path(), &folder);
    let group = Pid::from_raw(shell.id().try_into().unwrap()).unwrap();
    kill_process_group(group, Signal::KILL).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn s1_30_31_the_golden_log_has_three_entries_of_17_fields_in_shadow_mode_over_http() {
    let lines: Vec<Value> =
        golden_log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let routes: Vec<_> = lines.iter().map(|line| line["route"].as_str().unwrap()).collect();
    assert_eq!(routes, ["discover", "prompt", "tool"]);
    let methods: Vec<_> = lines.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods, ["mcp.discover", "mcp.prompt.get", "mcp.tool.invoke"]);
    let bytes: Vec<_> = lines.iter().map(|line| line["inputBytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [2, 39, 102]);
    for (at, line) in lines.iter().enumerate() {
        let fields: Vec<_> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            fields,
            [
                "ts",
                "agentId",
                "taskId",
                "stepId",
                "transport",
                "route",
                "method",
                "status",
                "durationMs",
                "attempt",
                "inputBytes",
                "outputBytes",
                "requestId",
                "traceId",
                "spanId",
                "metadata",
                "error",
            ]
        );
        assert_eq!(line["transport"], "http");
        assert_eq!((&line["status"], &line["error"]), (&"ok".into(), &Value::Null));
        assert_eq!(line["stepId"], at + 1);
        assert_eq!(line["agentId"], "mcp_server");
        assert_eq!(line["taskId"], "06cV2B_mcp_envelope_and_schema_validation_B");
        let metadata = &line["metadata"];
        assert_eq!(metadata["schemaVersion"], "0.1.0");
        assert_eq!(metadata["deterministic"], true);
        assert_eq!(metadata.get("validation"), None, "RAGX's log has no such field");
        assert!(line["outputBytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(lines[1]["metadata"]["promptId"], "core.generic.bootstrap@1");
    assert_eq!(lines[2]["metadata"]["toolId"], "mcp.tool:docs.load.fetch");
}

/// Compares the envelope log `new` with the golden log. Returns the exit code and the output.
#[track_caller]
fn diff_logs(new: &str, more: &[&str]) -> (Option<i32>, String) {
    let workspace = fixtures().file("new.jsonl", new);
    let args =
        [&["contract", "diff-logs", "--new", "new.jsonl", "--golden", GOLDEN], more].concat();
    let output = run(workspace.root(), &args);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn s1_32_36_equal_logs_pass_and_the_place_of_a_difference_is_named() {
    let golden = golden_log();
    assert_eq!(diff_logs(&golden, &[]).0, Some(0));
    // Values that differ from run to run are not compared.
    let other_run = golden
        .replace("2025-01-01T", "2031-07-08T")
        .replace("\"durationMs\":0.0", "\"durationMs\":12.5")
        .replace("\"logPath\":\"runs/", "\"logPath\":\"/elsewhere/");
    assert_ne!(other_run, golden);
    assert_eq!(diff_logs(&other_run, &[]), (Some(0), "the logs are equal\n".to_owned()));
    for (from, to, place) in [
        ("\"outputBytes\":", "\"outputBytes\":9", "line 1 outputBytes: golden "),
        (
            "\"status\":\"ok\"",
            "\"status\":\"error\"",
            "line 1 status: golden \"ok\", new \"error\"",
        ),
        ("f8f3eb42", "f8f3eb43", "line 1 requestId"),
        ("\"toolId\":\"mcp.tool:docs", "\"toolId\":\"mcp.tool:dogs", "line 3 metadata.toolId"),
        ("\"attempt\":0,", "", "line 1 attempt: golden 0, new nothing"),
        ("\"error\":null", "\"error\":{\"code\":\"NOT_FOUND\"}", "line 1 error: golden null"),
    ] {
        let changed = golden.replacen(from, to, 1);
        assert_ne!(changed, golden, "{from}");
        let (code, output) = diff_logs(&changed, &[]);
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains(place), "{place}: {output}");
    }
    let shorter: String = golden.lines().take(2).map(|line| format!("{line}\n")).collect();
    let (code, output) = diff_logs(&shorter, &[]);
    assert!(code == Some(1) && output.contains("line 3: golden {"), "{output}");
    let smaller = golden.replacen("\"outputBytes\":", "\"outputBytes\":9", 1);
    assert_eq!(diff_logs(&smaller, &["--whitelist", "outputBytes", "inputBytes"]).0, Some(0));
    for broken in ["{", "[]\n", "\u{feff}x"] {
        let (code, output) = diff_logs(broken, &[]);
        assert_eq!(code, Some(2), "{output}");
        assert!(output.contains("new.jsonl"), "{output}");
    }
    let missing =
        run(&checkout(), &["contract", "diff-logs", "--new", "nothing.jsonl", "--golden", GOLDEN]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("cannot read nothing.jsonl"), "{}", stderr(&missing));
}

#[test]
fn s1_32_37_a_check_that_differs_from_the_golden_log_says_where_and_what_to_do() {
    let workspace = fixtures();
    workspace.put("tests/fixtures/mcp/docs/sample_article.md", "# Another\n");
    let args = [&ONCE[..], &["--golden", GOLDEN]].concat();
    let output = run(workspace.root(), &args);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stdout(&output).contains("line 3 outputBytes: golden "), "{}", stdout(&output));
    assert!(stderr(&output).contains("explain the change in the changelog"), "{}", stderr(&output));
    // A check whose calls are refused fails too.
    fs::remove_file(workspace.path("tests/fixtures/mcp/docs/sample_article.md")).unwrap();
    let output = run(workspace.root(), &ONCE);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("tool      404"), "{}", stdout(&output));
}

#[test]
fn s1_35_the_last_five_logs_are_kept() {
    let workspace = fixtures();
    for _ in 0..7 {
        assert!(run(workspace.root(), &ONCE).status.success());
    }
    let names: Vec<_> = fs::read_dir(workspace.path("runs/mcp_server"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    let latest = fs::read_link(workspace.path("runs/mcp_server/envelope_validation.latest.jsonl"));
    let mut files: Vec<_> = names.iter().filter(|name| !name.contains("latest")).collect();
    files.sort();
    assert_eq!(latest.unwrap(), Path::new(files[4]));
}

#[test]
fn s1_38_a_check_runs_in_the_requested_mode() {
    let workspace = fixtures();
    let schema = r#"{"type":"object","required":["ok","never"]}"#;
    workspace.put("apps/mcp_server/schemas/envelope.schema.json", schema);
    for (mode, error) in [("off", false), ("shadow", true), ("enforce", true)] {
        let args = [&ONCE[..], &["--mode", mode]].concat();
        let output = run(workspace.root(), &args);
        assert_eq!(output.status.code(), Some(1), "{mode}: the envelopes are invalid");
        for line in read_log(&workspace.path("runs")) {
            assert_eq!(line["error"].is_object(), error, "{mode}: {line}");
        }
        let refused = stdout(&output).contains("discover  502  ");
        assert_eq!(refused, mode == "enforce", "{}", stdout(&output));
    }
    let by_env = run_with(workspace.root(), &ONCE, &[("RAGX_MCP_ENVELOPE_VALIDATION", "enforce")]);
    assert!(stdout(&by_env).contains("discover  502  "), "{}", stdout(&by_env));
}
