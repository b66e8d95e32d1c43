//! A regular file opened for reading.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memchr::memchr_iter;
use rustix::fs::{OFlags, fstat};
use rustix::io::{Errno, pread};
use toolgate_contract::ToolError;

use super::Root;
use super::etag::{Etag, EtagHasher};
use super::hidden;
use super::meta::{EntryFingerprint, EntryKind, EntryMeta};
use super::path::quoted_path;
use super::refusal::refusal;
use super::work::DiskWorkMonitor;

/// The number of bytes to read at a time. Between two reads, a check finds out if the operation was
/// cancelled.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// A regular file below a root, open for reading. Reads end at the length that the file had when it
/// was opened.
pub struct WorkspaceFile {
    fd: OwnedFd,
    meta: EntryMeta,
    path: String,
}

/// The length and hash of a file's content.
pub struct FileDigest {
    pub etag: Etag,
    pub newlines: u64,
}

impl Root {
    /// Opens the regular file at `path`. Never blocks.
    ///
    /// # Errors
    /// The path is missing, not a regular file, or not below the root.
    pub fn open_file(&self, path: &str) -> Result<WorkspaceFile, ToolError> {
        let path = self.relative(path)?;
        let fd = self.resolve(path, OFlags::RDONLY).map_err(|err| self.refusal(path, err))?;
        WorkspaceFile::new(fd, path)
    }

    /// Returns the etag of `file`: strong if the file has at most the root's `hashed_bytes_max`
    /// bytes, and weak otherwise.
    pub fn etag(&self, file: &WorkspaceFile, watch: &DiskWorkMonitor) -> Result<Etag, ToolError> {
        if self.has_strong_etag(&file.meta) {
            Ok(file.scan(watch)?.etag)
        } else {
            Ok(Etag::weak(&file.meta))
        }
    }

    /// Returns the etag, strong or weak, of a file with the metadata `meta` and the content
    /// `content`.
    pub fn etag_of_content(&self, content: &[u8], meta: &EntryMeta) -> Etag {
        if self.has_strong_etag(meta) { Etag::from_content(content) } else { Etag::weak(meta) }
    }

    /// Returns `true` if a file with the metadata `meta` has a strong etag.
    pub fn has_strong_etag(&self, meta: &EntryMeta) -> bool {
        meta.size() <= self.rules.hashed_bytes_max
    }
}

impl WorkspaceFile {
    /// Wraps the open descriptor `fd` of a regular file. Fails if `fd` is not a regular file.
    /// `path` is the path of the file relative to the root.
    pub(super) fn new(fd: OwnedFd, path: &str) -> Result<Self, ToolError> {
        let meta = EntryMeta::from(fstat(&fd).map_err(|err| refusal(path, err))?);
        require_regular(&meta, path)?;
        hidden::check_visible(fd.as_fd(), path)?;
        Ok(Self { fd, meta, path: path.to_owned() })
    }

    /// Returns the file's metadata from the time of opening.
    pub fn meta(&self) -> &EntryMeta {
        &self.meta
    }

    /// Returns the current fingerprint of the file. Returns `None` if its metadata cannot be read.
    pub fn current_stamp(&self) -> Option<EntryFingerprint> {
        Some(EntryMeta::from(fstat(&self.fd).ok()?).stamp())
    }

    /// Returns the file's path, relative to the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Reads `len` bytes from the offset `at`, or fewer if the file is shorter.
    pub fn read(&self, at: u64, len: u64, watch: &DiskWorkMonitor) -> Result<Vec<u8>, ToolError> {
        let len = len.min(self.meta.size().saturating_sub(at));
        let len = usize::try_from(len).map_err(|err| {
            let message = format!("{} is too large to read", quoted_path(&self.path));
            ToolError::with_cause(message, err)
        })?;
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            watch.check_cancelled()?;
            let end = len.min(filled + (BLOCK_BYTES << 2));
            match self.read_some(at + filled as u64, &mut bytes[filled..end])? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Reads the whole file, which must be small, into the start of `buffer`, which grows as
    /// needed. Returns the number of bytes.
    pub fn read_whole(&self, buffer: &mut Vec<u8>) -> Result<usize, ToolError> {
        let len = usize::try_from(self.meta.size()).unwrap_or(usize::MAX);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let mut filled = 0;
        while filled < len {
            match self.read_some(filled as u64, &mut buffer[filled..len])? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// Reads the whole file once, block by block, to compute its length and hash.
    pub fn scan(&self, watch: &DiskWorkMonitor) -> Result<FileDigest, ToolError> {
        let mut hash = EtagHasher::default();
        let mut newlines = 0;
        self.for_each_block(0, watch, |block| {
            hash.update(block);
            newlines += memchr_iter(b'\n', block).count() as u64;
            true
        })?;
        Ok(FileDigest { etag: hash.etag(), newlines })
    }

    /// Reads the file from the offset `at` on and passes each block to `take`, until `take` returns
    /// `false`.
    pub fn for_each_block(
        &self,
        mut at: u64,
        watch: &DiskWorkMonitor,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ToolError> {
        let mut block = vec![0; BLOCK_BYTES];
        while at < self.meta.size() {
            watch.check_cancelled()?;
            let left = usize::try_from(self.meta.size() - at).unwrap_or(usize::MAX);
            let end = left.min(BLOCK_BYTES);
            let read = self.read_some(at, &mut block[..end])?;
            if read == 0 || !take(&block[..read]) {
                break;
            }
            at += read as u64;
            watch.report_progress(at, Some(self.meta.size()), "bytes read");
        }
        Ok(())
    }

    fn read_some(&self, at: u64, into: &mut [u8]) -> Result<usize, ToolError> {
        loop {
            match pread(&self.fd, &mut *into, at) {
                Err(Errno::INTR) => {}
                outcome => return outcome.map_err(|err| refusal(&self.path, err)),
            }
        }
    }
}

impl AsFd for WorkspaceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<WorkspaceFile> for OwnedFd {
    fn from(file: WorkspaceFile) -> Self {
        file.fd
    }
}

/// Fails if `meta` is not the metadata of a regular file. `path` is for the message.
pub(super) fn require_regular(meta: &EntryMeta, path: &str) -> Result<(), ToolError> {
    let what = match meta.kind() {
        EntryKind::File => return Ok(()),
        EntryKind::Dir => "a directory, not a file; list it with files_list",
        EntryKind::Symlink => "a symlink, not a file",
        EntryKind::Other => "a pipe, a socket or a device, not a regular file",
    };
    Err(ToolError::invalid("/path", format!("{} is {what}", quoted_path(path))))
}
