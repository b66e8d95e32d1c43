//! Lists and reads resources, prompts and skills.
//!
//! Looking leaves no audit record; reading and making a prompt leaves one. A failing source does
//! not hide the others. An error is returned only if all sources fail.

mod clean;
mod skills;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{
    Ahead, Answer, AnyPrompt, Arguments, COMPLETIONS_MAX, Call, CallError, Changes, Claim,
    Completing, CompletingOf, Completion, Hold, Problem, PromptPage, Prompts, ResourceMark,
    ResourcePage, Resources, Skills, ToolSpec,
};

use crate::pipeline::{Stand, looked};
use crate::{Gate, confirm, likeness, pipeline};
use clean::Clean;

/// Tool name in the record of a read that no source handles.
const READING: &str = "resources";
/// Longest URI in bytes. It bounds the time that each source spends on a URI.
const URI_BYTES_MAX: usize = 16 * 1024;

/// Sources of resources, prompts and skills, and the channel of their changes.
#[derive(Default, Clone)]
pub struct Library {
    /// Sources of resources, in listing order.
    pub resources: Vec<Arc<dyn Resources>>,
    /// Sources of prompts.
    pub prompts: Vec<Arc<dyn Prompts>>,
    /// Sources of skills.
    pub skills: Vec<Arc<dyn Skills>>,
    /// Sources that come and go while the server runs. They follow all others.
    pub others: Option<Arc<dyn Sources>>,
    /// Channel that changes are sent to.
    pub changes: Changes,
}

/// A set of sources that changes over time, such as the upstreams.
pub trait Sources: Send + Sync + 'static {
    /// Returns the current sources of resources.
    fn resources(&self) -> Vec<Arc<dyn Resources>>;
    /// Returns the current sources of prompts.
    fn prompts(&self) -> Vec<Arc<dyn Prompts>>;
    /// Returns the current sources of skills.
    fn skills(&self) -> Vec<Arc<dyn Skills>>;
    /// Returns usage instructions, each with the name of the owner of the tools.
    fn instructions(&self) -> Vec<(String, String)>;
    /// Releases all resources kept for `session`, which has ended.
    fn left(&self, session: &str);
}

impl Library {
    /// Returns true if a fixed source may have `uri`.
    pub fn owns(&self, uri: &str) -> bool {
        let is_own = |claim: Claim| claim != Claim::Absent;
        self.resources.iter().any(|source| source.claims(uri).is_some_and(is_own))
    }

    /// Returns true if there is a source of resources.
    pub fn has_resources(&self) -> bool {
        !self.all_resources().is_empty()
    }

    /// Returns true if there is a source of prompts.
    pub fn has_prompts(&self) -> bool {
        !self.all_prompts().is_empty()
    }

    /// Returns true if there is a source of skills.
    pub fn has_skills(&self) -> bool {
        !(self.skills.is_empty() && self.other_skills().is_empty())
    }

    /// Returns the sources of skills that come and go.
    fn other_skills(&self) -> Vec<Arc<dyn Skills>> {
        self.others.as_ref().map(|others| others.skills()).unwrap_or_default()
    }

    /// Returns all current sources of resources.
    pub(crate) fn all_resources(&self) -> Vec<Arc<dyn Resources>> {
        let others = self.others.as_ref().map(|others| others.resources());
        self.resources.iter().cloned().chain(others.into_iter().flatten()).collect()
    }

    /// Returns all current sources of prompts.
    fn all_prompts(&self) -> Vec<Arc<dyn Prompts>> {
        let others = self.others.as_ref().map(|others| others.prompts());
        self.prompts.iter().cloned().chain(others.into_iter().flatten()).collect()
    }
}

/// A library request of one caller, run through the gate.
pub(crate) struct Reader<'g> {
    gate: &'g Gate,
    call: Call,
}

/// Result of asking several sources: true if any answered, and the first failure.
#[derive(Default)]
struct Heard {
    any: bool,
    failed: Option<CallError>,
}

impl Heard {
    /// Returns the answer of a source, or logs and notes its failure.
    fn take<T>(&mut self, who: &str, said: Result<T, CallError>) -> Option<T> {
        match said {
            Ok(said) => {
                self.any = true;
                Some(said)
            }
            Err(err) => {
                let cause = err.cause().unwrap_or_default();
                tracing::warn!("a list is without what is of `{who}`: {err} {cause}");
                self.failed.get_or_insert(err);
                None
            }
        }
    }

    /// Returns the first failure if all sources failed.
    fn or_failure(self) -> Result<(), CallError> {
        match self.failed {
            Some(err) if !self.any => Err(err),
            Some(_) | None => Ok(()),
        }
    }
}

impl<'g> Reader<'g> {
    pub(crate) fn new(gate: &'g Gate, call: Call) -> Self {
        Self { gate, call }
    }

