//! Moves an entry to another name or directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, RenameFlags, flock, fstat, renameat_with};
use rustix::io::Errno;
use serde_json::json;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::meta::{EntryKind, EntryMeta};
use super::path::quoted_path;
use super::place::{EntryLocation, MissingParentPolicy};
use super::refusal::{at_pointer, refusal};
use super::work::DiskWorkMonitor;

/// The longest wait for the lock on the second directory of a move.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Policy for an existing entry at the destination of a copy or move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationConflict {
    /// Keep the existing entry and refuse the operation.
    Refuse,
    /// Replace the existing entry.
    Replace,
}

impl Root {
    /// Moves the entry at `source` to `destination`. Moves a symlink itself, not its target.
    pub fn rename(
        &self,
        source: &str,
        destination: &str,
        standing: DestinationConflict,
        parents: MissingParentPolicy,
        watch: &DiskWorkMonitor,
    ) -> Result<EntryKind, ToolError> {
        let from = self.existing_place(source).map_err(at_pointer("/source"))?;
        let Some(found) = from.stat().map_err(at_pointer("/source"))? else {
            return Err(self.refusal(&from.path, Errno::NOENT));
        };
        let to = self.place(destination, parents).map_err(at_pointer("/destination"))?;
        check_not_inside(&from.real_path, &to)?;
        if found.kind() == EntryKind::Dir {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = beneath::open(
                from.dir.as_fd(),
                Path::new(&from.name),
                flags,
                SymlinkPolicy::Refuse,
            )
            .map_err(|err| refusal(&from.path, err))?;
            self.check_tree_unprotected(
                &dir,
                &[&from.real_path, &to.real_path],
                &from.path,
                watch,
            )?;
        }
        let (first, second) = lock_order(&from, &to);
        let locked = self.handle.locks.lock(first, watch)?;
        let second = second.map(|second| SecondDirectoryLock::lock(second, watch)).transpose()?;
        let there = to.stat().map_err(at_pointer("/destination"))?;
        let is_dir = |meta: &EntryMeta| meta.kind() == EntryKind::Dir;
        if there.as_ref().is_some_and(is_dir)
            && !(is_dir(&found) && standing == DestinationConflict::Replace)
        {
            return Err(directory_error(&from.real_path, &to));
        }
        let flags = match standing {
            DestinationConflict::Refuse => RenameFlags::NOREPLACE,
            DestinationConflict::Replace => RenameFlags::empty(),
        };
        let renamed = match renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags) {
            // This file system cannot refuse to replace. Under the lock, the check above must do.
            Err(Errno::INVAL | Errno::NOSYS) if there.is_none() => {
                rustix::fs::renameat(&from.dir, &from.name, &to.dir, &to.name)
            }
            outcome => outcome,
        };
        renamed.map_err(|err| rename_error(&from, &to, there.as_ref(), err))?;
        drop((second, locked));
        to.keep_parents();
        to.sync();
        from.sync();
        Ok(found.kind())
    }
}

/// Fails if the destination `to` of a move is its source or lies inside its source.
pub(super) fn check_not_inside(source: &Path, to: &EntryLocation) -> Result<(), ToolError> {
    let message = if to.real_path == source {
        "the source and the destination are the same".to_owned()
    } else if to.real_path.starts_with(source) {
        format!("{} is inside the source", quoted_path(&to.path))
    } else {
        return Ok(());
    };
    Err(ToolError::invalid("/destination", message))
}

/// Returns the location whose directory is locked first, and the other location if its directory
/// differs.
///
/// The order is the same for every move, so that two moves in opposite directions never deadlock.
fn lock_order<'p>(
    from: &'p EntryLocation,
    to: &'p EntryLocation,
) -> (&'p EntryLocation, Option<&'p EntryLocation>) {
    let number =
        |place: &EntryLocation| fstat(&place.dir).ok().map(|stat| (stat.st_dev, stat.st_ino));
    match (number(from), number(to)) {
        (from_number, to_number) if from_number == to_number => (to, None),
        (from_number, to_number) if from_number < to_number => (from, Some(to)),
        _ => (to, Some(from)),
    }
}

/// The lock on a second directory while the first is held.
///
/// The second lock is only a file lock, because both directories may share one lock of this
/// process. Each location opens its directory separately, so that the file lock also works within
/// this process.
struct SecondDirectoryLock<'p>(&'p OwnedFd);

impl<'p> SecondDirectoryLock<'p> {
    #[allow(clippy::disallowed_methods, reason = "a lock of the file system wakes nobody here")]
    fn lock(place: &'p EntryLocation, watch: &DiskWorkMonitor) -> Result<Self, ToolError> {
        let since = Instant::now();
        let mut pause = Duration::from_micros(100);
        while let Err(err) = flock(&place.dir, FlockOperation::NonBlockingLockExclusive) {
            match err {
                Errno::WOULDBLOCK | Errno::INTR if since.elapsed() < WAIT_MAX => {
                    watch.check_cancelled()?;
                    sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Errno::WOULDBLOCK | Errno::INTR => {
                    let path = quoted_path(&place.path);
                    let message = format!("the directory of {path} is locked; try again");
                    return Err(ToolError::new(ToolErrorKind::Unavailable, message));
                }
                // The file system has no locks.
                _ => break,
            }
        }
        Ok(Self(&place.dir))
    }
}

impl Drop for SecondDirectoryLock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Creates the error for a move of `source` to `to`, which is an existing directory instead of a
/// free path.
pub(super) fn directory_error(source: &Path, to: &EntryLocation) -> ToolError {
    let message = format!(
        "{} is a directory; give the whole new path, including the new name{}",
        quoted_path(&to.path),
        hint_inside(source, to)
    );
    ToolError::invalid("/destination", message)
}

/// Returns a hint that the caller may have meant a path inside the directory `to`: the path of `to`
/// with the name of `source` appended.
pub(super) fn hint_inside(source: &Path, to: &EntryLocation) -> String {
    match source.file_name() {
        Some(name) if to.real_path.join(name) != source => {
            let suggestion =
                format!("{}/{}", to.path.trim_end_matches('/'), name.to_string_lossy());
            format!("; did you mean {}?", quoted_path(&suggestion))
        }
        Some(_) | None => String::new(),
    }
}

/// Creates the error for a move or copy to `to`, where an entry already exists.
pub(super) fn exists_error(to: &EntryLocation) -> ToolError {
    let message = format!("{} exists; pass overwrite: true to replace it", quoted_path(&to.path));
    ToolError::new(ToolErrorKind::Conflict(json!({ "exists": to.path })), message)
}

fn rename_error(
    from: &EntryLocation,
    to: &EntryLocation,
    there: Option<&EntryMeta>,
    err: Errno,
) -> ToolError {
    let source = quoted_path(&from.path);
    let destination = quoted_path(&to.path);
    let invalid = |message| ToolError::invalid("/destination", message);
    match (err, there.map(EntryMeta::kind)) {
        (Errno::EXIST, Some(_)) => exists_error(to),
        (Errno::XDEV, _) => invalid(format!(
            "{destination} is on another file system than {source}; copy it there and delete the source"
        )),
        (Errno::NOTEMPTY | Errno::EXIST, _) => invalid(format!(
            "{destination} is a directory that is not empty; delete it first, or name a path in it{}",
            hint_inside(&from.real_path, to)
        )),
        (Errno::ISDIR, _) => directory_error(&from.real_path, to),
        (Errno::NOTDIR, _) => {
            invalid(format!("{destination} is a file; a directory cannot replace it"))
        }
        (err, _) => refusal(&from.path, err),
    }
}
