//! Tests of resources, prompts and skills: lists, reads and completion.

use std::collections::BTreeMap;

use toolgate_contract::{
    AnyPrompt, BoxFuture, CompletionCandidates, CompletionRequest, CompletionTarget, Prompt,
    PromptArguments, PromptSource, PromptSpec, RenderedPrompt, ResourceContents, ResourceCursor,
    ResourceSource, ResourceSpec, ResourceTemplate, ServerChange, Skill, SkillSource, ToolFuture,
    ToolId, ToolSpec, UriClaimStrength, erase_prompt,
};

use super::*;

/// Behavior of a source of resources or prompts in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TestSourceState {
    Fine,
    Fails,
    Hangs,
    Panics,
}

impl TestSourceState {
    async fn show(self) -> Result<(), ToolError> {
        match self {
            Self::Fine => Ok(()),
            Self::Fails => Err(ToolError::failed("it fails")),
            Self::Hangs => std::future::pending().await,
            Self::Panics => panic!("as requested"),
        }
    }
}

/// Resource source with the resources `NAME://0`, `NAME://1` and so on.
struct TestResourceSource {
    name: &'static str,
    guard: ToolSpec,
    count: usize,
    state: TestSourceState,
}

fn guard(name: &str) -> ToolSpec {
    let id = ToolId::new(&format!("{name}.read")).expect("an id");
    ToolSpec::new(id, name, name, Effects::Reads)
}

fn source(name: &'static str, count: usize, state: TestSourceState) -> Arc<dyn ResourceSource> {
    let guard = guard(name);
    Arc::new(TestResourceSource { name, guard, count, state })
}

impl ResourceSource for TestResourceSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.split(':').next() == Some(self.name)
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            self.state.show().await?;
            let all = (0..self.count).map(|number| format!("{}://{number:03}", self.name));
            let rest = all.filter(|uri| after.is_none_or(|after| uri.as_str() > after));
            Ok(rest.take(at_most).map(|uri| ResourceSpec::new(uri, "it")).collect())
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let uri = format!("{}://{{number}}", self.name);
        vec![ResourceTemplate { uri, ..ResourceTemplate::default() }]
    }

    fn read<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            self.state.show().await?;
            Ok(vec![ResourceContents::text(uri, "text/plain", "it")])
        })
    }

    fn complete<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async move {
            self.state.show().await?;
            Ok((0..self.count).map(|number| number.to_string()).collect())
        })
    }
}

fn test_host(sources: Vec<Arc<dyn ResourceSource>>, page_size: usize, deny: &[&str]) -> TestHost {
    let mut parts = TestHostParts::new();
    parts.library.resources = sources;
    parts.settings.page_size = page_size;
    parts.deny = ["audit.*"].iter().chain(deny).map(|rule| (*rule).to_owned()).collect();
    parts.build()
}

async fn page(
    test_host: &TestHost,
    after: Option<ResourceCursor>,
) -> Result<(Vec<String>, Option<ResourceCursor>), CallError> {
    match test_host.ask(HostRequest::ListResources { after }).await? {
        HostAnswer::Resources(page) => {
            Ok((page.resources.into_iter().map(|one| one.uri).collect(), page.next))
        }
        _ => panic!("the answer is of another kind"),
    }
}

