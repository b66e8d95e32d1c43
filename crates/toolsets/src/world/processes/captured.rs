//! What a program prints: its first and last bytes in memory, more of it on disk, all of it counted.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How much is read at a time: what a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;

/// How long the disk may take over the last bytes.
const FLUSH: Duration = Duration::from_secs(2);

/// What a program printed to one stream.
#[derive(Default)]
pub struct Captured {
    /// How much it printed.
    pub total_bytes: u64,
    /// The first bytes; all of them unless it is cut.
    pub head: Vec<u8>,
    /// The last bytes where it is cut, else nothing.
    pub tail: Vec<u8>,
    /// Whether it was read to its end: not where a stranger still holds it open.
    pub ended: bool,
    spool: Option<Spool>,
}

/// A part of what a program printed.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Where the next begins, unless this is the last.
    pub next: Option<u64>,
}

/// The first bytes of a stream, in a file without a name.
struct Spool {
    file: Arc<File>,
    bytes: u64,
}

impl Captured {
    /// The bytes that `head` and `tail` leave out, if any.
    pub fn cut(&self) -> Option<Range<u64>> {
        let from = self.head.len() as u64;
        let to = self.total_bytes - self.tail.len() as u64;
        (from < to).then_some(from..to)
    }

    /// The bytes that were not kept at all, if any.
    pub fn lost(&self) -> Option<Range<u64>> {
        let from = self.spooled_bytes().max(self.head.len() as u64);
        let to = self.total_bytes - self.tail.len() as u64;
        (from < to).then_some(from..to)
    }

    /// How much of it is on disk.
    pub fn spooled_bytes(&self) -> u64 {
        self.spool.as_ref().map_or(0, |spool| spool.bytes)
    }

    /// At most `bytes_max` bytes from `offset` on, or from the next one that was kept.
    pub async fn piece(&self, offset: u64, bytes_max: usize) -> io::Result<Piece> {
        let lost = self.lost();
        let offset = match &lost {
            Some(lost) if lost.contains(&offset) => lost.end,
            Some(_) | None => offset.min(self.total_bytes),
        };
        let end = match &lost {
            Some(lost) if offset < lost.start => lost.start,
            Some(_) | None => self.total_bytes,
        };
        let end = end.min(offset.saturating_add(bytes_max as u64));
        let bytes = self.read(offset..end).await?;
        let next = match &lost {
            Some(lost) if end == lost.start => lost.end,
            Some(_) | None => end,
        };
        Ok(Piece { offset, bytes, next: (next < self.total_bytes).then_some(next) })
    }

    /// The bytes of `range`, which was kept and touches nothing that was not.
    async fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        if let Some(bytes) = slice(&self.head, 0, &range) {
            return Ok(bytes);
        }
        if let Some(bytes) = slice(&self.tail, self.total_bytes - self.tail.len() as u64, &range) {
            return Ok(bytes);
        }
        let Some(spool) = &self.spool else {
            return Ok(Vec::new());
        };
        let file = spool.file.clone();
        // The file ends before the stream does when it grew faster than the disk.
        let on_disk = range.start..range.end.min(spool.bytes);
        let mut bytes = spawn_blocking(move || {
            let mut bytes = vec![0; len(&on_disk)];
            file.read_exact_at(&mut bytes, on_disk.start).map(|()| bytes)
        })
        .await??;
        if spool.bytes < range.end {
            let rest = spool.bytes.max(range.start)..range.end;
            let tail_from = self.total_bytes - self.tail.len() as u64;
            bytes.extend(slice(&self.tail, tail_from, &rest).unwrap_or_default());
        }
        Ok(bytes)
    }
}

/// The bytes of `range` in `held`, which starts at `from`, if it holds them all.
fn slice(held: &[u8], from: u64, range: &Range<u64>) -> Option<Vec<u8>> {
    let start = usize::try_from(range.start.checked_sub(from)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(from)?).ok()?;
    held.get(start..end).map(<[u8]>::to_vec)
}

