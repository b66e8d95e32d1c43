//! What is known of the files of one folder: their passages and the terms in them, in memory.
//!
//! It is brought up to date before each search: whoever changed a file finds what it says now.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use toolgate_contract::{Fault, ToolError};

use super::chunks::passages;
use super::language::{Sort, is_generated};
use super::words::{Term, distinct, terms};
use super::{Indexed, Settings};
use crate::world::Root;
use crate::world::root::{Etag, File, Kind, Moment, Sight, Stamp, Start, Walk, Watch};

/// A larger file stays out: it is data.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// So does one with a longer line.
const LINE_BYTES_MAX: usize = 4 << 10;
/// How much is looked at to tell whether a file is text.
const HEAD_BYTES: usize = 8 << 10;

/// The files of a folder.
#[derive(Default)]
pub(super) struct Index {
    files: BTreeMap<String, Known>,
    /// In how many passages each term is.
    frequency: HashMap<Term, u32>,
    chunks: usize,
    /// How many terms the passages have together.
    length: u64,
    text_bytes: u64,
    texts: usize,
    complete: bool,
    round: u64,
}

/// What is known of a file.
struct Known {
    stamp: Stamp,
    /// Whether it had been left alone for a tick of the clock when it was read: only then does its
    /// stamp tell of every change since.
    settled: bool,
    round: u64,
    text: Option<Arc<Text>>,
}

/// A file that is text.
pub(super) struct Text {
    pub(super) path: String,
    pub(super) sort: Sort,
    pub(super) etag: Etag,
    /// The terms of its path, in order.
    pub(super) path_terms: Vec<Term>,
    /// The terms of its name without its end, in order.
    pub(super) name_terms: Vec<Term>,
    pub(super) chunks: Vec<Chunk>,
    bytes: u64,
}

/// A passage of a file.
pub(super) struct Chunk {
    pub(super) first: u32,
    pub(super) last: u32,
    /// How many terms it has, those that come again included.
    pub(super) length: u32,
    pub(super) names: Box<[Box<str>]>,
    /// Its terms in order, each once.
    terms: Box<[Counted]>,
}

/// A term and how often it is in the text and in the names of a passage: 48, 8 and 8 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Counted(u64);

impl Counted {
    fn new(term: Term, in_text: u64, in_names: u64) -> Self {
        Self(term.0 << 16 | in_text.min(255) << 8 | in_names.min(255))
    }

    fn term(self) -> Term {
        Term(self.0 >> 16)
    }

    #[allow(clippy::cast_precision_loss, reason = "it is below 256")]
    fn counts(self) -> (f32, f32) {
        ((self.0 >> 8 & 255) as f32, (self.0 & 255) as f32)
    }
}

impl Chunk {
    /// How often `term` is in the text and in the names.
    pub(super) fn counts(&self, term: Term) -> Option<(f32, f32)> {
        let at = self.terms.binary_search_by_key(&term, |it| it.term()).ok()?;
        Some(self.terms[at].counts())
    }

    /// Each term, and how often it is in the text.
    pub(super) fn terms(&self) -> impl Iterator<Item = (Term, f32)> + '_ {
        self.terms.iter().map(|it| (it.term(), it.counts().0))
    }
}

impl Text {
    fn of(root: &Root, path: &str, file: &File, content: &[u8]) -> Option<Self> {
        let head = &content[..content.len().min(HEAD_BYTES)];
        let text = std::str::from_utf8(content).ok().filter(|_| !head.contains(&0))?;
        if is_generated(path) || text.split('\n').any(|line| line.len() > LINE_BYTES_MAX) {
            return None;
        }
        let sort = Sort::of(path);
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let chunk = |it: super::chunks::Passage<'_>| {
            let mut counted: Vec<(Term, bool)> = Vec::new();
            terms(it.text, |term| counted.push((term, false)));
            let length = u32::try_from(counted.len()).unwrap_or(u32::MAX);
            it.names.iter().for_each(|name| terms(name, |term| counted.push((term, true))));
            counted.sort_unstable();
            let counted = counted.chunk_by(|a, b| a.0 == b.0).map(|same| {
                let in_names = same.iter().filter(|(_, in_name)| *in_name).count() as u64;
                Counted::new(same[0].0, same.len() as u64 - in_names, in_names)
            });
            Chunk {
                first: it.first,
                last: it.last,
                length,
                terms: counted.collect(),
                names: it.names.into_iter().map(String::into_boxed_str).collect(),
            }
        };
        Some(Self {
            path: path.to_owned(),
            sort,
            etag: root.etag_of(content, file.meta()),
            path_terms: distinct(path),
            name_terms: distinct(stem),
            chunks: passages(text, sort.kind).into_iter().map(chunk).collect(),
            bytes: content.len() as u64,
        })
    }
}

