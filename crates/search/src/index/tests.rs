//! Tests of the index's public interface: adding, finding, ranking, filtering, damage and sharing.
#![allow(clippy::disallowed_methods, reason = "the tests damage files and kill processes")]

mod damage;
mod filters;
mod literals;
mod names;
mod processes;
mod ranking;
mod speed;
mod writing;

use toolgate_chunks::{ChunkKind, TextChunk};

use super::{
    CandidateSearchQuery, FoundCandidates, IndexError, IndexLocation, IndexOpenOutcome,
    IndexSnapshot, SearchIndex, SearchIndexWriter, UnembeddedChunk, VectorSource,
};
use crate::document::borrow_texts;
use crate::rank::{ChunkCandidate, WeightedQuery};
use crate::{ChunkHash, DocumentFilter, IndexDocument, VectorSpace};

/// Document in which each paragraph is a chunk. The first line of a paragraph is the head of the
/// chunk, and the first word of this line is the chunk's name.
pub(super) struct TestDocument {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) tags: Vec<String>,
}

impl TestDocument {
    pub(super) fn new(path: &str, text: &str, tags: &[&str]) -> Self {
        let tags = tags.iter().map(|&it| it.to_owned()).collect();
        Self { path: path.to_owned(), text: text.to_owned(), tags }
    }

    pub(super) fn chunks(&self) -> Vec<TextChunk> {
        let mut chunks = Vec::new();
        let mut at = 0;
        let mut line = 1;
        for text in self.text.split("\n\n") {
            let lines = u32::try_from(text.lines().count()).unwrap();
            let head = text.lines().next().unwrap_or_default();
            let name = head.split_whitespace().next();
            if !text.is_empty() {
                chunks.push(TextChunk {
                    first: line,
                    last: line + lines - 1,
                    bytes: at..at + text.len(),
                    kind: ChunkKind::Function,
                    names: name.map(str::to_owned).into_iter().collect(),
                    within: Vec::new(),
                    head: head.to_owned(),
                    doc: String::new(),
                    doc_bytes: Vec::new(),
                });
            }
            (at, line) = (at + text.len() + 2, line + lines + 1);
        }
        chunks
    }

    pub(super) fn put(&self, writer: &mut SearchIndexWriter, stamp: &[u8]) {
        let chunks = self.chunks();
        writer.put(&self.document(stamp, &chunks)).unwrap();
    }

    pub(super) fn document<'t>(
        &'t self,
        stamp: &'t [u8],
        chunks: &'t [TextChunk],
    ) -> IndexDocument<'t> {
        IndexDocument {
            path: &self.path,
            fingerprint: stamp,
            etag: "e",
            commit: None,
            lang: Some("text"),
            tags: &self.tags,
            text: &self.text,
            chunks,
        }
    }

    pub(super) fn hashes(&self) -> Vec<ChunkHash> {
        let chunks = self.chunks();
        let document = self.document(b"", &chunks);
        chunks.iter().map(|it| ChunkHash::for_texts(&borrow_texts(&document.texts(it)))).collect()
    }
}

pub(super) fn filled(docs: &[TestDocument]) -> (SearchIndex, IndexSnapshot) {
    let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    docs.iter().for_each(|doc| doc.put(&mut writer, b"1"));
    writer.commit().unwrap();
    let snapshot = index.snapshot().unwrap();
    (index, snapshot)
}

pub(super) fn find(snapshot: &IndexSnapshot, query: &str) -> Vec<ChunkCandidate> {
    ask(snapshot, &snapshot.weigh_question(query).unwrap(), &DocumentFilter::default(), 100)
        .candidates
}

pub(super) fn ask(
    snapshot: &IndexSnapshot,
    question: &WeightedQuery,
    filter: &DocumentFilter,
    limit: usize,
) -> FoundCandidates {
    let sought = CandidateSearchQuery { static_vector: None, model_vector: None, filter, limit };
    snapshot.candidates(Some(question), &sought, &|| true).unwrap()
}

pub(super) fn paths(candidates: &[ChunkCandidate]) -> Vec<&str> {
    candidates.iter().map(|it| it.summary.path.as_str()).collect()
}

#[test]
fn a_document_is_found_after_a_commit_and_replaced_by_its_path() {
    let (index, begun) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    assert_eq!(begun, IndexOpenOutcome::Created);
    let mut writer = index.writer().unwrap().unwrap();
    assert!(index.writer().unwrap().is_none(), "only one process writes at a time");
    let before = index.snapshot().unwrap();
    TestDocument::new("a.txt", "alpha one\nbody\n\nbeta two", &[]).put(&mut writer, b"1");
    TestDocument::new("empty.txt", "", &[]).put(&mut writer, b"2");
    assert_eq!(index.snapshot().unwrap().counts().documents, 0, "nothing is committed yet");
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((now.counts().documents, now.counts().chunks), (2, 2));
    let known = now.documents().unwrap();
    assert_eq!(known["empty.txt"].fingerprint, b"2", "a document without chunks is stored, too");
    let found = find(&now, "beta");
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.summary.first, found.summary.last), (4, 4));
    assert_eq!(found.summary.names, ["beta"]);
    assert_eq!(found.counts, [[1, 0, 0, 1, 0, 1]]);

    TestDocument::new("a.txt", "gamma three", &[]).put(&mut writer, b"3");
    writer.commit().unwrap();
    let after = index.snapshot().unwrap();
    assert!(find(&after, "beta").is_empty() && find(&after, "gamma").len() == 1);
    assert_eq!(find(&now, "beta").len(), 1, "a snapshot does not change");
    assert_eq!(before.counts().documents, 0);

    writer.remove("a.txt").unwrap();
    writer.commit().unwrap();
    assert_eq!(paths(&find(&index.snapshot().unwrap(), "gamma txt")), [""; 0]);
    drop(writer);
    assert!(index.writer().unwrap().is_some(), "the write lock is free again");
}

