//! The index: which words occur how often in which fields of which tools.

use foldhash::{HashMap, HashMapExt};
use toolgate_chunks::words::words;

use crate::ToolSearchDocument;

/// Number of indexed fields of a tool.
pub(crate) const FIELDS: usize = 5;

/// Occurrences of one word in the texts of one tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolWordPosting {
    pub(crate) tool: u32,
    /// Number of occurrences of the word in each field, at most 255 for a field.
    pub(crate) counts: [u8; FIELDS],
}

/// A search index of tools. The index is never edited: a change of the tools creates a new index.
#[derive(Debug, Default)]
pub struct ToolSearchIndex {
    ids: Vec<Box<str>>,
    names: Vec<Box<str>>,
    postings: HashMap<Box<str>, Box<[ToolWordPosting]>>,
    /// Number of words in each field of each tool, by position of the tool.
    lengths: Vec<[u16; FIELDS]>,
}

/// The tools that one caller may see, with the mean lengths of their fields. Tools outside of this
/// set do not influence the caller's scores.
#[derive(Debug, Clone)]
pub struct CallerVisibleTools {
    visible: Vec<bool>,
    pub(crate) count: usize,
    pub(crate) mean_lengths: [f32; FIELDS],
}

impl ToolSearchIndex {
    /// Creates an index of `tools`, each given with its id, in order of id.
    pub fn new<'t>(tools: impl IntoIterator<Item = (&'t str, ToolSearchDocument)>) -> Self {
        let mut index = Self::default();
        let mut postings: HashMap<Box<str>, Vec<ToolWordPosting>> = HashMap::new();
        for (id, document) in tools {
            index.add(id, &document, &mut postings);
        }
        index.postings =
            postings.into_iter().map(|(word, all)| (word, all.into_boxed_slice())).collect();
        index
    }

    fn add(
        &mut self,
        id: &str,
        document: &ToolSearchDocument,
        postings: &mut HashMap<Box<str>, Vec<ToolWordPosting>>,
    ) {
        let Ok(tool) = u32::try_from(self.ids.len()) else { return };
        let mut lengths = [0_u16; FIELDS];
        let server = format!("{} {}", document.server, document.server_description);
        let fields = [
            &document.name,
            &server,
            &document.description,
            &document.argument_names,
            &document.argument_texts,
        ];
        for (field, text) in fields.into_iter().enumerate() {
            words(text, |word| {
                lengths[field] = lengths[field].saturating_add(1);
                let known = match postings.get_mut(word) {
                    Some(known) => known,
                    None => postings.entry(word.into()).or_default(),
                };
                match known.last_mut().filter(|last| last.tool == tool) {
                    Some(last) => last.counts[field] = last.counts[field].saturating_add(1),
                    None => {
                        let mut counts = [0; FIELDS];
                        counts[field] = 1;
                        known.push(ToolWordPosting { tool, counts });
                    }
                }
            });
        }
        self.ids.push(id.into());
        self.names.push(document.name.as_str().into());
        self.lengths.push(lengths);
    }

    /// Returns the number of tools in the index.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if the index contains no tools.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the id of the tool at the position `at` of the index.
    pub fn id(&self, at: usize) -> &str {
        &self.ids[at]
    }

    /// Returns the name of the tool at the position `at` of the index, without its server.
    pub(crate) fn name(&self, at: usize) -> &str {
        &self.names[at]
    }

    /// Returns the position of the tool `id` in the index, or `None` if the index does not contain
    /// the tool.
    pub(crate) fn place(&self, id: &str) -> Option<usize> {
        self.ids.binary_search_by(|known| (**known).cmp(id)).ok()
    }

    pub(crate) fn lengths(&self, at: usize) -> [u16; FIELDS] {
        self.lengths[at]
    }

    /// Returns the occurrences of `word` in tools, in order of tool.
    pub(crate) fn postings(&self, word: &str) -> &[ToolWordPosting] {
        self.postings.get(word).map(|all| &**all).unwrap_or_default()
    }

    /// Returns the tools that a caller may see: those at the positions that `is_visible` accepts.
    pub fn view(&self, is_visible: impl Fn(usize) -> bool) -> CallerVisibleTools {
        let visible: Vec<bool> = (0..self.len()).map(is_visible).collect();
        // Whole numbers are added, so the sums do not depend on the tools that are left out.
        let mut sums = [0_u64; FIELDS];
        let seen = visible.iter().zip(&self.lengths).filter(|(visible, _)| **visible);
        let mut count = 0_usize;
        for (_, lengths) in seen {
            count += 1;
            sums.iter_mut().zip(lengths).for_each(|(sum, length)| *sum += u64::from(*length));
        }
        let mean_lengths = sums.map(|sum| mean(sum, count));
        CallerVisibleTools { visible, count, mean_lengths }
    }

    /// Returns the approximate size of the index in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<(Box<str>, Box<[ToolWordPosting]>)>();
        let postings: usize = self
            .postings
            .iter()
            .map(|(word, all)| entry + word.len() + all.len() * size_of::<ToolWordPosting>())
            .sum();
        let texts = self.ids.iter().chain(&self.names).map(|text| text.len() + 16).sum::<usize>();
        postings + texts + self.lengths.len() * size_of::<[u16; FIELDS]>()
    }
}

/// Returns true if the word occurrences `postings`, in order of tool, contain the tool at the
/// position `at`.
pub(crate) fn has_posting(postings: &[ToolWordPosting], at: usize) -> bool {
    u32::try_from(at).is_ok_and(|at| postings.binary_search_by_key(&at, |it| it.tool).is_ok())
}

impl CallerVisibleTools {
    /// Returns true if the caller may see the tool at the position `at` of the index.
    pub fn shows(&self, at: usize) -> bool {
        self.visible.get(at).copied().unwrap_or_default()
    }

    /// Returns the number of tools that the caller may see.
    pub fn count(&self) -> usize {
        self.count
    }
}

#[allow(clippy::cast_precision_loss, reason = "a mean needs no exact sum")]
fn mean(sum: u64, count: usize) -> f32 {
    sum as f32 / count.max(1) as f32
}
