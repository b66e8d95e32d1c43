//! Giving an entry another name or another directory.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{OFlags, RenameFlags, renameat_with};
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

/// What becomes of an entry that stands where another is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It stays, and the other is refused.
    Stays,
    /// It goes.
    Goes,
}

impl Root {
    /// Moves the entry at `source` to `destination`; a symlink is moved itself.
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
            return Err(refusal(&from.path, Errno::NOENT));
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
        let _lock = self.held.locks.lock(&to, watch)?;
        let there = to.look().map_err(about("/destination"))?;
        let flags = match standing {
            Standing::Stays => RenameFlags::NOREPLACE,
            Standing::Goes => RenameFlags::empty(),
        };
        let renamed = match renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags) {
            // This file system cannot promise it; with the lock held a look is the best there is.
            Err(Errno::INVAL | Errno::NOSYS) if there.is_none() => {
                rustix::fs::renameat(&from.dir, &from.name, &to.dir, &to.name)
            }
            outcome => outcome,
        };
        renamed.map_err(|err| refuse(&from, &to, there.as_ref(), err))?;
        to.sync();
        from.sync();
        Ok(found.kind())
    }
}

/// Refuses to put what is at `source` into itself.
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

/// That `to` is taken.
pub(super) fn taken(to: &Place) -> ToolError {
    let message = format!("{} exists; pass overwrite: true to replace it", shown(&to.path));
    ToolError::new(Fault::Conflict(json!({ "exists": to.path })), message)
}

fn refuse(from: &Place, to: &Place, there: Option<&Meta>, err: Errno) -> ToolError {
    let (source, destination) = (shown(&from.path), shown(&to.path));
    let invalid = |message| ToolError::invalid("/destination", message);
    match (err, there.map(Meta::kind)) {
        (Errno::EXIST, Some(_)) => taken(to),
        (Errno::XDEV, _) => invalid(format!(
            "{destination} is on another file system than {source}; copy it there and delete the source"
        )),
        (Errno::NOTEMPTY | Errno::EXIST, _) => invalid(format!(
            "{destination} is a directory that is not empty; delete it first, or name a path in it"
        )),
        (Errno::ISDIR, _) => invalid(format!(
            "{destination} is a directory; the destination is the new path itself, with its name"
        )),
        (Errno::NOTDIR, _) => {
            invalid(format!("{destination} is a file; a directory cannot replace it"))
        }
        (err, _) => refusal(&from.path, err),
    }
}
