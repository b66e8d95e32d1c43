//! Lists a directory: all of its entries, or one sorted page.

use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, OFlags, RawDir, statat};
use rustix::io::Errno;
use toolgate_contract::ToolError;

use super::Root;
use super::meta::{EntryKind, EntryMeta};
use super::placeholder::is_reserved;
use super::refusal::FileOperationError;
use super::temp::is_temp;
use super::work::DiskWorkMonitor;

/// Page of a directory's entries, sorted by name.
pub struct DirectoryPage {
    /// The names and metadata of the entries on the page.
    pub entries: Vec<(OsString, EntryMeta)>,
    /// The number of entries after this page.
    pub remaining: u64,
}

impl Root {
    /// Returns up to `limit` entries of the directory at `path` whose names sort after `after`.
    ///
    /// Memory use is bounded by the page, however large the directory is.
    pub fn list_page(
        &self,
        path: &str,
        after: Option<&OsStr>,
        limit: usize,
        watch: &DiskWorkMonitor,
    ) -> Result<DirectoryPage, ToolError> {
        let path = self.relative(path)?;
        let dir = self
            .resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|err| self.refusal(path, err))?;
        let mut first = BinaryHeap::with_capacity(limit.saturating_add(1).min(10_000));
        let mut left = 0;
        each_visible_entry(dir.as_fd(), watch, |name, _| {
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
        .map_err(|err| err.into_tool_error(path))?;
        let mut entries = Vec::with_capacity(first.len());
        for name in first.into_sorted_vec() {
            // An entry that was removed meanwhile is left out.
            if let Ok(stat) = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                entries.push((name, stat.into()));
            }
        }
        Ok(DirectoryPage { entries, remaining: left })
    }
}

/// Passes each entry of `dir` to `take`, except unfinished files and the sandbox's placeholder
/// folders.
pub(super) fn each_visible_entry(
    dir: BorrowedFd<'_>,
    watch: &DiskWorkMonitor,
    mut take: impl FnMut(&OsStr, EntryKind) -> Result<(), FileOperationError>,
) -> Result<(), FileOperationError> {
    each_entry(dir, watch, |name, kind| {
        let may_be_reserved = kind == EntryKind::Dir && name.as_bytes().starts_with(b".");
        let is_ours = is_temp(name) || (may_be_reserved && is_reserved(dir, name));
        if is_ours { Ok(()) } else { take(name, kind) }
    })
}

/// Passes each entry of `dir` to `take`, including unfinished files and placeholder folders.
pub(super) fn each_entry(
    dir: BorrowedFd<'_>,
    watch: &DiskWorkMonitor,
    mut take: impl FnMut(&OsStr, EntryKind) -> Result<(), FileOperationError>,
) -> Result<(), FileOperationError> {
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
                Ok(stat) => EntryMeta::from(stat).kind(),
                Err(_) => continue,
            },
            known => known.into(),
        };
        take(name, kind)?;
        watch.check_cancelled()?;
    }
    Ok(())
}

/// Returns `true` for the names `.` and `..`.
fn is_self_or_parent(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
