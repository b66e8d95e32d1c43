//! Tests of policy decisions, and that all functions that make a decision agree with each other.

use proptest::prelude::*;
use serde_json::json;
use toolgate_contract::{CallError, CallerKind};

use super::pattern::CallerNamePattern;
use super::*;

fn spec(id: &str, effects: Effects) -> ToolSpec {
    let properties = json!({ "path": { "type": "string", "default": "." } });
    ToolSpec {
        paths: ["path", "paths"].map(str::to_owned).to_vec(),
        input_schema: json!({ "type": "object", "properties": properties }).into(),
        ..ToolSpec::new(ToolId::new(id).expect("an id"), "", "", effects)
    }
}

fn rule(name: &str, effect: PolicyEffect, tools: &[&str], when: Option<&str>) -> PolicyRule {
    PolicyRule {
        name: name.to_owned(),
        effect,
        callers: Vec::new(),
        roles: Vec::new(),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        effects: Vec::new(),
        when: when.map(str::to_owned),
        message: None,
    }
}

fn policy(rules: &[PolicyRule], default: PolicyEffect) -> ToolPolicy {
    tools(&[], &[], rules, default)
}

fn tools(
    deny: &[&str],
    confirm: &[&str],
    rules: &[PolicyRule],
    default: PolicyEffect,
) -> ToolPolicy {
    let all = |patterns: &[&str]| patterns.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    let policy = ToolPolicy::new(&all(&["*"]), &all(deny), Effects::Runs).expect("patterns");
    let policy = policy.with_confirm(&all(confirm)).expect("patterns").with_root(Path::new("/ws"));
    policy.with_rules(rules, default).expect("sound rules")
}

/// Returns the decision of `policy` on a call of the tool `spec` with `input`, and the name of the
/// rule that made it.
fn decided(policy: &ToolPolicy, spec: &ToolSpec, input: &Value) -> (PolicyDecision, String) {
    let explained = policy.explain(&Caller::with_key("ada"), spec, input);
    (explained.decision, explained.rule)
}

#[track_caller]
fn refused(when: &str) -> String {
    let bad = [rule("r", PolicyEffect::Deny, &[], Some(when))];
    let policy = ToolPolicy::new(&[], &[], Effects::Runs).expect("patterns");
    let Err(why) = policy.with_rules(&bad, PolicyEffect::Allow) else {
        panic!("`{when}` is accepted")
    };
    why.to_string()
}

#[test]
fn the_first_matching_rule_decides() {
    let rules = [
        rule("docs", PolicyEffect::Allow, &["files.*"], Some("input.path.startsWith('docs/')")),
        rule("ask", PolicyEffect::Confirm, &["files_write"], None),
        rule("none", PolicyEffect::Deny, &["files.*"], None),
    ];
    let policy = policy(&rules, PolicyEffect::Allow);
    let read = spec("files.read", Effects::Reads);
    let write = spec("files.write", Effects::Changes);
    let docs = json!({ "path": "docs/a" });
    assert_eq!(decided(&policy, &write, &docs), (PolicyDecision::Allowed, "docs".to_owned()));
    assert_eq!(decided(&policy, &write, &json!({"path": "a"})).1, "ask");
    assert_eq!(
        decided(&policy, &read, &json!({"path": "a"})),
        (PolicyDecision::Denied, "none".to_owned())
    );
    let other = spec("git.log", Effects::Reads);
    assert_eq!(
        decided(&policy, &other, &json!({})),
        (PolicyDecision::Allowed, "default".to_owned())
    );
}

#[test]
fn no_rule_overrides_tools_deny_or_tools_confirm() {
    let rules = [rule("all", PolicyEffect::Allow, &[], None)];
    let policy = tools(&["exec.*"], &["git.*"], &rules, PolicyEffect::Allow);
    let ruled = ToolSpec { ruled_as: ToolId::new("exec.run"), ..spec("ci.run", Effects::Runs) };
    for spec in [&spec("exec.run", Effects::Runs), &ruled] {
        let (decision, rule) = decided(&policy, spec, &json!({}));
        assert_eq!((decision, &*rule), (PolicyDecision::Denied, "tools.deny: exec.*"));
        assert!(!policy.shows(&Caller::local(), spec));
    }
    let (decision, rule) = decided(&policy, &spec("git.commit", Effects::Changes), &json!({}));
    assert_eq!((decision, &*rule), (PolicyDecision::Confirm, "tools.confirm: git.*"));
}

