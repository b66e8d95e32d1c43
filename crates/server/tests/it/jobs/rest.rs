//! Tests of jobs over REST, for programs without MCP.

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ProcessMarker, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
    TestHttpResponse, keys_of, let_continue,
};

fn post_job(body: &Value) -> TestHttpRequest {
    TestHttpRequest::bytes(body.to_string().as_bytes()).to("/v1/jobs").malformed()
}

fn get(served: &HttpServerProcess, target: &str) -> TestHttpResponse {
    served.send(&TestHttpRequest::bare("GET", target))
}

/// Starts a job that prints its steps until the test lets it continue, and returns the job's id.
fn start(served: &HttpServerProcess, marker: &ProcessMarker) -> String {
    let arguments = json!({ "name": marker.0, "code": "0" });
    let reply = served.send(&post_job(&json!({ "tool": "tell-steps", "arguments": arguments })));
    assert_eq!(reply.status, 202, "{reply:?}");
    let job = reply.json();
    let id = job["job_id"].as_str().unwrap().to_owned();
    assert_eq!(reply.header("location"), Some(format!("/v1/jobs/{id}").as_str()));
    id
}

#[test]
fn a_started_job_is_listed_and_watched_to_its_end() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let marker = ProcessMarker::new();
    let id = start(&served, &marker);
    marker.wait_until_running();
    let page = get(&served, "/v1/jobs").json();
    assert_eq!((&page["jobs"][0]["job_id"], &page["next"]), (&json!(id), &Value::Null));
    let mut connection = served.connect();
    connection.post(&TestHttpRequest::bare("GET", &format!("/v1/jobs/{id}/events")));
    let head = connection.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let first = connection.event().unwrap();
    assert_eq!((&first["event"], &first["job"]["job_id"]), (&json!("job"), &json!(id)));
    let_continue(&workspace);
    let mut kinds = Vec::new();
    let mut last = first;
    while let Some(event) = connection.event() {
        kinds.push(event["event"].as_str().unwrap().to_owned());
        last = event;
    }
    for kind in ["queued", "started", "output", "finished", "ended"] {
        assert!(kinds.iter().any(|one| one == kind), "no {kind} in {kinds:?}");
    }
    assert_eq!(last["job"]["status"], "succeeded", "{last}");
    assert_eq!(last["job"]["error"], Value::Null);
}

#[test]
fn a_job_is_cancelled_and_read_where_zyra_is_not_served() {
    let launch =
        ServerLaunchOptions::over(&TempWorkspace::with_commands()).set("server_dialects", "mcp");
    let served = launch.served();
    let marker = ProcessMarker::new();
    let id = start(&served, &marker);
    marker.wait_until_running();
    let job = get(&served, &format!("/v1/jobs/{id}")).json();
    assert_eq!((&job["status"], &job["tool"]), (&json!("running"), &json!("tell.steps")));
    let canceled = served.send(&TestHttpRequest::bare("DELETE", &format!("/v1/jobs/{id}"))).json();
    assert_eq!(canceled["status"], "canceled", "{canceled}");
    let again = served.send(&TestHttpRequest::bare("DELETE", &format!("/v1/jobs/{id}"))).json();
    assert_eq!(
        (&again["job_id"], &again["status"]),
        (&canceled["job_id"], &json!("canceled")),
        "{again}"
    );
}

#[test]
fn a_wrong_request_gets_a_problem_that_names_the_mistake() {
    let served = ServerLaunchOptions::over(&TempWorkspace::new()).served();
    for (request, status, detail) in [
        (post_job(&json!({ "arguments": {} })), 400, "tool"),
        (post_job(&json!({ "tool": "files_read", "arguments": [] })), 400, "must be an object"),
        (post_job(&json!({ "tool": "files_reed" })), 404, "files"),
        (post_job(&json!({ "tool": "files_delete" })), 400, "path"),
        (TestHttpRequest::bytes(b"{").to("/v1/jobs").malformed(), 400, "not JSON"),
        (TestHttpRequest::bare("GET", "/v1/jobs?after=x"), 404, "no job"),
        (TestHttpRequest::bare("GET", "/v1/jobs/x/events"), 404, "no job"),
        (TestHttpRequest::bare("PUT", "/v1/jobs"), 405, "GET, HEAD, POST"),
    ] {
        let reply = served.send(&request);
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        let problem: Value = serde_json::from_str(&reply.text()).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{problem}");
    }
}

#[test]
fn jobs_belong_to_their_caller() {
    let workspace = TempWorkspace::with_commands();
    let settings = format!("{}{}", workspace.read("toolgate.toml"), keys_of(&["ada", "bob"]));
    workspace.put("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    assert_eq!(get(&served, "/v1/jobs").status, 401);
    let ada = |request: TestHttpRequest| request.with("authorization", "Bearer ada-key");
    let bob = |request: TestHttpRequest| request.with("authorization", "Bearer bob-key");
    let arguments = json!({ "name": "x", "code": "0" });
    let post = post_job(&json!({ "tool": "tell-steps", "arguments": arguments }));
    let reply = served.send(&ada(post));
    assert_eq!(reply.status, 202, "{reply:?}");
    let id = reply.json()["job_id"].as_str().unwrap().to_owned();
    let list = TestHttpRequest::bare("GET", "/v1/jobs");
    assert_eq!(served.send(&bob(list.clone())).json()["jobs"], json!([]));
    assert_eq!(served.send(&ada(list)).json()["jobs"][0]["job_id"], id);
    let mut connection = served.connect();
    connection.post(&bob(TestHttpRequest::bare("GET", &format!("/v1/jobs/{id}/events"))));
    connection.head();
    assert_eq!(connection.event().unwrap()["event"], "unknown");
    assert_eq!(connection.event(), None);
}

#[test]
fn the_openapi_document_describes_the_paths_that_are_served() {
    let served =
        ServerLaunchOptions::over(&TempWorkspace::new()).set("server_dialects", "mcp").served();
    let document = get(&served, "/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().unwrap() {
        let target = path.replace("{job_id}", "00").replace("{name}", "a");
        for method in operations.as_object().unwrap().keys().filter(|it| *it != "parameters") {
            let method = method.to_uppercase();
            let reply = served.send(&TestHttpRequest::bare(&method, &target));
            assert_ne!(reply.status, 405, "{method} {path}");
        }
    }
}
