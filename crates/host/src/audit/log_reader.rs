//! Reads the log file and its rotated files, from their end or as they grow.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::call_record::{AuditRecordFilter, ParsedAuditRecord};
use super::file::rotated_path;

/// Maximum number of rotated audit log files that are searched.
const FILES_MAX: u32 = 10_000;
/// Number of bytes of an audit log that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Returns the log lines and parsed records of the newest `count` calls that `filter` selects,
/// oldest first.
///
/// # Errors
/// The log cannot be read.
pub fn newest_records(
    path: &Path,
    filter: &AuditRecordFilter,
    count: usize,
) -> io::Result<Vec<(String, ParsedAuditRecord)>> {
    let mut found = Vec::new();
    let earliest = filter.since.map(|since| since.checked_sub(SLACK).unwrap_or(Timestamp::MIN));
    for file in newest_first(path) {
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            // The file was rotated or removed meanwhile.
            Err(err) if err.kind() == io::ErrorKind::NotFound && file != path => break,
            Err(err) => return Err(err),
        };
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..whole].rsplit(|byte| *byte == b'\n') {
            let Some(record) = ParsedAuditRecord::parse(line) else { continue };
            if earliest.is_some_and(|earliest| record.ts < earliest) {
                found.reverse();
                return Ok(found);
            }
            if filter.matches(&record) {
                found.push((String::from_utf8_lossy(line).into_owned(), record));
                if found.len() == count {
                    found.reverse();
                    return Ok(found);
                }
            }
        }
    }
    found.reverse();
    Ok(found)
}

/// Maximum time between the starts of two calls whose audit records are in the opposite order.
/// Calls are recorded when they end.
const SLACK: SignedDuration = SignedDuration::from_hours(24);

/// Returns the paths of the audit log file and its rotated files, newest first. Skips missing
/// files.
fn newest_first(path: &Path) -> impl Iterator<Item = PathBuf> {
    let rotated = (1..FILES_MAX).map(move |number| rotated_path(path, number));
    std::iter::once(path.to_owned()).chain(rotated.take_while(|path| path.exists()))
}

/// A reader that remembers the position in the audit log up to which it has read, across rotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLogFollower {
    path: PathBuf,
    /// Inode of the log file that was read last. 0 if nothing was read.
    inode: u64,
    /// Number of bytes of the last log file that were read, up to the end of a line.
    offset: u64,
}

