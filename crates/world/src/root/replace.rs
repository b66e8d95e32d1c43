//! Writes a file completely or not at all.
//!
//! The new content goes to a temporary file in the same directory, which then replaces the old
//! file. A reader sees the old or the new content. If the disk is full, the old file stays
//! unchanged. Another hard link to the old file keeps the old content.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    Access, AtFlags, Gid, Mode, OFlags, Uid, XattrFlags, accessat, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, fstat, fsync, openat,
};
use rustix::io::{Errno, write};
use serde_json::json;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::etag::Etag;
use super::file::{self, BLOCK_BYTES, WorkspaceFile};
use super::meta::EntryMeta;
use super::path::quoted_path;
use super::place::{EntryLocation, MissingParentPolicy};
use super::refusal::{FileOperationError, refusal};
use super::temp::{ExistingEntryHandling, TempFile};
use super::work::DiskWorkMonitor;

/// The maximum number of retries of a write if the entry changes between the check and the rename.
const TRIES: usize = 8;

/// Conditions for writing a file, and the permission bits of the written file.
#[derive(Debug, Clone)]
pub struct FileWriteConditions {
    /// Policy if the file exists.
    pub existing: ExistingFilePolicy,
    /// Policy if the file does not exist.
    pub missing: MissingFilePolicy,
    /// Policy if a parent directory of the file does not exist.
    pub parents: MissingParentPolicy,
    /// The permission bits. By default, a replaced file keeps its permission bits, and a new file
    /// follows the umask.
    pub mode: Option<u32>,
}

/// Policy of a write for a file that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExistingFilePolicy {
    /// Keep the existing file and refuse the write.
    Keep,
    /// Replace the existing file.
    Replace,
    /// Replace the existing file if it has this etag. Otherwise refuse the write.
    Match(String),
}

/// Policy of a write for a file that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingFilePolicy {
    /// Create the missing file.
    Create,
    /// Refuse the write if the file does not exist.
    Refuse,
}

/// The result of writing a file.
#[derive(Debug)]
pub struct FileWriteResult {
    pub meta: EntryMeta,
    pub etag: Etag,
    pub outcome: FileWriteOutcome,
}

/// Effect of a write on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileWriteOutcome {
    /// The write created the file.
    Created,
    /// The write replaced an existing file.
    Replaced,
}

impl Root {
    /// Writes `content` to the file at `path` under the conditions `terms`.
    pub fn write(
        &self,
        path: &str,
        content: &[u8],
        terms: &FileWriteConditions,
        watch: &DiskWorkMonitor,
    ) -> Result<FileWriteResult, ToolError> {
        if path.ends_with('/') {
            let message =
                format!("{} names a directory; a file path does not end in `/`", quoted_path(path));
            return Err(ToolError::invalid("/path", message));
        }
        let place = match terms.missing {
            MissingFilePolicy::Create => self.place(path, terms.parents)?,
            MissingFilePolicy::Refuse => self.existing_place(path)?,
        };
        let (place, found) = self.write_target(place)?;
        self.check_conditions(&place, found.as_ref(), terms, watch)?;
        let mut temp = place.create_temp(found.as_ref(), terms)?;
        write_all(temp.as_fd(), content, watch).map_err(|err| err.into_tool_error(&place.path))?;
        let outcome = self.publish(&place, &mut temp, terms, watch)?;
        place.keep_parents();
        place.sync();
        let meta = EntryMeta::from(fstat(&temp).map_err(|err| refusal(&place.path, err))?);
        Ok(FileWriteResult { meta, etag: self.etag_of_content(content, &meta), outcome })
    }

    /// Checks the conditions of the write again under the directory lock, then renames `temp` to
    /// its final name.
    pub(super) fn publish(
        &self,
        place: &EntryLocation,
        temp: &mut TempFile<'_>,
        terms: &FileWriteConditions,
        watch: &DiskWorkMonitor,
    ) -> Result<FileWriteOutcome, ToolError> {
        let _lock = self.handle.locks.lock(place, watch)?;
        for _ in 0..TRIES {
            let found = place.stat()?;
            self.check_conditions(place, found.as_ref(), terms, watch)?;
            let (over, outcome) = match found {
                Some(_) => (ExistingEntryHandling::Replace, FileWriteOutcome::Replaced),
                None => (ExistingEntryHandling::CreateOnly, FileWriteOutcome::Created),
            };
            match temp.publish(&place.name, over) {
                Err(Errno::EXIST) => {}
                published => {
                    return published.map(|()| outcome).map_err(|err| refusal(&place.path, err));
                }
            }
        }
        let message = format!(
            "{} changed repeatedly while it was written; try again",
            quoted_path(&place.path)
        );
        Err(ToolError::new(ToolErrorKind::Unavailable, message))
    }

