//! Etags: by which a caller says which content it means.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use toolgate_contract::{Fault, ToolError};

use super::meta::Meta;
use super::path::shown;

/// Which content a file has.
///
/// Strong where the content was hashed (BLAKE3, 128 bits in hex); weak (`W/`) where
/// the file is too large for that and only its identity, size and times were looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Etag(String);

impl Etag {
    /// The etag of `content`.
    pub fn of(content: &[u8]) -> Self {
        let mut hash = Hash::default();
        hash.update(content);
        hash.etag()
    }

    /// The weak etag of a file of which no more is known than `meta`.
    pub(super) fn weak(meta: &Meta) -> Self {
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
        Self(format!("W/{}", Self::of(known.as_bytes())))
    }

    /// Whether a caller means this one by `given`, in quotes as in HTTP or without.
    pub fn is(&self, given: &str) -> bool {
        let given = given.trim();
        let (weak, opaque) = match given.strip_prefix("W/") {
            Some(opaque) => ("W/", opaque),
            None => ("", given),
        };
        self.0.strip_prefix(weak) == Some(opaque.trim_matches('"'))
    }

    /// The refusal of a change to the file at `path`, which has this etag and not `expected`.
    pub(crate) fn stale(&self, path: &str, expected: &str) -> ToolError {
        ToolError::new(
            Fault::Conflict(json!({ "expected": expected, "actual": self })),
            format!(
                "{} has changed: its etag is {self}, not {expected}; read it again",
                shown(path)
            ),
        )
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A strong etag being computed from content that comes in pieces.
#[derive(Default)]
pub(super) struct Hash(blake3::Hasher);

impl Hash {
    pub(super) fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(super) fn etag(&self) -> Etag {
        let hex = self.0.finalize().to_hex();
        Etag(hex[..32].to_owned())
    }
}
