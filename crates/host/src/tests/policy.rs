//! Tests of policy rules that hide tools, and of decisions in audit records.

use super::*;
use crate::job_tools;
use crate::policy::PolicyEffect;

fn rule(name: &str, effect: PolicyEffect, tools: &str, when: Option<&str>) -> PolicyRule {
    PolicyRule {
        name: name.to_owned(),
        effect,
        callers: vec!["ada".to_owned()],
        roles: Vec::new(),
        tools: vec![tools.to_owned()],
        effects: Vec::new(),
        when: when.map(str::to_owned),
        message: None,
    }
}

fn test_host(rules: Vec<PolicyRule>) -> TestHost {
    let mut parts = TestHostParts::new();
    parts.rules = rules;
    parts.tools.extend(job_tools(&parts.handle));
    parts.build()
}

fn prints() -> Value {
    json!({ "text": "x", "times": 1 })
}

#[tokio::test]
async fn a_tool_hidden_from_a_caller_is_unknown_to_it_in_every_request_and_not_to_others() {
    let test_host = test_host(vec![rule("r", PolicyEffect::Deny, "t.prints", None)]);
    let listed = test_host.host.tools(&ada()).tools;
    assert!(listed.iter().all(|tool| tool.spec().id.as_str() != "t.prints"));
    for name in ["t.prints", "t_prints", "t/prints"] {
        let called = test_host.ask(call(name, prints())).await;
        assert!(matches!(called, Err(CallError::UnknownTool { nearest: None, .. })), "{name}");
        let tool = name.to_owned();
        let terms = JobOptions::default();
        let started = test_host.ask(HostRequest::StartJob { tool, input: prints(), terms }).await;
        assert!(matches!(started, Err(CallError::UnknownTool { .. })), "{name}");
        let input = json!({ "tool": name, "arguments": prints() });
        let Err(why) = test_host.ask(call("jobs.start", input)).await else { panic!("{name}") };
        assert!(why.to_string().contains("no tool is named"), "{why}");
    }
    let bobs =
        IncomingRequest { caller: Caller::with_key("bob"), ..asked(call("t.prints", prints())) };
    assert!(test_host.host.answer(bobs).await.is_ok());
}

#[tokio::test]
async fn a_tool_that_the_settings_deny_is_unavailable_with_the_rule() {
    let mut parts = TestHostParts::new();
    parts.deny = vec!["t.prints".to_owned()];
    let test_host = parts.build();
    let refused = test_host.ask(call("t_prints", prints())).await.map(|_| ()).expect_err("denied");
    let expected = "`t_prints` is not available: the rule `tools.deny: t.prints` denies the tool";
    assert_eq!(refused.to_string(), expected);
    assert_eq!(test_host.records(), ["t_prints unknown_tool"]);
}

#[tokio::test]
async fn a_job_is_decided_by_its_input_like_a_call_and_the_record_names_the_rule() {
    let when = Some("input.text == 'x'");
    let test_host = test_host(vec![rule("no-x", PolicyEffect::Deny, "t.prints", when)]);
    assert!(matches!(
        test_host.ask(call("t.prints", prints())).await,
        Err(CallError::NotAllowed { .. })
    ));
    let tool = "t.prints".to_owned();
    let terms = JobOptions::default();
    let started = test_host.ask(HostRequest::StartJob { tool, input: prints(), terms }).await;
    assert!(matches!(started, Err(CallError::NotAllowed { .. })));
    assert!(test_host.ask(call("t.prints", json!({ "text": "y", "times": 1 }))).await.is_ok());
    test_host.host.flush();
    let log = std::fs::read_to_string(test_host.folder.path().join("audit.jsonl")).expect("a log");
    let rules: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["rule"].clone())
        .collect();
    assert_eq!(rules, ["no-x", "no-x", "default"]);
}

#[tokio::test]
async fn a_confirm_rule_on_the_input_refuses_a_client_that_cannot_ask() {
    let test_host =
        test_host(vec![rule("ask", PolicyEffect::Confirm, "t.prints", Some("input.times > 1"))]);
    assert!(test_host.ask(call("t.prints", prints())).await.is_ok());
    let twice = json!({ "text": "x", "times": 2 });
    let refused =
        test_host.ask(call("t.prints", twice)).await.map(|_| ()).expect_err("nobody is asked");
    assert!(refused.to_string().contains("(`ask`)"), "{refused}");
}
