//! Subscriptions to changes, and the notifications of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{CallError, ChangeFilter, JobSnapshot, Reply, ServerChange};

use super::encoder::{McpEncoder, McpRequestKind};
use super::message::{McpError, RequestId, notification, wrong_type};
use super::request_notifications::RequestedNotifications;
use super::revision::{McpRevision, TaskSupport};
use super::tasks::{self, TaskRequest};
use crate::json::RpcParams;
use crate::{ChangeNotificationEncoder, ChangeSubscription, ServerInfo, rpc};

/// The `_meta` key for the id of the subscription to which a message belongs.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The maximum number of resources that one subscription names. The limit for tasks is the same
/// number.
const NAMED_MAX: usize = 1000;

/// Parses the request `subscriptions/listen`. `line` is true if the request arrived on a stream of
/// lines.
///
/// Kinds of changes that this server never has are left out of the subscription.
pub(crate) fn parse_listen(
    id: &RequestId,
    params: &RpcParams,
    revision: &'static McpRevision,
    facts: Arc<ServerInfo>,
    line: bool,
) -> Result<ChangeSubscription, McpError> {
    let invalid = |why: &str| McpError::invalid_params(Some(id.clone()), why);
    let filters = match params.get("notifications") {
        Some(Value::Object(filters)) => filters,
        other => return Err(wrong_type("an object", id, "params.notifications", other)),
    };
    let flag = |name: &str| match filters.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(invalid(&format!("`params.notifications.{name}` must be true or false"))),
    };
    let string_set = |name: &str| match filters.get(name) {
        None => Ok(BTreeSet::new()),
        Some(Value::Array(names)) if names.len() > NAMED_MAX => Err(invalid(&format!(
            "`params.notifications.{name}` may have at most {NAMED_MAX} items"
        ))),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        Some(_) => {
            Err(invalid(&format!("`params.notifications.{name}` must be a list of strings")))
        }
    };
    let mut filter = ChangeFilter {
        tools: flag("toolsListChanged")?,
        prompts: flag("promptsListChanged")? && facts.prompts,
        resources: flag("resourcesListChanged")? && facts.resources,
        uris: string_set("resourceSubscriptions")?,
        jobs: BTreeSet::new(),
    };
    if !facts.resources {
        filter.uris.clear();
    }
    match revision.tasks {
        TaskSupport::None | TaskSupport::Param => {}
        TaskSupport::Extension => {
            filter.jobs = string_set("taskIds")?;
            if !filter.jobs.is_empty() {
                tasks::check_declared(id, params)?;
            }
        }
    }
    // A subscription gets neither progress nor log lines.
    let notifications =
        RequestedNotifications::parse(id, &RpcParams::default(), revision, facts.clone(), None)?;
    let kind = McpRequestKind::TaskRequest(TaskRequest::Get);
    let results = facts.results;
    let encoder = McpEncoder { id: id.clone(), revision, facts, kind, results, notifications };
    Ok(ChangeSubscription {
        key: id.key(),
        filter,
        encoder: Arc::new(SubscriptionEncoder { encoder, line }),
    })
}

/// The encoder for the messages of one subscription. Each message names the subscription.
struct SubscriptionEncoder {
    /// The encoder for tasks of the subscription, which encodes each task like the answer to
    /// `tasks/get`.
    encoder: McpEncoder,
    line: bool,
}

impl SubscriptionEncoder {
    fn encode_notification(&self, method: &'static str, mut params: Value) -> Bytes {
        params["_meta"] = json!({ SUBSCRIPTION: self.encoder.id });
        notification(method, &params)
    }
}

