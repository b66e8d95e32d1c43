//! Writes the chained log file, which all toolgate processes of a user share.
//!
//! Each batch is written under a file lock. A full file is renamed, and a new file is begun.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::chain::{AuditChainBounds, AuditChainEnd, AuditChainLine, AuditKey, HEAD_BYTES};

/// Maximum number of bytes of an audit log that are read to find its end.
const TAIL_BYTES_MAX: u64 = 64 << 20;

/// Audit log file in which each record is sealed together with all records before it.
pub(super) struct ChainedAuditLog {
    path: PathBuf,
    key: AuditKey,
    /// Number of rotated log files that are kept.
    keep: u32,
    /// Size in bytes at which the log file is rotated.
    bytes_max: u64,
    file: File,
    /// File with the sealed end of the log, which the writing process locks.
    head_file: File,
    /// End of the log as this process last wrote it.
    last_head: Option<(AuditChainBounds, [u8; HEAD_BYTES])>,
    lines: Vec<u8>,
}

/// End of the audit log that the writer has found before its next write.
struct AuditLogEnd {
    head: AuditChainBounds,
    /// JSON object of an extra log line to write before the next records, such as a recovery note.
    notice: Option<String>,
    /// True if the log's last line is incomplete, so that a line break must be written first.
    torn: bool,
}

impl ChainedAuditLog {
    /// Opens the log at `path`, and creates it and its folders if needed.
    pub(super) fn open(path: &Path, key: AuditKey, keep: u32, bytes_max: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = append(path)?;
        let head_file = open_head(path)?;
        let path = path.to_owned();
        let lines = Vec::new();
        let known = None;
        let mut chain =
            Self { path, key, keep, bytes_max, file, head_file, last_head: known, lines };
        chain.open_append(&[])?;
        Ok(chain)
    }

    /// Locks the log and appends the JSON objects `bodies` as lines. If that fails, none of them is
    /// appended.
    pub(super) fn open_append(&mut self, bodies: &[&[u8]]) -> io::Result<()> {
        self.lock()?;
        let added = self.append_locked(bodies);
        // The end of the process releases the lock as well.
        let _ = self.head_file.unlock();
        added
    }

    /// Flushes the log file to disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Flushes the log's head file to disk.
    pub(super) fn sync_head(&mut self) -> io::Result<()> {
        self.head_file.sync_data()
    }

    /// Locks the head file of the log. Opens the file again if the open one was removed or
    /// replaced.
    fn lock(&mut self) -> io::Result<()> {
        loop {
            self.head_file.lock()?;
            if is_at(&head_path(&self.path), &self.head_file) {
                return Ok(());
            }
            self.head_file = open_head(&self.path)?;
        }
    }

    fn append_locked(&mut self, bodies: &[&[u8]]) -> io::Result<()> {
        let AuditLogEnd { mut head, notice, torn } = self.find_end()?;
        if head.newest_bytes >= self.bytes_max && notice.is_none() {
            head = self.rotate(head)?;
        }
        self.lines.clear();
        if torn {
            self.lines.push(b'\n');
        }
        let mut is_first = head.newest_bytes == 0;
        for body in notice.iter().map(String::as_bytes).chain(bodies.iter().copied()) {
            head.link = head.link.append_line(&self.key, body, is_first, &mut self.lines)?;
            is_first = false;
        }
        if let Err(err) = self.file.write_all(&self.lines) {
            // Removes a partial write. If that fails too, the next batch treats it as torn.
            let _ = self.file.set_len(head.newest_bytes);
            return Err(err);
        }
        head.newest_bytes += self.lines.len() as u64;
        self.write_head(head)
    }

    /// Writes `head` to the head file of the log, sealed with the key.
    fn write_head(&mut self, head: AuditChainBounds) -> io::Result<()> {
        let text = head.encode(&self.key)?;
        if self.last_head.as_ref().is_none_or(|(_, known)| *known != text) {
            self.head_file.write_all_at(&text, 0)?;
        }
        self.last_head = Some((head, text));
        Ok(())
    }

