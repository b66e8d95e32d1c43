//! The executable of sandbox helpers: a small program, or the server's own executable.
//!
//! A helper creates a process for each program, and each of these processes copies and faults in a
//! part of the helper's memory. The small program contains the code of a helper and little else. It
//! is appended to the server's executable, or lies beside it under the name [`HELPER_NAME`]. If it
//! is missing or from another build, helpers run the server's own executable.
//!
//! A program may be able to write that file, for example in a workspace in which toolgate is built.
//! The server therefore opens it at its start, copies it to sealed memory before the first program
//! runs, and does not use it if it changed in between.

use std::fs::{self, File, Metadata, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use flate2::bufread::DeflateDecoder;
use memchr::memmem;
use toolgate_contract::lock_mutex;

use crate::programs::{
    FileChangeStamp, HELPER_NAME, SERVER_FILE, create_memory, find_part, seal_memory,
};

/// A text that only executables with the sandbox helper of this build contain.
const BUILD_MARK: &str = concat!("toolgate-sandbox of ", env!("TOOLGATE_WORLD_SOURCES"));
/// The maximum size of the small executable of sandbox helpers, in bytes. In a debug build, this
/// executable has several megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The number by which an ELF executable names the processor of this machine. `None` on other
/// processors, on which helpers never run the small executable.
const MACHINE: Option<usize> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

/// The file with the small executable of sandbox helpers, until the first helper starts.
static FOUND: Mutex<Option<SmallHelperExecutable>> = Mutex::new(None);
/// The small executable of sandbox helpers in sealed memory. `None` if it cannot be used.
static LOADED: OnceLock<Option<OwnedFd>> = OnceLock::new();
/// `true` if the small executable of sandbox helpers was loaded, but does not work on this system.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

/// A file that contains the small executable of sandbox helpers.
struct SmallHelperExecutable {
    file: File,
    /// The metadata of the file when the server opened it, which shows whether the file has changed
    /// since.
    stamp: FileChangeStamp,
    /// The position of the small executable in the file, in bytes.
    start: u64,
    length: u64,
    /// `true` if the small executable is compressed (deflate), as it is at the end of the server's
    /// executable.
    is_compressed: bool,
}

/// Opens the file with the small executable of sandbox helpers, if there is one, and keeps it for
/// the first helper. Call this before the server confines itself and before any program runs.
pub(super) fn open_small_helper() {
    if LOADED.get().is_none() {
        *lock_mutex(&FOUND) = open_small().ok();
    }
}

/// Returns the path of the executable that the next sandbox helper runs. The first call loads the
/// small executable.
pub(super) fn current_path() -> PathBuf {
    if !IS_BROKEN.load(Ordering::Acquire)
        && let Some(memory) = LOADED.get_or_init(load)
    {
        return format!("/proc/self/fd/{}", memory.as_raw_fd()).into();
    }
    SERVER_FILE.into()
}

/// Makes all later sandbox helpers run the server's own executable. Returns `false` if they did so
/// already.
pub(super) fn disable_small_helper() -> bool {
    LOADED.get().is_some_and(Option::is_some) && !IS_BROKEN.swap(true, Ordering::AcqRel)
}

/// Keeps the compiler from removing the mark of this build from executables that can run a sandbox
/// helper.
pub(super) fn keep_build_mark() {
    black_box(BUILD_MARK);
}

fn open_small() -> io::Result<SmallHelperExecutable> {
    let server = File::open(SERVER_FILE)?;
    let server_meta = server.metadata()?;
    if let Some((start, length)) = find_part(&server, server_meta.len(), HELPER_NAME) {
        let stamp = FileChangeStamp::new(&server_meta);
        let is_compressed = true;
        return Ok(SmallHelperExecutable { file: server, stamp, start, length, is_compressed });
    }
    let beside = fs::read_link(SERVER_FILE)?.with_file_name(HELPER_NAME);
    open_beside(&beside, &server_meta)
}

/// Opens the small executable of sandbox helpers at `path`. Fails if the file's owner or writers
/// differ from those of the server's executable, which has the metadata `server`.
fn open_beside(path: &Path, server: &Metadata) -> io::Result<SmallHelperExecutable> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let writers = |meta: &Metadata| (meta.uid(), meta.gid(), meta.mode() & 0o022);
    if !meta.is_file() || writers(&meta) != writers(server) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(SmallHelperExecutable {
        stamp: FileChangeStamp::new(&meta),
        start: 0,
        length: meta.len(),
        is_compressed: false,
        file,
    })
}

/// Loads the small executable of sandbox helpers. Returns `None` if there is none, or if it cannot
/// be used.
fn load() -> Option<OwnedFd> {
    let found = lock_mutex(&FOUND).take()?;
    let loaded = copy_to_memory(&found);
    if let Err(err) = &loaded {
        tracing::debug!("the small program of the sandbox is not used: {err}");
    }
    loaded.ok()
}

