//! Writes a file completely or not at all, and never in place.
//!
//! The new content goes to a separate file in the same directory, which then takes the name. A
//! reader sees the old or the new content. A full disk changes nothing, and a hard link elsewhere
//! keeps the old content.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    Access, AtFlags, Gid, Mode, OFlags, Uid, XattrFlags, accessat, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, fstat, fsync, openat,
};
use rustix::io::{Errno, write};
use serde_json::json;
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::etag::Etag;
use super::file::{self, BLOCK_BYTES, File};
use super::meta::Meta;
use super::path::shown;
use super::place::{Parents, Place};
use super::refusal::{Stopped, refusal};
use super::temp::{Over, Temp};
use super::work::Watch;

/// The most retries if the entry changes between check and rename.
const TRIES: usize = 8;

/// Conditions of a write and the result that it leaves.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// Handling of a file that exists.
    pub(crate) existing: Existing,
    /// Handling of a file that does not exist.
    pub(crate) missing: Missing,
    /// Handling of missing parent directories.
    pub(crate) parents: Parents,
    /// The permission bits. By default a replaced file keeps its own, and a new file follows the
    /// umask.
    pub(crate) mode: Option<u32>,
}

/// Handling of a file that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Keep it and refuse the write.
    Keep,
    /// Replace it.
    Replace,
    /// Replace it if it has this etag.
    Match(String),
}

/// Handling of a file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create it.
    Create,
    /// Refuse the write.
    Refuse,
}

/// The result of a write.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) meta: Meta,
    pub(crate) etag: Etag,
    pub(crate) outcome: Outcome,
}

/// The effect of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The file is new.
    Created,
    /// An existing file was replaced.
    Replaced,
}

impl Root {
    /// Writes `content` to the file at `path` under the conditions `terms`.
    pub(crate) fn write(
        &self,
        path: &str,
        content: &[u8],
        terms: &Terms,
        watch: &Watch,
    ) -> Result<Written, ToolError> {
        if path.ends_with('/') {
            let message =
                format!("{} names a directory; a file's path has no `/` at its end", shown(path));
            return Err(ToolError::invalid("/path", message));
        }
        let place = match terms.missing {
            Missing::Create => self.place(path, terms.parents)?,
            Missing::Refuse => self.place_of(path)?,
        };
        let (place, found) = self.target(place)?;
        self.agree(&place, found.as_ref(), terms, watch)?;
        let mut temp = place.draft(found.as_ref(), terms)?;
        fill(temp.as_fd(), content, watch).map_err(|err| err.at(&place.path))?;
        let outcome = self.publish(&place, &mut temp, terms, watch)?;
        place.keep_parents();
        place.sync();
        let meta = Meta::from(fstat(&temp).map_err(|err| refusal(&place.path, err))?);
        Ok(Written { meta, etag: self.etag_of(content, &meta), outcome })
    }

    /// Checks the conditions again under the directory lock, then renames `temp` to its place.
    pub(super) fn publish(
        &self,
        place: &Place,
        temp: &mut Temp<'_>,
        terms: &Terms,
        watch: &Watch,
    ) -> Result<Outcome, ToolError> {
        let _lock = self.held.locks.lock(place, watch)?;
        for _ in 0..TRIES {
            let found = place.look()?;
            self.agree(place, found.as_ref(), terms, watch)?;
            let (over, outcome) = match found {
                Some(_) => (Over::Anything, Outcome::Replaced),
                None => (Over::Nothing, Outcome::Created),
            };
            match temp.publish(&place.name, over) {
                Err(Errno::EXIST) => {}
                published => {
                    return published.map(|()| outcome).map_err(|err| refusal(&place.path, err));
                }
            }
        }
        let message =
            format!("{} keeps changing while it is written; try again", shown(&place.path));
        Err(ToolError::new(Fault::Unavailable, message))
    }

