//! Answers requests with one catalog of tools. Every call passes the checks in `pipeline.rs`.
//!
//! The host depends on no socket and no protocol. A dialect (client protocol) encodes the answers.

mod schema_errors;
mod schemas;
mod header_params;
mod policy;
mod catalog;
mod gauges;
mod limits;
mod secrets;
mod audit;
mod pipeline;
mod did_you_mean;
mod library;
mod live_gate;
mod tool_search;
mod tool_lookup;
mod jobs;
mod envelopes;
mod requests;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
#[cfg(test)]
#[path = "../../../tests/postgres/server.rs"]
#[allow(dead_code, clippy::disallowed_methods, reason = "a server for tests, which several share")]
mod database_server;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use toolgate_budget::InputMemoryBudget;
use toolgate_contract::{
    AnyTool, CallError, Caller, ChangeFilter, Effects, KeepActiveGuard, ResourceSource,
    ServerChange, ToolCall, ToolId, ToolPage, ToolSpec,
};

use catalog::ReplaceableCatalog;
use live_gate::ReloadableGate;
use pipeline::multi_round::RequestStateSealer;
use tool_search::ToolSearch;

pub use audit::{
    AuditArgumentDetail, AuditDestination, AuditFileSettings, AuditIndex, AuditKey, AuditLog,
    AuditLogDefect, AuditLogFollower, AuditRecordFilter, CallGrouping, CallStatistics,
    CallStepTimes, ChangedLineCounts, FoundAuditRecords, ParsedAuditRecord, RecentCallDetails,
    VerifiedAuditLog, audit_guard, audit_record_schema, newest_records, verify as verify_audit,
};
pub use catalog::{
    Catalog, CatalogError, CatalogReadinessCheck, RejectedTool, UnavailableTool, estimate_tokens,
};
pub use envelopes::{EnvelopeBuilder, EnvelopeLog, EnvelopeSettings};
pub use gauges::{AuditQueueGauge, CallPoolGauge, HostLoadGauges, JobGauge};
pub use jobs::{
    AdoptableJob, ClaimableJobQueue, FleetCredentialLock, FleetCredentialState, FleetCredentials,
    FleetDurability, FleetLargeFileLocation, FleetReport, FleetServer, FleetServerProfile,
    FleetServerRole, FleetServerStatus, FleetStatus, JobClaim, JobEnd, JobQuestionState,
    JobService, JobSettings, JobStore, JobStoreError, JobStoreKind, JobsToolHandle, LargeFileStore,
    NewJob, NewSessionMessage, PostgresStore, PostgresStoreSettings, RequestToJobOwner,
    SESSION_ENDED, SessionDigest, SessionMessageNotifications, SessionTag, SettingsDigests,
    SharedSessions, SqliteStore, StartedJob, StoredSessionMessage, TakenOverJobs, TakeoverFilter,
    TimedJobEvent, session_tag,
};
pub use library::{ContentLibrary, DynamicContentSources};
pub use limits::{
    CallLimits, CallRateLimit, CallerByteRate, RateBucket, RateBucketGrant, RateOutagePolicy,
};
pub use pipeline::call_observer::{
    CallObserver, CallSpan, CallTarget, ObservedCallEnd, ObservedCallStart,
};
pub use pipeline::validate::{OutputSchemaCheck, OutputSchemaCheckRules};
pub use policy::scopes::TokenScope;
pub use policy::{
    KnownToolSet, PolicyDecision, PolicyEffect, PolicyExplanation, PolicyRule, ToolPolicy,
    ToolRuleError, check_pattern,
};
pub use requests::IncomingRequest;
pub use schemas::{
    LazySchemaValidator, SchemaCounts, SchemaError, SchemaFile, SchemaFiles, SchemaFingerprint,
    SchemaRegistry, SharedSchemaId, ToolIoError, ToolIoValidators, ToolSchemaDirection,
};
pub use secrets::{REDACTED, SecretSet};
pub use tool_search::{
    ExplainedToolMatch, SentenceModel, ToolListSelection, ToolSearchHandle, ToolSearchMemoryScope,
    ToolSearchSettings, ToolVectors, ToolWordScore, forwarded_tool,
};

