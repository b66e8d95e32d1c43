//! Resolves the name of a program to a file.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat};
use strsim::osa_distance;

/// A program whose executable file was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedProgram {
    /// The program's name, which becomes its `argv[0]`.
    pub name: String,
    /// The path of the executable file: absolute, or relative to the working directory.
    pub path: PathBuf,
    /// The device and inode of the executable file.
    pub identity: (u64, u64),
}

/// The reason why no executable was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramLookupError {
    /// The program file does not exist.
    Absent,
    /// The path of the program is not a regular file.
    NotAFile,
    /// The program file is not executable.
    NotExecutable,
}

impl ResolvedProgram {
    /// Finds the program `name` relative to the directory `cwd`. Searches for a name without `/` in
    /// the folders of `path`.
    pub fn find(name: &str, cwd: BorrowedFd<'_>, path: &str) -> Result<Self, ProgramLookupError> {
        if name.contains('/') {
            return Self::check_file(name, Path::new(name), cwd);
        }
        if name.is_empty() {
            return Err(ProgramLookupError::Absent);
        }
        let mut missing = ProgramLookupError::Absent;
        for folder in path.split(':') {
            match Self::check_file(name, &Path::new(folder).join(name), cwd) {
                Ok(program) => return Ok(program),
                Err(ProgramLookupError::NotExecutable) => {
                    missing = ProgramLookupError::NotExecutable;
                }
                Err(ProgramLookupError::Absent | ProgramLookupError::NotAFile) => {}
            }
        }
        Err(missing)
    }

    /// Returns the path of the executable file with all symlinks resolved, if the file still
    /// exists.
    pub fn real_path(&self, cwd: BorrowedFd<'_>) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = openat(cwd, &self.path, flags, Mode::empty()).ok()?;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = readlinkat(CWD, link, Vec::new()).ok()?;
        Some(OsString::from_vec(path.into_bytes()).into())
    }

    /// Returns the files that the sandbox must allow to be executed to run this program: its own
    /// file and its ELF loader. `None` for scripts and unreadable files.
    pub fn executable_files(&self, cwd: BorrowedFd<'_>) -> Option<Vec<PathBuf>> {
        let real = self.real_path(cwd)?;
        let file = fs::File::open(&real).ok()?;
        let loader = elf_loader(&file).ok()?;
        Some([real].into_iter().chain(loader).collect())
    }

    fn check_file(
        name: &str,
        path: &Path,
        cwd: BorrowedFd<'_>,
    ) -> Result<Self, ProgramLookupError> {
        let stat = rustix::fs::statat(cwd, path, AtFlags::empty()).map_err(|err| match err {
            rustix::io::Errno::ACCESS => ProgramLookupError::NotExecutable,
            _ => ProgramLookupError::Absent,
        })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(ProgramLookupError::NotAFile);
        }
        rustix::fs::accessat(cwd, path, Access::EXEC_OK, AtFlags::empty())
            .map_err(|_| ProgramLookupError::NotExecutable)?;
        Ok(Self {
            name: name.to_owned(),
            path: path.to_owned(),
            identity: (stat.st_dev, stat.st_ino),
        })
    }
}

/// Returns the path of the loader that the ELF program `file` names, if it names one.
fn elf_loader(file: &fs::File) -> io::Result<Option<PathBuf>> {
    const LOADER: u32 = 3;
    const PATH_BYTES: u64 = 4096;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0)?;
    // Only 64-bit files in this machine's byte order are supported.
    if head[..5] != *b"\x7fELF\x02" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let half = |at: usize| u64::from(u16::from_ne_bytes([head[at], head[at + 1]]));
    let size = half(54);
    let count = half(56);
    let parts = read_u64(&head, 32)?;
    for part in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, parts.saturating_add(part * size))?;
        if u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]) == LOADER {
            let at = read_u64(&entry, 8)?;
            let bytes = read_u64(&entry, 32)?.min(PATH_BYTES);
            let mut path = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
            file.read_exact_at(&mut path, at)?;
            path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
            return Ok(Some(OsString::from_vec(path).into()));
        }
    }
    Ok(None)
}

fn read_u64(bytes: &[u8], at: usize) -> io::Result<u64> {
    let bytes = bytes[at..at + 8].try_into().map_err(io::Error::other)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the program in `path` with the closest spelling, if `name` looks like a misspelling of
/// its name.
///
/// The first letters must agree. One letter may be missing, extra or swapped with the next one. In
/// a name of at least 5 bytes, one letter may also be wrong. A name of at least 8 bytes may have
/// two such errors.
///
/// This function reads whole folders. Call it only after an error, to suggest a fix.
pub fn nearest_program(name: &str, path: &str) -> Option<String> {
    // Any name is similar to such a short one.
    if name.len() < 2 {
        return None;
    }
    let far = if name.len() < 8 { 1 } else { 2 };
    let letters = |name: &str| {
        let mut letters = name.as_bytes().to_vec();
        letters.sort_unstable();
        letters
    };
    // `node` is not a typing error of `nope`.
    let replaces_letter =
        |candidate: &str| candidate.len() == name.len() && letters(candidate) != letters(name);
    let folders = path.split(':').filter_map(|folder| fs::read_dir(folder).ok());
    let names =
        folders.flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= far)
        .filter(|candidate| candidate.chars().next() == name.chars().next())
        .filter(|candidate| name.len() >= 5 || !replaces_letter(candidate))
        .map(|candidate| (osa_distance(name, &candidate), candidate))
        .filter(|(distance, _)| *distance <= far)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn alone(path: &Path) -> Option<Vec<PathBuf>> {
        let here = fs::File::open(".").unwrap();
        ResolvedProgram::find(path.to_str()?, here.as_fd(), "").ok()?.executable_files(here.as_fd())
    }

    #[test]
    fn a_binary_needs_only_itself_and_its_loader_and_a_script_more() {
        let own = std::env::current_exe().unwrap();
        let files = alone(&own).unwrap();
        assert_eq!(files[0], fs::canonicalize(&own).unwrap());
        assert!(files[1].to_str().unwrap().contains("/ld"), "{files:?}");

        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\nexit 0\n".repeat(9)).unwrap();
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, runs).unwrap();
        assert_eq!(alone(&script), None);
    }
}
