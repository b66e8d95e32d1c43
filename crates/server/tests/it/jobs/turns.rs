//! Tests of the order in which jobs run, and of the limits on jobs that run at once.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestHttpResponse,
    keys_of, let_continue, started_commands, wait_until,
};

/// Starts a server that runs `running` jobs at once.
fn served(workspace: &TempWorkspace, running: usize) -> HttpServerProcess {
    ServerLaunchOptions::over(workspace).set("limits_programs", 2 * running).served()
}

#[test]
fn a_tool_limited_to_one_call_does_not_delay_other_tools() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace, 2);
    let alone = ["a", "b", "c"].map(|name| served.start_job("work-alone", json!({ "name": name })));
    wait_until("the first runs", || started_commands(&workspace) == ["a"]);
    let other = served.start_job("work-quick", json!({ "name": "other" }));
    served.job_in("succeeded", &other);
    let states = alone.each_ref().map(|id| served.job(id)["status"].clone());
    assert_eq!(states, ["running", "queued", "queued"]);
    let_continue(&workspace);
    alone.iter().for_each(|id| drop(served.job_in("succeeded", id)));
    assert_eq!(started_commands(&workspace), ["a", "other", "b", "c"]);
    assert!(!workspace.path("together").exists(), "two ran at once");
}

#[test]
fn calls_and_jobs_of_a_tool_share_its_limit() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace, 8);
    let job = served.start_job("work-alone", json!({ "name": "job" }));
    wait_until("the job runs", || started_commands(&workspace) == ["job"]);
    std::thread::scope(|scope| {
        let params = json!({ "name": "work-alone", "arguments": { "name": "call" } });
        let called = scope.spawn(|| served.result("tools/call", params));
        let_continue(&workspace);
        assert_eq!(called.join().unwrap()["exit_code"], 0);
    });
    served.job_in("succeeded", &job);
    assert!(!workspace.path("together").exists(), "two ran at once");
}

#[test]
fn waiting_jobs_run_in_order_of_arrival() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace, 1);
    let wait = |name| served.start_job("work-wait", json!({ "name": name }));
    let blocker = wait("blocker");
    wait_until("it runs", || started_commands(&workspace) == ["blocker"]);
    let one = wait("one");
    let two = wait("two");
    let quick = served.start_job("work-quick", json!({ "name": "quick" }));
    let_continue(&workspace);
    for id in [&blocker, &one, &two, &quick] {
        served.job_in("succeeded", id);
    }
    assert_eq!(started_commands(&workspace), ["blocker", "one", "two", "quick"]);
}

#[test]
fn no_more_jobs_run_at_once_than_allowed() {
    let workspace = TempWorkspace::with_commands();
    let served = served(&workspace, 2);
    let ids: Vec<_> = (0..5)
        .map(|nth| served.start_job("work-wait", json!({ "name": nth.to_string() })))
        .collect();
    wait_until("two run", || started_commands(&workspace).len() == 2);
    let states = || ids.iter().map(|id| served.job(id)["status"].clone()).collect::<Vec<_>>();
    assert_eq!(states(), ["running", "running", "queued", "queued", "queued"]);
    assert_eq!(started_commands(&workspace).len(), 2);
    let_continue(&workspace);
    ids.iter().for_each(|id| drop(served.job_in("succeeded", id)));
}

#[test]
fn a_thousand_jobs_all_run_once() {
    let workspace = TempWorkspace::new();
    let served = served(&workspace, 8);
    let ids: Vec<_> =
        (0..1000).map(|_| served.start_job("files-read", json!({ "path": "README.md" }))).collect();
    ids.iter().for_each(|id| {
        assert_eq!(served.job_in("succeeded", id)["stdout"], TempWorkspace::README);
    });
    assert_eq!(served.outcomes(1000).len(), 1000);
}

/// Server at which several callers with API keys start jobs.
struct MultiCallerJobServer(HttpServerProcess);

impl MultiCallerJobServer {
    /// Starts a server that may run `programs` programs and half as many jobs at once.
    fn over(workspace: &TempWorkspace, programs: usize) -> Self {
        let mut toml = std::fs::read_to_string(workspace.path("toolgate.toml")).unwrap();
        toml += &keys_of(&["ada", "bob"]);
        workspace.put("toolgate.toml", toml);
        Self(ServerLaunchOptions::over(workspace).set("limits_programs", programs).served())
    }

    fn send_as(&self, caller: &str, post: TestHttpRequest) -> TestHttpResponse {
        self.0.send(&post.with("x-api-key", &format!("{caller}-key")))
    }