/// Maximum number of change notifications that may wait for one slow listener.
const CHANGES_MAX: usize = 1024;

/// Core of the server: lists tools, runs calls through the gate (the checks of each call), and
/// manages jobs.
pub struct Host {
    live: Arc<ReloadableGate>,
    jobs: Option<JobService>,
    envelopes: EnvelopeBuilder,
}

/// Catalog, policy, limits and audit log that every call passes through. A call uses the same gate
/// from its beginning to its end.
pub struct Gate {
    pub(crate) catalog: ReplaceableCatalog,
    pub(crate) policy: ToolPolicy,
    pub(crate) limits: Arc<CallLimits>,
    pub(crate) audit: Arc<AuditLog>,
    pub(crate) settings: GateSettings,
    pub(crate) library: ContentLibrary,
    /// Channel on which changes of tools, resources and prompts reach listeners.
    pub(crate) change_sender: broadcast::Sender<ServerChange>,
    pub(crate) state_sealer: Arc<RequestStateSealer>,
    /// Stand-in tool spec under which the limits count requests for prompts.
    pub(crate) prompt_spec: ToolSpec,
    /// Secrets that are redacted from refusals and audit records.
    pub(crate) secrets: SecretSet,
    /// Observer of the start and end of each call.
    pub(crate) observer: Option<Arc<dyn CallObserver>>,
    /// Search over the tools, and the tool lists in which it replaces most tools.
    pub(crate) tool_search: ToolSearch,
    /// Budget of memory for the input of all callers.
    pub(crate) input_memory: InputMemoryBudget,
}

/// Settings of a gate, through which every call passes: deadlines, output checks, page size and
/// recorded details.
#[derive(Debug, Clone)]
pub struct GateSettings {
    /// Deadline of a call if its tool sets none. 60 s by default.
    pub deadline: Duration,
    /// Deadline of a job if its tool sets none. 24 h by default.
    pub job_deadline: Duration,
    /// Longest total time that a call may wait for answers to its questions. This time extends the
    /// deadline. 10 min by default. A job may wait as long as jobs may run.
    pub answer_wait: Duration,
    /// Time that a cancelled call has to stop by itself before it is dropped. 1 s by default.
    pub cancel_grace: Duration,
    /// Rules for tool output that violates the tool's schema. By default, such output is refused.
    pub output_checks: OutputSchemaCheckRules,
    /// Maximum number of tools in one page of a list. 200 by default.
    pub page_size: usize,
    /// Detail with which audit records show a call's arguments. By default, only the subject of the
    /// call, such as a path or a command line.
    pub recorded_arguments: AuditArgumentDetail,
    /// True if the arguments and results of recent calls that changed something or failed are kept
    /// in memory, for the console. False by default.
    pub keeps_recent_calls: bool,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            job_deadline: Duration::from_secs(24 * 3600),
            answer_wait: Duration::from_secs(600),
            cancel_grace: Duration::from_secs(1),
            output_checks: OutputSchemaCheck::Enforce.into(),
            page_size: 200,
            recorded_arguments: AuditArgumentDetail::default(),
            keeps_recent_calls: false,
        }
    }
}

impl GateSettings {
    /// Returns the default deadline of `call`, for a tool that sets none.
    pub(crate) fn default_deadline(&self, call: &ToolCall) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.deadline }
    }

    /// Returns how long `call` may wait for answers to its questions beyond its deadline.
    pub(crate) fn answer_wait_for(&self, call: &ToolCall) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.answer_wait }
    }
}

/// Returns the tools that start and manage the jobs in `handle`.
pub fn job_tools(handle: &JobsToolHandle) -> Vec<Arc<dyn AnyTool>> {
    jobs::tools(handle)
}

/// Returns the tools that find and call other tools, which they reach through `handle`.
pub fn tool_search_tools(handle: &ToolSearchHandle) -> Vec<Arc<dyn AnyTool>> {
    tool_search::tools(handle)
}

