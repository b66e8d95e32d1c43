//! What can be read: listed whole whatever fails, read by the gate, completed.

use std::collections::BTreeMap;

use toolgate_contract::{
    AnyPrompt, BoxFuture, Completion, CompletionRequest, CompletionTarget, Prompt, PromptArguments,
    PromptSource, PromptSpec, PromptText, ResourceContents, ResourceCursor, ResourceSource,
    ResourceSpec, ResourceTemplate, ServerChange, Skill, SkillSource, ToolId, ToolSpec, UriClaim,
    erase_prompt,
};

use super::*;

/// How a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Fine,
    Fails,
    Hangs,
    Panics,
}

impl Mood {
    async fn show(self) -> Result<(), ToolError> {
        match self {
            Self::Fine => Ok(()),
            Self::Fails => Err(ToolError::failed("it fails")),
            Self::Hangs => std::future::pending().await,
            Self::Panics => panic!("as it was told"),
        }
    }
}

/// Resources `NAME://0`, `NAME://1` and so on.
struct Shelf {
    name: &'static str,
    guard: ToolSpec,
    count: usize,
    mood: Mood,
}

fn guard(name: &str) -> ToolSpec {
    let id = ToolId::new(&format!("{name}.read")).expect("an id");
    ToolSpec::new(id, name, name, Effects::Reads)
}

fn shelf(name: &'static str, count: usize, mood: Mood) -> Arc<dyn ResourceSource> {
    let guard = guard(name);
    Arc::new(Shelf { name, guard, count, mood })
}

impl ResourceSource for Shelf {
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
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async move {
            self.mood.show().await?;
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
    ) -> BoxFuture<'a, Result<Vec<ResourceContents>, ToolError>> {
        Box::pin(async move {
            self.mood.show().await?;
            Ok(vec![ResourceContents::text(uri, "text/plain", "it")])
        })
    }

    fn complete<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _asked: &'a CompletionRequest,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async move {
            self.mood.show().await?;
            Ok((0..self.count).map(|number| number.to_string()).collect())
        })
    }
}

fn house(shelves: Vec<Arc<dyn ResourceSource>>, page_size: usize, deny: &[&str]) -> House {
    let mut plan = Plan::new();
    plan.library.resources = shelves;
    plan.settings.page_size = page_size;
    plan.deny = ["audit.*"].iter().chain(deny).map(|rule| (*rule).to_owned()).collect();
    plan.build()
}

async fn page(
    house: &House,
    after: Option<ResourceCursor>,
) -> Result<(Vec<String>, Option<ResourceCursor>), CallError> {
    match house.ask(HostRequest::ListResources { after }).await? {
        HostAnswer::Resources(page) => {
            Ok((page.resources.into_iter().map(|one| one.uri).collect(), page.next))
        }
        _ => panic!("it answers with something else"),
    }
}