#[test]
fn a_restriction_of_a_tool_applies_to_tools_ruled_as_it_and_a_permission_does_not() {
    let ruled = ToolSpec { ruled_as: ToolId::new("exec.run"), ..spec("ci.run", Effects::Runs) };
    for (effect, decision) in [
        (PolicyEffect::Deny, PolicyDecision::Denied),
        (PolicyEffect::Confirm, PolicyDecision::Confirm),
    ] {
        let policy = policy(&[rule("r", effect, &["exec.run"], None)], PolicyEffect::Allow);
        assert_eq!(decided(&policy, &ruled, &json!({})).0, decision);
    }
    let policy = policy(&[rule("r", PolicyEffect::Allow, &["exec.run"], None)], PolicyEffect::Deny);
    assert_eq!(decided(&policy, &ruled, &json!({})).0, PolicyDecision::Denied);
}

#[test]
fn a_rule_about_the_path_is_evaluated_for_each_file_of_a_call() {
    let when = Some("has(input.path) && touches(input.path, 'infra')");
    let deny = policy(&[rule("r", PolicyEffect::Deny, &[], when)], PolicyEffect::Allow);
    let allow = policy(&[rule("r", PolicyEffect::Allow, &[], when)], PolicyEffect::Deny);
    let edit = spec("files.edit", Effects::Changes);
    for (input, denied, allowed) in [
        (json!({ "path": "a", "edits": [{ "new": "x" }] }), false, false),
        (json!({ "path": "a", "edits": [{ "path": "infra/x" }] }), true, false),
        (json!({ "edits": [{ "path": "b" }, { "path": "infra/x" }] }), true, false),
        (json!({ "edits": [{ "path": "infra/y" }, { "path": "infra/x" }] }), true, true),
        (json!({ "paths": ["b", "infra/x"] }), true, false),
        (json!({ "paths": ["b", "c"] }), false, false),
    ] {
        let decision = |policy: &ToolPolicy| decided(policy, &edit, &input).0;
        let expected = if denied { PolicyDecision::Denied } else { PolicyDecision::Allowed };
        assert_eq!(decision(&deny), expected, "{input}");
        let expected = if allowed { PolicyDecision::Allowed } else { PolicyDecision::Denied };
        assert_eq!(decision(&allow), expected, "{input}");
    }
}

#[test]
fn names_are_matched_by_characters() {
    let compiled = |pattern: &str| CallerNamePattern::new(pattern).expect("a pattern");
    for (pattern, name, expected) in [
        ("ci", "ci", true),
        ("ci", "ci2", false),
        ("okta:*", "okta:ada", true),
        ("*", "", true),
        ("J?rg", "J\u{f6}rg", true),
        ("J??rg", "J\u{f6}rg", false),
        ("a.c", "abc", false),
        ("a?c", "a\nc", true),
    ] {
        assert_eq!(compiled(pattern).matches(name), expected, "{pattern} of {name}");
    }
    for pattern in ["{a,b}", "[ab]", "a]", r"\*"] {
        let why = CallerNamePattern::new(pattern).err().expect("no pattern");
        assert!(why.contains("`*` matches any text"), "{why}");
    }
}

#[test]
fn callers_roles_and_effects_must_all_match() {
    let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let narrow = PolicyRule {
        callers: list(&["okta:*", "ci"]),
        roles: list(&["ops"]),
        effects: vec![Effects::Runs],
        ..rule("r", PolicyEffect::Deny, &[], None)
    };
    let policy = policy(&[narrow], PolicyEffect::Allow);
    let caller = |name: &str, role: &str| Caller {
        roles: [role.into()].into(),
        ..Caller::new(name, CallerKind::Token)
    };
    let fits = (caller("okta:ada", "ops"), spec("t.t", Effects::Runs));
    assert!(!policy.shows(&fits.0, &fits.1));
    assert!(policy.shows(&caller("okta", "ops"), &fits.1));
    assert!(policy.shows(&caller("ci", "dev"), &fits.1));
    assert!(policy.shows(&fits.0, &spec("t.t", Effects::Reads)));
}

