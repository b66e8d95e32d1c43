//! The chained file: written by every toolgate of a user, each batch under a lock, and put aside
//! when it is full.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::chain::{HEAD_BYTES, Head, Key, Line, Link};

/// How long the rest of a log may be that is read to see how it ends.
const REST_BYTES_MAX: u64 = 64 << 20;

/// The file that records are chained in.
pub(super) struct Chain {
    path: PathBuf,
    key: Key,
    /// How many older files are kept.
    keep: u32,
    /// How large the file grows before it is put aside.
    bytes_max: u64,
    file: File,
    /// Held while anything is written, by whichever process writes.
    head_file: File,
    /// Where the log ended when this process last wrote.
    known: Option<(Head, [u8; HEAD_BYTES])>,
    lines: Vec<u8>,
}

/// How a log ends that is about to be written.
struct End {
    head: Head,
    /// What must be said before anything else, as the body of a line.
    news: Option<String>,
    /// Whether a record was cut off: its line is to be ended first.
    torn: bool,
}

impl Chain {
    /// The log at `path`, made with its folders if there is none.
    pub(super) fn open(path: &Path, key: Key, keep: u32, bytes_max: u64) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let (file, head_file) = (append(path)?, open_head(path)?);
        let (path, lines) = (path.to_owned(), Vec::new());
        let known = None;
        let mut chain = Self { path, key, keep, bytes_max, file, head_file, known, lines };
        chain.add(&[])?;
        Ok(chain)
    }

    /// Adds these JSON objects as lines: all of them or, where it fails, none.
    pub(super) fn add(&mut self, bodies: &[&[u8]]) -> io::Result<()> {
        self.lock()?;
        let added = self.add_locked(bodies);
        // It is given back when the process ends, too.
        let _ = self.head_file.unlock();
        added
    }

    /// Waits until what was added is on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// The same for where it ends.
    pub(super) fn sync_head(&mut self) -> io::Result<()> {
        self.head_file.sync_data()
    }

    /// Holds the lock of the head that is at its path: somebody may have removed the one we had.
    fn lock(&mut self) -> io::Result<()> {
        loop {
            self.head_file.lock()?;
            if is_at(&head_of(&self.path), &self.head_file) {
                return Ok(());
            }
            self.head_file = open_head(&self.path)?;
        }
    }

    fn add_locked(&mut self, bodies: &[&[u8]]) -> io::Result<()> {
        let End { mut head, news, torn } = self.end()?;
        if head.bytes >= self.bytes_max && news.is_none() {
            head = self.roll(head)?;
        }
        self.lines.clear();
        if torn {
            self.lines.push(b'\n');
        }
        let mut is_first = head.bytes == 0;
        for body in news.iter().map(String::as_bytes).chain(bodies.iter().copied()) {
            head.link = head.link.add(&self.key, body, is_first, &mut self.lines)?;
            is_first = false;
        }
        if let Err(err) = self.file.write_all(&self.lines) {
            // None of it was written, then; where even that fails, it counts as cut off.
            let _ = self.file.set_len(head.bytes);
            return Err(err);
        }
        head.bytes += self.lines.len() as u64;
        self.tell(head)
    }

    /// Writes where the log ends.
    fn tell(&mut self, head: Head) -> io::Result<()> {
        let text = head.written(&self.key)?;
        if self.known.as_ref().is_none_or(|(_, known)| *known != text) {
            self.head_file.write_all_at(&text, 0)?;
        }
        self.known = Some((head, text));
        Ok(())
    }

    /// Where the log ends now, whoever wrote last and however that ended.
    fn end(&mut self) -> io::Result<End> {
        if !is_at(&self.path, &self.file) {
            self.file = append(&self.path)?;
        }
        let size = self.file.metadata()?.len();
        let mut text = [0; HEAD_BYTES + 1];
        let length = read_at_most(&self.head_file, &mut text)?;
        let told = match &self.known {
            Some((head, known)) if text[..length] == *known => Some(*head),
            Some(_) | None => Head::of(&text[..length], &self.key),
        };
        // What this process wrote last was the end once, whatever a head says since.
        let known = self.known.as_ref().map(|(head, _)| *head);
        let head = match (told, known) {
            (Some(told), Some(known)) if told.link.seq < known.link.seq => Some(known),
            (told, known) => told.or(known),
        };
        match head {
            Some(head) if head.bytes == size => Ok(End { head, news: None, torn: false }),
            Some(head) => self.caught_up(head, size),
            None => self.anew(length == 0),
        }
    }

    /// Goes on from `head` in a file of `size`, which was told to be as long as the head says.
    fn caught_up(&self, mut head: Head, size: u64) -> io::Result<End> {
        if size < head.bytes {
            let (path, link) = (self.path.display(), head.link.seq);
            tracing::error!(
                "the audit log {path} is shorter than it was: records up to {link} were written \
                 to it, and its end is gone"
            );
            head.bytes = 0;
            let rest = self.rest(head.bytes, size)?;
            let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            return Ok(end(head, size, &rest[whole..]));
        }
        let rest = self.rest(head.bytes, size)?;
        let (mut unread, mut foreign) = (rest.as_slice(), false);
        while let Some(length) = unread.iter().position(|byte| *byte == b'\n') {
            let line = Line::of(&unread[..length]);
            match line.and_then(|line| line.after(head.link, &self.key)) {
                Some(link) => head.link = link,
                None => foreign = true,
            }
            unread = &unread[length + 1..];
        }
        if foreign {
            let path = self.path.display();
            tracing::error!("something else than toolgate wrote to the audit log {path}");
        }
        Ok(end(head, size, unread))
    }

    /// What is in the file from `from` on.
    fn rest(&self, from: u64, size: u64) -> io::Result<Vec<u8>> {
        let from = from.max(size.saturating_sub(REST_BYTES_MAX));
        let mut rest = vec![0; usize::try_from(size - from).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut rest, from)?;
        Ok(rest)
    }

    /// Begins a chain: there is no head, or none that was sealed with this key.
    fn anew(&mut self, no_head: bool) -> io::Result<End> {
        let newest = [self.path.clone(), aside(&self.path, 1)];
        let before = newest.iter().find_map(|path| last_line(path).transpose()).transpose()?;
        let chained = before.as_deref().and_then(|line| Line::of(line).map(|line| line.seq));
        if self.file.metadata()?.len() > 0 {
            self.put_aside()?;
        }
        let link = Link::none(chained.unwrap_or(0));
        let head = Head { from: link.seq + 1, link, bytes: 0 };
        self.head_file.set_len(0)?;
        self.tell(head)?;
        let after = match (before.is_some(), chained.is_some() || !no_head) {
            (_, true) => Some("unproven"),
            (true, false) => Some("unchained"),
            (false, false) => None,
        };
        let news = after.map(|after| {
            let now = Timestamp::now();
            format!("{{\"ts\":\"{now}\",{}\"{after}\"}}", super::verify::BEGAN)
        });
        Ok(End { head, news, torn: false })
    }

    /// Goes on in a new file.
    fn roll(&mut self, mut head: Head) -> io::Result<Head> {
        // Told before: a server that is killed in between has let go of nothing that is missed.
        if let Some(from) = self.left_by_one_more()? {
            head.from = head.from.max(from);
            self.tell(head)?;
        }
        self.put_aside()?;
        head.bytes = 0;
        self.tell(head)?;
        Ok(head)
    }

    /// Which line is the first that is left once one file more is put aside, if the oldest is
    /// forgotten for that.
    fn left_by_one_more(&self) -> io::Result<Option<u64>> {
        if self.aside() < self.keep {
            return Ok(None);
        }
        let oldest = match self.keep {
            1 => self.path.clone(),
            keep => aside(&self.path, keep - 1),
        };
        Ok(first_line(&oldest)?.as_deref().and_then(|line| Some(Line::of(line)?.seq)))
    }

    /// Puts the file aside, and forgets the oldest beyond those that are kept.
    fn put_aside(&mut self) -> io::Result<()> {
        for number in (1..=self.aside().min(self.keep - 1)).rev() {
            std::fs::rename(aside(&self.path, number), aside(&self.path, number + 1))?;
        }
        std::fs::rename(&self.path, aside(&self.path, 1))?;
        self.file = append(&self.path)?;
        Ok(())
    }

    /// How many older files there are: not those behind a gap that a crash left.
    fn aside(&self) -> u32 {
        let taken = |number: &u32| aside(&self.path, *number).exists();
        u32::try_from((1..=self.keep).take_while(taken).count()).unwrap_or(u32::MAX)
    }
}