/// Returns the resources that expose the jobs in `handle`.
pub fn job_resources(handle: &JobsToolHandle) -> Arc<dyn ResourceSource> {
    jobs::resources(handle)
}

impl Gate {
    /// Creates a gate around `catalog` that has no resources, prompts, skills, secrets or observer.
    pub fn new(
        catalog: Catalog,
        policy: ToolPolicy,
        limits: CallLimits,
        audit: impl Into<Arc<AuditLog>>,
        settings: GateSettings,
    ) -> Self {
        let limits = Arc::new(limits.with_tools(catalog.specs()));
        let policy = policy.with_tools(catalog.specs());
        let prompt_id = ToolId::new("prompts").expect("an id");
        let prompt_spec =
            ToolSpec::new(prompt_id, "Prompts", "Returns a prompt to the client.", Effects::Reads);
        Self {
            catalog: ReplaceableCatalog::new(catalog),
            policy,
            limits,
            audit: audit.into(),
            settings,
            library: ContentLibrary::default(),
            change_sender: broadcast::Sender::new(CHANGES_MAX),
            state_sealer: Arc::new(RequestStateSealer::new()),
            prompt_spec,
            secrets: SecretSet::default(),
            observer: None,
            tool_search: ToolSearch::default(),
            input_memory: live_gate::default_input_memory(),
        }
    }

    /// Adds tool search. Tool lists contain the search in place of most tools if `settings` demand
    /// that, and `vectors`, if there are any, help to rank tools. Without this call, every list
    /// contains all tools.
    ///
    /// # Errors
    /// A pattern of a favourite is invalid.
    pub fn with_tool_search(
        self,
        settings: ToolSearchSettings,
        vectors: Option<ToolVectors>,
    ) -> Result<Self, ToolRuleError> {
        Ok(Self { tool_search: ToolSearch::new(settings, vectors)?, ..self })
    }

    /// Adds the sources of resources, prompts and skills to the gate.
    pub fn with_library(self, library: ContentLibrary) -> Self {
        let changes = self.change_sender.clone();
        // Sending fails if there is no listener, which is fine.
        library.changes.subscribe(move |change| drop(changes.send(change.clone())));
        Self { library, ..self }
    }

    /// Redacts `secrets` from refusals and audit records.
    pub fn with_secrets(self, secrets: SecretSet) -> Self {
        Self { secrets, ..self }
    }

    /// Reports the start and end of each call to `observer`, if there is one.
    pub fn with_observer(self, observer: Option<Arc<dyn CallObserver>>) -> Self {
        Self { observer, ..self }
    }

    /// Returns a page of all tools that `caller` sees, without the tools that find and call others.
    fn tool_page(&self, caller: &Caller, after: Option<&ToolId>, size: usize) -> ToolPage {
        self.catalog.snapshot().page(after, size, |spec| {
            !tool_search::is_meta_tool(&spec.id) && self.policy.shows(caller, spec)
        })
    }

    /// Returns the ids of this server's own tools that `caller` sees, in order.
    pub fn own_tools(&self, caller: &Caller) -> Vec<ToolId> {
        let catalog = self.catalog.snapshot();
        let shown = catalog.own_specs().filter(|spec| self.policy.shows(caller, spec));
        shown.map(|spec| spec.id.clone()).collect()
    }
}

impl Host {
    /// Creates a host behind `gate`. Without `jobs`, the host has no jobs.
    pub fn new(gate: Gate, jobs: Option<JobSettings>) -> Self {
        let schemas = gate.catalog.snapshot().schemas.clone();
        let live = Arc::new(ReloadableGate::new(gate));
        let jobs = jobs.map(|settings| JobService::new(live.clone(), settings));
        if let Some(ledger) = jobs.as_ref().and_then(JobService::rate_ledger) {
            live.current().limits.set_rate_ledger(ledger);
        }
        let envelopes = EnvelopeBuilder::new(EnvelopeSettings::default(), schemas, None);
        Self { live, jobs, envelopes }
    }

