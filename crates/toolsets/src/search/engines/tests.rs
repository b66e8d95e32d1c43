//! Checks that every search engine on a database server must pass.
#![allow(clippy::disallowed_methods, reason = "a test reads its corpus itself")]
#![allow(clippy::cast_precision_loss, reason = "few chunks")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toolgate_chunks::{ChunkKind, chunks};
use toolgate_search::index::{IndexLocation, SearchIndex};
use toolgate_search::rank::{ChunkTexts, FIELDS, count_words, rank};
use toolgate_search::{DocumentFilter, static_model};

use super::*;

/// Queries about the corpus, each with the file that must be the best match.
pub(super) const GOLD: [(&str, &str); 12] = [
    ("authentication middleware", "src/http/auth.rs"),
    ("gzip compress responses", "src/http/compress.rs"),
    ("retry with exponential backoff", "src/jobs/retry.py"),
    ("shopping cart total price", "web/cart/CartSummary.tsx"),
    ("token bucket", "cmd/proxy/limiter.go"),
    ("remove inactive users", "store/java/UserRepository.java"),
    ("ring_push", "native/ring.c"),
    ("invoices table", "db/schema.sql"),
    ("compute sales tax", "billing/invoice.rb"),
    ("parse comma separated values", "import/CsvReader.cs"),
    ("evictOldest", "cache/lru.js"),
    ("how to roll back a release", "docs/deployment.md"),
];

/// Returns a document at `path` with `text` and `tags`.
pub(super) fn document(path: &str, text: &str, tags: &[&str]) -> StoredDocument {
    StoredDocument {
        path: path.to_owned(),
        stamp: path.as_bytes().to_vec(),
        etag: format!("\"{}\"", text.len()),
        commit: None,
        lang: Some("rust".to_owned()),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        text: text.to_owned(),
        chunks: chunks(path, text),
        metadata: Map::new(),
    }
}

/// Returns the corpus of all search tests. Each file is tagged with its folder.
pub(super) fn corpus() -> Vec<StoredDocument> {
    fn add(folder: &Path, root: &Path, documents: &mut Vec<StoredDocument>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(&path, root, documents);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                let tag = name.split('/').next().unwrap();
                documents.push(document(name, &fs::read_to_string(&path).unwrap(), &[tag, "All"]));
            }
        }
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let mut documents = Vec::new();
    add(&root, &root, &mut documents);
    assert!(documents.len() > 10);
    documents
}

/// Returns an engine query for the words of `query` and its vector from the built-in model.
pub(super) fn search_for(query: &str) -> SearchEngineQuery {
    SearchEngineQuery {
        query: Some(query.to_owned()),
        static_vector: static_model::embed_query(query),
        limit: 100,
        ..SearchEngineQuery::default()
    }
}

/// Returns the identity of the namespace `name` with documents of the origin `source`.
pub(super) fn identity(name: &str, source: NamespaceDocumentSource) -> SearchNamespaceIdentity {
    SearchNamespaceIdentity { root: "/workspace".into(), namespace: name.to_owned(), source }
}

/// Puts `documents` into `engine`, which must be open, and commits.
pub(super) async fn fill(engine: &dyn SearchEngine, documents: Vec<StoredDocument>) {
    let mut writer = next_writer(engine).await;
    writer.put(documents).await.unwrap();
    writer.commit().await.unwrap();
}

/// Waits until the database has noticed that the last writer is gone, and returns a new writer.
pub(super) async fn next_writer(engine: &dyn SearchEngine) -> Box<dyn SearchEngineWriter> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(writer) = engine.acquire_writer().await.unwrap() {
            return writer;
        }
        assert!(Instant::now() < deadline, "the last writer's lock was not released");
    }
}

/// Returns the matches of `query`, best first, as paths and first lines.
pub(super) async fn found(
    engine: &dyn SearchEngine,
    query: SearchEngineQuery,
) -> Vec<(String, u32)> {
    let matched = engine.candidates(query).await.unwrap();
    let question = matched.question.unwrap_or_else(|| WeightedQuery::new("", 0, |_| 0));
    let ranked = rank(&question, &matched.averages, &matched.candidates, true, 20);
    let at = |at: usize| &matched.candidates[at].summary;
    ranked.iter().map(|it| (at(it.index).path.clone(), at(it.index).first)).collect()
}