impl ChangeNotificationEncoder for SubscriptionEncoder {
    fn encode_start(&self, filter: &ChangeFilter) -> Option<Bytes> {
        let ChangeFilter { tools, prompts, resources, uris, jobs } = filter;
        let mut accepted = Map::new();
        let flags = [
            ("toolsListChanged", *tools),
            ("promptsListChanged", *prompts),
            ("resourcesListChanged", *resources),
        ];
        for (name, _) in flags.into_iter().filter(|(_, is_set)| *is_set) {
            accepted.insert(name.into(), json!(true));
        }
        for (name, items) in [("resourceSubscriptions", uris), ("taskIds", jobs)] {
            if !items.is_empty() {
                accepted.insert(name.into(), json!(items));
            }
        }
        let params = json!({ "notifications": accepted });
        Some(self.encode_notification("notifications/subscriptions/acknowledged", params))
    }

    fn encode_change(&self, change: &ServerChange) -> Option<Bytes> {
        let (method, params) = change_notification(change);
        Some(self.encode_notification(method, params))
    }

    fn encode_job(&self, job: &JobSnapshot) -> Option<Bytes> {
        Some(self.encode_notification("notifications/tasks", self.encoder.detailed_task(job)))
    }

    fn encode_end(&self) -> Vec<Bytes> {
        let mut messages = Vec::new();
        if self.line {
            let reason = "the server ended the subscription";
            let params = json!({ "requestId": self.encoder.id, "reason": reason });
            messages.push(self.encode_notification("notifications/cancelled", params));
        }
        let mut result = json!(self.encoder.stamp(None));
        result["_meta"][SUBSCRIPTION] = json!(self.encoder.id);
        messages.push(rpc::success(&self.encoder.id, &result));
        messages
    }

    fn encode_refusal(&self, why: &CallError) -> Option<Reply> {
        Some(self.encoder.protocol_error_reply(why))
    }
}

/// The encoder for change notifications in an MCP session.
pub(crate) struct SessionNotificationEncoder {
    facts: Arc<ServerInfo>,
}

impl SessionNotificationEncoder {
    /// Creates the encoder for change notifications in a session, which all revisions encode in the
    /// same way.
    pub(crate) fn new(_revision: &'static McpRevision, facts: Arc<ServerInfo>) -> Self {
        Self { facts }
    }
}

impl ChangeNotificationEncoder for SessionNotificationEncoder {
    fn encode_start(&self, _heard: &ChangeFilter) -> Option<Bytes> {
        None
    }

    fn encode_change(&self, change: &ServerChange) -> Option<Bytes> {
        // Only declared capabilities send notifications.
        let declared = match change {
            ServerChange::Tools => true,
            ServerChange::Prompts => self.facts.prompts,
            ServerChange::Resources | ServerChange::Resource(_) => self.facts.resources,
        };
        declared.then(|| {
            let (method, params) = change_notification(change);
            notification(method, &params)
        })
    }

    fn encode_job(&self, _job: &JobSnapshot) -> Option<Bytes> {
        // Task notifications go to the connection that created the task.
        None
    }

    fn encode_end(&self) -> Vec<Bytes> {
        Vec::new()
    }
}

