//! One registry and one call path: every call passes the gate, `pipeline.rs`.
//!
//! The host knows no socket and no protocol. What it answers is spelled by a dialect.

mod pipeline;
mod catalog;
mod validate;
mod wording;
mod policy;
mod limits;
mod audit;
mod jobs;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolgate_contract::{
    Answer, AnyTool, Call, CallError, Caller, EventSink, Job, Request, ToolId, ToolPage,
};

use catalog::Entry;
use jobs::Wanted;

pub use audit::{Audit, Destination as AuditDestination};
pub use catalog::{Catalog, CatalogError};
pub use jobs::{
    Adopted, Begun, End, Handle as JobsHandle, JobSettings, Jobs, May, NewJob, Orphan, Said,
    SqliteStore, Store, StoreError,
};
pub use limits::Limits;
pub use policy::{BadRule, Policy};
pub use validate::OutputCheck;

/// Answers requests: lists the catalog, runs calls through the gate, and keeps jobs.
pub struct Host {
    gate: Arc<Gate>,
    jobs: Option<Jobs>,
}

/// What every call passes, and what it is held against.
pub struct Gate {
    pub(crate) catalog: Catalog,
    pub(crate) policy: Policy,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) settings: Settings,
}

/// How the gate behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a call may take where its tool does not say.
    pub deadline: Duration,
    /// How long a job may take where its tool does not say.
    pub job_deadline: Duration,
    /// How long a cancelled call may take to stop by itself.
    pub cancel_grace: Duration,
    /// What happens to output that breaks its schema.
    pub output_check: OutputCheck,
    /// The most tools in one page of a list.
    pub page_size: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            job_deadline: Duration::from_secs(24 * 3600),
            cancel_grace: Duration::from_secs(2),
            output_check: OutputCheck::Enforce,
            page_size: 200,
        }
    }
}

impl Settings {
    /// How long `call` may take where its tool does not say.
    pub(crate) fn deadline_of(&self, call: &Call) -> Duration {
        if call.job.is_some() { self.job_deadline } else { self.deadline }
    }
}

/// The tools that start jobs and look after them, which find the jobs in `handle`.
pub fn job_tools(handle: &JobsHandle) -> Vec<Arc<dyn AnyTool>> {
    jobs::tools(handle)
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
        Self { catalog, policy, limits, audit, settings }
    }

    fn page(&self, caller: &Caller, after: Option<&ToolId>, size: usize) -> ToolPage {
        self.catalog.page(after, size, |spec| self.policy.shows(caller, spec))
    }

    /// The tool that `name` spells; what the caller may not see is unknown.
    pub(crate) fn find(&self, caller: &Caller, name: &str) -> Result<&Entry, CallError> {
        self.catalog.find(name, |spec| self.policy.shows(caller, spec))
    }
}

impl Host {
    /// A host behind `gate`; without settings for jobs it keeps none.
    pub fn new(gate: Gate, jobs: Option<JobSettings>) -> Self {
        let gate = Arc::new(gate);
        let jobs = jobs.map(|settings| Jobs::new(gate.clone(), settings));
        Self { gate, jobs }
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
        let Asked { request, caller, dialect, cancel, events } = asked;
        let dialect = Cow::Borrowed(dialect);
        match request {
            Request::ListTools { after } => {
                let size = self.gate.settings.page_size;
                Ok(Answer::Tools(self.gate.page(&caller, after.as_ref(), size)))
            }
            Request::CallTool { tool, input } => {
                self.call(Call { tool, input, caller, dialect, cancel, events, job: None }).await
            }
            Request::StartJob { tool, input, terms } => {
                let call = Call { tool, input, caller, dialect, cancel, events, job: None };
                // What need not become a job, and would not gain by it or cannot, is none.
                let may_be_none = terms.answer_within.is_some();
                match &self.jobs {
                    None if may_be_none => self.call(call).await,
                    Some(jobs) if may_be_none && !jobs.suits(&call) => self.call(call).await,
                    Some(_) | None => self.jobs()?.start(Wanted { call, terms }).await,
                }
            }
            Request::GetJob { id } => Ok(job(self.jobs()?.get(Some(&caller), &id).await?)),
            Request::AwaitJob { id } => {
                let jobs = self.jobs()?;
                tokio::select! {
                    ended = jobs.ended(&caller, &id) => ended.map(job),
                    () = cancel.cancelled() => Err(CallError::Canceled),
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
        }
    }

    async fn call(&self, call: Call) -> Result<Answer, CallError> {
        pipeline::run(&self.gate, call, None).await.map(Answer::Output)
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
    }
}

fn job(job: Job) -> Answer {
    Answer::Job(Box::new(job))
}
