//! Chains the lines of an audit log, so that changes are detected.
//!
//! Each line's `mac` is a keyed BLAKE3 hash over the line and the previous `mac`. A head file
//! beside the log contains the end of the chain.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use blake3::Hash;
use data_encoding::HEXLOWER;
use serde::Deserialize;

/// Fixed length in bytes of an audit log's head file, which is overwritten in place.
pub(super) const HEAD_BYTES: usize = 256;
/// Text before the `mac` in a line of the audit log.
const MAC: &[u8] = b",\"mac\":\"";
/// Text before the previous `mac`, in the first line of an audit log file.
const PREV: &[u8] = b",\"prev\":\"";
/// Text before the line number in a line of the audit log.
const SEQ: &[u8] = b",\"seq\":";
/// Number of hexadecimal digits of a line's `mac`.
const HEX: usize = 64;

/// Encodes `hash` as lower-case hexadecimal digits. This replaces the formatter of the hash, which
/// takes as long as hashing and would run twice for each log line.
pub(super) fn encode_hex(hash: &Hash) -> [u8; HEX] {
    let mut hex = [0; HEX];
    HEXLOWER.encode_mut(hash.as_bytes(), &mut hex);
    hex
}

/// Key that seals the audit log. Anyone who has the key can forge a log.
#[derive(Clone)]
pub struct AuditKey {
    lines: [u8; 32],
    heads: [u8; 32],
}

impl AuditKey {
    /// Reads the audit key in the file at `path`, and creates the file with a new key if it is
    /// missing.
    ///
    /// # Errors
    /// The file cannot be read or created, other users may access the file, or it contains no key.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                create_key_file(path)?;
                Self::read(path)
            }
            other => other,
        }
    }

    /// Reads the audit key in the file at `path`.
    ///
    /// # Errors
    /// Other users may access the file, or it does not contain a key.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.mode() & 0o077 != 0 {
            return Err(io::Error::other(
                "other users may access it; allow only its owner (chmod 600)",
            ));
        }
        let mut text = String::new();
        file.take(1024).read_to_string(&mut text)?;
        let secret = Hash::from_hex(text.trim()).map_err(|_| {
            io::Error::other(
                "the file does not contain a key: a key is 64 hexadecimal digits and nothing else",
            )
        })?;
        Ok(Self::from_secret(secret.as_bytes()))
    }

    /// Derives separate keys for log lines and head files, so that a line is never valid as a head
    /// file.
    pub(super) fn from_secret(secret: &[u8; 32]) -> Self {
        Self {
            lines: blake3::derive_key("toolgate 2026-11 audit line", secret),
            heads: blake3::derive_key("toolgate 2026-11 audit head", secret),
        }
    }
}

/// Creates an audit key file at `path` with a new key. The creation is atomic and leaves an
/// existing file unchanged.
fn create_key_file(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(io::Error::other)?;
    let draft = folder.join(format!(".audit.key.{}", &Hash::from(bits).to_hex()[..16]));
    getrandom::fill(&mut bits).map_err(io::Error::other)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = writeln!(file, "{}", Hash::from(bits).to_hex())
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft)?;
    match written {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// End of an audit log's chain: the number of the last line and the `mac` of that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuditChainEnd {
    pub(super) seq: u64,
    pub(super) mac: Hash,
}

impl AuditChainEnd {
    /// Returns the start of a new chain of sealed lines after `seq` unrelated lines.
    pub(super) const fn start(seq: u64) -> Self {
        Self { seq, mac: Hash::from_bytes([0; 32]) }
    }

    fn mac_of(&self, key: &AuditKey, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&key.lines);
        hasher.update(self.mac.as_bytes());
        hasher.update(body);
        hasher.finalize()
    }

    /// Appends the JSON object `body` to `lines` as the next sealed line, and returns the new end
    /// of the chain.
    ///
    /// The first line of a file also contains the `mac` of the previous file's last line.
    pub(super) fn append_line(
        self,
        key: &AuditKey,
        body: &[u8],
        is_first: bool,
        lines: &mut Vec<u8>,
    ) -> io::Result<Self> {
        let start = lines.len();
        let seq = self.seq + 1;
        lines.extend_from_slice(body.strip_suffix(b"}").unwrap_or(body));
        if is_first {
            lines.extend_from_slice(PREV);
            lines.extend_from_slice(&encode_hex(&self.mac));
            lines.push(b'"');
        }
        lines.extend_from_slice(SEQ);
        write!(lines, "{seq}")?;
        let mac = self.mac_of(key, &lines[start..]);
        lines.extend_from_slice(MAC);
        lines.extend_from_slice(&encode_hex(&mac));
        lines.extend_from_slice(b"\"}\n");
        Ok(Self { seq, mac })
    }
}

