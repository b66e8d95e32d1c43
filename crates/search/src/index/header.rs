//! What made the index in a folder, and who may touch it.
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

/// Where the words are.
pub(super) const WORDS: &str = "words";
/// Where the vectors are that are built in.
pub(super) const STATIC: &str = "static";
/// Where the vectors are that the configured model made: they are dear, and stay when the rest is
/// made anew.
pub(super) const MODEL: &str = "model";

const HEADER: &str = "index.json";
const OPENING: &str = "open.lock";
const RIGHT: &str = "write.lock";

/// How what is on disk is laid out and what is left out of it; raised when that changes.
const FORMAT: u32 = 4;

/// Text with something of all that words are taken apart by.
const SAMPLE: &str = "fn parseHTTPHeader2(x: &str) -> Vec<utf8_lossy> { validated_sessions += 1 } \
                      GRÖSSE stopped caches authentication ユーザー認証 where is the 3rd-party?";

/// What makes an index: it is of use only to what would make it the same way.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    format: u32,
    tantivy: String,
    /// How words are taken apart: a hash of what becomes of [`SAMPLE`].
    words: String,
    /// The vectors that are built in.
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

/// What is in a folder.
pub(super) enum Read {
    /// No index yet.
    Nothing,
    /// One that we would make the same way.
    Ours,
    /// Something else: what, as part of a sentence.
    Unusable(String),
}

/// Tells what is in `folder`.
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
            let (theirs, ours) = (header.format, ours.format);
            Read::Unusable(format!("it has format {theirs}, and this program writes {ours}"))
        }
        Ok(_) => Read::Unusable("another version of this program made it".to_owned()),
        Err(_) => Read::Unusable(format!("its `{HEADER}` cannot be read")),
    })
}

/// Says of `folder` that its index is ours: the last thing done when one is begun.
pub(super) fn write(folder: &Path) -> Result<(), IndexError> {
    let header = serde_json::to_vec(&Header::ours()).map_err(std::io::Error::other)?;
    folder::replace(&folder.join(HEADER), &header)?;
    Ok(())
}

/// Removes the index in `folder`, all but the model's vectors and the locks: whoever does it holds
/// both.
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

/// Held while the folder is looked through, begun or removed, by one process at a time.
pub(super) fn opening(folder: &Path) -> Result<File, IndexError> {
    folder::lock(&folder.join(OPENING), true)?
        .ok_or_else(|| IndexError::Busy(folder.display().to_string()))
}

/// Held by whoever writes; `None` while another does.
pub(super) fn right(folder: &Path) -> Result<Option<File>, IndexError> {
    Ok(folder::lock(&folder.join(RIGHT), false)?)
}
