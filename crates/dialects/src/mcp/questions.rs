//! Questions to MCP clients, and their answers. A question is part of a result that ends the
//! request, or it is a request from the server.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use toolgate_contract::{
    ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ClientRoot, ContentBody,
    ElicitationAnswer, JobId, QuestionKind, QuestionSupport, Reply, SamplingAnswer,
    SamplingMessage, SamplingRequest, exact_json,
};

use super::META_CAPABILITIES;
use super::content::McpContentBlock;
use super::encoder::McpEncoder;
use super::message::{McpError, RequestId, notification, success};
use super::revision::{McpRevision, RevisionQuestionSupport, SessionModel};
use super::tasks::related_task_meta;
use crate::json::RpcParams;
use crate::rpc::to_json;
use crate::{ClientQuestionResponse, QuestionChannel};

/// The `_meta` key for the key that identifies a question within its call.
pub const QUESTION_KEY: &str = "io.toolgate/key";
/// The method of a request for input from the user (elicitation).
const ELICIT: &str = "elicitation/create";
/// The method of a request to the client's model (sampling).
const SAMPLE: &str = "sampling/createMessage";
/// The method of a request for the folders that the client works in (roots).
const ROOTS: &str = "roots/list";

/// Returns the kinds of question that a client supports, from its declared `capabilities`.
pub(crate) fn question_support(capabilities: &Value, revision: &McpRevision) -> QuestionSupport {
    let declares = |name| capabilities.get(name).is_some_and(Value::is_object);
    let declares_part = |name: &str, part: &str| {
        let parts = capabilities.get(name);
        parts.and_then(|parts| parts.get(part)).is_some_and(Value::is_object)
    };
    let (form, visit) = match revision.questions {
        RevisionQuestionSupport::Samples => (false, false),
        RevisionQuestionSupport::Forms => (declares("elicitation"), false),
        RevisionQuestionSupport::NamedVisits | RevisionQuestionSupport::Visits => {
            let form = declares_part("elicitation", "form");
            let visit = declares_part("elicitation", "url");
            // A client without modes supports forms. They existed before the modes.
            (form || (declares("elicitation") && !visit), visit)
        }
    };
    let tools = declares_part("sampling", "tools")
        && matches!(
            revision.questions,
            RevisionQuestionSupport::NamedVisits | RevisionQuestionSupport::Visits
        );
    QuestionSupport { form, visit, sample: declares("sampling"), tools, roots: declares("roots") }
}

/// Returns the client capability that questions of `kind` need.
pub(crate) fn required_capability(kind: QuestionKind) -> Value {
    match kind {
        QuestionKind::Form => json!({ "elicitation": { "form": {} } }),
        QuestionKind::Visit => json!({ "elicitation": { "url": {} } }),
        QuestionKind::Sample => json!({ "sampling": {} }),
        QuestionKind::SampleWithTools => json!({ "sampling": { "tools": {} } }),
        QuestionKind::Roots => json!({ "roots": {} }),
    }
}

/// Parses the parts of a stateless request that concern questions: the kinds of question that the
/// client supports, its answers, and the request state that the server sent with the questions.
pub(crate) fn parse_question_mode(
    id: &RequestId,
    params: &RpcParams,
    revision: &McpRevision,
) -> Result<QuestionChannel, McpError> {
    let capabilities = params.get("_meta").and_then(|meta| meta.get(META_CAPABILITIES));
    let support = question_support(capabilities.unwrap_or(&Value::Null), revision);
    let answers = parse_answers(id, params)?.unwrap_or_default();
    let state = match params.get("requestState") {
        None => None,
        Some(Value::String(state)) => Some(state.clone()),
        Some(_) => {
            let why = "`params.requestState` must be the string that came with the questions";
            return Err(McpError::invalid_params(Some(id.clone()), why));
        }
    };
    Ok(QuestionChannel::OnRepeat { can: support, given: answers, state })
}

