//! Lists and reads resources, prompts and skills. Together they are called the library.
//!
//! Lists leave no audit record. Reading a resource and rendering a prompt leave one. A failing
//! source does not hide the others: an error is returned only if all sources fail.

mod redacted_prompt;
mod skills;
mod requests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use toolgate_contract::{
    AnyPrompt, COMPLETIONS_MAX, CallError, ChangeFeed, CompletionCandidates, CompletionRequest,
    CompletionTarget, HostAnswer, KeepActiveGuard, PreparedCallValue, PromptArgument,
    PromptArguments, PromptPage, PromptSource, ResourceCursor, ResourcePage, ResourceSource,
    ResourceTemplate, SkillSource, ToolCall, ToolSpec, UriClaimStrength, ValidationProblem,
};

use crate::pipeline::{CallContext, look, run_recorded, run_unrecorded};
use crate::{Gate, did_you_mean};
use redacted_prompt::RedactedPrompt;
use requests::{FolderListRequest, PromptRenderRequest, ResourceReadRequest, ResourceWatchRequest};

/// Tool name in the audit record of a resource read that no source handles.
const UNKNOWN_SOURCE: &str = "resources";
/// Longest resource URI in bytes. The limit bounds the time that each source spends on a URI.
const URI_BYTES_MAX: usize = 16 * 1024;

/// Sources of resources, prompts and skills, and the channel of their changes.
#[derive(Default, Clone)]
pub struct ContentLibrary {
    /// Sources of resources, in listing order.
    pub resources: Vec<Arc<dyn ResourceSource>>,
    /// Sources of prompts.
    pub prompts: Vec<Arc<dyn PromptSource>>,
    /// Sources of skills.
    pub skills: Vec<Arc<dyn SkillSource>>,
    /// Sources that appear and disappear while the server runs, such as upstreams. Lists contain
    /// them after all other sources.
    pub dynamic_sources: Option<Arc<dyn DynamicContentSources>>,
    /// Channel on which changes of resources, prompts and skills are published.
    pub changes: ChangeFeed,
}

/// A set of content sources that changes over time, such as the upstreams.
pub trait DynamicContentSources: Send + Sync + 'static {
    /// Returns the current sources of resources.
    fn resources(&self) -> Vec<Arc<dyn ResourceSource>>;
    /// Returns the current sources of prompts.
    fn prompts(&self) -> Vec<Arc<dyn PromptSource>>;
    /// Returns the current sources of skills.
    fn skills(&self) -> Vec<Arc<dyn SkillSource>>;
    /// Returns usage instructions for tools, each with the name of the owner of the tools.
    fn instructions(&self) -> Vec<(String, String)>;
    /// Releases everything that the sources remember about the client session `session`, which has
    /// ended.
    fn end_session(&self, session: &str);
}

impl ContentLibrary {
    /// Returns true if one of the server's fixed resource sources may own the resource `uri`.
    pub fn may_own(&self, uri: &str) -> bool {
        let is_own = |claim: UriClaimStrength| claim != UriClaimStrength::Absent;
        self.resources.iter().any(|source| source.claim(uri).is_some_and(is_own))
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
        !(self.skills.is_empty() && self.dynamic_skills().is_empty())
    }

    /// Returns the sources of skills that may appear and disappear while the server runs.
    fn dynamic_skills(&self) -> Vec<Arc<dyn SkillSource>> {
        self.dynamic_sources.as_ref().map(|sources| sources.skills()).unwrap_or_default()
    }

    /// Returns all current sources of resources.
    pub(crate) fn all_resources(&self) -> Vec<Arc<dyn ResourceSource>> {
        let dynamic = self.dynamic_sources.as_ref().map(|sources| sources.resources());
        self.resources.iter().cloned().chain(dynamic.into_iter().flatten()).collect()
    }

    /// Returns all current sources of prompts.
    fn all_prompts(&self) -> Vec<Arc<dyn PromptSource>> {
        let dynamic = self.dynamic_sources.as_ref().map(|sources| sources.prompts());
        self.prompts.iter().cloned().chain(dynamic.into_iter().flatten()).collect()
    }
}