    /// Returns the sources that the caller may see.
    fn sources(&self) -> impl Iterator<Item = Arc<dyn Resources>> + use<'g> {
        let gate = self.gate;
        let caller = self.call.caller.clone();
        let sources = gate.library.all_resources().into_iter();
        sources.filter(move |source| gate.policy.shows(&caller, source.guard()))
    }

    /// Returns true if the caller may list the contents of sources that `guard` protects.
    fn tells(&self, guard: &ToolSpec) -> bool {
        self.gate.policy.tells(&self.call.caller, guard)
    }

    /// Returns the source that `uri` belongs to.
    async fn source(&self, uri: &str) -> Result<Arc<dyn Resources>, CallError> {
        if uri.len() > URI_BYTES_MAX {
            let message = format!("no resource has a URI of more than {URI_BYTES_MAX} bytes");
            return Err(CallError::NotFound { message });
        }
        let claimed = || {
            let all = self.gate.library.all_resources();
            all.iter().filter(|source| source.claims(uri).is_some()).count()
        };
        if claimed() == 0 {
            self.all_have_listed().await;
        }
        if claimed() > 1 {
            self.look_at_own().await?;
        }
        let claims = |source: Arc<dyn Resources>| Some((source.claims(uri)?, source));
        // The first of those with the strongest claim.
        let surest = self.sources().filter_map(claims).min_by_key(|(claim, _)| *claim);
        surest.map(|(_, source)| source).ok_or_else(|| self.no_resource(uri))
    }

    /// Waits until all upstreams have listed their resources, for a bounded time. Boxed to keep the
    /// futures of reads small.
    async fn all_have_listed(&self) {
        Box::pin(self.gate.catalog.listed(None)).await;
    }

    /// Checks policy and asks for confirmation before a look at `uri`.
    async fn agreed(&self, source: &dyn Resources, uri: &str) -> Result<(), CallError> {
        let caller = &self.call.caller;
        let guard = source.guard();
        let asked = source.asked(uri);
        let permit = self.gate.policy.authorise_beside(caller, guard, &asked)?;
        confirm::agreed(self.gate, guard, &self.call, &asked, &permit).await
    }

    /// Returns the error for a URI without a source, with some known URI prefixes as a hint.
    fn no_resource(&self, uri: &str) -> CallError {
        let templates = self.sources().flat_map(|source| source.templates());
        let begins = templates.filter_map(|it| Some(format!("`{}`", it.uri.split('{').next()?)));
        let begins: Vec<_> = begins.collect::<BTreeSet<_>>().into_iter().take(6).collect();
        let hint = match begins.is_empty() {
            true => String::new(),
            false => format!("; URIs here begin with {}, for example", begins.join(", ")),
        };
        CallError::NotFound { message: format!("no resource is at `{}`{hint}", shortened(uri)) }
    }

    /// Returns a call context for looking.
    fn looking(&self) -> Stand {
        Stand::of(self.gate, None, &self.call)
    }

    /// Returns a call context with an equal share of the deadline, for one of `count` sources asked
    /// in turn.
    fn looking_as_one_of(&self, count: usize) -> Stand {
        let share = self.gate.settings.deadline / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        Stand::of(self.gate, Some(share.max(Duration::from_millis(1))), &self.call)
    }

    /// Checks that the caller has not cancelled.
    fn is_wanted(&self) -> Result<(), CallError> {
        if self.call.cancel.is_cancelled() { Err(CallError::Canceled) } else { Ok(()) }
    }

    pub(crate) async fn list(self, after: Option<ResourceMark>) -> Result<Answer, CallError> {
        let gate = self.gate;
        let size = self.gate.settings.page_size;
        let sources: Vec<_> = self.sources().collect();
        let (start, mut from) = match after {
            None => (0, None),
            Some(ResourceMark { source, uri }) => {
                let at = sources.iter().position(|one| one.guard().id.as_str() == source);
                (at.ok_or_else(stale_cursor)?, Some(uri))
            }
        };
        let mut page = ResourcePage { resources: Vec::new(), next: None };
        let mut heard = Heard::default();
        let mut end = None;
        for (at, source) in sources.iter().enumerate().skip(start) {
            if !self.tells(source.guard()) {
                continue;
            }
            let name = source.guard().id.as_str();
            let room = size - page.resources.len();
            let stand = self.looking_as_one_of(sources.len());
            let after = from.take();
            // Ask for one more than fits, to learn if there is a next page.
            let listing = async { source.list(&stand.ctx, after.as_deref(), room + 1).await };
            let listed = looked(gate, &stand, listing).await;
            self.is_wanted()?;
            let Some(mut listed) = heard.take(name, listed) else { continue };
            let more = listed.len() > room;
            listed.truncate(room);
            // If nothing fits, the page ends in the source before.
            if let Some(last) = listed.last() {
                end = Some(ResourceMark { source: name.to_owned(), uri: last.uri.clone() });
            }
            // If several sources list a URI, the first one is read.
            let is_of =
                |source: &Arc<dyn Resources>, uri: &str| source.claims(uri) == Some(Claim::Listed);
            listed.retain(|one| !sources[..at].iter().any(|source| is_of(source, &one.uri)));
            page.resources.append(&mut listed);
            if more {
                page.next = end;
                break;
            }
        }
        heard.or_failure()?;
        gate.secrets.clear(&mut page.resources);
        Ok(Answer::Resources(page))
    }

    pub(crate) fn templates(&self) -> Answer {
        let mut all: Vec<_> = self.sources().flat_map(|source| source.templates()).collect();
        let mut seen = BTreeSet::new();
        // If several sources have a template, the first one is asked.
        all.retain(|template| seen.insert(template.uri.clone()));
        self.gate.secrets.clear(&mut all);
        Answer::Templates(all)
    }

    pub(crate) async fn read(self, uri: &str) -> Result<Answer, CallError> {
        let found = self.source(uri).await;
        let Self { gate, mut call } = self;
        call.tool = match &found {
            Ok(source) => source.guard().id.to_string(),
            Err(_) => READING.to_owned(),
        };
        let found = match &found {
            Ok(source) => Ok(&**source),
            Err(missing) => Err(missing.clone()),
        };
        pipeline::read(gate, found, call, uri).await.map(Answer::Contents)
    }

    pub(crate) async fn folder(self, uri: &str, after: Option<&str>) -> Result<Answer, CallError> {
        let source = self.source(uri).await?;
        self.agreed(&*source, uri).await?;
        let gate = self.gate;
        let size = self.gate.settings.page_size;
        let stand = self.looking();
        let listing = async { source.folder(&stand.ctx, uri, after, size + 1).await };
        let mut found = looked(gate, &stand, listing).await?;
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|last| last.uri.clone());
        gate.secrets.clear(&mut found);
        Ok(Answer::Folder(found, next))
    }

    pub(crate) async fn watch(self, uri: String) -> Result<Answer, CallError> {
        let source = self.source(&uri).await?;
        self.agreed(&*source, &uri).await?;
        let gate = self.gate;
        let stand = self.looking();
        let watching = async { source.watch(&stand.ctx, &uri, &gate.library.changes).await };
        let hold = looked(gate, &stand, watching).await?;
        Ok(Answer::Watched { uri, hold })
    }

    /// Returns true if the caller may see `prompt`.
    fn shows(&self, prompt: &dyn AnyPrompt) -> bool {
        let policy = &self.gate.policy;
        let caller = &self.call.caller;
        match prompt.guard() {
            Some(guard) => policy.shows(caller, guard),
            None => policy.shows_words(caller, &self.gate.prompting),
        }
    }

    /// Returns all current prompts that the caller may see, in order of name and without
    /// duplicates.
    pub(crate) async fn all_prompts(&self) -> Result<Vec<Arc<dyn AnyPrompt>>, CallError> {
        let mut all = Vec::new();
        let mut heard = Heard::default();
        let sources = self.gate.library.all_prompts();
        for source in &sources {
            let stand = self.looking_as_one_of(sources.len());
            let said = looked(self.gate, &stand, async { Ok(source.all().await) }).await;
            self.is_wanted()?;
            all.append(&mut heard.take("prompts", said).unwrap_or_default());
        }
        heard.or_failure()?;
        // The sort is stable: of two prompts with one name, the first source's prompt remains.
        all.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        all.dedup_by(|a, b| a.spec().name == b.spec().name);
        // Filtered last: a hidden prompt still shadows others of its name.
        all.retain(|prompt| self.shows(&**prompt));
        let secrets = &self.gate.secrets;
        Ok(all.into_iter().map(|prompt| Clean::of(prompt, secrets)).collect())
    }

    async fn prompt(&self, name: &str) -> Result<Arc<dyn AnyPrompt>, CallError> {
        let sources = self.gate.library.all_prompts();
        let mut heard = Heard::default();
        // One by one, so that nobody waits for an irrelevant source.
        for source in sources.iter().filter(|source| source.may_have(name)) {
            let stand = self.looking_as_one_of(sources.len());
            let said = looked(self.gate, &stand, async { Ok(source.all().await) }).await;
            self.is_wanted()?;
            let said = heard.take("prompts", said).into_iter().flatten();
            let mut said = said.map(|prompt| Clean::of(prompt, &self.gate.secrets));
            if let Some(prompt) = said.find(|prompt| prompt.spec().name == name) {
                match self.shows(&*prompt) {
                    true => return Ok(prompt),
                    false => break,
                }
            }
        }
        let all = self.all_prompts().await?;
        let found = all.iter().find(|prompt| prompt.spec().name == name).cloned();
        found.ok_or_else(|| {
            let sources = self.gate.library.all_prompts();
            if let Some(message) = sources.iter().find_map(|source| source.trouble(name)) {
                return CallError::NotFound { message };
            }
            let names = all.iter().map(|prompt| prompt.spec().name.as_str());
            let hint = likeness::nearest(name, names);
            let hint = hint.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            let name: String = name.chars().take(100).collect();
            CallError::NotFound { message: format!("no prompt is named `{name}`{hint}") }
        })
    }

    pub(crate) async fn list_prompts(&self, after: Option<String>) -> Result<Answer, CallError> {
        let size = self.gate.settings.page_size;
        let all = self.all_prompts().await?;
        let is_after =
            |prompt: &Arc<dyn AnyPrompt>| after.as_ref().is_none_or(|a| prompt.spec().name > *a);
        let mut rest = all.into_iter().filter(is_after);
        let prompts: Vec<_> = rest.by_ref().take(size).collect();
        let next = prompts.last().filter(|_| rest.next().is_some());
        let next = next.map(|last| last.spec().name.clone());
        Ok(Answer::Prompts(PromptPage { prompts, next }))
    }

    pub(crate) async fn make(self, name: &str, told: Arguments) -> Result<Answer, CallError> {
        let tool = format!("prompts.{}", name.chars().take(100).collect::<String>());
        let call = Call { tool, ..copy(&self.call) };
        pipeline::make(self.gate, name, self.prompt(name), call, told).await.map(Answer::Prompt)
    }

    pub(crate) async fn complete(self, asked: &Completing) -> Result<Answer, CallError> {
        let gate = self.gate;
        let stand = self.looking();
        let (all, in_order) = match &asked.of {
            CompletingOf::Prompt(name) => {
                let prompt = self.prompt(name).await?;
                if prompt.spec().arguments.iter().all(|one| one.name != asked.argument) {
                    let argument: String = asked.argument.chars().take(100).collect();
                    let message = format!("the prompt `{name}` has no `{argument}`");
                    return Err(CallError::NotFound { message });
                }
                let all = async {
                    match prompt.guard().is_none_or(|guard| self.tells(guard)) {
                        true => prompt.complete(&stand.ctx, asked).await,
                        false => Ok(Vec::new()),
                    }
                };
                (looked(gate, &stand, all).await?, prompt.completes_in_order())
            }
            CompletingOf::Template(uri) => {
                let has = |source: &Arc<dyn Resources>| {
                    source.templates().iter().any(|template| template.uri == *uri)
                };
                if !self.sources().any(|source| has(&source)) {
                    self.all_have_listed().await;
                }
                let source = self.sources().find(has).ok_or_else(|| CallError::NotFound {
                    message: format!("no resource template is `{}`", shortened(uri)),
                })?;
                let all = async {
                    match self.tells(source.guard()) {
                        true => source.complete(&stand.ctx, asked).await,
                        false => Ok(Vec::new()),
                    }
                };
                (looked(gate, &stand, all).await?, source.completes_in_order())
            }
        };
        let mut values = if in_order { all } else { likeness::ranked(&asked.so_far, all) };
        let total = values.len();
        values.truncate(COMPLETIONS_MAX);
        gate.secrets.clear(&mut values);
        Ok(Answer::Completion(Completion { values, total }))
    }
}

