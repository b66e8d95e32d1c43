//! A temporary file that stays invisible until it is completely written.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

const PREFIX: &str = ".toolgate-";
const SUFFIX: &str = ".tmp";

/// A temporary file: unnamed, or with a name that tools hide. Dropping this value deletes the file.
pub(super) struct TempFile<'d> {
    dir: BorrowedFd<'d>,
    fd: OwnedFd,
    name: Option<OsString>,
}

/// Policy for an existing entry at the final name of a temporary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExistingEntryHandling {
    /// Keep the existing entry and fail with `EEXIST`.
    CreateOnly,
    /// Replace the existing entry.
    Replace,
}

/// Returns `true` if `name` is a reserved name of an unfinished file. A killed process may have
/// left the file.
pub(crate) fn is_temp(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Returns a new random name for a temporary file, which [`is_temp`] recognizes.
pub(super) fn temp_name() -> OsString {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{PREFIX}{random:016x}{SUFFIX}").into()
}

impl<'d> TempFile<'d> {
    /// Creates an empty temporary file in `dir` with the permission bits `mode`, less the umask.
    pub(super) fn create(dir: &'d OwnedFd, mode: Mode) -> Result<Self, Errno> {
        match Self::create_unnamed(dir, mode) {
            // Not every file system has unnamed files, and old ones mistake the flag for a
            // directory's.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                Self::create_named(dir, mode)
            }
            temp => temp,
        }
    }

    /// Creates a temporary file without a name. The system removes it even after a crash.
    fn create_unnamed(dir: &'d OwnedFd, mode: Mode) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = openat(dir, ".", flags, mode)?;
        Ok(Self { dir: dir.as_fd(), fd, name: None })
    }

    fn create_named(dir: &'d OwnedFd, mode: Mode) -> Result<Self, Errno> {
        let name = temp_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY;
        let fd = openat(dir, &name, flags | OFlags::CLOEXEC, mode)?;
        Ok(Self { dir: dir.as_fd(), fd, name: Some(name) })
    }

    /// Gives the temporary file its final name `name` atomically.
    pub(super) fn publish(
        &mut self,
        name: &OsStr,
        over: ExistingEntryHandling,
    ) -> Result<(), Errno> {
        match over {
            ExistingEntryHandling::CreateOnly => self.link_or_move(name)?,
            ExistingEntryHandling::Replace => {
                self.ensure_name()?;
                if let Some(temp) = &self.name {
                    renameat(self.dir, temp, self.dir, name)?;
                }
            }
        }
        self.name = None;
        Ok(())
    }

    fn link_or_move(&mut self, name: &OsStr) -> Result<(), Errno> {
        let Some(temp) = &self.name else { return self.link(name) };
        match renameat_with(self.dir, temp, self.dir, name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => {
                linkat(self.dir, temp, self.dir, name, AtFlags::empty())?;
                unlinkat(self.dir, temp, AtFlags::empty())
            }
            outcome => outcome,
        }
    }

    fn ensure_name(&mut self) -> Result<(), Errno> {
        if self.name.is_none() {
            let name = temp_name();
            self.link(&name)?;
            self.name = Some(name);
        }
        Ok(())
    }

    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let fd = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        linkat(CWD, fd, self.dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl AsFd for TempFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.dir, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::open;
    use rustix::io::write;
    use tempfile::TempDir;

    use super::*;

    type Create = for<'d> fn(&'d OwnedFd, Mode) -> Result<TempFile<'d>, Errno>;

    #[test]
    fn a_file_is_published_whole_or_leaves_nothing() {
        let creators: [Create; 2] = [
            |dir, mode| TempFile::create_unnamed(dir, mode),
            |dir, mode| TempFile::create_named(dir, mode),
        ];
        for create in creators {
            let space = TempDir::new().unwrap();
            let dir =
                open(space.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            let mode = Mode::from_raw_mode(0o600);
            let publish = |content: &str, over| {
                let mut temp = create(&dir, mode)?;
                write(&temp, content.as_bytes())?;
                temp.publish(OsStr::new("f"), over)
            };
            assert_eq!(publish("first", ExistingEntryHandling::CreateOnly), Ok(()));
            assert_eq!(publish("second", ExistingEntryHandling::CreateOnly), Err(Errno::EXIST));
            assert_eq!(content(space.path()), [("f".into(), "first".into())]);
            assert_eq!(publish("third", ExistingEntryHandling::Replace), Ok(()));
            assert_eq!(content(space.path()), [("f".into(), "third".into())]);
            drop(create(&dir, mode));
            assert_eq!(content(space.path()).len(), 1);
        }
    }

    #[test]
    fn the_names_of_temporary_files_are_recognized() {
        assert!(is_temp(&temp_name()));
        assert_ne!(temp_name(), temp_name());
        assert!(!is_temp(OsStr::new(".toolgate.tmp")) && !is_temp(OsStr::new("a.toolgate-1.tmp")));
    }

    #[allow(clippy::disallowed_methods, reason = "a test reads the disk directly")]
    fn content(dir: &Path) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| {
            let entry = entry.unwrap();
            let content = std::fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        });
        entries.collect()
    }
}