    /// Returns the current gate, which new requests pass.
    fn gate(&self) -> Arc<Gate> {
        self.live.current()
    }

    /// Makes all further requests pass `next` instead of the current gate, and returns the tools
    /// that became unavailable. Keeps the tools of other owners, the audit log, its observer and
    /// open questions.
    ///
    /// The limits and their counts of calls are kept, too, unless `resets_limits` is true or the
    /// server's own tools have other limits.
    pub fn replace_gate(&self, next: Gate, resets_limits: bool) -> Vec<RejectedTool> {
        let (now, rejected) = self.live.replace(next, resets_limits);
        self.envelopes.set_secrets(now.secrets.clone());
        if !now.settings.keeps_recent_calls {
            now.audit.forget_recent_calls();
        }
        for change in [ServerChange::Tools, ServerChange::Resources, ServerChange::Prompts] {
            now.library.changes.publish(&change);
        }
        rejected
    }

    /// Returns the audit log of this host. A gate that replaces the current gate must use the same
    /// log.
    pub fn audit(&self) -> Arc<AuditLog> {
        self.gate().audit.clone()
    }

    /// Seals request states with a key that is derived from `secret`, so that every server with
    /// this secret accepts the states. Without this call, the key is random.
    ///
    /// Call this function before the first request. States that were sealed earlier become invalid.
    pub fn share_request_states(&self, secret: &[u8]) {
        self.gate().state_sealer.share(secret);
    }

    /// Replaces the builder of envelopes. The gate's secrets are redacted from the envelope log.
    pub fn with_envelopes(self, envelopes: EnvelopeBuilder) -> Self {
        envelopes.set_secrets(self.gate().secrets.clone());
        Self { envelopes, ..self }
    }

    /// Returns the schemas against which calls and envelopes are validated.
    pub fn schemas(&self) -> Arc<SchemaRegistry> {
        self.gate().catalog.snapshot().schemas.clone()
    }

    /// Returns the builder of the envelopes that answer calls.
    pub fn envelopes(&self) -> &EnvelopeBuilder {
        &self.envelopes
    }

    /// Connects the `jobs.*` tools, which were created with `handle`, to the jobs of this host.
    pub fn with_job_tools(self, handle: &JobsToolHandle) -> Self {
        if let Some(jobs) = &self.jobs {
            handle.set(jobs);
        }
        self
    }

    /// Connects the tools of tool search, which were created with `handle`, to the gate of this
    /// host.
    pub fn with_tool_search_tools(self, handle: &ToolSearchHandle) -> Self {
        handle.set(&self.live);
        self
    }

    /// Returns the id of the tool with the name `name` and any separators (`files.read` or
    /// `files_read`), even if the tool is hidden from some callers.
    pub fn tool_id(&self, name: &str) -> Option<ToolId> {
        let gate = self.gate();
        gate.catalog.snapshot().find_named(name).map(|entry| entry.spec().id.clone())
    }

    /// Explains the policy decision about a call of `tool` by `caller`, even if the tool is hidden
    /// from the caller.
    ///
    /// If `input` does not match the tool's schema, the explanation says so, and the rules are
    /// checked with `input` as it is.
    ///
    /// # Errors
    /// The tool is unknown.
    pub fn explain(
        &self,
        caller: &Caller,
        tool: &str,
        input: Value,
    ) -> Result<PolicyExplanation, CallError> {
        let gate = self.gate();
        let entry = gate.catalog.snapshot().find(tool, |_| true)?;
        let input = entry.tool().normalize_input(input);
        let checked = pipeline::validate::check_input_here(&entry, input.clone());
        let (input, input_problem) = match checked {
            Ok(input) => (input, None),
            Err(error) => (input, Some(error.to_string())),
        };
        let explained = gate.policy.explain(caller, entry.spec(), &input);
        Ok(PolicyExplanation { input_problem, ..explained })
    }

