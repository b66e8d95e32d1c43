//! What is said while a program runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{CallEvent, EventSink, OutputStream, ToolContext};

use super::{Bench, Ran, ctx};

/// Runs with `input` and gives back what was said, and when.
async fn heard(input: Value) -> (Ran, Vec<(Duration, CallEvent)>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let sink = heard.clone();
    let events = EventSink::new(move |event| {
        sink.lock().unwrap().push((started.elapsed(), event));
    });
    let bench = Bench::new();
    let ran = bench.call("exec.run", &ToolContext { events, ..ctx() }, input).await.unwrap();
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    (ran, heard)
}

/// What was said of one stream, put together.
fn said(heard: &[(Duration, CallEvent)], stream: OutputStream) -> String {
    let chunks = heard.iter().filter_map(|(_, event)| match event {
        CallEvent::ProgramOutput { stream: of, text } => (*of == stream).then_some(text.as_str()),
        CallEvent::Progress { .. }
        | CallEvent::Log { .. }
        | CallEvent::VisitFinished { .. }
        | CallEvent::FileProduced(_)
        | CallEvent::ReleaseConnection => None,
    });
    chunks.collect()
}

#[tokio::test]
async fn chunks_come_while_it_runs_and_make_up_the_output() {
    let script = "for i in 1 2 3 4 5; do echo é$i; printf '\\342\\202'; sleep 0.2; \
        printf '\\254'; echo err$i >&2; done; seq 1 5000";
    let (ran, heard) = heard(json!({"command": script, "shell": true})).await;
    assert_eq!(ran.value["output_id"], Value::Null);
    assert_eq!(said(&heard, OutputStream::Stdout), ran.stdout());
    assert_eq!(said(&heard, OutputStream::Stderr), ran.value["stderr"]);
    let chunks: Vec<_> =
        heard.iter().filter(|(_, e)| matches!(e, CallEvent::ProgramOutput { .. })).collect();
    assert!(chunks.len() >= 4, "they come while it runs: {chunks:?}");
    assert!(chunks[0].0 < Duration::from_millis(200), "{:?}", chunks[0].0);
}

#[tokio::test]
async fn progress_grows_and_tells_the_last_line() {
    let (_, heard) = heard(json!({
        "command": "echo one; echo two; sleep 0.4; printf 'three\\rfour\\n\\n'", "shell": true
    }))
    .await;
    let progress: Vec<(f64, Option<&str>)> = heard
        .iter()
        .filter_map(|(_, event)| match event {
            CallEvent::Progress { done, total: None, message } => Some((*done, message.as_deref())),
            CallEvent::Progress { .. }
            | CallEvent::ProgramOutput { .. }
            | CallEvent::Log { .. }
            | CallEvent::VisitFinished { .. }
            | CallEvent::FileProduced(_)
            | CallEvent::ReleaseConnection => None,
        })
        .collect();
    let messages: Vec<Option<&str>> = progress.iter().map(|(_, message)| *message).collect();
    assert_eq!(messages, [Some("two"), Some("four")]);
    assert!(progress.is_sorted_by(|one, other| one.0 < other.0));
}

#[tokio::test]
async fn a_silent_program_is_said_to_run() {
    let (_, heard) = heard(json!({"command": "sleep", "args": ["1.6"]})).await;
    assert!(matches!(heard[..], [(_, CallEvent::Progress { message: None, .. })]), "{heard:?}");
}

#[tokio::test]
async fn a_flood_is_passed_on_whole_in_small_pieces_with_little_said_of_it() {
    let script = "seq 1 2000000; printf '\\377\\342\\202'; sleep 0.6; seq 1 10";
    let (ran, heard) = heard(json!({"command": script, "shell": true})).await;
    let mut expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    expected.push_str("\u{fffd}\u{fffd}");
    expected.extend((1..=10).map(|number| format!("{number}\n")));
    assert!(said(&heard, OutputStream::Stdout) == expected, "it is not what was printed");
    assert_ne!(ran.value["output_id"], Value::Null);
    let mut told = 0;
    for (_, event) in &heard {
        match event {
            CallEvent::ProgramOutput { text, .. } => assert!(text.len() <= 16 << 10),
            CallEvent::Progress { .. } => told += 1,
            CallEvent::Log { .. }
            | CallEvent::VisitFinished { .. }
            | CallEvent::FileProduced(_)
            | CallEvent::ReleaseConnection => {
                panic!("nobody says that: {event:?}")
            }
        }
    }
    let quarters = ran.value["duration_ms"].as_u64().unwrap() / 250;
    assert!((1..=quarters + 1).contains(&told), "{told} in {quarters} quarters of a second");
}
