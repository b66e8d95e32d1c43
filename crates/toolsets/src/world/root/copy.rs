//! Copies a file, or a directory with all its contents.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, copy_file_range, fsync, mkdirat, openat, readlinkat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, pread, write};
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::file::{BLOCK_BYTES, File};
use super::meta::{Kind, Meta};
use super::path::shown;
use super::place::{Parents, Place};
use super::refusal::{Stopped, about, refusal};
use super::remove::{Extent, clear};
use super::rename::{Standing, apart, inside, into, taken};
use super::replace::{Existing, Missing, Terms};
use super::temp::temp_name;
use super::tree::{Branch, each_branch, open_branch};
use super::work::Watch;

/// Options and limits of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) extent: Extent,
    pub(crate) standing: Standing,
    pub(crate) parents: Parents,
    pub(crate) bytes_max: u64,
}

/// Counts of a finished copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Pipes, sockets and devices, which are not copied.
    pub(crate) skipped: u64,
}

impl Root {
    /// Copies the entry at `source` to `destination`, completely or not at all.
    pub(crate) fn copy(
        &self,
        source: &str,
        destination: &str,
        bounds: Bounds,
        watch: &Watch,
    ) -> Result<Copied, ToolError> {
        let from = self.relative(source).map_err(about("/source"))?;
        let fd = self
            .resolve(from, OFlags::RDONLY)
            .map_err(|err| about("/source")(self.refusal(from, err)))?;
        let meta = Meta::from(rustix::fs::fstat(&fd).map_err(|err| refusal(from, err))?);
        match (meta.kind(), bounds.extent) {
            (Kind::Dir, Extent::Tree) => self.copy_tree(&fd, from, destination, bounds, watch),
            (Kind::Dir, Extent::Entry) => {
                let message =
                    format!("{} is a directory; pass recursive: true to copy it", shown(from));
                Err(ToolError::invalid("/recursive", message))
            }
            (Kind::File | Kind::Symlink | Kind::Other, _) => {
                let file = File::new(fd, from).map_err(about("/source"))?;
                self.copy_one(&file, destination, bounds, watch)
            }
        }
    }

    fn copy_one(
        &self,
        file: &File,
        destination: &str,
        bounds: Bounds,
        watch: &Watch,
    ) -> Result<Copied, ToolError> {
        let to = self.place(destination, bounds.parents);
        let (to, found) = to.and_then(|to| self.target(to)).map_err(about("/destination"))?;
        let mut copied = Copied::default();
        copied.add(file.meta(), bounds).map_err(|err| err.at(file.path()))?;
        let terms = Terms {
            existing: match bounds.standing {
                Standing::Stays => Existing::Keep,
                Standing::Goes => Existing::Replace,
            },
            missing: Missing::Create,
            parents: bounds.parents,
            mode: Some(file.meta().mode() & 0o777),
        };
        match (&found, bounds.standing) {
            (Some(there), _) if there.kind() == Kind::Dir => {
                return Err(into(Path::new(file.path()), &to));
            }
            (Some(_), Standing::Stays) => return Err(taken(&to)),
            (Some(there), Standing::Goes) if there.is_same(file.meta()) => {
                return Err(ToolError::invalid("/destination", "the destination is the source"));
            }
            (Some(_) | None, Standing::Stays | Standing::Goes) => {}
        }
        let about = about("/destination");
        let mut temp = to.draft(found.as_ref(), &terms).map_err(&about)?;
        pour(file.as_fd(), temp.as_fd(), file.meta().size(), 0, watch)
            .map_err(|err| err.at(&to.path))?;
        fsync(&temp).map_err(|err| refusal(&to.path, err))?;
        self.publish(&to, &mut temp, &terms, watch).map_err(&about)?;
        to.keep_parents();
        to.sync();
        Ok(copied)
    }

    /// Copies the tree of `top` to a temporary name beside its destination, then renames it.
    fn copy_tree(
        &self,
        top: &OwnedFd,
        source: &str,
        destination: &str,
        bounds: Bounds,
        watch: &Watch,
    ) -> Result<Copied, ToolError> {
        let from = self.real(top).map_err(|err| self.refusal(source, err))?;
        let to = self.place(destination, bounds.parents).map_err(about("/destination"))?;
        apart(&from, &to)?;
        if to.look().map_err(about("/destination"))?.is_some() {
            let message = format!(
                "{} exists; a directory is copied to a path where nothing is, not into another{}",
                shown(&to.path),
                inside(&from, &to)
            );
            return Err(ToolError::invalid("/destination", message));
        }
        self.guard_tree(top, &[&to.at], source, watch)?;
        let name = temp_name();
        let fail = |err| about("/destination")(refusal(&to.path, err));
        mkdirat(&to.dir, &name, Mode::from_raw_mode(0o700)).map_err(fail)?;
        let copied = open_branch(&to.dir, Path::new(&name)).map_err(fail).and_then(|made| {
            let copied = copy_branches(top, &made, source, bounds, watch)?;
            let mode = rustix::fs::fstat(top).map_err(fail)?.st_mode;
            rustix::fs::fchmod(&made, Mode::from_raw_mode(mode & 0o777 | 0o700)).map_err(fail)?;
            settle(&to, &name)
                .map_err(|err| if err == Errno::EXIST { taken(&to) } else { fail(err) })?;
            Ok(copied)
        });
        match &copied {
            Ok(_) => to.keep_parents(),
            Err(_) => abandon(&to, &name),
        }
        to.sync();
        copied
    }
}