#[test]
fn a_rule_that_cannot_be_evaluated_never_allows() {
    let failing = Some("input.no.such == 1");
    let spec = spec("t.t", Effects::Reads);
    for effect in [PolicyEffect::Deny, PolicyEffect::Confirm] {
        let policy = policy(&[rule("r", effect, &[], failing)], PolicyEffect::Allow);
        assert_eq!(
            decided(&policy, &spec, &json!({})),
            (PolicyDecision::Denied, "r (failed)".to_owned())
        );
        let denied = policy.authorise(&Caller::local(), &spec, &json!({ "no": "s3cret" }));
        let message = CallError::from(denied.err().expect("it is denied")).to_string();
        assert!(
            message.contains("could not be evaluated") && !message.contains("s3cret"),
            "{message}"
        );
    }
    let policy = policy(&[rule("r", PolicyEffect::Allow, &[], failing)], PolicyEffect::Deny);
    let (decision, by) = decided(&policy, &spec, &json!({}));
    assert_eq!((decision, &*by), (PolicyDecision::Denied, "default, r (failed)"));
}

#[test]
fn an_expression_that_is_neither_true_nor_false_fails() {
    let policy =
        policy(&[rule("r", PolicyEffect::Deny, &[], Some("input.path"))], PolicyEffect::Allow);
    let (decision, by) = decided(&policy, &spec("t.t", Effects::Reads), &json!({ "path": "x" }));
    assert_eq!((decision, &*by), (PolicyDecision::Denied, "r (failed)"));
}

#[test]
fn no_spelling_of_a_path_evades_a_rule() {
    for when in ["input.path.startsWith('infra/')", "under(input.path, 'infra')"] {
        let policy = policy(&[rule("r", PolicyEffect::Deny, &[], Some(when))], PolicyEffect::Allow);
        let spec = spec("files.write", Effects::Changes);
        for path in
            ["infra/a", "./infra/a", "infra//a", "x/../infra/a", "/ws/infra/a", "/ws//./infra/./a"]
        {
            assert_eq!(
                decided(&policy, &spec, &json!({ "path": path })).0,
                PolicyDecision::Denied,
                "{path}"
            );
        }
        for path in ["infrared/a", "x/infra/a", "infra/../a"] {
            assert_eq!(
                decided(&policy, &spec, &json!({ "path": path })).0,
                PolicyDecision::Allowed,
                "{path}"
            );
        }
    }
    let every = Some("input.paths.exists(path, under(path, 'infra'))");
    let policy = policy(&[rule("r", PolicyEffect::Deny, &[], every)], PolicyEffect::Allow);
    let input = json!({ "paths": ["a", "./infra"] });
    assert_eq!(
        decided(&policy, &spec("git.add", Effects::Changes), &input).0,
        PolicyDecision::Denied
    );
}

#[test]
fn an_omitted_argument_has_its_default() {
    let policy = policy(
        &[rule("r", PolicyEffect::Deny, &[], Some("input.path == '.'"))],
        PolicyEffect::Allow,
    );
    let spec = spec("files.tree", Effects::Reads);
    assert_eq!(decided(&policy, &spec, &json!({})), (PolicyDecision::Denied, "r".to_owned()));
    let whole = [rule("r", PolicyEffect::Deny, &[], Some("input == {'path': '.'}"))];
    assert_eq!(decided(&self::policy(&whole, PolicyEffect::Allow), &spec, &json!({})).1, "r");
}

#[test]
fn a_rule_fails_if_a_guarded_access_lacks_an_argument_that_it_uses() {
    let when = Some("has(input.path) && under(input.path, 'secret')");
    let policy =
        policy(&[rule("r", PolicyEffect::Deny, &["files.read"], when)], PolicyEffect::Allow);
    let spec = spec("files.read", Effects::Reads);
    let caller = Caller::local();
    let asked = json!({ "prompt": "p", "arguments": { "file": "secret/a" } });
    let Err(denied) = policy.authorise_guarded(&caller, &spec, &asked) else { panic!("allowed") };
    assert_eq!(&**denied.rule(), "r (failed)");
    let fine = json!({ "uri": "file:///ws/a", "path": "a" });
    assert!(policy.authorise_guarded(&caller, &spec, &fine).is_ok());
    let secret = json!({ "uri": "file:///ws/secret/a", "path": "secret/a" });
    assert!(policy.authorise_guarded(&caller, &spec, &secret).is_err());
}

