//! Jobs: calls whose outcome is collected later, and their events.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    BoxFuture, CallError, Caller, ClientQuestions, JobId, LogLevel, OutgoingFile, OutputStreamKind,
    ToolId, ToolOutput, ToolRunStatus,
};

/// State of a job. States follow in this order, except when a job runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// The job is stored and waits until it can run.
    Queued,
    /// The job is running.
    Running,
    /// The job has ended with an output.
    Succeeded,
    /// The job has ended with an error, or its program reported failure.
    Failed,
    /// The job was cancelled.
    Canceled,
}

impl JobState {
    /// Returns the state as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Returns true if the job has ended.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

/// Data of a job at one point in time.
#[derive(Debug, Clone)]
pub struct JobSnapshot {
    /// The job's id.
    pub id: JobId,
    /// The id of the tool that the job runs.
    pub tool: ToolId,
    /// The caller who started the job. Only this caller may see the job.
    pub caller: Caller,
    /// The state of the job.
    pub state: JobState,
    /// The time at which the job was accepted.
    pub created: Timestamp,
    /// The time of the job's last change.
    pub updated: Timestamp,
    /// The time of the job's last start, if it has started.
    pub started: Option<Timestamp>,
    /// The number of times that the job has started.
    pub attempts: u32,
    /// The progress of the job from 0 to 1.
    pub progress: f64,
    /// The latest progress message of the job.
    pub message: Option<String>,
    /// The time for which the job and its files are kept after its end.
    pub keep_for: Duration,
    /// The number of the job's last event.
    pub last_event: u64,
    /// The files that the job produced, ordered by name.
    pub artefacts: Vec<JobArtefact>,
    /// The open questions of the job to its caller.
    pub questions: ClientQuestions,
    /// The output or error of the job, if it has ended.
    pub outcome: Option<Result<ToolOutput, CallError>>,
    /// The text that the programs of the job printed, if the outcome is an error. Empty in lists.
    pub printed: JobOutputText,
}

/// Text that the programs of a job printed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobOutputText {
    /// The text that the programs printed on standard output.
    pub stdout: String,
    /// The text that the programs printed on standard error.
    pub stderr: String,
}

impl JobOutputText {
    /// Collects the text that programs printed in the last run of the job with the events `events`.
    pub fn from_events<'e>(events: impl IntoIterator<Item = &'e JobEvent>) -> Self {
        let mut printed = Self::default();
        for event in events {
            match &event.kind {
                JobEventKind::Started { .. } => printed = Self::default(),
                JobEventKind::Output { stream: OutputStreamKind::Stdout, text } => {
                    printed.stdout.push_str(text);
                }
                JobEventKind::Output { stream: OutputStreamKind::Stderr, text } => {
                    printed.stderr.push_str(text);
                }
                JobEventKind::Queued
                | JobEventKind::Progress { .. }
                | JobEventKind::Log { .. }
                | JobEventKind::Artefact(_)
                | JobEventKind::Asks { .. }
                | JobEventKind::Finished { .. } => {}
            }
        }
        printed
    }
}

/// The name of the download that contains what a job printed.
const PRINTED_NAME: &str = "output.txt";

impl JobSnapshot {
    /// Returns the files of the job that a client can download: those that the job produced or, if
    /// it produced none, the text that it printed.
    pub fn downloads(&self) -> Vec<JobArtefact> {
        let printed = self.printed_download().map(|text| JobArtefact {
            name: PRINTED_NAME.to_owned(),
            path: PRINTED_NAME.to_owned(),
            bytes: text.len() as u64,
            modified: self.updated,
            media_type: "text/plain; charset=utf-8".to_owned(),
        });
        self.artefacts.iter().cloned().chain(printed).collect()
    }

    /// Returns the text that a succeeded job printed, if it wrote no files.
    pub fn printed_download(&self) -> Option<Cow<'_, str>> {
        let output = self.outcome.as_ref()?.as_ref().ok()?;
        let is_only_printed = output.ending == ToolRunStatus::Done
            && self.artefacts.is_empty()
            && !output.has_written_files();
        let text = || output.program_output(OutputStreamKind::Stdout);
        is_only_printed.then(|| text().unwrap_or(output.text.body.as_str().into()))
    }
}

/// A file that a job produced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct JobArtefact {
    /// The file's name, unique among the job's files and without `/`.
    pub name: String,
    /// The file's original path: relative to the workspace, or absolute if the file is outside.
    pub path: String,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The time of the last write to the file.
    #[schemars(with = "String")]
    pub modified: Timestamp,
    /// The file's media type, e.g. `image/png`.
    pub media_type: String,
}

/// Event of a job, with its number and time.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEvent {
    /// The number of the event. A job's numbers start at 1 and have no gaps.
    pub seq: u64,
    /// The time at which the event happened.
    pub at: Timestamp,
    /// The kind and content of the event.
    pub kind: JobEventKind,
}

/// The kinds of job events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobEventKind {
    /// The job was stored.
    Queued,
    /// The job started to run.
    Started {
        /// The number of the run, from 1.
        attempt: u32,
    },
    /// The job reported progress.
    Progress {
        /// The progress from 0 to 1. The progress never decreases within one run.
        fraction: f64,
        /// A description of the current step.
        message: Option<String>,
    },
    /// The job's program printed text.
    Output {
        /// The output stream of the program.
        stream: OutputStreamKind,
        /// The printed text, with invalid UTF-8 replaced.
        text: String,
    },
    /// The job logged a line.
    Log {
        /// The severity of the log line.
        level: LogLevel,
        /// The text of the log line.
        message: String,
    },
    /// The job produced a file.
    Artefact(JobArtefact),
    /// The job asked a question, or received an answer.
    Asks {
        /// The number of questions that are open now.
        open: usize,
    },
    /// The job ended. No event follows.
    Finished {
        /// The final state of the job.
        state: JobState,
    },
}

/// Options for the start of a job.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobOptions {
    /// The time for which the job is kept after its end. `None` is the configured default. The
    /// settings also limit this time.
    pub keep_for: Option<Duration>,
    /// The time for which the request waits for the end of the job. If the job ends within this
    /// time, the answer is the job's outcome.
    pub answer_within: Option<Duration>,
}

/// A page of the list of a caller's jobs, newest first.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// The jobs of this page.
    pub jobs: Vec<JobSnapshot>,
    /// The id of the last job of this page, if another page follows.
    pub next: Option<JobId>,
}

/// Selection from the files that a job produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtefactSelection {
    /// Selects the job's only file, or a zip archive of several.
    Main,
    /// Selects the job's file with this name.
    Named(String),
    /// Selects a zip archive of all files of the job.
    All,
}

/// An open file of a job.
#[derive(Debug, Clone)]
pub struct OpenArtefact {
    /// The file name to offer to the client.
    pub name: String,
    /// The open file of the job.
    pub file: OutgoingFile,
}

/// A stream of a job's events. The stream may begin after the job's first events.
pub trait JobEventStream: Send {
    /// Returns the next item of the event stream. `None` after [`JobStreamItem::Ended`].
    ///
    /// Safe to cancel and call again.
    fn next(&mut self) -> BoxFuture<'_, Option<JobStreamItem>>;
}

/// An item of a job's event stream.
#[derive(Debug, Clone)]
pub enum JobStreamItem {
    /// An event of the job.
    Event(Arc<JobEvent>),
    /// The job after its end. This item follows the last event and ends the stream.
    Ended(Box<JobSnapshot>),
}
