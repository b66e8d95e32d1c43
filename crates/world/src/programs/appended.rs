//! Small programs that are appended to the server's executable. The server starts them from memory.
//!
//! Each appended program consists of its bytes, their number in [`LENGTH_BYTES`] bytes, and the
//! program's name in [`NAME_BYTES`] bytes. The program in `dist` appends them
//! (`dist/src/append.rs`).

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::image::EXTRA_FD_SOURCE_MIN;

/// The number of bytes of the name after each program that is appended to the server's executable.
/// A shorter name is padded with zero bytes.
const NAME_BYTES: usize = 16;
/// The number of bytes of the length after each program that is appended to the server's
/// executable.
const LENGTH_BYTES: usize = 8;
/// The prefix of the name of each program that is appended to the server's executable.
const NAME_START: &[u8] = b"toolgate-";
/// The maximum number of appended programs that a search reads.
const PARTS_MAX: usize = 8;

/// The metadata of a file that shows whether its content may have changed.
#[derive(PartialEq, Eq)]
pub(crate) struct FileChangeStamp {
    length: u64,
    modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl FileChangeStamp {
    /// Creates the change stamp of a file with the metadata `meta`.
    pub(crate) fn new(meta: &Metadata) -> Self {
        Self {
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Returns an error if the content of `file` may have changed since this stamp was created.
    pub(crate) fn check(&self, file: &File) -> io::Result<()> {
        match Self::new(&file.metadata()?) == *self {
            true => Ok(()),
            false => Err(io::Error::other("it has changed since the server started")),
        }
    }
}

/// Returns the position and the length, in bytes, of the appended program `name` at the end of
/// `file`, which has `file_length` bytes. Returns `None` if there is no such program.
pub(crate) fn find_part(file: &File, file_length: u64, name: &str) -> Option<(u64, u64)> {
    let mut part_end = file_length;
    for _ in 0..PARTS_MAX {
        let mut end = [0; LENGTH_BYTES + NAME_BYTES];
        let rest = part_end.checked_sub(end.len() as u64)?;
        file.read_exact_at(&mut end, rest).ok()?;
        let (length, found) = end.split_first_chunk::<LENGTH_BYTES>()?;
        if !found.starts_with(NAME_START) {
            return None;
        }
        let length = u64::from_le_bytes(*length);
        let start = rest.checked_sub(length)?;
        let is_wanted = |found: &[u8]| found.iter().all(|byte| *byte == 0);
        if found.strip_prefix(name.as_bytes()).is_some_and(is_wanted) {
            return Some((start, length));
        }
        part_end = start;
    }
    None
}

/// Creates an empty executable file in memory with the name `name`.
pub(crate) fn create_memory(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Linux before 6.3 lacks this flag, and can execute all files in memory.
        Err(Errno::INVAL) => Ok(memfd_create(name, flags)?),
        created => Ok(created?),
    }
}

/// Makes `memory`, a file in memory, unchangeable. Returns a second handle of the file, whose
/// descriptor number a new process does not replace before it executes a program.
pub(crate) fn seal_memory(memory: &OwnedFd) -> io::Result<OwnedFd> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(memory, seals)?;
    // A new process replaces descriptors with low numbers before it executes the program.
    Ok(fcntl_dupfd_cloexec(memory, EXTRA_FD_SOURCE_MIN)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the bytes of a file to which `parts` are appended, each with its content and its
    /// name.
    fn joined(parts: &[(&[u8], &str)]) -> Vec<u8> {
        let mut bytes = b"server".to_vec();
        for (part, name) in parts {
            bytes.extend_from_slice(part);
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(format!("{name:\0<NAME_BYTES$}").into_bytes());
        }
        bytes
    }

    #[test]
    fn each_appended_part_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("server");
        let find = |bytes: &[u8], name: &str| {
            fs::write(&at, bytes).unwrap();
            find_part(&File::open(&at).unwrap(), bytes.len() as u64, name)
        };
        let parts = [(&b"parser"[..], "toolgate-parser"), (&b"small"[..], "toolgate-sandbox")];
        let both = joined(&parts);
        assert_eq!(find(&both, "toolgate-parser"), Some((6, 6)));
        assert_eq!(find(&both, "toolgate-sandbox"), Some((36, 5)));
        assert_eq!(find(&both, "toolgate-other"), None);
        // Behind a part with another kind of name, the server searches no further.
        let foreign = joined(&[parts[0], (&b"other"[..], "other")]);
        assert_eq!(find(&foreign, "toolgate-parser"), None);
        assert_eq!(find(b"server", "toolgate-parser"), None);
        let mut long = both;
        let length_at = long.len() - NAME_BYTES - LENGTH_BYTES;
        long[length_at..length_at + LENGTH_BYTES].fill(0xff);
        assert_eq!(find(&long, "toolgate-sandbox"), None);
    }
}