/// Checks that the results of every query in `engine` equal a ranking of all chunks, with equal
/// counts, rarities, lengths and similarities. `engine` must contain the corpus.
pub(super) async fn check_ranking(engine: &dyn SearchEngine) {
    let corpus = corpus();
    let all: Vec<_> = corpus
        .iter()
        .flat_map(|put| put.chunks.iter().map(move |chunk| (put, chunk)))
        .map(|(put, chunk)| {
            let document = put.as_document();
            let texts = document.texts(chunk).map(std::borrow::Cow::into_owned);
            (put, chunk, texts)
        })
        .collect();
    assert!(all.len() <= 100, "{}: not all can be candidates", all.len());
    for (query, path) in GOLD {
        let chunks_with = |word: &str| {
            let question = WeightedQuery::new(query, 0, |_| 0);
            let at = question.concept_index(word).unwrap();
            let has_word = |texts: &[String; FIELDS]| {
                let texts = texts.each_ref().map(String::as_str);
                count_words(&question, &texts).0[at].iter().any(|it| *it > 0)
            };
            all.iter().filter(|(_, _, texts)| has_word(texts)).count() as u64
        };
        let question = WeightedQuery::new(query, all.len() as u64, chunks_with);
        let near = static_model::embed_query(query);
        let cosine = |texts: &ChunkTexts<'_>| match (&near, static_model::embed_chunk(texts)) {
            (Some(a), Some(b)) => a.iter().zip(b).map(|(a, b)| a * b).sum(),
            (Some(_) | None, _) => 0.0,
        };
        let mut averages =
            IndexStatistics { chunks: all.len() as u64, ..IndexStatistics::default() };
        let candidate = |(key, (put, chunk, texts)): (
            usize,
            &(&StoredDocument, &TextChunk, [String; FIELDS]),
        )| {
            let texts = texts.each_ref().map(String::as_str);
            let (counts, lengths) = count_words(&question, &texts);
            let summary = put.as_document().summary(chunk);
            ChunkCandidate {
                key: key as u64,
                counts,
                lengths,
                static_cosine: cosine(&texts),
                model_cosine: None,
                summary,
            }
        };
        let candidates: Vec<ChunkCandidate> = all.iter().enumerate().map(candidate).collect();
        for it in &candidates {
            for (average, length) in averages.lengths.iter_mut().zip(it.lengths) {
                *average += length as f32 / all.len() as f32;
            }
        }
        let matched = engine.candidates(search_for(query)).await.unwrap();
        for (found, expected) in matched.averages.lengths.iter().zip(averages.lengths) {
            assert!((found - expected).abs() < 0.01, "{:?} {averages:?}", matched.averages);
        }
        let rarity = |it: &WeightedQuery| -> Vec<(String, f32)> {
            it.concepts.iter().map(|it| (it.word.clone(), it.rarity)).collect()
        };
        assert_eq!(rarity(matched.question.as_ref().unwrap()), rarity(&question), "{query}");
        for it in &matched.candidates {
            let is_same = |other: &&ChunkCandidate| {
                (&other.summary.path, other.summary.first) == (&it.summary.path, it.summary.first)
            };
            let expected = candidates.iter().find(is_same).unwrap();
            assert_eq!(
                (&it.summary, &it.counts, it.lengths),
                (&expected.summary, &expected.counts, expected.lengths)
            );
            assert!(
                (it.static_cosine - expected.static_cosine).abs() < 1e-4,
                "{query}: {} {}",
                it.static_cosine,
                expected.static_cosine
            );
        }
        let ranked = rank(&question, &averages, &candidates, true, 20);
        let at = |at: usize| &candidates[at].summary;
        let expected: Vec<(String, u32)> =
            ranked.iter().map(|it| (at(it.index).path.clone(), at(it.index).first)).collect();
        let found = found(engine, search_for(query)).await;
        assert_eq!(found[..5], expected[..5], "{query}");
        assert!(found[..5].iter().any(|(it, _)| it == path), "{query}: {found:?}");
    }
}

