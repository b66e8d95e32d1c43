//! Index of chunks by words, vectors and names.
//!
//! On disk it is a folder: `words/` is a tantivy index, `static/` and `model/` store vectors by
//! content hash, and `index.json` identifies the program version. One process writes at a time; any
//! number of processes read.

mod header;
mod folder;
mod schema;
mod part;
mod writer;
mod snapshot;
mod lexical;
mod allowed;
mod candidates;
mod named;
mod leading;
#[cfg(test)]
mod tests;

pub use candidates::{Found, Sought};
pub use leading::{Leader, Pulse};
pub use named::{Asked, How, Named};
pub use snapshot::{Counts, Known, Snapshot, Unembedded, Which};
pub use writer::Writer;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tantivy::directory::RamDirectory;
use tantivy::directory::error::{OpenReadError, OpenWriteError};
use tantivy::store::Compressor;
use tantivy::{IndexSettings, TantivyError};

use crate::vectors::{Precision, Store, VectorsError};
use crate::{Space, static_model};
use folder::Folder;
use schema::Fields;

/// Location of an index.
#[derive(Debug, Clone, Copy)]
pub enum Place<'p> {
    /// A folder of its own, which is created if missing.
    Folder(&'p Path),
    /// Memory; the index ends with its last handle.
    Memory,
}

/// State of an index when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Created empty.
    New,
    /// Existing index opened.
    Kept,
    /// Unusable index deleted and replaced by an empty one. The text completes a sentence that
    /// begins with "it".
    Rebuilt(String),
}

/// Reason for a failed operation on an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The index on disk is damaged. Call [`Index::remove`], open it again and refill it.
    #[error("the search index is damaged ({0}): it is to be made anew")]
    Damaged(String),
    /// The index must be rebuilt, but another process is writing it. Contains its path.
    #[error("the search index is written by another process: try again later")]
    Busy(String),
    /// The input is not acceptable.
    #[error("{0}")]
    Refused(String),
    /// The caller canceled the operation.
    #[error("the search was given up")]
    Canceled,
    /// The disk or another resource failed.
    #[error("the search index could not be used: {0}")]
    Failed(String),
}

/// A search index. Cheap to clone.
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
}

struct Inner {
    /// Folder of the index and of its words; `None` in memory.
    folder: Option<(PathBuf, Folder)>,
    words: tantivy::Index,
    fields: Fields,
    /// Built-in static vectors.
    statics: Store,
    /// Vectors of the configured model.
    model: Option<Store>,
    /// Set while an index in memory has a writer.
    right: Arc<Mutex<bool>>,
    /// Most recent snapshot.
    latest: Mutex<Option<Snapshot>>,
}

impl Index {
    /// Opens the index at `place`. An unusable one is deleted and replaced by an empty one.
    ///
    /// `model` is the space of the configured model's vectors. Vectors of another model are
    /// deleted, but the rest of the index is kept.
    pub fn open(place: Place<'_>, model: Option<&Space>) -> Result<(Self, Begun), IndexError> {
        match place {
            Place::Folder(folder) => guarded(|| open_folder(folder, model)),
            Place::Memory => guarded(|| Ok((open_memory(model)?, Begun::New))),
        }
    }

    /// Deletes a damaged index at `place`, except the model's vectors. The next opened index is
    /// empty. Drop any [`Writer`] first.
    pub fn remove(place: Place<'_>) -> Result<(), IndexError> {
        let Place::Folder(folder) = place else { return Ok(()) };
        if !folder.try_exists()? {
            return Ok(());
        }
        let _opening = header::opening(folder)?;
        let _right =
            header::right(folder)?.ok_or_else(|| IndexError::Busy(folder.display().to_string()))?;
        header::wipe(folder)
    }

    /// Returns the writer, or `None` while another one exists. The lock ends with the writer or
    /// with its process.
    pub fn writer(&self) -> Result<Option<Writer>, IndexError> {
        let right = match &self.inner.folder {
            Some((folder, _)) => header::right(folder)?.map(Right::Folder),
            None => {
                let mut held = self.inner.right.lock().unwrap_or_else(PoisonError::into_inner);
                let is_free = !std::mem::replace(&mut *held, true);
                is_free.then(|| Right::Memory(Arc::clone(&self.inner.right)))
            }
        };
        let Some(right) = right else { return Ok(None) };
        guarded(|| Writer::new(self.clone(), right)).map(Some)
    }

    /// Returns the newest snapshot, from any process. Cheap if nothing has changed.
    pub fn snapshot(&self) -> Result<Snapshot, IndexError> {
        guarded(|| Snapshot::newest(self))
    }

