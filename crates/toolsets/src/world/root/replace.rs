//! Writing a file: whole or not at all, and never in place.
//!
//! The new content goes to a file of its own in the same directory, which then takes
//! the name. So a reader sees the old content or the new, a full disk changes
//! nothing, and a hard link elsewhere keeps what it had.

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

/// How often a write looks again when what is there changes between look and rename.
const TRIES: usize = 8;

/// What a write expects to find, and what it leaves.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// What becomes of a file that is there.
    pub(crate) existing: Existing,
    /// What becomes of one that is not.
    pub(crate) missing: Missing,
    /// What becomes of directories that are not there.
    pub(crate) parents: Parents,
    /// The permission bits; else the old ones, or for a new file the umask's.
    pub(crate) mode: Option<u32>,
}

/// What becomes of a file that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays, and the write is refused.
    Keep,
    /// It is replaced, whatever it is.
    Replace,
    /// It is replaced if this is its etag.
    Match(String),
}

/// What becomes of a file that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It is created.
    Create,
    /// The write is refused.
    Refuse,
}

/// What a write left.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) meta: Meta,
    pub(crate) etag: Etag,
    pub(crate) outcome: Outcome,
}

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The file is new.
    Created,
    /// There was one, and it is gone.
    Replaced,
}

impl Root {
    /// Makes `content` the content of the file at `path`, on `terms`.
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

    /// Looks once more, with nobody else changing the directory, and gives `temp` the name.
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

    /// Whether what was `found` at `place` is what `terms` ask for.
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
    /// An empty file to become the one here, with all that stays of the one `found`.
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
            // What a file may do as another user was granted to the old content, not to the new.
            fchmod(&temp, Mode::from_raw_mode(mode & 0o777)).map_err(fail)?;
        }
        Ok(temp)
    }

    /// Gives `temp` the owner and the attributes of the file `found` here, as far as one may.
    fn keep(&self, found: &Meta, temp: &Temp<'_>) -> Result<(), Errno> {
        let new = fstat(temp)?;
        let old = &found.stat;
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
            // Only root may give files away; anyone else keeps what it writes.
            let group = Some(Gid::from_raw(old.st_gid));
            let _ = fchown(temp, Some(Uid::from_raw(old.st_uid)), group)
                .or_else(|_| fchown(temp, None, group));
        }
        if let Ok(old) = self.open() {
            copy_attributes(old.as_fd(), temp.as_fd());
        }
        Ok(())
    }

    /// Opens what is here for reading, itself and not what it leads to.
    pub(super) fn open(&self) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(&self.dir, &self.name, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Writes all of `content` to `fd`, to the disk itself.
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

/// Refuses a file whose permissions say it is not to be written, though its directory would let us.
fn writable(place: &Place) -> Result<(), ToolError> {
    let Err(err) = accessat(&place.dir, &place.name, Access::WRITE_OK, AtFlags::EACCESS) else {
        return Ok(());
    };
    Err(match err {
        Errno::ACCESS => ToolError::not_allowed(format!("{} is read-only", shown(&place.path))),
        err => refusal(&place.path, err),
    })
}

/// Copies what users keep in extended attributes; a file system without them has none.
///
/// Not `security.capability`: new content does not inherit the old one's powers.
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
