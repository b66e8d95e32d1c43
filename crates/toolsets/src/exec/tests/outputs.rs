//! Tests that a program's output is complete, or cut and stored, and that this takes little memory.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use toolgate_contract::{Caller, ToolContext, ToolErrorKind};

use super::{ExecTestBench, ToolCallResult, ctx, pointer, until};
use crate::exec::{ExecSettings, StoredOutputLimits};

/// Creates a test bench with the limits `stored_output` for stored output.
fn storing(stored_output: StoredOutputLimits) -> ExecTestBench {
    ExecTestBench::with(&ExecSettings { stored_output, ..ExecSettings::default() })
}

/// Decodes `text`, a program output in a result, which has the encoding `encoding`.
fn decode(text: &Value, encoding: &Value) -> Vec<u8> {
    let text = text.as_str().expect("a string");
    if encoding == "base64" { STANDARD.decode(text).expect("valid base64") } else { text.into() }
}

/// Reads all output of `stream` that is stored under `id`, at most `max_bytes` per call.
async fn read_all(bench: &ExecTestBench, id: &Value, stream: &str, max_bytes: u64) -> Vec<u8> {
    let mut whole = Vec::new();
    let mut next = json!(0);
    while !next.is_null() {
        let input =
            json!({"output_id": id, "stream": stream, "offset": next, "max_bytes": max_bytes});
        let ToolCallResult { value, .. } = bench.call("exec.output", &ctx(), input).await.unwrap();
        assert_eq!(value["offset"], whole.len());
        let piece = decode(&value["text"], &value["encoding"]);
        assert_eq!(value["bytes"], piece.len());
        whole.extend(piece);
        assert!(value["next"].is_null() || value["next"] == whole.len());
        next = value["next"].clone();
    }
    whole
}

#[tokio::test]
async fn output_that_is_not_utf8_is_returned_as_base64() {
    let bench = ExecTestBench::new();
    let ran = bench.sh("printf '\\377\\376\\000x'; echo caf\u{e9} >&2").await;
    assert_eq!(ran.value["stdout_extent"]["encoding"], "base64");
    assert_eq!(STANDARD.decode(ran.stdout()).unwrap(), b"\xff\xfe\x00x");
    assert_eq!(ran.value["stderr_extent"]["encoding"], "utf-8");
    assert_eq!(ran.value["stderr"], "café\n");
    assert_eq!(ran.text.body, "\u{fffd}\u{fffd}\0x\nstderr:\ncafé\n");
    assert!(ran.text.note.unwrap().ends_with(
        "; stdout is not all UTF-8: \u{fffd} replaces invalid bytes, and the structured result \
         has all bytes in base64"
    ));
}

#[tokio::test]
async fn output_that_looks_like_a_protocol_message_is_returned_as_output() {
    let message = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
    let ran = ExecTestBench::new()
        .run(json!({"command": "printf", "args": ["%s", message]}))
        .await
        .unwrap();
    assert_eq!(ran.stdout(), message);
}

#[tokio::test]
async fn a_long_output_shows_its_two_ends_and_how_to_read_the_rest() {
    let bench = ExecTestBench::new();
    let ran = bench
        .run(json!({"command": "seq", "args": ["1", "1000"], "max_output_bytes": 20}))
        .await
        .unwrap();
    // In the structured result, too, the tail must not look like the continuation of the head.
    assert_eq!(ran.stdout(), "1\n2\n3\n4\n5\n[3873 bytes left out]\n\n999\n1000\n");
    assert_eq!(
        ran.value["stdout_extent"],
        json!({
            "total_bytes": 3893, "encoding": "utf-8",
            "cut": {"from": 10, "to": 3883, "lost_bytes": 0}, "ended": true
        })
    );
    let id = ran.value["output_id"].as_str().unwrap();
    assert_eq!(id.len(), 32);
    assert_eq!(ran.text.body, "1\n2\n3\n4\n5\n[3873 bytes left out]\n\n999\n1000\n");
    let note = ran.text.note.unwrap();
    let (_, note) = note.split_once("; ").unwrap();
    assert_eq!(
        note,
        format!(
            "bytes 10 to 3883 of 3893 of stdout are left out; read on with exec_output: \
             output_id `{id}`, stream `stdout`, offset 10"
        )
    );
}

