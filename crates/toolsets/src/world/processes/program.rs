//! Which file a program's name stands for.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat};
use strsim::osa_distance;

/// A program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What the program is told it was called.
    pub name: String,
    /// The file: absolute, or relative to the directory it starts in.
    pub path: PathBuf,
    /// Which file that is, whatever it is called: device and inode.
    pub identity: (u64, u64),
}

/// Why no program was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// There is no such file.
    Absent,
    /// There is one, and it is not a regular file.
    NotAFile,
    /// There is one, and it may not be executed.
    NotExecutable,
}

impl Program {
    /// The program `name` stands for in `cwd`, with names without a `/` sought in `path`.
    pub fn find(name: &str, cwd: BorrowedFd<'_>, path: &str) -> Result<Self, Missing> {
        if name.contains('/') {
            return Self::at(name, Path::new(name), cwd);
        }
        if name.is_empty() {
            return Err(Missing::Absent);
        }
        let mut missing = Missing::Absent;
        for folder in path.split(':') {
            match Self::at(name, &Path::new(folder).join(name), cwd) {
                Ok(program) => return Ok(program),
                Err(Missing::NotExecutable) => missing = Missing::NotExecutable,
                Err(Missing::Absent | Missing::NotAFile) => {}
            }
        }
        Err(missing)
    }

    /// The file with all symlinks on the way resolved, if it is still there.
    pub fn real(&self, cwd: BorrowedFd<'_>) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = openat(cwd, &self.path, flags, Mode::empty()).ok()?;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = readlinkat(CWD, link, Vec::new()).ok()?;
        Some(OsString::from_vec(path.into_bytes()).into())
    }

    fn at(name: &str, path: &Path, cwd: BorrowedFd<'_>) -> Result<Self, Missing> {
        let stat = rustix::fs::statat(cwd, path, AtFlags::empty()).map_err(|err| match err {
            rustix::io::Errno::ACCESS => Missing::NotExecutable,
            _ => Missing::Absent,
        })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Missing::NotAFile);
        }
        rustix::fs::accessat(cwd, path, Access::EXEC_OK, AtFlags::empty())
            .map_err(|_| Missing::NotExecutable)?;
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            identity: (stat.st_dev, stat.st_ino),
        })
    }
}

/// The program in `path` that `name` was probably meant to be.
///
/// It reads whole folders, so it is for the moment when all is lost.
pub fn nearest(name: &str, path: &str) -> Option<String> {
    let far = if name.len() < 3 { 1 } else { 2 };
    let folders = path.split(':').filter_map(|folder| fs::read_dir(folder).ok());
    let names =
        folders.flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= far)
        .map(|candidate| (osa_distance(name, &candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .min()
        .map(|(_, candidate)| candidate)
}
