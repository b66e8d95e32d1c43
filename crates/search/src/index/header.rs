//! Identifies the program version that made an index, and locks the index folder.
#![allow(
    clippy::disallowed_methods,
    reason = "the index's own folder is touched here, in folder.rs and in vectors/ alone"
)]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toolgate_chunks::words::words;

use super::{IndexError, folder};
use crate::static_model;

/// Subfolder of the word index.
pub(super) const WORDS: &str = "words";
/// Subfolder of the built-in static vectors.
pub(super) const STATIC: &str = "static";
/// Subfolder of the configured model's vectors. They are expensive, so a rebuild keeps them.
pub(super) const MODEL: &str = "model";

const HEADER: &str = "index.json";
const OPENING: &str = "open.lock";
const RIGHT: &str = "write.lock";

/// Version of the layout and content on disk; raised with every change to it.
const FORMAT: u32 = 4;

/// Sample text that covers every rule of the word splitter.
const SAMPLE: &str = "fn parseHTTPHeader2(x: &str) -> Vec<utf8_lossy> { validated_sessions += 1 } \
                      GRÖSSE stopped caches authentication ユーザー認証 where is the 3rd-party?";

/// Identity of an index. A program may use an index only if it would write the same header.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    format: u32,
    tantivy: String,
    /// Hash of the words in [`SAMPLE`], which changes with the word splitter.
    words: String,
    /// Name and dimensions of the built-in vectors.
    vectors: String,
}

impl Header {
    fn ours() -> Self {
        let mut taken = blake3::Hasher::new();
        words(SAMPLE, |word| {
            taken.update(word.as_bytes()).update(b"\n");
        });
        let space = static_model::space();
        Self {
            format: FORMAT,
            tantivy: tantivy::version_string().to_owned(),
            words: taken.finalize().to_hex()[..16].to_owned(),
            vectors: format!("{}, {}", space.model, space.dimensions),
        }
    }
}

/// State of an index folder.
pub(super) enum Read {
    /// No index.
    Nothing,
    /// An index that this program version can use.
    Ours,
    /// An unusable index. The text completes a sentence that begins with "it".
    Unusable(String),
}

/// Determines the state of `folder`.
pub(super) fn read(folder: &Path) -> Result<Read, IndexError> {
    let bytes = match fs::read(folder.join(HEADER)) {
        Ok(bytes) => bytes,
        Err(err) if err.kind() == ErrorKind::NotFound => {
            let begun = folder.join(WORDS).try_exists()?;
            let why = || Read::Unusable("it was never finished".to_owned());
            return Ok(if begun { why() } else { Read::Nothing });
        }
        Err(err) => return Err(IndexError::Failed(err.to_string())),
    };
    let ours = Header::ours();
    Ok(match serde_json::from_slice::<Header>(&bytes) {
        Ok(header) if header == ours => Read::Ours,
        Ok(header) if header.format != ours.format => {
            let theirs = header.format;
            let ours = ours.format;
            Read::Unusable(format!("it has format {theirs}, and this program writes {ours}"))
        }
        Ok(_) => Read::Unusable("another version of this program made it".to_owned()),
        Err(_) => Read::Unusable(format!("its `{HEADER}` cannot be read")),
    })
}

/// Writes the header of this program version: the last step of creating an index.
pub(super) fn write(folder: &Path) -> Result<(), IndexError> {
    let header = serde_json::to_vec(&Header::ours()).map_err(std::io::Error::other)?;
    folder::replace(&folder.join(HEADER), &header)?;
    Ok(())
}

/// Deletes the index in `folder`, except the model's vectors and the locks. The caller must hold
/// both locks.
pub(super) fn wipe(folder: &Path) -> Result<(), IndexError> {
    let gone = [
        fs::remove_file(folder.join(HEADER)),
        fs::remove_dir_all(folder.join(WORDS)),
        fs::remove_dir_all(folder.join(STATIC)),
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

/// Takes the lock on opening, creating and deleting an index, waiting up to 10 seconds.
pub(super) fn opening(folder: &Path) -> Result<File, IndexError> {
    folder::lock(&folder.join(OPENING), true)?
        .ok_or_else(|| IndexError::Busy(folder.display().to_string()))
}

/// Takes the lock on writing; `None` if another process holds it.
pub(super) fn right(folder: &Path) -> Result<Option<File>, IndexError> {
    Ok(folder::lock(&folder.join(RIGHT), false)?)
}