/// Parses the answers in `inputResponses`. `None` if this member is missing.
///
/// An object that is not a recognizable answer is dropped, so that its question is asked again. An
/// unknown `action` in a repeated request is an error.
pub(crate) fn parse_answers(
    id: &RequestId,
    params: &RpcParams,
) -> Result<Option<ClientAnswers>, McpError> {
    let invalid = |why: String| McpError::invalid_params(Some(id.clone()), why);
    let responses = match params.get("inputResponses") {
        None => return Ok(None),
        Some(Value::Object(responses)) => responses,
        Some(_) => return Err(invalid("`params.inputResponses` must be an object".into())),
    };
    let mut answers = ClientAnswers::new();
    for (key, response) in responses {
        let Value::Object(fields) = response else {
            let why = format!(
                "`params.inputResponses[{key:?}]` must be an object: the answer to the question \
                 with that name"
            );
            return Err(invalid(why));
        };
        // Otherwise the person would see the question again, without a reason.
        if params.contains_key("requestState")
            && let Some(Value::String(action)) = fields.get("action")
            && !["accept", "decline", "cancel"].contains(&action.as_str())
        {
            return Err(invalid(format!(
                "`params.inputResponses[{key:?}].action` is `{action}`; it must be accept, \
                 decline or cancel"
            )));
        }
        if let Some(answer) = guess_answer(fields) {
            answers.insert(key.clone(), answer);
        }
    }
    Ok(Some(answers))
}

/// Creates the result that ends a call with questions to the client.
pub(crate) fn questions_reply(
    encoder: &McpEncoder,
    questions: &ClientQuestions,
    state: &str,
) -> Reply {
    match encoder.revision.era {
        SessionModel::Session => encoder.mismatched_answer_reply(),
        SessionModel::Stateless => {
            let mut result = json!(encoder.stamp(None));
            result["resultType"] = json!("input_required");
            result["inputRequests"] = input_requests(questions, encoder.revision);
            result["requestState"] = json!(state);
            success(&encoder.id, &result)
        }
    }
}

/// Encodes questions to the client as the `inputRequests` object of a result or a task.
pub(crate) fn input_requests(questions: &ClientQuestions, revision: &McpRevision) -> Value {
    let spelled = questions.iter().filter_map(|(key, question)| {
        let (method, params) = question_params(question, revision)?;
        Some((key.clone(), exact_json::object([("method", method.into()), ("params", params)])))
    });
    Value::Object(spelled.collect())
}

/// Encodes a question as a server request with `id`. If a task asks the question, `task` names this
/// task. The metadata of the request contains `key`, for proxies that forward the question. Returns
/// `None` if the revision cannot express the question.
pub(crate) fn encode_question(
    (id, key): (&str, &str),
    question: &ClientQuestion,
    revision: &McpRevision,
    task: Option<JobId>,
) -> Option<Bytes> {
    let (method, mut params) = question_params(question, revision)?;
    params["_meta"] = task.map_or_else(|| json!({}), related_task_meta);
    params["_meta"][QUESTION_KEY] = json!(key);
    let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method });
    request["params"] = params;
    Some(to_json(&request))
}

/// Encodes the cancellation of the server request `id`, which asked a question.
pub(crate) fn encode_withdrawal(id: &str) -> Bytes {
    let reason = "the server no longer needs the answer";
    notification("notifications/cancelled", &json!({ "requestId": id, "reason": reason }))
}

/// Encodes the notification that a person has finished a page visit, if the revision has one.
pub(crate) fn encode_visit_finished(
    id: &str,
    revision: &McpRevision,
    task: Option<JobId>,
) -> Option<Bytes> {
    if revision.questions != RevisionQuestionSupport::NamedVisits {
        return None;
    }
    let mut params = json!({ "elicitationId": id });
    if let Some(task) = task {
        params["_meta"] = related_task_meta(task);
    }
    Some(notification("notifications/elicitation/complete", &params))
}

