//! HTTP requests of Zyra's clients, and the path of the real Zyra program.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{HttpServerProcess, TestHttpRequest, TestHttpResponse, wait_for};

/// Returns `tools/call` parameters that start `tool` as a job.
pub(crate) fn job_params(tool: &str, arguments: Value) -> Value {
    json!({ "name": tool, "arguments": arguments, "mode": "async" })
}

/// Returns the path of the real Zyra program.
#[track_caller]
pub(crate) fn zyra() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let zyra = checkout.join(".tools/zyra/bin/zyra");
    assert!(zyra.exists(), "{} is missing: run `cargo xtask setup`", zyra.display());
    zyra
}

/// Checks the name, the description and the schema of a command that Zyra's discovery lists.
#[track_caller]
pub(crate) fn check_command(command: &Value) {
    let name = command["name"].as_str().unwrap();
    let (stage, verb) = name.split_once('-').unwrap_or_else(|| panic!("no stage: {name}"));
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(!stage.is_empty() && stage.chars().all(|c| c.is_ascii_lowercase()), "{name}");
    assert!(!verb.is_empty() && verb.chars().all(fits), "{name}");
    assert!(!command["description"].as_str().unwrap().is_empty(), "{name}");
    let schema = &command["parameters"];
    assert_eq!(schema["type"], "object", "{command}");
    assert!(schema["properties"].is_object(), "{command}");
    assert!(jsonschema::meta::is_valid(schema), "{command}");
}

impl HttpServerProcess {
    /// Sends one JSON-RPC request to Zyra's endpoint `/v1/mcp`.
    #[track_caller]
    pub(crate) fn rpc(&self, method: &str, params: Value) -> TestHttpResponse {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let post = TestHttpRequest::bytes(message.to_string().as_bytes()).to("/v1/mcp");
        self.send(&post.without("accept"))
    }

    /// Sends one JSON-RPC request to Zyra's endpoint `/v1/mcp`, and returns its result.
    #[track_caller]
    pub(crate) fn result(&self, method: &str, params: Value) -> Value {
        let mut answer = self.rpc(method, params).json();
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    /// Starts a job and returns its id.
    #[track_caller]
    pub(crate) fn start_job(&self, tool: &str, arguments: Value) -> String {
        let result = self.result("tools/call", job_params(tool, arguments));
        assert_eq!(result["status"], "accepted", "{result}");
        result["job_id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> TestHttpResponse {
        self.send(&TestHttpRequest::bare("GET", target))
    }

    #[track_caller]
    pub(crate) fn delete(&self, target: &str) -> TestHttpResponse {
        self.send(&TestHttpRequest::bare("DELETE", target))
    }

    /// Returns the current state of the job `id`.
    #[track_caller]
    pub(crate) fn job(&self, id: &str) -> Value {
        let response = self.get(&format!("/jobs/{id}"));
        assert_eq!(response.status, 200, "{response:?}");
        response.json()
    }

    /// Waits until the job `id` is in `state`, and returns it.
    #[track_caller]
    pub(crate) fn job_in(&self, state: &str, id: &str) -> Value {
        wait_for(&format!("job {id} is {state}"), || {
            let job = self.job(id);
            let ended = ["succeeded", "failed", "canceled"].iter().any(|end| job["status"] == *end);
            assert!(!ended || job["status"] == state, "not {state}: {job}");
            (job["status"] == state).then_some(job)
        })
    }
}
