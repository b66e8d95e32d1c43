//! Tests that programs end without leaving processes behind.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::timeout;
use toolgate_contract::{ToolContext, ToolErrorKind, ToolRunStatus};

use super::{ExecTestBench, ctx, is_alive, unique_sleep, until, zombies};

#[tokio::test]
async fn a_failed_program_has_a_result_with_its_exit_code_and_output() {
    let ran = ExecTestBench::new().sh("echo out; echo err >&2; exit 3").await;
    assert_eq!(ran.exit_code(), 3);
    assert_eq!(ran.ending, ToolRunStatus::ProgramFailed);
    assert_eq!(ran.value["stderr"], "err\n");
    assert_eq!(ran.text.body, "out\nstderr:\nerr\n");
    let note = ran.text.note.unwrap();
    assert!(note.starts_with("exit code 3 in ") && note.ends_with(" ms"), "{note}");
}

#[tokio::test]
async fn a_program_ended_by_a_signal_has_a_result_with_its_name() {
    let ran = ExecTestBench::new().sh("kill -SEGV $$").await;
    assert_eq!((ran.exit_code(), &ran.value["signal"]), (139, &json!("SIGSEGV")));
    assert_eq!(ran.ending, ToolRunStatus::ProgramFailed);
    assert!(ran.text.note.unwrap().starts_with("ended by SIGSEGV, exit code 139, after "));
}

#[tokio::test]
async fn output_before_the_timeout_is_in_the_result() {
    let bench = ExecTestBench::new();
    let script = "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.01; done";
    let ran =
        bench.run(json!({"command": script, "shell": true, "timeout_ms": 1500})).await.unwrap();
    assert_eq!((ran.exit_code(), &ran.value["timed_out"]), (-1, &json!(true)));
    assert_eq!(ran.stdout(), "hello\nbye\n");
    assert_eq!(ran.ending, ToolRunStatus::ProgramFailed);
    let note = ran.text.note.unwrap();
    assert!(note.starts_with("timed out and was stopped after "), "{note}");
    assert!(note.ends_with(" ms; set `timeout_ms` for more time, up to 600000"), "{note}");
}