#[tokio::test]
async fn pages_of_any_size_list_each_resource_of_all_sources_once() {
    for counts in [[3, 0, 4], [2, 2, 2], [0, 0, 1], [5, 1, 0], [0, 0, 0]] {
        for size in 1..=8 {
            // Unsorted names: after the end of a source, a page continues with the next source.
            let names = ["z", "a", "m"];
            let sources = names.iter().zip(counts);
            let sources =
                sources.map(|(name, count)| source(name, count, TestSourceState::Fine)).collect();
            let test_host = test_host(sources, size, &[]);
            let mut all = Vec::new();
            let mut after = None;
            loop {
                let (mut uris, next) = page(&test_host, after).await.expect("a page");
                assert!(uris.len() <= size);
                assert!(next.is_none() || uris.len() == size, "every page but the last is full");
                all.append(&mut uris);
                after = next;
                if after.is_none() {
                    break;
                }
            }
            let each = |(name, count)| (0..count).map(move |n| format!("{name}://{n:03}"));
            let expected: Vec<_> = names.iter().zip(counts).flat_map(each).collect();
            assert_eq!(all, expected, "{counts:?} by {size}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_source_hides_no_other_and_is_an_error_only_if_all_fail() {
    for state in [TestSourceState::Fails, TestSourceState::Hangs, TestSourceState::Panics] {
        let sources = vec![
            source("a", 1, state),
            source("b", 1, TestSourceState::Fine),
            source("c", 1, state),
        ];
        let house_of_three = test_host(sources, 10, &[]);
        let (uris, next) = page(&house_of_three, None).await.expect("a page");
        assert_eq!((uris, next), (vec!["b://000".to_owned()], None), "{state:?}");
        let alone = test_host(vec![source("a", 1, state)], 10, &["jobs.*"]);
        assert!(page(&alone, None).await.is_err(), "{state:?}");
    }
}

#[tokio::test]
async fn a_cursor_of_a_missing_source_is_invalid() {
    let test_host = test_host(vec![source("a", 2, TestSourceState::Fine)], 1, &[]);
    let source = "b.read".to_owned();
    let uri = "b://000".to_owned();
    let refused = page(&test_host, Some(ResourceCursor { source, uri })).await;
    assert!(matches!(refused, Err(CallError::InvalidInput { .. })));
}

#[tokio::test]
async fn a_reader_of_an_unknown_uri_is_told_the_prefixes_of_visible_ones() {
    let sources = ["a", "b", "c"].map(|name| source(name, 1, TestSourceState::Fine));
    let test_host = test_host(sources.into(), 10, &["b.*"]);
    let told =
        "no resource is at `README.md`; URIs here begin with `a://`, `c://`, `job://`, for example";
    match test_host.ask(read("README.md")).await {
        Err(CallError::NotFound { message }) => assert_eq!(message, told),
        Ok(_) | Err(_) => panic!("it is not there"),
    }
}

#[tokio::test]
async fn resources_hidden_by_policy_do_not_exist_for_the_caller() {
    let sources =
        vec![source("a", 1, TestSourceState::Fine), source("b", 1, TestSourceState::Fine)];
    let test_host = test_host(sources, 10, &["a.*"]);
    assert_eq!(page(&test_host, None).await.expect("a page").0, ["b://000"]);
    match test_host.ask(HostRequest::ListTemplates).await {
        Ok(HostAnswer::Templates(all)) => assert!(all.iter().all(|one| !one.uri.starts_with("a:"))),
        Ok(_) | Err(_) => panic!("templates are listed"),
    }
    let template = CompletionTarget::Template("a://{number}".to_owned());
    for request in [
        read("a://000"),
        HostRequest::WatchResource { uri: "a://000".to_owned() },
        HostRequest::ReadFolder { uri: "a://000".to_owned(), after: None },
        HostRequest::Complete(completing(template, "")),
    ] {
        let refused = test_host.ask(request.clone()).await;
        assert!(matches!(refused, Err(CallError::NotFound { .. })), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_read_leaves_one_record() {
    let sources = vec![
        source("a", 1, TestSourceState::Fine),
        source("b", 1, TestSourceState::Fails),
        source("c", 1, TestSourceState::Hangs),
        source("d", 1, TestSourceState::Panics),
    ];
    let test_host = test_host(sources, 10, &[]);
    for uri in ["a://000", "b://000", "c://000", "d://000", "e://000"] {
        assert_eq!(test_host.ask(read(uri)).await.is_ok(), uri == "a://000", "{uri}");
    }
    let records = test_host.records();
    let expected =
        ["a.read ok", "b.read failed", "c.read timed_out", "d.read failed", "resources not_found"];
    assert_eq!(records, expected);
}

#[tokio::test]
async fn reading_a_resource_needs_the_confirmation_of_its_tool() {
    let mut parts = TestHostParts::new();
    parts.library.resources = vec![source("a", 1, TestSourceState::Fine)];
    parts.confirm = vec!["a.read".to_owned()];
    let test_host = parts.build();
    assert!(matches!(test_host.ask(read("a://000")).await, Err(CallError::NotAllowed { .. })));
    let asker = QuestionAsker::on_repeat(form_alone(), ClientAnswers::new());
    let answer = test_host.host.answer(IncomingRequest { asker, ..asked(read("a://000")) }).await;
    let Ok(HostAnswer::Questions { state, .. }) = answer else { panic!("it asks") };
    let asker = QuestionAsker::on_repeat(form_alone(), given([("toolgate.confirm", agreed())]));
    let again = IncomingRequest { asker, state: Some(state), ..asked(read("a://000")) };
    assert!(matches!(test_host.host.answer(again).await, Ok(HostAnswer::Contents(_))));
    assert_eq!(test_host.records(), ["a.read not_allowed", "a.read asks", "a.read ok"]);
}

fn completing(of: CompletionTarget, so_far: &str) -> CompletionRequest {
    let others = BTreeMap::new();
    CompletionRequest {
        target: of,
        argument: "number".to_owned(),
        prefix: so_far.to_owned(),
        other_arguments: others,
    }
}

#[tokio::test]
async fn a_completion_is_ranked_and_limited_to_a_hundred_with_the_total() {
    let test_host = test_host(vec![source("a", 1000, TestSourceState::Fine)], 10, &[]);
    let complete = async |so_far: &str| -> CompletionCandidates {
        let of = CompletionTarget::Template("a://{number}".to_owned());
        match test_host.ask(HostRequest::Complete(completing(of, so_far))).await {
            Ok(HostAnswer::Completion(completion)) => completion,
            Ok(_) | Err(_) => panic!("it is completed"),
        }
    };
    let all = complete("").await;
    assert_eq!((all.values.len(), all.total), (100, 1000));
    let some = complete("99").await;
    // 99 and 990 to 999 start with it; 199 to 899 contain it; 909 to 989 have its digits in order.
    assert_eq!(some.values[..3], ["99", "990", "991"]);
    assert_eq!((some.values.len(), some.total), (28, 28));
}

/// Prompt that greets, for tests.
struct GreetingPrompt;

#[derive(Deserialize, JsonSchema)]
struct GreetingArguments {
    whom: String,
}

impl Prompt for GreetingPrompt {
    const NAME: &'static str = "greets";
    const TITLE: &'static str = "Greets";
    const DESCRIPTION: &'static str = "Greets.";
    type Arguments = GreetingArguments;

    async fn make(
        &self,
        ctx: &ToolContext,
        GreetingArguments { whom }: GreetingArguments,
    ) -> Result<RenderedPrompt, ToolError> {
        match whom.as_str() {
            "panic" => panic!("as requested"),
            "asked" => {
                ctx.ask_form("whom", "Whom?", json!({ "type": "object" })).await?;
                Ok(RenderedPrompt::default())
            }
            _ => Ok(RenderedPrompt { description: Some(whom), ..RenderedPrompt::default() }),
        }
    }
}

/// Source of prompts with the given behavior.
struct TestPromptSource(TestSourceState);

impl PromptSource for TestPromptSource {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async {
            let _ = self.0.show().await;
            Vec::new()
        })
    }

    fn may_have(&self, name: &str) -> bool {
        name == "broken" || self.0 != TestSourceState::Hangs
    }

    fn unusable_reason(&self, name: &str) -> Option<String> {
        (name == "broken").then(|| "`broken.md:2` cannot be used: why".to_owned())
    }
}

/// A source of skills with one unusable skill.
struct UnusableSkillSource;

impl SkillSource for UnusableSkillSource {
    fn all<'a>(&'a self, _ctx: &'a ToolContext) -> ToolFuture<'a, Vec<Skill>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn get<'a>(&'a self, _ctx: &'a ToolContext, _uri: &'a str) -> ToolFuture<'a, Option<Skill>> {
        Box::pin(async { Ok(None) })
    }

    fn unusable_reason(&self, uri: &str) -> Option<String> {
        (uri == "skill://a/SKILL.md").then(|| "`a/SKILL.md` cannot be used: why".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_made_without_waiting_for_a_hanging_source_that_lacks_it() {
    let mut parts = TestHostParts::new();
    let greets: Vec<Arc<dyn AnyPrompt>> = vec![erase_prompt(GreetingPrompt)];
    parts.library.prompts = vec![
        Arc::new(TestPromptSource(TestSourceState::Hangs)),
        Arc::new(greets),
        Arc::new(TestPromptSource(TestSourceState::Hangs)),
    ];
    let test_host = parts.build();
    let arguments = PromptArguments::from([("whom".to_owned(), "Ada".to_owned())]);
    let request = HostRequest::GetPrompt { name: "greets".to_owned(), arguments };
    let made = tokio::time::timeout(Duration::from_secs(1), test_host.ask(request)).await;
    assert!(matches!(made, Ok(Ok(HostAnswer::Prompt(_)))));
}

#[tokio::test]
async fn the_first_source_with_the_strongest_claim_is_read() {
    let guessing = |name, claim| -> Arc<dyn ResourceSource> {
        let guard = guard(name);
        Arc::new(UriClaimingSource { guard, claim })
    };
    for (claims, expected) in [
        (
            [UriClaimStrength::Scheme, UriClaimStrength::Template, UriClaimStrength::Listed],
            "c.read",
        ),
        (
            [UriClaimStrength::Scheme, UriClaimStrength::Template, UriClaimStrength::Template],
            "b.read",
        ),
        ([UriClaimStrength::Scheme, UriClaimStrength::Scheme, UriClaimStrength::Scheme], "a.read"),
    ] {
        let [a, b, c] = claims;
        let sources = vec![guessing("a", a), guessing("b", b), guessing("c", c)];
        let test_host = test_host(sources, 10, &[]);
        let read = test_host.ask(HostRequest::ReadResource { uri: "x://1".to_owned() }).await;
        assert!(read.is_ok());
        assert_eq!(test_host.records(), [format!("{expected} ok")]);
    }
}

/// Resource source that claims to own every URI. `claim` tells how sure it is.
struct UriClaimingSource {
    guard: ToolSpec,
    claim: UriClaimStrength,
}

impl ResourceSource for UriClaimingSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, _uri: &str) -> bool {
        true
    }

    fn claim(&self, _uri: &str) -> Option<UriClaimStrength> {
        Some(self.claim)
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _after: Option<&'a str>,
        _at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn read<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move { Ok(vec![ResourceContents::text(uri, "text/plain", "it")]) })
    }
}

#[tokio::test]
async fn an_unusable_prompt_or_skill_is_refused_by_name_with_the_reason() {
    let mut parts = TestHostParts::new();
    parts.library.prompts = vec![Arc::new(TestPromptSource(TestSourceState::Fine))];
    parts.library.skills = vec![Arc::new(UnusableSkillSource)];
    let test_host = parts.build();
    let told = async |request: HostRequest| match test_host.ask(request).await {
        Err(CallError::NotFound { message }) => message,
        Err(err) => panic!("{err:?}"),
        Ok(_) => panic!("it is there"),
    };
    let get = |name: &str| HostRequest::GetPrompt {
        name: name.to_owned(),
        arguments: PromptArguments::new(),
    };
    let skill = |uri: &str| HostRequest::GetSkill { uri: uri.to_owned() };
    assert_eq!(told(get("broken")).await, "`broken.md:2` cannot be used: why");
    assert_eq!(told(get("other")).await, "no prompt is named `other`");
    assert_eq!(told(skill("skill://a/SKILL.md")).await, "`a/SKILL.md` cannot be used: why");
    assert_eq!(told(skill("skill://b/SKILL.md")).await, "no skill is at `skill://b/SKILL.md`");
}

#[tokio::test(start_paused = true)]
async fn each_prompt_request_leaves_one_record() {
    let mut parts = TestHostParts::new();
    let greets: Vec<Arc<dyn AnyPrompt>> = vec![erase_prompt(GreetingPrompt)];
    parts.library.prompts = vec![
        Arc::new(TestPromptSource(TestSourceState::Hangs)),
        Arc::new(TestPromptSource(TestSourceState::Panics)),
        Arc::new(greets),
    ];
    let test_host = parts.build();
    let get = |name: &str, whom: Option<&str>| {
        let whom = whom.map(|whom| ("whom".to_owned(), whom.to_owned()));
        let arguments: PromptArguments = whom.into_iter().collect();
        HostRequest::GetPrompt { name: name.to_owned(), arguments }
    };
    assert!(matches!(test_host.ask(get("greets", Some("ada"))).await, Ok(HostAnswer::Prompt(_))));
    let missing = test_host.ask(get("greets", None)).await;
    assert!(matches!(missing, Err(CallError::InvalidInput { .. })));
    let unknown = test_host.ask(get("greet", Some("ada"))).await.map(|_| ()).expect_err("unknown");
    assert!(unknown.to_string().contains("did you mean `greets`"), "{unknown}");
    assert!(test_host.ask(get("greets", Some("panic"))).await.is_err());
    let asker = QuestionAsker::on_repeat(form_alone(), ClientAnswers::new());
    let asks = test_host
        .host
        .answer(IncomingRequest { asker, ..asked(get("greets", Some("asked"))) })
        .await;
    assert!(matches!(asks, Ok(HostAnswer::Questions { .. })));
    let records = [
        "prompts.greets ok",
        "prompts.greets invalid_input",
        "prompts.greet not_found",
        "prompts.greets failed",
        "prompts.greets asks",
    ];
    assert_eq!(test_host.records(), records);
}

/// Prompt that is offered only if the policy rules allow a call of the tool `a.read`.
struct GuardedPrompt(PromptSpec, ToolSpec);

impl AnyPrompt for GuardedPrompt {
    fn spec(&self) -> &PromptSpec {
        &self.0
    }

    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.1)
    }

    fn make<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        Box::pin(async { Ok(RenderedPrompt::default()) })
    }

    fn complete<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async { Ok(vec!["a".to_owned()]) })
    }
}

