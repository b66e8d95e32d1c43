//! How programs end, and that nothing of them is left.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::timeout;
use toolgate_contract::{CallEnding, ToolContext, ToolFault};

use super::{Bench, ctx, lives, odd_sleep, until, zombies};

#[tokio::test]
async fn a_program_that_fails_has_a_result() {
    let ran = Bench::new().sh("echo out; echo err >&2; exit 3").await;
    assert_eq!(ran.exit_code(), 3);
    assert_eq!(ran.ending, CallEnding::ProgramFailed);
    assert_eq!(ran.value["stderr"], "err\n");
    assert_eq!(ran.text.body, "out\nstderr:\nerr\n");
    let note = ran.text.note.unwrap();
    assert!(note.starts_with("exit code 3 in ") && note.ends_with(" ms"), "{note}");
}

#[tokio::test]
async fn a_program_ended_by_a_signal_says_which() {
    let ran = Bench::new().sh("kill -SEGV $$").await;
    assert_eq!((ran.exit_code(), &ran.value["signal"]), (139, &json!("SIGSEGV")));
    assert_eq!(ran.ending, CallEnding::ProgramFailed);
    assert!(ran.text.note.unwrap().starts_with("ended by SIGSEGV, exit code 139, after "));
}

#[tokio::test]
async fn what_was_printed_before_the_timeout_is_in_the_result() {
    let bench = Bench::new();
    let script = "trap 'echo bye; exit 0' TERM; echo hello; while :; do sleep 0.01; done";
    let ran =
        bench.run(json!({"command": script, "shell": true, "timeout_ms": 1500})).await.unwrap();
    assert_eq!((ran.exit_code(), &ran.value["timed_out"]), (-1, &json!(true)));
    assert_eq!(ran.stdout(), "hello\nbye\n");
    assert_eq!(ran.ending, CallEnding::ProgramFailed);
    let note = ran.text.note.unwrap();
    assert!(note.starts_with("timed out and was stopped after "), "{note}");
    assert!(note.ends_with(" ms; timeout_ms gives it longer, up to 600000"), "{note}");
}