/// Runs `script` until it times out, and checks that no process is left. `$1` in the script is a
/// unique sleep duration, by which its processes are found.
async fn check_timed_out(script: &str) {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    let input = json!({"command": script, "args": [sleep], "shell": true, "timeout_ms": 500});
    let started = Instant::now();
    let ran = bench.run(input).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((ran.exit_code(), &ran.value["timed_out"]), (-1, &json!(true)), "{ran:?}");
    assert!(!is_alive(&sleep), "a process is left");
    assert_eq!(zombies(), 0);
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_ignores_sigterm() {
    check_timed_out("trap '' TERM; sleep $1; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_child_processes_in_other_sessions() {
    check_timed_out("trap '' TERM; setsid sleep $1 & sleep $1").await;
    check_timed_out("(setsid sh -c '(setsid sleep '$1' &) &' &) ; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_a_child_process_with_an_empty_environment() {
    check_timed_out("(setsid env -i /bin/sh -c '(sleep '$1' &)' &); sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_stopped_itself() {
    check_timed_out("sleep $1 & kill -STOP $$").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_closed_its_output() {
    check_timed_out("exec >&- 2>&-; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_keeps_forking() {
    check_timed_out("f() { sleep $1 & (setsid sleep $1 &); sleep 0.02; f $1; }; f $1").await;
}

/// Runs `script`, which leaves child processes running. Checks that the call returns without
/// waiting for them, and ends them.
async fn check_children_ended(script: &str) {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    let input = json!({"command": script, "args": [sleep], "shell": true});
    let started = Instant::now();
    let ran = bench.run(input).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((ran.exit_code(), ran.stdout()), (7, "done\n"));
    assert!(!is_alive(&sleep), "a process is left");
    assert_eq!(zombies(), 0);
}

#[tokio::test]
async fn a_child_that_holds_the_pipe_open_does_not_delay_the_result() {
    check_children_ended("sleep $1 & echo done; exit 7").await;
    check_children_ended("trap '' TERM; sleep $1 & echo done; exit 7").await;
}

#[tokio::test]
async fn a_child_in_another_session_does_not_outlive_the_call() {
    check_children_ended("setsid sleep $1 >/dev/null 2>&1 & echo done; exit 7").await;
    check_children_ended("(setsid env -i sleep $1 >/dev/null 2>&1 &); echo done; exit 7").await;
}

#[tokio::test]
async fn a_child_that_removed_its_mark_does_not_outlive_the_call() {
    for limit in ["-x unlimited", "-S -x 0", "-x 0"] {
        let escape = format!("ulimit {limit} 2>/dev/null; setsid sleep $1 >/dev/null 2>&1 &");
        check_children_ended(&format!("bash -c '{escape}' x $1; echo done; exit 7")).await;
    }
}

#[tokio::test]
async fn a_cancelled_call_leaves_no_process() {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    let ctx = ctx();
    let input = json!({"command": "setsid sleep $1 & sleep $1", "args": [sleep], "shell": true});
    let call = bench.call("exec.run", &ctx, input);
    let cancel = async {
        until("the start", || is_alive(&sleep)).await;
        ctx.cancel.cancel();
        Instant::now()
    };
    let (ran, cancelled) = tokio::join!(call, cancel);
    assert_eq!(ran.unwrap_err().fault, ToolErrorKind::Canceled);
    assert!(cancelled.elapsed() < Duration::from_secs(10), "{:?}", cancelled.elapsed());
    assert!(!is_alive(&sleep), "a process is left");
}

#[tokio::test]
async fn a_call_cancelled_before_its_start_starts_no_program() {
    let bench = ExecTestBench::new();
    let ctx: ToolContext = ctx();
    ctx.cancel.cancel();
    let evil = bench.forbidden();
    let ran = bench.call("exec.run", &ctx, json!({"command": "touch", "args": [evil]})).await;
    assert_eq!(ran.unwrap_err().fault, ToolErrorKind::Canceled);
    assert!(!bench.outside.path().join("touched").exists());
}

#[tokio::test]
async fn a_dropped_call_leaves_no_process() {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    let script = "trap '' TERM; setsid sleep $1 & sleep $1";
    let call = bench.run(json!({"command": script, "args": [sleep], "shell": true}));
    let started = until("the start", || is_alive(&sleep));
    tokio::select! {
        ran = call => panic!("it ended: {ran:?}"),
        () = started => {}
    }
    until("the end", || !is_alive(&sleep) && zombies() == 0).await;
}

#[tokio::test]
async fn a_call_dropped_at_any_moment_leaves_no_process() {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    for micros in (0..3000).step_by(100) {
        let call = bench.run(json!({"command": "sleep", "args": [sleep]}));
        assert!(timeout(Duration::from_micros(micros), call).await.is_err());
    }
    timeout(Duration::from_secs(5), bench.processes.close()).await.expect("every process ends");
    assert!(!is_alive(&sleep), "a process is left");
    assert_eq!(zombies(), 0);
}

#[test]
fn a_dropped_runtime_leaves_no_process() {
    let sleep = unique_sleep();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let script = "trap '' TERM; setsid sleep $1 & sleep $1";
    runtime.block_on(async {
        let bench = ExecTestBench::new();
        let input = json!({"command": script, "args": [sleep], "shell": true});
        tokio::spawn(async move { bench.run(input).await });
        until("the start", || is_alive(&sleep)).await;
    });
    drop(runtime);
    // A program that was just started is ended by the thread that started it.
    let started = Instant::now();
    while is_alive(&sleep) {
        assert!(started.elapsed() < Duration::from_secs(5), "a process is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_does_not_outlive_a_server_that_is_killed() {
    const ROLE: &str = "TOOLGATE_TEST_SLEEP";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Ok(sleep) = std::env::var(ROLE) {
        let run =
            async { ExecTestBench::new().run(json!({"command": "sleep", "args": [sleep]})).await };
        panic!("it ended: {:?}", runtime.block_on(run));
    }
    let sleep = unique_sleep();
    let name = "exec::tests::endings::a_program_does_not_outlive_a_server_that_is_killed";
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ROLE, &sleep)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    runtime.block_on(until("the start", || is_alive(&sleep)));
    server.kill().unwrap();
    server.wait().unwrap();
    runtime.block_on(until("the end", || !is_alive(&sleep)));
}

#[tokio::test]
async fn close_ends_every_running_program() {
    let bench = ExecTestBench::new();
    let sleep = unique_sleep();
    let call = bench.run(json!({"command": "sleep", "args": [sleep]}));
    let close = async {
        until("the start", || is_alive(&sleep)).await;
        bench.processes.close().await;
        assert!(!is_alive(&sleep), "a process is left");
    };
    let (ran, ()) = tokio::join!(call, close);
    assert_eq!(ran.unwrap_err().fault, ToolErrorKind::Canceled);
}

#[tokio::test]
async fn two_calls_do_not_end_each_other() {
    let bench = ExecTestBench::new();
    let long = unique_sleep();
    let short = unique_sleep();
    let long_call = bench.run(json!({
        "command": "(setsid sleep 0.7; echo far) | cat; echo near; : $1",
        "args": [long], "shell": true
    }));
    let script = "setsid sleep $1 & sleep $1";
    let short_call = bench.run(json!({
        "command": script, "args": [short], "shell": true, "timeout_ms": 200
    }));
    let (long_ran, short_ran) = tokio::join!(long_call, short_call);
    assert_eq!(long_ran.unwrap().stdout(), "far\nnear\n");
    assert_eq!(short_ran.unwrap().exit_code(), -1);
    assert!(!is_alive(&short), "a process is left");
}
