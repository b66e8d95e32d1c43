//! Verifies that a log is complete and unchanged.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use blake3::Hash;

use super::chain::{AuditChainBounds, AuditChainEnd, AuditChainLine, AuditKey, HEAD_BYTES};
use super::file::{first_line, head_path};

/// JSON fields of the log line that starts a chain after earlier records.
pub(super) const BEGAN_FIELDS: &str = "\"log\":\"began\",\"after\":";
/// JSON fields of the log line that starts a chain if the end of the earlier chain is unknown.
const UNPROVEN_FIELDS: &[u8] = b"\"log\":\"began\",\"after\":\"unproven\"";

/// Returns the JSON fields of the log line that follows an incomplete record `torn`.
pub(super) fn recovery_note(torn: &[u8]) -> String {
    let bytes = torn.len();
    let hash = blake3::hash(torn).to_hex();
    format!("\"log\":\"recovered\",\"torn_bytes\":{bytes},\"torn\":\"{hash}\"")
}

/// Result of verifying an audit log that is complete and unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedAuditLog {
    /// Number of the first kept line. If there are no lines, the number is greater than `last_seq`.
    pub first_seq: u64,
    /// Number of the last line of the log.
    pub last_seq: u64,
    /// The last line's `mac`, which covers all lines before it.
    pub mac: String,
    /// Length in bytes of an incomplete record at the end of the log.
    pub torn_bytes: u64,
    /// Older log files that do not belong to the verified chain.
    pub unchecked: Vec<PathBuf>,
}

/// First log line at which the verification of a log fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLogDefect {
    /// Log file that contains the invalid line.
    pub file: PathBuf,
    /// Number of the line in `file`, counted from 1.
    pub line: u64,
    /// Sequence number that the log line at this position should have.
    pub seq: u64,
    /// Description of the problem with the log line.
    pub why: String,
}

impl fmt::Display for AuditLogDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, seq, why } = self;
        write!(f, "{}, line {line} (seq {seq}): {why}", file.display())
    }
}

/// Verifies the audit log at `path` and its older files with `key`. Servers may write to the log
/// meanwhile.
///
/// # Errors
/// The log cannot be read.
pub fn verify(path: &Path, key: &AuditKey) -> io::Result<Result<VerifiedAuditLog, AuditLogDefect>> {
    let AuditLogFiles { head, files } = open_log(path)?;
    let Some(head) = head.as_deref().and_then(|text| AuditChainBounds::parse(text, key)) else {
        let why = match head {
            Some(_) => "the key does not match this file: the key differs, or the file was changed",
            None => "the file that seals the end of the log is missing",
        };
        return Ok(Err(AuditLogDefect {
            file: head_path(path),
            line: 1,
            seq: 0,
            why: why.to_owned(),
        }));
    };
    let seq_of =
        |file: &AuditLogFile| AuditChainLine::parse(file.first.as_deref()?).map(|line| line.seq);
    let Some(oldest) = files.iter().rposition(|file| seq_of(file) == Some(head.first_seq)) else {
        return Ok(verify_without_oldest(path, &head, files));
    };
    let mut unchecked = files;
    let files = unchecked.split_off(oldest);
    let mut verifier = AuditLogVerifier::new(key, &head);
    for file in files {
        if let Err(broken) = verifier.check_file(file)? {
            return Ok(Err(broken));
        }
    }
    let unchecked = unchecked.into_iter().map(|file| file.path).collect();
    Ok(verifier.finish(path, unchecked))
}

/// Returns the result of the verification if none of the `files` begins with the oldest line that
/// `head` names.
fn verify_without_oldest(
    path: &Path,
    head: &AuditChainBounds,
    files: Vec<AuditLogFile>,
) -> Result<VerifiedAuditLog, AuditLogDefect> {
    let AuditChainBounds { first_seq: from, link, newest_bytes: bytes } = *head;
    let torn_bytes = files.last().map_or(0, |file| file.bytes);
    // The log has no lines yet, but perhaps an incomplete record.
    if link.seq < from && bytes == 0 && files.last().is_none_or(|file| file.first.is_none()) {
        let unchecked = files.into_iter().map(|file| file.path).filter(|file| file != path);
        let mac = link.mac.to_hex().to_string();
        let unchecked = unchecked.collect();
        return Ok(VerifiedAuditLog {
            first_seq: from,
            last_seq: link.seq,
            mac,
            torn_bytes,
            unchecked,
        });
    }
    let file = path.to_owned();
    let seq = from;
    let why = format!("the oldest file is missing: no file begins with line {from}");
    Err(AuditLogDefect { file, line: 1, seq, why })
}

