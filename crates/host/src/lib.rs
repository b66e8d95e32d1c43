//! Answers requests with one catalog of tools and one call path: every call passes the gate in
//! `pipeline.rs`.
//!
//! The host knows no socket and no protocol. A dialect encodes its answers for the wire.

mod pipeline;
mod known;
mod witness;
mod gauges;
mod catalog;
mod schemas;
mod validate;
mod wording;
mod policy;
mod scopes;
mod limits;
mod audit;
mod secrets;
mod jobs;
mod library;
mod envelopes;
mod likeness;
mod mirrored;
mod confirm;
mod patience;
mod rounds;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    Ahead, Answer, AnyTool, AsJob, Askable, Asker, Beside, Call, CallError, Caller, Change,
    Effects, EventSink, Hold, Interest, Job, Request, Resources, ToolId, ToolPage, ToolSpec,
};

use catalog::{Current, Entry};
use jobs::{AskLater, Wanted};
use library::Reader;
use rounds::Rounds;

pub use audit::{
    Audit, Broken as BrokenAudit, Destination as AuditDestination, Key as AuditKey,
    ToFile as AuditFile, Whole as WholeAudit, audit_guard, verify as verify_audit,
};
pub use catalog::{Catalog, CatalogError, Listed, NotOffered};
pub use envelopes::{EnvelopeLog, EnvelopeSettings, Envelopes};
pub use gauges::{Gauges, JobGauge, PoolGauge, RecordGauge};
pub use jobs::{
    Adopted, Answered, Begun, End, Handle as JobsHandle, JobSettings, Jobs, May, NewJob, Orphan,
    Said, SqliteStore, Store, StoreError,
};
pub use library::{Library, Sources};
pub use limits::{Limits, Quantity, Rate};
pub use policy::{
    BadRule, Decision, Effect as PolicyEffect, Explained, KnownTools, Policy, PolicyRule,
    check_pattern,
};
pub use schemas::{
    Checker, Counts, Fingerprint, NoToolIo, SchemaError, SchemaFile, SchemaFiles, SchemaRegistry,
    Shared, Side, ToolIoValidators,
};
pub use scopes::Scope;
pub use secrets::{REDACTED, Secrets};
pub use validate::{OutputCheck, OutputChecks};
pub use witness::{Begins, Called, Ends, Seen, Witness};

/// Change notifications that may wait for one slow listener.
const CHANGES_WAITING: usize = 1024;

/// Answers requests: lists the catalog, runs calls through the gate, and keeps jobs.
pub struct Host {
    gate: Arc<Gate>,
    jobs: Option<Jobs>,
    envelopes: Envelopes,
}

/// Catalog, policy, limits and audit log that every call passes through.
pub struct Gate {
    pub(crate) catalog: Current,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) settings: Settings,
    pub(crate) library: Library,
    /// Channel on which changes of the library reach listeners.
    pub(crate) told: broadcast::Sender<Change>,
    pub(crate) rounds: Rounds,
    /// Tool spec under which limits count the making of a prompt.
    pub(crate) prompting: ToolSpec,
    /// Secrets that are redacted from refusals and records.
    pub(crate) secrets: Secrets,
    /// Observer of the start and end of each call.
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

/// Deadlines, output checks and page size of a gate.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Deadline of a call if its tool sets none; 60 s by default.
    pub deadline: Duration,
    /// Deadline of a job if its tool sets none; 24 h by default.
    pub job_deadline: Duration,
    /// Longest total wait of a call for answers to its questions, beyond its deadline; 10 min by
    /// default. A job may wait as long as jobs may run.
    pub answer_wait: Duration,
    /// Time that a cancelled call has to stop by itself before it is dropped; 2 s by default.
    pub cancel_grace: Duration,
    /// Treatment of output that breaks its schema; enforced by default.
    pub output_checks: OutputChecks,
    /// Largest number of tools in one page of a list; 200 by default.
    pub page_size: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            job_deadline: Duration::from_secs(24 * 3600),
            answer_wait: Duration::from_secs(600),
            cancel_grace: Duration::from_secs(2),
            output_checks: OutputCheck::Enforce.into(),
            page_size: 200,
        }
    }
}

