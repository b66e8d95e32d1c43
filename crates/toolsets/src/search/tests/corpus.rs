//! Tests of search in a small corpus of many languages.

#[path = "../../../../../tests/search-gold.rs"]
mod gold;

use std::path::PathBuf;

use super::*;
use gold::GOLD;

fn corpus() -> Arc<SearchService> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let namespaces = [("docs", "docs"), ("web", "web"), ("gone", "gone")];
    let namespaces = namespaces.map(|(name, folder)| (name.to_owned(), folder.to_owned()));
    service(&root, &SearchSettings { namespaces: namespaces.into(), ..SearchSettings::default() })
}

fn paths(found: &SearchResult) -> Vec<&str> {
    found.hits.iter().map(|hit| hit.path.as_str()).collect()
}

#[tokio::test]
async fn every_query_of_the_gold_set_has_its_answer_in_the_first_five_hits() {
    let service = corpus();
    let mut ranks = Vec::new();
    for (query, path) in GOLD {
        let found = search(&service, request(query)).await;
        ranks.push((query, paths(&found).iter().position(|it| *it == path)));
    }
    let first = ranks.iter().filter(|(_, rank)| *rank == Some(0)).count();
    assert!(ranks.iter().all(|(_, rank)| rank.is_some()), "{ranks:?}");
    assert!(first >= GOLD.len() - 2, "{ranks:?}");
}

#[tokio::test]
async fn source_code_comes_before_its_tests_and_documents() {
    let found = search(&corpus(), request("authentication middleware")).await;
    let first = &found.hits[0];
    assert_eq!(first.path, "src/http/auth.rs");
    assert!(first.snippet.contains("pub struct AuthMiddleware"), "{}", first.snippet);
    assert!(paths(&found).contains(&"tests/auth_test.py"), "{:?}", paths(&found));
}

#[tokio::test]
async fn hits_are_sorted_and_have_the_current_lines_and_etag() {
    let service = corpus();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let root = Root::open(&root).unwrap();
    for (query, _) in GOLD {
        let found = search(&service, SearchRequest { top_k: 50, ..request(query) }).await;
        assert!(found.hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
        assert!(found.hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0));
        for hit in &found.hits {
            let file = root.open_file(&hit.path).unwrap();
            let content =
                file.read(0, file.meta().size(), &toolgate_world::root::DiskWorkMonitor::default());
            let content = String::from_utf8(content.unwrap()).unwrap();
            let lines: Vec<&str> = content.split('\n').collect();
            let lines = lines[hit.first as usize - 1..hit.last as usize].join("\n");
            assert_eq!(hit.snippet, lines, "{}", hit.id);
            assert_eq!(hit.id, format!("{}:{}-{}", hit.path, hit.first, hit.last));
            assert_eq!(
                hit.etag,
                toolgate_world::root::Etag::from_content(content.as_bytes()).to_string()
            );
        }
    }
}

#[tokio::test]
async fn hits_by_file_are_distinct_files_with_further_places_in_them() {
    let service = corpus();
    let by_file = |query: &str| SearchRequest { by_file: true, top_k: 50, ..request(query) };
    let found = search(&service, by_file("authentication token request")).await;
    let mut distinct = paths(&found);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), found.hits.len(), "{:?}", paths(&found));
    assert!(found.hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    for hit in &found.hits {
        assert!(hit.more.len() <= 3, "{}", hit.id);
        let is_other =
            |it: &crate::search::SearchHitLocation| (it.first, it.last) != (hit.first, hit.last);
        assert!(hit.more.iter().all(is_other), "{}", hit.id);
    }
    assert!(found.hits.iter().any(|hit| !hit.more.is_empty()));
    for (query, path) in GOLD {
        let found = search(&service, by_file(query)).await;
        assert!(paths(&found).iter().take(5).any(|it| *it == path), "{query}");
    }
}

#[tokio::test]
async fn a_misspelled_name_is_corrected_and_the_hint_says_so() {
    let found = search(&corpus(), request("AuthMiddelware")).await;
    assert_eq!(found.hits[0].path, "src/http/auth.rs");
    let hint = found.hint.unwrap();
    assert_eq!(hint, "no `AuthMiddelware` was found; searched for `AuthMiddleware`");
}

