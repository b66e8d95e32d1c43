//! Tests that confined programs exit like unconfined ones.

use std::time::{Duration, Instant};

use super::*;

/// Shell scripts, each with its expected exit code and signal.
const EXITS: &[(&str, i64, Option<&str>)] = &[
    ("exit 0", 0, None),
    ("exit 7", 7, None),
    ("kill -TERM $$", 143, Some("SIGTERM")),
    ("kill -SEGV $$", 139, Some("SIGSEGV")),
    ("kill -KILL $$", 137, Some("SIGKILL")),
    ("kill -USR1 $$", 138, Some("SIGUSR1")),
    ("sh -c 'kill -KILL $$'", 137, None),
];

#[test]
fn a_confined_program_ends_with_the_same_code_and_signal() {
    let workspace = TempWorkspace::new();
    for profile in ["off", "workspace"] {
        let mut client = confined_client(&workspace, profile);
        for (script, code, signal) in EXITS {
            let result = sh(&mut client, script);
            let exit = (result.code, result.value["signal"].as_str());
            assert_eq!(exit, (*code, *signal), "{profile}: {script}: {}", result.stderr);
        }
    }
}

#[test]
fn a_program_that_times_out_gets_sigterm_first() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let script = "trap 'echo heard > heard; exit 3' TERM; sleep 60 & wait";
    let started = Instant::now();
    let result =
        run(&mut client, json!({ "command": "sh", "args": ["-c", script], "timeout_ms": 2500 }));
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(result.value["timed_out"], true, "{}", result.value);
    assert_eq!(workspace.read("heard"), "heard\n");
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let result =
        run(&mut client, json!({ "command": "sh", "args": ["-c", deaf], "timeout_ms": 300 }));
    assert_eq!(result.value["timed_out"], true, "{}", result.value);
}

#[test]
fn input_output_and_start_errors_pass_through_the_sandbox() {
    let workspace = TempWorkspace::new();
    let mut client = confined_client(&workspace, "workspace");
    let input = json!({ "command": "cat", "stdin": "a\nb\n" });
    assert_eq!(run(&mut client, input).stdout, "a\nb\n");
    let result = sh(&mut client, "cat; echo out; echo err >&2; seq 1 20000 | tail -1");
    assert_eq!((&*result.stdout, &*result.stderr), ("out\n20000\n", "err\n"));
    let absent = client.call("exec_run", json!({ "command": "toolgate-no-such-program" }));
    assert!(absent.to_string().contains("no program is named"), "{absent}");
    workspace.put("bad", "#!/no/such/interpreter\n");
    let bad = workspace.path("bad");
    std::fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let answer = client.call("exec_run", json!({ "command": "./bad" }));
    assert!(answer.to_string().contains("interpreter"), "{answer}");
}
