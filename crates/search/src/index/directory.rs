//! Directory of tantivy's index files, which reads files on demand and never maps them into memory.
//!
//! If a mapped file is truncated, the process is killed; if a read fails, only the call fails. Each
//! file is verified against its checksum when it is first opened. Writes are not synced, because
//! data survives a killed process in the kernel's cache. If a power cut loses data, the checksum
//! shows it, and the index is built again.
#![allow(
    clippy::disallowed_methods,
    reason = "only this module, header.rs and vectors/ access the index folder"
)]

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tantivy::HasLen;
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::footer::Footer;
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, FileSlice, Lock, OwnedBytes,
    TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};

/// Largest size, in bytes, of an index file that is read completely into memory and then closed.
const SMALL_FILE_BYTES_MAX: usize = 64 << 10;
/// Name of the file in which tantivy stores the list of the files that it may delete.
const FILE_LIST: &str = ".managed.json";
/// Minimum length of the names of a segment's files without their extension, in bytes.
const SEGMENT_NAME_BYTES_MIN: usize = 32;
/// Number of bytes that are read at a time to verify an index file.
const PIECE_BYTES: usize = 128 << 10;
/// Longest wait for an index lock that other processes keep briefly.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval between two attempts to take an index lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// A folder with the files of tantivy, the library of the word index.
#[derive(Clone)]
pub(super) struct IndexDirectory {
    inner: Arc<IndexDirectoryInner>,
}

struct IndexDirectoryInner {
    path: PathBuf,
    /// Index files whose checksum was verified.
    verified: Mutex<HashSet<PathBuf>>,
}

/// Identity of the index's `meta.json`, which each commit replaces. It includes the size, because
/// inode and times may be equal within one clock tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexCommitStamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl IndexDirectory {
    /// Opens the index folder at `path`, and creates a missing folder. Fails if the folder cannot
    /// be created.
    pub(super) fn open_or_create(path: &Path) -> io::Result<Self> {
        create_folder(path)?;
        let inner = IndexDirectoryInner { path: path.to_owned(), verified: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the identity of the last commit to the index, to detect commits of other processes.
    /// Fails if the index file is unreadable.
    pub(super) fn commit_stamp(&self) -> io::Result<IndexCommitStamp> {
        let meta = fs::metadata(self.file_path(Path::new("meta.json")))?;
        Ok(IndexCommitStamp {
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Lists the names of the index segments' files in the folder. Fails if the folder is
    /// unreadable.
    pub(super) fn segment_file_names(&self) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.inner.path)? {
            let name = PathBuf::from(entry?.file_name());
            if name.file_stem().is_some_and(|it| it.len() >= SEGMENT_NAME_BYTES_MIN) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn file_path(&self, name: &Path) -> PathBuf {
        self.inner.path.join(name)
    }

    fn verified_files(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.inner.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_file(&self, name: &Path) -> io::Result<Arc<dyn FileHandle>> {
        let file = File::open(self.file_path(name))?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let part = IndexFile { file, bytes };
        if bytes <= SMALL_FILE_BYTES_MAX {
            let all = part.read_bytes(0..bytes)?;
            if !self.verified_files().contains(name) {
                part.verify()?;
                self.verified_files().insert(name.to_owned());
            }
            return Ok(Arc::new(all));
        }
        if !self.verified_files().contains(name) {
            part.verify()?;
            self.verified_files().insert(name.to_owned());
        }
        Ok(Arc::new(part))
    }
}

/// Creates the folder `path`, which only its owner can read, and missing parent folders.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns the total size of all files in `folder` and below it, in bytes.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Writes `bytes` to the file at `path` atomically: if the process is killed meanwhile, the
/// previous file stays. Fails if the file cannot be written.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

/// Locks the file at `path` until the returned `File` is dropped or the process ends. If `wait` is
/// set, waits up to 10 seconds for another process. Returns `None` if another process still holds
/// the lock. Fails if the file cannot be opened.
pub(super) fn lock_file(path: &Path, wait: bool) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if wait && begun.elapsed() < LOCK_WAIT_MAX => {
                // File locks offer no wait with a timeout.
                std::thread::sleep(LOCK_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(err)) => return Err(err),
        }
    }
}

/// A file of the word index that is read on demand.
struct IndexFile {
    file: File,
    bytes: usize,
}

impl IndexFile {
    /// Verifies the index file by the checksum at its end. Fails if the checksum is wrong.
    fn verify(&self) -> io::Result<()> {
        let again = Self { file: self.file.try_clone()?, bytes: self.bytes };
        let (footer, body) = Footer::extract_footer(FileSlice::new(Arc::new(again)))?;
        let mut hasher = crc32fast::Hasher::new();
        // One buffer for the whole file.
        let mut buffer = vec![0; body.len().min(PIECE_BYTES)];
        let mut at = 0;
        while at < body.len() {
            let piece = &mut buffer[..(body.len() - at).min(PIECE_BYTES)];
            self.file.read_exact_at(piece, at as u64)?;
            hasher.update(piece);
            at += piece.len();
        }
        if hasher.finalize() == footer.crc {
            return Ok(());
        }
        Err(io::Error::new(ErrorKind::InvalidData, "its checksum is wrong"))
    }
}

impl FileHandle for IndexFile {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        if range.start > range.end || range.end > self.bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut read = vec![0; range.len()];
        self.file.read_exact_at(&mut read, range.start as u64)?;
        Ok(OwnedBytes::new(read))
    }
}

impl HasLen for IndexFile {
    fn len(&self) -> usize {
        self.bytes
    }
}

impl Debug for IndexFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Debug for IndexDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Folder").field(&self.inner.path).finish()
    }
}

