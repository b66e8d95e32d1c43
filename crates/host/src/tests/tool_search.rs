//! Tests of tool search: the tools that a caller finds, the tool lists, and the tools to which
//! forwarded calls are attributed.

use proptest::prelude::*;
use tokio::runtime::Builder;
use toolgate_contract::{
    CallMetadata, ClientProfile, ToolFuture, ToolId, ToolOutput, ToolRunStatus, ToolSpec, with_spec,
};

use super::*;
use crate::{
    ToolListSelection, ToolSearchHandle, ToolSearchMemoryScope, ToolSearchSettings,
    tool_search_tools,
};

/// A tool of an upstream. It returns its id and its input.
struct UpstreamEchoTool(ToolSpec);

impl AnyTool for UpstreamEchoTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let content =
                vec![toolgate_contract::ContentBlock::text(format!("{} {input}", self.0.id))];
            let text = toolgate_contract::ResultText::default();
            let output = ToolOutput::new(Value::Null, text, ToolRunStatus::Done);
            Ok(ToolOutput { structured: false, content, ..output })
        })
    }
}

/// A tool of an upstream that refuses its arguments as the Python SDK does.
struct RefusingTool(ToolSpec);

impl AnyTool for RefusingTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn run<'a>(&'a self, _: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let refusal = "Error executing tool one: 1 validation error for oneArguments";
            let text = toolgate_contract::ResultText::default();
            let output = ToolOutput::new(Value::Null, text, ToolRunStatus::ToolFailed);
            let content = vec![toolgate_contract::ContentBlock::text(refusal)];
            Ok(ToolOutput { structured: false, content, ..output })
        })
    }
}

fn echo(id: &str, about: &str, effects: Effects) -> Arc<dyn AnyTool> {
    let id = ToolId::new(id).expect("an id");
    let input_schema = json!({
        "type": "object",
        "properties": { "path": { "type": "string" }, "limit": { "type": "integer" } },
        "required": ["path"],
        "additionalProperties": false,
    });
    Arc::new(UpstreamEchoTool(ToolSpec {
        input_schema: input_schema.into(),
        ..ToolSpec::new(id, "Title", about, effects)
    }))
}

fn some_tools() -> Vec<Arc<dyn AnyTool>> {
    vec![
        echo("alpha.create_issue", "Create an issue in a repository.", Effects::Adds),
        echo("alpha.list_issues", "List the issues of a repository.", Effects::Reads),
        echo("beta.send_mail", "Send a message to a person.", Effects::Runs),
        echo("beta.read_mail", "Read the messages of a mailbox.", Effects::Reads),
    ]
}

fn folded() -> ToolSearchSettings {
    ToolSearchSettings {
        mode: ToolListSelection::Folded,
        memory: ToolSearchMemoryScope::Session,
        dialects: &["test"],
        ..ToolSearchSettings::default()
    }
}

fn deny(tools: Vec<String>) -> PolicyRule {
    PolicyRule {
        name: "hidden".to_owned(),
        effect: PolicyEffect::Deny,
        callers: vec!["ada".to_owned()],
        roles: Vec::new(),
        tools,
        effects: Vec::new(),
        when: None,
        message: None,
    }
}

/// Returns a host whose upstreams offer `tools`. The first word of a tool's id names its upstream.
fn host(
    settings: ToolSearchSettings,
    rules: &[PolicyRule],
    tools: &[Arc<dyn AnyTool>],
) -> TestHost {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let policy = ToolPolicy::new(&["*".to_owned()], &[], Effects::Runs).expect("sound rules");
    let policy = policy.with_rules(rules, PolicyEffect::Allow).expect("sound rules");
    let log = AuditDestination::File(AuditFileSettings::with_defaults(
        folder.path().join("audit.jsonl"),
        folder.path(),
    ));
    let audit = AuditLog::open(&log, false).expect("a log");
    let handle = ToolSearchHandle::default();
    let catalog = Catalog::new(tool_search_tools(&handle)).expect("sound tools");
    let limits = CallLimits::new(8, 8, 8, Duration::from_secs(1));
    let gate = Gate::new(catalog, policy, limits, audit, GateSettings::default());
    let gate = gate.with_tool_search(settings, None).expect("sound patterns");
    let host = Host::new(gate, None).with_tool_search_tools(&handle);
    offer(&host, tools);
    TestHost { host, folder }
}