/// A request of one caller for resources, prompts or skills.
pub(crate) struct CallerContentRequest<'g> {
    gate: &'g Gate,
    call: ToolCall,
}

/// Combined result of a request to several sources: whether any source answered, and the first
/// failure.
#[derive(Default)]
struct MultiSourceRequestOutcome {
    any_answered: bool,
    failure: Option<CallError>,
}

impl MultiSourceRequestOutcome {
    /// Returns the answer of the source named `source`. If the source failed, logs the failure,
    /// remembers the first failure, and returns `None`.
    fn accept<T>(&mut self, source: &str, answer: Result<T, CallError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.any_answered = true;
                Some(answer)
            }
            Err(error) => {
                let cause = error.cause().unwrap_or_default();
                tracing::warn!(
                    "the list lacks the entries of `{source}`, which cannot be listed: {error} \
                     {cause}"
                );
                self.failure.get_or_insert(error);
                None
            }
        }
    }

    /// Returns the first failure if all sources failed.
    fn into_result(self) -> Result<(), CallError> {
        match self.failure {
            Some(error) if !self.any_answered => Err(error),
            Some(_) | None => Ok(()),
        }
    }
}

impl<'g> CallerContentRequest<'g> {
    pub(crate) fn new(gate: &'g Gate, call: ToolCall) -> Self {
        Self { gate, call }
    }