    /// Finds the current end of the log, even if another process wrote to the log or crashed.
    fn find_end(&mut self) -> io::Result<AuditLogEnd> {
        if !is_at(&self.path, &self.file) {
            self.file = append(&self.path)?;
        }
        let size = self.file.metadata()?.len();
        let mut text = [0; HEAD_BYTES + 1];
        let length = read_at_most(&self.head_file, &mut text)?;
        let stored = match &self.last_head {
            Some((head, known)) if text[..length] == *known => Some(*head),
            Some(_) | None => AuditChainBounds::parse(&text[..length], &self.key),
        };
        // A head older than the last write of this process is outdated or forged.
        let known = self.last_head.as_ref().map(|(head, _)| *head);
        let head = match (stored, known) {
            (Some(stored), Some(known)) if stored.link.seq < known.link.seq => Some(known),
            (stored, known) => stored.or(known),
        };
        match head {
            Some(head) if head.newest_bytes == size => {
                Ok(AuditLogEnd { head, notice: None, torn: false })
            }
            Some(head) => self.advance_to_end(head, size),
            None => self.begin_chain(length == 0),
        }
    }

    /// Finds the end of a log file of `size` bytes, starting at the recorded end `head`. Logs an
    /// error if records are missing or another program wrote to the file.
    fn advance_to_end(&self, mut head: AuditChainBounds, size: u64) -> io::Result<AuditLogEnd> {
        if size < head.newest_bytes {
            let path = self.path.display();
            let link = head.link.seq;
            tracing::error!(
                "the end of the audit log {path} is missing: toolgate had written records up to \
                 {link}"
            );
            head.newest_bytes = 0;
            let rest = self.read_from(head.newest_bytes, size)?;
            let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            return Ok(end_after(head, size, &rest[whole..]));
        }
        let rest = self.read_from(head.newest_bytes, size)?;
        let mut unread = rest.as_slice();
        let mut foreign = false;
        while let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
            let line = AuditChainLine::parse(&unread[..length]);
            match line.and_then(|line| line.verify_after(head.link, &self.key)) {
                Some(link) => head.link = link,
                None => foreign = true,
            }
            unread = &unread[length + 1..];
        }
        if foreign {
            let path = self.path.display();
            tracing::error!("another program wrote to the audit log {path}");
        }
        Ok(end_after(head, size, unread))
    }

    /// Reads the log file from the offset `from` on, but at most the last 64 MiB.
    fn read_from(&self, from: u64, size: u64) -> io::Result<Vec<u8>> {
        let from = from.max(size.saturating_sub(TAIL_BYTES_MAX));
        let mut rest = vec![0; usize::try_from(size - from).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut rest, from)?;
        Ok(rest)
    }

    /// Begins a new chain of sealed lines in a new file. `no_head` is true if the head file is
    /// empty. Otherwise, the seal of the head file is invalid.
    fn begin_chain(&mut self, no_head: bool) -> io::Result<AuditLogEnd> {
        let newest = [self.path.clone(), rotated_path(&self.path, 1)];
        let before = newest.iter().find_map(|path| last_line(path).transpose()).transpose()?;
        let chained =
            before.as_deref().and_then(|line| AuditChainLine::parse(line).map(|line| line.seq));
        if self.file.metadata()?.len() > 0 {
            self.shift_files()?;
        }
        let link = AuditChainEnd::start(chained.unwrap_or(0));
        let head = AuditChainBounds { first_seq: link.seq + 1, link, newest_bytes: 0 };
        self.head_file.set_len(0)?;
        self.write_head(head)?;
        let after = match (before.is_some(), chained.is_some() || !no_head) {
            (_, true) => Some("unproven"),
            (true, false) => Some("unchained"),
            (false, false) => None,
        };
        let notice = after.map(|after| {
            let now = Timestamp::now();
            format!("{{\"ts\":\"{now}\",{}\"{after}\"}}", super::verify::BEGAN_FIELDS)
        });
        Ok(AuditLogEnd { head, notice, torn: false })
    }

    /// Rotates the log files, and returns the end of the log before the first line of the new file.
    fn rotate(&mut self, mut head: AuditChainBounds) -> io::Result<AuditChainBounds> {
        // The head is written first: after a crash here, no removed line counts as missing.
        if let Some(from) = self.first_line_after_rotation()? {
            head.first_seq = head.first_seq.max(from);
            self.write_head(head)?;
        }
        self.shift_files()?;
        head.newest_bytes = 0;
        self.write_head(head)?;
        Ok(head)
    }

    /// Returns the number of the first log line that remains after the next rotation, if the
    /// rotation removes the oldest file.
    fn first_line_after_rotation(&self) -> io::Result<Option<u64>> {
        if self.count_rotated() < self.keep {
            return Ok(None);
        }
        let oldest = match self.keep {
            1 => self.path.clone(),
            keep => rotated_path(&self.path, keep - 1),
        };
        Ok(first_line(&oldest)?.as_deref().and_then(|line| Some(AuditChainLine::parse(line)?.seq)))
    }

    /// Renames the log file and the older files, and removes files beyond the limit.
    fn shift_files(&mut self) -> io::Result<()> {
        for number in (1..=self.count_rotated().min(self.keep - 1)).rev() {
            std::fs::rename(
                rotated_path(&self.path, number),
                rotated_path(&self.path, number + 1),
            )?;
        }
        std::fs::rename(&self.path, rotated_path(&self.path, 1))?;
        self.file = append(&self.path)?;
        Ok(())
    }

    /// Counts the rotated log files, up to the first gap that a crash left.
    fn count_rotated(&self) -> u32 {
        let taken = |number: &u32| rotated_path(&self.path, *number).exists();
        u32::try_from((1..=self.keep).take_while(taken).count()).unwrap_or(u32::MAX)
    }
}

