//! Moves an entry to another name or directory.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, RenameFlags, flock, fstat, renameat_with};
use rustix::io::Errno;
use serde_json::json;
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::meta::{Kind, Meta};
use super::path::shown;
use super::place::{Parents, Place};
use super::refusal::{about, refusal};
use super::work::Watch;

/// The longest wait for the lock on the second directory.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Handling of an existing entry at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Keep it and refuse the operation.
    Stays,
    /// Replace it.
    Goes,
}

impl Root {
    /// Moves the entry at `source` to `destination`. A symlink itself is moved.
    pub(crate) fn rename(
        &self,
        source: &str,
        destination: &str,
        standing: Standing,
        parents: Parents,
        watch: &Watch,
    ) -> Result<Kind, ToolError> {
        let from = self.place_of(source).map_err(about("/source"))?;
        let Some(found) = from.look().map_err(about("/source"))? else {
            return Err(self.refusal(&from.path, Errno::NOENT));
        };
        let to = self.place(destination, parents).map_err(about("/destination"))?;
        apart(&from.at, &to)?;
        if found.kind() == Kind::Dir {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir =
                beneath::open(from.dir.as_fd(), Path::new(&from.name), flags, Symlinks::Refuse)
                    .map_err(|err| refusal(&from.path, err))?;
            self.guard_tree(&dir, &[&from.at, &to.at], &from.path, watch)?;
        }
        let (first, second) = in_order(&from, &to);
        let locked = self.held.locks.lock(first, watch)?;
        let second = second.map(|second| Second::lock(second, watch)).transpose()?;
        let there = to.look().map_err(about("/destination"))?;
        let is_dir = |meta: &Meta| meta.kind() == Kind::Dir;
        if there.as_ref().is_some_and(is_dir) && !(is_dir(&found) && standing == Standing::Goes) {
            return Err(into(&from.at, &to));
        }
        let flags = match standing {
            Standing::Stays => RenameFlags::NOREPLACE,
            Standing::Goes => RenameFlags::empty(),
        };
        let renamed = match renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags) {
            // This file system cannot refuse to replace. Under the lock, the check above must do.
            Err(Errno::INVAL | Errno::NOSYS) if there.is_none() => {
                rustix::fs::renameat(&from.dir, &from.name, &to.dir, &to.name)
            }
            outcome => outcome,
        };
        renamed.map_err(|err| refuse(&from, &to, there.as_ref(), err))?;
        drop((second, locked));
        to.keep_parents();
        to.sync();
        from.sync();
        Ok(found.kind())
    }
}

/// Fails if the destination is the source or lies inside it.
pub(super) fn apart(source: &Path, to: &Place) -> Result<(), ToolError> {
    let message = if to.at == source {
        "the destination is the source".to_owned()
    } else if to.at.starts_with(source) {
        format!("{} is inside the source", shown(&to.path))
    } else {
        return Ok(());
    };
    Err(ToolError::invalid("/destination", message))
}

/// Returns the place whose directory is locked first, and the other one if its directory differs.
///
/// The order is the same for every move, so opposite moves never deadlock.
fn in_order<'p>(from: &'p Place, to: &'p Place) -> (&'p Place, Option<&'p Place>) {
    let number = |place: &Place| fstat(&place.dir).ok().map(|stat| (stat.st_dev, stat.st_ino));
    match (number(from), number(to)) {
        (from_number, to_number) if from_number == to_number => (to, None),
        (from_number, to_number) if from_number < to_number => (from, Some(to)),
        _ => (to, Some(from)),
    }
}

/// The lock on a second directory while the first is held.
///
/// It is only a file lock, because both directories may share one lock of this process. Each place
/// opens its directory separately, so the file lock also works within this process.
struct Second<'p>(&'p OwnedFd);

impl<'p> Second<'p> {
    #[allow(clippy::disallowed_methods, reason = "a lock of the file system wakes nobody here")]
    fn lock(place: &'p Place, watch: &Watch) -> Result<Self, ToolError> {
        let since = Instant::now();
        let mut pause = Duration::from_micros(100);
        while let Err(err) = flock(&place.dir, FlockOperation::NonBlockingLockExclusive) {
            match err {
                Errno::WOULDBLOCK | Errno::INTR if since.elapsed() < WAIT_MAX => {
                    watch.check()?;
                    sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Errno::WOULDBLOCK | Errno::INTR => {
                    let path = shown(&place.path);
                    let message = format!("the directory of {path} is locked; try again");
                    return Err(ToolError::new(Fault::Unavailable, message));
                }
                // The file system has no locks.
                _ => break,
            }
        }
        Ok(Self(&place.dir))
    }
}

impl Drop for Second<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Creates the error that `to` is a directory and not the new path of `source`.
pub(super) fn into(source: &Path, to: &Place) -> ToolError {
    let message = format!(
        "{} is a directory; the destination is the new path itself, with its name{}",
        shown(&to.path),
        inside(source, to)
    );
    ToolError::invalid("/destination", message)
}

/// Returns a hint that `to` plus the name of `source` may be meant.
pub(super) fn inside(source: &Path, to: &Place) -> String {
    match source.file_name() {
        Some(name) if to.at.join(name) != source => {
            let meant = format!("{}/{}", to.path.trim_end_matches('/'), name.to_string_lossy());
            format!("; did you mean {}?", shown(&meant))
        }
        Some(_) | None => String::new(),
    }
}

/// Creates the error that `to` exists.
pub(super) fn taken(to: &Place) -> ToolError {
    let message = format!("{} exists; pass overwrite: true to replace it", shown(&to.path));
    ToolError::new(Fault::Conflict(json!({ "exists": to.path })), message)
}

fn refuse(from: &Place, to: &Place, there: Option<&Meta>, err: Errno) -> ToolError {
    let source = shown(&from.path);
    let destination = shown(&to.path);
    let invalid = |message| ToolError::invalid("/destination", message);
    match (err, there.map(Meta::kind)) {
        (Errno::EXIST, Some(_)) => taken(to),
        (Errno::XDEV, _) => invalid(format!(
            "{destination} is on another file system than {source}; copy it there and delete the source"
        )),
        (Errno::NOTEMPTY | Errno::EXIST, _) => invalid(format!(
            "{destination} is a directory that is not empty; delete it first, or name a path in it{}",
            inside(&from.at, to)
        )),
        (Errno::ISDIR, _) => into(&from.at, to),
        (Errno::NOTDIR, _) => {
            invalid(format!("{destination} is a file; a directory cannot replace it"))
        }
        (err, _) => refusal(&from.path, err),
    }
}
