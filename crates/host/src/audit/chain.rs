//! What makes a changed log known: each line's `mac` is a keyed hash over the line and the `mac`
//! before it, and a head beside the log says where it ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use blake3::Hash;
use serde::Deserialize;

/// How long a head is, whatever it says: it is written in place, over the one before.
pub(super) const HEAD_BYTES: usize = 256;
/// What a line ends with, and what comes before its `mac`.
const MAC: &[u8] = b",\"mac\":\"";
const PREV: &[u8] = b",\"prev\":\"";
const SEQ: &[u8] = b",\"seq\":";
const HEX: usize = 64;

/// `hash` as it is written. Twice a line is: digit by digit, as the library has it, that would take
/// as long as the hash itself.
pub(super) fn hex(hash: &Hash) -> [u8; HEX] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hex = [0; HEX];
    for (two, byte) in hex.chunks_exact_mut(2).zip(hash.as_bytes()) {
        two[0] = DIGITS[usize::from(byte >> 4)];
        two[1] = DIGITS[usize::from(byte & 0xf)];
    }
    hex
}

/// What the log is sealed with. Whoever has it can write any log.
#[derive(Clone)]
pub struct Key {
    lines: [u8; 32],
    heads: [u8; 32],
}

impl Key {
    /// The key in the file at `path`, made there if there is none.
    pub fn at(path: &Path) -> io::Result<Self> {
        match Self::read(path) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                make(path)?;
                Self::read(path)
            }
            other => other,
        }
    }

    /// The key in the file at `path`.
    pub fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.mode() & 0o077 != 0 {
            return Err(io::Error::other(
                "others may read it or write it; only its owner may (chmod 600)",
            ));
        }
        let mut text = String::new();
        file.take(1024).read_to_string(&mut text)?;
        let secret = Hash::from_hex(text.trim()).map_err(|_| {
            io::Error::other("it holds no key: a key is 64 hexadecimal digits and nothing else")
        })?;
        Ok(Self::of(secret.as_bytes()))
    }

    /// Two keys of one secret, so that no line can be taken for a head.
    pub(super) fn of(secret: &[u8; 32]) -> Self {
        Self {
            lines: blake3::derive_key("toolgate 2026-11 audit line", secret),
            heads: blake3::derive_key("toolgate 2026-11 audit head", secret),
        }
    }
}

/// Makes a key at `path`, unless another process is first. It is there whole or not at all.
fn make(path: &Path) -> io::Result<()> {
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

/// The end of a chain: how many lines it has, and the last one's `mac`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) seq: u64,
    pub(super) mac: Hash,
}

impl Link {
    /// Where a chain begins that goes on from nothing, after so many lines of others.
    pub(super) const fn none(seq: u64) -> Self {
        Self { seq, mac: Hash::from_bytes([0; 32]) }
    }

    fn mac_of(&self, key: &Key, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&key.lines);
        hasher.update(self.mac.as_bytes());
        hasher.update(body);
        hasher.finalize()
    }

    /// Adds the JSON object `body` to `lines` as the line after this one. The first line of a
    /// file names the `mac` before it, so that files can be told to belong together.
    pub(super) fn add(
        self,
        key: &Key,
        body: &[u8],
        is_first: bool,
        lines: &mut Vec<u8>,
    ) -> io::Result<Self> {
        let start = lines.len();
        let seq = self.seq + 1;
        lines.extend_from_slice(body.strip_suffix(b"}").unwrap_or(body));
        if is_first {
            lines.extend_from_slice(PREV);
            lines.extend_from_slice(&hex(&self.mac));
            lines.push(b'"');
        }
        lines.extend_from_slice(SEQ);
        write!(lines, "{seq}")?;
        let mac = self.mac_of(key, &lines[start..]);
        lines.extend_from_slice(MAC);
        lines.extend_from_slice(&hex(&mac));
        lines.extend_from_slice(b"\"}\n");
        Ok(Self { seq, mac })
    }
}

/// A line as it says itself to be, without its line break.
pub(super) struct Line<'l> {
    /// What its `mac` is over.
    pub(super) body: &'l [u8],
    pub(super) seq: u64,
    /// The `mac` before it, where it is the first line of a file.
    pub(super) prev: Option<Hash>,
    mac: Hash,
}

impl<'l> Line<'l> {
    /// `None` where it is no line of a chain. There is one way to write each.
    pub(super) fn of(line: &'l [u8]) -> Option<Self> {
        let (body, mac) = hex_at_end(line.strip_suffix(b"\"}")?, MAC)?;
        let digits = body.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (rest, number) = body.split_at(body.len() - digits);
        let seq = std::str::from_utf8(number).ok()?.parse().ok()?;
        let rest = rest.strip_suffix(SEQ)?;
        let prev = rest.strip_suffix(b"\"").and_then(|rest| Some(hex_at_end(rest, PREV)?.1));
        Some(Self { body, seq, prev, mac })
    }

    /// The chain's end with it, if it is the line after `link` and was written with `key`.
    pub(super) fn after(&self, link: Link, key: &Key) -> Option<Link> {
        let sound = self.seq == link.seq + 1
            && self.prev.is_none_or(|prev| prev == link.mac)
            && self.mac == link.mac_of(key, self.body);
        sound.then_some(Link { seq: self.seq, mac: self.mac })
    }
}

/// What stands before `name` and a hash in lower case, and that hash.
fn hex_at_end<'t>(text: &'t [u8], name: &[u8]) -> Option<(&'t [u8], Hash)> {
    let (rest, hex) = text.split_at_checked(text.len().checked_sub(HEX)?)?;
    let hash = Hash::from_hex(hex).ok()?;
    let canonical = self::hex(&hash) == hex;
    Some((rest.strip_suffix(name)?, hash)).filter(|_| canonical)
}

/// Where the log begins and ends: what finds lines that were cut off at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The first line of the oldest file that is kept.
    pub(super) from: u64,
    pub(super) link: Link,
    /// How long the newest file is.
    pub(super) bytes: u64,
}

impl Head {
    /// As it is written. It is sealed, so that nobody without the key moves the log's end.
    pub(super) fn written(&self, key: &Key) -> io::Result<[u8; HEAD_BYTES]> {
        let mut text = [b' '; HEAD_BYTES];
        let mut rest = &mut text[..HEAD_BYTES - 1];
        let Self { from, link: Link { seq, mac }, bytes } = self;
        let mac = mac.to_hex();
        write!(rest, "{{\"from\":{from},\"seq\":{seq},\"bytes\":{bytes},\"mac\":\"{mac}\"")?;
        let length = HEAD_BYTES - 1 - rest.len();
        let seal = blake3::keyed_hash(&key.heads, &text[..length]).to_hex();
        let mut rest = &mut text[length..HEAD_BYTES - 1];
        write!(rest, ",\"seal\":\"{seal}\"}}")?;
        text[HEAD_BYTES - 1] = b'\n';
        Ok(text)
    }

    /// The head in `text`, if it was sealed with `key` and stands as it was written.
    pub(super) fn of(text: &[u8], key: &Key) -> Option<Self> {
        #[derive(Deserialize)]
        struct Said {
            from: u64,
            seq: u64,
            bytes: u64,
            mac: String,
        }
        let said: Said = serde_json::from_slice(text).ok()?;
        let mac = Hash::from_hex(&said.mac).ok()?;
        let head = Self { from: said.from, link: Link { seq: said.seq, mac }, bytes: said.bytes };
        (head.written(key).ok()?.as_slice() == text).then_some(head)
    }
}