#[tokio::test]
async fn a_long_output_names_max_output_bytes_if_the_caller_cannot_read_the_rest() {
    let bench = ExecTestBench::new();
    let ctx = ToolContext { may_read_output: false, ..ctx() };
    let input = json!({"command": "seq", "args": ["1", "1000"], "max_output_bytes": 20});
    let ToolCallResult { value, text, .. } = bench.call("exec.run", &ctx, input).await.unwrap();
    assert_eq!(value["output_id"], Value::Null);
    let note = text.note.unwrap();
    let (_, note) = note.split_once("; ").unwrap();
    assert_eq!(
        note,
        "bytes 10 to 3883 of 3893 of stdout are left out; set `max_output_bytes` for more of it"
    );
}

#[tokio::test]
async fn an_output_exactly_at_the_limit_is_not_cut() {
    let bench = ExecTestBench::new();
    let input = json!({"command": "printf", "args": ["0123456789"], "max_output_bytes": 10});
    let ran = bench.run(input).await.unwrap();
    assert_eq!(ran.stdout(), "0123456789");
    assert_eq!(ran.value["output_id"], Value::Null);
    let input = json!({"command": "printf", "args": ["0123456789"], "max_output_bytes": 9});
    let ran = bench.run(input).await.unwrap();
    assert_eq!(ran.stdout(), "0123\n[1 byte left out]\n56789");
}

#[tokio::test]
async fn a_cut_output_with_an_invalid_byte_stays_readable() {
    let input = json!({
        "command": "printf", "args": ["ab\\377\\n%0100d\\nyz"], "max_output_bytes": 8
    });
    let ran = ExecTestBench::new().run(input).await.unwrap();
    assert_eq!(ran.value["stdout_extent"]["encoding"], "base64");
    assert_eq!(ran.text.body, "ab\u{fffd}\n[99 bytes left out]\n0\nyz");
}

#[tokio::test]
async fn output_after_the_end_of_the_program_is_not_lost() {
    // The child process outlives the program and prints for a while.
    let script = "(for i in 1 2 3 4 5 6; do sleep 0.06; echo $i; done) & echo 0";
    let ran = ExecTestBench::new().sh(script).await;
    assert_eq!(ran.stdout(), "0\n1\n2\n3\n4\n5\n6\n");
    assert_eq!(ran.value["stdout_extent"]["ended"], true);
    // A child process that prints when it is told to stop is read, too.
    let script = "(trap 'echo bye; exit' TERM; while :; do sleep 0.01; done) & echo 0";
    assert_eq!(ExecTestBench::new().sh(script).await.stdout(), "0\nbye\n");
}

#[tokio::test]
async fn an_output_that_another_process_holds_open_is_reported_as_incomplete() {
    let bench = ExecTestBench::new();
    let pid = bench.workspace.path().join("pid");
    let hold = async {
        until("the start", || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))).await;
        let at = format!("/proc/{}/fd/1", fs::read_to_string(&pid).unwrap().trim());
        let held = fs::OpenOptions::new().write(true).open(at).unwrap();
        fs::write(bench.workspace.path().join("held"), "").unwrap();
        held
    };
    let script = "echo out; echo $$ >pid; until [ -e held ]; do sleep 0.01; done";
    let (ran, held) = tokio::join!(bench.sh(script), hold);
    drop(held);
    assert_eq!(ran.stdout(), "out\n");
    assert_eq!(ran.value["stdout_extent"]["ended"], false);
    let note = ran.text.note.unwrap();
    let expected = "; stdout was not read to its end: another process still holds it open";
    assert!(note.ends_with(expected), "{note}");
}

