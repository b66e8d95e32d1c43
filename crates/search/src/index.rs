//! Index of chunks by words, vectors and names.
//!
//! An index on disk is a folder: `words/` is a tantivy index, `static/` and `model/` store vectors
//! by content hash, and `index.json` identifies the program version. One process writes at a time.
//! Any number of processes read.

mod header;
mod directory;
mod schema;
mod segment;
mod writer;
mod small_commit;
mod snapshot;
mod lexical;
mod allowed_documents;
mod candidates;
mod literal_chunks;
mod by_name;
mod leader;
#[cfg(test)]
mod tests;

pub use by_name::{NameMatchKind, NameQuery, NamedDefinition};
pub use candidates::{CandidateSearchQuery, FoundCandidates};
pub use leader::{IndexLeaderHeartbeat, IndexLeaderStatus};
pub use snapshot::{
    IndexCounts, IndexSnapshot, IndexedDocumentVersion, UnembeddedChunk, VectorSource,
};
pub use writer::SearchIndexWriter;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tantivy::directory::RamDirectory;
use tantivy::directory::error::{OpenReadError, OpenWriteError};
use tantivy::store::Compressor;
use tantivy::{IndexSettings, TantivyError};

use crate::vectors::{VectorPrecision, VectorStore, VectorsError};
use crate::{VectorSpace, static_model};
use directory::IndexDirectory;
use schema::IndexSchemaFields;

/// Location of a search index.
#[derive(Debug, Clone, Copy)]
pub enum IndexLocation<'p> {
    /// A separate folder on disk, which is created if missing.
    Folder(&'p Path),
    /// Memory. The index ends when its last handle is dropped.
    Memory,
}

/// Result of opening a search index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexOpenOutcome {
    /// An empty index was created, because no index existed.
    Created,
    /// The index existed before and is used unchanged.
    Existing,
    /// The index was unusable. It was deleted and replaced by an empty index. The text is the
    /// reason: it completes a sentence that begins with "it".
    Rebuilt(String),
}

/// Reason for a failed operation on a search index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The index on disk is damaged. Remove it with [`SearchIndex::remove`], open it again and
    /// refill it.
    #[error("the search index is damaged ({0}) and must be rebuilt")]
    Damaged(String),
    /// The index must be rebuilt, but another process is writing it. Contains the path of the
    /// index.
    #[error("another process is writing the search index; try again later")]
    Busy(String),
    /// The input of the operation is invalid. The text is the reason.
    #[error("{0}")]
    Refused(String),
    /// The caller cancelled the operation.
    #[error("the search was cancelled")]
    Canceled,
    /// The disk or another resource failed during the operation. The text is the reason.
    #[error("cannot use the search index: {0}")]
    Failed(String),
}

/// A search index. Clones are cheap.
#[derive(Clone)]
pub struct SearchIndex {
    inner: Arc<SearchIndexInner>,
}

struct SearchIndexInner {
    /// Folder of the index, and its subfolder with the words. `None` for an index in memory.
    folder: Option<(PathBuf, IndexDirectory)>,
    words: tantivy::Index,
    fields: IndexSchemaFields,
    /// Vectors that the built-in model computed.
    static_vectors: VectorStore,
    /// Vectors that the configured model computed. `None` if no model is configured.
    model_vectors: Option<VectorStore>,
    /// Flag that is set while an index in memory has a writer.
    writer_flag: Arc<Mutex<bool>>,
    /// Cached snapshot of the newest known commit of the index.
    latest: Mutex<Option<IndexSnapshot>>,
}

impl SearchIndex {
    /// Opens the search index at `place`. Deletes an unusable index and replaces it by an empty
    /// index.
    ///
    /// `model` is the space of the configured model's vectors. Vectors of another model are
    /// deleted, but the rest of the index is kept. Fails if the index cannot be read, or if another
    /// process writes to an unusable index.
    pub fn open(
        place: IndexLocation<'_>,
        model: Option<&VectorSpace>,
    ) -> Result<(Self, IndexOpenOutcome), IndexError> {
        match place {
            IndexLocation::Folder(folder) => catch_panics(|| open_folder(folder, model)),
            IndexLocation::Memory => {
                catch_panics(|| Ok((open_memory(model)?, IndexOpenOutcome::Created)))
            }
        }
    }

