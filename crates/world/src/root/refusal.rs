//! Converts errors of the kernel to errors for the caller.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::entries::each_visible_entry;
use super::path::{self, quoted_path};
use super::work::DiskWorkMonitor;

/// The maximum number of names in a directory to read when looking for a similar one.
const NAMES_MAX: usize = 2000;
/// The longest name that is compared by similarity, in bytes. A longer name matches only if it
/// differs in case alone.
const NAME_BYTES_MAX: usize = 100;
/// The minimum similarity of a name that an error suggests, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.6;

impl Root {
    /// Converts the system error `err` about `path`, which is relative to the root, to an error for
    /// the caller.
    pub(super) fn refusal(&self, path: &str, err: Errno) -> ToolError {
        match err {
            Errno::XDEV => self.escape_error(path),
            Errno::NOENT => self.absent_error(path),
            err => refusal(path, err),
        }
    }

    /// Creates the error for a `path` that does not exist. The error suggests a similar path if one
    /// exists.
    fn absent_error(&self, path: &str) -> ToolError {
        let missing = quoted_path(path);
        ToolError::not_found(match self.first_absent(path) {
            Some((link, Some(target))) if link == path => {
                format!("{missing} is a symlink to {}, which does not exist", quoted_path(&target))
            }
            Some((link, Some(target))) => format!(
                "{missing} does not exist: {} is a symlink to {}, which does not exist",
                quoted_path(link),
                quoted_path(&target)
            ),
            Some((prefix, None)) => match self.suggest_path(path, prefix) {
                Some(suggestion) => {
                    format!("{missing} does not exist; did you mean {}?", quoted_path(&suggestion))
                }
                None => format!("{missing} does not exist"),
            },
            None => format!("{missing} does not exist"),
        })
    }