/// Checks that a filter accepts all matching documents, even if they are few, and no other
/// documents.
pub(super) async fn check_filters(engine: &dyn SearchEngine) {
    for (prefixes, tags) in [
        (vec!["src/http/"], vec![]),
        (vec!["docs/", "db"], vec![]),
        (vec!["src/http", "src/ht"], vec![]),
        (vec![], vec!["SRC", "all"]),
        (vec!["src/h"], vec!["src"]),
        (vec!["nowhere"], vec![]),
        (vec![], vec!["src", "docs"]),
    ] {
        let filter = DocumentFilter {
            prefixes: prefixes.into_iter().map(str::to_owned).collect(),
            tags: tags.into_iter().map(str::to_owned).collect(),
        };
        let query = "authentication request token table release";
        let filtered = SearchEngineQuery { filter: filter.clone(), ..search_for(query) };
        let found: Vec<_> = found(engine, filtered).await;
        let mut all: Vec<(String, u32)> = Vec::new();
        for put in corpus() {
            if filter.matches(&put.path, &put.tags) {
                all.extend(put.chunks.iter().map(|chunk| (put.path.clone(), chunk.first)));
            }
        }
        let unexpected: Vec<_> = found.iter().filter(|it| !all.contains(it)).collect();
        assert!(unexpected.is_empty(), "{filter:?}: {unexpected:?}");
        // All chunks have a vector, so all are found by it.
        assert_eq!(found.len(), all.len().min(20), "{filter:?}");
    }
}

