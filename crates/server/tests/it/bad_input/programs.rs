//! Tests of programs that are missing or do not end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    NOTHING, ProcessMarker, ServerLaunchOptions, TempWorkspace, call, notification, over_both,
    refusal, structured,
};

/// Time within which a stopped program must have ended: half a second of grace, plus some time for
/// a busy machine.
const GRACE: Duration = Duration::from_secs(5);

#[test]
fn a_missing_program_is_reported_with_the_most_similar_name() {
    over_both(&TempWorkspace::new(), |client| {
        let message =
            refusal(&client.call("exec_run", json!({ "command": "slep", "args": ["1"] })));
        assert!(message.contains("/command") && message.contains("`slep`"), "{message}");
        assert!(message.contains("did you mean `sleep`?"), "{message}");
        let message = refusal(&client.call("exec_run", json!({ "command": "./none" })));
        assert!(message.contains("`./none` does not exist"), "{message}");
        for line in ["sleep 1", "grep -rn something ."] {
            let message = refusal(&client.call("exec_run", json!({ "command": line })));
            assert!(message.contains("`args`"), "{message}");
        }
    });
}

#[test]
fn a_file_that_is_not_executable_is_reported() {
    over_both(&TempWorkspace::new(), |client| {
        let message = refusal(&client.call("exec_run", json!({ "command": "./README.md" })));
        assert!(message.contains("not executable"), "{message}");
        let message = refusal(&client.call("exec_run", json!({ "command": "." })));
        assert!(message.contains("/command"), "{message}");
    });
}

/// Returns a script that ignores SIGTERM and starts a second script that also ignores it.
fn stubborn_script(marker: &ProcessMarker) -> Value {
    let script = "trap '' TERM INT HUP; (trap '' TERM; while :; do sleep 0.1; done) & \
                  while :; do sleep 0.1; done";
    json!({ "command": script, "shell": true, "args": [marker.0] })
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_soon_after_its_timeout() {
    over_both(&TempWorkspace::new(), |client| {
        let marker = ProcessMarker::new();
        let mut arguments = stubborn_script(&marker);
        arguments["timeout_ms"] = json!(300);
        let started = Instant::now();
        let answer = client.call("exec_run", arguments);
        assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
        assert_eq!(marker.pids(), [0_u32; 0], "it still runs after the answer");
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["timed_out"], true, "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["exit_code"], -1, "{answer}");
    });
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_soon_after_it_is_cancelled() {
    let mut stdio = ServerLaunchOptions::over(&TempWorkspace::new()).stdio();
    let marker = ProcessMarker::new();
    stdio.send(&call(1, "exec_run", stubborn_script(&marker)));
    marker.wait_until_running();
    let started = Instant::now();
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": 1 })));
    marker.wait_until_gone();
    assert!(started.elapsed() < GRACE, "{:?}", started.elapsed());
    stdio.close_input();
    assert_eq!(stdio.read_rest(), NOTHING, "a cancelled call is not answered");
}

#[test]
fn background_programs_are_killed_when_the_program_ends() {
    over_both(&TempWorkspace::new(), |client| {
        let marker = ProcessMarker::new();
        let script =
            "setsid sh -c 'trap \"\" TERM; sleep \"$0\"' \"$1\" >/dev/null 2>&1 & echo left";
        let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
        let answer = client.call("exec_run", arguments);
        assert_eq!(structured(&answer)["stdout"], "left\n");
        marker.wait_until_gone();
    });
}
