//! The index itself: chunks found by their words, their vectors and their names.
//!
//! On disk it is a folder of its own: `words/` is a tantivy index, `static/` and `model/` keep
//! vectors by what chunks say, `index.json` tells what made it. One process writes at a time, any
//! number reads.

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

/// Where an index is.
#[derive(Debug, Clone, Copy)]
pub enum Place<'p> {
    /// In this folder, which is its alone and made where it is missing.
    Folder(&'p Path),
    /// In memory: it ends with the last that holds it.
    Memory,
}

/// What was found where an index was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: it is empty.
    New,
    /// What was kept before.
    Kept,
    /// What could not be used, and is gone: why, as part of a sentence. It is empty.
    Rebuilt(String),
}

/// Why an index did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// What is on disk is broken: [`Index::remove`] it, open it again and fill it anew.
    #[error("the search index is damaged ({0}): it is to be made anew")]
    Damaged(String),
    /// It would have to be made anew, and another process writes it: where it lies.
    #[error("the search index is written by another process: try again later")]
    Busy(String),
    /// What was handed in cannot be taken.
    #[error("{0}")]
    Refused(String),
    /// Whoever asked no longer wants it.
    #[error("the search was given up")]
    Canceled,
    /// The disk, or what else it stands on.
    #[error("the search index could not be used: {0}")]
    Failed(String),
}

/// An index. Cheap to clone.
#[derive(Clone)]
pub struct Index {
    inner: Arc<Inner>,
}

struct Inner {
    /// Of an index on disk its folder, and that of its words.
    folder: Option<(PathBuf, Folder)>,
    words: tantivy::Index,
    fields: Fields,
    /// Vectors that are built in.
    statics: Store,
    /// Vectors by the configured model.
    model: Option<Store>,
    /// Of an index in memory: held by whoever writes.
    right: Arc<Mutex<bool>>,
    /// The last moment that was asked for.
    latest: Mutex<Option<Snapshot>>,
}

impl Index {
    /// The index at `place`; what cannot be used there is removed and begun anew.
    ///
    /// `model` is the space of the configured model's vectors. Those of another are removed; the
    /// rest of the index stays.
    pub fn open(place: Place<'_>, model: Option<&Space>) -> Result<(Self, Begun), IndexError> {
        match place {
            Place::Folder(folder) => guarded(|| open_folder(folder, model)),
            Place::Memory => guarded(|| Ok((open_memory(model)?, Begun::New))),
        }
    }

    /// Removes what was found to be damaged at `place`, all but the model's vectors: what is opened
    /// there next is empty. Whoever has a [`Writer`] drops it before.
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

    /// The right to write, until it is dropped; `None` while another has it. It ends with the
    /// process that has it, however that ends.
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

    /// Its newest moment, whoever wrote it. Cheap when nothing has changed since the last.
    pub fn snapshot(&self) -> Result<Snapshot, IndexError> {
        guarded(|| Snapshot::newest(self))
    }

    /// How much it takes on disk; 0 in memory.
    pub fn bytes(&self) -> u64 {
        self.inner.folder.as_ref().map_or(0, |(folder, _)| folder::bytes(folder))
    }
}

/// The right to write.
enum Right {
    /// A lock on a file, which ends with the process.
    Folder(#[allow(dead_code, reason = "held, not read")] File),
    /// Of an index in memory.
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

/// How much of the doc store is compressed, and so read, at once.
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

/// The index in `folder`, looked through: every file of it is as it was written.
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
    // They are made of texts that only documents have: where some are missing, all begins anew.
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

/// What `ask` answers; where it panics, which it does only on what is broken beneath it, that is
/// told instead.
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