    /// Deletes a damaged index at `place`, except the configured model's vectors. The next opened
    /// index is empty. Drop any [`SearchIndexWriter`] first. Fails if the files cannot be deleted.
    pub fn remove(place: IndexLocation<'_>) -> Result<(), IndexError> {
        let IndexLocation::Folder(folder) = place else { return Ok(()) };
        if !folder.try_exists()? {
            return Ok(());
        }
        let _opening = header::lock_opening(folder)?;
        let _right = header::lock_writing(folder)?
            .ok_or_else(|| IndexError::Busy(folder.display().to_string()))?;
        header::delete_index(folder)
    }

    /// Returns the writer of the index, or `None` while any process has a writer. Dropping the
    /// writer or ending its process releases the write lock. Fails if the lock file cannot be
    /// opened.
    pub fn writer(&self) -> Result<Option<SearchIndexWriter>, IndexError> {
        let right = match &self.inner.folder {
            Some((folder, _)) => header::lock_writing(folder)?.map(IndexWriteLock::Folder),
            None => {
                let mut held =
                    self.inner.writer_flag.lock().unwrap_or_else(PoisonError::into_inner);
                let is_free = !std::mem::replace(&mut *held, true);
                is_free.then(|| IndexWriteLock::Memory(Arc::clone(&self.inner.writer_flag)))
            }
        };
        let Some(right) = right else { return Ok(None) };
        catch_panics(|| SearchIndexWriter::new(self.clone(), right)).map(Some)
    }

    /// Returns a snapshot of the index after the newest commit of any process. Cheap if nothing has
    /// changed. Fails if the index is damaged or unreadable.
    pub fn snapshot(&self) -> Result<IndexSnapshot, IndexError> {
        catch_panics(|| IndexSnapshot::newest(self))
    }

    /// Returns the size of the index on disk in bytes, or 0 for an index in memory.
    pub fn bytes(&self) -> u64 {
        self.inner.folder.as_ref().map_or(0, |(folder, _)| directory::folder_bytes(folder))
    }
}

