//! The progress of a search index, as shown to callers.

use schemars::JsonSchema;
use serde::Serialize;

/// State of the index of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IndexStateReport {
    /// The state of the index.
    pub state: IndexState,
    /// Number of files or documents with text in the index.
    pub files: u64,
    /// Number of files that belong in the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_total: Option<u64>,
    /// Number of passages in the index.
    pub chunks: u64,
    /// Number of passages that have a vector from the configured embedding model; absent if no
    /// model is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<u64>,
    /// True if every text file is in the index; `false` while building or if a limit was reached.
    pub complete: bool,
    /// Further information, for example the reason why the index was rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// State of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IndexState {
    /// The index is not opened yet; the next search opens or builds it.
    Absent,
    /// Files are being read; searches use the files that are indexed so far.
    Building,
    /// The index was damaged or had another version, and is being rebuilt.
    Rebuilding,
    /// The index is up to date, and changes of files are added to it.
    Ready,
    /// Another server of this workspace maintains the index; this server reads it.
    Following,
    /// The index is unavailable or unreadable.
    Away,
}

/// The progress of a search index, as recorded by the task that updates the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexProgress {
    pub(super) state: IndexState,
    pub(super) files: u64,
    pub(super) total: Option<u64>,
    pub(super) chunks: u64,
    pub(super) vectors: Option<u64>,
    pub(super) complete: bool,
    pub(super) note: Option<String>,
    /// True if writing the index failed; the note contains the reason. Searches use the earlier
    /// content of the index.
    pub(super) write_failed: bool,
}

impl Default for IndexProgress {
    fn default() -> Self {
        Self {
            state: IndexState::Absent,
            files: 0,
            total: None,
            chunks: 0,
            vectors: None,
            complete: false,
            note: None,
            write_failed: false,
        }
    }
}

impl IndexProgress {
    /// Returns true if the index was rebuilt after damage and the note says so.
    pub(super) fn is_rebuilt(&self) -> bool {
        self.note.as_ref().is_some_and(|note| note.starts_with("rebuilt: "))
    }

    /// Returns the progress of the index, as shown to callers.
    pub(super) fn report(&self) -> IndexStateReport {
        let Self { state, files, total, chunks, vectors, complete, note, write_failed: _ } =
            self.clone();
        IndexStateReport { state, files, files_total: total, chunks, vectors, complete, note }
    }
}

impl IndexState {
    /// Returns true if the index is not built yet, or is being rebuilt, so that a search should
    /// wait for it.
    pub(super) fn is_building(self) -> bool {
        match self {
            Self::Absent | Self::Building | Self::Rebuilding => true,
            Self::Ready | Self::Following | Self::Away => false,
        }
    }
}
