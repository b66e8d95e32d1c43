//! Resolves paths below a directory. No other module opens a path in the workspace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2, readlinkat};
use rustix::io::Errno;

/// The maximum number of retries of a path lookup while another process moves directories.
const TRIES: usize = 64;

/// Handling of symlinks in a path and at the end of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SymlinkPolicy {
    /// Follow symlinks whose targets are below the directory.
    Follow,
    /// Refuse symlinks with `ELOOP`. Use this for paths that a walk found, not for paths from a
    /// caller.
    Refuse,
}

/// Opens `path` below `dir`. Fails with `EXDEV` if the path leads out of `dir`.
///
/// The call never blocks, not even on a FIFO without a writer or on a device.
pub(super) fn open(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    symlinks: SymlinkPolicy,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | symlinks.flags();
    let flags = flags | OFlags::CLOEXEC | nonblocking_flags(flags);
    let mut tries = 0;
    loop {
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

/// Returns the absolute path that the kernel currently reports for `fd`.
pub(super) fn path_of_fd(fd: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = readlinkat(CWD, link, Vec::new())?;
    Ok(std::ffi::OsString::from_vec(path.into_bytes()).into())
}

/// Checks that this system can keep path lookups below `dir`.
///
/// # Errors
/// The kernel lacks `openat2`, or a filter refuses the call.
pub(super) fn check_support(dir: BorrowedFd<'_>) -> io::Result<()> {
    match open(dir, Path::new("."), OFlags::PATH | OFlags::DIRECTORY, SymlinkPolicy::Follow) {
        Ok(_) => Ok(()),
        Err(err @ (Errno::NOSYS | Errno::PERM)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "file access cannot be confined here: the system call openat2 is missing ({err}); \
                 use Linux 5.11 or newer, and a container that allows it"
            ),
        )),
        Err(err) => Err(err.into()),
    }
}

impl SymlinkPolicy {
    fn flags(self) -> ResolveFlags {
        match self {
            Self::Follow => ResolveFlags::empty(),
            Self::Refuse => ResolveFlags::NO_SYMLINKS,
        }
    }
}

/// Returns the flags that, added to `flags`, keep an open from blocking. Returns no flags for
/// `O_PATH`, which never blocks and does not allow them.
fn nonblocking_flags(flags: OFlags) -> OFlags {
    if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use rustix::fs::mkdir;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_path_with_a_symlink_is_refused_even_if_it_stays_inside() {
        let space = TempDir::new().unwrap();
        mkdir(space.path().join("real"), Mode::from_raw_mode(0o700)).unwrap();
        mkdir(space.path().join("real/inner"), Mode::from_raw_mode(0o700)).unwrap();
        symlink("real", space.path().join("link")).unwrap();
        symlink("/", space.path().join("out")).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = rustix::fs::open(space.path(), flags, Mode::empty()).unwrap();
        let try_open =
            |path: &str, symlinks| open(dir.as_fd(), Path::new(path), flags, symlinks).map(drop);
        assert_eq!(try_open("link/inner", SymlinkPolicy::Follow), Ok(()));
        assert_eq!(try_open("real/../link/..", SymlinkPolicy::Follow), Ok(()));
        assert_eq!(try_open("real/inner", SymlinkPolicy::Refuse), Ok(()));
        assert_eq!(try_open("link/inner", SymlinkPolicy::Refuse), Err(Errno::LOOP));
        assert_eq!(try_open("link", SymlinkPolicy::Refuse), Err(Errno::LOOP));
        for path in ["out", "out/etc", "..", "real/../..", "/"] {
            assert_eq!(try_open(path, SymlinkPolicy::Follow), Err(Errno::XDEV), "{path}");
        }
    }
}
