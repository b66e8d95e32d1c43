//! Subscriptions to changes, and the notifications of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{CallError, Change, Interest, Job, Reply};

use super::hearing::Hearing;
use super::message::{Failure, Id, not_a, notification};
use super::revision::{Revision, Tasks};
use super::tasks::{self, About};
use super::ticket::{Asked, McpTicket};
use crate::json::Params;
use crate::{Facts, ListenTicket, Listening, rpc};

/// The `_meta` key of the subscription that a message belongs to.
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
/// The most resources, and the most tasks, of one subscription.
const NAMED_MAX: usize = 1000;

/// Parses `subscriptions/listen`. `line` is true if the request arrived on a stream of lines.
///
/// Kinds of changes that this server never has are left out of the subscription.
pub(crate) fn read(
    id: &Id,
    params: &Params,
    revision: &'static Revision,
    facts: Arc<Facts>,
    line: bool,
) -> Result<Listening, Failure> {
    let wrong = |why: &str| Failure::invalid_params(Some(id.clone()), why);
    let wanted = match params.get("notifications") {
        Some(Value::Object(wanted)) => wanted,
        other => return Err(not_a("an object", id, "params.notifications", other)),
    };
    let flag = |name: &str| match wanted.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(wrong(&format!("`params.notifications.{name}` must be true or false"))),
    };
    let named = |name: &str| match wanted.get(name) {
        None => Ok(BTreeSet::new()),
        Some(Value::Array(names)) if names.len() > NAMED_MAX => {
            Err(wrong(&format!("`params.notifications.{name}` may name {NAMED_MAX} at most")))
        }
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            Ok(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        Some(_) => Err(wrong(&format!("`params.notifications.{name}` must be a list of strings"))),
    };
    let mut interest = Interest {
        tools: flag("toolsListChanged")?,
        prompts: flag("promptsListChanged")? && facts.prompts,
        resources: flag("resourcesListChanged")? && facts.resources,
        uris: named("resourceSubscriptions")?,
        jobs: BTreeSet::new(),
    };
    if !facts.resources {
        interest.uris.clear();
    }
    match revision.tasks {
        Tasks::None | Tasks::Param => {}
        Tasks::Extension => {
            interest.jobs = named("taskIds")?;
            if !interest.jobs.is_empty() {
                tasks::check_declared(id, params)?;
            }
        }
    }
    // A subscription gets neither progress nor log lines.
    let hearing = Hearing::read(id, &Params::default(), revision, facts.clone(), None)?;
    let asked = Asked::About(About::Get);
    let ticket = McpTicket { id: id.clone(), revision, facts, asked, hearing };
    Ok(Listening { key: id.key(), interest, ticket: Arc::new(Subscription { ticket, line }) })
}

/// The encoder for one subscription. Each message names the subscription.
struct Subscription {
    /// Encodes tasks like the answer to `tasks/get`.
    ticket: McpTicket,
    line: bool,
}

impl Subscription {
    fn notified(&self, method: &'static str, mut params: Value) -> Bytes {
        params["_meta"] = json!({ SUBSCRIPTION: self.ticket.id });
        notification(method, &params)
    }
}

impl ListenTicket for Subscription {
    fn begin(&self, heard: &Interest) -> Option<Bytes> {
        let Interest { tools, prompts, resources, uris, jobs } = heard;
        let mut told = Map::new();
        let flags = [
            ("toolsListChanged", *tools),
            ("promptsListChanged", *prompts),
            ("resourcesListChanged", *resources),
        ];
        for (name, _) in flags.into_iter().filter(|(_, heard)| *heard) {
            told.insert(name.into(), json!(true));
        }
        for (name, heard) in [("resourceSubscriptions", uris), ("taskIds", jobs)] {
            if !heard.is_empty() {
                told.insert(name.into(), json!(heard));
            }
        }
        let params = json!({ "notifications": told });
        Some(self.notified("notifications/subscriptions/acknowledged", params))
    }

    fn changed(&self, change: &Change) -> Option<Bytes> {
        let (method, params) = spelled(change);
        Some(self.notified(method, params))
    }

    fn job(&self, job: &Job) -> Option<Bytes> {
        Some(self.notified("notifications/tasks", self.ticket.detailed(job)))
    }

