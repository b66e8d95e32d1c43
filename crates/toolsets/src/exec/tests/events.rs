//! What is said while a program runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::{Ctx, Event, EventSink, Stream};

use super::{Bench, Ran, ctx};

/// Runs with `input` and gives back what was said, and when.
async fn heard(input: Value) -> (Ran, Vec<(Duration, Event)>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let started = Instant::now();
    let sink = heard.clone();
    let events = EventSink::new(move |event| {
        sink.lock().unwrap().push((started.elapsed(), event));
    });
    let bench = Bench::new();
    let ran = bench.call("exec.run", &Ctx { events, ..ctx() }, input).await.unwrap();
    let heard = std::mem::take(&mut *heard.lock().unwrap());
    (ran, heard)
}

/// What was said of one stream, put together.
fn said(heard: &[(Duration, Event)], stream: Stream) -> String {
    let chunks = heard.iter().filter_map(|(_, event)| match event {
        Event::Chunk { stream: of, text } => (*of == stream).then_some(text.as_str()),
        Event::Progress { .. } | Event::Log { .. } => None,
    });
    chunks.collect()
}

#[tokio::test]
async fn chunks_make_up_the_output_when_it_is_not_cut() {
    let script = "for i in 1 2 3 4 5; do echo é$i; printf '\\342\\202'; sleep 0.2; \
        printf '\\254'; echo err$i >&2; done; seq 1 5000";
    let (ran, heard) = heard(json!({"command": script, "shell": true})).await;
    assert_eq!(ran.value["output_id"], Value::Null);
    assert_eq!(said(&heard, Stream::Stdout), ran.stdout());
    assert_eq!(said(&heard, Stream::Stderr), ran.value["stderr"]);
    let chunks: Vec<_> = heard.iter().filter(|(_, e)| matches!(e, Event::Chunk { .. })).collect();
    assert!(chunks.len() >= 4, "they come while it runs: {chunks:?}");
    assert!(chunks[0].0 < Duration::from_millis(700), "{:?}", chunks[0].0);
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
            Event::Progress { done, total: None, message } => Some((*done, message.as_deref())),
            Event::Progress { .. } | Event::Chunk { .. } | Event::Log { .. } => None,
        })
        .collect();
    let messages: Vec<Option<&str>> = progress.iter().map(|(_, message)| *message).collect();
    assert_eq!(messages, [Some("two"), Some("four")]);
    assert!(progress.is_sorted_by(|one, other| one.0 < other.0));
}

#[tokio::test]
async fn a_silent_program_is_said_to_run() {
    let (_, heard) = heard(json!({"command": "sleep", "args": ["1.6"]})).await;
    assert!(matches!(heard[..], [(_, Event::Progress { message: None, .. })]), "{heard:?}");
}

#[tokio::test]
async fn a_flood_is_said_in_few_small_events() {
    let (ran, heard) = heard(json!({"command": "yes", "timeout_ms": 1500})).await;
    let seconds =
        f64::from(u32::try_from(ran.value["duration_ms"].as_u64().unwrap()).unwrap()) / 1e3;
    let while_it_ran = f64::from(u32::try_from(heard.len()).unwrap()) - 6.0;
    assert!(while_it_ran / seconds <= 10.0, "{} events in {seconds} s", heard.len());
    for (_, event) in &heard {
        if let Event::Chunk { text, .. } = event {
            assert!(text.len() < 17 << 10);
        }
    }
    assert!(said(&heard, Stream::Stdout).contains(" bytes not shown]\n"));
}