/// The end after `size` bytes, of which the last are `torn`.
fn end(mut head: Head, size: u64, torn: &[u8]) -> End {
    head.bytes = size;
    let cut = !torn.is_empty();
    let news = cut.then(|| {
        let (now, torn) = (Timestamp::now(), super::verify::recovered(torn));
        format!("{{\"ts\":\"{now}\",{torn}}}")
    });
    End { head, news, torn: cut }
}

/// Where the file at `path` is put when it is full, and where those before it are.
pub(super) fn aside(path: &Path, number: u32) -> PathBuf {
    with_suffix(path, &format!(".{number}"))
}

/// Where it is kept where the log at `path` ends.
pub(super) fn head_of(path: &Path) -> PathBuf {
    with_suffix(path, ".head")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

fn open_head(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    options.open(head_of(path))
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
}

fn is_at(path: &Path, file: &File) -> bool {
    let (Ok(at_path), Ok(open)) = (std::fs::metadata(path), file.metadata()) else { return false };
    (at_path.dev(), at_path.ino()) == (open.dev(), open.ino())
}

/// Reads from the start of `file` until it ends or `buffer` is full.
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

fn opened(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// The first line of the file at `path`, if there is one.
pub(super) fn first_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = opened(path)? else { return Ok(None) };
    let mut line = Vec::new();
    let mut pieces = io::BufReader::new(file.take(REST_BYTES_MAX));
    io::BufRead::read_until(&mut pieces, b'\n', &mut line)?;
    line.pop_if(|byte| *byte == b'\n');
    Ok(Some(line).filter(|line| !line.is_empty()))
}

/// The last whole line of the file at `path`, empty where there is none in it.
fn last_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = opened(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    // What stands after the last line break is no whole line.
    let last = text.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or_default();
    Ok((!text.is_empty()).then(|| last.to_vec()))
}