    fn end(&self) -> Vec<Bytes> {
        let mut said = Vec::new();
        if self.line {
            let reason = "the server ends the subscription";
            let params = json!({ "requestId": self.ticket.id, "reason": reason });
            said.push(self.notified("notifications/cancelled", params));
        }
        let mut result = json!(self.ticket.stamp(None));
        result["_meta"][SUBSCRIPTION] = json!(self.ticket.id);
        said.push(rpc::success(&self.ticket.id, &result));
        said
    }

    fn refused(&self, why: &CallError) -> Option<Reply> {
        Some(self.ticket.refused(why))
    }
}

/// The encoder for notifications in a session.
pub(crate) struct Tidings {
    facts: Arc<Facts>,
}

impl Tidings {
    /// Creates the encoder. All revisions encode these notifications in the same way.
    pub(crate) fn new(_revision: &'static Revision, facts: Arc<Facts>) -> Self {
        Self { facts }
    }
}

impl ListenTicket for Tidings {
    fn begin(&self, _heard: &Interest) -> Option<Bytes> {
        None
    }

    fn changed(&self, change: &Change) -> Option<Bytes> {
        // Only declared capabilities send notifications.
        let declared = match change {
            Change::Tools => true,
            Change::Prompts => self.facts.prompts,
            Change::Resources | Change::Resource(_) => self.facts.resources,
        };
        declared.then(|| {
            let (method, params) = spelled(change);
            notification(method, &params)
        })
    }

    fn job(&self, _job: &Job) -> Option<Bytes> {
        // Task notifications go to the connection that created the task.
        None
    }

    fn end(&self) -> Vec<Bytes> {
        Vec::new()
    }
}