impl Settings {
    /// Returns the deadline of `call` for a tool that sets none.
    pub(crate) fn deadline_of(&self, call: &Call) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.deadline }
    }

    /// Returns how long `call` may wait for answers beyond its deadline.
    pub(crate) fn patience_of(&self, call: &Call) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.answer_wait }
    }
}

/// Returns the tools that start and manage the jobs in `handle`.
pub fn job_tools(handle: &JobsHandle) -> Vec<Arc<dyn AnyTool>> {
    jobs::tools(handle)
}

/// Returns the resources that expose the jobs in `handle`.
pub fn job_resources(handle: &JobsHandle) -> Arc<dyn Resources> {
    jobs::resources(handle)
}

/// A request with its caller and its connection to the client.
pub struct Asked {
    /// The request itself.
    pub request: Request,
    /// The caller of the request.
    pub caller: Caller,
    /// Name of the dialect that the request came by.
    pub dialect: &'static str,
    /// Token that is cancelled when the client no longer wants the answer.
    pub cancel: CancellationToken,
    /// Sink for events of the call, such as progress.
    pub events: EventSink,
    /// Channel for questions to the client while the call runs.
    pub asker: Asker,
    /// Sealed state that the host sent with its questions, if this request answers them.
    pub state: Option<String>,
    /// Metadata that came with the request, such as headers and trace context.
    pub beside: Beside,
    /// Time limit of the wire, if that is shorter than the tool's deadline.
    pub within: Option<Duration>,
}

impl Asked {
    /// Creates a request of `caller` from which no questions are asked and no events are sent.
    pub fn plain(request: Request, caller: Caller, dialect: &'static str) -> Self {
        Self {
            request,
            caller,
            dialect,
            cancel: CancellationToken::new(),
            events: EventSink::none(),
            asker: Asker::nobody(),
            state: None,
            beside: Beside::default(),
            within: None,
        }
    }
}

impl Gate {
    /// Creates a gate around `catalog` with an empty library, no secrets and no observer.
    pub fn new(
        catalog: Catalog,
        policy: Policy,
        limits: Limits,
        audit: Audit,
        settings: Settings,
    ) -> Self {
        let limits = limits.with_tools(catalog.specs());
        let policy = policy.with_tools(catalog.specs());
        let prompting = ToolId::new("prompts").expect("an id");
        let prompting = ToolSpec::new(prompting, "Prompts", "Makes a prompt.", Effects::Reads);
        let library = Library::default();
        let rounds = Rounds::new();
        let secrets = Secrets::default();
        let told = broadcast::Sender::new(CHANGES_WAITING);
        Self {
            catalog: Current::of(catalog),
            policy,
            limits,
            audit,
            settings,
            library,
            told,
            rounds,
            prompting,
            secrets,
            witness: None,
        }
    }

    /// Adds a library of resources, prompts and skills.
    pub fn with_library(self, library: Library) -> Self {
        let changes = self.told.clone();
        // Sending fails if there is no listener, which is fine.
        library.changes.heard_by(move |change| drop(changes.send(change.clone())));
        Self { library, ..self }
    }

    /// Redacts `secrets` from refusals and records.
    pub fn with_secrets(self, secrets: Secrets) -> Self {
        Self { secrets, ..self }
    }

    /// Reports the start and end of each call to `witness`, if there is one.
    pub fn with_witness(self, witness: Option<Arc<dyn Witness>>) -> Self {
        Self { witness, ..self }
    }

    fn page(&self, caller: &Caller, after: Option<&ToolId>, size: usize) -> ToolPage {
        self.catalog.now().page(after, size, |spec| self.policy.shows(caller, spec))
    }

    /// Returns the tool that `name` spells. A tool hidden from the caller counts as unknown.
    pub(crate) fn find(&self, caller: &Caller, name: &str) -> Result<Arc<Entry>, CallError> {
        self.catalog.now().find(name, |spec| self.policy.shows(caller, spec))
    }
}