/// Files of an audit log, opened at one moment.
struct AuditLogFiles {
    head: Option<Vec<u8>>,
    /// Log files with records, oldest first.
    files: Vec<AuditLogFile>,
}

/// File of an audit log that is being verified.
struct AuditLogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    first: Option<Vec<u8>>,
}

/// Opens the log at `path` under a shared lock. The writer holds the lock for each batch of
/// records, so no batch is half written.
fn open_log(path: &Path) -> io::Result<AuditLogFiles> {
    let mut head_file = match File::open(head_path(path)) {
        Ok(file) => Some(file),
        Err(err) if err.kind() == io::ErrorKind::NotFound => None,
        Err(err) => return Err(err),
    };
    if let Some(file) = &head_file {
        file.lock_shared()?;
    }
    let mut files = Vec::new();
    for path in log_paths(path)? {
        let file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        files.push(AuditLogFile { first: first_line(&path)?, path, file, bytes });
    }
    let mut head = None;
    if let Some(file) = &mut head_file {
        let mut text = Vec::new();
        file.take(HEAD_BYTES as u64 + 1).read_to_end(&mut text)?;
        head = Some(text);
    } else if files.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(AuditLogFiles { head, files })
}

/// Returns the paths of the existing files of the log at `path`, oldest first.
fn log_paths(path: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder.unwrap_or(Path::new(".")))? {
        let entry = entry?.file_name();
        let Some(rest) = entry.as_encoded_bytes().strip_prefix(name) else { continue };
        let number = std::str::from_utf8(rest).ok().and_then(|rest| match rest {
            "" => Some(0),
            rest => rest.strip_prefix('.')?.parse::<u32>().ok(),
        });
        found.extend(number.map(|number| (number, path.with_file_name(&entry))));
    }
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Verifier of an audit log, with the progress of the verification.
struct AuditLogVerifier<'k> {
    key: &'k AuditKey,
    link: Option<AuditChainEnd>,
    /// Number of the first kept line of the log.
    first_seq: u64,
    head: AuditChainEnd,
    /// An incomplete record, which the next log line must confirm.
    torn: Option<IncompleteAuditRecord>,
    /// Number of lines in the newest log file.
    lines: u64,
}

/// Incomplete record at the end of a log file, and the note that explains it.
struct IncompleteAuditRecord {
    location: AuditLogDefect,
    bytes: u64,
    recovery_note: String,
    /// True if the log file ends with a line break.
    ends_line: bool,
}

impl<'k> AuditLogVerifier<'k> {
    fn new(key: &'k AuditKey, head: &AuditChainBounds) -> Self {
        Self { key, link: None, first_seq: head.first_seq, head: head.link, torn: None, lines: 0 }
    }

    fn check_file(&mut self, file: AuditLogFile) -> io::Result<Result<(), AuditLogDefect>> {
        let lines = BufReader::with_capacity(1 << 18, file.file.take(file.bytes));
        self.check_lines(&file.path, lines)
    }

