//! Requests from a server to its client: questions, and the answers to them.

use serde_json::{Map, Value, json};
use toolgate_contract::{
    ClientAnswer, ClientQuestion, ElicitationAnswer, MessageRole, SamplingMessage, SamplingRequest,
    exact_json,
};

use super::results;

/// Parses a request of an upstream server into a question to the client. If a page visit has no id,
/// `key` becomes its id.
///
/// # Errors
/// Fails if the method is unknown or the parameters are malformed.
pub fn parse_question(method: &str, params: &Value, key: &str) -> Result<ClientQuestion, String> {
    let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
    match method {
        "elicitation/create" => {
            let message = text("message").ok_or("`message` is missing")?;
            match params.get("mode").and_then(Value::as_str) {
                Some("url") => Ok(ClientQuestion::Visit {
                    message,
                    url: text("url").ok_or("`url` is missing").and_then(web_page)?,
                    id: text("elicitationId").unwrap_or_else(|| key.to_owned()),
                }),
                Some("form") | None => {
                    let schema = params.get("requestedSchema").cloned();
                    let schema = schema.ok_or("`requestedSchema` is missing")?;
                    Ok(ClientQuestion::Form { message, schema })
                }
                Some(other) => Err(format!("unknown mode `{other}`")),
            }
        }
        "sampling/createMessage" => {
            parse_sampling(params).map(|it| ClientQuestion::Sample(Box::new(it)))
        }
        "roots/list" => Ok(ClientQuestion::Roots),
        other => Err(format!("clients cannot answer requests of the kind `{other}`")),
    }
}

/// Returns `url` if a person may be asked to open it: an `http` or `https` URL in printable ASCII.
/// Otherwise, returns the reason. Other schemes, such as `javascript:` and `file:`, act on the
/// person's own machine.
fn web_page(url: String) -> Result<String, &'static str> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    if !matches!(scheme.as_str(), "https" | "http") {
        return Err("`url` is refused, because it does not begin with `https://` or `http://`");
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`url` is refused, because it contains a character that must be escaped in a \
                    URL");
    }
    Ok(url)
}

fn parse_sampling(params: &Value) -> Result<SamplingRequest, String> {
    let mut more = params.as_object().cloned().unwrap_or_default();
    let messages = match more.remove("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) | None => return Err("`messages` is not a list".to_owned()),
    };
    let max_tokens = more.remove("maxTokens").and_then(|most| most.as_u64());
    let system = match more.remove("systemPrompt") {
        Some(Value::String(system)) => Some(system),
        Some(_) | None => None,
    };
    more.remove("_meta");
    let mut sampling_messages = Vec::with_capacity(messages.len());
    for message in &messages {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => MessageRole::Assistant,
            Some("user") => MessageRole::User,
            Some(_) | None => return Err("a message has no `role`".to_owned()),
        };
        let content = message.get("content").ok_or("a message has no `content`")?;
        let blocks = match content {
            Value::Array(blocks) => blocks.as_slice(),
            block => std::slice::from_ref(block),
        };
        sampling_messages.extend(
            blocks
                .iter()
                .map(|block| SamplingMessage { role, content: results::parse_content(block) }),
        );
    }
    let is_plain = |message: &Value| {
        let tool_types = ["tool_use", "tool_result"].map(Value::from);
        let block = &message["content"];
        !block.is_array() && !tool_types.contains(&block["type"])
    };
    if !messages.iter().all(is_plain) {
        more.insert("messages".into(), Value::Array(messages));
    }
    let max_tokens = max_tokens.ok_or("`maxTokens` is not a number")?;
    Ok(SamplingRequest { messages: sampling_messages, system, max_tokens, more })
}

