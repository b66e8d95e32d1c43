//! The executables of worker processes: the server's own, or a compressed program that is appended
//! to it.
//!
//! Grammars are tables that shrink to a ninth if they are compressed. Releases therefore append
//! the program that parses code to the server in compressed form. The server unpacks the program to
//! sealed memory for the first worker, and frees this memory after the last one.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use flate2::bufread::DeflateDecoder;
use toolgate_contract::lock_mutex;

use crate::programs::{FileChangeStamp, SERVER_FILE, create_memory, find_part, seal_memory};

/// The maximum size of a packed program, in bytes.
const PACKED_BYTES_MAX: u64 = 64 << 20;
/// The number of bytes of the hash (BLAKE3) at the start of a packed program, over its compressed
/// bytes.
const HASH_BYTES: usize = 32;

/// The executable that worker processes run. Clones share one unpacked program.
#[derive(Clone)]
pub enum WorkerExecutable {
    /// The server's own executable, under another name.
    Server,
    /// A program that is packed into the server's executable.
    Packed(Arc<PackedProgram>),
    /// No executable: this server cannot start the workers.
    Missing,
}

/// A compressed program at the end of the server's executable.
pub struct PackedProgram {
    name: &'static str,
    /// The server's executable, which contains the packed program.
    file: File,
    /// The metadata of the file when the server opened it, which shows whether the file has changed
    /// since.
    stamp: FileChangeStamp,
    /// The position of the packed program in the file, in bytes.
    start: u64,
    length: u64,
    /// The unpacked program in sealed memory, as long as a worker runs.
    memory: Mutex<Weak<OwnedFd>>,
}

impl PackedProgram {
    /// Finds the program `name` at the end of the server's executable. Returns `None` if there is
    /// no such program. Call this before the server confines itself.
    pub fn find(name: &'static str) -> Option<Self> {
        let file = File::open(SERVER_FILE).ok()?;
        Self::find_in(file, name)
    }

    fn find_in(file: File, name: &'static str) -> Option<Self> {
        let meta = file.metadata().ok()?;
        let (start, length) = find_part(&file, meta.len(), name)?;
        let stamp = FileChangeStamp::new(&meta);
        Some(Self { name, file, stamp, start, length, memory: Mutex::default() })
    }

    /// Returns the program in sealed memory. Unpacks it if no worker runs it.
    fn open(&self) -> io::Result<Arc<OwnedFd>> {
        let mut memory = lock_mutex(&self.memory);
        if let Some(open) = memory.upgrade() {
            return Ok(open);
        }
        let unpacked = self.unpack().map_err(|err| {
            let name = self.name;
            io::Error::other(format!("cannot unpack {name} from the executable of toolgate: {err}"))
        })?;
        let unpacked = Arc::new(unpacked);
        *memory = Arc::downgrade(&unpacked);
        Ok(unpacked)
    }

    fn unpack(&self) -> io::Result<OwnedFd> {
        if self.length > PACKED_BYTES_MAX {
            return Err(damaged());
        }
        let mut packed = vec![0; usize::try_from(self.length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut packed, self.start)?;
        self.stamp.check(&self.file)?;
        let (hash, compressed) = packed.split_first_chunk::<HASH_BYTES>().ok_or_else(damaged)?;
        if blake3::hash(compressed).as_bytes() != hash {
            return Err(damaged());
        }
        let mut memory = File::from(create_memory(self.name)?);
        io::copy(&mut DeflateDecoder::new(compressed), &mut memory)?;
        seal_memory(&memory.into())
    }
}

impl WorkerExecutable {
    /// Returns the path of the executable. Also returns the memory with the unpacked program, if
    /// any, which the caller must keep open until the worker has started.
    ///
    /// # Errors
    /// The executable is missing or damaged, or cannot be unpacked.
    pub(super) fn open(&self) -> io::Result<(PathBuf, Option<Arc<OwnedFd>>)> {
        match self {
            Self::Server => Ok((SERVER_FILE.into(), None)),
            Self::Packed(program) => {
                let memory = program.open()?;
                Ok((format!("/proc/self/fd/{}", memory.as_raw_fd()).into(), Some(memory)))
            }
            Self::Missing => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "this build of toolgate does not contain the program of the process",
            )),
        }
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the program is damaged; install toolgate again")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::path::Path;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;

    const NAME: &str = "toolgate-test";

    /// Writes the file `at` with a server executable to which `program` is appended in packed
    /// format. Returns the position of the packed program.
    fn write_server(at: &Path, program: &[u8]) -> usize {
        let mut compressed = DeflateEncoder::new(Vec::new(), Compression::fast());
        compressed.write_all(program).unwrap();
        let compressed = compressed.finish().unwrap();
        let mut server = b"server".to_vec();
        let start = server.len();
        server.extend(blake3::hash(&compressed).as_bytes());
        server.extend(compressed);
        let length = server.len() - start;
        server.extend((length as u64).to_le_bytes());
        server.extend(format!("{NAME:\0<16}").into_bytes());
        fs::write(at, server).unwrap();
        start
    }

    fn find(at: &Path) -> PackedProgram {
        PackedProgram::find_in(File::open(at).unwrap(), NAME).unwrap()
    }

    #[test]
    fn a_packed_program_is_unpacked_once_and_freed_after_its_last_use() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("server");
        let program: Vec<u8> = (0..5000_u32).flat_map(|it| (it % 700).to_le_bytes()).collect();
        write_server(&at, &program);
        let packed = Arc::new(find(&at));
        let executable = WorkerExecutable::Packed(packed.clone());
        let (path, memory) = executable.open().unwrap();
        let mut unpacked = Vec::new();
        File::open(path).unwrap().read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == program);
        let (_, again) = executable.open().unwrap();
        assert!(Arc::ptr_eq(&memory.unwrap(), &again.unwrap()));
        assert_eq!(packed.memory.lock().unwrap().strong_count(), 0);
    }

    #[test]
    fn a_damaged_or_changed_program_is_not_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("server");
        let start = write_server(&at, &[7; 3000]);
        let whole = fs::read(&at).unwrap();
        for position in [start, start + HASH_BYTES, start + HASH_BYTES + 9] {
            let mut server = whole.clone();
            server[position] ^= 1;
            fs::write(&at, server).unwrap();
            let error = find(&at).open().unwrap_err().to_string();
            assert!(error.contains("toolgate-test from") && error.contains("damaged"), "{error}");
        }
        fs::write(&at, &whole).unwrap();
        let mut packed = find(&at);
        packed.stamp.changed.1 -= 1;
        let error = packed.open().unwrap_err().to_string();
        assert!(error.contains("it has changed since the server started"), "{error}");
    }

    #[test]
    fn a_missing_executable_cannot_be_opened() {
        assert!(WorkerExecutable::Missing.open().is_err());
    }
}
