//! Tests of the toolset `jobs`, for clients whose protocol has no jobs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestMcpClient, call, let_continue, over_both, refusal,
    started_commands, structured, text, wait_until,
};

#[track_caller]
fn start(client: &mut TestMcpClient, tool: &str, arguments: Value) -> String {
    let answer = client.call("jobs_start", json!({ "tool": tool, "arguments": arguments }));
    structured(&answer)["job_id"].as_str().unwrap().to_owned()
}

#[track_caller]
fn get(client: &mut TestMcpClient, id: &str, wait_ms: u64) -> Value {
    structured(&client.call("jobs_get", json!({ "job_id": id, "wait_ms": wait_ms }))).clone()
}

#[test]
fn a_job_is_started_awaited_and_returned() {
    let workspace = TempWorkspace::with_commands();
    over_both(&workspace, |client| {
        std::fs::remove_file(workspace.path("go")).unwrap_or_default();
        let id = start(client, "tell_steps", json!({ "name": "one", "code": "3" }));
        wait_until("progress is reported", || get(client, &id, 0)["progress"] == 0.25);
        let started = Instant::now();
        let running = get(client, &id, 50);
        assert!(started.elapsed() >= Duration::from_millis(50), "{:?}", started.elapsed());
        let parts =
            ["state", "tool", "attempts", "result", "error"].map(|key| running[key].clone());
        let expected = [json!("running"), json!("tell_steps"), json!(1), Value::Null, Value::Null];
        assert_eq!(parts, expected, "{running}");

        let_continue(&workspace);
        let started = Instant::now();
        let ended = get(client, &id, 50_000);
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        assert_eq!((&ended["state"], &ended["result"]["exit_code"]), (&json!("failed"), &json!(3)));
        let answer = client.call("jobs_get", json!({ "job_id": id }));
        assert!(text(&answer).contains("failed"), "{answer}");
    });
}

#[test]
fn a_job_returns_the_text_and_the_content_of_a_direct_call() {
    let workspace = TempWorkspace::new().file("a.txt", "one\ntwo\n").file("dot.png", dot());
    over_both(&workspace, |client| {
        for (tool, arguments) in [
            ("files_read", json!({ "path": "a.txt", "end_line": 1 })),
            ("files_read", json!({ "path": "dot.png" })),
            ("files_list", json!({})),
        ] {
            let direct = client.call(tool, arguments.clone());
            let id = start(client, tool, arguments);
            let awaited = client.call("jobs_get", json!({ "job_id": id, "wait_ms": 50_000 }));
            let summary = format!("{id} {tool} succeeded");
            assert!(awaited.to_string().contains(&summary), "{awaited}");
            let blocks = |answer: &Value| answer["result"]["content"].as_array().unwrap().clone();
            // Only the state of the job is added, as the last part of the note.
            let shown = blocks(&awaited).into_iter().filter_map(|mut block| {
                if let Some(text) = block["text"].as_str() {
                    let text = text.strip_suffix(&summary).unwrap_or(text);
                    let text = text.strip_suffix("; ").unwrap_or(text).to_owned();
                    block["text"] = json!(text);
                }
                (block["text"] != "").then_some(block)
            });
            assert_eq!(shown.collect::<Vec<_>>(), blocks(&direct), "{awaited}");
        }
    });
}

/// Returns the bytes of a PNG picture of one pixel.
fn dot() -> Vec<u8> {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    let dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA\
               AABJRU5ErkJggg==";
    base64.decode(dot).unwrap()
}

#[test]
fn output_is_read_in_parts_to_the_end_while_the_job_runs() {
    let workspace = TempWorkspace::with_commands();
    over_both(&workspace, |client| {
        std::fs::remove_file(workspace.path("go")).unwrap_or_default();
        let id = start(client, "tell_steps", json!({ "name": "one" }));
        let mut after = json!(0);
        let mut output = String::new();
        let mut ended = false;
        let mut read = |client: &mut TestMcpClient, output: &mut String| {
            let ask = json!({ "job_id": id, "after": after, "max_bytes": 1 });
            let page = structured(&client.call("jobs_output", ask)).clone();
            for piece in page["pieces"].as_array().unwrap() {
                *output += &format!(
                    "{}:{}",
                    piece["stream"].as_str().unwrap(),
                    piece["text"].as_str().unwrap()
                );
            }
            after = page["next"].clone();
            page["ended"] == true
        };
        wait_until("both streams have output", || {
            ended = read(client, &mut output);
            output.contains("stdout:began\n") && output.contains("stderr:step 1/4\n")
        });
        assert!(!ended, "it is still waiting");
        let_continue(&workspace);
        wait_until("it ends", || read(client, &mut output));
        assert!(output.contains("last\n"), "{output}");
        assert_eq!(output.matches("step 1/4").count(), 1, "printed twice: {output}");
    });
}

