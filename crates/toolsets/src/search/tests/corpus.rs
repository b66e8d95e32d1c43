//! What is found in a small corpus of many languages.

#[path = "../../../../../tests/search-gold.rs"]
mod gold;

use std::path::PathBuf;

use super::*;
use gold::GOLD;

fn corpus() -> Arc<SearchService> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let namespaces = [("docs", "docs"), ("web", "web"), ("gone", "gone")];
    let namespaces = namespaces.map(|(name, folder)| (name.to_owned(), folder.to_owned()));
    service(&root, &Settings { namespaces: namespaces.into(), ..Settings::default() })
}

fn paths(found: &SearchResult) -> Vec<&str> {
    found.hits.iter().map(|hit| hit.path.as_str()).collect()
}

#[tokio::test]
async fn every_question_of_the_gold_set_is_answered_among_the_first_five() {
    let service = corpus();
    let mut ranks = Vec::new();
    for (query, path) in GOLD {
        let found = search(&service, wanted(query)).await;
        ranks.push((query, paths(&found).iter().position(|it| *it == path)));
    }
    let first = ranks.iter().filter(|(_, rank)| *rank == Some(0)).count();
    assert!(ranks.iter().all(|(_, rank)| rank.is_some()), "{ranks:?}");
    assert!(first >= GOLD.len() - 2, "{ranks:?}");
}

#[tokio::test]
async fn the_middleware_that_authenticates_comes_before_its_tests_and_its_documents() {
    let found = search(&corpus(), wanted("authentication middleware")).await;
    let first = &found.hits[0];
    assert_eq!(first.path, "src/http/auth.rs");
    assert!(first.snippet.contains("pub struct AuthMiddleware"), "{}", first.snippet);
    assert!(paths(&found).contains(&"tests/auth_test.py"), "{:?}", paths(&found));
}

