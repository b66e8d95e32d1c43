//! Tests of the events that a call sends while its program runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{CallEvent, CallEventSink, OutputStreamKind, ToolContext};

use super::{ExecTestBench, ToolCallResult, ctx};

/// Calls `exec.run` with `input`. Returns the result, and the events with their times since the
/// start.
async fn run_with_events(input: Value) -> (ToolCallResult, Vec<(Duration, CallEvent)>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let recorded = events.clone();
    let sink = CallEventSink::new(move |event| {
        recorded.lock().unwrap().push((started.elapsed(), event));
    });
    let bench = ExecTestBench::new();
    let ran = bench.call("exec.run", &ToolContext { events: sink, ..ctx() }, input).await.unwrap();
    let events = std::mem::take(&mut *events.lock().unwrap());
    (ran, events)
}

/// Returns the output in the events of `stream`, joined.
fn joined_output(events: &[(Duration, CallEvent)], stream: OutputStreamKind) -> String {
    let chunks = events.iter().filter_map(|(_, event)| match event {
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
async fn output_events_come_while_the_program_runs_and_add_up_to_the_output() {
    let script = "for i in 1 2 3 4 5; do echo é$i; printf '\\342\\202'; sleep 0.2; \
        printf '\\254'; echo err$i >&2; done; seq 1 5000";
    let (ran, events) = run_with_events(json!({"command": script, "shell": true})).await;
    assert_eq!(ran.value["output_id"], Value::Null);
    assert_eq!(joined_output(&events, OutputStreamKind::Stdout), ran.stdout());
    assert_eq!(joined_output(&events, OutputStreamKind::Stderr), ran.value["stderr"]);
    let chunks: Vec<_> =
        events.iter().filter(|(_, e)| matches!(e, CallEvent::ProgramOutput { .. })).collect();
    assert!(chunks.len() >= 4, "events come while the program runs: {chunks:?}");
    assert!(chunks[0].0 < Duration::from_millis(200), "{:?}", chunks[0].0);
}

#[tokio::test]
async fn progress_increases_and_has_the_last_line_as_its_message() {
    let (_, events) = run_with_events(json!({
        "command": "echo one; echo two; sleep 0.4; printf 'three\\rfour\\n\\n'", "shell": true
    }))
    .await;
    let progress: Vec<(f64, Option<&str>)> = events
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
async fn a_silent_program_reports_progress_without_a_message() {
    let (_, events) = run_with_events(json!({"command": "sleep", "args": ["1.6"]})).await;
    assert!(matches!(events[..], [(_, CallEvent::Progress { message: None, .. })]), "{events:?}");
}

#[tokio::test]
async fn a_flood_of_output_is_forwarded_in_small_pieces_with_few_progress_events() {
    let script = "seq 1 2000000; printf '\\377\\342\\202'; sleep 0.6; seq 1 10";
    let (ran, events) = run_with_events(json!({"command": script, "shell": true})).await;
    let mut expected: String = (1..=2_000_000).map(|number| format!("{number}\n")).collect();
    expected.push_str("\u{fffd}\u{fffd}");
    expected.extend((1..=10).map(|number| format!("{number}\n")));
    assert!(
        joined_output(&events, OutputStreamKind::Stdout) == expected,
        "the events differ from the output"
    );
    assert_ne!(ran.value["output_id"], Value::Null);
    let mut progress_count = 0;
    for (_, event) in &events {
        match event {
            CallEvent::ProgramOutput { text, .. } => assert!(text.len() <= 16 << 10),
            CallEvent::Progress { .. } => progress_count += 1,
            CallEvent::Log { .. }
            | CallEvent::VisitFinished { .. }
            | CallEvent::FileProduced(_)
            | CallEvent::ReleaseConnection => {
                panic!("unexpected event: {event:?}")
            }
        }
    }
    let quarters = ran.value["duration_ms"].as_u64().unwrap() / 250;
    assert!(
        (1..=quarters + 1).contains(&progress_count),
        "{progress_count} in {quarters} quarters of a second"
    );
}