/// Returns the method and parameters of the MCP notification for `change`.
fn change_notification(change: &ServerChange) -> (&'static str, Value) {
    match change {
        ServerChange::Tools => ("notifications/tools/list_changed", json!({})),
        ServerChange::Prompts => ("notifications/prompts/list_changed", json!({})),
        ServerChange::Resources => ("notifications/resources/list_changed", json!({})),
        ServerChange::Resource(uri) => {
            ("notifications/resources/updated", json!({ "uri": &**uri }))
        }
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{JobId, JobState};

    use super::super::revision::REVISIONS;
    use super::super::tasks::tests::{self, asking};
    use super::super::{META_CAPABILITIES, META_VERSION};
    use super::*;

    fn facts(resources: bool) -> Arc<ServerInfo> {
        Arc::new(ServerInfo { resources, prompts: false, ..tests::facts() })
    }

    /// Parses a subscription request for `notifications` from a client that declares
    /// `capabilities`.
    fn listen(
        id: &Value,
        notifications: &Value,
        capabilities: &Value,
    ) -> Result<ChangeSubscription, McpError> {
        let meta = json!({ META_VERSION: "2026-07-28", META_CAPABILITIES: capabilities });
        let params = json!({ "_meta": meta, "notifications": notifications });
        let id = RequestId::parse(id).expect("an id");
        parse_listen(
            &id,
            &params.as_object().expect("an object").clone().into(),
            &REVISIONS[0],
            facts(true),
            true,
        )
    }

    fn json(bytes: &Bytes) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    fn tasks() -> Value {
        json!({ "extensions": { tasks::EXTENSION: {} } })
    }

    #[test]
    fn a_subscription_first_receives_its_accepted_filters() {
        let filters = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": false,
            "resourceSubscriptions": ["file:///b", "file:///a"],
            "taskIds": ["t"],
            "whoKnows": 1
        });
        let subscription = listen(&json!(7), &filters, &tasks()).expect("a subscription");
        let begin = subscription.encoder.encode_start(&subscription.filter).expect("a message");
        assert_eq!(
            json(&begin),
            json!({
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {
                    "_meta": { SUBSCRIPTION: 7 },
                    "notifications": {
                        "toolsListChanged": true,
                        "resourceSubscriptions": ["file:///a", "file:///b"],
                        "taskIds": ["t"]
                    }
                }
            })
        );
    }

    #[test]
    fn changes_that_the_server_lacks_are_not_subscribed() {
        let id = RequestId::Text("a".into());
        let filters =
            json!({ "resourcesListChanged": true, "resourceSubscriptions": ["file:///a"] });
        let params = Map::from_iter([("notifications".to_owned(), filters)]).into();
        let subscription =
            parse_listen(&id, &params, &REVISIONS[0], facts(false), false).expect("a subscription");
        assert_eq!(subscription.filter, ChangeFilter::default());
    }

    #[test]
    fn every_message_has_the_subscription_id_with_its_type() {
        for id in [json!(1), json!("1")] {
            let encoder = listen(&id, &json!({}), &json!({})).expect("a subscription").encoder;
            let begin = encoder.encode_start(&ChangeFilter::default());
            let changed = encoder
                .encode_change(&ServerChange::Resource("file:///a".into()))
                .expect("a message");
            let job = encoder.encode_job(&asking(JobState::Running));
            for message in [begin.expect("a message"), changed, job.expect("a message")] {
                assert_eq!(json(&message)["params"]["_meta"], json!({ SUBSCRIPTION: id }));
            }
            let [cancelled, result] = encoder.encode_end().try_into().expect("two messages");
            assert_eq!(json(&cancelled)["params"]["_meta"], json!({ SUBSCRIPTION: id }));
            assert_eq!(json(&result)["result"]["_meta"][SUBSCRIPTION], id);
        }
    }

    #[test]
    fn each_change_has_its_notification() {
        let encoder = listen(&json!(1), &json!({}), &json!({})).expect("a subscription").encoder;
        let meta = json!({ SUBSCRIPTION: 1 });
        for (change, method, params) in [
            (ServerChange::Tools, "notifications/tools/list_changed", json!({ "_meta": meta })),
            (ServerChange::Prompts, "notifications/prompts/list_changed", json!({ "_meta": meta })),
            (
                ServerChange::Resources,
                "notifications/resources/list_changed",
                json!({ "_meta": meta }),
            ),
            (
                ServerChange::Resource("file:///a".into()),
                "notifications/resources/updated",
                json!({ "uri": "file:///a", "_meta": meta }),
            ),
        ] {
            let message = json(&encoder.encode_change(&change).expect("a message"));
            assert_eq!(message, json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        }
    }

    #[test]
    fn an_ended_subscription_gets_its_result_and_on_lines_a_cancellation() {
        let encoder = listen(&json!("s"), &json!({}), &json!({})).expect("a subscription").encoder;
        let messages: Vec<Value> = encoder.encode_end().iter().map(json).collect();
        assert_eq!(messages[0]["method"], "notifications/cancelled");
        assert_eq!(messages[0]["params"]["requestId"], "s");
        let server = json!({ "name": "toolgate", "version": "1" });
        assert_eq!(
            messages[1],
            json!({
                "jsonrpc": "2.0",
                "id": "s",
                "result": {
                    "resultType": "complete",
                    "_meta": {
                        SUBSCRIPTION: "s",
                        "io.modelcontextprotocol/serverInfo": server
                    }
                }
            })
        );
        let params = Map::from_iter([("notifications".to_owned(), json!({}))]).into();
        let id = RequestId::Text("s".into());
        let over_http =
            parse_listen(&id, &params, &REVISIONS[0], facts(true), false).expect("a subscription");
        assert_eq!(over_http.encoder.encode_end().len(), 1);
    }

    #[test]
    fn malformed_filters_are_refused() {
        let many: Vec<String> = (0..=NAMED_MAX).map(|n| n.to_string()).collect();
        for filters in [
            json!(null),
            json!([]),
            json!({ "toolsListChanged": 1 }),
            json!({ "promptsListChanged": null }),
            json!({ "resourceSubscriptions": "file:///a" }),
            json!({ "resourceSubscriptions": ["file:///a", 1] }),
            json!({ "resourceSubscriptions": many }),
            json!({ "taskIds": {} }),
        ] {
            let failure = listen(&json!(1), &filters, &tasks()).err().expect("a failure");
            assert_eq!(failure.code, -32602, "{filters}");
        }
    }

    #[test]
    fn task_changes_require_the_declared_extension() {
        let filters = json!({ "taskIds": ["t"] });
        let failure = listen(&json!(1), &filters, &json!({})).err().expect("a failure");
        assert_eq!(failure.code, -32021);
        assert_eq!(failure.data.as_deref(), Some(&json!({ "requiredCapabilities": tasks() })));
        let subscription = listen(&json!(1), &filters, &tasks()).expect("a subscription");
        assert_eq!(subscription.filter.jobs, BTreeSet::from(["t".to_owned()]));
    }

    #[test]
    fn a_session_receives_supported_changes_without_a_subscription() {
        let encoder = SessionNotificationEncoder::new(&REVISIONS[1], facts(true));
        let message = encoder.encode_change(&ServerChange::Tools).expect("a message");
        let method = "notifications/tools/list_changed";
        assert_eq!(json(&message), json!({ "jsonrpc": "2.0", "method": method, "params": {} }));
        assert_eq!(encoder.encode_change(&ServerChange::Prompts), None);
        assert_eq!(encoder.encode_start(&ChangeFilter::default()), None);
        assert!(encoder.encode_end().is_empty());
    }

    #[test]
    fn a_task_notification_equals_the_answer_of_tasks_get() {
        let encoder = listen(&json!(1), &json!({}), &json!({})).expect("a subscription").encoder;
        let message = json(&encoder.encode_job(&asking(JobState::Running)).expect("a message"));
        let time = "2026-01-02T03:04:05.000Z";
        assert_eq!(
            message,
            json!({
                "jsonrpc": "2.0",
                "method": "notifications/tasks",
                "params": {
                    "_meta": { SUBSCRIPTION: 1 },
                    "taskId": JobId::from_bits(7).to_string(),
                    "status": "input_required",
                    "inputRequests": { "where": { "method": "roots/list", "params": {} } },
                    "createdAt": time,
                    "lastUpdatedAt": time,
                    "ttlMs": 60_000,
                    "pollIntervalMs": 500
                }
            })
        );
        let message = json(&encoder.encode_job(&asking(JobState::Canceled)).expect("a message"));
        assert_eq!(message["params"]["status"], "cancelled");
        assert_eq!(message["params"].get("inputRequests"), None);
    }
}
