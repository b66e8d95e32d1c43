//! A job: a call whose outcome is collected later, and all that happens to it on the way.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{BoxFuture, CallError, Caller, Level, OpenFile, Output, Questions, Stream, ToolId};

/// What a job is known by: 128 random bits, written as 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

impl JobId {
    /// The id made of `bits`, which nobody else must be able to guess.
    pub fn of(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits.
    pub fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for JobId {
    type Err = NotAJobId;

    /// Exactly as it is written: one job has one name.
    fn from_str(text: &str) -> Result<Self, NotAJobId> {
        let sound = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(sound) {
            return Err(NotAJobId);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| NotAJobId)
    }
}

/// The text is not 32 hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job's id is 32 hex digits")]
pub struct NotAJobId;

/// Where a job is. It only ever moves down this list, but for a job that is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// It is stored and waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// It has an output.
    Succeeded,
    /// It has an error, or its program reported failure.
    Failed,
    /// It was cancelled.
    Canceled,
}

impl JobState {
    /// The state in a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Whether nothing more can happen to the job.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Queued | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

/// What is known of a job at one instant.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The tool that is called.
    pub tool: ToolId,
    /// Who called it; nobody else may see it.
    pub caller: Caller,
    /// Where it is.
    pub state: JobState,
    /// When it was accepted.
    pub created: Timestamp,
    /// When it last changed.
    pub updated: Timestamp,
    /// When it last began to run, if it has.
    pub started: Option<Timestamp>,
    /// How often it began to run.
    pub attempts: u32,
    /// How far it is, 0 to 1.
    pub progress: f64,
    /// What it last said of itself.
    pub message: Option<String>,
    /// How long it is kept once it has ended, and its files with it.
    pub keep: Duration,
    /// The number of its last event.
    pub last_event: u64,
    /// What it left, in order of name.
    pub artefacts: Vec<Artefact>,
    /// What it asks of whoever called it, and waits to be told.
    pub asks: Questions,
    /// What came of it, once it has ended.
    pub outcome: Option<Result<Output, CallError>>,
}

/// A file that a job left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    /// Its name among the job's files: no `/`, different from all others.
    pub name: String,
    /// Where the tool left it, relative to the workspace.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// When it was last written.
    pub modified: Timestamp,
    /// What it is, e.g. `image/png`.
    pub media_type: String,
}

/// Something that happened to a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEvent {
    /// Its number: 1 is the first, and none is missing.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Happened,
}

/// What can happen to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Happened {
    /// It was stored.
    Queued,
    /// It began to run, for the `attempt`th time.
    Started {
        /// From 1.
        attempt: u32,
    },
    /// It said how far it is.
    Progress {
        /// How far, 0 to 1; it never falls within an attempt.
        fraction: f64,
        /// What is being done.
        message: Option<String>,
    },
    /// Its program printed something.
    Output {
        /// Where.
        stream: Stream,
        /// What, with what is not UTF-8 replaced.
        text: String,
    },
    /// It said something.
    Log {
        /// How serious.
        level: Level,
        /// What.
        message: String,
    },
    /// It left a file.
    Artefact(Artefact),
    /// It asks something of whoever called it, or was told what it asked.
    Asks {
        /// How many questions are open now.
        open: usize,
    },
    /// It ended: nothing comes after.
    Finished {
        /// How.
        state: JobState,
    },
}

/// What whoever starts a job may say of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobTerms {
    /// How long it is to be kept once it has ended; bounded by configuration.
    pub keep: Option<Duration>,
    /// If it ends within this, its outcome is the answer instead of the job.
    pub answer_within: Option<Duration>,
}

/// A page of a caller's jobs, newest first.
#[derive(Debug, Clone)]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Where the next page starts after, if there is one.
    pub next: Option<JobId>,
}

/// Which of a job's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one that matters most: the only one, or all in a zip, or what it printed.
    Main,
    /// The one of that name.
    Named(String),
    /// All, in a zip.
    All,
}

/// A job's file, open.
#[derive(Debug, Clone)]
pub struct OpenArtefact {
    /// What to call it.
    pub name: String,
    /// It.
    pub file: OpenFile,
}

/// A job's life from some event on.
pub trait Watch: Send {
    /// The next thing; `None` once it has ended and that was told.
    ///
    /// Safe to drop half way and call again.
    fn next(&mut self) -> BoxFuture<'_, Option<Watched>>;
}

/// What a watch tells.
#[derive(Debug, Clone)]
pub enum Watched {
    /// Something happened.
    Event(Arc<JobEvent>),
    /// It ended: after its last event, and the last thing told.
    Ended(Box<Job>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_only_as_it_is_written() {
        let id = JobId::of(7);
        assert_eq!(id.to_string().parse(), Ok(id));
        for other in ["7", "0000000000000000000000000000000G", "+0000000000000000000000000000007"] {
            assert_eq!(other.parse::<JobId>(), Err(NotAJobId), "{other}");
        }
    }
}
