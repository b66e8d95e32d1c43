//! Tests of the exit codes, the environment and the events of declared commands.

use std::time::{Duration, Instant};

use serde_json::json;
use toolgate_contract::{
    CallEvent, CallEventSink, OutputStreamKind, ToolContext, ToolErrorKind, ToolRunStatus,
};

use super::{CommandTestBench, ctx, declaration, load};

#[tokio::test]
async fn only_the_declared_exit_codes_are_a_success() {
    let bench = CommandTestBench::script(
        "exit $1",
        "argv = [\"{code}\"]\nsuccess = [0, 3]\n\
        [command.\"x.y\".args]\ncode = \"integer!\"\n",
    );
    for (code, ending) in
        [(0, ToolRunStatus::Done), (3, ToolRunStatus::Done), (1, ToolRunStatus::ProgramFailed)]
    {
        let output = bench.call(json!({"code": code})).await.unwrap();
        assert_eq!((&output.value["exit_code"], output.ending), (&json!(code), ending));
    }
}

#[tokio::test]
async fn a_signal_is_never_a_success() {
    let bench = CommandTestBench::script("kill -SEGV $$", "argv = []\nsuccess = [139]\n");
    let output = bench.call(json!({})).await.unwrap();
    assert_eq!(output.value["signal"], "SIGSEGV");
    assert_eq!(output.ending, ToolRunStatus::ProgramFailed);
}

#[tokio::test]
async fn a_timeout_ends_a_command_and_its_child_processes() {
    let length = format!("3601.{}", getrandom::u64().unwrap() >> 1);
    let bench = CommandTestBench::script(
        &format!("setsid sleep {length} & sleep {length} & echo on; exec sleep {length}"),
        "argv = []\ndeadline_ms = 300\n",
    );
    let started = Instant::now();
    let output = bench.call(json!({})).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(
        (&output.value["timed_out"], &output.value["exit_code"]),
        (&json!(true), &json!(-1))
    );
    assert_eq!(output.ending, ToolRunStatus::ProgramFailed);
    let note = output.text.note.unwrap();
    assert!(note.contains("set the `deadline_ms` of the command for more time"), "{note}");
    assert!(!is_alive(&length), "a process is left");
}

#[tokio::test]
async fn a_child_process_does_not_outlive_the_command() {
    let length = format!("3602.{}", getrandom::u64().unwrap() >> 1);
    let script = format!("(setsid sleep {length} >/dev/null 2>&1 &) ; echo gone");
    let bench = CommandTestBench::script(&script, "argv = []\n");
    let output = bench.call(json!({})).await.unwrap();
    assert_eq!(output.value["stdout"], "gone\n");
    assert!(!is_alive(&length), "a process is left");
}

#[tokio::test]
async fn a_cancelled_call_ends_the_command() {
    let length = format!("3603.{}", getrandom::u64().unwrap() >> 1);
    let bench = CommandTestBench::script(&format!("exec sleep {length}"), "argv = []\n");
    let ctx = ctx();
    let cancel = ctx.cancel.clone();
    let (outcome, ()) = tokio::join!(bench.tool("x.y").run(&ctx, json!({})), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancel.cancel();
    });
    assert_eq!(outcome.unwrap_err().fault, ToolErrorKind::Canceled);
    assert!(!is_alive(&length), "a process is left");
}

#[tokio::test]
async fn output_that_is_not_utf8_is_returned_and_forwarded() {
    let bench = CommandTestBench::script("printf 'a\\377b'; printf 'é' >&2", "argv = []\n");
    let output = bench.call(json!({})).await.unwrap();
    assert_eq!(output.value["stdout_extent"]["encoding"], "base64");
    assert_eq!(output.value["stderr"], "é");
    let forwarded: String = bench
        .events
        .lock()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            CallEvent::ProgramOutput { stream: OutputStreamKind::Stdout, text } => {
                Some(text.as_str())
            }
            _ => None,
        })
        .collect();
    assert_eq!(forwarded, "a\u{fffd}b");
}