/// Returns the method and parameters of the notification for `change`.
fn spelled(change: &Change) -> (&'static str, Value) {
    match change {
        Change::Tools => ("notifications/tools/list_changed", json!({})),
        Change::Prompts => ("notifications/prompts/list_changed", json!({})),
        Change::Resources => ("notifications/resources/list_changed", json!({})),
        Change::Resource(uri) => ("notifications/resources/updated", json!({ "uri": &**uri })),
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{JobId, JobState};

    use super::super::revision::REVISIONS;
    use super::super::tasks::tests::{self, asking};
    use super::super::{META_CAPABILITIES, META_VERSION};
    use super::*;

    fn facts(resources: bool) -> Arc<Facts> {
        Arc::new(Facts { resources, prompts: false, ..tests::facts() })
    }

    /// What comes of a request for `notifications` whose client declares `capabilities`.
    fn listen(
        id: &Value,
        notifications: &Value,
        capabilities: &Value,
    ) -> Result<Listening, Failure> {
        let meta = json!({ META_VERSION: "2026-07-28", META_CAPABILITIES: capabilities });
        let params = json!({ "_meta": meta, "notifications": notifications });
        let id = Id::read(id).expect("an id");
        read(
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
    fn a_subscription_is_first_told_what_it_will_be_told_of() {
        let wanted = json!({
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": false,
            "resourceSubscriptions": ["file:///b", "file:///a"],
            "taskIds": ["t"],
            "whoKnows": 1
        });
        let listening = listen(&json!(7), &wanted, &tasks()).expect("it reads");
        let begin = listening.ticket.begin(&listening.interest).expect("words");
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
    fn what_a_server_has_none_of_is_not_listened_to() {
        let id = Id::Text("a".into());
        let wanted =
            json!({ "resourcesListChanged": true, "resourceSubscriptions": ["file:///a"] });
        let params = Map::from_iter([("notifications".to_owned(), wanted)]).into();
        let listening = read(&id, &params, &REVISIONS[0], facts(false), false).expect("it reads");
        assert_eq!(listening.interest, Interest::default());
    }

    #[test]
    fn every_message_names_its_subscription_by_an_id_of_the_same_kind() {
        for id in [json!(1), json!("1")] {
            let ticket = listen(&id, &json!({}), &json!({})).expect("it reads").ticket;
            let begin = ticket.begin(&Interest::default());
            let changed = ticket.changed(&Change::Resource("file:///a".into())).expect("words");
            let job = ticket.job(&asking(JobState::Running));
            for said in [begin.expect("words"), changed, job.expect("words")] {
                assert_eq!(json(&said)["params"]["_meta"], json!({ SUBSCRIPTION: id }));
            }
            let [cancelled, result] = ticket.end().try_into().expect("two messages");
            assert_eq!(json(&cancelled)["params"]["_meta"], json!({ SUBSCRIPTION: id }));
            assert_eq!(json(&result)["result"]["_meta"][SUBSCRIPTION], id);
        }
    }

    #[test]
    fn each_change_has_its_notification() {
        let ticket = listen(&json!(1), &json!({}), &json!({})).expect("it reads").ticket;
        let meta = json!({ SUBSCRIPTION: 1 });
        for (change, method, params) in [
            (Change::Tools, "notifications/tools/list_changed", json!({ "_meta": meta })),
            (Change::Prompts, "notifications/prompts/list_changed", json!({ "_meta": meta })),
            (Change::Resources, "notifications/resources/list_changed", json!({ "_meta": meta })),
            (
                Change::Resource("file:///a".into()),
                "notifications/resources/updated",
                json!({ "uri": "file:///a", "_meta": meta }),
            ),
        ] {
            let said = json(&ticket.changed(&change).expect("words"));
            assert_eq!(said, json!({ "jsonrpc": "2.0", "method": method, "params": params }));
        }
    }

    #[test]
    fn a_subscription_that_the_server_ends_gets_its_result_and_on_lines_a_cancellation() {
        let ticket = listen(&json!("s"), &json!({}), &json!({})).expect("it reads").ticket;
        let said: Vec<Value> = ticket.end().iter().map(json).collect();
        assert_eq!(said[0]["method"], "notifications/cancelled");
        assert_eq!(said[0]["params"]["requestId"], "s");
        let server = json!({ "name": "toolgate", "version": "1" });
        assert_eq!(
            said[1],
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
        let id = Id::Text("s".into());
        let over_http = read(&id, &params, &REVISIONS[0], facts(true), false).expect("it reads");
        assert_eq!(over_http.ticket.end().len(), 1);
    }

    #[test]
    fn what_is_no_list_of_wishes_is_refused() {
        let many: Vec<String> = (0..=NAMED_MAX).map(|n| n.to_string()).collect();
        for wanted in [
            json!(null),
            json!([]),
            json!({ "toolsListChanged": 1 }),
            json!({ "promptsListChanged": null }),
            json!({ "resourceSubscriptions": "file:///a" }),
            json!({ "resourceSubscriptions": ["file:///a", 1] }),
            json!({ "resourceSubscriptions": many }),
            json!({ "taskIds": {} }),
        ] {
            let failure = listen(&json!(1), &wanted, &tasks()).err().expect("it is refused");
            assert_eq!(failure.code, -32602, "{wanted}");
        }
    }

    #[test]
    fn tasks_are_told_only_to_whoever_declares_them() {
        let wanted = json!({ "taskIds": ["t"] });
        let failure = listen(&json!(1), &wanted, &json!({})).err().expect("it is refused");
        assert_eq!(failure.code, -32021);
        assert_eq!(failure.data.as_deref(), Some(&json!({ "requiredCapabilities": tasks() })));
        let listening = listen(&json!(1), &wanted, &tasks()).expect("it reads");
        assert_eq!(listening.interest.jobs, BTreeSet::from(["t".to_owned()]));
    }

    #[test]
    fn a_session_is_told_of_what_the_server_has_without_more_words() {
        let tidings = Tidings::new(&REVISIONS[1], facts(true));
        let said = tidings.changed(&Change::Tools).expect("words");
        let method = "notifications/tools/list_changed";
        assert_eq!(json(&said), json!({ "jsonrpc": "2.0", "method": method, "params": {} }));
        assert_eq!(tidings.changed(&Change::Prompts), None);
        assert_eq!(tidings.begin(&Interest::default()), None);
        assert!(tidings.end().is_empty());
    }

    #[test]
    fn a_task_is_told_as_whoever_asks_for_it_sees_it() {
        let ticket = listen(&json!(1), &json!({}), &json!({})).expect("it reads").ticket;
        let said = json(&ticket.job(&asking(JobState::Running)).expect("words"));
        let time = "2026-01-02T03:04:05.000Z";
        assert_eq!(
            said,
            json!({
                "jsonrpc": "2.0",
                "method": "notifications/tasks",
                "params": {
                    "_meta": { SUBSCRIPTION: 1 },
                    "taskId": JobId::of(7).to_string(),
                    "status": "input_required",
                    "inputRequests": { "where": { "method": "roots/list", "params": {} } },
                    "createdAt": time,
                    "lastUpdatedAt": time,
                    "ttlMs": 60_000,
                    "pollIntervalMs": 500
                }
            })
        );
        let said = json(&ticket.job(&asking(JobState::Canceled)).expect("words"));
        assert_eq!(said["params"]["status"], "cancelled");
        assert_eq!(said["params"].get("inputRequests"), None);
    }
}