impl Host {
    /// Creates a host behind `gate`. Without `jobs` it keeps no jobs.
    pub fn new(gate: Gate, jobs: Option<JobSettings>) -> Self {
        let gate = Arc::new(gate);
        let jobs = jobs.map(|settings| Jobs::new(gate.clone(), settings));
        let schemas = gate.catalog.now().schemas.clone();
        let envelopes = Envelopes::new(EnvelopeSettings::default(), schemas, None);
        Self { gate, jobs, envelopes }
    }

    /// Replaces the maker of envelopes. The gate's secrets are redacted from the envelope log.
    pub fn with_envelopes(self, envelopes: Envelopes) -> Self {
        Self { envelopes: envelopes.with_secrets(self.gate.secrets.clone()), ..self }
    }

    /// Returns the schemas that calls and envelopes are validated against.
    pub fn schemas(&self) -> Arc<SchemaRegistry> {
        self.gate.catalog.now().schemas.clone()
    }

    /// Returns the maker of envelopes.
    pub fn envelopes(&self) -> &Envelopes {
        &self.envelopes
    }

    /// Connects this host's jobs to the tools that were created with `handle`.
    pub fn with_job_tools(self, handle: &JobsHandle) -> Self {
        if let Some(jobs) = &self.jobs {
            handle.fill(jobs);
        }
        self
    }

    /// Answers one request.
    ///
    /// Dropping the future cuts a running call at once. Cancelling its token ends the call in an
    /// orderly way. A job continues in both cases.
    pub async fn answer(&self, asked: Asked) -> Result<Answer, CallError> {
        let Asked { request, caller, dialect, cancel, events, asker, state, beside, within } =
            asked;
        let dialect = Cow::Borrowed(dialect);
        // A request that ends with questions is made again and must then be recognized.
        let may_ask = state.is_some() || asker.can() != Askable::default();
        let what = if may_ask { rounds::what(&request) } else { String::new() };
        let told = asker.given();
        let asker = if state.is_some() || !told.is_empty() {
            let answered = self.gate.rounds.answered(&caller, &what, state.as_deref(), told)?;
            let (given, note) = answered;
            let asker = Asker::again(asker.can(), given).with_note(note);
            match &state {
                Some(sealed) => asker.once(self.gate.rounds.once(sealed)),
                None => asker.unasked(),
            }
        } else {
            asker
        };
        let asking = caller.clone();
        let given = asker.clone();
        let mut call = Call {
            tool: String::new(),
            input: Value::Null,
            caller,
            dialect,
            cancel,
            events,
            job: None,
            asker,
            beside,
            within,
            ahead: Ahead::default(),
        };
        let outcome = match request {
            Request::CallTool { tool, input } => {
                (call.tool, call.input) = (tool, input);
                pipeline::run(&self.gate, &mut call, None).await.map(Answer::Output)
            }
            // Boxed: otherwise every call would reserve stack space for the largest request.
            request => Box::pin(self.answer_to(request, call)).await,
        };
        match outcome {
            Err(CallError::Asks { questions }) => {
                let known = (given.given(), given.noted());
                let state = self.gate.rounds.seal(&asking, &what, known, &questions)?;
                Ok(Answer::Asks { questions, state })
            }
            other => other,
        }
    }