    /// Replaces the tools offered by `owner` with `tools`, and notifies listeners if the catalog
    /// changed.
    ///
    /// Returns the tools of any owner that became unavailable. If several owners offer names that
    /// are equal apart from separators, none of these tools is served.
    pub fn offer_tools(&self, owner: &str, tools: Vec<Arc<dyn AnyTool>>) -> Vec<RejectedTool> {
        let (gate, changed, rejected) = self.live.offer_tools(owner, tools);
        if changed {
            gate.library.changes.publish(&ServerChange::Tools);
        }
        rejected
    }

    /// Returns the usage instructions of all tool owners, joined by blank lines.
    ///
    /// Instructions of an owner are left out if `caller` sees none of its tools. Secrets are
    /// redacted.
    pub fn instructions(&self, caller: &Caller) -> String {
        let gate = self.gate();
        let sources = gate.library.dynamic_sources.as_ref();
        let instructions = sources.map(|sources| sources.instructions()).unwrap_or_default();
        let catalog = gate.catalog.snapshot();
        let shows =
            |owner: &str| catalog.specs_of(owner).any(|spec| gate.policy.shows(caller, spec));
        let shown = instructions.into_iter().filter(|(owner, _)| shows(owner));
        let redacted = shown.map(|(_, mut text)| {
            gate.secrets.redact_value(&mut text);
            text
        });
        redacted.collect::<Vec<_>>().join("\n\n")
    }

