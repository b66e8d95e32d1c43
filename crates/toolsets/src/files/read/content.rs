//! Content of an open file, held in memory if the file is small and read from disk otherwise.

use toolgate_contract::ToolError;

use crate::text_encoding::{ByteOrder, LineEndScanner};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, Etag, WorkspaceFile};

/// The maximum size of a file that is held in memory, in bytes, so that its etag matches exactly
/// the returned bytes. A file that is read completely may be larger.
const IN_MEMORY_BYTES_MAX: u64 = 1 << 20;
/// The number of bytes that are read at a time to search a large file backwards for lines.
const BLOCK_BYTES: u64 = 256 << 10;
/// The number of bytes at the start of a large file that are read to detect its encoding.
const HEAD_BYTES: u64 = 64 << 10;

/// The content of an open file with its etag and, if its lines were counted, the number of lines.
pub(super) struct OpenFileContent<'w> {
    pub(super) file: WorkspaceFile,
    pub(super) etag: Etag,
    pub(super) lines: Option<u64>,
    /// The byte order of a UTF-16 file. `None` for a file in any other encoding.
    pub(super) utf16: Option<ByteOrder>,
    /// The size of the file in bytes.
    size: u64,
    /// The complete content of the file, if it is in memory and [`OpenFileContent::take`] did not
    /// move it out.
    in_memory: Option<Vec<u8>>,
    watch: &'w DiskWorkMonitor,
}

impl<'w> OpenFileContent<'w> {
    /// Opens the content of `file`. The caller will read at most `wanted_max` bytes.
    ///
    /// A small file, or a file that will be read completely, is read into memory once. Any other
    /// file is hashed first and read afterwards, so the content is never older than its etag.
    pub(super) fn open(
        root: &Root,
        file: WorkspaceFile,
        wanted_max: u64,
        watch: &'w DiskWorkMonitor,
    ) -> Result<Self, ToolError> {
        let size = file.meta().size();
        if root.has_strong_etag(file.meta()) && size <= wanted_max.max(IN_MEMORY_BYTES_MAX) {
            let bytes = file.read(0, size, watch)?;
            let utf16 = ByteOrder::detect(&bytes);
            let ends = LineEndScanner(utf16);
            let lines = ends.count(&bytes) + u64::from(!ends.is_at_line_start(&bytes));
            let etag = Etag::from_content(&bytes);
            return Ok(Self {
                file,
                etag,
                lines: Some(lines),
                utf16,
                size: bytes.len() as u64,
                in_memory: Some(bytes),
                watch,
            });
        }
        let utf16 = ByteOrder::detect(&file.read(0, HEAD_BYTES, watch)?);
        if !root.has_strong_etag(file.meta()) {
            let etag = root.etag(&file, watch)?;
            return Ok(Self { file, etag, lines: None, utf16, size, in_memory: None, watch });
        }
        let scan = file.scan(watch)?;
        let ends = LineEndScanner(utf16);
        let newlines = match utf16 {
            None => scan.newlines,
            Some(_) => count_lines(&file, ends, watch)?,
        };
        let tail = file.read(size.saturating_sub(2), 2, watch)?;
        let lines = newlines + u64::from(!ends.is_at_line_start(&tail));
        let (etag, lines) = (scan.etag, Some(lines));
        Ok(Self { file, etag, lines, utf16, size, in_memory: None, watch })
    }

    /// Returns the size of the file in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reads up to `len` bytes from `offset`, which must not be past the end. If the complete
    /// content is in memory and is requested, moves it out instead of copying it.
    pub(super) fn take(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, ToolError> {
        if offset == 0
            && len >= self.size
            && let Some(bytes) = self.in_memory.take()
        {
            return Ok(bytes);
        }
        self.read(offset, len)
    }

    /// Reads up to `len` bytes of the file from `offset`, which must not be past the end.
    pub(super) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, ToolError> {
        let Some(bytes) = &self.in_memory else { return self.file.read(offset, len, self.watch) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len() - from);
        Ok(bytes[from..from + len].to_vec())
    }

    /// Returns the byte offset and the number of line number `line`. Returns the end of the file if
    /// it has fewer lines.
    ///
    /// A negative `line` counts from the end. The returned number is only negative if the file's
    /// lines were not counted.
    pub(super) fn line_start(&self, line: i64) -> Result<(u64, i64), ToolError> {
        let back = line.unsigned_abs();
        let line = match (line, self.lines) {
            (1.., _) => back,
            (_, Some(total)) => total.saturating_sub(back) + 1,
            (_, None) => return Ok((self.line_from_end(back)?, line)),
        };
        let number = i64::try_from(line).unwrap_or(i64::MAX);
        Ok((self.line_offset(line)?, number))
    }

    fn line_offset(&self, line: u64) -> Result<u64, ToolError> {
        if line == 1 {
            return Ok(0);
        }
        let mut before = line - 1;
        let mut offset = 0;
        let mut count = |block: &[u8]| {
            let nth = usize::try_from(before - 1).unwrap_or(usize::MAX);
            match self.line_ends().nth(block, nth) {
                Some(end) => {
                    offset += end as u64;
                    before = 0;
                }
                None => {
                    offset += block.len() as u64;
                    before -= self.line_ends().count(block);
                }
            }
            before > 0
        };
        match &self.in_memory {
            Some(bytes) => _ = count(bytes),
            None => self.file.for_each_block(0, self.watch, count)?,
        }
        Ok(offset)
    }

    /// Returns the byte offset at which the line that is number `back` from the end starts. Reads
    /// the file backwards.
    fn line_from_end(&self, mut back: u64) -> Result<u64, ToolError> {
        let mut end = self.size();
        if self.utf16.is_some() {
            // Half a unit at the end belongs to no line.
            end -= end % 2;
        }
        let mut last = true;
        while end > 0 {
            let from = end.saturating_sub(BLOCK_BYTES);
            let block = self.file.read(from, end - from, self.watch)?;
            for line_end in self.line_ends().find_all_reverse(&block) {
                // A newline at the very end closes the last line and starts no new one.
                if last && line_end == block.len() {
                    continue;
                }
                back -= 1;
                if back == 0 {
                    return Ok(from + line_end as u64);
                }
            }
            last = false;
            end = from;
        }
        Ok(0)
    }

    /// Returns a finder of line ends for the encoding of the file.
    pub(super) fn line_ends(&self) -> LineEndScanner {
        LineEndScanner(self.utf16)
    }

    /// Returns the complete content of the file, if it is in memory and [`OpenFileContent::take`]
    /// did not move it out.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        self.in_memory.as_deref()
    }
}

/// Counts the line ends in a large file, and returns their number.
fn count_lines(
    file: &WorkspaceFile,
    ends: LineEndScanner,
    watch: &DiskWorkMonitor,
) -> Result<u64, ToolError> {
    let mut count = 0;
    file.for_each_block(0, watch, |block| {
        count += ends.count(block);
        true
    })?;
    Ok(count)
}