#[tokio::test]
async fn a_query_that_cannot_match_finds_nothing_and_says_why() {
    let service = corpus();
    for (query, reason) in [
        ("where is it", "the query has only common words"),
        ("где хранится сессия", "ask in the language of the code"),
    ] {
        let found = search(&service, request(query)).await;
        assert_eq!((found.total, paths(&found)), (0, Vec::new()), "{query}");
        assert!(found.hint.as_ref().unwrap().contains(reason), "{:?}", found.hint);
    }
}

#[tokio::test]
async fn filters_pass_matching_files_only() {
    let service = corpus();
    let all = |request: SearchRequest| SearchRequest { top_k: 50, ..request };
    let under = |prefix: &str| SearchRequest {
        path_prefix: Some(prefix.to_owned()),
        ..all(request("request token"))
    };
    for prefix in ["src/", "src/http", "./src", "cmd/proxy/"] {
        let found = search(&service, under(prefix)).await;
        let bare = prefix.trim_start_matches("./");
        assert!(!found.hits.is_empty(), "{prefix}");
        assert!(found.hits.iter().all(|hit| hit.path.starts_with(bare)), "{prefix}");
    }
    for prefix in ["http", "nowhere", "..src", "sr", "src/htt", "cmd/proxy/lim"] {
        assert_eq!(search(&service, under(prefix)).await.total, 0, "{prefix}");
    }
    let tagged = |tags: &[&str]| SearchRequest {
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        ..all(request("authentication token"))
    };
    let tests = search(&service, tagged(&["python", "Test"])).await;
    assert!(tests.hits.iter().all(|hit| hit.path == "tests/auth_test.py") && tests.total > 0);
    assert_eq!(search(&service, tagged(&["rust", "test"])).await.total, 0);
    let docs = search(&service, tagged(&["docs"])).await;
    assert!(docs.hits.iter().all(|hit| hit.lang.as_deref() == Some("markdown")) && docs.total > 0);
}

#[tokio::test]
async fn a_namespace_limits_the_search_to_its_folder() {
    let service = corpus();
    let within = |name: &str, query: &str| SearchRequest {
        namespace: Some(name.to_owned()),
        ..request(query)
    };
    let docs = search(&service, within("docs", "authentication")).await;
    assert_eq!(paths(&docs), ["docs/security.md"]);
    assert_eq!((docs.index.state, docs.index.complete), (IndexState::Ready, true));
    assert_eq!(search(&service, within("web", "authentication")).await.total, 0);
    let (fault, message) = search_error(&service, within("other", "x1 y")).await;
    assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/namespace".into() });
    assert!(message.contains("docs, gone, web, workspace"), "{message}");
    let (fault, message) = search_error(&service, within("gone", "authentication")).await;
    assert_eq!(fault, ToolErrorKind::Unavailable, "{message}");
}

#[tokio::test]
async fn a_vector_finds_its_own_passage_and_similar_ones() {
    let service = corpus();
    let query = SearchRequest { with_vectors: true, ..request("token bucket") };
    let found = search(&service, query).await;
    let space = toolgate_search::static_model::space();
    assert_eq!(found.embedding_model.as_ref(), Some(&space.model));
    let first = &found.hits[0];
    let vector: Vec<f64> = first.vector.clone().unwrap();
    assert_eq!(vector.len(), space.dimensions);
    let length = vector.iter().map(|it| it * it).sum::<f64>().sqrt();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    // Only its direction counts.
    let embedding = Some(vector.iter().map(|it| it * 1e200).collect());
    let similar = SearchRequest { embedding, query: None, ..request("") };
    let similar = search(&service, similar).await;
    assert_eq!(similar.hits[0].id, first.id);
    assert!((similar.hits[0].score - 1.0).abs() < 1e-3, "{}", similar.hits[0].score);
    assert!(similar.hits[1].score < 0.95 && similar.rerank_model.is_none());
    assert!(similar.hits.iter().all(|hit| hit.vector.is_none()));
    let both = SearchRequest { embedding: Some(vector), ..request("evict cache") };
    let both = search(&service, both).await;
    assert!(
        paths(&both).contains(&"cache/lru.js") && paths(&both).contains(&"cmd/proxy/limiter.go")
    );
}