    /// Checks that the entry `found` at `place` meets the conditions `terms`. `found` is `None` if
    /// there is no entry.
    fn check_conditions(
        &self,
        place: &EntryLocation,
        found: Option<&EntryMeta>,
        terms: &FileWriteConditions,
        watch: &DiskWorkMonitor,
    ) -> Result<(), ToolError> {
        let path = quoted_path(&place.path);
        let Some(found) = found else {
            return match (&terms.existing, terms.missing) {
                (
                    ExistingFilePolicy::Keep | ExistingFilePolicy::Replace,
                    MissingFilePolicy::Create,
                ) => Ok(()),
                (ExistingFilePolicy::Match(expected), MissingFilePolicy::Create) => {
                    Err(ToolError::new(
                        ToolErrorKind::Conflict(json!({ "expected": expected, "actual": null })),
                        format!("{path} no longer exists; leave if_match out to create it"),
                    ))
                }
                (_, MissingFilePolicy::Refuse) => Err(self.refusal(&place.path, Errno::NOENT)),
            };
        };
        file::require_regular(found, &place.path)?;
        match &terms.existing {
            ExistingFilePolicy::Replace => check_writable(place),
            ExistingFilePolicy::Keep => {
                let actual = self.current_etag(place, watch)?;
                let message = format!(
                    "{path} exists; to replace it, read it and pass its etag as if_match, or pass \
                     overwrite: true"
                );
                let details = json!({ "expected": null, "actual": actual });
                Err(ToolError::new(ToolErrorKind::Conflict(details), message))
            }
            ExistingFilePolicy::Match(expected) => {
                let actual = self.current_etag(place, watch)?;
                if actual.matches(expected) {
                    check_writable(place)
                } else {
                    Err(actual.stale_error(&place.path, expected))
                }
            }
        }
    }

    fn current_etag(
        &self,
        place: &EntryLocation,
        watch: &DiskWorkMonitor,
    ) -> Result<Etag, ToolError> {
        let file = place.open_entry().map_err(|err| refusal(&place.path, err))?;
        self.etag(&WorkspaceFile::new(file, &place.path)?, watch)
    }
}

impl EntryLocation {
    /// Creates an empty temporary file beside this location, with the mode of `terms` or of the
    /// file `found`, and with the owner and attributes of `found`.
    pub(super) fn create_temp(
        &self,
        found: Option<&EntryMeta>,
        terms: &FileWriteConditions,
    ) -> Result<TempFile<'_>, ToolError> {
        let fail = |err| refusal(&self.path, err);
        let kept = found.map(EntryMeta::mode);
        let mode = terms.mode.or(kept);
        let first = Mode::from_raw_mode(mode.unwrap_or(0o666) & 0o777);
        let temp = TempFile::create(&self.dir, first).map_err(fail)?;
        if let Some(found) = found {
            self.copy_ownership(found, &temp).map_err(fail)?;
        }
        if let Some(mode) = mode {
            // Set-user-ID bits were granted to the old content, not to the new.
            fchmod(&temp, Mode::from_raw_mode(mode & 0o777)).map_err(fail)?;
        }
        Ok(temp)
    }

    /// Copies the owner and the attributes of the file `found` to `temp`, as far as permitted.
    fn copy_ownership(&self, found: &EntryMeta, temp: &TempFile<'_>) -> Result<(), Errno> {
        let new = fstat(temp)?;
        let old = &found.stat;
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid) {
            // Only root may give files away. Other users stay the owner.
            let group = Some(Gid::from_raw(old.st_gid));
            let _ = fchown(temp, Some(Uid::from_raw(old.st_uid)), group)
                .or_else(|_| fchown(temp, None, group));
        }
        if let Ok(old) = self.open_entry() {
            copy_attributes(old.as_fd(), temp.as_fd());
        }
        Ok(())
    }

    /// Opens the entry at this location for reading, without following a symlink.
    pub(super) fn open_entry(&self) -> Result<std::os::fd::OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        openat(&self.dir, &self.name, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Writes all of `content` to `fd` and flushes it to disk.
fn write_all(
    fd: BorrowedFd<'_>,
    content: &[u8],
    watch: &DiskWorkMonitor,
) -> Result<(), FileOperationError> {
    for block in content.chunks(BLOCK_BYTES << 2) {
        watch.check_cancelled().map_err(FileOperationError::Tool)?;
        let mut rest = block;
        while !rest.is_empty() {
            match write(fd, rest) {
                Ok(0) => return Err(FileOperationError::Errno(Errno::NOSPC)),
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(err) => return Err(FileOperationError::Errno(err)),
            }
        }
    }
    fsync(fd).map_err(FileOperationError::Errno)
}

/// Fails if the permissions of the file at `place` forbid writing, even if its directory would
/// allow replacing it.
fn check_writable(place: &EntryLocation) -> Result<(), ToolError> {
    let Err(err) = accessat(&place.dir, &place.name, Access::WRITE_OK, AtFlags::EACCESS) else {
        return Ok(());
    };
    Err(match err {
        Errno::ACCESS => {
            ToolError::not_allowed(format!("{} is read-only", quoted_path(&place.path)))
        }
        err => refusal(&place.path, err),
    })
}

/// Copies the users' extended attributes, the access lists and the SELinux label of the file `from`
/// to the file `to`, if the file system has them.
///
/// `security.capability` is omitted, because new content must not inherit the capabilities of the
/// old content.
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