/// A file of the word index that is being written.
struct IndexFileWriter(File);

impl Write for IndexFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TerminatingWrite for IndexFileWriter {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.flush()
    }
}

impl Directory for IndexDirectory {
    fn get_file_handle(&self, name: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.open_file(name).map_err(|err| read_error(err, name))
    }

    fn delete(&self, name: &Path) -> Result<(), DeleteError> {
        self.verified_files().remove(name);
        fs::remove_file(self.file_path(name)).map_err(|err| match err.kind() {
            ErrorKind::NotFound => DeleteError::FileDoesNotExist(name.to_owned()),
            _ => DeleteError::IoError { io_error: Arc::new(err), filepath: name.to_owned() },
        })
    }

    fn exists(&self, name: &Path) -> Result<bool, OpenReadError> {
        self.file_path(name).try_exists().map_err(|err| read_error(err, name))
    }

    fn open_write(&self, name: &Path) -> Result<WritePtr, OpenWriteError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(self.file_path(name));
        let file = file.map_err(|err| match err.kind() {
            ErrorKind::AlreadyExists => OpenWriteError::FileAlreadyExists(name.to_owned()),
            _ => OpenWriteError::wrap_io_error(err, name.to_owned()),
        })?;
        // This process wrote the file, so it need not be verified.
        self.verified_files().insert(name.to_owned());
        Ok(BufWriter::new(Box::new(IndexFileWriter(file))))
    }

    /// Reads a file. The list of the files that tantivy may delete has all files of segments, and
    /// is not stored: tantivy would replace it before each new file.
    fn atomic_read(&self, name: &Path) -> Result<Vec<u8>, OpenReadError> {
        if name == Path::new(FILE_LIST) {
            let names = self.segment_file_names();
            let list = names.and_then(|names| Ok(serde_json::to_vec(&names)?));
            return list.map_err(|err| read_error(err, name));
        }
        let mut bytes = Vec::new();
        let read =
            File::open(self.file_path(name)).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|err| read_error(err, name))?;
        Ok(bytes)
    }

    fn atomic_write(&self, name: &Path, bytes: &[u8]) -> io::Result<()> {
        if name == Path::new(FILE_LIST) {
            return Ok(());
        }
        write_atomically(&self.file_path(name), bytes)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn acquire_lock(&self, wanted: &Lock) -> Result<DirectoryLock, LockError> {
        let lock = lock_file(&self.file_path(&wanted.filepath), wanted.is_blocking);
        let file = lock.map_err(LockError::wrap_io_error)?.ok_or(LockError::LockBusy)?;
        Ok(DirectoryLock::from(Box::new(file)))
    }

    /// Returns a handle without effect, because readers of this index check
    /// [`IndexDirectory::commit_stamp`] instead.
    fn watch(&self, _: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(WatchHandle::empty())
    }
}

fn read_error(err: io::Error, name: &Path) -> OpenReadError {
    match err.kind() {
        ErrorKind::NotFound => OpenReadError::FileDoesNotExist(name.to_owned()),
        _ => OpenReadError::wrap_io_error(err, name.to_owned()),
    }
}
