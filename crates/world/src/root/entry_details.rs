//! Inspects the entry at a path without opening it.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{OFlags, fstat, readlinkat};
use rustix::io::Errno;
use toolgate_contract::ToolError;

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};

/// Details of an entry. For a symlink, details of the link itself.
pub struct EntryDetails {
    /// The kind, size and times of the entry.
    pub meta: EntryMeta,
    /// The target of the link, if the entry is a symlink.
    pub target: Option<String>,
}

impl Root {
    /// Returns the details of the entry at `path`, without opening it or following a symlink.
    pub fn entry_details(&self, path: &str) -> Result<EntryDetails, ToolError> {
        let path = self.relative(path)?;
        self.entry_details_at(path).map_err(|err| self.refusal(path, err))
    }

    /// Returns `true` if the root directory was deleted after it was opened.
    pub fn is_deleted(&self) -> bool {
        fstat(self.dir()).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Returns the kind of the entry at `path`, and follows symlinks. Returns `Symlink` for a
    /// dangling symlink, and `None` if nothing exists at `path`.
    pub fn kind_at(&self, path: &str) -> Result<Option<EntryKind>, ToolError> {
        let path = self.relative(path)?;
        let followed =
            self.resolve(path, OFlags::PATH).and_then(|fd| Ok(EntryMeta::from(fstat(fd)?).kind()));
        match followed {
            Ok(kind) => Ok(Some(kind)),
            Err(Errno::NOENT) => Ok(self.entry_details_at(path).ok().map(|look| look.meta.kind())),
            Err(Errno::NOTDIR) => Ok(None),
            Err(err) => Err(self.refusal(path, err)),
        }
    }

    pub(super) fn entry_details_at(&self, path: &str) -> Result<EntryDetails, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = beneath::open(self.dir(), Path::new(path), flags, SymlinkPolicy::Follow)?;
        let meta = EntryMeta::from(fstat(&fd)?);
        let target = match meta.kind() {
            EntryKind::Symlink => {
                Some(readlinkat(fd.as_fd(), "", Vec::new())?.to_string_lossy().into_owned())
            }
            EntryKind::File | EntryKind::Dir | EntryKind::Other => None,
        };
        Ok(EntryDetails { meta, target })
    }
}