#[test]
fn a_path_put_twice_before_a_commit_is_indexed_once() {
    let (index, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    TestDocument::new("a.txt", "alpha", &[]).put(&mut writer, b"1");
    TestDocument::new("a.txt", "beta", &[]).put(&mut writer, b"2");
    TestDocument::new("b.txt", "alpha", &[]).put(&mut writer, b"1");
    writer.remove("b.txt").unwrap();
    writer.commit().unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!(now.counts().documents, 1);
    assert!(find(&now, "alpha").is_empty() && find(&now, "beta").len() == 1);
}

#[test]
fn small_commits_leave_few_segments_and_resting_ends_the_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.path()), None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    for at in 0..300 {
        let path = format!("src/{}.txt", at % 40);
        TestDocument::new(&path, &format!("word{at} here\n\nother{at} there"), &[])
            .put(&mut writer, b"1");
        writer.commit().unwrap();
    }
    writer.finish().unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!((now.counts().documents, now.counts().chunks), (40, 80));
    assert!(now.inner.segments.len() <= 4, "{} segments", now.inner.segments.len());
    assert_eq!(find(&now, "299").len(), 2);
    assert!(find(&now, "100").is_empty());
    assert!(writer.is_idle());
    TestDocument::new("src/again.txt", "again", &[]).put(&mut writer, b"1");
    writer.commit().unwrap();
    assert_eq!(
        find(&index.snapshot().unwrap(), "again").len(),
        1,
        "indexing works again after resting"
    );
}

#[test]
fn vectors_are_set_by_hash_and_found_by_similarity() {
    let space = VectorSpace { model: "test".to_owned(), dimensions: 4 };
    let folder = tempfile::tempdir().unwrap();
    let place = IndexLocation::Folder(folder.path());
    let (index, _) = SearchIndex::open(place, Some(&space)).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    let docs = [
        TestDocument::new("a.txt", "alpha\n\nbeta", &["x"]),
        TestDocument::new("b.txt", "gamma", &["y"]),
    ];
    docs.iter().for_each(|doc| doc.put(&mut writer, b"1"));
    writer.commit().unwrap();
    let without = index.snapshot().unwrap().unembedded(10).unwrap();
    let hashes: Vec<ChunkHash> = without.iter().map(|it| it.hash).collect();
    let [alpha, beta] = docs[0].hashes()[..] else { panic!() };
    let gamma = docs[1].hashes()[0];
    assert_eq!(hashes, [gamma, beta, alpha], "the newest first");
    assert!(
        matches!(&without[0], UnembeddedChunk { path, first: 1, last: 1, .. } if path == "b.txt")
    );

    let err = writer.add_vectors(&[(gamma, vec![1.0, 0.0])]).unwrap_err();
    assert!(matches!(err, IndexError::Refused(_)), "{err}");
    let unit = |at: usize| (0..4).map(|it| if it == at { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    writer.add_vectors(&[(gamma, unit(0)), (alpha, unit(1))]).unwrap();
    let now = index.snapshot().unwrap();
    assert_eq!(now.counts().with_vectors, 2);
    assert_eq!(now.unembedded(10).unwrap().len(), 1);

    let query = unit(0);
    let all = DocumentFilter::default();
    let sought = |filter| CandidateSearchQuery {
        static_vector: None,
        model_vector: Some(&query),
        filter,
        limit: 1,
    };
    let found = now.candidates(None, &sought(&all), &|| true).unwrap().candidates;
    assert_eq!(paths(&found), ["b.txt"]);
    assert!((found[0].model_cosine.unwrap() - 1.0).abs() < 0.01);
    assert!(now.vector(found[0].key, VectorSource::Model).unwrap()[0] > 0.99);
    let only = DocumentFilter { prefixes: vec!["a.txt".to_owned()], tags: Vec::new() };
    let found = now.candidates(None, &sought(&only), &|| true).unwrap().candidates;
    assert_eq!(paths(&found), ["a.txt"], "the filter applies before the selection");

    drop((writer, index, now));
    let (index, begun) = SearchIndex::open(place, Some(&space)).unwrap();
    assert_eq!(begun, IndexOpenOutcome::Existing);
    assert_eq!(index.snapshot().unwrap().counts().with_vectors, 2);
    let other = VectorSpace { model: "other".to_owned(), dimensions: 3 };
    let (index, begun) = SearchIndex::open(place, Some(&other)).unwrap();
    assert_eq!(
        begun,
        IndexOpenOutcome::Existing,
        "a change of the model does not rebuild the words"
    );
    assert_eq!(index.snapshot().unwrap().counts().with_vectors, 0);
}

#[test]
fn a_cancelled_search_ends_early() {
    let (_, now) = filled(&[TestDocument::new("a.txt", "alpha", &[])]);
    let question = now.weigh_question("alpha").unwrap();
    let filter = DocumentFilter::default();
    let sought =
        CandidateSearchQuery { static_vector: None, model_vector: None, filter: &filter, limit: 1 };
    let err = now.candidates(Some(&question), &sought, &|| false).unwrap_err();
    assert_eq!(err, IndexError::Canceled);
}
