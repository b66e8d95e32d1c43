//! Programs that are not there, or do not want to end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    Launch, Marker, NOTHING, Workspace, call, notification, over_both, refusal, structured,
};

/// Beyond the grace of half a second, with room for a busy machine.
const GRACE: Duration = Duration::from_secs(5);

#[test]
fn a_program_that_does_not_exist_is_told_with_the_nearest() {
    over_both(&Workspace::new(), |client| {
        let said = refusal(&client.call("exec_run", json!({ "command": "slep", "args": ["1"] })));
        assert!(said.contains("/command") && said.contains("`slep`"), "{said}");
        assert!(said.contains("did you mean `sleep`?"), "{said}");
        let said = refusal(&client.call("exec_run", json!({ "command": "./none" })));
        assert!(said.contains("`./none` does not exist"), "{said}");
        for line in ["sleep 1", "grep -rn something ."] {
            let said = refusal(&client.call("exec_run", json!({ "command": line })));
            assert!(said.contains("`args`"), "{said}");
        }
    });
}

#[test]
fn a_file_that_is_no_program_is_told() {
    over_both(&Workspace::new(), |client| {
        let said = refusal(&client.call("exec_run", json!({ "command": "./README.md" })));
        assert!(said.contains("not executable"), "{said}");
        let said = refusal(&client.call("exec_run", json!({ "command": "." })));
        assert!(said.contains("/command"), "{said}");
    });
}

/// A script that ignores SIGTERM, and starts one more that does.
fn stubborn(marker: &Marker) -> Value {
    let script = "trap '' TERM INT HUP; (trap '' TERM; while :; do sleep 0.1; done) & \
                  while :; do sleep 0.1; done";
    json!({ "command": script, "shell": true, "args": [marker.0] })
}

#[test]
fn a_program_that_ignores_sigterm_is_gone_soon_after_its_time_is_over() {
    over_both(&Workspace::new(), |client| {
        let marker = Marker::new();
        let mut arguments = stubborn(&marker);
        arguments["timeout_ms"] = json!(300);
        let begun = Instant::now();
        let answer = client.call("exec_run", arguments);
        assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
        assert_eq!(marker.pids(), [0_u32; 0], "answered, yet it runs");
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["timed_out"], true, "{answer}");
        assert_eq!(answer["result"]["structuredContent"]["exit_code"], -1, "{answer}");
    });
}

#[test]
fn a_program_that_ignores_sigterm_is_gone_soon_after_it_is_cancelled() {
    let mut stdio = Launch::over(&Workspace::new()).stdio();
    let marker = Marker::new();
    stdio.send(&call(1, "exec_run", stubborn(&marker)));
    marker.started();
    let begun = Instant::now();
    stdio.send(&notification("notifications/cancelled", json!({ "requestId": 1 })));
    marker.gone();
    assert!(begun.elapsed() < GRACE, "{:?}", begun.elapsed());
    stdio.close_input();
    assert_eq!(stdio.rest(), NOTHING, "a cancelled call is not answered");
}

#[test]
fn what_a_program_leaves_in_the_background_is_gone_when_it_ends() {
    over_both(&Workspace::new(), |client| {
        let marker = Marker::new();
        let script =
            "setsid sh -c 'trap \"\" TERM; sleep \"$0\"' \"$1\" >/dev/null 2>&1 & echo left";
        let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
        let answer = client.call("exec_run", arguments);
        assert_eq!(structured(&answer)["stdout"], "left\n");
        marker.gone();
    });
}