/// Copies the small executable in the file `found` to sealed memory.
fn copy_to_memory(found: &SmallHelperExecutable) -> io::Result<OwnedFd> {
    if found.length > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(found.length).map_err(io::Error::other)?];
    found.file.read_exact_at(&mut bytes, found.start)?;
    found.stamp.check(&found.file)?;
    if found.is_compressed {
        let mut unpacked = Vec::new();
        DeflateDecoder::new(&bytes[..]).take(FILE_BYTES_MAX).read_to_end(&mut unpacked)?;
        bytes = unpacked;
    }
    let image = loaded_part(&bytes).ok_or_else(|| io::Error::other("it is not an executable"))?;
    if memmem::find(image, BUILD_MARK.as_bytes()).is_none() {
        return Err(io::Error::other("it is from another build"));
    }
    let mut memory = File::from(create_memory(HELPER_NAME)?);
    memory.write_all(image)?;
    seal_memory(&memory.into())
}

/// Returns the part of the executable `elf` that is loaded to run it, without symbols. `None` if
/// `elf` is not a 64-bit executable for this machine.
fn loaded_part(elf: &[u8]) -> Option<&[u8]> {
    const IDENTITY: [u8; 6] = *b"\x7fELF\x02\x01";
    const LOADED_SEGMENT: usize = 1;
    if !elf.starts_with(&IDENTITY) || number_at(elf, 18, 2) != MACHINE {
        return None;
    }
    let first = number_at(elf, 32, 8)?;
    let size = number_at(elf, 54, 2)?;
    let count = number_at(elf, 56, 2)?;
    let mut end = 0;
    for index in 0..count {
        let at = first.checked_add(size * index)?;
        if number_at(elf, at, 4)? == LOADED_SEGMENT {
            let offset = number_at(elf, at.checked_add(8)?, 8)?;
            let length = number_at(elf, at.checked_add(32)?, 8)?;
            end = end.max(offset.checked_add(length)?);
        }
    }
    elf.get(..end).filter(|loaded| !loaded.is_empty())
}

/// Reads the little-endian number of `size` bytes at the offset `at` of the ELF file.
fn number_at(elf: &[u8], at: usize, size: usize) -> Option<usize> {
    let bytes = elf.get(at..at.checked_add(size)?)?;
    let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// Creates the executable file `at` with the content `bytes`.
    fn put(at: &Path, bytes: &[u8]) {
        fs::write(at, bytes).unwrap();
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns an ELF executable that contains the mark of this build behind its loaded part.
    fn marked_program() -> Vec<u8> {
        let mut program = fs::read("/bin/true").unwrap();
        program.extend_from_slice(BUILD_MARK.as_bytes());
        program
    }

    #[test]
    fn the_loaded_part_of_an_executable_runs() {
        let folder = tempfile::tempdir().unwrap();
        let program = fs::read("/bin/true").unwrap();
        let loaded = loaded_part(&program).unwrap();
        assert!(loaded.len() < program.len());
        let at = folder.path().join("program");
        put(&at, loaded);
        assert!(Command::new(&at).status().unwrap().success());
        let cut = loaded.get(..loaded.len() - 1).unwrap();
        let mut foreign = program.clone();
        foreign[18] ^= 1;
        for bytes in [&b""[..], b"#!/bin/sh\n", &program[..60], cut, &foreign] {
            assert_eq!(loaded_part(bytes), None);
        }
    }

    #[test]
    fn a_program_without_the_mark_of_this_build_in_its_loaded_part_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("program");
        put(&at, &marked_program());
        let found = open_beside(&at, &fs::metadata(&at).unwrap()).unwrap();
        let refused = copy_to_memory(&found).unwrap_err();
        assert_eq!(refused.to_string(), "it is from another build");
        // This test program contains the mark.
        let own = fs::read(SERVER_FILE).unwrap();
        put(&at, &own);
        keep_build_mark();
        let found = open_beside(&at, &fs::metadata(&at).unwrap()).unwrap();
        let memory = copy_to_memory(&found).unwrap();
        assert!(memory.as_raw_fd() >= 16);
        let length = rustix::fs::fstat(&memory).unwrap().st_size;
        assert_eq!(length, i64::try_from(loaded_part(&own).unwrap().len()).unwrap());
    }

    #[test]
    fn a_program_that_changed_after_it_was_opened_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("program");
        put(&at, &marked_program());
        let mut found = open_beside(&at, &fs::metadata(&at).unwrap()).unwrap();
        found.stamp.changed.1 -= 1;
        let refused = copy_to_memory(&found).unwrap_err();
        assert_eq!(refused.to_string(), "it has changed since the server started");
    }

    #[test]
    fn a_program_that_more_users_can_write_than_the_server_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let [server, small] = ["server", "small"].map(|name| folder.path().join(name));
        put(&server, b"");
        put(&small, b"");
        let meta = fs::metadata(&server).unwrap();
        assert!(open_beside(&small, &meta).is_ok());
        fs::set_permissions(&small, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(open_beside(&small, &meta).is_err());
        fs::remove_file(&small).unwrap();
        std::os::unix::fs::symlink(&server, &small).unwrap();
        assert!(open_beside(&small, &meta).is_err());
    }
}
