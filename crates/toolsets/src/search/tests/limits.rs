//! Tests of the inputs and limits of the search tools.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
fn put(folder: &TempDir, path: &str, content: &str) {
    let path = folder.path().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Calls the tool `name`. Returns the structured result and the note in its text.
async fn call(service: &Arc<SearchService>, name: &str, input: Value) -> (Value, String) {
    let tools = crate::search::tools(service);
    let tool = tools.iter().find(|tool| tool.spec().id.as_str() == name).unwrap();
    let output = tool.run(&ctx(), input).await.unwrap();
    (output.value, output.text.note.unwrap_or_default())
}

async fn call_error(
    service: &Arc<SearchService>,
    name: &str,
    input: Value,
) -> (ToolErrorKind, String) {
    let tools = crate::search::tools(service);
    let tool = tools.iter().find(|tool| tool.spec().id.as_str() == name).unwrap();
    let err = tool.run(&ctx(), input).await.expect_err("an error");
    (err.fault, err.message)
}

#[tokio::test]
async fn a_document_removed_twice_in_one_call_is_counted_once() {
    let folder = TempDir::new().unwrap();
    let service = service(folder.path(), &SearchSettings::default());
    let documents = json!([{ "id": "x", "text": "gate" }, { "id": "y", "text": "fence" }]);
    let put = json!({ "namespace": "n", "documents": documents });
    call(&service, "search.upsert", put).await;
    let remove = json!({ "namespace": "n", "remove": ["x", "x", "x"] });
    let (removed, _) = call(&service, "search.upsert", remove).await;
    let expected = json!({ "added": 0, "replaced": 0, "removed": 1, "documents": 1 });
    assert_eq!(removed, expected);
}

#[tokio::test]
async fn documents_beyond_the_limit_of_a_namespace_are_refused_and_none_is_put() {
    let folder = TempDir::new().unwrap();
    let limits = IndexLimits { documents_max: 2, ..IndexLimits::default() };
    let service = service(folder.path(), &SearchSettings { limits, ..SearchSettings::default() });
    let put = |ids: &[&str]| {
        let documents: Vec<_> = ids.iter().map(|id| json!({ "id": id, "text": "gate" })).collect();
        json!({ "namespace": "n", "documents": documents })
    };
    let (_, message) = call_error(&service, "search.upsert", put(&["a", "b", "c"])).await;
    assert!(message.contains("would have 3 documents"), "{message}");
    let (kept, _) = call(&service, "search.upsert", put(&["a", "b"])).await;
    assert_eq!((&kept["added"], &kept["documents"]), (&json!(2), &json!(2)));
    // A document that is already there can be replaced.
    let (kept, _) = call(&service, "search.upsert", put(&["b"])).await;
    assert_eq!((&kept["replaced"], &kept["documents"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn the_workspace_path_is_a_valid_prefix_and_paths_outside_are_rejected() {
    let folder = TempDir::new().unwrap();
    let other = TempDir::new().unwrap();
    put(&folder, "src/a.rs", "fn zebra() {}\n");
    put(&other, "lib.rs", "fn zebra() {}\n");
    let paths = |folder: &TempDir| folder.path().canonicalize().unwrap().display().to_string();
    let root = paths(&folder);
    let elsewhere = paths(&other);
    let namespaces = [("std".to_owned(), elsewhere.clone())].into();
    let service =
        service(folder.path(), &SearchSettings { namespaces, ..SearchSettings::default() });
    let tools = [("search.semantic", "matches"), ("search.names", "definitions")];
    for (tool, field) in tools {
        let input = |prefix: &str, namespace: &str| json!({ "query": "zebra", "path": prefix, "namespace": namespace });
        for prefix in
            ["", ".", "./", &root, &format!("{root}/"), &format!("{root}//src/"), "./src/a.rs"]
        {
            let (value, _) = call(&service, tool, input(prefix, "workspace")).await;
            assert_eq!(value[field].as_array().unwrap().len(), 1, "{tool} {prefix}");
        }
        let (value, _) = call(&service, tool, input(&elsewhere, "std")).await;
        assert_eq!(value[field][0]["path"], "lib.rs", "{tool}");
        for prefix in [
            "/",
            "/other",
            "..",
            "../x",
            "./../x",
            "src/../../x",
            &format!("{root}x"),
            &format!("{root}/../x"),
            &elsewhere,
        ] {
            let (fault, message) = call_error(&service, tool, input(prefix, "workspace")).await;
            assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/path".into() }, "{prefix}");
            assert!(message.contains("e.g. `src/`"), "{message}");
        }
        let (value, _) = call(&service, tool, input("..z", "workspace")).await;
        assert_eq!(value[field], json!([]), "{tool}");
    }
    // An id may be any text.
    let documents = json!([{ "id": "../up/x.rs", "text": "fn zebra() {}\n" }]);
    call(&service, "search.upsert", json!({ "namespace": "n", "documents": documents })).await;
    for (tool, field) in tools {
        let input = json!({ "query": "zebra", "path": "../up", "namespace": "n" });
        let (value, _) = call(&service, tool, input).await;
        assert_eq!(value[field][0]["path"], "../up/x.rs", "{tool}");
    }
}

#[tokio::test]
async fn an_incomplete_list_of_definitions_is_marked_as_truncated() {
    let folder = TempDir::new().unwrap();
    let service = service(folder.path(), &SearchSettings::default());
    for from in [0, 700, 1_400] {
        let document = |at| json!({ "id": format!("{}/{at}.rs", at / 11), "text": format!("fn func_{at}() {{}}\n") });
        let documents: Vec<Value> = (from..from + 700).map(document).collect();
        call(&service, "search.upsert", json!({ "namespace": "n", "documents": documents })).await;
    }
    let one = json!([{ "id": "z.rs", "text": "struct Funcs;\n" }]);
    call(&service, "search.upsert", json!({ "namespace": "n", "documents": one })).await;
    let input = |more: Value| {
        let mut input = json!({ "query": "func", "namespace": "n", "limit": 100 });
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        input
    };
    let summary =
        |page: &Value| (page["definitions"].as_array().unwrap().len(), page["truncated"] == true);
    let (page, note) = call(&service, "search.names", input(json!({}))).await;
    assert_eq!(summary(&page), (100, true));
    assert!(note.contains("continue with cursor"), "{note}");
    let (page, note) = call(&service, "search.names", input(json!({ "path": "12" }))).await;
    assert_eq!(summary(&page), (11, false));
    assert!(!note.contains("narrow"), "{note}");
    // A definition of a rare kind may be missing from the list, and the last page says so.
    let (page, note) = call(&service, "search.names", input(json!({ "kinds": ["type"] }))).await;
    assert!(summary(&page).0 <= 1 && summary(&page).1 && page["cursor"].is_null(), "{page}");
    assert!(note.ends_with("set path or tags to find fewer"), "{note}");
}

#[tokio::test]
async fn a_search_that_finds_nothing_names_the_path_or_tag_that_does_not_exist() {
    let folder = TempDir::new().unwrap();
    put(&folder, "src/lib.rs", "fn open_gate() {}\n");
    let service = service(folder.path(), &SearchSettings::default());
    for (more, why) in [
        (json!({ "path": "srcc" }), "`srcc` does not exist; did you mean `src`?"),
        (json!({ "path": "src/main.rs" }), "`src/main.rs` does not exist"),
        (json!({ "tags": ["rusty"] }), "has the tag `rusty`; tags are languages"),
    ] {
        let mut input = json!({ "query": "open_gate" });
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        for tool in ["search.names", "search.semantic"] {
            let (found, note) = call(&service, tool, input.clone()).await;
            let hint = found["hint"].as_str().unwrap_or_default();
            assert!(hint.contains(why) && note.contains(hint), "{tool} {input}: {found} {note}");
        }
    }
    let input = json!({ "query": "open_gate", "path": "src/", "tags": ["rust"] });
    for tool in ["search.names", "search.semantic"] {
        let (found, _) = call(&service, tool, input.clone()).await;
        assert!(found.get("hint").is_none(), "{tool}: {found}");
    }
    let (found, _) = call(&service, "search.names", json!({ "query": "zqxw" })).await;
    assert!(found["hint"].as_str().unwrap().contains("a name like `zqxw`"), "{found}");
    let kinds = json!({ "query": "open_gate", "kinds": ["section"] });
    let (found, _) = call(&service, "search.names", kinds).await;
    assert!(found["hint"].as_str().unwrap().contains("no definition of these `kinds`"), "{found}");
}

#[tokio::test]
async fn a_name_without_letters_and_digits_is_rejected() {
    let folder = TempDir::new().unwrap();
    put(&folder, "a.md", "# *All* of it\n\nText.\n");
    let service = service(folder.path(), &SearchSettings::default());
    for query in ["*", "**", "..."] {
        let (fault, message) =
            call_error(&service, "search.names", json!({ "query": query })).await;
        assert_eq!(fault, ToolErrorKind::Invalid { pointer: "/query".into() }, "{query}");
        assert!(message.contains("no letter or digit"), "{message}");
    }
}

#[tokio::test]
async fn a_passage_with_the_quoted_phrase_comes_first() {
    let folder = TempDir::new().unwrap();
    put(&folder, "words.md", "# No such file\n\nA file, such a file, no file, no such thing.\n");
    put(&folder, "log.rs", "fn open_all() {\n    warn(\"no such file\");\n}\n");
    let service = service(folder.path(), &SearchSettings::default());
    for by_file in [true, false] {
        let quoted = SearchRequest { by_file, ..request("where is \"no such file\" written") };
        let found = search(&service, quoted).await;
        assert_eq!(found.hits[0].path, "log.rs", "{by_file}");
        assert!(found.hits.is_sorted_by(|a, b| a.score >= b.score), "{by_file}");
    }
}
