//! Identifies the program version that created an index, and locks the index folder.
#![allow(
    clippy::disallowed_methods,
    reason = "only this module, directory.rs and vectors/ access the index folder"
)]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toolgate_chunks::words::words;

use super::{IndexError, directory};
use crate::static_model;

/// Subfolder of an index that contains the word index.
pub(super) const WORDS_FOLDER: &str = "words";
/// Subfolder of an index that contains the vectors by the built-in model.
pub(super) const STATIC_FOLDER: &str = "static";
/// Subfolder of an index that contains the vectors by the configured model. A rebuild keeps these
/// vectors, because they are expensive.
pub(super) const MODEL_FOLDER: &str = "model";

const HEADER_FILE: &str = "index.json";
const OPEN_LOCK_FILE: &str = "open.lock";
const WRITE_LOCK_FILE: &str = "write.lock";

/// Version of an index's layout and content on disk. It is raised with every change to them.
const FORMAT_VERSION: u32 = 4;

/// Sample text that covers every rule by which texts are split into words.
const SAMPLE_TEXT: &str = "fn parseHTTPHeader2(x: &str) -> Vec<utf8_lossy> { validated_sessions += 1 } \
                      GRÖSSE stopped caches authentication ユーザー認証 where is the 3rd-party?";

/// Identity of an index. A program may use an index only if it would write the same header.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct IndexHeader {
    format: u32,
    tantivy: String,
    /// Hash of the words in [`SAMPLE_TEXT`], which changes with the rules for splitting texts into
    /// words.
    words: String,
    /// Name and dimensions of the built-in model's vectors.
    vectors: String,
}

impl IndexHeader {
    fn current() -> Self {
        let mut taken = blake3::Hasher::new();
        words(SAMPLE_TEXT, |word| {
            taken.update(word.as_bytes()).update(b"\n");
        });
        let space = static_model::space();
        Self {
            format: FORMAT_VERSION,
            tantivy: tantivy::version_string().to_owned(),
            words: taken.finalize().to_hex()[..16].to_owned(),
            vectors: format!("{}, {}", space.model, space.dimensions),
        }
    }
}

/// State of an index folder.
pub(super) enum IndexFolderState {
    /// The folder contains no index.
    Empty,
    /// The folder contains an index that this program version can use.
    Usable,
    /// The folder contains an unusable index. The text is the reason: it completes a sentence that
    /// begins with "it".
    Unusable(String),
}

/// Returns the state of the index in `folder`. Fails if the folder is unreadable.
pub(super) fn read_state(folder: &Path) -> Result<IndexFolderState, IndexError> {
    let bytes = match fs::read(folder.join(HEADER_FILE)) {
        Ok(bytes) => bytes,
        Err(err) if err.kind() == ErrorKind::NotFound => {
            let begun = folder.join(WORDS_FOLDER).try_exists()?;
            let why = || IndexFolderState::Unusable("it is incomplete".to_owned());
            return Ok(if begun { why() } else { IndexFolderState::Empty });
        }
        Err(err) => return Err(IndexError::Failed(err.to_string())),
    };
    let ours = IndexHeader::current();
    Ok(match serde_json::from_slice::<IndexHeader>(&bytes) {
        Ok(header) if header == ours => IndexFolderState::Usable,
        Ok(header) if header.format != ours.format => {
            let theirs = header.format;
            let ours = ours.format;
            IndexFolderState::Unusable(format!(
                "it has format {theirs}, but toolgate needs format {ours}"
            ))
        }
        Ok(_) => IndexFolderState::Unusable("another version of toolgate wrote it".to_owned()),
        Err(_) => IndexFolderState::Unusable(format!("its `{HEADER_FILE}` cannot be read")),
    })
}

/// Writes the index header of this program version to `folder`, as the last step of creating an
/// index. Fails if the file cannot be written.
pub(super) fn write_header(folder: &Path) -> Result<(), IndexError> {
    let header = serde_json::to_vec(&IndexHeader::current()).map_err(std::io::Error::other)?;
    directory::write_atomically(&folder.join(HEADER_FILE), &header)?;
    Ok(())
}

/// Deletes the index in `folder`, except the configured model's vectors and the lock files. The
/// caller must hold the locks for opening and for writing. Fails if a file cannot be deleted.
pub(super) fn delete_index(folder: &Path) -> Result<(), IndexError> {
    let gone = [
        fs::remove_file(folder.join(HEADER_FILE)),
        fs::remove_dir_all(folder.join(WORDS_FOLDER)),
        fs::remove_dir_all(folder.join(STATIC_FOLDER)),
    ];
    for gone in gone {
        match gone {
            Err(err) if err.kind() != ErrorKind::NotFound => {
                return Err(IndexError::Failed(format!("it cannot be removed: {err}")));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Returns the lock for opening, creating and deleting the index in `folder`. Waits up to 10
/// seconds for another process, and then fails. Dropping the file releases the lock.
pub(super) fn lock_opening(folder: &Path) -> Result<File, IndexError> {
    directory::lock_file(&folder.join(OPEN_LOCK_FILE), true)?
        .ok_or_else(|| IndexError::Busy(folder.display().to_string()))
}

/// Returns the lock for writing to the index in `folder`, or `None` if another process holds the
/// lock. Dropping the file releases the lock. Fails if the lock file cannot be opened.
pub(super) fn lock_writing(folder: &Path) -> Result<Option<File>, IndexError> {
    Ok(directory::lock_file(&folder.join(WRITE_LOCK_FILE), false)?)
}