#[tokio::test]
async fn a_prompt_is_hidden_and_confirmed_like_the_tool_that_guards_it() {
    let test_host = |deny: &[&str], confirm: &[&str]| {
        let spec = PromptSpec { name: "takes".to_owned(), ..PromptSpec::default() };
        let guard = ToolSpec::new(ToolId::new("a.read").expect("an id"), "", "", Effects::Reads);
        let takes: Vec<Arc<dyn AnyPrompt>> = vec![Arc::new(GuardedPrompt(spec, guard))];
        let mut parts = TestHostParts::new();
        parts.library.prompts = vec![Arc::new(takes)];
        parts.deny = deny.iter().map(|&rule| rule.to_owned()).collect();
        parts.confirm = confirm.iter().map(|&rule| rule.to_owned()).collect();
        parts.build()
    };
    let get = || {
        let name = "takes".to_owned();
        let arguments = PromptArguments::new();
        HostRequest::GetPrompt { name, arguments }
    };
    let listed = async |test_host: &TestHost| match test_host
        .ask(HostRequest::ListPrompts { after: None })
        .await
    {
        Ok(HostAnswer::Prompts(page)) => page.prompts.len(),
        Ok(_) | Err(_) => panic!("they are listed"),
    };
    let open = test_host(&[], &[]);
    assert_eq!(listed(&open).await, 1);
    assert!(open.ask(get()).await.is_ok());
    let denied = test_host(&["a.*"], &[]);
    assert_eq!(listed(&denied).await, 0);
    assert!(matches!(denied.ask(get()).await, Err(CallError::NotFound { .. })));
    let of = CompletionTarget::Prompt("takes".to_owned());
    let completed = denied.ask(HostRequest::Complete(completing(of, ""))).await;
    assert!(matches!(completed, Err(CallError::NotFound { .. })));
    let confirmed = test_host(&[], &["a.read"]);
    let refused = confirmed.ask(get()).await.map(|_| ()).expect_err("nobody is asked");
    assert!(refused.to_string().contains("tools.confirm"), "{refused}");
}