impl AuditLogFollower {
    /// Creates a follower that begins at the oldest kept line of the log at `path`.
    pub fn from_start(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: 0, offset: 0 }
    }

    /// Creates a follower that begins at the end of the log at `path`.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn from_end(path: &Path) -> io::Result<Self> {
        let mut follower = Self::from_start(path);
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        (follower.inode, follower.offset) = (metadata.ino(), metadata.len());
        Ok(follower)
    }

    /// Creates a follower that continues at the byte `offset` of the log file with this `inode`.
    pub(super) fn resume(path: &Path, (inode, offset): (u64, u64)) -> Self {
        Self { path: path.to_owned(), inode, offset }
    }

    /// Returns the inode of the log file that was read last, and the number of its bytes that were
    /// read.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.inode, self.offset)
    }

    /// Returns true if the log file that was read last still exists and has at least as many bytes
    /// as were read.
    pub(super) fn is_position_kept(&self) -> bool {
        let kept = |path: PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some(metadata.ino() == self.inode && metadata.len() >= self.offset)
        };
        newest_first(&self.path).any(|path| kept(path).unwrap_or(false))
    }

    /// Returns the path of the oldest existing file of the log.
    pub(super) fn oldest_file(&self) -> Option<PathBuf> {
        newest_first(&self.path).last()
    }

    /// Returns true if the last log line that was read contains the bytes `mark` near its end.
    pub(super) fn ends_with(&self, mark: &[u8]) -> io::Result<bool> {
        for path in newest_first(&self.path) {
            let mut file = File::open(&path)?;
            if file.metadata()?.ino() == self.inode {
                let bytes = (mark.len() as u64 + 4).min(self.offset);
                file.seek(SeekFrom::Start(self.offset - bytes))?;
                let mut end = Vec::new();
                file.take(bytes).read_to_end(&mut end)?;
                return Ok(mark.is_empty() || end.windows(mark.len()).any(|part| part == mark));
            }
        }
        Ok(false)
    }

    /// Passes to `each` every complete log line that was written since the last call of this
    /// function, without its line break.
    ///
    /// # Errors
    /// The log cannot be read. The next call continues at the same position.
    pub fn read_new(&mut self, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.read_new_until(each, || false).map(drop)
    }

    /// Reads like [`read_new`](Self::read_new), but stops after a line if `is_over` returns true.
    /// Returns true if all complete lines were read.
    ///
    /// # Errors
    /// The log cannot be read. The next call continues at the same position.
    pub(super) fn read_new_until(
        &mut self,
        mut each: impl FnMut(&[u8]),
        is_over: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut files = Vec::new();
        for path in newest_first(&self.path) {
            let Ok(file) = File::open(&path) else { continue };
            let inode = file.metadata()?.ino();
            files.push((file, inode));
            if inode == self.inode {
                break;
            }
        }
        for (mut file, inode) in files.into_iter().rev() {
            if inode != self.inode {
                (self.inode, self.offset) = (inode, 0);
            }
            if !self.read_file(&mut file, &mut each, &is_over)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes the unread complete lines of `file` to `each`. Returns false if it stopped, because
    /// `is_over` returned true.
    fn read_file(
        &mut self,
        file: &mut File,
        each: &mut impl FnMut(&[u8]),
        is_over: &impl Fn() -> bool,
    ) -> io::Result<bool> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut unread = Vec::new();
        while file.by_ref().take(PIECE_BYTES).read_to_end(&mut unread)? > 0 {
            let whole = unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            for line in unread[..whole].split_inclusive(|byte| *byte == b'\n') {
                if let Some(line) = line.strip_suffix(b"\n").filter(|line| !line.is_empty()) {
                    each(line);
                }
                self.offset += line.len() as u64;
                if is_over() {
                    return Ok(false);
                }
            }
            unread.drain(..whole);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn line(caller: &str, tool: &str, second: i64) -> String {
        let ts = Timestamp::from_second(second).expect("a time");
        format!(
            "{{\"ts\":\"{ts}\",\"caller\":\"{caller}\",\"tool\":\"{tool}\",\"outcome\":\"ok\"}}\n"
        )
    }

    fn write(path: &Path, text: &str) {
        let mut file = File::options().create(true).append(true).open(path).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn the_newest_records_come_from_rotated_files_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        write(&rotated_path(&path, 1), &(0..5).map(|n| line("ada", "t", n)).collect::<String>());
        write(&path, &format!("{}{}{{\"torn", line("bob", "t", 6), line("ada", "t", 7)));
        let filter =
            AuditRecordFilter { caller: Some("ada".to_owned()), ..AuditRecordFilter::default() };
        let found = newest_records(&path, &filter, 3).expect("read");
        let seconds: Vec<_> = found.iter().map(|(_, record)| record.ts.as_second()).collect();
        assert_eq!(seconds, [3, 4, 7]);
    }

    #[test]
    fn a_follower_reads_each_complete_line_once_across_a_rotation() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        write(&path, "one\ntw");
        let mut follower = AuditLogFollower::from_start(&path);
        let mut seen = Vec::new();
        let read = |follower: &mut AuditLogFollower, seen: &mut Vec<String>| {
            let each = |line: &[u8]| seen.push(String::from_utf8_lossy(line).into_owned());
            follower.read_new(each).expect("read");
        };
        read(&mut follower, &mut seen);
        write(&path, "o\nthree\n");
        std::fs::rename(&path, rotated_path(&path, 1)).expect("renamed");
        write(&path, "four\n");
        read(&mut follower, &mut seen);
        read(&mut follower, &mut seen);
        assert_eq!(seen, ["one", "two", "three", "four"]);
        assert!(follower.is_position_kept());
    }

    #[test]
    fn a_follower_that_stops_after_each_line_reads_each_line_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.jsonl");
        write(&path, "one\n\ntwo\n");
        std::fs::rename(&path, rotated_path(&path, 1)).expect("renamed");
        write(&path, "three\nfo");
        let mut follower = AuditLogFollower::from_start(&path);
        let mut seen = Vec::new();
        let mut turns = 0;
        loop {
            let each = |line: &[u8]| seen.push(String::from_utf8_lossy(line).into_owned());
            turns += 1;
            if follower.read_new_until(each, || true).expect("read") {
                break;
            }
        }
        assert_eq!(seen, ["one", "two", "three"]);
        assert_eq!(turns, 5, "the empty line is read, too");
    }
}