fn offer(host: &Host, tools: &[Arc<dyn AnyTool>]) {
    for owner in ["alpha", "beta", "gamma"] {
        let own = tools.iter().filter(|tool| tool.spec().id.toolset() == owner).cloned();
        assert!(host.offer_tools(owner, own.collect()).is_empty());
    }
}

impl TestHost {
    async fn within(&self, session: &str, request: HostRequest) -> Result<HostAnswer, CallError> {
        let metadata = CallMetadata { session: Some(session.into()), ..CallMetadata::default() };
        self.host.answer(IncomingRequest { metadata, ..asked(request) }).await
    }

    /// Returns the tool list of a session as a client sees it.
    async fn list(&self, session: &str) -> String {
        let request = HostRequest::ListTools { after: None };
        let Ok(HostAnswer::Tools(page)) = self.within(session, request).await else {
            panic!("it is a list")
        };
        assert!(page.next.is_none());
        let lines = page.tools.iter().map(|tool| {
            let spec = tool.spec();
            format!("{} {} {}\n", spec.id, spec.description, *spec.input_schema)
        });
        lines.collect()
    }

    /// Returns the ids in the tool list of `client`. An id has a star if the client should load
    /// this tool at once.
    async fn list_for(&self, client: &str) -> Vec<String> {
        let metadata = CallMetadata {
            session: Some(client.into()),
            client: ClientProfile::find(client),
            ..CallMetadata::default()
        };
        let request = asked(HostRequest::ListTools { after: None });
        let answer = self.host.answer(IncomingRequest { metadata, ..request }).await;
        let Ok(HostAnswer::Tools(page)) = answer else { panic!("it is a list") };
        let ids = page.tools.iter().map(|tool| {
            let spec = tool.spec();
            let star = if spec.meta.contains_key("anthropic/alwaysLoad") { "*" } else { "" };
            format!("{}{star}", spec.id)
        });
        ids.collect()
    }

    async fn search(&self, session: &str, input: Value) -> String {
        match self.within(session, call("tools_search", input)).await {
            Err(error) => error.to_string(),
            answer => text(answer),
        }
    }

    async fn call_named(&self, tool: &str, input: Value) -> String {
        match self.within("s", call(tool, input)).await {
            Err(error) => error.to_string(),
            answer => text(answer),
        }
    }
}

fn ids(list: &str) -> Vec<&str> {
    list.lines().filter_map(|line| line.split(' ').next()).collect()
}