#[test]
fn a_tool_is_hidden_only_if_no_input_could_be_allowed() {
    let caller = Caller::with_key("ada");
    let spec = spec("t.t", Effects::Reads);
    let shows = |rules: &[PolicyRule], default| policy(rules, default).shows(&caller, &spec);
    let on_input = Some("input.path == 'a'");
    let deny = PolicyEffect::Deny;
    let allow = PolicyEffect::Allow;
    let confirm = PolicyEffect::Confirm;
    assert!(shows(&[rule("r", deny, &[], on_input)], allow));
    assert!(!shows(&[rule("r", deny, &[], on_input)], deny));
    assert!(!shows(&[rule("r", deny, &[], on_input), rule("all", deny, &[], None)], allow));
    assert!(shows(&[rule("r", confirm, &[], on_input)], deny));
    assert!(!shows(&[rule("r", deny, &[], Some("caller.name == 'ada'"))], allow));
    assert!(shows(&[rule("r", deny, &[], Some("caller.name == 'bob'"))], allow));
    assert!(!shows(&[rule("r", allow, &[], Some("caller.name == 'bob'"))], deny));
    assert!(
        !shows(&[rule("r", deny, &[], Some("caller.roles[0] == 'x'"))], allow),
        "a rule that fails hides the tool"
    );
}

#[test]
fn a_cached_result_is_not_used_for_a_different_tool_with_the_same_id() {
    let reading = spec("files.read", Effects::Reads);
    let command = ToolSpec {
        ruled_as: ToolId::new("exec.run"),
        tags: vec!["slow".to_owned()],
        ..spec("files.read", Effects::Runs)
    };
    // Written so that CEL evaluates it, whose results are cached.
    for (when, of_reading) in [
        ("'reads' == tool.effects", true),
        ("'exec.run' == tool.ruled_as", false),
        ("'slow' in tool.tags", false),
    ] {
        let policy = policy(&[rule("r", PolicyEffect::Allow, &[], Some(when))], PolicyEffect::Deny);
        let may = |spec| policy.authorise(&Caller::with_key("ada"), spec, &json!({})).is_ok();
        assert_eq!((may(&reading), may(&command)), (of_reading, !of_reading), "{when}");
    }
}

#[test]
fn a_text_prompt_is_denied_by_policy_rules_and_not_by_tools_settings() {
    let spec = spec("prompts", Effects::Reads);
    let caller = Caller::local();
    let over_tools = tools(&["*"], &["*"], &[], PolicyEffect::Allow);
    assert!(over_tools.shows_text_prompts(&caller, &spec));
    let permit = over_tools.authorise_text_prompt(&caller, &spec, &json!({})).expect("allowed");
    assert!(!permit.needs_confirmation());
    let when = Some("input.prompt == 'p'");
    let ruled = policy(&[rule("r", PolicyEffect::Deny, &["prompts"], when)], PolicyEffect::Allow);
    assert!(ruled.authorise_text_prompt(&caller, &spec, &json!({ "prompt": "p" })).is_err());
    assert!(ruled.authorise_text_prompt(&caller, &spec, &json!({ "prompt": "q" })).is_ok());
    assert!(!policy(&[], PolicyEffect::Deny).shows_text_prompts(&caller, &spec));
}

#[test]
fn an_invalid_expression_is_refused_with_its_line_and_column() {
    for (when, why) in [
        ("input.path ==", "line 1"),
        ("true &&\n  callr.name == 'x'", "line 2, column 3: unknown name `callr`"),
        ("caller.nmae == 'x'", "`caller` has no `nmae`"),
        ("tool == 'x'", "use a field of `tool`"),
        ("input.path.starts('x')", "unknown function `starts`"),
        ("[1].exists(x, [2].exists(y, x == y))", "cannot be nested"),
        ("[1].exists(input, input == 1)", "`input` is reserved"),
    ] {
        let message = refused(when);
        assert!(
            message.contains("policy.rules, `r`") && message.contains(why),
            "{when}: {message}"
        );
    }
    assert!(refused(&format!("'{}' == ''", "x".repeat(5000))).contains("longer"));
}

#[test]
fn rules_that_match_no_tool_or_share_a_name_are_refused() {
    let ids = KnownToolSet {
        tools: vec![spec("files.read", Effects::Reads).id],
        ..KnownToolSet::default()
    };
    let misspelt =
        policy(&[rule("r", PolicyEffect::Deny, &["file.read"], None)], PolicyEffect::Allow);
    let why = misspelt.check(&ids).expect_err("no tool").to_string();
    assert!(why.contains("policy.rules") && why.contains("`files.read`"), "{why}");
    policy(&[rule("r", PolicyEffect::Deny, &["prompts"], None)], PolicyEffect::Allow)
        .check(&ids)
        .expect("ok");
    let two = [rule("r", PolicyEffect::Deny, &[], None), rule("r", PolicyEffect::Allow, &[], None)];
    let policy = ToolPolicy::new(&[], &[], Effects::Runs).expect("patterns");
    assert!(policy.with_rules(&two, PolicyEffect::Allow).is_err());
}

