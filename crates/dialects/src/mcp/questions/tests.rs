//! Tests of the encoding of questions to MCP clients, and of the parsing of their answers.

use proptest::prelude::*;
use toolgate_contract::{ContentBlock, MessageRole, ResourceSpec};

use super::super::encoder::McpRequestKind;
use super::super::revision::REVISIONS;
use super::super::tasks::tests::{EXTENDED, said, ticket};
use super::*;

fn revision(name: &str) -> &'static McpRevision {
    REVISIONS.iter().find(|row| row.name == name).expect("a revision")
}

fn id() -> RequestId {
    RequestId::Text("a".into())
}

fn form() -> ClientQuestion {
    let size = json!({ "type": "string", "oneOf": [{ "const": "s", "title": "Small" }] });
    let schema = json!({ "type": "object", "properties": { "size": size } });
    ClientQuestion::Form { message: "Which?".into(), schema }
}

fn visit() -> ClientQuestion {
    ClientQuestion::Visit { message: "Pay.".into(), url: "https://a.test/".into(), id: "v1".into() }
}

fn read(params: Value) -> Result<(QuestionSupport, ClientAnswers, Option<String>), McpError> {
    let Value::Object(params) = params else { panic!("{params} is no object") };
    match parse_question_mode(&id(), &params.into(), revision("2026-07-28"))? {
        QuestionChannel::OnRepeat { can, given, state } => Ok((can, given, state)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_is_asked_only_what_it_declares() {
    let form = QuestionSupport { form: true, ..QuestionSupport::default() };
    let visit = QuestionSupport { visit: true, ..QuestionSupport::default() };
    let both = QuestionSupport { form: true, visit: true, ..QuestionSupport::default() };
    let rest = QuestionSupport { sample: true, roots: true, ..QuestionSupport::default() };
    for (name, capabilities, can) in [
        ("2026-07-28", json!({}), QuestionSupport::default()),
        ("2026-07-28", json!({ "elicitation": {} }), form),
        ("2026-07-28", json!({ "elicitation": { "form": {} } }), form),
        ("2026-07-28", json!({ "elicitation": { "url": {} } }), visit),
        ("2025-11-25", json!({ "elicitation": { "form": {}, "url": {} } }), both),
        ("2025-06-18", json!({ "elicitation": { "url": {} } }), form),
        ("2025-03-26", json!({ "elicitation": {} }), QuestionSupport::default()),
        ("2024-11-05", json!({ "sampling": {}, "roots": { "listChanged": true } }), rest),
        ("2026-07-28", json!({ "sampling": true, "roots": null }), QuestionSupport::default()),
        ("2026-07-28", json!(null), QuestionSupport::default()),
    ] {
        assert_eq!(question_support(&capabilities, revision(name)), can, "{name} {capabilities}");
    }
}

#[test]
fn the_kind_of_an_answer_is_guessed_from_its_members() {
    let (can, given, state) = read(json!({
        "_meta": { META_CAPABILITIES: { "roots": {} } },
        "requestState": "sealed",
        "inputResponses": {
            "yes": { "action": "accept", "content": { "name": "Ada" } },
            "no": { "action": "decline" },
            "hm": { "action": "cancel", "content": null },
            "model": {
                "role": "assistant", "model": "m", "stopReason": "endTurn",
                "content": [{ "type": "text", "text": "a" }, { "type": "image" }]
            },
            "roots": { "roots": [{ "uri": "file:///a", "name": "A" }, { "uri": "vfs://b" }] }
        }
    }))
    .expect("it reads");
    assert_eq!(can, QuestionSupport { roots: true, ..QuestionSupport::default() });
    assert_eq!(state.as_deref(), Some("sealed"));
    let accepted = ElicitationAnswer::Accepted(Map::from_iter([("name".to_owned(), json!("Ada"))]));
    assert_eq!(given["yes"], ClientAnswer::Choice(accepted));
    assert_eq!(given["no"], ClientAnswer::Choice(ElicitationAnswer::Declined));
    assert_eq!(given["hm"], ClientAnswer::Choice(ElicitationAnswer::Canceled));
    assert!(matches!(&given["model"], ClientAnswer::Sampled(said) if said.text == "a"));
    let root = ClientRoot { uri: "file:///a".into(), name: Some("A".into()) };
    assert_eq!(given["roots"], ClientAnswer::Roots(vec![root]));
}

#[test]
fn an_object_that_answers_nothing_is_ignored() {
    for response in [
        json!({}),
        json!({ "action": "perhaps" }),
        json!({ "action": "accept", "content": [] }),
        json!({ "role": "assistant", "content": { "type": "text" }, "model": "m" }),
        json!({ "role": "assistant", "content": { "type": "text", "text": "a" } }),
        json!({ "roots": [{}] }),
    ] {
        let (_, given, _) = read(json!({ "inputResponses": { "k": response } })).expect("read");
        assert_eq!(given, ClientAnswers::new(), "{response}");
    }
}

#[test]
fn malformed_answers_are_refused() {
    for params in [
        json!({ "inputResponses": null }),
        json!({ "inputResponses": [] }),
        json!({ "inputResponses": { "user_name": 12345 } }),
        json!({ "inputResponses": { "k": { "action": "perhaps" } }, "requestState": "s" }),
        json!({ "requestState": null }),
        json!({ "requestState": { "a": 1 } }),
    ] {
        let failure = read(params.clone()).expect_err("it is refused");
        assert_eq!(failure.code, -32602, "{params}");
        assert_eq!(failure.id, Some(id()));
    }
}

#[test]
fn a_question_is_encoded_for_each_revision() {
    let url = "https://a.test/";
    let size = json!({ "type": "string", "enum": ["s"], "enumNames": ["Small"] });
    let ClientQuestion::Form { schema, .. } = form() else { panic!("a form") };
    for (name, question, params) in [
        ("2025-03-26", form(), None),
        (
            "2025-06-18",
            form(),
            Some(json!({
                "message": "Which?",
                "requestedSchema": { "type": "object", "properties": { "size": size } }
            })),
        ),
        (
            "2025-11-25",
            form(),
            Some(json!({ "mode": "form", "message": "Which?", "requestedSchema": schema })),
        ),
        ("2025-06-18", visit(), None),
        (
            "2025-11-25",
            visit(),
            Some(json!({
                "mode": "url", "message": "Pay.", "url": url, "elicitationId": "v1"
            })),
        ),
        ("2026-07-28", visit(), Some(json!({ "mode": "url", "message": "Pay.", "url": url }))),
        ("2024-11-05", ClientQuestion::Roots, Some(json!({}))),
    ] {
        let spelled = question_params(&question, revision(name)).map(|(_, params)| params);
        assert_eq!(spelled, params, "{name} {question:?}");
    }
}

#[test]
fn a_multiple_choice_form_is_not_encoded_for_older_revisions() {
    let schema = json!({ "properties": { "all": { "type": "array" } } });
    let question = ClientQuestion::Form { message: "Which?".into(), schema };
    assert_eq!(encode_question(("1", "k"), &question, revision("2025-06-18"), None), None);
    assert!(encode_question(("1", "k"), &question, revision("2025-11-25"), None).is_some());
}

#[test]
fn extra_members_of_a_sampling_request_are_sent_but_override_nothing() {
    let mut sampling = SamplingRequest::from_text("Hello", 100);
    sampling.system = Some("Be brief.".into());
    sampling.more = Map::from_iter([
        ("temperature".to_owned(), json!(0.5)),
        ("maxTokens".to_owned(), json!(9)),
    ]);
    let link = ContentBlock::link(ResourceSpec::new("file:///a", "a"));
    sampling.messages.push(SamplingMessage { role: MessageRole::Assistant, content: link });
    let sound = ContentBlock::audio("audio/wav", vec![1, 2, 3]);
    sampling.messages.push(SamplingMessage { role: MessageRole::User, content: sound });
    let bytes = encode_question(
        ("q1", "k"),
        &ClientQuestion::Sample(Box::new(sampling)),
        revision("2024-11-05"),
        None,
    );
    let said: Value = serde_json::from_slice(&bytes.expect("words")).expect("JSON");
    let text = |role, text| json!({ "role": role, "content": { "type": "text", "text": text } });
    assert_eq!(
        said,
        json!({
            "jsonrpc": "2.0",
            "id": "q1",
            "method": "sampling/createMessage",
            "params": {
                "_meta": { QUESTION_KEY: "k" },
                "messages": [
                    text("user", "Hello"),
                    text("assistant", "file:///a"),
                    text("user", "(audio/wav, 3 bytes)")
                ],
                "systemPrompt": "Be brief.",
                "temperature": 0.5,
                "maxTokens": 100
            }
        })
    );
}

#[test]
fn sampling_tools_are_encoded_only_for_revisions_that_have_them() {
    let mut sampling = SamplingRequest::from_text("Hello", 100);
    sampling.more.insert("tools".into(), json!([]));
    let question = ClientQuestion::Sample(Box::new(sampling));
    assert_eq!(encode_question(("1", "k"), &question, revision("2025-06-18"), None), None);
    assert!(encode_question(("1", "k"), &question, revision("2025-11-25"), None).is_some());
}

#[test]
fn a_response_is_parsed_by_its_question() {
    let newest = revision("2025-11-25");
    let accept = ClientQuestionResponse::Result(json!({ "action": "accept" }));
    let accepted = ClientAnswer::Choice(ElicitationAnswer::Accepted(Map::new()));
    assert_eq!(parse_answer(&visit(), &accept, newest), Ok(accepted));
    let why = parse_answer(&ClientQuestion::Roots, &accept, newest).expect_err("no folders");
    assert!(why.contains("`roots`"), "{why}");
    let error = ClientQuestionResponse::Error("not now".into());
    let why = parse_answer(&form(), &error, newest).expect_err("no answer");
    assert!(why.contains("not now"), "{why}");
}

#[test]
fn a_result_with_questions_is_marked_and_carries_the_state() {
    let ticket = ticket(EXTENDED, McpRequestKind::Call);
    let questions = ClientQuestions::from([("roots".to_owned(), ClientQuestion::Roots)]);
    let said = said(questions_reply(&ticket, &questions, "sealed"));
    let server = json!({ "name": "toolgate", "version": "1" });
    assert_eq!(
        said["result"],
        json!({
            "resultType": "input_required",
            "inputRequests": { "roots": { "method": "roots/list", "params": {} } },
            "requestState": "sealed",
            "_meta": { "io.modelcontextprotocol/serverInfo": server }
        })
    );
}

/// Generates JSON from the member names and values of answers, in valid and invalid combinations.
fn values() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec!["accept", "cancel", "text", "file:///a", "", "x"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "inputResponses",
        "requestState",
        "_meta",
        META_CAPABILITIES,
        "elicitation",
        "form",
        "action",
        "content",
        "role",
        "model",
        "type",
        "text",
        "roots",
        "uri",
        "name",
        "k",
    ]);
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|fields| {
                fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }),
        ]
    })
}

fn read_all(value: &Value) {
    for row in &REVISIONS {
        for question in [
            form(),
            visit(),
            ClientQuestion::Roots,
            ClientQuestion::Sample(Box::new(SamplingRequest::from_text("", 1))),
        ] {
            let _ = parse_answer(&question, &ClientQuestionResponse::Result(value.clone()), row);
        }
        let _ = question_support(value, row);
        if let Value::Object(params) = value {
            let _ = parse_question_mode(&id(), &params.clone().into(), row);
        }
        let _ = question_params(
            &ClientQuestion::Form { message: String::new(), schema: value.clone() },
            row,
        );
    }
}

proptest! {
    #[test]
    fn parsing_json_never_panics(value in values()) {
        read_all(&value);
        read_all(&json!({ "inputResponses": { "k": &value }, "properties": { "k": &value } }));
    }

    #[test]
    fn parsing_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(value) = crate::json::parse(&bytes) {
            read_all(&value);
        }
    }
}