#[tokio::test]
async fn text_is_cut_between_characters() {
    let bench = ExecTestBench::new();
    for max_output_bytes in 1..20 {
        let text = "é€😀".repeat(10);
        let input = json!({
            "command": "cat", "stdin": text, "max_output_bytes": max_output_bytes
        });
        let ran = bench.run(input).await.unwrap();
        assert_eq!(ran.value["stdout_extent"]["encoding"], "utf-8");
        let cut = &ran.value["stdout_extent"]["cut"];
        let from = cut["from"].as_u64().unwrap();
        let to = cut["to"].as_u64().unwrap();
        let [from, to] = [from, to].map(|at| usize::try_from(at).unwrap());
        let head = &text[..from];
        let tail = &text[to..];
        let between = to - from;
        let end = if head.is_empty() { "" } else { "\n" };
        let expected = format!("{head}{end}[{between} bytes left out]\n{tail}");
        assert_eq!(ran.stdout(), expected);
    }
}

#[tokio::test]
async fn a_cut_output_can_be_read_whole() {
    let bench = ExecTestBench::new();
    let ran = bench.sh("seq 1 40000; seq 40000 -1 1 >&2").await;
    let id = &ran.value["output_id"];
    let up: String = (1..=40000).map(|n| format!("{n}\n")).collect();
    let down: String = (1..=40000).rev().map(|n| format!("{n}\n")).collect();
    for max_bytes in [10_007, 1 << 20] {
        assert!(read_all(&bench, id, "stdout", max_bytes).await == up.as_bytes());
        assert!(read_all(&bench, id, "stderr", max_bytes).await == down.as_bytes());
    }
}

#[tokio::test]
async fn cut_bytes_and_characters_can_be_read_whole() {
    let bench = ExecTestBench::new();
    let file = bench.workspace.path().join("bytes");
    let mixed: Vec<u8> = (0..100_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    for content in [mixed, "é€😀x".repeat(30_000).into_bytes()] {
        fs::write(&file, &content).unwrap();
        let ran = bench.run(json!({"command": "cat", "args": ["bytes"]})).await.unwrap();
        let id = &ran.value["output_id"];
        assert!(read_all(&bench, id, "stdout", 9_999).await == content);
    }
}

#[tokio::test]
async fn bytes_beyond_the_stored_limit_are_counted_and_skipped() {
    let bench =
        storing(StoredOutputLimits { stream_bytes_max: 1000, ..StoredOutputLimits::default() });
    let input = json!({"command": "seq", "args": ["1000"], "max_output_bytes": 100});
    let ran = bench.run(input).await.unwrap();
    let cut = &ran.value["stdout_extent"]["cut"];
    assert_eq!(cut, &json!({"from": 50, "to": 3843, "lost_bytes": 2843}));
    let read = async |offset: u64| {
        let input = json!({"output_id": ran.value["output_id"], "offset": offset});
        bench.call("exec.output", &ctx(), input).await
    };
    let piece = read(990).await.unwrap();
    assert_eq!((&piece.value["bytes"], &piece.value["next"]), (&json!(10), &json!(3843)));
    assert_eq!(
        piece.text.note.unwrap(),
        "bytes 990 to 1000 of 3893; the bytes after it were lost; continue at offset 3843"
    );
    for offset in [1000, 2000, 3843] {
        let tail = read(offset).await.unwrap();
        assert_eq!((&tail.value["offset"], &tail.value["bytes"]), (&json!(3843), &json!(50)));
        assert_eq!(tail.value["next"], Value::Null);
    }
    assert_eq!(read(3893).await.unwrap().value["text"], "");
    assert_eq!(pointer(&read(3894).await.unwrap_err()), Some("/offset"));
}

#[tokio::test]
async fn both_ends_are_stored_even_without_space_on_disk() {
    let bench =
        storing(StoredOutputLimits { stream_bytes_max: 0, ..StoredOutputLimits::default() });
    let input = json!({"command": "seq", "args": ["1000"], "max_output_bytes": 100});
    let ran = bench.run(input).await.unwrap();
    let cut = &ran.value["stdout_extent"]["cut"];
    assert_eq!(cut, &json!({"from": 50, "to": 3843, "lost_bytes": 3793}));
    let mut pieces = Vec::new();
    for offset in [0, 40, 50, 3883] {
        let input = json!({"output_id": ran.value["output_id"], "offset": offset});
        let ToolCallResult { value, .. } = bench.call("exec.output", &ctx(), input).await.unwrap();
        pieces.push((value["offset"].clone(), value["bytes"].clone(), value["next"].clone()));
    }
    let expected = json!([[0, 50, 3843], [40, 10, 3843], [3843, 50, null], [3883, 10, null]]);
    assert_eq!(json!(pieces), expected);
}

#[tokio::test]
async fn an_unknown_an_expired_and_a_foreign_output_get_the_same_error() {
    let bench = storing(StoredOutputLimits { runs_max: 2, ..StoredOutputLimits::default() });
    let mut ids = Vec::new();
    for _ in 0..3 {
        let ran = bench.sh("seq 1 10000").await;
        ids.push(ran.value["output_id"].clone());
    }
    let read = async |ctx: ToolContext, id: &Value| {
        bench.call("exec.output", &ctx, json!({"output_id": id})).await
    };
    let other = || ToolContext { caller: Caller::with_key("other"), ..ctx() };
    let unknown = json!("0".repeat(32));
    for (ctx, id) in [(ctx(), &unknown), (ctx(), &ids[0]), (other(), &ids[2])] {
        let err = read(ctx, id).await.unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::NotFound);
        let id = id.as_str().unwrap();
        assert_eq!(
            err.message.replace(id, "ID"),
            "no output has the id `ID`; only the last 2 cut outputs are kept, so run the program \
             again"
        );
    }
    assert!(read(ctx(), &ids[1]).await.is_ok() && read(ctx(), &ids[2]).await.is_ok());
}