    /// Checks that the entry `found` at `place` meets the conditions `terms`.
    fn agree(
        &self,
        place: &Place,
        found: Option<&Meta>,
        terms: &Terms,
        watch: &Watch,
    ) -> Result<(), ToolError> {
        let path = shown(&place.path);
        let Some(found) = found else {
            return match (&terms.existing, terms.missing) {
                (Existing::Keep | Existing::Replace, Missing::Create) => Ok(()),
                (Existing::Match(expected), Missing::Create) => Err(ToolError::new(
                    Fault::Conflict(json!({ "expected": expected, "actual": null })),
                    format!("{path} does not exist any more; leave if_match out to create it"),
                )),
                (_, Missing::Refuse) => Err(self.refusal(&place.path, Errno::NOENT)),
            };
        };
        file::regular(found, &place.path)?;
        match &terms.existing {
            Existing::Replace => writable(place),
            Existing::Keep => {
                let actual = self.current_etag(place, watch)?;
                let message = format!(
                    "{path} exists; to replace it, read it and pass its etag as if_match, or pass \
                     overwrite: true"
                );
                let details = json!({ "expected": null, "actual": actual });
                Err(ToolError::new(Fault::Conflict(details), message))
            }
            Existing::Match(expected) => {
                let actual = self.current_etag(place, watch)?;
                if actual.is(expected) {
                    writable(place)
                } else {
                    Err(actual.stale(&place.path, expected))
                }
            }
        }
    }

    fn current_etag(&self, place: &Place, watch: &Watch) -> Result<Etag, ToolError> {
        let file = place.open().map_err(|err| refusal(&place.path, err))?;
        self.etag(&File::new(file, &place.path)?, watch)
    }
}

impl Place {
    /// Creates an empty temporary file with the mode, owner and attributes of the file `found`.
    pub(super) fn draft(&self, found: Option<&Meta>, terms: &Terms) -> Result<Temp<'_>, ToolError> {
        let fail = |err| refusal(&self.path, err);
        let kept = found.map(Meta::mode);
        let mode = terms.mode.or(kept);
        let first = Mode::from_raw_mode(mode.unwrap_or(0o666) & 0o777);
        let temp = Temp::create(&self.dir, first).map_err(fail)?;
        if let Some(found) = found {
            self.keep(found, &temp).map_err(fail)?;
        }
        if let Some(mode) = mode {
            // Set-user-ID bits were granted to the old content, not to the new.
            fchmod(&temp, Mode::from_raw_mode(mode & 0o777)).map_err(fail)?;
        }
        Ok(temp)
    }

    /// Copies owner and attributes of the file `found` to `temp`, as far as permitted.
    fn keep(&self, found: &Meta, temp: &Temp<'_>) -> Result<(), Errno> {
        let new = fstat(temp)?;
        let old = &found.stat;
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
            // Only root may give files away. Other users stay the owner.
            let group = Some(Gid::from_raw(old.st_gid));
            let _ = fchown(temp, Some(Uid::from_raw(old.st_uid)), group)
                .or_else(|_| fchown(temp, None, group));
        }
        if let Ok(old) = self.open() {
            copy_attributes(old.as_fd(), temp.as_fd());
        }
        Ok(())
    }

    /// Opens the entry for reading, without following a symlink.
    pub(super) fn open(&self) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(&self.dir, &self.name, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Writes all of `content` to `fd` and flushes it to disk.
fn fill(fd: BorrowedFd<'_>, content: &[u8], watch: &Watch) -> Result<(), Stopped> {
    for block in content.chunks(BLOCK_BYTES << 2) {
        watch.check().map_err(Stopped::Told)?;
        let mut rest = block;
        while !rest.is_empty() {
            match write(fd, rest) {
                Ok(0) => return Err(Stopped::Errno(Errno::NOSPC)),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(err) => return Err(Stopped::Errno(err)),
            }
        }
    }
    fsync(fd).map_err(Stopped::Errno)
}

/// Fails if the file's permissions forbid writing, even if its directory would allow replacing it.
fn writable(place: &Place) -> Result<(), ToolError> {
    let Err(err) = accessat(&place.dir, &place.name, Access::WRITE_OK, AtFlags::EACCESS) else {
        return Ok(());
    };
    Err(match err {
        Errno::ACCESS => ToolError::not_allowed(format!("{} is read-only", shown(&place.path))),
        err => refusal(&place.path, err),
    })
}

/// Copies the users' extended attributes, access lists and SELinux label, if the file system has
/// them.
///
/// It omits `security.capability`: new content must not inherit the capabilities of the old.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    let mut names = vec![0; 64 << 10];
    let Ok(len) = flistxattr(from, &mut names[..]) else { return };
    for name in names[..len].split(|&byte| byte == 0) {
        let kept = name.starts_with(b"user.")
            || name == b"system.posix_acl_access"
            || name == b"security.selinux";
        if !kept {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        if let Ok(len) = fgetxattr(from, name, &mut value[..]) {
            let _ = fsetxattr(to, name, &value[..len], XattrFlags::empty());
        }
    }
}