    fn call(&self, caller: &str, name: &str, more: &Value) -> TestHttpResponse {
        let mut params = json!({ "name": "work-wait", "arguments": { "name": name } });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        self.send_as(
            caller,
            TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/mcp").without("accept"),
        )
    }

    #[track_caller]
    fn start_job(&self, caller: &str, name: &str) -> String {
        let answer = self.call(caller, name, &json!({ "mode": "async" })).json();
        answer["result"]["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn state(&self, caller: &str, id: &str) -> Value {
        self.send_as(caller, TestHttpRequest::bare("GET", &format!("/jobs/{id}"))).json()["status"]
            .clone()
    }
}

#[test]
fn jobs_of_one_caller_leave_slots_for_others() {
    let workspace = TempWorkspace::with_commands();
    let callers = MultiCallerJobServer::over(&workspace, 8);
    let mut ada_jobs: Vec<_> =
        (0..9).map(|nth| callers.start_job("ada", &format!("a{nth}"))).collect();
    wait_until("three of ada's run", || started_commands(&workspace).len() == 3);
    let bob_job = callers.start_job("bob", "b0");
    wait_until("bob's runs at once", || started_commands(&workspace).contains(&"b0".to_owned()));
    assert_eq!(started_commands(&workspace).len(), 4);
    let mut later = vec![callers.start_job("bob", "b1"), bob_job];
    let_continue(&workspace);
    let all = ada_jobs.drain(..).map(|id| ("ada", id)).chain(later.drain(..).map(|id| ("bob", id)));
    for (caller, id) in all {
        wait_until("every accepted job succeeds", || callers.state(caller, &id) == "succeeded");
    }
}

#[test]
fn callers_take_turns_if_one_job_runs_at_a_time() {
    let workspace = TempWorkspace::with_commands();
    let callers = MultiCallerJobServer::over(&workspace, 2);
    for (caller, name) in
        [("ada", "a0"), ("ada", "a1"), ("ada", "a2"), ("bob", "b0"), ("bob", "b1")]
    {
        callers.start_job(caller, name);
    }
    let_continue(&workspace);
    wait_until("all ran", || started_commands(&workspace).len() == 5);
    assert_eq!(started_commands(&workspace), ["a0", "b0", "a1", "b1", "a2"]);
}

#[test]
fn jobs_count_among_the_programs_of_their_caller() {
    let workspace = TempWorkspace::with_commands();
    let callers = MultiCallerJobServer::over(&workspace, 4);
    for nth in 0..3 {
        callers.start_job("ada", &format!("a{nth}"));
    }
    wait_until("two of ada's run", || started_commands(&workspace).len() == 2);
    let call =
        |caller: &str| callers.call(caller, &format!("of_{caller}"), &json!({ "mode": "sync" }));
    std::thread::scope(|scope| {
        let of_ada = [(); 2].map(|()| scope.spawn(|| call("ada")));
        wait_until("one call of ada runs", || started_commands(&workspace).len() == 3);
        let of_bob = scope.spawn(|| call("bob"));
        wait_until("bob's runs", || started_commands(&workspace).contains(&"of_bob".to_owned()));
        assert_eq!(started_commands(&workspace).len(), 4);
        let_continue(&workspace);
        for called in of_ada.into_iter().chain([of_bob]) {
            assert_eq!(called.join().unwrap().status, 200);
        }
    });
}

#[test]
fn a_job_with_a_large_input_waits_until_others_have_released_their_memory() {
    let workspace = TempWorkspace::new();
    // There is memory for six messages of one caller, and a running job takes three times its
    // input.
    let served = ServerLaunchOptions::over(&workspace)
        .set("limits_message_bytes", 256 << 10)
        .set("limits_programs", 16)
        .served();
    let script = "cat >/dev/null; echo run >> ran; until [ -e go ]; do sleep 0.02; done";
    let input = json!({ "command": script, "shell": true, "stdin": "x".repeat(200 << 10) });
    let jobs = [(); 3].map(|()| served.start_job("exec-run", input.clone()));
    wait_until("two run", || started_commands(&workspace).len() == 2);
    let small = served.start_job("exec-run", json!({ "command": "true" }));
    served.job_in("succeeded", &small);
    let mut states = jobs.each_ref().map(|id| served.job(id)["status"].to_string());
    states.sort_unstable();
    assert_eq!(states, ["\"queued\"", "\"running\"", "\"running\""]);
    let_continue(&workspace);
    jobs.iter().for_each(|id| drop(served.job_in("succeeded", id)));
}