#[tokio::test]
async fn stored_outputs_stay_within_their_size_limit() {
    let bench = storing(StoredOutputLimits { bytes_max: 100_000, ..StoredOutputLimits::default() });
    let first = bench.sh("head -c 60000 /dev/zero").await.value["output_id"].clone();
    let second = bench.sh("head -c 60000 /dev/zero").await.value["output_id"].clone();
    let ctx = ctx();
    assert!(bench.call("exec.output", &ctx, json!({"output_id": first})).await.is_err());
    assert!(bench.call("exec.output", &ctx, json!({"output_id": second})).await.is_ok());
    let huge = bench.sh("head -c 200000 /dev/zero").await;
    assert_eq!(huge.value["output_id"], Value::Null);
}

/// Returns the peak memory of the test process, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn output_beyond_the_stored_part_takes_little_memory() {
    let bench = ExecTestBench::new();
    bench.sh("true").await;
    let before = peak_kib();
    let ran = bench.sh("yes 0123456789abcdef | head -c 268435456").await;
    let grown = peak_kib() - before;
    assert_eq!(ran.value["stdout_extent"]["total_bytes"], 268_435_456);
    let stored = (64 << 20) + (16 << 10);
    assert_eq!(ran.value["stdout_extent"]["cut"]["lost_bytes"], 268_435_456 - stored);
    assert!(grown < 8 << 10, "it took {grown} KiB");
}

#[tokio::test]
async fn a_flood_on_standard_error_times_out_and_does_not_block_other_tasks() {
    let bench = ExecTestBench::new();
    let flood = bench.run(json!({"command": "yes >&2", "shell": true, "timeout_ms": 500}));
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    let others = async {
        loop {
            let before = Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
            longest = longest.max(before.elapsed());
        }
    };
    let ran = tokio::select! {
        ran = flood => ran.unwrap(),
        () = others => unreachable!("the loop never ends"),
    };
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!((ran.exit_code(), ran.stdout()), (-1, ""));
    assert!(ran.value["stderr_extent"]["total_bytes"].as_u64() > Some(1 << 20));
    assert!(longest < Duration::from_millis(250), "another task waited {longest:?}");
}