#[tokio::test]
async fn a_vector_alone_finds_the_nearest_passages_even_if_none_is_similar() {
    let service = corpus();
    let len = toolgate_search::static_model::space().dimensions;
    for sign in [1.0, -1.0] {
        let mut axis = vec![0.0; len];
        axis[len - 1] = sign;
        let nearest = |top_k| SearchRequest {
            embedding: Some(axis.clone()),
            query: None,
            top_k,
            ..request("")
        };
        let few = search(&service, nearest(3)).await;
        let many = search(&service, nearest(12)).await;
        assert_eq!((few.hits.len(), many.hits.len()), (3, 12));
        let ids = |found: &SearchResult| -> Vec<String> {
            found.hits.iter().take(3).map(|hit| hit.id.clone()).collect()
        };
        assert_eq!(ids(&few), ids(&many));
        assert!(many.hits.is_sorted_by(|a, b| a.score >= b.score));
        assert!(many.hits[11].score < 0.3, "{}", many.hits[11].score);
    }
}

#[tokio::test]
async fn an_invalid_query_or_vector_is_rejected_with_its_pointer() {
    let service = corpus();
    for query in [None, Some(""), Some(" \n"), Some("?!")] {
        let none = SearchRequest { query: query.map(str::to_owned), ..request("") };
        let (fault, _) = search_error(&service, none).await;
        assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/query".into() }, "{query:?}");
    }
    let len = toolgate_search::static_model::space().dimensions;
    let mut nan = vec![0.5; len];
    nan[7] = f64::NAN;
    for embedding in [vec![], vec![1.0; 3], vec![1.0; len + 1], vec![0.0; len], nan] {
        let bad = SearchRequest { embedding: Some(embedding), ..request("token") };
        let (fault, message) = search_error(&service, bad).await;
        assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/embedding".into() }, "{message}");
    }
    let (fault, message) = search_error(&service, request(&"x".repeat(5000))).await;
    assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/query".into() }, "{message}");
}

#[tokio::test]
async fn without_reranking_no_reranker_is_reported_and_words_decide() {
    let service = corpus();
    let plain =
        search(&service, SearchRequest { rerank: false, ..request("authentication middleware") });
    let plain = plain.await;
    assert_eq!(plain.rerank_model, None);
    // The test contains both words. The code matches by the name of its type.
    assert_eq!(plain.hits[0].path, "tests/auth_test.py");
    let reranked = search(&service, request("authentication middleware")).await;
    assert_eq!(reranked.rerank_model, Some(toolgate_search::rank::RERANK_METHOD));
}

#[tokio::test]
async fn a_query_that_is_too_long_is_rejected_at_once() {
    let service = corpus();
    let words: Vec<String> = (0..30_000).map(|at| format!("w{at}x")).collect();
    let start = Instant::now();
    let (fault, message) = search_error(&service, request(&words.join(" "))).await;
    assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/query".into() });
    assert!(message.ends_with("bytes; at most 4096 are allowed"), "{message}");
    let (_, message) = search_error(&service, request(&" ".repeat(5_000))).await;
    assert!(message.starts_with("it has 5000 bytes"), "{message}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn repeated_tags_count_once_and_their_number_is_limited() {
    let tags = |count: usize| (0..count).map(|at| format!("t{at}")).collect::<Vec<_>>();
    let fault = |tags| distinct_tags(tags, "/tags").unwrap_err().fault;
    assert_eq!(distinct_tags(tags(32), "/tags").unwrap(), tags(32));
    assert_eq!(fault(tags(33)), ToolErrorKind::Invalid { pointer: "/tags".into() });
    let repeated = ["docs", "Docs"].repeat(50).into_iter().map(str::to_owned).collect();
    assert_eq!(distinct_tags(repeated, "/tags").unwrap(), ["docs"]);
    let tool = crate::search::tools(&corpus()).remove(0);
    let input = serde_json::json!({ "query": "token", "tags": tags(33) });
    let err = tool.run(&ctx(), input).await.expect_err("an error");
    assert_eq!(err.fault, ToolErrorKind::Invalid { pointer: "/tags".into() });
}