/// A parsed line of the audit log without its line break, not yet verified.
pub(super) struct AuditChainLine<'l> {
    /// Bytes of the log line that its `mac` covers.
    pub(super) body: &'l [u8],
    pub(super) seq: u64,
    /// The `mac` of the previous file's last line, which only the first line of a file contains.
    pub(super) prev: Option<Hash>,
    mac: Hash,
}

impl<'l> AuditChainLine<'l> {
    /// Parses a line of the audit log. Returns `None` if the line is not exactly in the format that
    /// toolgate writes.
    pub(super) fn parse(line: &'l [u8]) -> Option<Self> {
        let (body, mac) = hex_at_end(line.strip_suffix(b"\"}")?, MAC)?;
        let digits = body.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (rest, number) = body.split_at(body.len() - digits);
        let seq = std::str::from_utf8(number).ok()?.parse().ok()?;
        let rest = rest.strip_suffix(SEQ)?;
        let prev = rest.strip_suffix(b"\"").and_then(|rest| Some(hex_at_end(rest, PREV)?.1));
        Some(Self { body, seq, prev, mac })
    }

    /// Returns the end of the chain after this line, if the line follows the chain end `link` and
    /// its `mac` is valid.
    pub(super) fn verify_after(
        &self,
        link: AuditChainEnd,
        key: &AuditKey,
    ) -> Option<AuditChainEnd> {
        let is_valid = self.seq == link.seq + 1
            && self.prev.is_none_or(|prev| prev == link.mac)
            && self.mac == link.mac_of(key, self.body);
        is_valid.then_some(AuditChainEnd { seq: self.seq, mac: self.mac })
    }
}

/// Splits `text` into the part before the field `name` and the hash in that field. Returns `None`
/// if `text` does not end with the field.
fn hex_at_end<'t>(text: &'t [u8], name: &[u8]) -> Option<(&'t [u8], Hash)> {
    let (rest, hex) = text.split_at_checked(text.len().checked_sub(HEX)?)?;
    let hash = Hash::from_hex(hex).ok()?;
    let canonical = encode_hex(&hash) == hex;
    Some((rest.strip_suffix(name)?, hash)).filter(|_| canonical)
}

/// Start and end of the audit log. They show if lines are missing at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuditChainBounds {
    /// Number of the first line in the oldest kept log file.
    pub(super) first_seq: u64,
    pub(super) link: AuditChainEnd,
    /// Length of the newest log file in bytes.
    pub(super) newest_bytes: u64,
}

impl AuditChainBounds {
    /// Encodes and seals these bounds as the content of a head file, so that nobody without the key
    /// can change the log's end.
    pub(super) fn encode(&self, key: &AuditKey) -> io::Result<[u8; HEAD_BYTES]> {
        let mut text = [b' '; HEAD_BYTES];
        let mut rest = &mut text[..HEAD_BYTES - 1];
        let Self { first_seq: from, link: AuditChainEnd { seq, mac }, newest_bytes: bytes } = self;
        let mac = mac.to_hex();
        write!(rest, "{{\"from\":{from},\"seq\":{seq},\"bytes\":{bytes},\"mac\":\"{mac}\"")?;
        let length = HEAD_BYTES - 1 - rest.len();
        let seal = blake3::keyed_hash(&key.heads, &text[..length]).to_hex();
        let mut rest = &mut text[length..HEAD_BYTES - 1];
        write!(rest, ",\"seal\":\"{seal}\"}}")?;
        text[HEAD_BYTES - 1] = b'\n';
        Ok(text)
    }

    /// Parses `text`, the content of a log's head file. Returns `None` if the seal or the format is
    /// invalid.
    pub(super) fn parse(text: &[u8], key: &AuditKey) -> Option<Self> {
        /// Fields of the audit log's head file.
        #[derive(Deserialize)]
        struct AuditChainBoundsFields {
            from: u64,
            seq: u64,
            bytes: u64,
            mac: String,
        }
        let fields: AuditChainBoundsFields = serde_json::from_slice(text).ok()?;
        let mac = Hash::from_hex(&fields.mac).ok()?;
        let head = Self {
            first_seq: fields.from,
            link: AuditChainEnd { seq: fields.seq, mac },
            newest_bytes: fields.bytes,
        };
        (head.encode(key).ok()?.as_slice() == text).then_some(head)
    }
}