impl Index {
    /// Every file that is text.
    pub(super) fn texts(&self) -> impl Iterator<Item = &Arc<Text>> {
        self.files.values().filter_map(|known| known.text.as_ref())
    }

    /// How rare `term` is.
    #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
    pub(super) fn rarity(&self, term: Term) -> f32 {
        let all = self.chunks as f32;
        let has = self.frequency.get(&term).copied().unwrap_or(0) as f32;
        (1.0 + (all - has + 0.5) / (has + 0.5)).ln()
    }

    /// How many terms a passage has on average.
    #[allow(clippy::cast_precision_loss, reason = "a weight is no count")]
    pub(super) fn length_average(&self) -> f32 {
        (self.length as f32 / self.chunks.max(1) as f32).max(1.0)
    }

    pub(super) fn indexed(&self) -> Indexed {
        Indexed { files: self.texts as u64, chunks: self.chunks as u64, complete: self.complete }
    }

    /// Looks through `folder` of `root` for what changed since the last time, until `until`.
    ///
    /// What is read is kept however this ends, so whoever looks next goes on from there.
    pub(super) fn refresh(
        &mut self,
        root: &Root,
        folder: &str,
        settings: &Settings,
        until: Instant,
        watch: &Watch,
    ) -> Result<(), ToolError> {
        self.round += 1;
        self.complete = true;
        let Start::Folder(folder) = root.start(folder)? else {
            return Err(ToolError::failed(format!("`{folder}` is a file, not a folder")));
        };
        let sight = Sight { ignored: false, hidden: true };
        let mut walk = Walk::new(root, folder, sight, None, watch)?;
        while let Some(found) = walk.next()? {
            if Instant::now() >= until {
                // What was not come by yet may still be there.
                self.complete = false;
                return Ok(());
            }
            // A name that is no text could not be told to anybody.
            if found.kind == Kind::File
                && let Some(path) = found.path.to_str()
                && let Ok(file) = root.open_walked(&found.path)
            {
                self.look(root, path, &file, settings, watch)?;
                watch.progress(self.texts as u64, None, "files indexed");
            }
        }
        self.complete &= walk.unread == 0;
        let round = self.round;
        let gone: Vec<String> =
            self.files.iter().filter(|(_, it)| it.round != round).map(|it| it.0.clone()).collect();
        gone.iter().for_each(|path| self.forget(path));
        Ok(())
    }

    /// Reads `file`, which is at `path`, if it is not as it was.
    fn look(
        &mut self,
        root: &Root,
        path: &str,
        file: &File,
        settings: &Settings,
        watch: &Watch,
    ) -> Result<(), ToolError> {
        let (stamp, round) = (file.meta().stamp(), self.round);
        if let Some(known) = self.files.get_mut(path)
            && known.settled
            && known.stamp == stamp
        {
            known.round = round;
            return Ok(());
        }
        self.forget(path);
        let size = file.meta().size();
        if size > FILE_BYTES_MAX {
            self.take(path, Known { stamp, settled: true, round, text: None });
            return Ok(());
        }
        if self.texts >= settings.files_max || self.text_bytes + size > settings.text_bytes_max {
            self.complete = false;
            return Ok(());
        }
        let settled = !file.meta().is_changed_since(Moment::now());
        match file.read(0, size, watch) {
            Ok(content) => {
                let text = Text::of(root, path, file, &content).map(Arc::new);
                self.take(path, Known { stamp, settled, round, text });
            }
            Err(err) if err.fault == Fault::Canceled => return Err(err),
            Err(_) => self.complete = false,
        }
        Ok(())
    }

    fn take(&mut self, path: &str, known: Known) {
        if let Some(text) = &known.text {
            self.texts += 1;
            self.text_bytes += text.bytes;
            for chunk in &text.chunks {
                self.chunks += 1;
                self.length += u64::from(chunk.length);
                for (term, _) in chunk.terms() {
                    *self.frequency.entry(term).or_default() += 1;
                }
            }
        }
        self.files.insert(path.to_owned(), known);
    }

    fn forget(&mut self, path: &str) {
        let Some(text) = self.files.remove(path).and_then(|known| known.text) else { return };
        self.texts -= 1;
        self.text_bytes -= text.bytes;
        for chunk in &text.chunks {
            self.chunks -= 1;
            self.length -= u64::from(chunk.length);
            for (term, _) in chunk.terms() {
                if let Some(count) = self.frequency.get_mut(&term) {
                    *count -= 1;
                    if *count == 0 {
                        self.frequency.remove(&term);
                    }
                }
            }
        }
    }
}
