//! Tests of audit records of jobs: one record for each job, with its id, whatever its outcome.

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, call, let_continue,
    wait_until,
};

/// Waits until the server `served` has written `count` audit records, and returns them.
#[track_caller]
fn records(served: &HttpServerProcess, count: usize) -> Vec<Value> {
    wait_until(&format!("{count} records"), || served.records().len() >= count);
    let records = served.records();
    assert_eq!(records.len(), count, "{records:?}");
    records
}

#[test]
fn each_job_leaves_one_record_with_its_id() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
    let ids = [
        served.start_job("work-wait", json!({ "name": "one" })),
        served.start_job("tell-steps", json!({ "name": "two", "code": "4" })),
        served.start_job("work-missing", json!({})),
    ];
    served.job_in("succeeded", &ids[0]);
    served.job_in("failed", &ids[1]);
    served.job_in("failed", &ids[2]);
    let fields: Vec<_> = records(&served, 3)
        .iter()
        .map(|record| {
            ["tool", "outcome", "job", "caller", "dialect"].map(|key| record[key].clone())
        })
        .collect();
    let expected = [
        ("work.wait", "ok", &ids[0]),
        ("tell.steps", "program_failed", &ids[1]),
        ("work.missing", "unavailable", &ids[2]),
    ];
    let expected = expected.map(|(tool, outcome, id)| {
        [json!(tool), json!(outcome), json!(id), json!("http"), json!("zyra")]
    });
    assert_eq!(fields, expected);
}

#[test]
fn a_refused_start_leaves_one_record_without_a_job() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    for (arguments, tool) in [(json!({ "name": 5 }), "work-wait"), (json!({}), "work-nothing")] {
        let params = json!({ "name": tool, "arguments": arguments, "mode": "async" });
        let answer = served.rpc("tools/call", params).json();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let records = records(&served, 2);
    let outcomes: Vec<_> = records.iter().map(|record| record["outcome"].clone()).collect();
    assert_eq!(outcomes, ["invalid_input", "unknown_tool"]);
    assert!(records.iter().all(|record| record.get("job").is_none()), "{records:?}");
}

/// Returns the outcomes in the audit records of the job `id`.
fn outcomes_of(records: &[Value], id: &str) -> Vec<Value> {
    let own = records.iter().filter(|record| record["job"] == id);
    own.map(|record| record["outcome"].clone()).collect()
}

#[test]
fn a_job_cancelled_in_the_queue_leaves_a_record() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).set("limits_programs", 2).served();
    let blocker = served.start_job("work-wait", json!({ "name": "blocker" }));
    let waiting = served.start_job("work-wait", json!({ "name": "waiting" }));
    assert_eq!(served.delete(&format!("/jobs/{waiting}")).status, 200);
    let_continue(&workspace);
    served.job_in("succeeded", &blocker);
    assert_eq!(outcomes_of(&records(&served, 2), &waiting), ["canceled"]);
}

#[test]
fn cancelled_and_interrupted_jobs_leave_a_record() {
    let workspace = TempWorkspace::with_commands();
    let state = TempDir::new().unwrap();
    let launch =
        || ServerLaunchOptions::over(&workspace).with_state(&state).set("limits_programs", 2);
    let served = launch().served();
    let marker = ProcessMarker::new();
    let running = served.start_job("work-again", json!({ "name": marker.0 }));
    marker.wait_until_running();
    assert_eq!(served.delete(&format!("/jobs/{running}")).status, 200);
    let again = served.start_job("work-again", json!({ "name": marker.0 }));
    marker.wait_until_running();
    served.signal(Signal::TERM);
    served.wait_for_exit();
    let first_records = served.records();
    assert_eq!(outcomes_of(&first_records, &running), ["canceled"]);
    assert_eq!(outcomes_of(&first_records, &again), ["canceled"]);

    let_continue(&workspace);
    let next = launch().served();
    next.job_in("succeeded", &again);
    assert_eq!(outcomes_of(&records(&next, 1), &again), ["ok"]);
}

#[test]
fn jobs_start_leaves_a_record_of_itself_and_one_of_the_job() {
    let workspace = TempWorkspace::with_commands();
    let_continue(&workspace);
    let served = ServerLaunchOptions::over(&workspace).served();
    let start = json!({ "tool": "work_wait", "arguments": { "name": "one" } });
    let answer = served.ask(&call(1, "jobs_start", start));
    let id = answer["result"]["structuredContent"]["job_id"].as_str().unwrap();
    served.job_in("succeeded", id);
    let mut fields: Vec<_> = records(&served, 2)
        .iter()
        .map(|record| {
            (record["tool"].clone(), record.get("job").cloned(), record["outcome"].clone())
        })
        .collect();
    fields.sort_by_key(|(tool, ..)| tool.to_string());
    let expected = [
        (json!("jobs_start"), None, json!("ok")),
        (json!("work.wait"), Some(json!(id)), json!("ok")),
    ];
    assert_eq!(fields, expected);
}
