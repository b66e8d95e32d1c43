//! A file's content: in memory where it is small, on disk where it is not.

use memchr::{memchr_iter, memrchr_iter};
use toolgate_contract::ToolError;

use crate::world::Root;
use crate::world::root::{Etag, File, Watch};

/// Up to this size a file is held whole, so that its etag is that of the very bytes given.
const HELD_BYTES_MAX: u64 = 1 << 20;
/// How much is looked through at a time from the end of a large file.
const BLOCK_BYTES: u64 = 256 << 10;

/// A file with its etag and, if they were counted, its lines.
pub(super) struct Content<'w> {
    pub(super) file: File,
    pub(super) etag: Etag,
    pub(super) lines: Option<u64>,
    held: Option<Vec<u8>>,
    watch: &'w Watch,
}

impl<'w> Content<'w> {
    /// The content of `file`. A large one is hashed first and read after, so what is
    /// given is never older than the etag that is given with it.
    pub(super) fn of(root: &Root, file: File, watch: &'w Watch) -> Result<Self, ToolError> {
        let size = file.meta().size();
        if root.hashes(file.meta()) && size <= HELD_BYTES_MAX {
            let bytes = file.read(0, size, watch)?;
            let open_line = u64::from(bytes.last().is_some_and(|&last| last != b'\n'));
            let lines = memchr_iter(b'\n', &bytes).count() as u64 + open_line;
            let etag = Etag::of(&bytes);
            return Ok(Self { file, etag, lines: Some(lines), held: Some(bytes), watch });
        }
        if !root.hashes(file.meta()) {
            let etag = root.etag(&file, watch)?;
            return Ok(Self { file, etag, lines: None, held: None, watch });
        }
        let scan = file.scan(watch)?;
        let last = file.read(size.saturating_sub(1), 1, watch)?;
        let lines = scan.newlines + u64::from(last.first().is_some_and(|&last| last != b'\n'));
        Ok(Self { file, etag: scan.etag, lines: Some(lines), held: None, watch })
    }

    /// How many bytes it has.
    pub(super) fn size(&self) -> u64 {
        self.held.as_ref().map_or(self.file.meta().size(), |bytes| bytes.len() as u64)
    }

    /// Up to `len` bytes from `offset`, which is not past the end.
    pub(super) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, ToolError> {
        let Some(held) = &self.held else { return self.file.read(offset, len, self.watch) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(held.len());
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(held.len() - from);
        Ok(held[from..from + len].to_vec())
    }

    /// Where the line `line` begins, and its number; past the end, the end.
    ///
    /// A negative number stays one only where the lines were not counted.
    pub(super) fn line(&self, line: i64) -> Result<(u64, i64), ToolError> {
        let back = line.unsigned_abs();
        let line = match (line, self.lines) {
            (1.., _) => back,
            (_, Some(total)) => total.saturating_sub(back) + 1,
            (_, None) => return Ok((self.line_from_end(back)?, line)),
        };
        let number = i64::try_from(line).unwrap_or(i64::MAX);
        Ok((self.offset_of(line)?, number))
    }

    fn offset_of(&self, line: u64) -> Result<u64, ToolError> {
        if line == 1 {
            return Ok(0);
        }
        let mut before = line - 1;
        let mut offset = 0;
        let mut count = |block: &[u8]| {
            let nth = usize::try_from(before - 1).unwrap_or(usize::MAX);
            let mut newlines = 0;
            let found = memchr_iter(b'\n', block).inspect(|_| newlines += 1).nth(nth);
            match found {
                Some(at) => {
                    offset += at as u64 + 1;
                    before = 0;
                }
                None => {
                    offset += block.len() as u64;
                    before -= newlines;
                }
            }
            before > 0
        };
        match &self.held {
            Some(held) => _ = count(held),
            None => self.file.blocks(0, self.watch, count)?,
        }
        Ok(offset)
    }

    /// Where the line `back` lines from the end begins, found from there.
    fn line_from_end(&self, mut back: u64) -> Result<u64, ToolError> {
        let mut end = self.size();
        let mut last = true;
        while end > 0 {
            let from = end.saturating_sub(BLOCK_BYTES);
            let block = self.file.read(from, end - from, self.watch)?;
            for at in memrchr_iter(b'\n', &block) {
                // The newline at the very end closes the last line and begins none.
                if last && at + 1 == block.len() {
                    continue;
                }
                back -= 1;
                if back == 0 {
                    return Ok(from + at as u64 + 1);
                }
            }
            last = false;
            end = from;
        }
        Ok(0)
    }
}