    /// Returns the first part of `path` that does not exist, as a path from the root. If this is a
    /// dangling symlink, also returns the target of the symlink.
    fn first_absent<'p>(&self, path: &'p str) -> Option<(&'p str, Option<String>)> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for prefix in ends.map(|end| &path[..end]).filter(|prefix| !prefix.is_empty()) {
            match self.resolve(prefix, OFlags::PATH) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    return Some((
                        prefix,
                        self.entry_details_at(prefix).ok().and_then(|look| look.target),
                    ));
                }
                Err(_) => return None,
            }
        }
        None
    }

    /// Returns a path similar to `path` that exists, which the caller probably meant. `prefix` is
    /// the first part of `path` that does not exist.
    fn suggest_path(&self, path: &str, prefix: &str) -> Option<String> {
        let (parent, name) = path::split_name(prefix)?;
        let name = name.to_lowercase();
        let dir = self.resolve(parent, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        let mut read = 0;
        let mut best: Option<(f64, String)> = None;
        // A directory that fails midway still provides the names read so far.
        let _ = each_visible_entry(dir.as_fd(), &DiskWorkMonitor::default(), |other: &OsStr, _| {
            read += 1;
            if read > NAMES_MAX {
                return Err(Errno::CANCELED.into());
            }
            let Some(other) = other.to_str() else { return Ok(()) };
            let likeness = name_similarity(&name, &other.to_lowercase());
            let least = best.as_ref().map_or(SIMILARITY_MIN, |(best, _)| *best);
            let first = best.as_ref().is_none_or(|(_, best)| other < best.as_str());
            if likeness > least || likeness >= least && first {
                best = Some((likeness, other.to_owned()));
            }
            Ok(())
        });
        let (_, name) = best?;
        let suggestion = if prefix.contains('/') { format!("{parent}/{name}") } else { name };
        let whole = format!("{suggestion}{}", &path[prefix.len()..]);
        Some(if self.entry_details_at(&whole).is_ok() { whole } else { suggestion })
    }

    /// Creates the error for a `path` that leads out of the root. The message does not reveal the
    /// target.
    fn escape_error(&self, path: &str) -> ToolError {
        let Some((link, target)) = self.absolute_symlink(path) else {
            let path = quoted_path(path);
            return ToolError::not_allowed(format!("{path} leads out of the workspace"));
        };
        let link = quoted_path(&link);
        let inside = target.strip_prefix(self.path()).ok().and_then(Path::to_str);
        ToolError::not_allowed(match inside {
            Some(inside) => format!(
                "{link} is a symlink to an absolute path, which is not followed even if it leads \
                 into the workspace; use {} instead",
                quoted_path(inside)
            ),
            None => format!("{link} is a symlink that leads out of the workspace"),
        })
    }

    /// Returns the first symlink in `path` with an absolute target, and that target. For messages
    /// only: nothing opens the target.
    fn absolute_symlink(&self, path: &str) -> Option<(String, PathBuf)> {
        let mut prefix = PathBuf::new();
        for component in Path::new(path).components() {
            prefix.push(component);
            if !matches!(component, Component::Normal(_)) {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let fd = beneath::open(self.dir(), &prefix, flags, SymlinkPolicy::Follow).ok()?;
            let Ok(target) = readlinkat(fd.as_fd(), "", Vec::new()) else { continue };
            let target = PathBuf::from(target.to_string_lossy().into_owned());
            if target.is_absolute() {
                return Some((prefix.to_string_lossy().into_owned(), target));
            }
        }
        None
    }
}

/// Returns the similarity of two lower-case names, from 0 to 1.
fn name_similarity(a: &str, b: &str) -> f64 {
    if a.len().max(b.len()) > NAME_BYTES_MAX {
        return if a == b { 1.0 } else { 0.0 };
    }
    strsim::normalized_damerau_levenshtein(a, b)
}

/// Converts the system error `err` about `path` to an error for the caller. Call this function only
/// if `path` cannot lead out of the root.
pub(super) fn refusal(path: &str, err: Errno) -> ToolError {
    let path = quoted_path(path);
    let invalid = |message: String| ToolError::invalid("/path", message);
    match err {
        Errno::NOENT => ToolError::not_found(format!("{path} does not exist")),
        Errno::NOTDIR => {
            invalid(format!("{path} is not a directory, or one of its parent folders is not"))
        }
        Errno::ISDIR => invalid(format!("{path} is a directory")),
        Errno::LOOP => invalid(format!("{path} goes through a symlink loop")),
        Errno::NAMETOOLONG => invalid(format!("{path} is longer than the file system allows")),
        Errno::NXIO | Errno::NODEV => invalid(format!("{path} is not a regular file")),
        Errno::EXIST => ToolError::new(
            ToolErrorKind::Conflict(serde_json::Value::Null),
            format!("{path} exists"),
        ),
        Errno::NOTEMPTY => ToolError::new(
            ToolErrorKind::Conflict(serde_json::Value::Null),
            format!("{path} is a directory that is not empty"),
        ),
        Errno::ACCESS | Errno::PERM => {
            ToolError::not_allowed(format!("the file system does not permit this for {path}"))
        }
        Errno::ROFS => ToolError::not_allowed(format!("{path} is on a read-only file system")),
        Errno::BUSY | Errno::TXTBSY => ToolError::not_allowed(format!("{path} is in use")),
        Errno::NOSPC | Errno::DQUOT => {
            let full = format!("the disk is full; {path} is unchanged");
            ToolError {
                cause: Some(err.to_string()),
                ..ToolError::new(ToolErrorKind::Failed, full)
            }
        }
        Errno::FBIG => {
            ToolError::new(ToolErrorKind::TooLarge, format!("{path} would be too large"))
        }
        Errno::MFILE | Errno::NFILE => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("too many files are open, so {path} cannot be opened; try again"),
        ),
        Errno::AGAIN => ToolError::new(
            ToolErrorKind::Unavailable,
            format!("directories in the path {path} were moved repeatedly; try again"),
        ),
        err => ToolError::with_cause(format!("the file system failed at {path}"), err),
    }
}

/// The reason why a file operation failed or stopped.
pub(super) enum FileOperationError {
    /// The file system returned this error.
    Errno(Errno),
    /// The operation was cancelled, or a check during the operation failed.
    Tool(ToolError),
}

impl FileOperationError {
    /// Converts this error to an error for the caller that names `path`.
    pub(super) fn into_tool_error(self, path: &str) -> ToolError {
        match self {
            Self::Errno(err) => refusal(path, err),
            Self::Tool(err) => err,
        }
    }
}

impl From<Errno> for FileOperationError {
    fn from(err: Errno) -> Self {
        Self::Errno(err)
    }
}

impl From<ToolError> for FileOperationError {
    fn from(err: ToolError) -> Self {
        Self::Tool(err)
    }
}

/// Returns a function that adds the JSON pointer `pointer` to an error. The pointer names the
/// argument that caused the error.
pub(super) fn at_pointer(pointer: &str) -> impl Fn(ToolError) -> ToolError {
    move |err: ToolError| err.with_pointer(pointer)
}