const NOUNS: [&str; 6] = ["issue", "mail", "branch", "invoice", "picture", "route"];
const VERBS: [&str; 4] = ["create", "list", "delete", "rename"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn answers_are_equal_when_tools_that_the_caller_may_not_see_are_removed(
        picked in prop::collection::btree_map((0..3_usize, 0..4_usize, 0..6_usize), any::<bool>(), 1..24),
        query in "(create|list|delete|rename)? ?(issue|mail|branch|invoice|picture|route) ?(and list mail)?",
    ) {
        let name = |(server, verb, noun): (usize, usize, usize)| {
            format!("{}.{}_{}", ["alpha", "beta", "gamma"][server], VERBS[verb], NOUNS[noun])
        };
        let make = |key: (usize, usize, usize)| {
            let about = format!("{} one {} of this server.", VERBS[key.1], NOUNS[key.2]);
            echo(&name(key), &about, if key.1 == 1 { Effects::Reads } else { Effects::Changes })
        };
        let hidden: Vec<String> =
            picked.iter().filter(|(_, hides)| **hides).map(|(key, _)| name(*key)).collect();
        let all: Vec<_> = picked.keys().map(|key| make(*key)).collect();
        let visible: Vec<_> = picked.iter().filter(|(_, hides)| !**hides).map(|(key, _)| make(*key)).collect();
        let rules: Vec<_> =
            (!hidden.is_empty()).then(|| deny(hidden.clone())).into_iter().collect();
        let whole = host(folded(), &rules, &all);
        let reduced = host(folded(), &rules, &visible);
        let mut searches = vec![
            json!({}),
            json!({ "queries": [query, "rename a picture"] }),
            json!({ "queries": [query], "server": "beta" }),
            json!({ "server": "alpha" }),
        ];
        searches.extend(hidden.iter().map(|name| json!({ "names": [name] })));
        searches.extend(hidden.iter().map(|name| json!({ "queries": [name] })));
        Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(async {
            prop_assert_eq!(whole.list("s").await, reduced.list("s").await);
            for (at, search) in searches.into_iter().enumerate() {
                // The second is a new session, to which no tool has been shown.
                for session in ["s".to_owned(), format!("s{at}")] {
                    let answer = whole.search(&session, search.clone()).await;
                    prop_assert_eq!(answer, reduced.search(&session, search.clone()).await);
                }
            }
            for name in &hidden {
                let input = json!({ "name": name, "arguments": { "path": "a" } });
                let answer = whole.call_named("tools_call", input.clone()).await;
                prop_assert_eq!(answer, reduced.call_named("tools_call", input).await);
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn the_list_of_a_session_is_equal_after_a_hundred_searches_and_calls() {
    let host = host(folded(), &[], &some_tools());
    let before = host.list("s").await;
    assert_eq!(ids(&before), ["tools.search", "tools.call", "tools.read"]);
    for at in 0..100 {
        let found = host.search("s", json!({ "queries": [format!("create issue {at}")] })).await;
        let arguments = if at == 0 { "(path: str, limit?: int)" } else { "" };
        assert!(found.contains(&format!("alpha_create_issue{arguments}  adds")), "{found}");
        let input = json!({ "name": "alpha_create_issue", "arguments": { "path": "a" } });
        assert_eq!(
            host.call_named("tools_call", input).await,
            "alpha.create_issue {\"path\":\"a\"}"
        );
    }
    host.host.offer_tools("beta", Vec::new());
    assert_eq!(host.list("s").await, before);
    offer(&host.host, &some_tools());
    assert_eq!(host.list("s").await, before);
    assert!(!host.host.lists_follow_catalog(&ada(), Some(&"s".into())));
}

#[tokio::test]
async fn a_caller_without_a_session_gets_the_same_list_all_day() {
    let host = host(folded(), &[], &some_tools());
    let list = async || match host.ask(HostRequest::ListTools { after: None }).await {
        Ok(HostAnswer::Tools(page)) => page.tools[0].spec().description.clone(),
        _ => panic!("it is a list"),
    };
    let before = list().await;
    assert!(before.ends_with("4 tools: alpha 2, beta 2."), "{before}");
    host.host.offer_tools("beta", Vec::new());
    assert_eq!(list().await, before);
}

#[tokio::test]
async fn a_call_through_tools_call_is_a_call_of_the_called_tool() {
    let host = host(folded(), &[deny(vec!["beta.send_mail".to_owned()])], &some_tools());
    let arguments = json!({ "path": "a" });
    for (name, expected) in [
        ("alpha_list_issues", "alpha.list_issues {\"path\":\"a\"}"),
        ("mcp__toolgate__alpha_list_issues", "alpha.list_issues {\"path\":\"a\"}"),
        ("alpha:list_issues", "alpha.list_issues {\"path\":\"a\"}"),
        ("list_issues", "alpha.list_issues {\"path\":\"a\"}"),
    ] {
        let input = json!({ "name": name, "arguments": arguments });
        assert_eq!(host.call_named("tools_call", input).await, expected, "{name}");
    }
    let input = json!({ "name": "beta_send_mail", "arguments": arguments });
    let refused = host.call_named("tools_call", input).await;
    assert!(refused.starts_with("no tool is named `beta_send_mail`"), "{refused}");
    host.host.flush();
    let log = std::fs::read_to_string(host.folder.path().join("audit.jsonl")).expect("a log");
    let records: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., known, unknown] = &records[..] else { panic!("there are records") };
    assert_eq!(
        (&known["tool"], &known["via"]),
        (&json!("alpha.list_issues"), &json!("tools.call"))
    );
    assert_eq!(
        (&unknown["tool"], &unknown["outcome"]),
        (&json!("beta_send_mail"), &json!("unknown_tool"))
    );
}

#[tokio::test]
async fn a_folded_list_lacks_tools_read_if_the_settings_say_so() {
    let settings = ToolSearchSettings { lists_read_tool: false, ..folded() };
    let host = host(settings, &[], &some_tools());
    assert_eq!(ids(&host.list("s").await), ["tools.search", "tools.call"]);
}

#[tokio::test]
async fn tools_read_calls_only_tools_that_read() {
    let host = host(folded(), &[], &some_tools());
    let input = |name: &str| json!({ "name": name, "arguments": { "path": "a" } });
    let read = host.call_named("tools_read", input("beta_read_mail")).await;
    assert_eq!(read, "beta.read_mail {\"path\":\"a\"}");
    for nested in [
        input("beta_send_mail"),
        json!({ "name": "tools_call", "arguments": input("beta_send_mail") }),
    ] {
        let refused = host.call_named("tools_read", nested).await;
        assert!(refused.contains("does more than read"), "{refused}");
    }
}

#[tokio::test]
async fn a_tool_that_is_not_listed_is_not_found_and_is_called_by_its_name() {
    let mut tools = some_tools();
    let spec = ToolSpec { listed: false, ..tools[0].spec().clone() };
    tools[0] = with_spec(tools[0].clone(), spec);
    let host = host(folded(), &[], &tools);
    let found = host.search("s", json!({ "queries": ["create an issue"] })).await;
    assert!(!found.contains("alpha_create_issue"), "{found}");
    let input = json!({ "name": "alpha_create_issue", "arguments": { "path": "a" } });
    let called = host.call_named("tools_call", input).await;
    assert_eq!(called, "alpha.create_issue {\"path\":\"a\"}");
}

#[tokio::test]
async fn wrong_arguments_are_answered_with_the_schema_and_an_example() {
    let host = host(folded(), &[], &some_tools());
    let input = json!({ "name": "alpha_create_issue", "arguments": { "paht": "a" } });
    let answer = host.call_named("tools_call", input).await;
    for part in [
        "alpha_create_issue takes: {",
        "tools_call {\"name\":\"alpha_create_issue\",\"arguments\":{\"path\":\"…\"}}",
    ] {
        assert!(answer.contains(part), "{answer}");
    }
    let unknown = json!({ "name": "alpha_create_isue", "arguments": {} });
    let answer = host.call_named("tools_call", unknown).await;
    assert!(answer.contains("nearest:\n  alpha_create_issue("), "{answer}");
}

#[tokio::test]
async fn a_session_receives_the_arguments_of_a_tool_once_unless_it_asks_for_them() {
    let host = host(folded(), &[], &some_tools());
    let arguments = "alpha_create_issue(path: str, limit?: int)  adds";
    let query = |text: &str| json!({ "queries": [text] });
    let first = host.search("s", query("create an issue")).await;
    assert!(first.contains(arguments), "{first}");
    let later = host.search("s", query("issue of a repository")).await;
    assert!(later.contains("  alpha_create_issue  adds\n"), "{later}");
    assert!(later.contains("`names` shows them again"), "{later}");
    // A client that repeats a query has probably lost the answer.
    assert_eq!(host.search("s", query("create an issue")).await, first);
    assert!(host.search("other", query("issue of a repository")).await.contains(arguments));
    let twice = json!({ "queries": ["create an issue", "make issues"] });
    let twice = host.search("third", twice).await;
    assert_eq!(twice.matches(arguments).count(), 1, "{twice}");
    let named = json!({ "names": ["alpha_create_issue"] });
    for _ in 0..2 {
        let whole = host.search("s", named.clone()).await;
        assert!(whole.contains("\"required\":[\"path\"]"), "{whole}");
    }
}

#[tokio::test]
async fn wrong_arguments_are_answered_with_the_schema_once_in_a_session() {
    let host = host(folded(), &[], &some_tools());
    let input = json!({ "name": "alpha_create_issue", "arguments": { "paht": "a" } });
    let first = host.call_named("tools_call", input.clone()).await;
    let second = host.call_named("tools_call", input).await;
    assert!(first.contains(" takes: {") && !second.contains(" takes: {"), "{second}");
    for part in ["tools_search {\"names\":[\"alpha_create_issue\"]}", "tools_call {\"name\":"] {
        assert!(second.contains(part), "{second}");
    }
}

#[tokio::test]
async fn a_refusal_of_the_called_tool_is_answered_with_the_schema() {
    let spec = some_tools()[0].spec().clone();
    let tools: Vec<Arc<dyn AnyTool>> = vec![Arc::new(RefusingTool(spec))];
    let host = host(folded(), &[], &tools);
    let input = json!({ "name": "alpha_create_issue", "arguments": { "path": "a" } });
    let answer = host.within("s", call("tools_call", input)).await;
    let Ok(HostAnswer::Output(output)) = answer else { panic!("it is a result") };
    assert_eq!(output.ending, ToolRunStatus::ToolFailed);
    let texts: Vec<_> = output.content.iter().map(|block| block.as_text()).collect();
    let [refusal, help] = &texts[..] else { panic!("there are two texts: {texts:?}") };
    assert!(refusal.contains("validation error"), "{refusal}");
    assert!(help.starts_with("alpha_create_issue takes: {"), "{help}");
}

#[tokio::test]
async fn a_query_that_led_to_a_call_ranks_its_tool_first_in_the_same_session() {
    let mut tools = some_tools();
    tools.push(echo("alpha.one", "Handle a ticket of a customer.", Effects::Reads));
    tools.push(echo("alpha.two", "Handle a ticket of a customer.", Effects::Reads));
    let host = host(folded(), &[], &tools);
    let query = json!({ "queries": ["handle the broken ticket of a customer"] });
    let first = async |session| {
        let answer = host.search(session, query.clone()).await;
        answer.trim_start().split('(').next().unwrap_or_default().to_owned()
    };
    assert_eq!(first("s").await, "alpha_one");
    host.call_named("tools_call", json!({ "name": "alpha_two", "arguments": { "path": "a" } }))
        .await;
    assert_eq!(first("s").await, "alpha_two");
    assert_eq!(first("other").await, "alpha_one");
    host.host.end_session("s");
    assert_eq!(first("s").await, "alpha_one");
}

#[tokio::test]
async fn a_shared_memory_ranks_tools_for_other_callers() {
    let mut tools = some_tools();
    tools.push(echo("alpha.one", "Handle a ticket of a customer.", Effects::Reads));
    tools.push(echo("alpha.two", "Handle a ticket of a customer.", Effects::Reads));
    for (memory, expected) in
        [(ToolSearchMemoryScope::Shared, "alpha_two"), (ToolSearchMemoryScope::Caller, "alpha_one")]
    {
        let host = host(ToolSearchSettings { memory, ..folded() }, &[], &tools);
        let query = json!({ "queries": ["handle the broken ticket of a customer"] });
        host.search("s", query.clone()).await;
        let input = json!({ "name": "alpha_two", "arguments": { "path": "a" } });
        host.call_named("tools_call", input).await;
        let request = asked(call("tools_search", query));
        let eve = Caller::with_key("eve");
        let found = text(host.host.answer(IncomingRequest { caller: eve, ..request }).await);
        assert!(found.starts_with(&format!("  {expected}(")), "{found}");
    }
}

#[tokio::test]
async fn the_queries_of_a_tool_are_forgotten_with_the_tool() {
    let mut tools = some_tools();
    tools.push(echo("alpha.one", "Handle a ticket of a customer.", Effects::Reads));
    tools.push(echo("alpha.two", "Handle a ticket of a customer.", Effects::Reads));
    let host = host(folded(), &[], &tools);
    let query = json!({ "queries": ["handle the broken ticket of a customer"] });
    let first = async || {
        let answer = host.search("s", query.clone()).await;
        answer.trim_start().split('(').next().unwrap_or_default().to_owned()
    };
    assert_eq!(first().await, "alpha_one");
    host.call_named("tools_call", json!({ "name": "alpha_two", "arguments": { "path": "a" } }))
        .await;
    assert_eq!(first().await, "alpha_two");
    offer(&host.host, &tools[..5]);
    assert_eq!(first().await, "alpha_one");
    offer(&host.host, &tools);
    assert_eq!(first().await, "alpha_one");
}

#[tokio::test]
async fn a_list_is_folded_only_beyond_its_budget_and_keeps_favourites() {
    let auto = |budget_tokens| ToolSearchSettings {
        mode: ToolListSelection::Auto,
        budget_tokens,
        ..folded()
    };
    let whole = host(auto(10_000), &[], &some_tools());
    let all = ["alpha.create_issue", "alpha.list_issues", "beta.read_mail", "beta.send_mail"];
    assert_eq!(ids(&whole.list("s").await), all);
    assert!(whole.host.lists_follow_catalog(&ada(), Some(&"s".into())));
    let favourites = vec!["beta.read_*".to_owned()];
    let favourites = ToolSearchSettings { favourites, ..auto(10) };
    let short = host(favourites, &[], &some_tools());
    let list = short.list("s").await;
    assert_eq!(ids(&list), ["beta.read_mail", "tools.search", "tools.call", "tools.read"]);
    let hidden = host(auto(10), &[deny(vec!["tools.*".to_owned()])], &some_tools());
    assert_eq!(ids(&hidden.list("s").await), all);
}

#[tokio::test]
async fn a_call_of_a_listed_tool_that_is_gone_is_answered_with_the_nearest_tools() {
    let favourites = vec!["alpha.create_issue".to_owned()];
    let host = host(ToolSearchSettings { favourites, ..folded() }, &[], &some_tools());
    let input = json!({ "path": "a" });
    offer(&host.host, &some_tools()[1..]);
    let unlisted = host.call_named("alpha_create_issue", input.clone()).await;
    assert!(!unlisted.contains("in your list"), "{unlisted}");
    offer(&host.host, &some_tools());
    let list = host.list("s").await;
    assert_eq!(ids(&list)[0], "alpha.create_issue");
    offer(&host.host, &some_tools()[1..]);
    let gone = host.call_named("alpha_create_issue", input).await;
    assert!(gone.starts_with("`alpha_create_issue` is in your list, but no longer"), "{gone}");
    assert!(gone.contains("nearest:\n  alpha_list_issues("), "{gone}");
    assert_eq!(host.list("s").await, list);
}

#[tokio::test]
async fn a_client_with_a_search_of_its_own_gets_remembered_queries_as_hints() {
    let settings = ToolSearchSettings {
        mode: ToolListSelection::Auto,
        budget_tokens: 10_000,
        memory: ToolSearchMemoryScope::Caller,
        ..folded()
    };
    let host = host(settings, &[], &some_tools());
    let hints = async |session: &str, client: &str| -> Vec<String> {
        let metadata = CallMetadata {
            session: Some(session.into()),
            client: ClientProfile::find(client),
            ..CallMetadata::default()
        };
        let request = asked(HostRequest::ListTools { after: None });
        let answer = host.host.answer(IncomingRequest { metadata, ..request }).await;
        let Ok(HostAnswer::Tools(page)) = answer else { panic!("it is a list") };
        let hints = page.tools.iter().filter_map(|tool| {
            let hint = tool.spec().meta.get("anthropic/searchHint")?;
            Some(format!("{} {hint}", tool.spec().id))
        });
        hints.collect()
    };
    assert!(hints("first", "claude-code").await.is_empty());
    host.search("first", json!({ "queries": ["open an  issue"] })).await;
    let input = json!({ "name": "alpha_create_issue", "arguments": { "path": "a" } });
    host.call_named("tools_call", input).await;
    // A list does not change within its session.
    assert!(hints("first", "claude-code").await.is_empty());
    let expected = ["alpha.create_issue \"open an issue\""];
    assert_eq!(hints("second", "claude-code").await, expected);
    assert!(hints("third", "another").await.is_empty());
}

#[tokio::test]
async fn a_list_that_was_folded_stays_folded_down_to_70_percent_of_the_budget() {
    let long = |chars: usize| vec![echo("alpha.long", &"a".repeat(chars), Effects::Reads)];
    let settings =
        ToolSearchSettings { mode: ToolListSelection::Auto, budget_tokens: 1000, ..folded() };
    let host = host(settings, &[], &[]);
    let folded = ["tools.search", "tools.call", "tools.read"];
    // A token has 3.9 characters, and the schema has about 40 tokens.
    for (session, chars, expected) in [
        ("first", 3500, &["alpha.long"][..]),
        ("second", 4500, &folded[..]),
        ("third", 3500, &folded[..]),
        ("fourth", 2000, &["alpha.long"][..]),
        ("fifth", 3500, &["alpha.long"][..]),
    ] {
        offer(&host.host, &long(chars));
        let list = host.list(session).await;
        assert_eq!(ids(&list), expected, "{session}");
    }
}

#[tokio::test]
async fn a_list_is_folded_as_it_suits_the_client() {
    let settings = |budget_tokens| ToolSearchSettings {
        mode: ToolListSelection::Auto,
        budget_tokens,
        favourites: vec!["beta.read_*".to_owned()],
        ..folded()
    };
    let few = host(settings(10), &[], &some_tools());
    let all = ["alpha.create_issue", "alpha.list_issues", "beta.read_mail*", "beta.send_mail"];
    assert_eq!(few.list_for("claude-code").await, all);
    let short = ["beta.read_mail*", "tools.search*", "tools.call*", "tools.read*"];
    assert_eq!(few.list_for("Visual Studio Code").await, short);
    let tool = |at: usize| echo(&format!("alpha.tool_{at}"), "Do it.", Effects::Reads);
    let many: Vec<_> = (0..130).map(tool).collect();
    let many = host(settings(1_000_000), &[], &many);
    assert_eq!(many.list_for("Visual Studio Code").await, &short[1..]);
    assert!(many.list_for("another").await.len() > short.len());
    assert!(many.list_for("claude-code").await.len() > short.len());
}
