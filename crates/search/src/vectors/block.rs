//! A block: a file of vectors that is written once and never changed.
//!
//! The file has a head, the sorted hashes, the sign codes and the rows. Head, hashes and codes are
//! kept in memory and share one checksum. Rows are read on demand, and each row has its own
//! checksum. Files are not memory-mapped, so that a truncated file causes an error instead of a
//! signal.
#![allow(clippy::disallowed_methods, reason = "the index's own folder, handed in by its owner")]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::VectorPrecision;
use super::quantised::{QuantizedVectorRow, code_bytes};
use crate::{ChunkHash, VectorSpace};

const MAGIC: [u8; 8] = *b"tgvector";
/// Version of the format of vector files. It is raised with every change to the meaning of the
/// bytes.
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 64;
/// Position of the checksum in the head of a vector file.
const CHECKSUM_RANGE: std::ops::Range<usize> = 56..60;
/// File name extension of a block, which is a file of vectors.
const EXTENSION: &str = ".vectors";

/// Name of a block (a file of vectors): the numbers of the appends that it contains, and a checksum
/// of its content. Files with the same name are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VectorBlockName {
    pub(super) first: u64,
    pub(super) last: u64,
    checksum: u32,
}

impl VectorBlockName {
    /// Parses the name of a file of vectors (block). Returns `None` for other files.
    pub(super) fn parse(file: &str) -> Option<Self> {
        let mut parts = file.strip_suffix(EXTENSION)?.split('-');
        let first = parts.next()?;
        let last = parts.next()?;
        let name = Self {
            first: u64::from_str_radix(first, 16).ok()?,
            last: u64::from_str_radix(last, 16).ok()?,
            checksum: u32::from_str_radix(parts.next()?, 16).ok()?,
        };
        (name.file_name() == file).then_some(name)
    }

    pub(super) fn file_name(self) -> String {
        let Self { first, last, checksum } = self;
        format!("{first:016x}-{last:016x}-{checksum:08x}{EXTENSION}")
    }

    /// Returns true if this block contains all vectors of the block `other`.
    pub(super) fn supersedes(self, other: Self) -> bool {
        self != other && self.first <= other.first && other.last <= self.last
    }
}

/// An open block: a file of vectors.
#[derive(Debug)]
pub(super) struct VectorBlock {
    pub(super) name: VectorBlockName,
    hashes: Vec<u64>,
    codes: Vec<u8>,
    precision: VectorPrecision,
    row_bytes: usize,
    rows: VectorRowStorage,
    /// The bytes of all vectors, once they have been loaded.
    loaded_rows: OnceLock<Option<Vec<u8>>>,
    damaged: AtomicBool,
}

/// Storage of a block's vectors: memory or an open file.
#[derive(Debug)]
enum VectorRowStorage {
    Memory(Vec<u8>),
    File { file: File, at: u64 },
}

/// Reason why a block of vectors cannot be used.
pub(super) enum VectorBlockError {
    /// The file of the block does not exist any more.
    Missing,
    /// The file of the block is damaged, or belongs to another version or vector space.
    Invalid(String),
    Disk(io::Error),
}

impl From<io::Error> for VectorBlockError {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::UnexpectedEof => Self::Invalid("it ends too early".to_owned()),
            _ => Self::Disk(err),
        }
    }
}

