//! Actions of a person at the console. Each action passes the policy check and leaves an audit
//! record.

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::html;
use serde_json::{Value, json};
use toolgate_contract::{
    CallError, Caller, ClientAnswer, ClientQuestion, ElicitationAnswer, EndedJobCancelReply,
    HostAnswer, HostRequest, Reply, ResultText, ToolError, ToolId, ToolOutput, ToolRunStatus,
};
use toolgate_host::IncomingRequest;

use super::console_sessions::ConsoleSession;
use super::forms::FormFields;
use super::pages::{self, decode};
use super::{WebConsole, layout, problem};
use crate::sessions::waiting_questions::InteractiveCallDescription;

/// Dialect name that audit records contain for actions at the console.
const DIALECT: &str = "console";

/// Performs the action of `form`, which a person submitted at the console path `path`, and returns
/// the reply.
pub(crate) async fn answer(
    console: &WebConsole,
    session: &Arc<ConsoleSession>,
    path: &str,
    form: &FormFields,
) -> Reply {
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["tools", tool, "call"] => call_tool(console, session, &decode(tool), form).await,
        ["jobs", id, "cancel"] => {
            let id = decode(id);
            let back = format!("/console/jobs/{id}");
            let done = change_job(console, session, "console.cancel_job", &id, |id| {
                HostRequest::CancelJob { id, if_ended: EndedJobCancelReply::Refusal }
            });
            after(session, done.await, &back)
        }
        ["jobs", id, "answer"] => answer_question(console, session, &decode(id), form).await,
        ["questions", number, "answer"] => answer_call(console, session, number, form).await,
        ["upstreams", name, "approve"] => {
            let name = decode(name);
            let seen = form.get("changes").unwrap_or_default().to_owned();
            let review = (console.sources.review_pins)(name.clone(), Some(seen));
            let work = async move { review.await.map_err(|why| failed(&why)) };
            let done = act(console, session, "console.approve_pins", json!({ "id": name }), work);
            let done = done.await;
            console.pin_changes.forget();
            after(session, done, "/console/upstreams")
        }
        ["upstreams", name, "restart"] => restart_upstream(console, session, &decode(name)).await,
        _ => problem(404, "There is no such action."),
    }
}

/// Reconnects the upstream `name`, and redirects to the page that shows the outcome.
async fn restart_upstream(console: &WebConsole, session: &ConsoleSession, name: &str) -> Reply {
    let upstreams = console.sources.upstreams.clone();
    let reconnections = console.reconnections.clone();
    let wanted = name.to_owned();
    let work = async move {
        let Some(attempt) = upstreams.reconnect(&wanted) else {
            return Err(ToolError::not_found(format!("no upstream is named `{wanted}`")));
        };
        reconnections.run(wanted, attempt).await;
        Ok("reconnected".to_owned())
    };
    let input = json!({ "id": name });
    match act(console, session, "console.restart_upstream", input, work).await {
        Ok(()) => layout::redirect(&pages::reconnection_path(name)),
        refused @ Err(_) => after(session, refused, "/console/upstreams"),
    }
}

fn failed(why: &anyhow::Error) -> ToolError {
    ToolError::failed(format!("{why:#}"))
}

/// Checks the console action `id` with `input` against the policy, runs `work` if the policy allows
/// the action, and records the action in the audit log. Fails if the policy or `work` refuses.
async fn act(
    console: &WebConsole,
    session: &ConsoleSession,
    id: &str,
    input: Value,
    work: impl Future<Output = Result<String, ToolError>> + Send,
) -> Result<(), CallError> {
    let id = ToolId::new(id).expect("an id");
    let work = Box::pin(async move {
        let text = ResultText::from_body(work.await?);
        Ok::<_, ToolError>(ToolOutput::new(Value::Null, text, ToolRunStatus::Done))
    });
    let caller = session.caller.clone();
    console.sources.host.run_operator_action(caller, id, input, work).await.map(drop)
}

/// Redirects to the page `back` after a console action, or shows why the action failed.
fn after(session: &ConsoleSession, done: Result<(), CallError>, back: &str) -> Reply {
    match done {
        Ok(()) => layout::redirect(back),
        Err(why) => {
            let content = html! {
                p .notice { (why) }
                p { a href=(back) { "Back" } }
            };
            pages::page(session, "The action failed", back, content, 409)
        }
    }
}

/// Sends the request that `make` creates for the job `id` on behalf of the job's owner. Checks and
/// records the request as the console action `action`. Fails if there is no such job.
async fn change_job(
    console: &WebConsole,
    session: &ConsoleSession,
    action: &str,
    id: &str,
    make: impl FnOnce(String) -> HostRequest + Send,
) -> Result<(), CallError> {
    let host = console.sources.host.clone();
    let job = host.jobs()?.get(None, id).await?;
    let owner = job.caller.clone();
    let request = make(id.to_owned());
    let work = async move {
        let incoming = IncomingRequest::without_client(request, owner, DIALECT);
        match host.answer(incoming).await {
            Ok(_) => Ok("done".to_owned()),
            Err(why) => Err(ToolError::failed(why.to_string())),
        }
    };
    act(console, session, action, json!({ "job": id }), work).await
}