fn len(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

/// A stream being read.
pub(super) struct Capture {
    held_bytes_max: usize,
    spool_bytes_max: u64,
    total_bytes: u64,
    ended: bool,
    head: Vec<u8>,
    /// Exists once the stream is cut; up to twice as long as it will be in the end.
    tail: Option<Vec<u8>>,
    spool: Option<tokio::fs::File>,
    spooled_bytes: u64,
}

impl Capture {
    /// Nothing yet.
    pub(super) fn new(held_bytes_max: usize, spool_bytes_max: u64) -> Self {
        Self {
            held_bytes_max,
            spool_bytes_max,
            total_bytes: 0,
            ended: false,
            head: Vec::new(),
            tail: None,
            spool: None,
            spooled_bytes: 0,
        }
    }

    /// Reads `pipe` to its end and shows `watch` every byte.
    pub(super) async fn read(&mut self, mut pipe: impl AsyncRead + Unpin, watch: impl Fn(&[u8])) {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        loop {
            match pipe.read_buf(&mut chunk).await {
                Ok(0) => self.ended = true,
                Ok(_) => {
                    watch(&chunk);
                    self.take(&chunk).await;
                    chunk.clear();
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
    }

    async fn take(&mut self, mut chunk: &[u8]) {
        self.total_bytes += chunk.len() as u64;
        if self.tail.is_none() {
            let room = self.held_bytes_max - self.head.len();
            let (fits, rest) = chunk.split_at(room.min(chunk.len()));
            self.head.extend_from_slice(fits);
            if rest.is_empty() {
                return;
            }
            chunk = rest;
            self.spill().await;
        }
        self.store(chunk).await;
        let tail_bytes_max = self.tail_bytes_max();
        let tail = self.tail.get_or_insert_default();
        tail.extend_from_slice(&chunk[chunk.len().saturating_sub(tail_bytes_max)..]);
        if tail.len() > 2 * tail_bytes_max {
            tail.drain(..tail.len() - tail_bytes_max);
        }
    }

    /// From here on the stream is cut: what is held goes to disk and is halved.
    async fn spill(&mut self) {
        if let Ok(Ok(file)) = spawn_blocking(tempfile::tempfile).await {
            self.spool = Some(tokio::fs::File::from_std(file));
        }
        let held = std::mem::take(&mut self.head);
        self.store(&held).await;
        let (head, tail) = held.split_at(self.held_bytes_max / 2);
        self.head = head.to_vec();
        self.tail = Some(tail.to_vec());
    }

    /// Writes to disk what there is room for. A disk that fails ends the room.
    async fn store(&mut self, chunk: &[u8]) {
        let Some(file) = &mut self.spool else { return };
        let room = self.spool_bytes_max - self.spooled_bytes;
        let part = &chunk[..chunk.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        if part.is_empty() {
            return;
        }
        match file.write_all(part).await {
            Ok(()) => self.spooled_bytes += part.len() as u64,
            Err(_) => self.spool_bytes_max = self.spooled_bytes,
        }
    }

    fn tail_bytes_max(&self) -> usize {
        self.held_bytes_max - self.held_bytes_max / 2
    }

    /// What was read.
    pub(super) async fn finish(mut self) -> Captured {
        let spool = match self.spool.take() {
            Some(file) => timeout(FLUSH, settled(file, self.spooled_bytes)).await.ok().flatten(),
            None => None,
        };
        let tail_bytes_max = self.tail_bytes_max();
        let mut tail = self.tail.unwrap_or_default();
        let overlong = tail.len().saturating_sub(tail_bytes_max);
        tail.drain(..overlong);
        let Self { total_bytes, ended, head, .. } = self;
        Captured { total_bytes, head, tail, ended, spool }
    }
}

/// The file once all writes to it are over; as long as it is, if the disk failed.
async fn settled(mut file: tokio::fs::File, spooled_bytes: u64) -> Option<Spool> {
    let _ = file.flush().await;
    let bytes = file.metadata().await.ok()?.len().min(spooled_bytes);
    Some(Spool { file: Arc::new(file.into_std().await), bytes })
}
