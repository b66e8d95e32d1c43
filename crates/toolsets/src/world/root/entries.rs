//! Lists a directory: all of its entries, or one sorted page.

use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, OFlags, RawDir, statat};
use rustix::io::Errno;
use toolgate_contract::ToolError;

use super::Root;
use super::meta::{Kind, Meta};
use super::refusal::Stopped;
use super::temp::is_temp;
use super::work::Watch;
use crate::world::sandbox::is_reserved;

/// One page of a directory, sorted by name.
pub(crate) struct Page {
    pub(crate) entries: Vec<(OsString, Meta)>,
    /// The number of entries after this page.
    pub(crate) left: u64,
}

impl Root {
    /// Returns up to `limit` entries of the directory at `path` whose names sort after `after`.
    ///
    /// Memory use is bounded by the page, however large the directory is.
    pub(crate) fn page(
        &self,
        path: &str,
        after: Option<&OsStr>,
        limit: usize,
        watch: &Watch,
    ) -> Result<Page, ToolError> {
        let path = self.relative(path)?;
        let dir = self
            .resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|err| self.refusal(path, err))?;
        let mut first = BinaryHeap::with_capacity(limit.saturating_add(1).min(10_000));
        let mut left = 0;
        each(dir.as_fd(), watch, |name, _| {
            if after.is_none_or(|after| name > after) {
                if first.len() < limit {
                    first.push(name.to_owned());
                } else {
                    left += 1;
                    if let Some(mut last) = first.peek_mut()
                        && name < last.as_os_str()
                    {
                        *last = name.to_owned();
                    }
                }
            }
            Ok(())
        })
        .map_err(|err| err.at(path))?;
        let mut entries = Vec::with_capacity(first.len());
        for name in first.into_sorted_vec() {
            // An entry that was removed meanwhile is left out.
            if let Ok(stat) = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                entries.push((name, stat.into()));
            }
        }
        Ok(Page { entries, left })
    }
}

/// Passes each entry of `dir` to `take`. Skips unfinished files and the sandbox's placeholders.
pub(super) fn each(
    dir: BorrowedFd<'_>,
    watch: &Watch,
    mut take: impl FnMut(&OsStr, Kind) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    each_of_all(dir, watch, |name, kind| {
        let may_be_reserved = kind == Kind::Dir && name.as_bytes().starts_with(b".");
        let is_ours = is_temp(name) || (may_be_reserved && is_reserved(dir, name));
        if is_ours { Ok(()) } else { take(name, kind) }
    })
}

/// Passes each entry of `dir` to `take`.
pub(super) fn each_of_all(
    dir: BorrowedFd<'_>,
    watch: &Watch,
    mut take: impl FnMut(&OsStr, Kind) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Err(Errno::INTR) => continue,
            entry => entry?,
        };
        if is_self_or_parent(entry.file_name().to_bytes()) {
            continue;
        }
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Meta::from(stat).kind(),
                Err(_) => continue,
            },
            known => known.into(),
        };
        take(name, kind)?;
        watch.check()?;
    }
    Ok(())
}

/// Returns `true` for `.` and `..`.
fn is_self_or_parent(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