#[test]
fn no_input_makes_a_rule_slow() {
    let when = Some("input.args.exists(one, input.text.contains(one))");
    let policy = policy(&[rule("r", PolicyEffect::Deny, &[], when)], PolicyEffect::Allow);
    let spec = spec("t.t", Effects::Reads);
    let many: Vec<_> = (0..9_000).map(|n| format!("{n}")).collect();
    for input in [
        json!({ "args": many, "text": "x".repeat(8 << 20) }),
        json!({ "args": (0..20_000).collect::<Vec<_>>(), "text": "" }),
    ] {
        let began = std::time::Instant::now();
        assert_eq!(
            decided(&policy, &spec, &input),
            (PolicyDecision::Denied, "r (failed)".to_owned())
        );
        assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
    }
}

/// Generates JSON values like those in the inputs of calls.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        "[a-c./]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-c]", inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

/// Policy expressions about the input of a call. Most of them fail for most inputs.
const EXPRESSIONS: [&str; 14] = [
    "input.a == input.b",
    "has(input.a) && input.a == 1",
    "input == {'a': 1}",
    "size(input) > 1",
    "size(input.a) > 1",
    "input.a in input.b",
    "'a' in input",
    "input.a < input.b",
    "input.a[0] == input.b",
    "input.a.b == 'a'",
    "input.a.exists(x, x == input.b)",
    "input.a.startsWith('a')",
    "string(input.a) == input.b",
    "input['a'] == [1, 'a', null]",
];

/// Policy expressions about the input of a call. Most of them only compare texts.
const TEXTS: [&str; 16] = [
    "under(input.path, 'infra')",
    "touches(input.path, 'infra/b')",
    "under(input.other, '/ws/infra')",
    "input.path.endsWith('.pem')",
    "input.path.startsWith('infra/')",
    "input['path'].contains('..')",
    "input.path == 'infra'",
    "input.other != 'infra'",
    "input.other in ['a', 'infra']",
    "input.path in []",
    "caller.name == 'ada'",
    "caller.kind in ['local', 'key']",
    "tool.id == 't.t'",
    "tool.effects != 'reads'",
    "tool.toolset.startsWith(tool.ruled_as)",
    "has(input.other)",
];

/// Converts `value` to a CEL value whose numbers are integers or floats.
fn plain_value(value: &Value) -> cel::Value {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => cel::Value::Int(integer),
            (None, Some(integer)) => cel::Value::UInt(integer),
            (None, None) => cel::Value::Float(number.as_f64().expect("a float")),
        },
        Value::Array(items) => items.iter().map(plain_value).collect::<Vec<_>>().into(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| (name.clone(), plain_value(value)));
            members.collect::<std::collections::HashMap<String, cel::Value>>().into()
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {
            cel::to_value(value).expect("a value without numbers")
        }
    }
}

