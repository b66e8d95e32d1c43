//! The files of an index's words, for tantivy: read where and when needed, never mapped.
//!
//! What is mapped ends the process when the file under it is cut short; what is read fails. Each
//! file is checked whole against its checksum when it is first opened. Nothing is synced: what
//! survives a killed process is in the kernel's hands already, and what a power cut takes is found
//! by its checksum and made again.
#![allow(
    clippy::disallowed_methods,
    reason = "the index's own folder is touched here, in header.rs and in vectors/ alone"
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

/// A file no larger is read at once and closed again: most of many small ones.
const SMALL_BYTES: usize = 64 << 10;
/// How much of a file is read at a time to see whether it is as it was written.
const PIECE_BYTES: usize = 128 << 10;
/// How long a lock that others hold for moments is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked whether it is free.
const LOCK_EVERY: Duration = Duration::from_millis(2);

/// A folder of tantivy's files.
#[derive(Clone)]
pub(super) struct Folder {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// The files that are known to be as they were written.
    sound: Mutex<HashSet<PathBuf>>,
}

/// Which file `meta.json` is, and of when: of two within one tick of the clock, inode and times can
/// be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Folder {
    /// The folder at `path`, made where it is missing.
    pub(super) fn make(path: &Path) -> io::Result<Self> {
        make(path)?;
        let inner = Inner { path: path.to_owned(), sound: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// By what it is seen that another has committed.
    pub(super) fn stamp(&self) -> io::Result<Stamp> {
        let meta = fs::metadata(self.at(Path::new("meta.json")))?;
        Ok(Stamp {
            inode: meta.ino(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// The names of its files.
    pub(super) fn names(&self) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(&self.inner.path)?.map(|entry| Ok(entry?.file_name().into())).collect()
    }

    fn at(&self, name: &Path) -> PathBuf {
        self.inner.path.join(name)
    }

    fn sound(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.inner.sound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, name: &Path) -> io::Result<Arc<dyn FileHandle>> {
        let file = File::open(self.at(name))?;
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let part = Part { file, bytes };
        if bytes <= SMALL_BYTES {
            let all = part.read_bytes(0..bytes)?;
            if !self.sound().contains(name) {
                part.check()?;
                self.sound().insert(name.to_owned());
            }
            return Ok(Arc::new(all));
        }
        if !self.sound().contains(name) {
            part.check()?;
            self.sound().insert(name.to_owned());
        }
        Ok(Arc::new(part))
    }
}

/// Makes a folder that only its owner looks into, and what it stands in.
pub(super) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// How much the files in `folder` and beneath take.
pub(super) fn bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

/// Writes a file whole or not at all: a kill in between leaves the one before.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

/// Takes the lock on the file at `path`: it ends with `File`, and with the process.
pub(super) fn lock(path: &Path, wait: bool) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if wait && begun.elapsed() < LOCK_WAIT => {
                // A lock on a file cannot be waited for with a bound.
                std::thread::sleep(LOCK_EVERY);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(err)) => return Err(err),
        }
    }
}

/// A file that is read where it is asked for.
struct Part {
    file: File,
    bytes: usize,
}

impl Part {
    /// Fails if the file is not as it was written, by the checksum at its end.
    fn check(&self) -> io::Result<()> {
        let again = Self { file: self.file.try_clone()?, bytes: self.bytes };
        let (footer, body) = Footer::extract_footer(FileSlice::new(Arc::new(again)))?;
        let mut hasher = crc32fast::Hasher::new();
        // One piece of memory for all of a large file.
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
        Err(io::Error::new(ErrorKind::InvalidData, "its checksum is another"))
    }
}

impl FileHandle for Part {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        if range.start > range.end || range.end > self.bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut read = vec![0; range.len()];
        self.file.read_exact_at(&mut read, range.start as u64)?;
        Ok(OwnedBytes::new(read))
    }
}

impl HasLen for Part {
    fn len(&self) -> usize {
        self.bytes
    }
}

impl Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Folder").field(&self.inner.path).finish()
    }
}

/// A file that is written.
struct Writing(File);

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TerminatingWrite for Writing {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.flush()
    }
}

impl Directory for Folder {
    fn get_file_handle(&self, name: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.open(name).map_err(|err| unread(err, name))
    }

    fn delete(&self, name: &Path) -> Result<(), DeleteError> {
        self.sound().remove(name);
        fs::remove_file(self.at(name)).map_err(|err| match err.kind() {
            ErrorKind::NotFound => DeleteError::FileDoesNotExist(name.to_owned()),
            _ => DeleteError::IoError { io_error: Arc::new(err), filepath: name.to_owned() },
        })
    }

    fn exists(&self, name: &Path) -> Result<bool, OpenReadError> {
        self.at(name).try_exists().map_err(|err| unread(err, name))
    }

    fn open_write(&self, name: &Path) -> Result<WritePtr, OpenWriteError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(self.at(name));
        let file = file.map_err(|err| match err.kind() {
            ErrorKind::AlreadyExists => OpenWriteError::FileAlreadyExists(name.to_owned()),
            _ => OpenWriteError::wrap_io_error(err, name.to_owned()),
        })?;
        // What this process wrote it need not check.
        self.sound().insert(name.to_owned());
        Ok(BufWriter::new(Box::new(Writing(file))))
    }

    fn atomic_read(&self, name: &Path) -> Result<Vec<u8>, OpenReadError> {
        let mut bytes = Vec::new();
        let read = File::open(self.at(name)).and_then(|mut file| file.read_to_end(&mut bytes));
        read.map_err(|err| unread(err, name))?;
        Ok(bytes)
    }

    fn atomic_write(&self, name: &Path, bytes: &[u8]) -> io::Result<()> {
        replace(&self.at(name), bytes)
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn acquire_lock(&self, wanted: &Lock) -> Result<DirectoryLock, LockError> {
        let lock = lock(&self.at(&wanted.filepath), wanted.is_blocking);
        let file = lock.map_err(LockError::wrap_io_error)?.ok_or(LockError::LockBusy)?;
        Ok(DirectoryLock::from(Box::new(file)))
    }

    /// Never called: readers look at [`Folder::stamp`] themselves.
    fn watch(&self, _: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(WatchHandle::empty())
    }
}

fn unread(err: io::Error, name: &Path) -> OpenReadError {
    match err.kind() {
        ErrorKind::NotFound => OpenReadError::FileDoesNotExist(name.to_owned()),
        _ => OpenReadError::wrap_io_error(err, name.to_owned()),
    }
}