#[tokio::test]
async fn however_long_a_page_is_all_pages_have_each_resource_of_all_sources_once() {
    for counts in [[3, 0, 4], [2, 2, 2], [0, 0, 1], [5, 1, 0], [0, 0, 0]] {
        for size in 1..=8 {
            // Not in order: a page that ends where a source does goes on at the start of the next.
            let names = ["z", "a", "m"];
            let shelves = names.iter().zip(counts);
            let shelves = shelves.map(|(name, count)| shelf(name, count, Mood::Fine)).collect();
            let house = house(shelves, size, &[]);
            let mut all = Vec::new();
            let mut after = None;
            loop {
                let (mut uris, next) = page(&house, after).await.expect("a page");
                assert!(uris.len() <= size);
                assert!(next.is_none() || uris.len() == size, "a page is full but for the last");
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
async fn a_source_that_fails_hides_no_other_and_is_told_only_where_all_fail() {
    for mood in [Mood::Fails, Mood::Hangs, Mood::Panics] {
        let shelves = vec![shelf("a", 1, mood), shelf("b", 1, Mood::Fine), shelf("c", 1, mood)];
        let house_of_three = house(shelves, 10, &[]);
        let (uris, next) = page(&house_of_three, None).await.expect("a page");
        assert_eq!((uris, next), (vec!["b://000".to_owned()], None), "{mood:?}");
        let alone = house(vec![shelf("a", 1, mood)], 10, &["jobs.*"]);
        assert!(page(&alone, None).await.is_err(), "{mood:?}");
    }
}

#[tokio::test]
async fn a_cursor_in_a_source_that_is_gone_is_refused_as_such() {
    let house = house(vec![shelf("a", 2, Mood::Fine)], 1, &[]);
    let source = "b.read".to_owned();
    let uri = "b://000".to_owned();
    let refused = page(&house, Some(ResourceCursor { source, uri })).await;
    assert!(matches!(refused, Err(CallError::InvalidInput { .. })));
}

#[tokio::test]
async fn who_asks_for_no_uri_is_told_how_those_begin_that_they_may_see() {
    let shelves = ["a", "b", "c"].map(|name| shelf(name, 1, Mood::Fine));
    let house = house(shelves.into(), 10, &["b.*"]);
    let told =
        "no resource is at `README.md`; URIs here begin with `a://`, `c://`, `job://`, for example";
    match house.ask(read("README.md")).await {
        Err(CallError::NotFound { message }) => assert_eq!(message, told),
        Ok(_) | Err(_) => panic!("it is not there"),
    }
}

#[tokio::test]
async fn what_policy_hides_is_not_there() {
    let shelves = vec![shelf("a", 1, Mood::Fine), shelf("b", 1, Mood::Fine)];
    let house = house(shelves, 10, &["a.*"]);
    assert_eq!(page(&house, None).await.expect("a page").0, ["b://000"]);
    match house.ask(HostRequest::ListTemplates).await {
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
        let refused = house.ask(request.clone()).await;
        assert!(matches!(refused, Err(CallError::NotFound { .. })), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_read_leaves_one_record_however_it_ends() {
    let shelves = vec![
        shelf("a", 1, Mood::Fine),
        shelf("b", 1, Mood::Fails),
        shelf("c", 1, Mood::Hangs),
        shelf("d", 1, Mood::Panics),
    ];
    let house = house(shelves, 10, &[]);
    for uri in ["a://000", "b://000", "c://000", "d://000", "e://000"] {
        assert_eq!(house.ask(read(uri)).await.is_ok(), uri == "a://000", "{uri}");
    }
    let records = house.records();
    let expected =
        ["a.read ok", "b.read failed", "c.read timed_out", "d.read failed", "resources not_found"];
    assert_eq!(records, expected);
}

#[tokio::test]
async fn what_a_person_is_to_confirm_is_confirmed_when_it_is_read_as_a_resource_too() {
    let mut plan = Plan::new();
    plan.library.resources = vec![shelf("a", 1, Mood::Fine)];
    plan.confirm = vec!["a.read".to_owned()];
    let house = plan.build();
    assert!(matches!(house.ask(read("a://000")).await, Err(CallError::NotAllowed { .. })));
    let asker = Asker::on_repeat(form_alone(), ClientAnswers::new());
    let answer = house.host.answer(IncomingRequest { asker, ..asked(read("a://000")) }).await;
    let Ok(HostAnswer::Questions { state, .. }) = answer else { panic!("it asks") };
    let asker = Asker::on_repeat(form_alone(), given([("toolgate.confirm", agreed())]));
    let again = IncomingRequest { asker, state: Some(state), ..asked(read("a://000")) };
    assert!(matches!(house.host.answer(again).await, Ok(HostAnswer::Contents(_))));
    assert_eq!(house.records(), ["a.read not_allowed", "a.read asks", "a.read ok"]);
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
async fn a_completion_is_ranked_and_no_longer_than_a_hundred_and_says_how_many_there_are() {
    let house = house(vec![shelf("a", 1000, Mood::Fine)], 10, &[]);
    let complete = async |so_far: &str| -> Completion {
        let of = CompletionTarget::Template("a://{number}".to_owned());
        match house.ask(HostRequest::Complete(completing(of, so_far))).await {
            Ok(HostAnswer::Completion(completion)) => completion,
            Ok(_) | Err(_) => panic!("it is completed"),
        }
    };
    let all = complete("").await;
    assert_eq!((all.values.len(), all.total), (100, 1000));
    let some = complete("99").await;
    // 99 and 990 to 999 begin so; 199 to 899 hold it; 909 to 989 have its letters in order.
    assert_eq!(some.values[..3], ["99", "990", "991"]);
    assert_eq!((some.values.len(), some.total), (28, 28));
}

/// A greeting.
struct Greets;

#[derive(Deserialize, JsonSchema)]
struct Whom {
    whom: String,
}

impl Prompt for Greets {
    const NAME: &'static str = "greets";
    const TITLE: &'static str = "Greets";
    const DESCRIPTION: &'static str = "Greets.";
    type Arguments = Whom;

    async fn make(&self, ctx: &ToolContext, Whom { whom }: Whom) -> Result<PromptText, ToolError> {
        match whom.as_str() {
            "panic" => panic!("as it was told"),
            "asked" => {
                ctx.ask_form("whom", "Whom?", json!({ "type": "object" })).await?;
                Ok(PromptText::default())
            }
            _ => Ok(PromptText { description: Some(whom), ..PromptText::default() }),
        }
    }
}

/// A source of prompts that is broken.
struct Broken(Mood);

impl PromptSource for Broken {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async {
            let _ = self.0.show().await;
            Vec::new()
        })
    }

    fn may_have(&self, name: &str) -> bool {
        name == "broken" || self.0 != Mood::Hangs
    }

    fn unusable_reason(&self, name: &str) -> Option<String> {
        (name == "broken").then(|| "`broken.md:2` cannot be used: why".to_owned())
    }
}

/// A source of skills of which one cannot be used.
struct Spoilt;

impl SkillSource for Spoilt {
    fn all<'a>(&'a self, _ctx: &'a ToolContext) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn get<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>> {
        Box::pin(async { Ok(None) })
    }

    fn unusable_reason(&self, uri: &str) -> Option<String> {
        (uri == "skill://a/SKILL.md").then(|| "`a/SKILL.md` cannot be used: why".to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_made_without_waiting_for_a_source_that_hangs_and_has_it_not() {
    let mut plan = Plan::new();
    let greets: Vec<Arc<dyn AnyPrompt>> = vec![erase_prompt(Greets)];
    plan.library.prompts =
        vec![Arc::new(Broken(Mood::Hangs)), Arc::new(greets), Arc::new(Broken(Mood::Hangs))];
    let house = plan.build();
    let arguments = PromptArguments::from([("whom".to_owned(), "Ada".to_owned())]);
    let request = HostRequest::GetPrompt { name: "greets".to_owned(), arguments };
    let made = tokio::time::timeout(Duration::from_secs(1), house.ask(request)).await;
    assert!(matches!(made, Ok(Ok(HostAnswer::Prompt(_)))));
}

#[tokio::test]
async fn of_several_sources_the_surest_is_read_from_and_of_those_the_first() {
    let guessing = |name, claim| -> Arc<dyn ResourceSource> {
        let guard = guard(name);
        Arc::new(Guesses { guard, claim })
    };
    for (claims, expected) in [
        ([UriClaim::Scheme, UriClaim::Template, UriClaim::Listed], "c.read"),
        ([UriClaim::Scheme, UriClaim::Template, UriClaim::Template], "b.read"),
        ([UriClaim::Scheme, UriClaim::Scheme, UriClaim::Scheme], "a.read"),
    ] {
        let [a, b, c] = claims;
        let shelves = vec![guessing("a", a), guessing("b", b), guessing("c", c)];
        let house = house(shelves, 10, &[]);
        let read = house.ask(HostRequest::ReadResource { uri: "x://1".to_owned() }).await;
        assert!(read.is_ok());
        assert_eq!(house.records(), [format!("{expected} ok")]);
    }
}

/// A source that has every URI, as surely as it says.
struct Guesses {
    guard: ToolSpec,
    claim: UriClaim,
}

impl ResourceSource for Guesses {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, _uri: &str) -> bool {
        true
    }

    fn claim(&self, _uri: &str) -> Option<UriClaim> {
        Some(self.claim)
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _after: Option<&'a str>,
        _at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn read<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ResourceContents>, ToolError>> {
        Box::pin(async move { Ok(vec![ResourceContents::text(uri, "text/plain", "it")]) })
    }
}

#[tokio::test]
async fn what_cannot_be_used_says_why_to_whoever_asks_for_it_by_name() {
    let mut plan = Plan::new();
    plan.library.prompts = vec![Arc::new(Broken(Mood::Fine))];
    plan.library.skills = vec![Arc::new(Spoilt)];
    let house = plan.build();
    let told = async |request: HostRequest| match house.ask(request).await {
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
async fn each_prompt_made_leaves_one_record_however_it_ends_and_whatever_other_sources_do() {
    let mut plan = Plan::new();
    let greets: Vec<Arc<dyn AnyPrompt>> = vec![erase_prompt(Greets)];
    plan.library.prompts =
        vec![Arc::new(Broken(Mood::Hangs)), Arc::new(Broken(Mood::Panics)), Arc::new(greets)];
    let house = plan.build();
    let get = |name: &str, whom: Option<&str>| {
        let whom = whom.map(|whom| ("whom".to_owned(), whom.to_owned()));
        let arguments: PromptArguments = whom.into_iter().collect();
        HostRequest::GetPrompt { name: name.to_owned(), arguments }
    };
    assert!(matches!(house.ask(get("greets", Some("ada"))).await, Ok(HostAnswer::Prompt(_))));
    let missing = house.ask(get("greets", None)).await;
    assert!(matches!(missing, Err(CallError::InvalidInput { .. })));
    let unknown = house.ask(get("greet", Some("ada"))).await.map(|_| ()).expect_err("unknown");
    assert!(unknown.to_string().contains("did you mean `greets`"), "{unknown}");
    assert!(house.ask(get("greets", Some("panic"))).await.is_err());
    let asker = Asker::on_repeat(form_alone(), ClientAnswers::new());
    let asks =
        house.host.answer(IncomingRequest { asker, ..asked(get("greets", Some("asked"))) }).await;
    assert!(matches!(asks, Ok(HostAnswer::Questions { .. })));
    let records = [
        "prompts.greets ok",
        "prompts.greets invalid_input",
        "prompts.greet not_found",
        "prompts.greets failed",
        "prompts.greets asks",
    ];
    assert_eq!(house.records(), records);
}

/// A prompt that takes in what `a.read` reads.
struct Takes(PromptSpec, ToolSpec);

impl AnyPrompt for Takes {
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
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        Box::pin(async { Ok(PromptText::default()) })
    }

    fn complete<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _asked: &'a CompletionRequest,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(async { Ok(vec!["a".to_owned()]) })
    }
}

#[tokio::test]
async fn a_prompt_that_takes_in_what_a_tool_reads_is_hidden_and_confirmed_as_that_tool_is() {
    let house = |deny: &[&str], confirm: &[&str]| {
        let spec = PromptSpec { name: "takes".to_owned(), ..PromptSpec::default() };
        let guard = ToolSpec::new(ToolId::new("a.read").expect("an id"), "", "", Effects::Reads);
        let takes: Vec<Arc<dyn AnyPrompt>> = vec![Arc::new(Takes(spec, guard))];
        let mut plan = Plan::new();
        plan.library.prompts = vec![Arc::new(takes)];
        plan.deny = deny.iter().map(|&rule| rule.to_owned()).collect();
        plan.confirm = confirm.iter().map(|&rule| rule.to_owned()).collect();
        plan.build()
    };
    let get = || {
        let name = "takes".to_owned();
        let arguments = PromptArguments::new();
        HostRequest::GetPrompt { name, arguments }
    };
    let listed =
        async |house: &House| match house.ask(HostRequest::ListPrompts { after: None }).await {
            Ok(HostAnswer::Prompts(page)) => page.prompts.len(),
            Ok(_) | Err(_) => panic!("they are listed"),
        };
    let open = house(&[], &[]);
    assert_eq!(listed(&open).await, 1);
    assert!(open.ask(get()).await.is_ok());
    let denied = house(&["a.*"], &[]);
    assert_eq!(listed(&denied).await, 0);
    assert!(matches!(denied.ask(get()).await, Err(CallError::NotFound { .. })));
    let of = CompletionTarget::Prompt("takes".to_owned());
    let completed = denied.ask(HostRequest::Complete(completing(of, ""))).await;
    assert!(matches!(completed, Err(CallError::NotFound { .. })));
    let confirmed = house(&[], &["a.read"]);
    let refused = confirmed.ask(get()).await.map(|_| ()).expect_err("nobody is asked");
    assert!(refused.to_string().contains("tools.confirm"), "{refused}");
}

#[tokio::test]
async fn the_audit_tail_has_the_callers_records_alone_and_tells_of_new_ones_but_of_looking() {
    let house = Plan::new().build();
    let uri = "audit://tail";
    let mut changes = house.host.subscribe();
    let watched = house.ask(HostRequest::WatchResource { uri: uri.to_owned() }).await;
    let Ok(HostAnswer::Watched { hold, .. }) = watched else { panic!("it is watched") };
    let tail = async || match house.ask(read(uri)).await {
        Ok(HostAnswer::Contents(all)) => all[0].clone(),
        Ok(_) | Err(_) => panic!("it is read"),
    };
    assert_eq!(tail().await, ResourceContents::text(uri, "application/x-ndjson", ""));
    let looks = call("t.looks", json!({ "how": "not" }));
    let bobs = IncomingRequest { caller: Caller::with_key("bob"), ..asked(looks.clone()) };
    assert!(house.host.answer(bobs).await.is_ok());
    house.host.flush();
    // Neither was of anything that Ada did but look.
    let quiet = tokio::time::timeout(Duration::from_millis(300), changes.recv()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert!(house.ask(looks).await.is_ok());
    let panics = call("t.looks", json!({ "how": "panics" }));
    assert!(house.ask(panics).await.is_err());
    let told = tokio::time::timeout(Duration::from_secs(20), changes.recv()).await;
    assert_eq!(told.expect("in time"), Ok(ServerChange::Resource(uri.into())));
    let toolgate_contract::ResourceData::Text(text) = tail().await.held else {
        panic!("it is text")
    };
    assert!(text.contains("t.looks") && text.contains("audit.read"), "{text}");
    assert!(!text.contains("bob"), "{text}");
    // Why it failed is for the log alone.
    assert!(text.contains("failed") && !text.contains("cause"), "{text}");
    drop(hold);
}