#[tokio::test]
async fn much_output_is_forwarded_in_little_memory() {
    let bench = CommandTestBench::script("head -c 268435456 /dev/zero", "argv = []\n");
    let forwarded_bytes = std::sync::Arc::new(std::sync::Mutex::new(0));
    let before = resident_kib();
    let count = forwarded_bytes.clone();
    let events = CallEventSink::new(move |event| {
        if let CallEvent::ProgramOutput { text, .. } = event {
            *count.lock().unwrap() += text.len() as u64;
        }
    });
    let ctx = ToolContext { events, ..ctx() };
    let mut run = std::pin::pin!(bench.tool("x.y").run(&ctx, json!({})));
    let mut peak = before;
    let output = loop {
        tokio::select! {
            output = &mut run => break output.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(20)) => peak = peak.max(resident_kib()),
        }
    };
    assert_eq!(*forwarded_bytes.lock().unwrap(), 256 << 20);
    assert_eq!(output.value["stdout_extent"]["total_bytes"], 256 << 20);
    println!("resident: {before} KiB before, {peak} KiB at most");
    assert!(peak - before < 32 << 10, "{before} KiB grew to {peak} KiB");
    let more = json!({"output_id": output.value["output_id"], "offset": 1 << 20, "max_bytes": 8});
    let piece = bench.tool("exec.output").run(&ctx, more).await.unwrap();
    assert_eq!(piece.value["bytes"], 8);
}

#[tokio::test]
async fn progress_is_read_from_the_output() {
    let script = "for i in 10 50 100; do echo \"at $i% of it\"; sleep 0.3; done; echo done";
    let bench = CommandTestBench::script(script, "argv = []\nprogress = '(\\d+)%'\n");
    bench.call(json!({})).await.unwrap();
    let events = bench.events.lock().unwrap();
    let progress = events.iter().filter_map(|event| match event {
        CallEvent::Progress { done, total, .. } => Some((*done, total.unwrap())),
        _ => None,
    });
    assert_eq!(progress.collect::<Vec<_>>(), [(10.0, 100.0), (50.0, 100.0), (100.0, 100.0)]);
}

#[tokio::test]
async fn an_argument_is_passed_as_standard_input_if_declared() {
    let rest =
        "argv = [\"{options}\"]\nstdin = \"text\"\n[command.\"x.y\".args]\ntext = \"string\"\n";
    let bench = CommandTestBench::script("cat; echo \"$#\"", rest);
    assert_eq!(bench.call(json!({"text": "-in\n"})).await.unwrap().value["stdout"], "-in\n0\n");
    assert_eq!(bench.call(json!({})).await.unwrap().value["stdout"], "0\n");
}

#[tokio::test]
async fn the_environment_has_the_declared_variables_and_no_others() {
    let bench = CommandTestBench::script(
        "echo \"$A $KEPT $MCP_CANARY_SECRET.\"",
        "argv = []\n\
        env = { A = \"a\" }\nenv_keep = [\"KEPT\", \"ABSENT\"]\n",
    );
    assert_eq!(bench.call(json!({})).await.unwrap().value["stdout"], "a kept .\n");
}

#[tokio::test]
async fn a_missing_program_is_reported_by_the_call() {
    let check = async |program: &str, rest: &str| {
        let declared = load(&declaration(program, &format!("argv = []\n{rest}"))).unwrap();
        let bench = CommandTestBench::with(tempfile::TempDir::new().unwrap(), declared);
        let err = bench.call(json!({})).await.unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::Unavailable);
        err.message
    };
    let message = check("no-such-zyra", "program_env = \"ZYRA\"").await;
    assert!(
        message.starts_with(
            "`x.y` needs the program `no-such-zyra`, which is missing: \
             `no-such-zyra` is not in PATH ("
        ),
        "{message}"
    );
    assert!(
        message
            .ends_with("; install it, or set its path in `commands.programs.no-such-zyra` or ZYRA"),
        "{message}"
    );
    let message = check("/no/such", "").await;
    assert!(message.contains("there is no file `/no/such`"), "{message}");
    let message = check("sh", "program_env = \"KEPT\"").await;
    assert!(message.ends_with("; correct the variable KEPT"), "{message}");
    let message = check("/etc/passwd", "").await;
    assert!(message.contains("is not executable"), "{message}");
}

#[tokio::test]
async fn a_missing_directory_is_reported_by_the_call() {
    let bench = CommandTestBench::script("echo", "argv = []\ncwd = \"no/such\"\n");
    let err = bench.call(json!({})).await.unwrap_err();
    assert_eq!(err.fault, ToolErrorKind::Unavailable);
    assert!(
        err.message.starts_with("the command starts in the directory `no/such`, "),
        "{}",
        err.message
    );
}

/// Returns true if a process with `word` on its command line is running.
fn is_alive(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter(|entry| entry.path().join("exe").exists()).any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(word)
    })
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