    /// Answers a request other than a tool call; `call` is the request as a call without a tool.
    async fn answer_to(&self, request: Request, call: Call) -> Result<Answer, CallError> {
        let caller = call.caller.clone();
        let reader = |call| Reader::new(&self.gate, call);
        match request {
            Request::ListTools { after } => {
                self.gate.catalog.listed(None).await;
                let size = self.gate.settings.page_size;
                Ok(Answer::Tools(self.gate.page(&caller, after.as_ref(), size)))
            }
            Request::Discover => {
                self.gate.catalog.listed(None).await;
                Ok(Answer::Everything {
                    tools: self.gate.page(&caller, None, usize::MAX).tools,
                    prompts: reader(call).all_prompts().await?,
                })
            }
            Request::Refuse(why) => Err(pipeline::refuse(&self.gate, &call, why).await),
            Request::RefuseCall { tool, why } => {
                let call = Call { tool, ..call };
                Err(pipeline::refuse(&self.gate, &call, why).await)
            }
            Request::CallTool { tool, input } => self.call(Call { tool, input, ..call }).await,
            Request::StartJob { tool, input, terms } => {
                let call = Call { tool, input, ..call };
                // A call that may run inline does so if it cannot be a job or would gain nothing by
                // it.
                let may_be_none = terms.answer_within.is_some();
                match &self.jobs {
                    None if may_be_none && !self.is_only_a_job(&call) => self.call(call).await,
                    Some(jobs) if may_be_none && !jobs.suits(&call) => self.call(call).await,
                    Some(_) | None => {
                        let later = AskLater::May;
                        self.jobs()?.start(Wanted { call, terms, later }).await
                    }
                }
            }
            Request::GetJob { id } => Ok(job(self.jobs()?.get(Some(&caller), &id).await?)),
            Request::AwaitJob { id } => {
                let jobs = self.jobs()?;
                tokio::select! {
                    ended = jobs.ended(&caller, &id, &call.asker) => ended.map(job),
                    () = call.cancel.cancelled() => Err(CallError::Canceled),
                }
            }
            Request::ListJobs { after } => {
                let size = self.gate.settings.page_size;
                Ok(Answer::Jobs(self.jobs()?.list(Some(&caller), after, size).await?))
            }
            Request::CancelJob { id } => Ok(job(self.jobs()?.cancel(&caller, &id).await?)),
            Request::OpenArtefact { id, which } => {
                Ok(Answer::Artefact(self.jobs()?.open(&caller, &id, which).await?))
            }
            Request::TellJob { id, given } => {
                Ok(job(self.jobs()?.tell(&caller, &id, given).await?))
            }
            Request::ListResources { after } => reader(call).list(after).await,
            Request::ListTemplates => Ok(reader(call).templates()),
            Request::ReadResource { uri } => reader(call).read(&uri).await,
            Request::ReadFolder { uri, after } => reader(call).folder(&uri, after.as_deref()).await,
            Request::WatchResource { uri } => reader(call).watch(uri).await,
            Request::ListPrompts { after } => reader(call).list_prompts(after).await,
            Request::GetPrompt { name, arguments } => reader(call).make(&name, arguments).await,
            Request::Complete(asked) => reader(call).complete(&asked).await,
            Request::ListSkills { after } => reader(call).list_skills(after).await,
            Request::GetSkill { uri } => reader(call).skill(&uri).await,
        }
    }

    /// Returns true if the tool of `call` runs only as a job.
    fn is_only_a_job(&self, call: &Call) -> bool {
        let entry = self.gate.find(&call.caller, &call.tool);
        entry.is_ok_and(|entry| entry.spec().job == AsJob::Must)
    }

    /// Returns the policy decision for a call of `tool` by `caller`, and its reason. Tools hidden
    /// from the caller are included.
    ///
    /// # Errors
    /// If the tool is unknown or `input` does not match its schema.
    pub fn explain(
        &self,
        caller: &Caller,
        tool: &str,
        input: Value,
    ) -> Result<Explained, CallError> {
        let entry = self.gate.catalog.now().find(tool, |_| true)?;
        let input = entry.tool().normalised(input);
        validate::input(&entry, &input)?;
        Ok(self.gate.policy.explain(caller, entry.spec(), &input))
    }

    async fn call(&self, mut call: Call) -> Result<Answer, CallError> {
        pipeline::run(&self.gate, &mut call, None).await.map(Answer::Output)
    }

    /// Replaces the tools offered by `owner` with `tools`, and notifies listeners if the catalog
    /// changed.
    ///
    /// Returns the tools that became unavailable, of any owner. If several owners offer names that
    /// look alike on the wire, none of these tools is served.
    pub fn offer(&self, owner: &str, tools: Vec<Arc<dyn AnyTool>>) -> Vec<NotOffered> {
        let (differs, refused) = self.gate.catalog.offer(owner, tools);
        if differs {
            self.gate.library.changes.tell(&Change::Tools);
        }
        refused
    }

