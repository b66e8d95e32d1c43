//! Captures a program's output: its first and last bytes in memory, further bytes on disk.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use toolgate_net::spawn_blocking;

/// The number of bytes of output to read at a time: the capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;

/// The longest wait until the last bytes of captured output are written to disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The captured output of a program on one stream.
#[derive(Default)]
pub struct CapturedOutput {
    /// The number of bytes that the program printed.
    pub total_bytes: u64,
    /// The first bytes of the output, or all of it if it is short enough.
    pub head: Vec<u8>,
    /// The last bytes of the output. Empty if `head` contains all of the output.
    pub tail: Vec<u8>,
    /// `false` if reading stopped early, because a process that is not in the run kept the stream
    /// open.
    pub is_complete: bool,
    spool: Option<OutputSpoolFile>,
}

/// A section of a program's captured output, as one read returns it.
#[derive(Debug, PartialEq, Eq)]
pub struct CapturedOutputPiece {
    /// The offset of the section's first byte in the output, in bytes.
    pub offset: u64,
    /// The bytes of the section.
    pub bytes: Vec<u8>,
    /// The offset of the next section. `None` if this section is the last.
    pub next_offset: Option<u64>,
}

/// An unnamed temporary file with the first bytes of an output stream that was too long for memory.
struct OutputSpoolFile {
    file: Arc<File>,
    bytes: u64,
}

impl CapturedOutput {
    /// Returns the range of bytes that neither `head` nor `tail` contains, if any.
    pub fn cut_range(&self) -> Option<Range<u64>> {
        let from = self.head.len() as u64;
        let to = self.total_bytes - self.tail.len() as u64;
        (from < to).then_some(from..to)
    }

    /// Returns the range of bytes that is neither in memory nor on disk, if any.
    pub fn lost_range(&self) -> Option<Range<u64>> {
        let from = self.spooled_bytes().max(self.head.len() as u64);
        let to = self.total_bytes - self.tail.len() as u64;
        (from < to).then_some(from..to)
    }

    /// Returns the number of bytes of the output that are on disk.
    pub fn spooled_bytes(&self) -> u64 {
        self.spool.as_ref().map_or(0, |spool| spool.bytes)
    }

    /// Returns at most `bytes_max` bytes of the output from `offset` on. If the byte at `offset`
    /// was discarded, starts at the next byte that is in memory or on disk.
    pub async fn read_piece(
        &self,
        offset: u64,
        bytes_max: usize,
    ) -> io::Result<CapturedOutputPiece> {
        let lost = self.lost_range();
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
        Ok(CapturedOutputPiece {
            offset,
            bytes,
            next_offset: (next < self.total_bytes).then_some(next),
        })
    }

    /// Reads the bytes of the output in `range`. All of them must be in memory or on disk.
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
        // The file is shorter than the stream if output came faster than the disk took it.
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

/// Returns the bytes of `range` if `held` contains all of them. `held` are bytes of the output from
/// the offset `from` on.
fn slice(held: &[u8], from: u64, range: &Range<u64>) -> Option<Vec<u8>> {
    let start = usize::try_from(range.start.checked_sub(from)?).ok()?;
    let end = usize::try_from(range.end.checked_sub(from)?).ok()?;
    held.get(start..end).map(<[u8]>::to_vec)
}

fn len(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)
}

/// A capture of an output stream while the stream is being read.
pub(super) struct RunningOutputCapture {
    memory_bytes_max: usize,
    spool_bytes_max: u64,
    total_bytes: u64,
    is_complete: bool,
    head: Vec<u8>,
    /// The last bytes of the output, once the stream exceeds the memory limit. While the stream is
    /// read, this holds up to twice as many bytes as [`CapturedOutput`] keeps.
    tail: Option<Vec<u8>>,
    spool: Option<tokio::fs::File>,
    spooled_bytes: u64,
}

impl RunningOutputCapture {
    /// Creates an empty capture of an output stream, with limits for the bytes in memory and on
    /// disk.
    pub(super) fn new(memory_bytes_max: usize, spool_bytes_max: u64) -> Self {
        Self {
            memory_bytes_max,
            spool_bytes_max,
            total_bytes: 0,
            is_complete: false,
            head: Vec::new(),
            tail: None,
            spool: None,
            spooled_bytes: 0,
        }
    }

    /// Reads `pipe` to its end. Captures every chunk and passes it to `watch`.
    pub(super) async fn read(&mut self, mut pipe: impl AsyncRead + Unpin, watch: impl Fn(&[u8])) {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        loop {
            match pipe.read_buf(&mut chunk).await {
                Ok(0) => self.is_complete = true,
                Ok(_) => {
                    watch(&chunk);
                    self.push(&chunk).await;
                    chunk.clear();
                    continue;
                }
                Err(_) => {}
            }
            break;
        }
    }

    async fn push(&mut self, mut chunk: &[u8]) {
        self.total_bytes += chunk.len() as u64;
        if self.tail.is_none() {
            let room = self.memory_bytes_max - self.head.len();
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

    /// Writes the output that is in memory to disk, and splits the memory into the first bytes
    /// (head) and the last bytes (tail).
    async fn spill(&mut self) {
        if let Ok(Ok(file)) = spawn_blocking(tempfile::tempfile).await {
            self.spool = Some(tokio::fs::File::from_std(file));
        }
        let held = std::mem::take(&mut self.head);
        self.store(&held).await;
        let (head, tail) = held.split_at(self.memory_bytes_max / 2);
        self.head = head.to_vec();
        self.tail = Some(tail.to_vec());
    }

    /// Writes to disk as many bytes of `chunk` as the limit allows. Writes nothing after a disk
    /// error.
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
        self.memory_bytes_max - self.memory_bytes_max / 2
    }

    /// Ends the capture and returns the captured output.
    pub(super) async fn finish(mut self) -> CapturedOutput {
        let spool = match self.spool.take() {
            Some(file) => {
                timeout(FLUSH_TIMEOUT, flush_spool(file, self.spooled_bytes)).await.ok().flatten()
            }
            None => None,
        };
        let tail_bytes_max = self.tail_bytes_max();
        let mut tail = self.tail.unwrap_or_default();
        let overlong = tail.len().saturating_sub(tail_bytes_max);
        tail.drain(..overlong);
        let Self { total_bytes, is_complete: ended, head, .. } = self;
        CapturedOutput { total_bytes, head, tail, is_complete: ended, spool }
    }
}

/// Waits for pending writes. Returns the file with the number of its bytes, which is less than
/// `spooled_bytes` after a disk error.
async fn flush_spool(mut file: tokio::fs::File, spooled_bytes: u64) -> Option<OutputSpoolFile> {
    let _ = file.flush().await;
    let bytes = file.metadata().await.ok()?.len().min(spooled_bytes);
    Some(OutputSpoolFile { file: Arc::new(file.into_std().await), bytes })
}