/// Converts a client's answer to the result of the upstream server's request.
pub fn encode_answer(answer: &ClientAnswer) -> Value {
    match answer {
        ClientAnswer::Choice(ElicitationAnswer::Accepted(content)) => {
            let content = Value::Object(content.clone());
            exact_json::object([("action", json!("accept")), ("content", content)])
        }
        ClientAnswer::Choice(ElicitationAnswer::Declined) => json!({ "action": "decline" }),
        ClientAnswer::Choice(ElicitationAnswer::Canceled) => json!({ "action": "cancel" }),
        ClientAnswer::Sampled(sampled) => sampled.raw.clone(),
        ClientAnswer::Roots(roots) => {
            let roots = roots.iter().map(|root| {
                let mut entry = Map::from_iter([("uri".to_owned(), json!(root.uri))]);
                if let Some(name) = &root.name {
                    entry.insert("name".into(), json!(name));
                }
                Value::Object(entry)
            });
            json!({ "roots": roots.collect::<Vec<_>>() })
        }
    }
}

#[cfg(test)]
mod tests {
    use toolgate_contract::{ContentBody, QuestionKind};

    use super::*;

    #[test]
    fn each_kind_of_question_is_parsed() {
        let form = json!({ "message": "who?", "requestedSchema": { "type": "object" } });
        let read = parse_question("elicitation/create", &form, "k").expect("a form");
        assert!(matches!(read, ClientQuestion::Form { message, .. } if message == "who?"));
        let visit = json!({ "mode": "url", "message": "go", "url": "https://a.example" });
        let read = parse_question("elicitation/create", &visit, "k").expect("a visit");
        assert!(matches!(read, ClientQuestion::Visit { id, .. } if id == "k"));
        for url in [
            "javascript:alert(1)",
            "JavaScript://a.example/%0aalert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "vscode://a/b",
            "//a.example",
            " https://a.example",
            "https://a.example/\u{202e}gpj",
            "https://a.example/a b",
        ] {
            let visit = json!({ "mode": "url", "message": "go", "url": url });
            let why = parse_question("elicitation/create", &visit, "k").expect_err(url);
            assert!(why.starts_with("`url` is refused"), "{url}: {why}");
        }
        for url in ["HTTPS://a.example", "http://127.0.0.1:7/x?y=%20#z"] {
            let visit = json!({ "mode": "url", "message": "go", "url": url });
            parse_question("elicitation/create", &visit, "k").expect(url);
        }
        assert_eq!(parse_question("roots/list", &Value::Null, "k"), Ok(ClientQuestion::Roots));
        assert!(parse_question("ping", &Value::Null, "k").is_err());
    }

    #[test]
    fn tools_of_a_sampling_request_are_kept_unchanged() {
        let called = json!({ "role": "assistant", "content": [
            { "type": "tool_use", "id": "1", "name": "a", "input": {} },
            { "type": "tool_use", "id": "2", "name": "b", "input": {} },
        ] });
        let params = json!({ "messages": [called], "maxTokens": 7, "tools": [] });
        let read = parse_question("sampling/createMessage", &params, "k").expect("a question");
        assert_eq!(read.kind(), QuestionKind::SampleWithTools);
        let ClientQuestion::Sample(sampling) = read else { panic!("it is a question") };
        assert_eq!(sampling.more["messages"], json!([called]));
    }

    #[test]
    fn a_sampling_request_keeps_its_other_members() {
        let params = json!({
            "messages": [{ "role": "user", "content": { "type": "text", "text": "hi" } }],
            "maxTokens": 7, "systemPrompt": "be brief", "temperature": 0.5,
        });
        let Ok(ClientQuestion::Sample(sampling)) =
            parse_question("sampling/createMessage", &params, "k")
        else {
            panic!("it is a question");
        };
        assert_eq!(sampling.messages[0].content.shown, ContentBody::Text("hi".into()));
        assert_eq!((sampling.max_tokens, sampling.system.as_deref()), (7, Some("be brief")));
        assert_eq!(sampling.more["temperature"], 0.5);
    }

    #[test]
    fn an_answer_is_encoded_for_its_question() {
        let yes = ClientAnswer::Choice(ElicitationAnswer::Accepted(Map::from_iter([(
            "n".into(),
            json!(1),
        )])));
        assert_eq!(encode_answer(&yes), json!({ "action": "accept", "content": { "n": 1 } }));
        assert_eq!(
            encode_answer(&ClientAnswer::Choice(ElicitationAnswer::Declined)),
            json!({ "action": "decline" })
        );
    }
}