/// Write lock of a search index, as the writer of the index holds it.
enum IndexWriteLock {
    /// Lock on a file of the index folder. The operating system releases the lock when the process
    /// ends.
    Folder(#[allow(dead_code, reason = "kept, not read")] File),
    /// Flag that is set while an index in memory has a writer.
    Memory(Arc<Mutex<bool>>),
}

impl Drop for IndexWriteLock {
    fn drop(&mut self) {
        match self {
            Self::Folder(_) => {}
            Self::Memory(held) => *held.lock().unwrap_or_else(PoisonError::into_inner) = false,
        }
    }
}

/// Block size of the stored metadata of documents, in bytes: the unit of compression and reading.
const STORE_BLOCK_BYTES: usize = 4 << 10;

fn tantivy_settings() -> IndexSettings {
    IndexSettings {
        docstore_compression: Compressor::Lz4,
        docstore_compress_dedicated_thread: false,
        docstore_blocksize: STORE_BLOCK_BYTES,
        ..IndexSettings::default()
    }
}

fn open_memory(model: Option<&VectorSpace>) -> Result<SearchIndex, IndexError> {
    let (schema, fields) = schema::build_schema();
    let mut words = tantivy::Index::create(RamDirectory::create(), schema, tantivy_settings())?;
    words.set_tokenizers(schema::tokenizers());
    Ok(SearchIndex {
        inner: Arc::new(SearchIndexInner {
            folder: None,
            words,
            fields,
            static_vectors: VectorStore::in_memory(
                &static_model::space(),
                VectorPrecision::Coarse,
            )?,
            model_vectors: model
                .map(|it| VectorStore::in_memory(it, VectorPrecision::Fine))
                .transpose()?,
            writer_flag: Arc::default(),
            latest: Mutex::default(),
        }),
    })
}

fn open_folder(
    folder: &Path,
    model: Option<&VectorSpace>,
) -> Result<(SearchIndex, IndexOpenOutcome), IndexError> {
    directory::create_folder(folder)?;
    let _opening = header::lock_opening(folder)?;
    let why = match header::read_state(folder)? {
        header::IndexFolderState::Usable => match catch_panics(|| open_words(folder, model)) {
            Ok(index) => return Ok((index, IndexOpenOutcome::Existing)),
            Err(IndexError::Damaged(why)) => Some(why),
            Err(other) => return Err(other),
        },
        header::IndexFolderState::Empty => None,
        header::IndexFolderState::Unusable(why) => Some(why),
    };
    let right = header::lock_writing(folder)?;
    let _right = right.ok_or_else(|| IndexError::Busy(folder.display().to_string()))?;
    header::delete_index(folder)?;
    let (schema, _) = schema::build_schema();
    drop(tantivy::Index::create(
        IndexDirectory::open_or_create(&folder.join(header::WORDS_FOLDER))?,
        schema,
        tantivy_settings(),
    )?);
    header::write_header(folder)?;
    let index = open_words(folder, model)?;
    Ok((index, why.map_or(IndexOpenOutcome::Created, IndexOpenOutcome::Rebuilt)))
}

/// Opens the index of words in `folder` after verifying every file. Fails if a file is damaged.
fn open_words(folder: &Path, model: Option<&VectorSpace>) -> Result<SearchIndex, IndexError> {
    let (schema, fields) = schema::build_schema();
    let directory = IndexDirectory::open_or_create(&folder.join(header::WORDS_FOLDER))?;
    let mut words = tantivy::Index::open(directory.clone())?;
    if words.schema() != schema {
        return Err(IndexError::Damaged("its fields have another version".to_owned()));
    }
    words.set_tokenizers(schema::tokenizers());
    let at = folder.join(header::STATIC_FOLDER);
    let (statics, lost) = VectorStore::open(&at, &static_model::space(), VectorPrecision::Coarse)?;
    // Static vectors are made from document texts only. If some are missing, the whole index is
    // rebuilt.
    if let Some(lost) = lost.into_iter().next() {
        return Err(IndexError::Damaged(lost));
    }
    let model = model
        .map(|space| {
            VectorStore::open(&folder.join(header::MODEL_FOLDER), space, VectorPrecision::Fine)
        })
        .transpose()?;
    let index = SearchIndex {
        inner: Arc::new(SearchIndexInner {
            folder: Some((folder.to_owned(), directory)),
            words,
            fields,
            static_vectors: statics,
            model_vectors: model.map(|(store, _)| store),
            writer_flag: Arc::default(),
            latest: Mutex::default(),
        }),
    };
    IndexSnapshot::newest(&index)?;
    Ok(index)
}

/// Runs `ask` on the index and turns a panic into [`IndexError::Damaged`], because tantivy, the
/// library of the word index, panics only on damaged files.
fn catch_panics<T>(ask: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(IndexError::Damaged(text.unwrap_or("reading it failed").to_owned()))
    })
}

impl From<std::io::Error> for IndexError {
    fn from(err: std::io::Error) -> Self {
        use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
        match err.kind() {
            InvalidData | InvalidInput | NotFound | UnexpectedEof => Self::Damaged(err.to_string()),
            _ => Self::Failed(err.to_string()),
        }
    }
}

impl From<OpenReadError> for IndexError {
    fn from(err: OpenReadError) -> Self {
        match err {
            OpenReadError::FileDoesNotExist(path) => {
                Self::Damaged(format!("`{}` is missing", path.display()))
            }
            OpenReadError::IoError { io_error, filepath } => {
                let message = format!("`{}`: {io_error}", filepath.display());
                Self::from(std::io::Error::new(io_error.kind(), message))
            }
            OpenReadError::IncompatibleIndex(why) => Self::Damaged(format!("{why:?}")),
        }
    }
}

impl From<TantivyError> for IndexError {
    fn from(err: TantivyError) -> Self {
        match err {
            TantivyError::OpenReadError(err) => err.into(),
            TantivyError::OpenWriteError(OpenWriteError::IoError { io_error: err, .. })
            | TantivyError::IoError(err) => std::io::Error::new(err.kind(), err.to_string()).into(),
            TantivyError::DataCorruption(_)
            | TantivyError::IncompatibleIndex(_)
            | TantivyError::DeserializeError(_)
            | TantivyError::SchemaError(_)
            | TantivyError::FieldNotFound(_) => Self::Damaged(err.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<VectorsError> for IndexError {
    fn from(err: VectorsError) -> Self {
        match err {
            VectorsError::Refused(why) => Self::Refused(why),
            VectorsError::Canceled => Self::Canceled,
            VectorsError::Disk { cause, .. } => {
                Self::Failed(format!("its vectors cannot be stored: {cause}"))
            }
        }
    }
}
