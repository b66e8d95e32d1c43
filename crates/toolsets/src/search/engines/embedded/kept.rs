//! Documents that callers put, kept as they were: a file for each in the user's state folder, or
//! memory.
#![allow(clippy::disallowed_methods, reason = "a folder of the server's own, not the workspace")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tempfile::NamedTempFile;
use toolgate_chunks::chunks;

use crate::search::engines::{EngineError, Put};

/// Documents by their paths.
pub(super) enum Kept {
    Folder(PathBuf),
    Memory(Mutex<BTreeMap<String, Put>>),
}

/// A document in its file.
#[derive(Serialize, Deserialize)]
struct Written {
    path: String,
    etag: String,
    lang: Option<String>,
    tags: Vec<String>,
    text: String,
    /// By which its text is cut into chunks.
    sort: String,
    metadata: Map<String, Value>,
}

impl Kept {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        folder.map_or_else(|| Self::Memory(Mutex::default()), Self::Folder)
    }

    /// All of them.
    pub(super) fn load(&self) -> Result<Vec<Put>, EngineError> {
        match self {
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(kept.values().cloned().collect())
            }
            Self::Folder(folder) => {
                let entries = match fs::read_dir(folder) {
                    Ok(entries) => entries,
                    Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(err) => return Err(unusable(folder, &err)),
                };
                let mut kept = Vec::new();
                for entry in entries {
                    let path = entry.map_err(|err| unusable(folder, &err))?.path();
                    if path.extension().is_some_and(|end| end == "json") {
                        kept.extend(read(&path)?);
                    }
                }
                Ok(kept)
            }
        }
    }

    /// The document at `path`.
    pub(super) fn get(&self, path: &str) -> Result<Option<Put>, EngineError> {
        match self {
            Self::Memory(kept) => {
                let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(kept.get(path).cloned())
            }
            Self::Folder(folder) => read(&at(folder, path)),
        }
    }

    /// Keeps `put`, in place of what its path had: all of it or, if that fails, nothing.
    pub(super) fn put(&self, put: Put) -> Result<(), EngineError> {
        match self {
            Self::Memory(kept) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.insert(put.path.clone(), put);
                Ok(())
            }
            Self::Folder(folder) => write(folder, put).map_err(|err| unusable(folder, &err)),
        }
    }

    /// Keeps the document at `path` no more.
    pub(super) fn remove(&self, path: &str) -> Result<(), EngineError> {
        match self {
            Self::Memory(kept) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
                Ok(())
            }
            Self::Folder(folder) => match fs::remove_file(at(folder, path)) {
                Err(err) if err.kind() != ErrorKind::NotFound => Err(unusable(folder, &err)),
                Ok(()) | Err(_) => Ok(()),
            },
        }
    }
}

/// The file of the document at `path`, which may be anything.
fn at(folder: &Path, path: &str) -> PathBuf {
    let hash = blake3::hash(path.as_bytes()).to_hex();
    folder.join(format!("{}.json", &hash[..32]))
}

fn write(folder: &Path, put: Put) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let to = at(folder, &put.path);
    let Put { path, etag, lang, tags, text, metadata, stamp, .. } = put;
    let sort = String::from_utf8(stamp).unwrap_or_default();
    let written = Written { path, etag, lang, tags, text, sort, metadata };
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(&written)?)?;
    file.as_file().sync_all()?;
    file.persist(to)?;
    Ok(())
}

fn read(file: &Path) -> Result<Option<Put>, EngineError> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(unusable(file, &err)),
    };
    let written: Written = match serde_json::from_slice(&bytes) {
        Ok(written) => written,
        Err(err) => {
            // One that cannot be read keeps no other from being found.
            tracing::warn!("a document that was kept cannot be read: {}: {err}", file.display());
            return Ok(None);
        }
    };
    let Written { path, etag, lang, tags, text, sort, metadata } = written;
    Ok(Some(Put {
        chunks: chunks(&sort, &text),
        path,
        stamp: sort.into_bytes(),
        etag,
        commit: None,
        lang,
        tags,
        text,
        metadata,
    }))
}

fn unusable(path: &Path, err: &io::Error) -> EngineError {
    let path = path.display();
    EngineError::Failed(format!("{path}, where documents are kept, cannot be used: {err}"))
}
