//! Tests of MCP requests and answers about tasks, both in the revision where tasks are a parameter
//! and in the one where they are an extension.

use std::sync::Arc;

use serde_json::{Value, json};
use toolgate_contract::{
    Caller, ClientAnswer, ClientAnswers, ClientQuestion, ElicitationAnswer, HostRequest, JobEvent,
    JobEventKind, JobId, JobOutputText, JobSnapshot, JobState, JobStreamItem, Reply, ReplyBody,
    ToolId, ToolResultFormat,
};

use super::super::META_CAPABILITIES;
use super::super::encoder::{McpEncoder, McpRequestKind};
use super::super::message::RequestId;
use super::super::request_notifications::RequestedNotifications;
use super::super::revision::{McpRevision, REVISIONS};
use super::{EXTENSION, TaskRequest};
use crate::json::RpcParams;
use crate::{AnswerEncoder, ServerInfo};

/// MCP revision whose tasks are an extension of the protocol.
pub(crate) const EXTENDED: &McpRevision = &REVISIONS[0];
/// MCP revision whose calls ask for a task with a parameter.
pub(crate) const PARAM: &McpRevision = &REVISIONS[1];

/// Returns the description of a server with all features.
pub(crate) fn facts() -> ServerInfo {
    ServerInfo {
        name: "toolgate".into(),
        title: "Toolgate".into(),
        version: "1".into(),
        description: "Serves.".into(),
        instructions: "Ask.".into(),
        jobs: true,
        resources: true,
        prompts: true,
        skills: true,
        http_sse: false,
        card: None,
        zyra_body_bytes_max: None,
        requires_auth: false,
        tls: false,
        results: ToolResultFormat::Both,
    }
}

/// Returns a job in `state` that asks the client for its folders.
pub(crate) fn asking(state: JobState) -> JobSnapshot {
    let at = json!("2026-01-02T03:04:05Z");
    let at = || serde_json::from_value(at.clone()).expect("a time");
    JobSnapshot {
        id: JobId::from_bits(7),
        tool: ToolId::new("test.ask").expect("an id"),
        caller: Caller::local(),
        state,
        created: at(),
        updated: at(),
        started: None,
        attempts: 1,
        progress: 0.0,
        message: None,
        keep_for: std::time::Duration::from_secs(60),
        last_event: 3,
        artefacts: Vec::new(),
        questions: [("where".to_owned(), ClientQuestion::Roots)].into(),
        outcome: None,
        printed: JobOutputText::default(),
    }
}

/// Creates the encoder for the answers to a request of the type `asked`, in `revision`.
pub(crate) fn ticket(revision: &'static McpRevision, asked: McpRequestKind) -> McpEncoder {
    let id = RequestId::Text("a".into());
    let facts = Arc::new(facts());
    let hearing =
        RequestedNotifications::parse(&id, &RpcParams::default(), revision, facts.clone(), None);
    McpEncoder {
        id,
        revision,
        facts,
        kind: asked,
        results: ToolResultFormat::Both,
        notifications: hearing.expect("nothing to hear"),
    }
}

/// Returns the JSON of a reply.
pub(crate) fn said(reply: Reply) -> Value {
    let ReplyBody::Json(bytes) = reply.body else { panic!("no JSON") };
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Returns the `_meta` member that each result of the stateless MCP revision has.
fn server() -> Value {
    json!({ "io.modelcontextprotocol/serverInfo": { "name": "toolgate", "version": "1" } })
}

fn task() -> Value {
    json!({
        "taskId": JobId::from_bits(7).to_string(),
        "status": "input_required",
        "createdAt": "2026-01-02T03:04:05.000Z",
        "lastUpdatedAt": "2026-01-02T03:04:05.000Z",
        "ttlMs": 60_000,
        "pollIntervalMs": 500
    })
}

/// Returns `object` with the members of `more`.
fn with(mut object: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut object, more) else {
        panic!("two objects")
    };
    fields.extend(more);
    object
}

#[test]
fn tasks_get_returns_the_questions_of_a_waiting_task() {
    let ticket = ticket(EXTENDED, McpRequestKind::TaskRequest(TaskRequest::Get));
    let asks = json!({
        "inputRequests": { "where": { "method": "roots/list", "params": {} } },
        "resultType": "complete",
        "_meta": server()
    });
    let got = said(ticket.task_reply(TaskRequest::Get, &asking(JobState::Running)));
    assert_eq!(got["result"], with(task(), asks));
    assert_eq!(ticket.detailed_task(&asking(JobState::Running))["status"], "input_required");
}