/// Runs `script`, in which `$1` is a sleep to know its processes by, until it is timed out.
async fn check_timed_out(script: &str) {
    let bench = Bench::new();
    let sleep = odd_sleep();
    let input = json!({"command": script, "args": [sleep], "shell": true, "timeout_ms": 500});
    let started = Instant::now();
    let ran = bench.run(input).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((ran.exit_code(), &ran.value["timed_out"]), (-1, &json!(true)), "{ran:?}");
    assert!(!lives(&sleep), "something survives");
    assert_eq!(zombies(), 0);
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_ignores_being_asked() {
    check_timed_out("trap '' TERM; sleep $1; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_in_sessions_of_its_own_too() {
    check_timed_out("trap '' TERM; setsid sleep $1 & sleep $1").await;
    check_timed_out("(setsid sh -c '(setsid sleep '$1' &) &' &) ; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_what_emptied_its_environment_too() {
    check_timed_out("(setsid env -i /bin/sh -c '(sleep '$1' &)' &); sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_stopped_itself() {
    check_timed_out("sleep $1 & kill -STOP $$").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_closed_its_outputs() {
    check_timed_out("exec >&- 2>&-; sleep $1").await;
}

#[tokio::test]
async fn a_timeout_ends_a_program_that_keeps_forking() {
    check_timed_out("f() { sleep $1 & (setsid sleep $1 &); sleep 0.02; f $1; }; f $1").await;
}

/// Runs `script`, which leaves processes behind, and sees that it returns at once without them.
async fn check_left_behind(script: &str) {
    let bench = Bench::new();
    let sleep = odd_sleep();
    let input = json!({"command": script, "args": [sleep], "shell": true});
    let started = Instant::now();
    let ran = bench.run(input).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((ran.exit_code(), ran.stdout()), (7, "done\n"));
    assert!(!lives(&sleep), "something survives");
    assert_eq!(zombies(), 0);
}

#[tokio::test]
async fn a_child_that_keeps_the_pipe_open_does_not_keep_the_call() {
    check_left_behind("sleep $1 & echo done; exit 7").await;
    check_left_behind("trap '' TERM; sleep $1 & echo done; exit 7").await;
}

#[tokio::test]
async fn a_child_in_another_session_does_not_outlive_the_call() {
    check_left_behind("setsid sleep $1 >/dev/null 2>&1 & echo done; exit 7").await;
    check_left_behind("(setsid env -i sleep $1 >/dev/null 2>&1 &); echo done; exit 7").await;
}

#[tokio::test]
async fn a_child_that_took_its_mark_off_does_not_outlive_the_call() {
    for limit in ["-x unlimited", "-S -x 0", "-x 0"] {
        let escape = format!("ulimit {limit} 2>/dev/null; setsid sleep $1 >/dev/null 2>&1 &");
        check_left_behind(&format!("bash -c '{escape}' x $1; echo done; exit 7")).await;
    }
}

#[tokio::test]
async fn a_cancelled_call_leaves_nothing_and_says_so() {
    let bench = Bench::new();
    let sleep = odd_sleep();
    let ctx = ctx();
    let input = json!({"command": "setsid sleep $1 & sleep $1", "args": [sleep], "shell": true});
    let call = bench.call("exec.run", &ctx, input);
    let cancel = async {
        until("the start", || lives(&sleep)).await;
        ctx.cancel.cancel();
        Instant::now()
    };
    let (ran, cancelled) = tokio::join!(call, cancel);
    assert_eq!(ran.unwrap_err().fault, ToolFault::Canceled);
    assert!(cancelled.elapsed() < Duration::from_secs(10), "{:?}", cancelled.elapsed());
    assert!(!lives(&sleep), "something survives");
}

#[tokio::test]
async fn a_call_cancelled_before_it_began_starts_nothing() {
    let bench = Bench::new();
    let ctx: ToolContext = ctx();
    ctx.cancel.cancel();
    let evil = bench.forbidden();
    let ran = bench.call("exec.run", &ctx, json!({"command": "touch", "args": [evil]})).await;
    assert_eq!(ran.unwrap_err().fault, ToolFault::Canceled);
    assert!(!bench.outside.path().join("touched").exists());
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing() {
    let bench = Bench::new();
    let sleep = odd_sleep();
    let script = "trap '' TERM; setsid sleep $1 & sleep $1";
    let call = bench.run(json!({"command": script, "args": [sleep], "shell": true}));
    let started = until("the start", || lives(&sleep));
    tokio::select! {
        ran = call => panic!("it ended: {ran:?}"),
        () = started => {}
    }
    until("the end", || !lives(&sleep) && zombies() == 0).await;
}

#[tokio::test]
async fn a_call_dropped_at_any_instant_leaves_nothing() {
    let bench = Bench::new();
    let sleep = odd_sleep();
    for micros in (0..3000).step_by(100) {
        let call = bench.run(json!({"command": "sleep", "args": [sleep]}));
        assert!(timeout(Duration::from_micros(micros), call).await.is_err());
    }
    timeout(Duration::from_secs(5), bench.processes.close()).await.expect("all of it ends");
    assert!(!lives(&sleep), "something survives");
    assert_eq!(zombies(), 0);
}

#[test]
fn a_runtime_that_ends_leaves_nothing() {
    let sleep = odd_sleep();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let script = "trap '' TERM; setsid sleep $1 & sleep $1";
    runtime.block_on(async {
        let bench = Bench::new();
        let input = json!({"command": script, "args": [sleep], "shell": true});
        tokio::spawn(async move { bench.run(input).await });
        until("the start", || lives(&sleep)).await;
    });
    drop(runtime);
    // What had just been started is ended by the thread that started it.
    let begun = Instant::now();
    while lives(&sleep) {
        assert!(begun.elapsed() < Duration::from_secs(5), "something survives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_does_not_outlive_a_server_that_is_killed() {
    const ROLE: &str = "TOOLGATE_TEST_SLEEP";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Ok(sleep) = std::env::var(ROLE) {
        let run = async { Bench::new().run(json!({"command": "sleep", "args": [sleep]})).await };
        panic!("it ended: {:?}", runtime.block_on(run));
    }
    let sleep = odd_sleep();
    let name = "exec::tests::endings::a_program_does_not_outlive_a_server_that_is_killed";
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ROLE, &sleep)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    runtime.block_on(until("the start", || lives(&sleep)));
    server.kill().unwrap();
    server.wait().unwrap();
    runtime.block_on(until("the end", || !lives(&sleep)));
}

#[tokio::test]
async fn closing_ends_all_that_runs() {
    let bench = Bench::new();
    let sleep = odd_sleep();
    let call = bench.run(json!({"command": "sleep", "args": [sleep]}));
    let close = async {
        until("the start", || lives(&sleep)).await;
        bench.processes.close().await;
        assert!(!lives(&sleep), "something survives");
    };
    let (ran, ()) = tokio::join!(call, close);
    assert_eq!(ran.unwrap_err().fault, ToolFault::Canceled);
}

#[tokio::test]
async fn two_calls_do_not_end_each_other() {
    let bench = Bench::new();
    let long = odd_sleep();
    let short = odd_sleep();
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
    assert!(!lives(&short), "something survives");
}