    /// Redacts the values that the operator marked as secret from a message that belongs to no
    /// call, such as the refusal of an unknown method. Returns `None` if the message contains no
    /// such value.
    pub fn redact_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        self.gate().secrets.redact_message(message)
    }

    /// Removes everything that tool search and dynamic sources remember about `session`, which has
    /// ended.
    pub fn end_session(&self, session: &str) {
        let gate = self.gate();
        gate.tool_search.end_session(session);
        if let Some(sources) = &gate.library.dynamic_sources {
            sources.end_session(session);
        }
    }

    /// Returns true if a change of the catalog changes the tool list of `caller`. A list with the
    /// search in place of most tools does not change during a session, or during a day for a caller
    /// without a session.
    pub fn lists_follow_catalog(&self, caller: &Caller, session: Option<&Arc<str>>) -> bool {
        self.gate().lists_follow_catalog(caller, session)
    }

    /// Checks that each policy rule matches a known tool, or may match a tool of one of the
    /// `later_toolsets`. An empty name among these means tools without a toolset.
    ///
    /// # Errors
    /// Returns the first rule that matches nothing.
    pub fn check_policy_rules(&self, later_toolsets: Vec<String>) -> Result<(), ToolRuleError> {
        let gate = self.gate();
        let catalog = gate.catalog.snapshot();
        let library = &gate.library;
        let guards = library.all_resources().into_iter().map(|source| source.guard().id.clone());
        let tools = catalog.ids().into_iter().chain(guards).collect();
        gate.policy.check(&KnownToolSet { tools, later_toolsets })
    }

    /// Returns true if this server itself has tools in `toolset`.
    pub fn owns_toolset(&self, toolset: &str) -> bool {
        self.gate().catalog.snapshot().owns_toolset(toolset)
    }

    /// Makes tool lists wait until `readiness` reports the catalog as complete.
    pub fn set_readiness(&self, readiness: Arc<dyn CatalogReadinessCheck>) {
        self.gate().catalog.set_readiness(readiness);
    }

    /// Waits until all owners, such as upstreams, have listed their tools, for a bounded time.
    pub async fn wait_for_listings(&self) {
        self.gate().catalog.wait_for_listings(None).await;
    }

    /// Subscribes to changes of tools, resources and prompts from now on. A listener that falls too
    /// far behind receives a lag error.
    pub fn subscribe(&self) -> broadcast::Receiver<ServerChange> {
        self.gate().change_sender.subscribe()
    }

    /// Returns the sources of resources, prompts and skills of this host.
    pub fn library(&self) -> ContentLibrary {
        self.gate().library.clone()
    }

    /// Watches the lists named by `interest` for as long as the returned guard is kept. Changes
    /// reach [`Host::subscribe`].
    pub fn watch_lists(&self, interest: &ChangeFilter) -> KeepActiveGuard {
        self.gate().watch_lists(interest.prompts, interest.resources)
    }

    /// Returns the jobs of this host.
    ///
    /// # Errors
    /// This host has no jobs.
    pub fn jobs(&self) -> Result<&JobService, CallError> {
        self.jobs.as_ref().ok_or_else(|| CallError::Unavailable {
            message: "this server has no jobs; call the tool directly".to_owned(),
        })
    }

    /// Returns the messages of client sessions that servers of a fleet share, if this host is part
    /// of one.
    pub fn shared_sessions(&self) -> Option<SharedSessions> {
        self.jobs.as_ref()?.shared_sessions()
    }

    /// Takes over jobs of servers that have ended, now and periodically, until [`Host::stop_jobs`].
    pub async fn maintain_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.maintain().await;
        }
    }

    /// Changes the maximum numbers of running jobs, in total and of one caller. Running jobs
    /// continue.
    ///
    /// Call this function within a Tokio runtime, because it may start jobs.
    pub fn limit_jobs(&self, running_max: usize, running_per_caller: usize) {
        if let Some(jobs) = &self.jobs {
            jobs.limit(running_max, running_per_caller);
        }
    }

    /// Stops beginning queued jobs if other servers can run them. Call this function as soon as the
    /// server is to stop.
    pub fn leave_waiting_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.leave_waiting();
        }
    }

    /// Stops beginning queued jobs and leaves them to other servers. Waits for the end of the
    /// running jobs for a bounded time.
    pub async fn drain_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.drain().await;
        }
    }

    /// Starts no new jobs and stops the running jobs. The next server resumes them.
    pub async fn stop_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.stop().await;
        }
    }

    /// Returns all tools that `caller` may use.
    pub fn tools(&self, caller: &Caller) -> ToolPage {
        self.gate().tool_page(caller, None, usize::MAX)
    }

    /// Returns up to `count` tools that a search of `caller` finds by the words of `question`, best
    /// first.
    pub fn explain_search(
        &self,
        caller: &Caller,
        question: &str,
        count: usize,
    ) -> Vec<ExplainedToolMatch> {
        self.gate().explain_search(caller, question, count)
    }

    /// Returns the ids of this server's own tools that `caller` sees, in order.
    pub fn own_tools(&self, caller: &Caller) -> Vec<ToolId> {
        self.gate().own_tools(caller)
    }

    /// Returns the number of tools that the policy hides from `caller`. Tools that the `[tools]`
    /// settings switch off for all callers may not count. Tools of the tool search never count.
    pub fn hidden_tool_count(&self, caller: &Caller) -> usize {
        let gate = self.gate();
        let catalog = gate.catalog.snapshot();
        let hidden = policy::ToolVisibility::Hidden;
        let offered = catalog.specs().filter(|spec| !tool_search::is_meta_tool(&spec.id));
        offered.filter(|spec| gate.policy.visibility(caller, spec) == hidden).count()
    }

    /// Returns the time limit of a call of `tool`: its own limit or, if there is none, the default
    /// limit.
    pub fn time_limit(&self, tool: &str) -> Duration {
        let gate = self.gate();
        let entry = gate.catalog.snapshot().find(tool, |_| true);
        let own = entry.ok().and_then(|entry| entry.spec().deadline);
        own.unwrap_or(gate.settings.deadline)
    }

    /// Waits until all audit records and envelopes so far are written, for a bounded time.
    pub fn flush(&self) {
        self.gate().audit.flush();
        self.envelopes.flush();
    }

    /// Returns the current load of the host's calls, jobs and audit log.
    pub fn gauges(&self) -> HostLoadGauges {
        let gate = self.gate();
        HostLoadGauges {
            pools: gate.limits.pool_gauges(),
            jobs: self.jobs.as_ref().map(JobService::gauge),
            records: gate.audit.gauge(),
        }
    }
}