#[test]
fn an_ended_task_has_no_questions() {
    let ticket = ticket(EXTENDED, McpRequestKind::TaskRequest(TaskRequest::Get));
    let got = said(ticket.task_reply(TaskRequest::Get, &asking(JobState::Canceled)));
    assert_eq!(got["result"]["status"], "cancelled");
    assert_eq!(got["result"].get("inputRequests"), None);
}

#[test]
fn a_call_answered_with_a_task_has_no_questions() {
    let call =
        said(ticket(EXTENDED, McpRequestKind::Task).task_created_reply(&asking(JobState::Running)));
    assert_eq!(call["result"], with(task(), json!({ "resultType": "task", "_meta": server() })));
}

#[test]
fn a_task_of_the_session_era_is_waiting_without_its_questions() {
    let ticket = ticket(PARAM, McpRequestKind::TaskRequest(TaskRequest::Get));
    let got = said(ticket.task_reply(TaskRequest::Get, &asking(JobState::Running)));
    assert_eq!(got["result"]["status"], "input_required");
    assert_eq!(got["result"].get("inputRequests"), None);
}

#[test]
fn the_creator_of_a_task_is_notified_of_questions_and_answers() {
    let ticket = ticket(PARAM, McpRequestKind::Task);
    let watch = ticket.job_encoder(&asking(JobState::Running)).expect("it is followed");
    let at = serde_json::from_value(json!("2026-01-02T03:04:06Z")).expect("a time");
    for (open, status) in [(2, "input_required"), (0, "working")] {
        let event = JobEvent { seq: 4, at, kind: JobEventKind::Asks { open } };
        let told = watch.encode_item(&JobStreamItem::Event(Arc::new(event))).expect("words");
        let told: Value = serde_json::from_slice(&told).expect("JSON");
        assert_eq!(told["method"], "notifications/tasks/status");
        assert_eq!(told["params"]["taskId"], JobId::from_bits(7).to_string());
        assert_eq!(told["params"]["status"], status);
        assert_eq!(told["params"]["createdAt"], "2026-01-02T03:04:05.000Z");
        assert_eq!(told["params"]["lastUpdatedAt"], "2026-01-02T03:04:06.000Z");
        assert_eq!(told["params"]["ttl"], 60_000);
    }
}

/// Parses a `tasks/update` request with `params` from a client that declares the tasks extension.
/// An error is a JSON-RPC error code.
fn update(params: Value) -> Result<HostRequest, i32> {
    let capabilities = json!({ "extensions": { EXTENSION: {} } });
    let params = with(params, json!({ "_meta": { META_CAPABILITIES: capabilities } }));
    let params = params.as_object().expect("an object");
    TaskRequest::Update
        .parse(EXTENDED, &RequestId::Text("a".into()), &params.clone().into())
        .map_err(|failure| failure.code)
}

#[test]
fn an_update_passes_answers_to_a_task() {
    let responses = json!({ "yes": { "action": "decline" }, "unknown": { "shape": 1 } });
    let request = update(json!({ "taskId": "t", "inputResponses": responses }));
    let given = ClientAnswers::from([(
        "yes".to_owned(),
        ClientAnswer::Choice(ElicitationAnswer::Declined),
    )]);
    assert_eq!(request, Ok(HostRequest::AnswerJob { id: "t".into(), given }));
    let ack = ticket(EXTENDED, McpRequestKind::TaskRequest(TaskRequest::Update));
    let ack = said(ack.task_reply(TaskRequest::Update, &asking(JobState::Running)));
    assert_eq!(ack["result"], json!({ "resultType": "complete", "_meta": server() }));
}

#[test]
fn an_update_without_answers_is_refused() {
    for params in [
        json!({ "taskId": "t" }),
        json!({ "taskId": "t", "inputResponses": null }),
        json!({ "taskId": "t", "inputResponses": { "a": 1 } }),
        json!({ "inputResponses": {} }),
    ] {
        assert_eq!(update(params.clone()), Err(-32602), "{params}");
    }
}

#[test]
fn a_task_request_without_the_extension_is_refused_by_name() {
    let id = RequestId::Text("a".into());
    for about in [TaskRequest::Get, TaskRequest::Update, TaskRequest::Cancel] {
        let failure = about.parse(EXTENDED, &id, &RpcParams::default()).expect_err("it is refused");
        assert_eq!(failure.code, -32021);
        let required = json!({ "requiredCapabilities": { "extensions": { EXTENSION: {} } } });
        assert_eq!(failure.data.as_deref(), Some(&required));
    }
}
