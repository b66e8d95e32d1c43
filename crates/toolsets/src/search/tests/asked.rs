//! What callers may ask of the tools, and how much they are told.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

#[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
fn put(folder: &TempDir, path: &str, content: &str) {
    let path = folder.path().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// What the tool `name` gives, and the note of its text.
async fn call(service: &Arc<SearchService>, name: &str, input: Value) -> (Value, String) {
    let tools = crate::search::tools(service);
    let tool = tools.iter().find(|tool| tool.spec().id.as_str() == name).unwrap();
    let output = tool.run(&ctx(), input).await.unwrap();
    (output.value, output.text.note.unwrap_or_default())
}

async fn pointer(service: &Arc<SearchService>, name: &str, input: Value) -> (ToolFault, String) {
    let tools = crate::search::tools(service);
    let tool = tools.iter().find(|tool| tool.spec().id.as_str() == name).unwrap();
    let err = tool.run(&ctx(), input).await.expect_err("a refusal");
    (err.fault, err.message)
}

#[tokio::test]
async fn a_document_that_is_removed_twice_in_one_call_is_counted_once() {
    let folder = TempDir::new().unwrap();
    let service = service(folder.path(), &Settings::default());
    let documents = json!([{ "id": "x", "text": "gate" }, { "id": "y", "text": "fence" }]);
    let put = json!({ "namespace": "n", "documents": documents });
    call(&service, "search.upsert", put).await;
    let remove = json!({ "namespace": "n", "remove": ["x", "x", "x"] });
    let (removed, _) = call(&service, "search.upsert", remove).await;
    let expected = json!({ "added": 0, "replaced": 0, "removed": 1, "documents": 1 });
    assert_eq!(removed, expected);
}

#[tokio::test]
async fn the_path_of_the_workspace_is_all_of_it_and_other_places_are_refused() {
    let folder = TempDir::new().unwrap();
    let other = TempDir::new().unwrap();
    put(&folder, "src/a.rs", "fn zebra() {}\n");
    put(&other, "lib.rs", "fn zebra() {}\n");
    let paths = |folder: &TempDir| folder.path().canonicalize().unwrap().display().to_string();
    let root = paths(&folder);
    let elsewhere = paths(&other);
    let roots = [("std".to_owned(), elsewhere.clone())].into();
    let service = service(folder.path(), &Settings { roots, ..Settings::default() });
    let tools = [("search.semantic", "query", "matches"), ("search.names", "name", "definitions")];
    for (tool, asked, found) in tools {
        let ask = |prefix: &str, namespace: &str| json!({ asked: "zebra", "path_prefix": prefix, "namespace": namespace });
        for prefix in
            ["", ".", "./", &root, &format!("{root}/"), &format!("{root}//src/"), "./src/a"]
        {
            let (value, _) = call(&service, tool, ask(prefix, "workspace")).await;
            assert_eq!(value[found].as_array().unwrap().len(), 1, "{tool} {prefix}");
        }
        let (value, _) = call(&service, tool, ask(&elsewhere, "std")).await;
        assert_eq!(value[found][0]["path"], "lib.rs", "{tool}");
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
            let (fault, message) = pointer(&service, tool, ask(prefix, "workspace")).await;
            assert_eq!(fault, ToolFault::Invalid { pointer: "/path_prefix".into() }, "{prefix}");
            assert!(message.contains("e.g. `src/`"), "{message}");
        }
        let (value, _) = call(&service, tool, ask("..z", "workspace")).await;
        assert_eq!(value[found], json!([]), "{tool}");
    }
    // An id may be any text.
    let documents = json!([{ "id": "../up/x.rs", "text": "fn zebra() {}\n" }]);
    call(&service, "search.upsert", json!({ "namespace": "n", "documents": documents })).await;
    for (tool, asked, found) in tools {
        let ask = json!({ asked: "zebra", "path_prefix": "../up", "namespace": "n" });
        let (value, _) = call(&service, tool, ask).await;
        assert_eq!(value[found][0]["path"], "../up/x.rs", "{tool}");
    }
}

#[tokio::test]
async fn more_definitions_than_are_looked_through_are_never_passed_off_as_all() {
    let folder = TempDir::new().unwrap();
    let service = service(folder.path(), &Settings::default());
    for from in [0, 700, 1_400] {
        let document =
            |at| json!({ "id": format!("{at}.rs"), "text": format!("fn func_{at}() {{}}\n") });
        let documents: Vec<Value> = (from..from + 700).map(document).collect();
        call(&service, "search.upsert", json!({ "namespace": "n", "documents": documents })).await;
    }
    let one = json!([{ "id": "z.rs", "text": "struct Funcs;\n" }]);
    call(&service, "search.upsert", json!({ "namespace": "n", "documents": one })).await;
    let ask = |more: Value| {
        let mut ask = json!({ "name": "func", "namespace": "n", "limit": 100 });
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    };
    let of =
        |page: &Value| (page["definitions"].as_array().unwrap().len(), page["truncated"] == true);
    let (page, note) = call(&service, "search.names", ask(json!({}))).await;
    assert_eq!(of(&page), (100, true));
    assert!(note.contains("go on with cursor"), "{note}");
    let (page, note) = call(&service, "search.names", ask(json!({ "path_prefix": "123" }))).await;
    assert_eq!(of(&page), (11, false));
    assert!(!note.contains("narrow"), "{note}");
    // A rarer kind may be beyond what was looked through, and on the last page it is said.
    let (page, note) = call(&service, "search.names", ask(json!({ "kinds": ["type"] }))).await;
    assert!(of(&page).0 <= 1 && of(&page).1 && page["cursor"].is_null(), "{page}");
    assert!(note.ends_with("narrow it by path_prefix or tags"), "{note}");
}