async fn answer_question(
    console: &WebConsole,
    session: &ConsoleSession,
    id: &str,
    form: &FormFields,
) -> Reply {
    let back = format!("/console/jobs/{id}");
    let job = match console.sources.host.jobs() {
        Ok(jobs) => jobs.get(None, id).await,
        Err(why) => Err(why),
    };
    let (Ok(job), Some(key)) = (job, form.get("question")) else {
        return problem(404, "There is no such question.");
    };
    let Some(question) = job.questions.get(key) else {
        return problem(409, "The question was answered already.");
    };
    let choice = match (form.get("choice"), question) {
        (Some("accept"), ClientQuestion::Form { schema, .. }) => match form.arguments(schema) {
            Ok(values) => ElicitationAnswer::Accepted(values),
            Err(why) => return problem(400, &why),
        },
        (Some("accept"), ClientQuestion::Visit { .. }) => {
            ElicitationAnswer::Accepted(serde_json::Map::new())
        }
        (Some("decline"), ClientQuestion::Form { .. } | ClientQuestion::Visit { .. }) => {
            ElicitationAnswer::Declined
        }
        _ => return problem(400, "A person cannot answer this question."),
    };
    let given = BTreeMap::from([(key.to_owned(), ClientAnswer::Choice(choice))]);
    let done = change_job(console, session, "console.answer_job", id, |id| {
        HostRequest::AnswerJob { id, given }
    });
    after(session, done.await, &back)
}

/// Answers a confirmation with the choice in `form`, in place of the connected client that was
/// asked. `number` is the number of the confirmation.
async fn answer_call(
    console: &WebConsole,
    session: &Arc<ConsoleSession>,
    number: &str,
    form: &FormFields,
) -> Reply {
    let waiting = number.parse::<u64>().ok().and_then(|number| console.questions.find(number));
    let Some(waiting) = waiting else {
        return problem(409, "The question no longer waits: it was answered, or the call ended.");
    };
    if !session.may_answer(&waiting) {
        return problem(403, "This question cannot be answered at this console.");
    }
    let (word, choice) = match form.get("choice") {
        Some("allow") => ("allow", ElicitationAnswer::Accepted(serde_json::Map::new())),
        Some("refuse") => ("refuse", ElicitationAnswer::Declined),
        _ => return problem(400, "Choose to allow or to refuse the call."),
    };
    let InteractiveCallDescription { caller, subject } = &waiting.call;
    let input = json!({ "id": subject, "caller": &**caller, "choice": word });
    let number = waiting.number;
    let questions = console.questions.clone();
    let work = async move {
        match questions.answer(number, choice) {
            true => Ok("answered".to_owned()),
            false => Err(ToolError::failed("the question was answered already")),
        }
    };
    let done = act(console, session, "console.answer_call", input, work);
    after(session, done.await, "/")
}

/// Calls `tool` as the signed-in person with the arguments in `form`, and returns a page with the
/// result.
async fn call_tool(
    console: &WebConsole,
    session: &ConsoleSession,
    tool: &str,
    form: &FormFields,
) -> Reply {
    let caller: Caller = session.caller.clone();
    let shown = console.sources.host.tools(&caller).tools;
    let Some(found) = shown.iter().find(|one| one.spec().id.as_str() == tool) else {
        return problem(404, "There is no such tool, or you may not use it.");
    };
    let schema = Value::clone(&found.spec().input_schema);
    let input = match form.arguments(&schema) {
        Ok(input) => Value::Object(input),
        Err(why) => return problem(400, &why),
    };
    let request = match form.get("as_job") {
        Some(_) => {
            let terms = toolgate_contract::JobOptions::default();
            HostRequest::StartJob { tool: tool.to_owned(), input, terms }
        }
        None => HostRequest::CallTool { tool: tool.to_owned(), input },
    };
    let incoming = IncomingRequest::without_client(request, caller, DIALECT);
    let (status, content) = match console.sources.host.answer(incoming).await {
        Ok(HostAnswer::Job(job)) => return layout::redirect(&format!("/console/jobs/{}", job.id)),
        Ok(HostAnswer::Output(output)) => (200, pages::tools::result(&output)),
        Ok(_) => (500, html! { p .notice { "The tool returned no result." } }),
        Err(why) => (
            200,
            html! {
                p .notice { span .state .bad { (why.reason()) } " " (why) }
            },
        ),
    };
    let content = html! {
        (content)
        p { a href=(format!("/console/tools/{tool}")) { "Back to the tool" } }
    };
    pages::page(session, &format!("Result of {tool}"), "/console/tools", content, status)
}
