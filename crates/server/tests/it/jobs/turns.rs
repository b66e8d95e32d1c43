//! Whose turn it is: by priority, as many as may, and no more waiting than may.

use serde_json::json;

use crate::support::{Launch, Served, Workspace, go, ran, wait_until};

fn served(workspace: &Workspace, running: usize) -> Served {
    Launch::over(workspace).set("jobs_running", running).served()
}

#[test]
fn a_tool_that_runs_one_at_a_time_does_and_keeps_no_other_waiting() {
    let workspace = Workspace::with_commands();
    let served = served(&workspace, 2);
    let alone = ["a", "b", "c"].map(|name| served.begin("work-alone", json!({ "name": name })));
    wait_until("the first runs", || ran(&workspace) == ["a"]);
    let other = served.begin("work-first", json!({ "name": "other" }));
    served.job_in("succeeded", &other);
    let states = alone.each_ref().map(|id| served.job(id)["status"].clone());
    assert_eq!(states, ["running", "queued", "queued"]);
    go(&workspace);
    alone.iter().for_each(|id| drop(served.job_in("succeeded", id)));
    assert_eq!(ran(&workspace), ["a", "other", "b", "c"]);
    assert!(!workspace.path("together").exists(), "two ran at once");
}

#[test]
fn calls_of_a_tool_that_runs_one_at_a_time_take_turns_with_its_jobs() {
    let workspace = Workspace::with_commands();
    let served = served(&workspace, 8);
    let job = served.begin("work-alone", json!({ "name": "job" }));
    wait_until("the job runs", || ran(&workspace) == ["job"]);
    std::thread::scope(|scope| {
        let params = json!({ "name": "work-alone", "arguments": { "name": "call" } });
        let called = scope.spawn(|| served.result("tools/call", params));
        go(&workspace);
        assert_eq!(called.join().unwrap()["exit_code"], 0);
    });
    served.job_in("succeeded", &job);
    assert!(!workspace.path("together").exists(), "two ran at once");
}

#[test]
fn the_higher_priority_goes_first_and_equals_as_they_came() {
    let workspace = Workspace::with_commands();
    let served = served(&workspace, 1);
    let wait = |name| served.begin("work-wait", json!({ "name": name }));
    let blocker = wait("blocker");
    wait_until("it runs", || ran(&workspace) == ["blocker"]);
    let late = served.begin("work-late", json!({ "name": "late" }));
    let (one, two) = (wait("one"), wait("two"));
    let first = served.begin("work-first", json!({ "name": "first" }));
    go(&workspace);
    for id in [&blocker, &late, &one, &two, &first] {
        served.job_in("succeeded", id);
    }
    assert_eq!(ran(&workspace), ["blocker", "first", "one", "two", "late"]);
}

#[test]
fn no_more_run_at_once_than_may() {
    let workspace = Workspace::with_commands();
    let served = served(&workspace, 2);
    let ids: Vec<_> =
        (0..5).map(|nth| served.begin("work-wait", json!({ "name": nth.to_string() }))).collect();
    wait_until("two run", || ran(&workspace).len() == 2);
    let states = || ids.iter().map(|id| served.job(id)["status"].clone()).collect::<Vec<_>>();
    assert_eq!(states(), ["running", "running", "queued", "queued", "queued"]);
    assert_eq!(ran(&workspace).len(), 2);
    go(&workspace);
    ids.iter().for_each(|id| drop(served.job_in("succeeded", id)));
}

#[test]
fn more_jobs_than_may_wait_are_refused_with_a_time_to_come_back() {
    let workspace = Workspace::with_commands();
    let launch = Launch::over(&workspace).set("jobs_running", 1).set("jobs_queued", 2);
    let served = launch.served();
    let begin = |name: &str| served.begin("work-wait", json!({ "name": name }));
    let blocker = begin("blocker");
    wait_until("it runs", || ran(&workspace) == ["blocker"]);
    let waiting = [begin("one"), begin("two")];
    let params = json!({ "name": "work-wait", "arguments": { "name": "three" }, "mode": "async" });
    let refused = served.rpc("tools/call", params);
    assert_eq!(refused.status, 429, "{refused:?}");
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32000), &json!("limited")));
    assert!(error["data"]["retry_after_ms"].as_u64().unwrap() > 0, "{error}");
    go(&workspace);
    for id in [&blocker, &waiting[0], &waiting[1]] {
        served.job_in("succeeded", id);
    }
    served.job_in("succeeded", &begin("four"));
    assert_eq!(ran(&workspace), ["blocker", "one", "two", "four"]);
}

#[test]
fn a_thousand_jobs_all_run_once() {
    let workspace = Workspace::new();
    let served = served(&workspace, 8);
    let ids: Vec<_> =
        (0..1000).map(|_| served.begin("files-read", json!({ "path": "README.md" }))).collect();
    ids.iter().for_each(|id| {
        assert_eq!(served.job_in("succeeded", id)["stdout"], Workspace::README);
    });
    assert_eq!(served.outcomes(1000).len(), 1000);
}