/// Checks that documents are replaced and removed, and that a commit makes this visible.
pub(super) async fn check_commits(engine: &dyn SearchEngine) {
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    let first = document("a.rs", "/// Finds a quagga.\nfn quagga() {}\n", &["zoo"]);
    writer.put(vec![first, document("empty.rs", "", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    let paths = |documents: BTreeMap<String, StoredDocumentVersion>| {
        documents.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(paths(engine.documents().await.unwrap()), ["a.rs", "empty.rs"]);
    let documents = engine.documents().await.unwrap();
    assert_eq!(documents["a.rs"].stamp, b"a.rs");
    assert_eq!(found(engine, search_for("quagga")).await[0].0, "a.rs");

    let second = document("a.rs", "/// Finds an okapi.\nfn okapi() {}\n", &["zoo"]);
    let text = "it's a \\ 'strange' one\0\u{1F984} naïve_Ünïcode x86_64";
    writer.put(vec![second, document("b/it's.rs", text, &["it's"])]).await.unwrap();
    writer.commit().await.unwrap();
    let matched = engine.candidates(search_for("quagga")).await.unwrap();
    let has_word = |it: &ChunkCandidate| it.counts.iter().any(|it| it.iter().any(|it| *it > 0));
    assert!(!matched.candidates.iter().any(has_word), "it is found by a removed word");
    assert_eq!(found(engine, search_for("okapi")).await[0].0, "a.rs");
    assert_eq!(found(engine, search_for("naïve ünïcode")).await[0].0, "b/it's.rs");
    assert_eq!(engine.status().await.unwrap().documents, 3);

    writer.remove(vec!["a.rs".to_owned(), "never.rs".to_owned()]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(paths(engine.documents().await.unwrap()), ["b/it's.rs", "empty.rs"]);
    let status = engine.status().await.unwrap();
    assert_eq!((status.documents, status.chunks), (2, 1));
    drop(writer);
    engine.reset().await.unwrap();
    assert_eq!(engine.status().await.unwrap().documents, 0);
    assert!(found(engine, search_for("strange")).await.is_empty());
}

/// Checks that `engine` and the embedded index find equal definitions by name.
pub(super) async fn check_names(engine: &dyn SearchEngine) {
    let text = |name: &str| format!("/// Some words.\nfn {name}() {{\n    work();\n}}\n");
    let names = ["parse_header", "ParseHeader", "parse_header_line", "render", "header_of_parse"];
    let documents: Vec<StoredDocument> =
        names.iter().map(|name| document(&format!("{name}.rs"), &text(name), &[])).collect();
    let (embedded, _) = SearchIndex::open(IndexLocation::Memory, None).unwrap();
    let mut writer = embedded.writer().unwrap().unwrap();
    for put in &documents {
        writer.put(&put.as_document()).unwrap();
    }
    writer.commit().unwrap();
    fill(engine, documents).await;
    let snapshot = embedded.snapshot().unwrap();
    for query in ["parse_header", "parseheader", "render", "rendr", "header parse", "nothing_so"] {
        let filter = DocumentFilter::default();
        let expected = snapshot.find_named(query, &filter, 10).unwrap();
        let found = engine.find_definitions(query.to_owned(), filter, 10).await.unwrap();
        assert_eq!(found, expected, "{query}");
    }
    let found = engine
        .find_definitions("parse_header".to_owned(), DocumentFilter::default(), 10)
        .await
        .unwrap();
    assert_eq!(
        (found[0].name.as_str(), found[0].summary.kind),
        ("parse_header", ChunkKind::Function)
    );
}

/// Checks that model vectors are stored by the hash of their chunk, and that searches find chunks
/// by these vectors.
pub(super) async fn check_model_vectors(engine: &dyn SearchEngine) {
    let documents: Vec<StoredDocument> = ["red", "green", "blue"]
        .iter()
        .map(|it| document(&format!("{it}.rs"), &format!("fn {it}() {{}}\n"), &[]))
        .collect();
    fill(engine, documents).await;
    let pending = engine.pending_chunks(10).await.unwrap();
    assert_eq!(pending.len(), 3);
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    let vector = |path: &str| match path {
        "red.rs" => vec![1.0, 0.0, 0.0, 0.0],
        "green.rs" => vec![0.6, 0.8, 0.0, 0.0],
        _ => vec![0.0, 0.0, 0.0, 1.0],
    };
    for invalid in [vec![1.0; 3], vec![f32::NAN, 0.0, 0.0, 1.0]] {
        let err = writer.put_vectors(vec![(pending[0].hash, invalid)]).await.unwrap_err();
        assert!(matches!(err, SearchEngineError::Failed(_)), "{err}");
    }
    let vectors = pending.iter().map(|it| (it.hash, vector(&it.path))).collect();
    writer.put_vectors(vectors).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(engine.status().await.unwrap().with_vectors, 3);
    assert!(engine.pending_chunks(10).await.unwrap().is_empty());
    let query = SearchEngineQuery {
        model_vector: Some(vec![0.8, 0.6, 0.0, 0.0]),
        limit: 2,
        ..SearchEngineQuery::default()
    };
    let matched = engine.candidates(query).await.unwrap();
    let mut cosines: Vec<(String, f32)> = matched
        .candidates
        .iter()
        .map(|it| (it.summary.path.clone(), it.model_cosine.unwrap()))
        .collect();
    cosines.sort_by(|a, b| b.1.total_cmp(&a.1));
    assert_eq!(cosines.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["green.rs", "red.rs"]);
    assert!((cosines[0].1 - 0.96).abs() < 1e-3 && (cosines[1].1 - 0.8).abs() < 1e-3);
    let keys: Vec<u64> = matched.candidates.iter().map(|it| it.key).collect();
    let vectors = matched.vectors.load(keys, VectorOrigin::Model).await.unwrap();
    for (it, found) in matched.candidates.iter().zip(vectors) {
        assert_eq!(found.unwrap(), vector(&it.summary.path));
    }
    // A text keeps its vector while its document is removed and put again.
    writer.remove(vec!["red.rs".to_owned()]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(engine.status().await.unwrap().with_vectors, 2);
    writer.put(vec![document("red.rs", "fn red() {}\n", &[])]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(engine.status().await.unwrap().with_vectors, 3);
}

/// Checks that `engine` returns the documents of callers unchanged, also after a reset.
pub(super) async fn check_kept_documents(engine: &dyn SearchEngine) {
    let mut put = document("note 1", "An okapi is no quagga.\0 Really.", &["zoo"]);
    put.stamp = b"note.md".to_vec();
    put.chunks = chunks("note.md", &put.text);
    put.metadata.insert("by".to_owned(), "ada".into());
    fill(engine, vec![put.clone()]).await;
    assert_eq!(engine.kept_document("note 1".to_owned()).await.unwrap(), Some(put.clone()));
    assert_eq!(engine.kept_document("note 2".to_owned()).await.unwrap(), None);
    engine.reset().await.unwrap();
    assert_eq!(engine.kept_document("note 1".to_owned()).await.unwrap(), Some(put));
    assert_eq!(found(engine, search_for("okapi")).await[0].0, "note 1");
    let mut writer = engine.acquire_writer().await.unwrap().unwrap();
    writer.remove(vec!["note 1".to_owned()]).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(engine.kept_document("note 1".to_owned()).await.unwrap(), None);
}
