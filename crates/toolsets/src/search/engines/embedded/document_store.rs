//! Stores the documents that callers send, as files in the user's state folder or in memory.
//!
//! During a change, a folder beside the files contains their earlier versions. If that folder still
//! exists at the next start, the change was interrupted and is undone.
#![allow(clippy::disallowed_methods, reason = "a folder of the server's own, not the workspace")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tempfile::NamedTempFile;
use toolgate_chunks::chunks;
use toolgate_contract::{exact_json, lock_mutex};

use crate::search::engines::{SearchEngineError, StoredDocument};

/// Store of the documents that callers have put into a namespace, by path.
pub(super) enum DocumentFileStore {
    Folder(PathBuf),
    Memory(Mutex<BTreeMap<String, StoredDocument>>),
}

/// Changes of stored documents by path: the document to store, or `None` to remove the document.
pub(super) type StoredDocumentChanges = BTreeMap<String, Option<StoredDocument>>;

/// The name of the folder that contains the earlier versions of documents during a change. An empty
/// file in this folder means that the document did not exist before.
const UNDO_FOLDER: &str = "before";
/// The name that the folder with earlier versions gets when a change is complete, before the folder
/// is removed.
const DONE_FOLDER: &str = "done";

/// The content of the file that stores a document.
#[derive(Serialize, Deserialize)]
struct DocumentFileContent {
    path: String,
    etag: String,
    lang: Option<String>,
    tags: Vec<String>,
    text: String,
    /// Format of the document as a file name, whose extension selects how the text is cut into
    /// chunks.
    sort: String,
    #[serde(deserialize_with = "exact_json::deserialize_object")]
    metadata: Map<String, Value>,
}

impl DocumentFileStore {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        folder.map_or_else(|| Self::Memory(Mutex::default()), Self::Folder)
    }

    /// Returns all documents of the store. Fails if a file is unreadable.
    pub(super) fn load(&self) -> Result<Vec<StoredDocument>, SearchEngineError> {
        match self {
            Self::Memory(documents) => {
                let documents = lock_mutex(documents);
                Ok(documents.values().cloned().collect())
            }
            Self::Folder(folder) => {
                let entries = match fs::read_dir(folder) {
                    Ok(entries) => entries,
                    Err(err) if err.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(err) => return Err(unusable_error(folder, &err)),
                };
                let mut documents = Vec::new();
                for entry in entries {
                    let path = entry.map_err(|err| unusable_error(folder, &err))?.path();
                    if path.extension().is_some_and(|end| end == "json") {
                        documents.extend(read(&path)?);
                    }
                }
                Ok(documents)
            }
        }
    }

    /// Returns the document at `path` in the store, or `None` if there is none. Fails if the file
    /// is unreadable.
    pub(super) fn get(&self, path: &str) -> Result<Option<StoredDocument>, SearchEngineError> {
        match self {
            Self::Memory(documents) => {
                let documents = lock_mutex(documents);
                Ok(documents.get(path).cloned())
            }
            Self::Folder(folder) => read(&document_path(folder, path)),
        }
    }

    /// Applies all of `changes` and then calls `commit`. If either fails, undoes all changes. The
    /// caller must hold the write lock of the index.
    pub(super) fn apply(
        &self,
        changes: StoredDocumentChanges,
        commit: impl FnOnce() -> Result<(), SearchEngineError>,
    ) -> Result<(), SearchEngineError> {
        match self {
            Self::Memory(documents) => {
                commit()?;
                let mut documents = lock_mutex(documents);
                for (path, document) in changes {
                    match document {
                        Some(document) => drop(documents.insert(path, document)),
                        None => drop(documents.remove(&path)),
                    }
                }
                Ok(())
            }
            Self::Folder(folder) => {
                self.undo()?;
                let changed =
                    apply_changes(folder, changes).map_err(|err| unusable_error(folder, &err));
                let done = changed.and_then(|()| commit()).and_then(|()| {
                    let done = fs::rename(folder.join(UNDO_FOLDER), folder.join(DONE_FOLDER));
                    done.map_err(|err| unusable_error(folder, &err))
                });
                match &done {
                    // Leftovers of this folder are removed by the next change.
                    Ok(()) => drop(fs::remove_dir_all(folder.join(DONE_FOLDER))),
                    Err(_) => self.undo()?,
                }
                done
            }
        }
    }

    /// Undoes a change of documents that was interrupted. The caller must hold the write lock of
    /// the index. Fails if a file cannot be restored.
    pub(super) fn undo(&self) -> Result<(), SearchEngineError> {
        let Self::Folder(folder) = self else { return Ok(()) };
        undo(folder).map_err(|err| unusable_error(folder, &err))
    }
}