/// Parses a client's response to `question`.
///
/// # Errors
/// Fails if the response does not answer the question. The error describes the expected form.
pub(crate) fn parse_answer(
    question: &ClientQuestion,
    response: &ClientQuestionResponse,
    _revision: &McpRevision,
) -> Result<ClientAnswer, String> {
    let (answer, requirement) = match response {
        ClientQuestionResponse::Error(why) => {
            return Err(format!("the client did not answer: {why}"));
        }
        ClientQuestionResponse::Result(Value::Object(fields)) => match question.kind() {
            QuestionKind::Form | QuestionKind::Visit => (
                parse_choice(fields).map(ClientAnswer::Choice),
                "`action` must be accept, decline or cancel",
            ),
            QuestionKind::Sample | QuestionKind::SampleWithTools => (
                parse_sampled(fields).map(ClientAnswer::Sampled),
                "the answer must have a `role`, a `content` and a `model`",
            ),
            QuestionKind::Roots => (
                parse_roots(fields).map(ClientAnswer::Roots),
                "each root in `roots` must have a `uri`",
            ),
        },
        ClientQuestionResponse::Result(_) => (None, "it must be an object"),
    };
    answer.ok_or_else(|| format!("the client's answer is invalid: {requirement}"))
}

/// Parses a client's answer for which no question is known, by the members of the answer.
fn guess_answer(fields: &Map<String, Value>) -> Option<ClientAnswer> {
    if fields.contains_key("action") {
        parse_choice(fields).map(ClientAnswer::Choice)
    } else if fields.contains_key("roots") {
        parse_roots(fields).map(ClientAnswer::Roots)
    } else {
        parse_sampled(fields).map(ClientAnswer::Sampled)
    }
}

/// Parses a person's answer to an elicitation from `fields`, the members of a client's answer.
fn parse_choice(fields: &Map<String, Value>) -> Option<ElicitationAnswer> {
    match (fields.get("action")?.as_str()?, fields.get("content")) {
        ("accept", Some(Value::Object(content))) => {
            Some(ElicitationAnswer::Accepted(content.clone()))
        }
        ("accept", None | Some(Value::Null)) => Some(ElicitationAnswer::Accepted(Map::new())),
        ("decline", _) => Some(ElicitationAnswer::Declined),
        ("cancel", _) => Some(ElicitationAnswer::Canceled),
        _ => None,
    }
}

/// Parses the answer of the client's model.
fn parse_sampled(fields: &Map<String, Value>) -> Option<SamplingAnswer> {
    fields.get("role")?.as_str()?;
    let model = fields.get("model")?.as_str()?.to_owned();
    let blocks = match fields.get("content")? {
        Value::Array(blocks) => blocks.as_slice(),
        block => std::slice::from_ref(block),
    };
    let mut texts = Vec::with_capacity(blocks.len());
    for block in blocks {
        // Images, audio and tool calls stay in the raw answer.
        if block.get("type")?.as_str()? == "text" {
            texts.push(block.get("text")?.as_str()?);
        }
    }
    Some(SamplingAnswer { model, text: texts.join("\n"), raw: Value::Object(fields.clone()) })
}

/// Parses the folders in which the client works. URIs other than `file:` are dropped.
fn parse_roots(fields: &Map<String, Value>) -> Option<Vec<ClientRoot>> {
    let mut roots = Vec::new();
    for root in fields.get("roots")?.as_array()? {
        let uri = root.get("uri")?.as_str()?;
        let name = root.get("name").and_then(Value::as_str).map(str::to_owned);
        if uri.starts_with("file:") {
            roots.push(ClientRoot { uri: uri.to_owned(), name });
        }
    }
    Some(roots)
}