proptest! {
    #[test]
    fn an_expression_sees_the_same_input_as_plain_cel(
        a in json_value(),
        b in json_value(),
        at in 0..EXPRESSIONS.len(),
    ) {
        let source = EXPRESSIONS[at];
        let input = json!({ "a": a, "b": b });
        let caller = Caller::local();
        let spec = ToolSpec::new(ToolId::new("t.t").expect("an id"), "", "", Effects::Reads);
        let when = PolicyCondition::new(source, &ExpressionSettings::default()).expect("sound");
        let asked = PolicyRequest { caller: &caller, spec: &spec, input: &input, kind: PolicyRequestKind::Tool };

        let program = cel::Program::compile(source).expect("sound");
        let mut context = cel::Context::default();
        context.add_variable("input", plain_value(&input)).expect("bound");
        let expected = match program.execute(&context) {
            Ok(cel::Value::Bool(is)) => Some(is),
            Ok(_) | Err(_) => None,
        };
        prop_assert_eq!(when.evaluate(&asked).ok(), expected, "{} of {}", source, input);
    }

    #[test]
    fn the_fast_form_of_an_expression_agrees_with_cel(
        parts in prop::collection::vec(0..TEXTS.len(), 1..4),
        joins in prop::collection::vec(prop_oneof![Just("&&"), Just("||")], 3),
        not in any::<bool>(),
        path in prop_oneof![
            prop_oneof![
                Just("infra/a.pem"), Just("./infra//b"), Just("/ws/infra"), Just("a/../infra/x"),
                Just(""), Just("/"), Just(".."), Just("/ws/../infra"),
            ].prop_map(Value::from),
            json_value(),
        ],
        other in prop_oneof![Just(Some(json!("infra"))), Just(None), json_value().prop_map(Some)],
    ) {
        let mut source = TEXTS[parts[0]].to_owned();
        for (part, join) in parts[1..].iter().zip(&joins) {
            source = format!("({source}) {join} {}", TEXTS[*part]);
        }
        if not {
            source = format!("!({source})");
        }
        let mut input = json!({ "path": path });
        if let Some(other) = other {
            input["other"] = other;
        }
        let spec = ToolSpec { paths: vec!["path".to_owned()], ..spec("t.t", Effects::Changes) };
        let when = PolicyCondition::new(&source, &ExpressionSettings { root: Some("/ws".into()) }).expect("sound");
        for what in [PolicyRequestKind::Tool, PolicyRequestKind::Guarded] {
            let asked = PolicyRequest { caller: &Caller::with_key("ada"), spec: &spec, input: &input, kind: what };
            prop_assert_eq!(when.evaluate(&asked), when.evaluate_cel(&asked), "{} of {}", source, input);
        }
    }

    #[test]
    fn precomputed_rules_and_explanations_agree_with_decisions(
        rules in prop::collection::vec((0..3_usize, 0..4_usize, 0..5_usize), 0..6),
        default in 0..3_usize,
        path in prop_oneof![Just("a"), Just("infra/a")],
    ) {
        let effects = [PolicyEffect::Allow, PolicyEffect::Deny, PolicyEffect::Confirm];
        let over: [&[&str]; 4] = [&[], &["t.*"], &["exec.run"], &["u.u"]];
        let whens = [None, Some("input.path == 'a'"), Some("caller.name == 'ada'"),
            Some("input.none"), Some("tool.id == 't.t'")];
        let rules: Vec<_> = rules.iter().enumerate().map(|(at, (effect, tools, when))| {
            rule(&format!("r{at}"), effects[*effect], over[*tools], whens[*when])
        }).collect();
        let plain = policy(&rules, effects[default]);
        let specs = [
            spec("t.t", Effects::Reads),
            ToolSpec { ruled_as: ToolId::new("exec.run"), ..spec("u.u", Effects::Runs) },
        ];
        let known = policy(&rules, effects[default]).with_tools(specs.iter());
        let caller = Caller::with_key("ada");
        let input = json!({ "path": path });
        for spec in &specs {
            let explained = plain.explain(&caller, spec, &input);
            let permit = known.authorise(&caller, spec, &input);
            let (decision, by) = match &permit {
                Ok(permit) if permit.needs_confirmation() => (PolicyDecision::Confirm, permit.rule()),
                Ok(permit) => (PolicyDecision::Allowed, permit.rule()),
                Err(denied) => (PolicyDecision::Denied, denied.rule()),
            };
            prop_assert_eq!((explained.decision, &*explained.rule), (decision, &**by));
            prop_assert_eq!(known.shows(&caller, spec), explained.visible);
            prop_assert!(explained.visible || decision == PolicyDecision::Denied, "a hidden tool is denied");
        }
    }
}

#[test]
fn a_cached_result_is_not_used_for_a_caller_of_the_same_name_with_other_roles() {
    let when = "'admin' in caller.roles || tool.effects == 'reads' || caller.scopes.size() > 1";
    let rules = [rule("some", PolicyEffect::Allow, &[], Some(when))];
    let policy = ToolPolicy::new(&["*".to_owned()], &[], Effects::Runs).expect("a policy");
    let policy = policy.with_rules(&rules, PolicyEffect::Deny).expect("rules");
    let write = spec("files.write", Effects::Changes);
    let read = spec("files.read", Effects::Reads);
    let words = |words: &[&str]| words.iter().map(|word| Arc::from(*word)).collect();
    let plain = Caller::with_key("ada");
    let admin = Caller { roles: words(&["admin"]), ..plain.clone() };
    let scoped = Caller { scopes: words(&["a", "b"]), ..plain.clone() };
    // Twice, because results are cached.
    for _ in 0..2 {
        for (caller, tool, may) in [
            (&plain, &write, false),
            (&admin, &write, true),
            (&scoped, &write, true),
            (&plain, &read, true),
        ] {
            let decided = policy.authorise(caller, tool, &json!({}));
            assert_eq!(decided.is_ok(), may, "{caller:?}: {:?}", decided.err());
        }
    }
}