/// Returns the end of an audit log of `size` bytes, whose last bytes are the incomplete record
/// `torn`.
fn end_after(mut head: AuditChainBounds, size: u64, torn: &[u8]) -> AuditLogEnd {
    head.newest_bytes = size;
    let cut = !torn.is_empty();
    let notice = cut.then(|| {
        let now = Timestamp::now();
        let torn = super::verify::recovery_note(torn);
        format!("{{\"ts\":\"{now}\",{torn}}}")
    });
    AuditLogEnd { head, notice, torn: cut }
}

/// Returns the path of the rotated log file with this number. The newest has the number 1.
pub(super) fn rotated_path(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".{number}"))
}

/// Returns the path of the head file of the log at `path`.
pub(super) fn head_path(path: &Path) -> PathBuf {
    with_suffix(path, ".head")
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

fn open_head(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    options.open(head_path(path))
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
}

fn is_at(path: &Path, file: &File) -> bool {
    let (Ok(at_path), Ok(open)) = (std::fs::metadata(path), file.metadata()) else { return false };
    (at_path.dev(), at_path.ino()) == (open.dev(), open.ino())
}

/// Reads from the start of `file` until the file ends or `buffer` is full. Returns the number of
/// bytes read.
fn read_at_most(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Opens the file at `path` for reading. Returns `None` if the file does not exist.
pub(super) fn open_if_exists(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Returns the first line of the file at `path`. Returns `None` if the file does not exist.
pub(super) fn first_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open_if_exists(path)? else { return Ok(None) };
    let mut line = Vec::new();
    let mut pieces = io::BufReader::new(file.take(TAIL_BYTES_MAX));
    io::BufRead::read_until(&mut pieces, b'\n', &mut line)?;
    line.pop_if(|byte| *byte == b'\n');
    Ok(Some(line).filter(|line| !line.is_empty()))
}

/// Returns the last whole line of the file at `path`. Returns an empty line if the file has none.
fn last_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = open_if_exists(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    // Text after the last line break is an incomplete line.
    let last = text.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or_default();
    Ok((!text.is_empty()).then(|| last.to_vec()))
}