/// Returns the method and parameters of the server request that asks a question. `None` if the
/// revision cannot express the question.
fn question_params(
    question: &ClientQuestion,
    revision: &McpRevision,
) -> Option<(&'static str, Value)> {
    let params = match (question, revision.questions) {
        (
            ClientQuestion::Form { .. } | ClientQuestion::Visit { .. },
            RevisionQuestionSupport::Samples,
        )
        | (ClientQuestion::Visit { .. }, RevisionQuestionSupport::Forms) => return None,
        (ClientQuestion::Form { message, schema }, RevisionQuestionSupport::Forms) => {
            let schema = legacy_form_schema(schema)?.into_owned();
            exact_json::object([("message", json!(message)), ("requestedSchema", schema)])
        }
        (
            ClientQuestion::Form { message, schema },
            RevisionQuestionSupport::NamedVisits | RevisionQuestionSupport::Visits,
        ) => exact_json::object([
            ("mode", json!("form")),
            ("message", json!(message)),
            ("requestedSchema", schema.clone()),
        ]),
        (ClientQuestion::Visit { message, url, id }, RevisionQuestionSupport::NamedVisits) => {
            json!({ "mode": "url", "message": message, "url": url, "elicitationId": id })
        }
        (ClientQuestion::Visit { message, url, .. }, RevisionQuestionSupport::Visits) => {
            json!({ "mode": "url", "message": message, "url": url })
        }
        (
            ClientQuestion::Sample(sampling),
            RevisionQuestionSupport::Samples | RevisionQuestionSupport::Forms,
        ) if sampling.has_tools() => {
            return None;
        }
        (ClientQuestion::Sample(sampling), _) => sampling_params(sampling, revision),
        (ClientQuestion::Roots, _) => json!({}),
    };
    let method = match question.kind() {
        QuestionKind::Form | QuestionKind::Visit => ELICIT,
        QuestionKind::Sample | QuestionKind::SampleWithTools => SAMPLE,
        QuestionKind::Roots => ROOTS,
    };
    Some((method, params))
}

/// Converts the JSON Schema of a form to revision 2025-06-18, where a choice has `enum` and
/// `enumNames`. Returns `None` if the revision cannot express the form, for example multiple
/// choices.
fn legacy_form_schema(schema: &Value) -> Option<Cow<'_, Value>> {
    let fields = schema.get("properties").and_then(Value::as_object);
    let fields: Vec<&Value> = fields.into_iter().flat_map(Map::values).collect();
    if fields.iter().any(|field| field["type"] == "array") {
        return None;
    }
    if fields.iter().all(|field| field.get("oneOf").is_none()) {
        return Some(Cow::Borrowed(schema));
    }
    let mut schema = schema.clone();
    for field in schema["properties"].as_object_mut()?.values_mut() {
        let Some(Value::Array(choices)) = field.as_object_mut().and_then(|f| f.remove("oneOf"))
        else {
            continue;
        };
        let value = |choice: &Value| choice.get("const").cloned();
        let name = |choice: &Value| choice.get("title").or(choice.get("const")).cloned();
        field["enum"] = choices.iter().map(value).collect::<Option<_>>()?;
        field["enumNames"] = choices.iter().map(name).collect::<Option<_>>()?;
    }
    Some(Cow::Owned(schema))
}

fn sampling_params(sampling: &SamplingRequest, revision: &McpRevision) -> Value {
    let SamplingRequest { messages, system, max_tokens, more } = sampling;
    let mut params = more.clone();
    // Messages of several blocks and tool results exist since 2025-11-25.
    let takes_all = matches!(
        revision.questions,
        RevisionQuestionSupport::NamedVisits | RevisionQuestionSupport::Visits
    );
    if !takes_all || !more.contains_key("messages") {
        let messages = messages.iter().map(|said| encode_message(said, revision)).collect();
        params.insert("messages".into(), messages);
    }
    params.insert("maxTokens".into(), json!(max_tokens));
    if let Some(system) = system {
        params.insert("systemPrompt".into(), json!(system));
    }
    Value::Object(params)
}

/// Encodes a sampling message with one content block, which every revision accepts.
fn encode_message(said: &SamplingMessage, revision: &McpRevision) -> Value {
    let content = &said.content;
    let block = match content.shown {
        ContentBody::Text(_) | ContentBody::Image(_) | ContentBody::Audio(_) => {
            McpContentBlock::from_content(content, revision)
        }
        // Sampling messages cannot contain resources.
        ContentBody::Link(_) | ContentBody::Resource(_) => McpContentBlock::text(content.as_text()),
    };
    json!({ "role": said.role, "content": block })
}

#[cfg(test)]
mod tests;