fn apply_changes(folder: &Path, changes: StoredDocumentChanges) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    ignore_missing(fs::remove_dir_all(folder.join(DONE_FOLDER)))?;
    fs::create_dir(folder.join(UNDO_FOLDER))?;
    for (path, document) in changes {
        let file = document_path(folder, &path);
        save_previous(folder, &file)?;
        match document {
            Some(document) => write(folder, document)?,
            None => ignore_missing(fs::remove_file(file))?,
        }
    }
    Ok(())
}

/// Saves the current version of the document in `file` to `folder`, so that the change can be
/// undone. Fails if the file cannot be copied.
fn save_previous(folder: &Path, file: &Path) -> io::Result<()> {
    let before = folder.join(UNDO_FOLDER).join(file.file_name().unwrap_or_default());
    match fs::hard_link(file, &before) {
        Err(err) if err.kind() == ErrorKind::NotFound => fs::write(before, ""),
        // Not every file system has hard links.
        Err(_) => fs::copy(file, before).map(drop),
        Ok(()) => Ok(()),
    }
}

fn undo(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder.join(UNDO_FOLDER)) {
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let file = folder.join(entry.file_name());
        if entry.metadata()?.len() > 0 {
            fs::rename(entry.path(), &file)?;
            // If both names link to one file, `rename` does nothing and leaves this one.
            ignore_missing(fs::remove_file(entry.path()))?;
        } else {
            ignore_missing(fs::remove_file(file))?;
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(folder.join(UNDO_FOLDER))
}

/// Returns success if `removed` failed because the file does not exist. Returns any other result
/// unchanged.
fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|err| if err.kind() == ErrorKind::NotFound { Ok(()) } else { Err(err) })
}

/// Returns the path of the file in `folder` for the document at `path`, which may be any text.
fn document_path(folder: &Path, path: &str) -> PathBuf {
    let hash = blake3::hash(path.as_bytes()).to_hex();
    folder.join(format!("{}.json", &hash[..32]))
}

fn write(folder: &Path, document: StoredDocument) -> io::Result<()> {
    let to = document_path(folder, &document.path);
    let StoredDocument { path, etag, lang, tags, text, metadata, stamp, .. } = document;
    let sort = String::from_utf8(stamp).unwrap_or_default();
    let written = DocumentFileContent { path, etag, lang, tags, text, sort, metadata };
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(&written)?)?;
    file.as_file().sync_all()?;
    file.persist(to)?;
    Ok(())
}

fn read(file: &Path) -> Result<Option<StoredDocument>, SearchEngineError> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(err) if err.kind() == ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(unusable_error(file, &err)),
    };
    let written: DocumentFileContent = match serde_json::from_slice(&bytes) {
        Ok(written) => written,
        Err(err) => {
            // An unreadable document must not hide the others.
            tracing::warn!("a stored document cannot be read: {}: {err}", file.display());
            return Ok(None);
        }
    };
    let DocumentFileContent { path, etag, lang, tags, text, sort, metadata } = written;
    Ok(Some(StoredDocument {
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

fn unusable_error(path: &Path, err: &io::Error) -> SearchEngineError {
    let path = path.display();
    SearchEngineError::Failed(format!("the document store {path} cannot be used: {err}"))
}