    fn check_lines(
        &mut self,
        path: &Path,
        mut lines: impl BufRead,
    ) -> io::Result<Result<(), AuditLogDefect>> {
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                self.lines = number;
                return Ok(Ok(()));
            }
            number += 1;
            let ended = line.pop_if(|byte| *byte == b'\n').is_some();
            if let Err(why) = self.check_line(&line, number == 1, ended) {
                let seq = self.next_seq();
                let broken = AuditLogDefect { file: path.to_owned(), line: number, seq, why };
                return Ok(Err(self.torn.take().map_or(broken, |torn| torn.location)));
            }
            if let Some(torn) = &mut self.torn {
                path.clone_into(&mut torn.location.file);
                torn.location.line = number;
            }
        }
    }

    /// Checks `text`, the next line of the log. `is_first` is true for the first line of a file,
    /// and `ended` if a line break follows.
    ///
    /// # Errors
    /// A description of the problem with the line.
    fn check_line(&mut self, text: &[u8], is_first: bool, ended: bool) -> Result<(), String> {
        let Some(line) = AuditChainLine::parse(text).filter(|_| ended) else {
            if self.torn.is_some() {
                return Err(String::new());
            }
            let seq = self.next_seq();
            let why = "toolgate did not write this line".to_owned();
            let at = AuditLogDefect { file: PathBuf::new(), line: 0, seq, why };
            let bytes = text.len() as u64;
            let recovery_note_text = recovery_note(text);
            self.torn = Some(IncompleteAuditRecord {
                location: at,
                bytes,
                recovery_note: recovery_note_text,
                ends_line: ended,
            });
            return Ok(());
        };
        if let Some(torn) = &self.torn
            && !contains(line.body, torn.recovery_note.as_bytes())
        {
            return Err(String::new());
        }
        let begins = || Some(AuditChainEnd { seq: line.seq.checked_sub(1)?, mac: line.prev? });
        let Some(before) = self.link.or_else(begins) else {
            return Err("the line does not refer to a previous line".to_owned());
        };
        if line.seq != before.seq + 1 {
            return Err(match line.seq.checked_sub(before.seq + 1) {
                Some(1) => format!("1 line before line {} is missing", line.seq),
                Some(missing) => format!("{missing} lines before line {} are missing", line.seq),
                None => format!("line {} is duplicated or in the wrong place", line.seq),
            });
        }
        let follows = line.prev.is_some() == is_first;
        let after = line.verify_after(before, self.key).filter(|_| follows);
        let after = after.ok_or("this line or the line before it was changed")?;
        if after.seq == self.head.seq && after != self.head {
            return Err("the line differs from the line that was written here".to_owned());
        }
        if self.link.is_none() && contains(line.body, UNPROVEN_FIELDS) {
            return Err(
                "the chain was restarted here, because the file that seals its end was missing \
                 or changed: the lines before this one are not verified"
                    .to_owned(),
            );
        }
        (self.link, self.torn) = (Some(after), None);
        Ok(())
    }

    /// Returns the number that the next log line must have.
    fn next_seq(&self) -> u64 {
        self.link.map_or(self.first_seq, |link| link.seq + 1)
    }

    fn finish(
        self,
        path: &Path,
        unchecked: Vec<PathBuf>,
    ) -> Result<VerifiedAuditLog, AuditLogDefect> {
        let from = self.first_seq;
        let until = self.next_seq() - 1;
        let torn_bytes = match self.torn {
            Some(torn) if torn.ends_line => return Err(torn.location),
            torn => torn.map_or(0, |torn| torn.bytes),
        };
        if until < self.head.seq {
            let missing = self.head.seq - until;
            let lines = if missing == 1 { "line is" } else { "lines are" };
            let why = format!("the last {missing} {lines} missing, up to {}", self.head.seq);
            let file = path.to_owned();
            let line = self.lines + 1;
            return Err(AuditLogDefect { file, line, seq: until + 1, why });
        }
        let mac = self.link.map_or(Hash::from_bytes([0; 32]), |link| link.mac);
        Ok(VerifiedAuditLog {
            first_seq: from,
            last_seq: until,
            mac: mac.to_hex().to_string(),
            torn_bytes,
            unchecked,
        })
    }
}

/// Verifies an audit log in memory like [`verify`]. The log has one file with the content `text`,
/// and `head` is the content of its head file.
#[cfg(any(fuzzing, test))]
pub(super) fn verify_text(
    text: &[u8],
    key: &AuditKey,
    head: &AuditChainBounds,
) -> Result<VerifiedAuditLog, AuditLogDefect> {
    let path = Path::new("log");
    let first = text.split(|byte| *byte == b'\n').next().and_then(AuditChainLine::parse);
    if first.is_none_or(|line| line.seq != head.first_seq) {
        return verify_without_oldest(path, head, Vec::new());
    }
    let mut verifier = AuditLogVerifier::new(key, head);
    verifier.check_lines(path, text).expect("memory can be read")?;
    verifier.finish(path, Vec::new())
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
