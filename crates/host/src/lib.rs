//! One registry and one call path: every call passes the gate, `pipeline.rs`.
//!
//! The host knows no socket and no protocol. What it answers is spelled by a dialect.

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

/// How many changes may wait for a listener.
const CHANGES_WAITING: usize = 1024;

/// Answers requests: lists the catalog, runs calls through the gate, and keeps jobs.
pub struct Host {
    gate: Arc<Gate>,
    jobs: Option<Jobs>,
    envelopes: Envelopes,
}

/// What every call passes, and what it is held against.
pub struct Gate {
    pub(crate) catalog: Current,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) settings: Settings,
    pub(crate) library: Library,
    /// What the library tells, to whoever listens.
    pub(crate) told: broadcast::Sender<Change>,
    pub(crate) rounds: Rounds,
    /// What limits know making a prompt by.
    pub(crate) prompting: ToolSpec,
    /// What no refusal and no record says.
    pub(crate) secrets: Secrets,
    /// Whoever is told of each call.
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

/// How the gate behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a call may take where its tool does not say.
    pub deadline: Duration,
    /// How long a job may take where its tool does not say.
    pub job_deadline: Duration,
    /// How long a call may wait for answers to what it asks, beyond its deadline; a job may for
    /// as long as jobs may take.
    pub answer_wait: Duration,
    /// How long a cancelled call may take to stop by itself.
    pub cancel_grace: Duration,
    /// What happens to output that breaks its schema.
    pub output_checks: OutputChecks,
    /// The most tools in one page of a list.
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
    /// How long `call` may take where its tool does not say.
    pub(crate) fn deadline_of(&self, call: &Call) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.deadline }
    }

    /// How long `call` may wait for answers beyond its deadline.
    pub(crate) fn patience_of(&self, call: &Call) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.answer_wait }
    }
}

/// The tools that start jobs and look after them, which find the jobs in `handle`.
pub fn job_tools(handle: &JobsHandle) -> Vec<Arc<dyn AnyTool>> {
    jobs::tools(handle)
}

/// The resources of jobs, which find them in `handle`.
pub fn job_resources(handle: &JobsHandle) -> Arc<dyn Resources> {
    jobs::resources(handle)
}

/// A request and all that is known of who makes it.
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Who asks.
    pub caller: Caller,
    /// Which dialect it came by.
    pub dialect: &'static str,
    /// Cancelled when nobody wants the answer any more.
    pub cancel: CancellationToken,
    /// Where its events go.
    pub events: EventSink,
    /// Who can be asked meanwhile.
    pub asker: Asker,
    /// What the host said with questions that this request brings the answers to.
    pub state: Option<String>,
    /// What came beside it.
    pub beside: Beside,
    /// How long its wire lets it take, where that is less than its tool may.
    pub within: Option<Duration>,
}

impl Asked {
    /// A request of `caller`, whom nobody asks and who hears nothing meanwhile.
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
    /// A gate before `catalog` with these rules.
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
        let (library, rounds) = (Library::default(), Rounds::new());
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

    /// The same, before what can be read as well.
    pub fn with_library(self, library: Library) -> Self {
        let changes = self.told.clone();
        // Nobody need listen.
        library.changes.heard_by(move |change| drop(changes.send(change.clone())));
        Self { library, ..self }
    }

    /// The same, saying none of `secrets` in refusals and records.
    pub fn with_secrets(self, secrets: Secrets) -> Self {
        Self { secrets, ..self }
    }

    /// The same, with each call told to `witness`, if there is one.
    pub fn with_witness(self, witness: Option<Arc<dyn Witness>>) -> Self {
        Self { witness, ..self }
    }

    fn page(&self, caller: &Caller, after: Option<&ToolId>, size: usize) -> ToolPage {
        self.catalog.now().page(after, size, |spec| self.policy.shows(caller, spec))
    }

    /// The tool that `name` spells; what the caller may not see is unknown.
    pub(crate) fn find(&self, caller: &Caller, name: &str) -> Result<Arc<Entry>, CallError> {
        self.catalog.now().find(name, |spec| self.policy.shows(caller, spec))
    }
}

impl Host {
    /// A host behind `gate`; without settings for jobs it keeps none.
    pub fn new(gate: Gate, jobs: Option<JobSettings>) -> Self {
        let gate = Arc::new(gate);
        let jobs = jobs.map(|settings| Jobs::new(gate.clone(), settings));
        let schemas = gate.catalog.now().schemas.clone();
        let envelopes = Envelopes::new(EnvelopeSettings::default(), schemas, None);
        Self { gate, jobs, envelopes }
    }

    /// The same, making envelopes so; their log says none of the gate's secrets.
    pub fn with_envelopes(self, envelopes: Envelopes) -> Self {
        Self { envelopes: envelopes.with_secrets(self.gate.secrets.clone()), ..self }
    }

    /// The schemas that calls and envelopes are held against.
    pub fn schemas(&self) -> Arc<SchemaRegistry> {
        self.gate.catalog.now().schemas.clone()
    }