impl Gate {
    /// Watches the lists of prompts and resources for as long as the returned guard is kept.
    pub(crate) fn watch_lists(&self, prompts: bool, resources: bool) -> Hold {
        let changes = &self.library.changes;
        let sources = self.library.all_resources();
        let books = self.library.all_prompts();
        let sources = sources.iter().filter(|_| resources).map(|one| one.watch_list(changes));
        let books = books.iter().filter(|_| prompts).map(|one| one.watch_list(changes));
        Hold::of(sources.chain(books).collect::<Vec<_>>())
    }
}

/// Returns a copy of the call without its target and input.
fn copy(call: &Call) -> Call {
    Call {
        tool: String::new(),
        input: serde_json::Value::Null,
        caller: call.caller.clone(),
        dialect: call.dialect.clone(),
        cancel: call.cancel.clone(),
        events: call.events.clone(),
        job: call.job,
        asker: call.asker.clone(),
        within: call.within,
        beside: call.beside.clone(),
        ahead: Ahead::default(),
    }
}

fn stale_cursor() -> CallError {
    let message =
        "what it stands after is not there any more; list from the start, without a cursor";
    let problem = Problem { pointer: "/cursor".to_owned(), message: message.to_owned() };
    CallError::InvalidInput { problems: vec![problem] }
}

fn shortened(uri: &str) -> String {
    uri.chars().take(300).collect()
}
