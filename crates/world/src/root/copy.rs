//! Copies a file, or a directory with all its contents.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, copy_file_range, fsync, mkdirat, openat, readlinkat,
    renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, pread, write};
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::file::{BLOCK_BYTES, WorkspaceFile};
use super::meta::{EntryKind, EntryMeta};
use super::path::quoted_path;
use super::place::{EntryLocation, MissingParentPolicy};
use super::refusal::{FileOperationError, at_pointer, refusal};
use super::remove::{DirectoryOperationScope, remove_contents};
use super::rename::{
    DestinationConflict, check_not_inside, directory_error, exists_error, hint_inside,
};
use super::replace::{ExistingFilePolicy, FileWriteConditions, MissingFilePolicy};
use super::temp::temp_name;
use super::tree::{WorkspaceTreeDirectory, each_directory, open_tree_directory};
use super::work::DiskWorkMonitor;

/// The options and limits of copying an entry, which may be a directory with all its contents.
#[derive(Debug, Clone, Copy)]
pub struct EntryCopyOptions {
    /// The entries that a copy includes: only the entry itself, or its whole tree.
    pub scope: DirectoryOperationScope,
    /// The handling of an existing destination.
    pub conflict: DestinationConflict,
    /// The handling of missing parents of the destination.
    pub parents: MissingParentPolicy,
    /// The maximum size of the copy, in bytes.
    pub bytes_max: u64,
}

/// Counts of the entries and bytes that were copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryCopyTotals {
    /// The number of copied files, directories and symlinks.
    pub entries: u64,
    /// The number of copied bytes.
    pub bytes: u64,
    /// The number of skipped pipes, sockets and devices, which are never copied.
    pub skipped: u64,
}

impl Root {
    /// Copies the entry at `source` to `destination`, completely or not at all.
    pub fn copy(
        &self,
        source: &str,
        destination: &str,
        bounds: EntryCopyOptions,
        watch: &DiskWorkMonitor,
    ) -> Result<EntryCopyTotals, ToolError> {
        let from = self.relative(source).map_err(at_pointer("/source"))?;
        let fd = self
            .resolve(from, OFlags::RDONLY)
            .map_err(|err| at_pointer("/source")(self.refusal(from, err)))?;
        let meta = EntryMeta::from(rustix::fs::fstat(&fd).map_err(|err| refusal(from, err))?);
        match (meta.kind(), bounds.scope) {
            (EntryKind::Dir, DirectoryOperationScope::Tree) => {
                self.copy_tree(&fd, from, destination, bounds, watch)
            }
            (EntryKind::Dir, DirectoryOperationScope::Entry) => {
                let message = format!(
                    "{} is a directory; pass recursive: true to copy it",
                    quoted_path(from)
                );
                Err(ToolError::invalid("/recursive", message))
            }
            (EntryKind::File | EntryKind::Symlink | EntryKind::Other, _) => {
                let file = WorkspaceFile::new(fd, from).map_err(at_pointer("/source"))?;
                self.copy_one(&file, destination, bounds, watch)
            }
        }
    }

    fn copy_one(
        &self,
        file: &WorkspaceFile,
        destination: &str,
        bounds: EntryCopyOptions,
        watch: &DiskWorkMonitor,
    ) -> Result<EntryCopyTotals, ToolError> {
        let to = self.place(destination, bounds.parents);
        let (to, found) =
            to.and_then(|to| self.write_target(to)).map_err(at_pointer("/destination"))?;
        let mut copied = EntryCopyTotals::default();
        copied.add(file.meta(), bounds).map_err(|err| err.into_tool_error(file.path()))?;
        let terms = FileWriteConditions {
            existing: match bounds.conflict {
                DestinationConflict::Refuse => ExistingFilePolicy::Keep,
                DestinationConflict::Replace => ExistingFilePolicy::Replace,
            },
            missing: MissingFilePolicy::Create,
            parents: bounds.parents,
            mode: Some(file.meta().mode() & 0o777),
        };
        match (&found, bounds.conflict) {
            (Some(there), _) if there.kind() == EntryKind::Dir => {
                return Err(directory_error(Path::new(file.path()), &to));
            }
            (Some(_), DestinationConflict::Refuse) => return Err(exists_error(&to)),
            (Some(there), DestinationConflict::Replace) if there.is_same_entry(file.meta()) => {
                return Err(ToolError::invalid(
                    "/destination",
                    "the source and the destination are the same",
                ));
            }
            (Some(_) | None, DestinationConflict::Refuse | DestinationConflict::Replace) => {}
        }
        let about = at_pointer("/destination");
        let mut temp = to.create_temp(found.as_ref(), &terms).map_err(&about)?;
        copy_bytes(file.as_fd(), temp.as_fd(), file.meta().size(), 0, watch)
            .map_err(|err| err.into_tool_error(&to.path))?;
        fsync(&temp).map_err(|err| refusal(&to.path, err))?;
        self.publish(&to, &mut temp, &terms, watch).map_err(&about)?;
        to.keep_parents();
        to.sync();
        Ok(copied)
    }