    /// What makes envelopes of what it answers.
    pub fn envelopes(&self) -> &Envelopes {
        &self.envelopes
    }

    /// The same, with its jobs where the tools that were made with `handle` look for them.
    pub fn with_job_tools(self, handle: &JobsHandle) -> Self {
        if let Some(jobs) = &self.jobs {
            handle.fill(jobs);
        }
        self
    }

    /// Answers one request.
    ///
    /// Drop the future and a call in it is cut where it stands; cancel its token
    /// and it ends in order. A job goes on either way.
    pub async fn answer(&self, asked: Asked) -> Result<Answer, CallError> {
        let Asked { request, caller, dialect, cancel, events, asker, state, beside, within } =
            asked;
        let dialect = Cow::Borrowed(dialect);
        // Which request it is, should it end with questions and be made again.
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
        let (asking, given) = (caller.clone(), asker.clone());
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
            // Boxed, or each call would have room for what any request may need.
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

    /// `call` is the request as a call, without a tool.
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
                // What need not become a job, and would not gain by it or cannot, is none.
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

    /// Whether the tool of `call` runs only as a job.
    fn is_only_a_job(&self, call: &Call) -> bool {
        let entry = self.gate.find(&call.caller, &call.tool);
        entry.is_ok_and(|entry| entry.spec().job == AsJob::Must)
    }

    /// What policy decides about a call of `tool` by `caller`, whether they see it or not, and why.
    ///
    /// # Errors
    /// When there is no such tool, or it does not take this input.
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

    /// Offers `tools` in place of those that `owner` offered before, beside all others, and tells
    /// that there are others, if there are. Gives back what cannot be offered any more, whoever
    /// offers it: of what several offer that is spelled alike, none is served.
    pub fn offer(&self, owner: &str, tools: Vec<Arc<dyn AnyTool>>) -> Vec<NotOffered> {
        let (differs, refused) = self.gate.catalog.offer(owner, tools);
        if differs {
            self.gate.library.changes.tell(&Change::Tools);
        }
        refused
    }

    /// What those who offer tools say to `caller` of how these are used well, one after the other:
    /// who sees none of somebody's tools is told nothing of them. Named secrets are not in it.
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

    /// Lets go of what was had for `session` alone, which is over.
    pub fn left(&self, session: &str) {
        if let Some(others) = &self.gate.library.others {
            others.left(session);
        }
    }

    /// Whether each rule is about a tool that there is, or about one that may come in a toolset of
    /// those `later`; nothing in `later` for tools that are in none.
    ///
    /// # Errors
    /// The first rule that is not.
    pub fn fits(&self, later: Vec<String>) -> Result<(), BadRule> {
        let catalog = self.gate.catalog.now();
        let library = &self.gate.library;
        let guards = library.all_resources().into_iter().map(|source| source.guard().id.clone());
        let tools = catalog.ids().into_iter().chain(guards).collect();
        self.gate.policy.check(&KnownTools { tools, later })
    }

    /// Whether this server itself has tools of `toolset`.
    pub fn has_own(&self, toolset: &str) -> bool {
        self.gate.catalog.now().has_own(toolset)
    }

    /// Has lists of tools wait for `listed`.
    pub fn lists_after(&self, listed: Arc<dyn Listed>) {
        self.gate.catalog.lists_after(listed);
    }

    /// Waits until all who offer tools have said which, for a bounded time.
    pub async fn listed(&self) {
        self.gate.catalog.listed(None).await;
    }

    /// Hears what changes from now on. Who is too far behind is told that it missed some.
    pub fn listen(&self) -> broadcast::Receiver<Change> {
        self.gate.told.subscribe()
    }

    /// What can be read here.
    pub fn library(&self) -> &Library {
        &self.gate.library
    }

    /// Has the lists of `interest` watched, so that [`Host::listen`] hears of them, for as long
    /// as the result is held.
    pub fn watch_lists(&self, interest: &Interest) -> Hold {
        self.gate.watch_lists(interest.prompts, interest.resources)
    }

    /// The jobs it keeps.
    ///
    /// # Errors
    /// When it keeps none.
    pub fn jobs(&self) -> Result<&Jobs, CallError> {
        self.jobs.as_ref().ok_or_else(|| CallError::Unavailable {
            message: "this server keeps no jobs; call the tool itself".to_owned(),
        })
    }

    /// Takes over jobs that another server left, now and from time to time, until
    /// [`Host::stop_jobs`].
    pub async fn tend_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.tend().await;
        }
    }

    /// Starts no more jobs and stops those that run; the next server goes on with them.
    pub async fn stop_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.stop().await;
        }
    }

    /// The tools `caller` may use, all of them.
    pub fn tools(&self, caller: &Caller) -> ToolPage {
        self.gate.page(caller, None, usize::MAX)
    }

    /// Waits until every record written so far is where it belongs.
    pub fn flush(&self) {
        self.gate.audit.flush();
        self.envelopes.flush();
    }
}

fn job(job: Job) -> Answer {
    Answer::Job(Box::new(job))
}