    /// Returns the sources of resources that the caller may see.
    fn sources(&self) -> impl Iterator<Item = Arc<dyn ResourceSource>> + use<'g> {
        let gate = self.gate;
        let caller = self.call.caller.clone();
        let sources = gate.library.all_resources().into_iter();
        sources.filter(move |source| gate.policy.shows(&caller, source.guard()))
    }

    /// Returns true if the caller may list the entries of sources to which the policy rules of the
    /// tool `guard` apply.
    fn may_list(&self, guard: &ToolSpec) -> bool {
        self.gate.policy.may_list(&self.call.caller, guard)
    }

    /// Returns the source with the strongest claim to the resource `uri`.
    ///
    /// # Errors
    /// The URI is too long, or no source that the caller may see claims the URI.
    async fn find_source(&self, uri: &str) -> Result<Arc<dyn ResourceSource>, CallError> {
        if uri.len() > URI_BYTES_MAX {
            let message = format!("the URI is longer than {URI_BYTES_MAX} bytes");
            return Err(CallError::NotFound { message });
        }
        let claim_count = || {
            let sources = self.gate.library.all_resources();
            sources.iter().filter(|source| source.claim(uri).is_some()).count()
        };
        if claim_count() == 0 {
            self.wait_for_listings().await;
        }
        if claim_count() > 1 {
            self.refresh_own_sources().await?;
        }
        let with_claim = |source: Arc<dyn ResourceSource>| Some((source.claim(uri)?, source));
        // The first of those with the strongest claim.
        let strongest = self.sources().filter_map(with_claim).min_by_key(|(claim, _)| *claim);
        strongest.map(|(_, source)| source).ok_or_else(|| self.unknown_resource(uri))
    }

    /// Waits until all upstreams have listed their resources, for a bounded time. The future is
    /// boxed to keep the futures of reads small.
    async fn wait_for_listings(&self) {
        Box::pin(self.gate.catalog.wait_for_listings(None)).await;
    }

    /// Returns the error for a resource URI without a source, with some known URI prefixes as a
    /// hint.
    fn unknown_resource(&self, uri: &str) -> CallError {
        let templates = self.sources().flat_map(|source| source.templates());
        let prefix =
            |template: ResourceTemplate| Some(format!("`{}`", template.uri.split('{').next()?));
        let prefixes: BTreeSet<_> = templates.filter_map(prefix).collect();
        let prefixes: Vec<_> = prefixes.into_iter().take(6).collect();
        let hint = match prefixes.is_empty() {
            true => String::new(),
            false => format!("; URIs here begin with {}, for example", prefixes.join(", ")),
        };
        CallError::NotFound { message: format!("no resource is at `{}`{hint}", truncate_uri(uri)) }
    }

    /// Returns the context for asking one of `count` sources, one after the other. Each source gets
    /// an equal share of the deadline.
    fn shared_look_context(&self, count: usize) -> CallContext {
        let share = self.gate.settings.deadline / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        CallContext::new(self.gate, Some(share.max(Duration::from_millis(1))), &self.call)
    }

    /// Returns an error if the caller has cancelled the request.
    fn check_cancelled(&self) -> Result<(), CallError> {
        if self.call.cancel.is_cancelled() { Err(CallError::Canceled) } else { Ok(()) }
    }

    pub(crate) async fn list_resources(
        self,
        after: Option<ResourceCursor>,
    ) -> Result<HostAnswer, CallError> {
        let gate = self.gate;
        let size = self.gate.settings.page_size;
        let sources: Vec<_> = self.sources().collect();
        let (start, mut after) = match after {
            None => (0, None),
            Some(ResourceCursor { source, uri }) => {
                let at = sources.iter().position(|it| it.guard().id.as_str() == source);
                (at.ok_or_else(stale_cursor)?, Some(uri))
            }
        };
        let mut page = ResourcePage { resources: Vec::new(), next: None };
        let mut results = MultiSourceRequestOutcome::default();
        let mut end = None;
        for (at, source) in sources.iter().enumerate().skip(start) {
            if !self.may_list(source.guard()) {
                continue;
            }
            let name = source.guard().id.as_str();
            let room = size - page.resources.len();
            let context = self.shared_look_context(sources.len());
            let after = after.take();
            // One more than fits, to learn if there is a next page.
            let listing = async { source.list(&context.ctx, after.as_deref(), room + 1).await };
            let listed = run_unrecorded(gate, &context, listing).await;
            self.check_cancelled()?;
            let Some(mut listed) = results.accept(name, listed) else { continue };
            let has_more = listed.len() > room;
            listed.truncate(room);
            // If nothing fits, the page ends in the source before.
            if let Some(last) = listed.last() {
                end = Some(ResourceCursor { source: name.to_owned(), uri: last.uri.clone() });
            }
            // If several sources list a URI, the first one is read.
            let is_listed_before = |uri: &str| {
                sources[..at]
                    .iter()
                    .any(|source| source.claim(uri) == Some(UriClaimStrength::Listed))
            };
            listed.retain(|resource| !is_listed_before(&resource.uri));
            page.resources.append(&mut listed);
            if has_more {
                page.next = end;
                break;
            }
        }
        results.into_result()?;
        gate.secrets.redact_value(&mut page.resources);
        Ok(HostAnswer::Resources(page))
    }

    pub(crate) fn list_templates(&self) -> HostAnswer {
        let mut all: Vec<_> = self.sources().flat_map(|source| source.templates()).collect();
        let mut seen = BTreeSet::new();
        // If several sources have a template, the first one is asked.
        all.retain(|template| seen.insert(template.uri.clone()));
        self.gate.secrets.redact_value(&mut all);
        HostAnswer::Templates(all)
    }

    pub(crate) async fn read_resource(self, uri: &str) -> Result<HostAnswer, CallError> {
        let source = self.find_source(uri).await;
        let Self { gate, mut call } = self;
        call.tool = match &source {
            Ok(source) => source.guard().id.to_string(),
            Err(_) => UNKNOWN_SOURCE.to_owned(),
        };
        let read = ResourceReadRequest { source, uri };
        run_recorded(gate, &mut call, read).await.map(HostAnswer::Contents)
    }

    pub(crate) async fn list_folder(
        self,
        uri: &str,
        after: Option<&str>,
    ) -> Result<HostAnswer, CallError> {
        let source = self.find_source(uri).await?;
        let Self { gate, mut call } = self;
        let size = gate.settings.page_size;
        // One more than fits, to learn if there is a next page.
        let list = FolderListRequest { source, uri, after, entries_max: size + 1 };
        let mut entries = look(gate, &mut call, list).await?;
        let has_more = entries.len() > size;
        entries.truncate(size);
        let next = entries.last().filter(|_| has_more).map(|last| last.uri.clone());
        gate.secrets.redact_value(&mut entries);
        Ok(HostAnswer::Folder(entries, next))
    }

    pub(crate) async fn watch_resource(self, uri: String) -> Result<HostAnswer, CallError> {
        let source = self.find_source(&uri).await?;
        let Self { gate, mut call } = self;
        let watch = ResourceWatchRequest { source, uri: &uri, changes: &gate.library.changes };
        let hold = look(gate, &mut call, watch).await?;
        Ok(HostAnswer::Watched { uri, hold })
    }

    /// Returns true if the caller may see `prompt`.
    fn shows_prompt(&self, prompt: &dyn AnyPrompt) -> bool {
        let policy = &self.gate.policy;
        let caller = &self.call.caller;
        match prompt.guard() {
            Some(guard) => policy.shows(caller, guard),
            None => policy.shows_text_prompts(caller, &self.gate.prompt_spec),
        }
    }

    /// Returns all current prompts that the caller may see, in order of name and without
    /// duplicates.
    pub(crate) async fn all_prompts(&self) -> Result<Vec<Arc<dyn AnyPrompt>>, CallError> {
        let mut all = Vec::new();
        let mut results = MultiSourceRequestOutcome::default();
        let sources = self.gate.library.all_prompts();
        for source in &sources {
            let context = self.shared_look_context(sources.len());
            let listing = async { Ok(source.all().await) };
            let listed = run_unrecorded(self.gate, &context, listing).await;
            self.check_cancelled()?;
            all.append(&mut results.accept("prompts", listed).unwrap_or_default());
        }
        results.into_result()?;
        // The sort is stable: of two prompts with one name, the first source's prompt remains.
        all.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        all.dedup_by(|a, b| a.spec().name == b.spec().name);
        // Filtered last: a hidden prompt still shadows others of its name.
        all.retain(|prompt| self.shows_prompt(&**prompt));
        let secrets = &self.gate.secrets;
        Ok(all.into_iter().map(|prompt| RedactedPrompt::redact(prompt, secrets)).collect())
    }

    async fn find_prompt(&self, name: &str) -> Result<Arc<dyn AnyPrompt>, CallError> {
        let sources = self.gate.library.all_prompts();
        let mut results = MultiSourceRequestOutcome::default();
        // One by one, so that nobody waits for an irrelevant source.
        for source in sources.iter().filter(|source| source.may_have(name)) {
            let context = self.shared_look_context(sources.len());
            let listing = async { Ok(source.all().await) };
            let listed = run_unrecorded(self.gate, &context, listing).await;
            self.check_cancelled()?;
            let listed = results.accept("prompts", listed).into_iter().flatten();
            let mut prompts =
                listed.map(|prompt| RedactedPrompt::redact(prompt, &self.gate.secrets));
            if let Some(prompt) = prompts.find(|prompt| prompt.spec().name == name) {
                match self.shows_prompt(&*prompt) {
                    true => return Ok(prompt),
                    false => break,
                }
            }
        }
        let all = self.all_prompts().await?;
        let found = all.iter().find(|prompt| prompt.spec().name == name).cloned();
        found.ok_or_else(|| {
            let sources = self.gate.library.all_prompts();
            if let Some(message) = sources.iter().find_map(|source| source.unusable_reason(name)) {
                return CallError::NotFound { message };
            }
            let names = all.iter().map(|prompt| prompt.spec().name.as_str());
            let hint = did_you_mean::nearest(name, names);
            let hint = hint.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            let name: String = name.chars().take(100).collect();
            CallError::NotFound { message: format!("no prompt is named `{name}`{hint}") }
        })
    }

    pub(crate) async fn list_prompts(
        &self,
        after: Option<String>,
    ) -> Result<HostAnswer, CallError> {
        let size = self.gate.settings.page_size;
        let all = self.all_prompts().await?;
        let is_after =
            |prompt: &Arc<dyn AnyPrompt>| after.as_ref().is_none_or(|a| prompt.spec().name > *a);
        let mut rest = all.into_iter().filter(is_after);
        let prompts: Vec<_> = rest.by_ref().take(size).collect();
        let next = prompts.last().filter(|_| rest.next().is_some());
        let next = next.map(|last| last.spec().name.clone());
        Ok(HostAnswer::Prompts(PromptPage { prompts, next }))
    }

    pub(crate) async fn make_prompt(
        self,
        name: &str,
        arguments: PromptArguments,
    ) -> Result<HostAnswer, CallError> {
        let tool = format!("prompts.{}", name.chars().take(100).collect::<String>());
        let mut call = ToolCall { tool, ..copy_call(&self.call) };
        let make = PromptRenderRequest { reader: &self, name, arguments };
        run_recorded(self.gate, &mut call, make).await.map(HostAnswer::Prompt)
    }

    pub(crate) async fn complete(
        self,
        request: &CompletionRequest,
    ) -> Result<HostAnswer, CallError> {
        let gate = self.gate;
        let context = CallContext::new(gate, None, &self.call);
        let (candidates, in_order) = match &request.target {
            CompletionTarget::Prompt(name) => {
                let prompt = self.find_prompt(name).await?;
                let is_requested = |argument: &PromptArgument| argument.name == request.argument;
                if !prompt.spec().arguments.iter().any(is_requested) {
                    let argument: String = request.argument.chars().take(100).collect();
                    let message = format!("the prompt `{name}` has no argument `{argument}`");
                    return Err(CallError::NotFound { message });
                }
                let completing = async {
                    match prompt.guard().is_none_or(|guard| self.may_list(guard)) {
                        true => prompt.complete(&context.ctx, request).await,
                        false => Ok(Vec::new()),
                    }
                };
                (run_unrecorded(gate, &context, completing).await?, prompt.completes_in_order())
            }
            CompletionTarget::Template(uri) => {
                let has = |source: &Arc<dyn ResourceSource>| {
                    source.templates().iter().any(|template| template.uri == *uri)
                };
                if !self.sources().any(|source| has(&source)) {
                    self.wait_for_listings().await;
                }
                let source = self.sources().find(has).ok_or_else(|| CallError::NotFound {
                    message: format!("no resource template is `{}`", truncate_uri(uri)),
                })?;
                let completing = async {
                    match self.may_list(source.guard()) {
                        true => source.complete(&context.ctx, request).await,
                        false => Ok(Vec::new()),
                    }
                };
                (run_unrecorded(gate, &context, completing).await?, source.completes_in_order())
            }
        };
        let mut values = match in_order {
            true => candidates,
            false => did_you_mean::rank_completions(&request.prefix, candidates),
        };
        let total = values.len();
        values.truncate(COMPLETIONS_MAX);
        gate.secrets.redact_value(&mut values);
        Ok(HostAnswer::Completion(CompletionCandidates { values, total }))
    }
}

