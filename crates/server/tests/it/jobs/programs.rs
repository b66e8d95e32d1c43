//! Tests of programs that misbehave while they run as jobs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, call, let_continue,
    peak_memory_kib, structured, wait_long_for, wait_until,
};

#[track_caller]
fn output(served: &HttpServerProcess, id: &str) -> String {
    let mut after = 0;
    let mut text = String::new();
    loop {
        let ask = json!({ "job_id": id, "after": after, "max_bytes": 1 << 20 });
        let page = structured(&served.ask(&call(1, "jobs_output", ask))).clone();
        let pieces = page["pieces"].as_array().unwrap();
        text.extend(pieces.iter().map(|piece| piece["text"].as_str().unwrap()));
        after = page["next"].as_u64().unwrap();
        if page["ended"] == true {
            return text;
        }
        assert!(!pieces.is_empty(), "{page}");
    }
}

#[test]
fn two_gibibytes_of_output_are_cut_to_the_limit_in_bounded_memory() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    // The first call loads code into memory.
    served.job_in("succeeded", &served.start_job("exec-run", json!({ "command": "true" })));
    let before = peak_memory_kib(served.pid);
    let id = served.start_job(
        "exec-run",
        json!({ "command": "head -c 2147483648 /dev/zero | tr '\\0' x", "shell": true }),
    );
    let end = wait_long_for(Duration::from_secs(100), "it ends", || {
        let job = served.job(&id);
        (job["status"] != "running" && job["status"] != "queued").then_some(job)
    });
    assert_eq!((&end["status"], &end["exit_code"]), (&json!("succeeded"), &json!(0)));
    assert!(output(&served, &id) == "x".repeat(8 << 20));
    let grown = peak_memory_kib(served.pid).saturating_sub(before);
    eprintln!("{grown} KiB");
    assert!(grown < 48 << 10, "{grown} KiB");
}

#[test]
fn invalid_utf_8_is_replaced_and_the_rest_is_returned() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let script = "printf 'a\\377b\\303'; sleep 0.1; printf '\\251c'";
    let id = served.start_job("exec-run", json!({ "command": script, "shell": true }));
    served.job_in("succeeded", &id);
    assert_eq!(output(&served, &id), "a\u{fffd}b\u{e9}c");
}

#[test]
fn invalid_utf_8_is_replaced_for_zyra_clients() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let script = json!({ "command": "printf 'a\\377b'", "shell": true });
    let id = served.start_job("exec-run", script.clone());
    assert_eq!(served.job_in("succeeded", &id)["stdout"], "a\u{fffd}b");
    let params = json!({ "name": "exec-run", "arguments": script });
    assert_eq!(served.result("tools/call", params)["stdout"], "a\u{fffd}b");
}

#[test]
fn progress_on_one_stream_is_not_lost_to_output_on_the_other() {
    let workspace = TempWorkspace::new().file(
        "toolgate.toml",
        "[command.\"say.half\"]\nabout = \"Says it.\"\nprogram = \"sh\"\nprogress = '(\\d+)%'\n\
         argv = [\"-c\", \"echo 50%; echo aside >&2; until [ -e go ]; do sleep 0.02; done\"]\n",
    );
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("say-half", json!({}));
    wait_until("progress is reported", || {
        let answer = served.ask(&call(1, "jobs_get", json!({ "job_id": id })));
        structured(&answer)["progress"] == 0.5
    });
}

#[test]
fn a_job_whose_program_forks_and_exits_ends_and_leaves_no_process() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let marker = ProcessMarker::new();
    let script = "setsid sleep $1 >/dev/null 2>&1 & echo left; exit 0";
    let arguments = json!({ "command": script, "shell": true, "args": [marker.0] });
    let id = served.start_job("exec-run", arguments);
    assert_eq!(served.job_in("succeeded", &id)["stdout"], "left\n");
    marker.wait_until_gone();
}

#[test]
fn a_job_that_never_ends_is_stopped_at_its_deadline() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
    let marker = ProcessMarker::new();
    let id = served.start_job("work-endless", json!({ "name": marker.0 }));
    let job = served.job_in("failed", &id);
    assert!(marker.pids().is_empty());
    assert_eq!(job["exit_code"], -1, "{job}");
    let answer = served.ask(&call(1, "jobs_get", json!({ "job_id": id })));
    assert_eq!(structured(&answer)["result"]["timed_out"], true, "{answer}");
    let_continue(&workspace);
    served.job_in("succeeded", &served.start_job("work-wait", json!({ "name": "next" })));
}

#[test]
fn a_job_whose_program_is_missing_fails_and_names_it() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = served.start_job("work-missing", json!({}));
    let job = served.job_in("failed", &id);
    assert!(job["stderr"].as_str().unwrap().contains("no-such-program-7f3a"), "{job}");
    assert_eq!((&job["exit_code"], &job["output_file"]), (&Value::Null, &Value::Null));
    assert_eq!(served.get(&format!("/jobs/{id}/download")).status, 404);
}
