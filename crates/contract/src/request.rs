//! What a dialect can ask of the host, and what the host answers.

use std::sync::Arc;

use serde_json::Value;

use crate::{AnyTool, Job, JobId, JobPage, JobTerms, OpenArtefact, Output, ToolId, Which};

/// What a dialect read in a frame, with the wire's spelling gone.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The tools on offer, from after the one named.
    ListTools {
        /// The last tool of the page before, or the start.
        after: Option<ToolId>,
    },
    /// One tool, run.
    CallTool {
        /// Its name as the wire spells it.
        tool: String,
        /// Its arguments.
        input: Value,
    },
    /// One tool, run as a job.
    StartJob {
        /// Its name as the wire spells it.
        tool: String,
        /// Its arguments.
        input: Value,
        /// What is said of the job.
        terms: JobTerms,
    },
    /// One of the caller's jobs, as it is.
    GetJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// One of the caller's jobs, once it has ended.
    AwaitJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// The caller's jobs, newest first.
    ListJobs {
        /// The last job of the page before, or the start.
        after: Option<JobId>,
    },
    /// One of the caller's jobs, told to stop.
    CancelJob {
        /// Its id as the wire has it.
        id: String,
    },
    /// A file that one of the caller's jobs left.
    OpenArtefact {
        /// The job's id as the wire has it.
        id: String,
        /// Which file.
        which: Which,
    },
}

/// What the host answers.
#[derive(Clone)]
pub enum Answer {
    /// A page of tools.
    Tools(ToolPage),
    /// What the tool gave back.
    Output(Output),
    /// A job.
    Job(Box<Job>),
    /// A page of jobs.
    Jobs(JobPage),
    /// A job's file.
    Artefact(OpenArtefact),
}

/// A page of the catalog, in order of id.
#[derive(Clone)]
pub struct ToolPage {
    /// The tools.
    pub tools: Vec<Arc<dyn AnyTool>>,
    /// Where the next page starts after, if there is one.
    pub next: Option<ToolId>,
}
