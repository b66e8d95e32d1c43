//! Etags, with which a caller names the file content that it expects.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::meta::EntryMeta;
use super::path::quoted_path;

/// Etag of a file's content.
///
/// A strong etag is a hash of the content (BLAKE3, 128 bits in hex). A weak etag (`W/`), for larger
/// files, is derived from identity, size and times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Etag(String);

impl Etag {
    /// Returns the strong etag of a file with the content `content`.
    pub fn from_content(content: &[u8]) -> Self {
        let mut hash = EtagHasher::default();
        hash.update(content);
        hash.etag()
    }

    /// Returns the weak etag of a file, computed from its `meta` alone.
    pub(super) fn weak(meta: &EntryMeta) -> Self {
        let stat = &meta.stat;
        let known = format!(
            "{} {} {} {} {} {} {}",
            stat.st_dev,
            stat.st_ino,
            stat.st_size,
            stat.st_mtime,
            stat.st_mtime_nsec,
            stat.st_ctime,
            stat.st_ctime_nsec
        );
        Self(format!("W/{}", Self::from_content(known.as_bytes())))
    }

    /// Returns `true` if the text `given` is this etag. `given` may be quoted as in HTTP.
    pub fn matches(&self, given: &str) -> bool {
        let given = given.trim();
        let (weak, opaque) = match given.strip_prefix("W/") {
            Some(opaque) => ("W/", opaque),
            None => ("", given),
        };
        self.0.strip_prefix(weak) == Some(opaque.trim_matches('"'))
    }

    /// Creates the error for a change of the file at `path` that expected the etag `expected`,
    /// although the file now has this etag.
    pub fn stale_error(&self, path: &str, expected: &str) -> ToolError {
        ToolError::new(
            ToolErrorKind::Conflict(json!({ "expected": expected, "actual": self })),
            format!(
                "{} has changed: its etag is {self}, not {expected}; read it again",
                quoted_path(path)
            ),
        )
    }

    /// Returns the etag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A hasher that computes a strong etag from content in pieces.
#[derive(Default)]
pub(super) struct EtagHasher(blake3::Hasher);

impl EtagHasher {
    pub(super) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(super) fn etag(&self) -> Etag {
        let hex = self.0.finalize().to_hex();
        Etag(hex[..32].to_owned())
    }
}
