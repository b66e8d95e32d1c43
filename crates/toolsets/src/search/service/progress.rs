//! How far an index is, told to whoever searches it.

use schemars::JsonSchema;
use serde::Serialize;

/// How much of a namespace its index knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Indexed {
    /// How far it is.
    pub state: State,
    /// How many files, or documents, with text are in it.
    pub files: u64,
    /// How many there are to look at, while it is being built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_total: Option<u64>,
    /// How many passages they have.
    pub chunks: u64,
    /// How many of those have a vector by the configured model, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<u64>,
    /// Whether that is every text file; `false` while it is being built and where a limit cut it.
    pub complete: bool,
    /// What else there is to know: why it was built anew, what is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How far an index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// This server has not looked at it yet: the first search does.
    Absent,
    /// Files are being read; what is in it already is found.
    Building,
    /// It was damaged or of another version, and is being built anew.
    Rebuilding,
    /// It is up to date, and kept so.
    Ready,
    /// Another server of this workspace keeps it; this one reads what that one writes.
    Following,
    /// It cannot be reached or read.
    Away,
}

/// How far an index is, as its keeper sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) state: State,
    pub(super) files: u64,
    pub(super) total: Option<u64>,
    pub(super) chunks: u64,
    pub(super) vectors: Option<u64>,
    pub(super) complete: bool,
    pub(super) note: Option<String>,
    /// What was read could not be written; the note says why. What is there already is found.
    pub(super) unwritten: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            state: State::Absent,
            files: 0,
            total: None,
            chunks: 0,
            vectors: None,
            complete: false,
            note: None,
            unwritten: false,
        }
    }
}

impl Progress {
    /// Whether it was made anew since it was damaged, and says so.
    pub(super) fn is_rebuilt(&self) -> bool {
        self.note.as_ref().is_some_and(|note| note.starts_with("built anew"))
    }

    /// The same, as it is told.
    pub(super) fn told(&self) -> Indexed {
        let Self { state, files, total, chunks, vectors, complete, note, unwritten: _ } =
            self.clone();
        Indexed { state, files, files_total: total, chunks, vectors, complete, note }
    }
}

impl State {
    /// Whether waiting a moment gets more.
    pub(super) fn is_on_the_way(self) -> bool {
        match self {
            Self::Absent | Self::Building | Self::Rebuilding => true,
            Self::Ready | Self::Following | Self::Away => false,
        }
    }
}