    /// Returns the size on disk in bytes; 0 in memory.
    pub fn bytes(&self) -> u64 {
        self.inner.folder.as_ref().map_or(0, |(folder, _)| folder::bytes(folder))
    }
}

/// Exclusive right to write.
enum Right {
    /// Lock on a file, which ends with the process.
    Folder(#[allow(dead_code, reason = "held, not read")] File),
    /// Flag of an index in memory.
    Memory(Arc<Mutex<bool>>),
}

impl Drop for Right {
    fn drop(&mut self) {
        match self {
            Self::Folder(_) => {}
            Self::Memory(held) => *held.lock().unwrap_or_else(PoisonError::into_inner) = false,
        }
    }
}

/// Block size of the document store, in bytes: the unit of compression and reading.
const STORE_BLOCK_BYTES: usize = 4 << 10;

fn settings() -> IndexSettings {
    IndexSettings {
        docstore_compression: Compressor::Lz4,
        docstore_compress_dedicated_thread: false,
        docstore_blocksize: STORE_BLOCK_BYTES,
        ..IndexSettings::default()
    }
}

fn open_memory(model: Option<&Space>) -> Result<Index, IndexError> {
    let (schema, fields) = schema::schema();
    let mut words = tantivy::Index::create(RamDirectory::create(), schema, settings())?;
    words.set_tokenizers(schema::tokenizers());
    Ok(Index {
        inner: Arc::new(Inner {
            folder: None,
            words,
            fields,
            statics: Store::in_memory(&static_model::space(), Precision::Coarse)?,
            model: model.map(|it| Store::in_memory(it, Precision::Fine)).transpose()?,
            right: Arc::default(),
            latest: Mutex::default(),
        }),
    })
}

fn open_folder(folder: &Path, model: Option<&Space>) -> Result<(Index, Begun), IndexError> {
    folder::make(folder)?;
    let _opening = header::opening(folder)?;
    let why = match header::read(folder)? {
        header::Read::Ours => match guarded(|| open_words(folder, model)) {
            Ok(index) => return Ok((index, Begun::Kept)),
            Err(IndexError::Damaged(why)) => Some(why),
            Err(other) => return Err(other),
        },
        header::Read::Nothing => None,
        header::Read::Unusable(why) => Some(why),
    };
    let right = header::right(folder)?;
    let _right = right.ok_or_else(|| IndexError::Busy(folder.display().to_string()))?;
    header::wipe(folder)?;
    let (schema, _) = schema::schema();
    drop(tantivy::Index::create(Folder::make(&folder.join(header::WORDS))?, schema, settings())?);
    header::write(folder)?;
    let index = open_words(folder, model)?;
    Ok((index, why.map_or(Begun::New, Begun::Rebuilt)))
}

/// Opens the index in `folder` after verifying every file.
fn open_words(folder: &Path, model: Option<&Space>) -> Result<Index, IndexError> {
    let (schema, fields) = schema::schema();
    let directory = Folder::make(&folder.join(header::WORDS))?;
    let mut words = tantivy::Index::open(directory.clone())?;
    if words.schema() != schema {
        return Err(IndexError::Damaged("its fields are of another version".to_owned()));
    }
    words.set_tokenizers(schema::tokenizers());
    let at = folder.join(header::STATIC);
    let (statics, lost) = Store::open(&at, &static_model::space(), Precision::Coarse)?;
    // Static vectors are made from document texts only. If some are missing, the whole index is
    // rebuilt.
    if let Some(lost) = lost.into_iter().next() {
        return Err(IndexError::Damaged(lost));
    }
    let model = model
        .map(|space| Store::open(&folder.join(header::MODEL), space, Precision::Fine))
        .transpose()?;
    let index = Index {
        inner: Arc::new(Inner {
            folder: Some((folder.to_owned(), directory)),
            words,
            fields,
            statics,
            model: model.map(|(store, _)| store),
            right: Arc::default(),
            latest: Mutex::default(),
        }),
    };
    Snapshot::newest(&index)?;
    Ok(index)
}

/// Runs `ask` and turns a panic into [`IndexError::Damaged`], because tantivy panics only on
/// damaged files.
fn guarded<T>(ask: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(IndexError::Damaged(text.unwrap_or("its reading broke off").to_owned()))
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
                let told = format!("`{}`: {io_error}", filepath.display());
                Self::from(std::io::Error::new(io_error.kind(), told))
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
                Self::Failed(format!("its vectors cannot be kept: {cause}"))
            }
        }
    }
}