    /// Returns the usage instructions of all tool owners, joined by blank lines.
    ///
    /// Instructions of an owner are left out if `caller` sees none of its tools. Secrets are
    /// redacted.
    pub fn instructions(&self, caller: &Caller) -> String {
        let others = self.gate.library.others.as_ref();
        let said = others.map(|others| others.instructions()).unwrap_or_default();
        let catalog = self.gate.catalog.now();
        let shows =
            |owner: &str| catalog.specs_of(owner).any(|spec| self.gate.policy.shows(caller, spec));
        let told = said.into_iter().filter(|(owner, _)| shows(owner)).map(|(_, mut said)| {
            self.gate.secrets.clear(&mut said);
            said
        });
        told.collect::<Vec<_>>().join("\n\n")
    }

    /// Releases all resources kept for `session`, which has ended.
    pub fn left(&self, session: &str) {
        if let Some(others) = &self.gate.library.others {
            others.left(session);
        }
    }

    /// Checks that each policy rule matches a known tool, or may match a tool of one of the
    /// toolsets in `later`. An empty name in `later` stands for tools without a toolset.
    ///
    /// # Errors
    /// The first rule that matches nothing.
    pub fn fits(&self, later: Vec<String>) -> Result<(), BadRule> {
        let catalog = self.gate.catalog.now();
        let library = &self.gate.library;
        let guards = library.all_resources().into_iter().map(|source| source.guard().id.clone());
        let tools = catalog.ids().into_iter().chain(guards).collect();
        self.gate.policy.check(&KnownTools { tools, later })
    }

    /// Returns true if this server itself has tools in `toolset`.
    pub fn has_own(&self, toolset: &str) -> bool {
        self.gate.catalog.now().has_own(toolset)
    }

    /// Makes tool lists wait until `listed` reports the catalog as complete.
    pub fn lists_after(&self, listed: Arc<dyn Listed>) {
        self.gate.catalog.lists_after(listed);
    }

    /// Waits until all owners have listed their tools, for a bounded time.
    pub async fn listed(&self) {
        self.gate.catalog.listed(None).await;
    }

    /// Subscribes to changes from now on. A listener that falls too far behind receives a lag
    /// error.
    pub fn listen(&self) -> broadcast::Receiver<Change> {
        self.gate.told.subscribe()
    }

    /// Returns the library of resources, prompts and skills.
    pub fn library(&self) -> &Library {
        &self.gate.library
    }

    /// Watches the lists named by `interest` for as long as the returned guard is kept. Changes
    /// reach [`Host::listen`].
    pub fn watch_lists(&self, interest: &Interest) -> Hold {
        self.gate.watch_lists(interest.prompts, interest.resources)
    }

    /// Returns the jobs of this host.
    ///
    /// # Errors
    /// If this host keeps no jobs.
    pub fn jobs(&self) -> Result<&Jobs, CallError> {
        self.jobs.as_ref().ok_or_else(|| CallError::Unavailable {
            message: "this server keeps no jobs; call the tool itself".to_owned(),
        })
    }

    /// Takes over jobs that another server left, now and periodically, until [`Host::stop_jobs`].
    pub async fn tend_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.tend().await;
        }
    }

    /// Starts no new jobs and stops the running ones. The next server resumes them.
    pub async fn stop_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.stop().await;
        }
    }

    /// Returns all tools that `caller` may use.
    pub fn tools(&self, caller: &Caller) -> ToolPage {
        self.gate.page(caller, None, usize::MAX)
    }

    /// Waits until every audit record and envelope written so far has reached its destination.
    pub fn flush(&self) {
        self.gate.audit.flush();
        self.envelopes.flush();
    }
}

fn job(job: Job) -> Answer {
    Answer::Job(Box::new(job))
}