impl Copied {
    fn add(&mut self, meta: &Meta, bounds: Bounds) -> Result<(), Stopped> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(meta.size());
        if self.bytes > bounds.bytes_max {
            let message =
                format!("more than {} bytes are not copied in one call", bounds.bytes_max);
            return Err(ToolError::new(Fault::TooLarge, message).into());
        }
        Ok(())
    }
}

/// Copies the contents of the directory `from` into the directory `to`.
fn copy_branches(
    from: &OwnedFd,
    to: &OwnedFd,
    path: &str,
    bounds: Bounds,
    watch: &Watch,
) -> Result<Copied, ToolError> {
    let mut copied = Copied { entries: 1, ..Copied::default() };
    each_branch(from, path, watch, |branch| {
        let inner = |name: &OsStr| {
            Path::new(path).join(branch.at).join(name).to_string_lossy().into_owned()
        };
        let made =
            open_branch(to, branch.at).map_err(|err| refusal(&inner(OsStr::new("")), err))?;
        for (name, kind) in &branch.entries {
            copy_entry(&branch, &made, name, *kind, bounds, &mut copied, watch)
                .map_err(|err| err.at(&inner(name)))?;
        }
        Ok(())
    })?;
    Ok(copied)
}

fn copy_entry(
    from: &Branch<'_>,
    to: &OwnedFd,
    name: &OsStr,
    kind: Kind,
    bounds: Bounds,
    copied: &mut Copied,
    watch: &Watch,
) -> Result<(), Stopped> {
    match kind {
        Kind::Dir => {
            let mode = statat(&from.dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            mkdirat(to, name, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
            copied.entries += 1;
        }
        Kind::File => {
            let fd =
                beneath::open(from.dir.as_fd(), Path::new(name), OFlags::RDONLY, Symlinks::Refuse)?;
            let file = File::new(fd, &name.to_string_lossy())?;
            copied.add(file.meta(), bounds)?;
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(to, name, flags, Mode::from_raw_mode(file.meta().mode() & 0o777))?;
            let before = copied.bytes - file.meta().size();
            pour(file.as_fd(), made.as_fd(), file.meta().size(), before, watch)?;
        }
        Kind::Symlink => {
            symlinkat(readlinkat(&from.dir, name, Vec::new())?, to, name)?;
            copied.entries += 1;
        }
        Kind::Other => copied.skipped += 1,
    }
    Ok(())
}

/// Copies the first `len` bytes of `from` to `to`, in the kernel if possible.
///
/// `before` is the number of bytes that the call has already copied, for progress.
fn pour(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    len: u64,
    before: u64,
    watch: &Watch,
) -> Result<(), Stopped> {
    let mut at = 0;
    while at < len {
        watch.check()?;
        let part = usize::try_from((len - at).min(8 << 20)).unwrap_or(BLOCK_BYTES);
        match copy_file_range(from, Some(&mut at), to, None, part) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => watch.progress(before + at, None, "bytes copied"),
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return pour_by_hand(from, to, at..len, watch);
            }
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

fn pour_by_hand(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: std::ops::Range<u64>,
    watch: &Watch,
) -> Result<(), Stopped> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = range.start;
    while at < range.end {
        watch.check()?;
        let part = usize::try_from(range.end - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let read = pread(from, &mut block[..part], at)?;
        if read == 0 {
            break;
        }
        let mut rest = &block[..read];
        while !rest.is_empty() {
            rest = &rest[write(to, rest)?..];
        }
        at += read as u64;
    }
    Ok(())
}

/// Renames the finished directory `temp` to its final name, which must be free.
fn settle(to: &Place, temp: &OsStr) -> Result<(), Errno> {
    match renameat_with(&to.dir, temp, &to.dir, &to.name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(&to.dir, temp, &to.dir, &to.name),
        outcome => outcome,
    }
}

/// Removes the unfinished directory `temp`, even if the call is cancelled.
fn abandon(to: &Place, temp: &OsStr) {
    if let Ok(dir) = open_branch(&to.dir, Path::new(temp)) {
        let _ = clear(&dir, &to.path, &Watch::default(), &mut 0, |_| Ok(()));
    }
    let _ = unlinkat(&to.dir, temp, AtFlags::REMOVEDIR);
}
