//! What rules of policy hide is there by no way, and what they decide is on record.

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
        tags: Vec::new(),
        effects: Vec::new(),
        when: when.map(str::to_owned),
        message: None,
    }
}

fn house(rules: Vec<PolicyRule>) -> House {
    let mut plan = Plan::new();
    plan.rules = rules;
    plan.tools.extend(job_tools(&plan.handle));
    plan.build()
}

fn prints() -> Value {
    json!({ "text": "x", "times": 1 })
}

#[tokio::test]
async fn what_a_rule_hides_from_a_caller_is_unknown_to_it_by_every_way_and_not_to_others() {
    let house = house(vec![rule("r", PolicyEffect::Deny, "t.prints", None)]);
    let listed = house.host.tools(&ada()).tools;
    assert!(listed.iter().all(|tool| tool.spec().id.as_str() != "t.prints"));
    for name in ["t.prints", "t_prints", "t/prints"] {
        let called = house.ask(call(name, prints())).await;
        assert!(matches!(called, Err(CallError::UnknownTool { nearest: None, .. })), "{name}");
        let tool = name.to_owned();
        let terms = JobOptions::default();
        let started = house.ask(HostRequest::StartJob { tool, input: prints(), terms }).await;
        assert!(matches!(started, Err(CallError::UnknownTool { .. })), "{name}");
        let input = json!({ "tool": name, "arguments": prints() });
        let Err(why) = house.ask(call("jobs.start", input)).await else { panic!("{name}") };
        assert!(why.to_string().contains("no tool is named"), "{why}");
    }
    let bobs =
        IncomingRequest { caller: Caller::with_key("bob"), ..asked(call("t.prints", prints())) };
    assert!(house.host.answer(bobs).await.is_ok());
}

#[tokio::test]
async fn a_job_is_judged_by_its_input_as_a_call_is_and_the_record_names_the_rule() {
    let when = Some("input.text == 'x'");
    let house = house(vec![rule("no-x", PolicyEffect::Deny, "t.prints", when)]);
    assert!(matches!(
        house.ask(call("t.prints", prints())).await,
        Err(CallError::NotAllowed { .. })
    ));
    let tool = "t.prints".to_owned();
    let terms = JobOptions::default();
    let started = house.ask(HostRequest::StartJob { tool, input: prints(), terms }).await;
    assert!(matches!(started, Err(CallError::NotAllowed { .. })));
    assert!(house.ask(call("t.prints", json!({ "text": "y", "times": 1 }))).await.is_ok());
    house.host.flush();
    let log = std::fs::read_to_string(house.folder.path().join("audit.jsonl")).expect("a log");
    let rules: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["rule"].clone())
        .collect();
    assert_eq!(rules, ["no-x", "no-x", "default"]);
}

#[tokio::test]
async fn a_rule_that_confirms_by_input_has_a_person_asked_and_refuses_who_cannot() {
    let house =
        house(vec![rule("ask", PolicyEffect::Confirm, "t.prints", Some("input.times > 1"))]);
    assert!(house.ask(call("t.prints", prints())).await.is_ok());
    let twice = json!({ "text": "x", "times": 2 });
    let refused =
        house.ask(call("t.prints", twice)).await.map(|_| ()).expect_err("nobody is asked");
    assert!(refused.to_string().contains("(`ask`)"), "{refused}");
}