#[tokio::test]
async fn what_is_found_is_in_order_and_as_the_file_has_it() {
    let service = corpus();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/search-corpus");
    let root = Root::open(&root).unwrap();
    for (query, _) in GOLD {
        let found = search(&service, SearchRequest { top_k: 50, ..wanted(query) }).await;
        assert!(found.hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
        assert!(found.hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0));
        for hit in &found.hits {
            let file = root.open_file(&hit.path).unwrap();
            let content =
                file.read(0, file.meta().size(), &toolgate_world::root::WorkMonitor::default());
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
async fn filters_leave_in_what_they_name_and_nothing_else() {
    let service = corpus();
    let all = |wanted: SearchRequest| SearchRequest { top_k: 50, ..wanted };
    let under = |prefix: &str| SearchRequest {
        path_prefix: Some(prefix.to_owned()),
        ..all(wanted("request token"))
    };
    for prefix in ["src/", "src/http", "./src", "cmd/proxy/lim"] {
        let found = search(&service, under(prefix)).await;
        let bare = prefix.trim_start_matches("./");
        assert!(!found.hits.is_empty(), "{prefix}");
        assert!(found.hits.iter().all(|hit| hit.path.starts_with(bare)), "{prefix}");
    }
    for prefix in ["http", "nowhere", "..src"] {
        assert_eq!(search(&service, under(prefix)).await.total, 0, "{prefix}");
    }
    let tagged = |tags: &[&str]| SearchRequest {
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        ..all(wanted("authentication token"))
    };
    let tests = search(&service, tagged(&["python", "Test"])).await;
    assert!(tests.hits.iter().all(|hit| hit.path == "tests/auth_test.py") && tests.total > 0);
    assert_eq!(search(&service, tagged(&["rust", "test"])).await.total, 0);
    let docs = search(&service, tagged(&["docs"])).await;
    assert!(docs.hits.iter().all(|hit| hit.lang.as_deref() == Some("markdown")) && docs.total > 0);
}

#[tokio::test]
async fn a_namespace_is_a_folder_by_itself() {
    let service = corpus();
    let within = |name: &str, query: &str| SearchRequest {
        namespace: Some(name.to_owned()),
        ..wanted(query)
    };
    let docs = search(&service, within("docs", "authentication")).await;
    assert_eq!(paths(&docs), ["docs/security.md"]);
    assert_eq!((docs.index.state, docs.index.complete), (IndexState::Ready, true));
    assert_eq!(search(&service, within("web", "authentication")).await.total, 0);
    let (fault, message) = refusal(&service, within("other", "x1 y")).await;
    assert_eq!(fault, ToolFault::Invalid { pointer: "/namespace".into() });
    assert!(message.contains("docs, gone, web, workspace"), "{message}");
    let (fault, message) = refusal(&service, within("gone", "authentication")).await;
    assert_eq!(fault, ToolFault::Unavailable, "{message}");
}

#[tokio::test]
async fn a_vector_finds_the_passage_it_is_of_and_what_is_like_it() {
    let service = corpus();
    let query = SearchRequest { with_vectors: true, ..wanted("token bucket") };
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
    let like = SearchRequest { embedding, query: None, ..wanted("") };
    let like = search(&service, like).await;
    assert_eq!(like.hits[0].id, first.id);
    assert!((like.hits[0].score - 1.0).abs() < 1e-3, "{}", like.hits[0].score);
    assert!(like.hits[1].score < 0.95 && like.rerank_model.is_none());
    assert!(like.hits.iter().all(|hit| hit.vector.is_none()));
    let both = SearchRequest { embedding: Some(vector), ..wanted("evict cache") };
    let both = search(&service, both).await;
    assert!(
        paths(&both).contains(&"cache/lru.js") && paths(&both).contains(&"cmd/proxy/limiter.go")
    );
}

#[tokio::test]
async fn what_cannot_be_searched_for_is_refused_with_its_place() {
    let service = corpus();
    for query in [None, Some(""), Some(" \n"), Some("?!")] {
        let none = SearchRequest { query: query.map(str::to_owned), ..wanted("") };
        let (fault, _) = refusal(&service, none).await;
        assert_eq!(fault, ToolFault::Invalid { pointer: "/query".into() }, "{query:?}");
    }
    let len = toolgate_search::static_model::space().dimensions;
    let mut nan = vec![0.5; len];
    nan[7] = f64::NAN;
    for embedding in [vec![], vec![1.0; 3], vec![1.0; len + 1], vec![0.0; len], nan] {
        let bad = SearchRequest { embedding: Some(embedding), ..wanted("token") };
        let (fault, message) = refusal(&service, bad).await;
        assert_eq!(fault, ToolFault::Invalid { pointer: "/embedding".into() }, "{message}");
    }
    let (fault, message) = refusal(&service, wanted(&"x".repeat(5000))).await;
    assert_eq!(fault, ToolFault::Invalid { pointer: "/query".into() }, "{message}");
}

#[tokio::test]
async fn without_a_closer_look_none_is_named_and_words_alone_decide() {
    let service = corpus();
    let plain =
        search(&service, SearchRequest { rerank: false, ..wanted("authentication middleware") });
    let plain = plain.await;
    assert_eq!(plain.rerank_model, None);
    // The test says both words; the code is found by what its type is called.
    assert_eq!(plain.hits[0].path, "tests/auth_test.py");
    let closer = search(&service, wanted("authentication middleware")).await;
    assert_eq!(closer.rerank_model, Some(toolgate_search::rank::RERANK_METHOD));
}

#[tokio::test]
async fn a_question_that_is_too_long_is_refused_at_once() {
    let service = corpus();
    let words: Vec<String> = (0..30_000).map(|at| format!("w{at}x")).collect();
    let begun = Instant::now();
    let (fault, message) = refusal(&service, wanted(&words.join(" "))).await;
    assert_eq!(fault, ToolFault::Invalid { pointer: "/query".into() });
    assert!(message.ends_with("bytes; at most 4096 are allowed"), "{message}");
    let (_, message) = refusal(&service, wanted(&" ".repeat(5_000))).await;
    assert!(message.starts_with("it has 5000 bytes"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_caller_names_each_tag_once_and_few() {
    let tags = |many: usize| (0..many).map(|at| format!("t{at}")).collect::<Vec<_>>();
    let pointer = |given| distinct_tags(given, "/tags").unwrap_err().fault;
    assert_eq!(distinct_tags(tags(32), "/tags").unwrap(), tags(32));
    assert_eq!(pointer(tags(33)), ToolFault::Invalid { pointer: "/tags".into() });
    let again = ["docs", "Docs"].repeat(50).into_iter().map(str::to_owned).collect();
    assert_eq!(distinct_tags(again, "/tags").unwrap(), ["docs"]);
    let tool = crate::search::tools(&corpus()).remove(0);
    let input = serde_json::json!({ "query": "token", "tags": tags(33) });
    let err = tool.run(&ctx(), input).await.expect_err("a refusal");
    assert_eq!(err.fault, ToolFault::Invalid { pointer: "/tags".into() });
}