impl VectorBlock {
    /// Opens the block of vectors in the file `name` of `folder`. Fails if the file is missing or
    /// invalid.
    pub(super) fn open(
        folder: &Path,
        name: VectorBlockName,
        space: &VectorSpace,
        precision: VectorPrecision,
    ) -> Result<Self, VectorBlockError> {
        let bad = |why: &str| VectorBlockError::Invalid(why.to_owned());
        let file = File::open(folder.join(name.file_name()))?;
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0)?;
        if head[..8] != MAGIC {
            return Err(bad("it is not a vector file"));
        }
        let version = u32::from_le_bytes(head_bytes(&head, 8));
        if version != VERSION {
            return Err(VectorBlockError::Invalid(format!(
                "it has version {version}, not {VERSION}"
            )));
        }
        let count = u64::from_le_bytes(head_bytes(&head, 16));
        let expected = VectorBlockHeader { name, count, space, precision }.to_bytes();
        if head[..CHECKSUM_RANGE.start] != expected[..CHECKSUM_RANGE.start] {
            return Err(bad("it belongs to another model, or does not match its name"));
        }
        let row_bytes = QuantizedVectorRow::byte_len(space.dimensions, precision);
        let held = 8 + code_bytes(space.dimensions);
        let length = file.metadata()?.len();
        let wanted = count.checked_mul((held + row_bytes) as u64).map(|it| it + HEAD_BYTES as u64);
        if wanted != Some(length) || u32::try_from(count).is_err() {
            return Err(bad("its length is wrong"));
        }
        // The file length was checked, so the content fits into memory.
        let count = usize::try_from(count).map_err(|_| bad("it is too long"))?;
        let mut codes = vec![0; count * held];
        file.read_exact_at(&mut codes, HEAD_BYTES as u64)?;
        let checksum = checksum(&head, &codes);
        if checksum != u32::from_le_bytes(head_bytes(&head, CHECKSUM_RANGE.start))
            || checksum != name.checksum
        {
            return Err(bad("its checksum is wrong"));
        }
        let hashes = codes[..count * 8].as_chunks::<8>().0.iter().map(|it| u64::from_le_bytes(*it));
        let hashes = hashes.collect();
        codes.drain(..count * 8);
        let at = (HEAD_BYTES + count * held) as u64;
        let rows = VectorRowStorage::File { file, at };
        Ok(Self::new(name, hashes, codes, precision, row_bytes, rows))
    }

    fn new(
        name: VectorBlockName,
        hashes: Vec<u64>,
        codes: Vec<u8>,
        precision: VectorPrecision,
        row_bytes: usize,
        rows: VectorRowStorage,
    ) -> Self {
        let loaded_rows = OnceLock::new();
        let damaged = AtomicBool::new(false);
        Self { name, hashes, codes, precision, row_bytes, rows, loaded_rows, damaged }
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns the size of all stored vectors of the block, in bytes.
    pub(super) fn rows_bytes(&self) -> usize {
        self.len() * self.row_bytes
    }

    pub(super) fn hash(&self, index: usize) -> ChunkHash {
        ChunkHash(self.hashes[index])
    }

    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Returns the sign bits (codes) of the vectors with the numbers in `range`.
    pub(super) fn codes(&self, range: std::ops::Range<usize>) -> &[u8] {
        let bytes = self.codes.len() / self.len().max(1);
        &self.codes[range.start * bytes..range.end * bytes]
    }

    /// Returns true if a stored vector with a wrong checksum was found.
    pub(super) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Calls `find` with the stored vector `index`, which is read into the buffer `room`. Returns
    /// `None` if the vector is unreadable.
    pub(super) fn with_row<T>(
        &self,
        index: usize,
        room: &mut Vec<u8>,
        find: impl FnOnce(QuantizedVectorRow<'_>) -> T,
    ) -> Option<T> {
        let code = self.codes(index..index + 1);
        if let Some(rows) = self.rows_in_memory() {
            let row = rows.get(index * self.row_bytes..(index + 1) * self.row_bytes)?;
            return QuantizedVectorRow::parse(row, code, self.precision).map(find);
        }
        if self.read_row(index, room).is_none() || !QuantizedVectorRow::is_whole(room) {
            self.damaged.store(true, Ordering::Relaxed);
            return None;
        }
        QuantizedVectorRow::parse(room, code, self.precision).map(find)
    }

    /// Loads all vectors of the block into memory, for searches that compare every vector.
    pub(super) fn load_rows(&self) {
        self.loaded_rows.get_or_init(|| {
            let VectorRowStorage::File { file, at } = &self.rows else { return None };
            let mut rows = vec![0; self.len() * self.row_bytes];
            let read = file.read_exact_at(&mut rows, *at).is_ok();
            let whole = read && rows.chunks_exact(self.row_bytes).all(QuantizedVectorRow::is_whole);
            if !whole {
                self.damaged.store(true, Ordering::Relaxed);
            }
            whole.then_some(rows)
        });
    }

    fn rows_in_memory(&self) -> Option<&[u8]> {
        match &self.rows {
            VectorRowStorage::Memory(rows) => Some(rows),
            VectorRowStorage::File { .. } => self.loaded_rows.get()?.as_deref(),
        }
    }

    /// Reads the bytes of the stored vector `index` into the buffer `room`. `None` if they are
    /// unreadable.
    fn read_row(&self, index: usize, room: &mut Vec<u8>) -> Option<()> {
        room.resize(self.row_bytes, 0);
        match &self.rows {
            VectorRowStorage::Memory(rows) => {
                room.copy_from_slice(rows.get(index * self.row_bytes..)?.get(..self.row_bytes)?);
                Some(())
            }
            VectorRowStorage::File { file, at } => {
                file.read_exact_at(room, at + (index * self.row_bytes) as u64).ok()
            }
        }
    }
}

/// Content of a block of vectors before it is written: vectors of older blocks, and new ones.
pub(super) struct VectorBlockDraft<'d> {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) space: &'d VectorSpace,
    pub(super) precision: VectorPrecision,
    /// Stored vectors by hash, sorted and distinct.
    pub(super) rows: Vec<(u64, VectorRowSource<'d>)>,
}

/// Source of a vector in a new block: a block that exists, or a new vector.
#[derive(Clone, Copy)]
pub(super) enum VectorRowSource<'d> {
    Existing { block: &'d VectorBlock, index: usize },
    New { row: &'d [u8], code: &'d [u8] },
}

impl VectorBlockDraft<'_> {
    /// Writes the block of vectors to a file in `folder`, or to memory without `folder`. Leaves out
    /// unreadable vectors. Fails if the file cannot be written.
    pub(super) fn write(mut self, folder: Option<&Path>) -> io::Result<VectorBlock> {
        let mut room = Vec::new();
        self.rows.retain(|(_, part)| match part {
            VectorRowSource::Existing { block, index } => {
                block.with_row(*index, &mut room, |_| ()).is_some()
            }
            VectorRowSource::New { .. } => true,
        });
        let hashes: Vec<u64> = self.rows.iter().map(|(hash, _)| *hash).collect();
        let codes = self.codes();
        let mut held: Vec<u8> = hashes.iter().flat_map(|it| it.to_le_bytes()).collect();
        held.extend(&codes);
        let mut name = VectorBlockName { first: self.first, last: self.last, checksum: 0 };
        let Self { space, precision, .. } = self;
        let mut head =
            VectorBlockHeader { name, count: hashes.len() as u64, space, precision }.to_bytes();
        name.checksum = checksum(&head, &held);
        head[CHECKSUM_RANGE].copy_from_slice(&name.checksum.to_le_bytes());

        let row_bytes = QuantizedVectorRow::byte_len(space.dimensions, precision);
        let Some(folder) = folder else {
            let mut rows = Vec::with_capacity(hashes.len() * row_bytes);
            self.write_rows(|row| {
                rows.extend(row);
                Ok(())
            })?;
            let rows = VectorRowStorage::Memory(rows);
            return Ok(VectorBlock::new(name, hashes, codes, precision, row_bytes, rows));
        };
        let unnamed = folder.join("new.tmp");
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(true);
        let mut to = BufWriter::with_capacity(1 << 16, how.open(&unnamed)?);
        to.write_all(&head)?;
        to.write_all(&held)?;
        drop(held);
        self.write_rows(|row| to.write_all(row))?;
        let file = to.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        std::fs::rename(&unnamed, folder.join(name.file_name()))?;
        File::open(folder)?.sync_all()?;
        let at = (HEAD_BYTES + hashes.len() * 8 + codes.len()) as u64;
        let rows = VectorRowStorage::File { file, at };
        Ok(VectorBlock::new(name, hashes, codes, precision, row_bytes, rows))
    }

    fn codes(&self) -> Vec<u8> {
        let mut codes = Vec::with_capacity(self.rows.len() * code_bytes(self.space.dimensions));
        for (_, part) in &self.rows {
            match part {
                VectorRowSource::Existing { block, index } => {
                    codes.extend(block.codes(*index..index + 1));
                }
                VectorRowSource::New { code, .. } => codes.extend(*code),
            }
        }
        codes
    }

    fn write_rows(&self, mut put: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut room = Vec::new();
        for (_, part) in &self.rows {
            match part {
                VectorRowSource::Existing { block, index } => {
                    let read = block.read_row(*index, &mut room);
                    read.ok_or_else(|| io::Error::other("a vector file has become shorter"))?;
                    put(&room)?;
                }
                VectorRowSource::New { row, .. } => put(row)?,
            }
        }
        Ok(())
    }
}

