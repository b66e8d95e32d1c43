//! The empty folders with which a sandbox reserves names in the workspace. Listings omit them.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat};

/// The permission bits of placeholder folders. These bits are unusual, so toolgate recognizes
/// placeholders that a killed server left.
pub(crate) const PLACEHOLDER_MODE: Mode = Mode::from_bits_retain(0o555);

pub(crate) fn open_folder(
    workspace: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(workspace, name, flags, Mode::empty())
}

/// Returns `true` if `stat` describes a placeholder folder made by a server of this user.
pub(crate) fn is_placeholder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && Mode::from_raw_mode(stat.st_mode) == PLACEHOLDER_MODE
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Returns `true` if the entry `name` in `folder` is an empty placeholder folder of a sandbox.
pub(crate) fn is_reserved(folder: BorrowedFd<'_>, name: &OsStr) -> bool {
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| is_placeholder(&stat))
        && open_folder(folder, name).and_then(Dir::new).is_ok_and(|mut entries| {
            entries.all(|entry| {
                entry.is_ok_and(|it| matches!(it.file_name().to_bytes(), b"." | b".."))
            })
        })
}