    /// Copies the tree of the open directory `top` to a temporary name beside its destination, then
    /// renames the copy.
    fn copy_tree(
        &self,
        top: &OwnedFd,
        source: &str,
        destination: &str,
        bounds: EntryCopyOptions,
        watch: &DiskWorkMonitor,
    ) -> Result<EntryCopyTotals, ToolError> {
        let from = self.path_in_root(top).map_err(|err| self.refusal(source, err))?;
        let to = self.place(destination, bounds.parents).map_err(at_pointer("/destination"))?;
        check_not_inside(&from, &to)?;
        if to.stat().map_err(at_pointer("/destination"))?.is_some() {
            let message = format!(
                "{} exists; copy a directory to a new path, not into an existing directory{}",
                quoted_path(&to.path),
                hint_inside(&from, &to)
            );
            return Err(ToolError::invalid("/destination", message));
        }
        self.check_tree_unprotected(top, &[&to.real_path], source, watch)?;
        let name = temp_name();
        let fail = |err| at_pointer("/destination")(refusal(&to.path, err));
        mkdirat(&to.dir, &name, Mode::from_raw_mode(0o700)).map_err(fail)?;
        let copied =
            open_tree_directory(&to.dir, Path::new(&name)).map_err(fail).and_then(|made| {
                let copied = copy_contents(top, &made, source, bounds, watch)?;
                let mode = rustix::fs::fstat(top).map_err(fail)?.st_mode;
                rustix::fs::fchmod(&made, Mode::from_raw_mode(mode & 0o777 | 0o700))
                    .map_err(fail)?;
                publish_directory(&to, &name).map_err(|err| {
                    if err == Errno::EXIST { exists_error(&to) } else { fail(err) }
                })?;
                Ok(copied)
            });
        match &copied {
            Ok(_) => to.keep_parents(),
            Err(_) => remove_unfinished(&to, &name),
        }
        to.sync();
        copied
    }
}

impl EntryCopyTotals {
    fn add(
        &mut self,
        meta: &EntryMeta,
        bounds: EntryCopyOptions,
    ) -> Result<(), FileOperationError> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(meta.size());
        if self.bytes > bounds.bytes_max {
            let message = format!(
                "the copy would have more than {} bytes, the limit for one call; copy parts of it",
                bounds.bytes_max
            );
            return Err(ToolError::new(ToolErrorKind::TooLarge, message).into());
        }
        Ok(())
    }
}

/// Copies the contents of the directory `from` into the directory `to`.
fn copy_contents(
    from: &OwnedFd,
    to: &OwnedFd,
    path: &str,
    bounds: EntryCopyOptions,
    watch: &DiskWorkMonitor,
) -> Result<EntryCopyTotals, ToolError> {
    let mut copied = EntryCopyTotals { entries: 1, ..EntryCopyTotals::default() };
    each_directory(from, path, watch, |branch| {
        let inner = |name: &OsStr| {
            Path::new(path).join(branch.path).join(name).to_string_lossy().into_owned()
        };
        let made = open_tree_directory(to, branch.path)
            .map_err(|err| refusal(&inner(OsStr::new("")), err))?;
        for (name, kind) in &branch.entries {
            copy_entry(&branch, &made, name, *kind, bounds, &mut copied, watch)
                .map_err(|err| err.into_tool_error(&inner(name)))?;
        }
        Ok(())
    })?;
    Ok(copied)
}

fn copy_entry(
    from: &WorkspaceTreeDirectory<'_>,
    to: &OwnedFd,
    name: &OsStr,
    kind: EntryKind,
    bounds: EntryCopyOptions,
    copied: &mut EntryCopyTotals,
    watch: &DiskWorkMonitor,
) -> Result<(), FileOperationError> {
    match kind {
        EntryKind::Dir => {
            let mode = statat(&from.dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            mkdirat(to, name, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
            copied.entries += 1;
        }
        EntryKind::File => {
            let fd = beneath::open(
                from.dir.as_fd(),
                Path::new(name),
                OFlags::RDONLY,
                SymlinkPolicy::Refuse,
            )?;
            let file = WorkspaceFile::new(fd, &name.to_string_lossy())?;
            copied.add(file.meta(), bounds)?;
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(to, name, flags, Mode::from_raw_mode(file.meta().mode() & 0o777))?;
            let before = copied.bytes - file.meta().size();
            copy_bytes(file.as_fd(), made.as_fd(), file.meta().size(), before, watch)?;
        }
        EntryKind::Symlink => {
            symlinkat(readlinkat(&from.dir, name, Vec::new())?, to, name)?;
            copied.entries += 1;
        }
        EntryKind::Other => copied.skipped += 1,
    }
    Ok(())
}

/// Copies the first `len` bytes of the file `from` to the file `to`, in the kernel if possible.
///
/// `before` is the number of bytes that the call has already copied, for progress reports.
fn copy_bytes(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    len: u64,
    before: u64,
    watch: &DiskWorkMonitor,
) -> Result<(), FileOperationError> {
    let mut at = 0;
    while at < len {
        watch.check_cancelled()?;
        let part = usize::try_from((len - at).min(8 << 20)).unwrap_or(BLOCK_BYTES);
        match copy_file_range(from, Some(&mut at), to, None, part) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => watch.report_progress(before + at, None, "bytes copied"),
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return copy_bytes_in_blocks(from, to, at..len, watch);
            }
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

fn copy_bytes_in_blocks(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: std::ops::Range<u64>,
    watch: &DiskWorkMonitor,
) -> Result<(), FileOperationError> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut at = range.start;
    while at < range.end {
        watch.check_cancelled()?;
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
fn publish_directory(to: &EntryLocation, temp: &OsStr) -> Result<(), Errno> {
    match renameat_with(&to.dir, temp, &to.dir, &to.name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(&to.dir, temp, &to.dir, &to.name),
        outcome => outcome,
    }
}

/// Removes the unfinished directory `temp`. Continues even if the call is cancelled.
fn remove_unfinished(to: &EntryLocation, temp: &OsStr) {
    if let Ok(dir) = open_tree_directory(&to.dir, Path::new(temp)) {
        let _ = remove_contents(&dir, &to.path, &DiskWorkMonitor::default(), &mut 0, |_| Ok(()));
    }
    let _ = unlinkat(&to.dir, temp, AtFlags::REMOVEDIR);
}