#[test]
fn jobs_are_listed_newest_first_in_pages() {
    over_both(&TempWorkspace::new(), |client| {
        let mut ids: Vec<_> =
            (0..53).map(|_| start(client, "files_read", json!({ "path": "README.md" }))).collect();
        ids.reverse();
        let page = |client: &mut TestMcpClient, after: Value| {
            let page = structured(&client.call("jobs_list", json!({ "after": after }))).clone();
            let jobs = page["jobs"].as_array().unwrap();
            let ids: Vec<_> =
                jobs.iter().map(|job| job["job_id"].as_str().unwrap().to_owned()).collect();
            (ids, page["next"].clone())
        };
        let (first, next) = page(client, Value::Null);
        let (second, end) = page(client, next.clone());
        assert_eq!((first.len(), second.len(), &end), (50, 3, &Value::Null));
        assert_eq!(next, json!(first[49]));
        assert_eq!([first, second].concat(), ids);
    });
}

#[test]
fn a_job_is_cancelled() {
    let workspace = TempWorkspace::with_commands();
    over_both(&workspace, |client| {
        let id = start(client, "work_wait", json!({ "name": "one" }));
        wait_until("it runs", || get(client, &id, 0)["state"] == "running");
        let answer = client.call("jobs_cancel", json!({ "job_id": id }));
        assert_eq!(structured(&answer)["state"], "canceled");
        assert_eq!(get(client, &id, 50_000)["state"], "canceled");
    });
}

#[test]
fn files_of_a_job_are_listed_with_their_paths() {
    over_both(&TempWorkspace::with_commands(), |client| {
        let id = start(client, "draw_one", json!({}));
        let files = get(client, &id, 10_000)["files"].clone();
        let file = json!({ "path": "out/plot.png", "bytes": 5, "media_type": "image/png" });
        assert_eq!(files, json!([file]));
        let read = client.call("files_read", json!({ "path": files[0]["path"] }));
        assert_eq!(structured(&read)["content"], "drawn");
    });
}

#[test]
fn a_call_that_would_be_refused_is_refused_as_a_job() {
    let workspace = TempWorkspace::with_commands();
    over_both(&workspace, |client| {
        for (tool, arguments, expected) in [
            ("work_wiat", json!({ "name": "a" }), "did you mean `work"),
            ("work_wait", json!({}), "/arguments"),
            ("work_wait", json!({ "name": 5 }), "/arguments/name"),
            ("jobs_start", json!({ "tool": "work_wait" }), "/tool"),
        ] {
            let start = json!({ "tool": tool, "arguments": arguments });
            let refused = refusal(&client.call("jobs_start", start));
            assert!(refused.contains(expected), "{tool} {arguments}: {refused}");
        }
        let listed = client.call("jobs_list", json!({}));
        assert_eq!(structured(&listed)["jobs"], json!([]));
    });
    assert!(started_commands(&workspace).is_empty());
}

#[test]
fn a_job_of_another_caller_is_unknown() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let served = ServerLaunchOptions::over(&workspace).with_state(&state).served();
    let mut stdio = ServerLaunchOptions::over(&workspace).with_state(&state).stdio();
    let start = json!({ "tool": "work_wait", "arguments": { "name": "one" } });
    let answer = stdio.ask(&call(1, "jobs_start", start));
    let id = structured(&answer)["job_id"].as_str().unwrap().to_owned();

    let nobodys = "0123456789abcdef0123456789abcdef";
    for (tool, more) in [("jobs_get", "wait_ms"), ("jobs_output", "after"), ("jobs_cancel", "")] {
        let answers = [&id, nobodys].map(|id| {
            let mut arguments = json!({ "job_id": id });
            if !more.is_empty() {
                arguments[more] = json!(1);
            }
            refusal(&served.ask(&call(1, tool, arguments))).replace(id, "ID")
        });
        assert_eq!(answers[0], answers[1], "{tool} reveals which exists");
        assert!(answers[0].contains("; `jobs_list` lists yours"), "{answers:?}");
    }
    let paths = ["/jobs/ID", "/jobs/ID/download", "/jobs/ID/manifest"];
    for path in paths {
        let answers = [&id, nobodys].map(|id| {
            let response = served.get(&path.replace("ID", id));
            (response.status, response.text().replace(id, "ID"))
        });
        assert_eq!(answers[0], answers[1], "{path} reveals which exists");
        assert_eq!(answers[0].0, 404);
    }
    assert_eq!(served.delete(&format!("/jobs/{id}")).status, 404);
    let events = served.get(&format!("/v1/mcp/progress/{id}?max_ms=0")).events();
    assert_eq!(events[0]["status"], "unknown", "{events:?}");
    let (answers, _) = served.socket(&format!("/ws/jobs/{id}")).read_rest();
    assert!(answers.len() == 1 && answers[0].get("error").is_some(), "{answers:?}");
    let listed = served.ask(&call(1, "jobs_list", json!({})));
    assert_eq!(structured(&listed)["jobs"], json!([]));
    let after = served.ask(&call(1, "jobs_list", json!({ "after": id })));
    assert!(refusal(&after).contains("no job"), "{after}");

    // Its own caller sees it unchanged.
    let answers = stdio.ask(&call(2, "jobs_get", json!({ "job_id": id })));
    assert!(["queued", "running"].iter().any(|state| structured(&answers)["state"] == *state));
}