impl Gate {
    /// Watches the lists of prompts and resources, as the arguments say, for as long as the
    /// returned guard is kept.
    pub(crate) fn watch_lists(&self, prompts: bool, resources: bool) -> KeepActiveGuard {
        let changes = &self.library.changes;
        let sources = self.library.all_resources();
        let prompt_sources = self.library.all_prompts();
        let sources = sources.iter().filter(|_| resources).map(|source| source.watch_list(changes));
        let prompt_sources =
            prompt_sources.iter().filter(|_| prompts).map(|source| source.watch_list(changes));
        KeepActiveGuard::new(sources.chain(prompt_sources).collect::<Vec<_>>())
    }
}

/// Returns a copy of `call` without its target and input, for a request to another target.
fn copy_call(call: &ToolCall) -> ToolCall {
    ToolCall {
        tool: String::new(),
        input: serde_json::Value::Null,
        caller: call.caller.clone(),
        dialect: call.dialect.clone(),
        cancel: call.cancel.clone(),
        events: call.events.clone(),
        job: call.job,
        asker: call.asker.clone(),
        time_limit: call.time_limit,
        metadata: call.metadata.clone(),
        started_work: PreparedCallValue::default(),
    }
}

fn stale_cursor() -> CallError {
    let message = "the cursor is no longer valid; list from the start, without a cursor";
    let problem = ValidationProblem { pointer: "/cursor".to_owned(), message: message.to_owned() };
    CallError::InvalidInput { problems: vec![problem] }
}

fn truncate_uri(uri: &str) -> String {
    uri.chars().take(300).collect()
}