#[tokio::test]
async fn the_audit_tail_has_only_the_callers_records_and_notifies_of_new_ones() {
    let test_host = TestHostParts::new().build();
    let uri = "audit://tail";
    let mut changes = test_host.host.subscribe();
    let watched = test_host.ask(HostRequest::WatchResource { uri: uri.to_owned() }).await;
    let Ok(HostAnswer::Watched { hold, .. }) = watched else { panic!("it is watched") };
    let tail = async || match test_host.ask(read(uri)).await {
        Ok(HostAnswer::Contents(all)) => all[0].clone(),
        Ok(_) | Err(_) => panic!("it is read"),
    };
    assert_eq!(tail().await, ResourceContents::text(uri, "application/x-ndjson", ""));
    let looks = call("t.looks", json!({ "how": "not" }));
    let bobs = IncomingRequest { caller: Caller::with_key("bob"), ..asked(looks.clone()) };
    assert!(test_host.host.answer(bobs).await.is_ok());
    test_host.host.flush();
    // Ada only read the tail, and the other call was Bob's.
    let quiet = tokio::time::timeout(Duration::from_millis(300), changes.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert!(test_host.ask(looks).await.is_ok());
    let panics = call("t.looks", json!({ "how": "panics" }));
    assert!(test_host.ask(panics).await.is_err());
    let told = tokio::time::timeout(Duration::from_secs(20), changes.recv()).await;
    assert_eq!(told.expect("in time"), Ok(ServerChange::Resource(uri.into())));
    let toolgate_contract::ResourceData::Text(text) = tail().await.held else {
        panic!("it is text")
    };
    assert!(text.contains("t.looks") && text.contains("audit.read"), "{text}");
    assert!(!text.contains("bob"), "{text}");
    // The cause of a failure is only in the log.
    assert!(text.contains("failed") && !text.contains("cause"), "{text}");
    drop(hold);
}