/// Header of a file of vectors.
struct VectorBlockHeader<'s> {
    name: VectorBlockName,
    count: u64,
    space: &'s VectorSpace,
    precision: VectorPrecision,
}

impl VectorBlockHeader<'_> {
    /// Returns the head of the vector file with a checksum of 0.
    fn to_bytes(&self) -> [u8; HEAD_BYTES] {
        let mut model = blake3::Hasher::new();
        model.update(self.space.model.as_bytes());
        model.update(&[self.precision as u8]);
        let dimensions = u32::try_from(self.space.dimensions).unwrap_or(u32::MAX);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&dimensions.to_le_bytes());
        head[16..24].copy_from_slice(&self.count.to_le_bytes());
        head[24..32].copy_from_slice(&self.name.first.to_le_bytes());
        head[32..40].copy_from_slice(&self.name.last.to_le_bytes());
        head[40..56].copy_from_slice(&model.finalize().as_bytes()[..16]);
        head
    }
}

/// Returns the checksum of a vector file's head, without its checksum field, and of the bytes that
/// are kept in memory.
fn checksum(head: &[u8; HEAD_BYTES], held: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..CHECKSUM_RANGE.start]);
    hasher.update(&head[CHECKSUM_RANGE.end..]);
    hasher.update(held);
    hasher.finalize()
}

/// Returns the `N` bytes at the position `at` in the head of a vector file.
fn head_bytes<const N: usize>(head: &[u8; HEAD_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|offset| head[at + offset])
}
