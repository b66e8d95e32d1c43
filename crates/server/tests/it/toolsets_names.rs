//! Tests of `search.names` with a running server.

use serde_json::{Value, json};

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, refusal, structured,
};

const SESSION: &str = "//! Sessions.\n\nuse std::fmt;\n\nconst SESSION_MAX: usize = 4;\n\n/// One.\n\
    pub struct Session {\n    id: u32,\n}\n\nimpl Session {\n    /// Starts a session for whoever asks.\n\
    \x20   pub fn start_session(id: u32) -> Self {\n        let made = Self { id };\n        \
    made.check();\n        made\n    }\n}\n";

fn code() -> TempWorkspace {
    TempWorkspace::new()
        .file("src/session.rs", SESSION)
        .file("src/other.py", "class Other:\n    def start(self):\n        return 1\n\n    def begin_other(self):\n        a = 1\n        b = 2\n        return a + b\n")
        .file("docs/guide.md", "# Guide\n\nText of it.\n\n## Sessions at work\n\nMore text.\n")
        .file("built/session.rs", "fn start_session() {}\n")
        .file(".gitignore", "/built/\n")
}

fn names(found: &Value) -> Vec<(String, String)> {
    let name_and_likeness = |it: &Value| {
        let text = |name: &str| it[name].as_str().unwrap().to_owned();
        (text("name"), text("likeness"))
    };
    found["definitions"].as_array().unwrap().iter().map(name_and_likeness).collect()
}

fn search(client: &mut TestMcpClient, input: Value) -> Value {
    structured(&client.call("search_names", input)).clone()
}

#[test]
fn a_definition_is_found_by_its_name_its_beginning_its_words_or_a_misspelling() {
    over_both(&code(), |client| {
        let found_as = |client: &mut TestMcpClient, name: &str| {
            let found = search(client, json!({ "name": name }));
            names(&found).into_iter().next()
        };
        for (query, name, likeness) in [
            ("start_session", "start_session", "exact"),
            ("Start_Session", "start_session", "case"),
            ("start_sess", "start_session", "prefix"),
            ("startSession", "start_session", "words"),
            ("start_sesion", "start_session", "misspelt"),
            ("Session", "Session", "exact"),
            ("SESSION_MAX", "SESSION_MAX", "exact"),
            ("Sessions at work", "Sessions at work", "exact"),
        ] {
            let expected = Some((name.to_owned(), likeness.to_owned()));
            assert_eq!(found_as(client, query), expected, "{query}");
        }
        assert_eq!(found_as(client, "nothing_of_that_kind"), None);
        let one = search(client, json!({ "name": "start_session", "limit": 1 }));
        let mut one = one["definitions"][0].clone();
        let etag = one.as_object_mut().unwrap().remove("etag").unwrap();
        let read = client.call("files_read", json!({ "path": "src/session.rs" }));
        assert_eq!(etag, structured(&read)["etag"]);
        let expected = json!({ "name": "start_session", "likeness": "exact", "kind": "function",
            "container": ["Session"], "path": "src/session.rs", "line": 14, "line_start": 13,
            "line_end": 18, "head": "pub fn start_session(id: u32) -> Self", "lang": "rust",
            "tags": ["rust", "code"] });
        assert_eq!(one, expected);
    });
}

#[test]
fn names_are_filtered_and_paged_and_invalid_input_is_rejected() {
    let workspace = TempWorkspace::new();
    for file in 0..30 {
        let text = format!("def handle_{file:02}(x):\n    a = x\n    b = a\n    return b\n");
        workspace.put(&format!("src/h{file:02}.py"), text.into_bytes());
    }
    workspace.put("web/handle.ts", b"export class Handle {\n  a = 1;\n  b = 2;\n  c = 3;\n}\n");
    over_both(&workspace, |client| {
        let mut all = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let input =
                json!({ "name": "handle_", "limit": 7, "tags": ["python"], "cursor": cursor });
            let page = search(client, input);
            all.extend(names(&page).into_iter().map(|(name, _)| name));
            cursor = page["cursor"].clone();
            assert_eq!(page["truncated"], json!(!cursor.is_null()));
            if cursor.is_null() {
                break;
            }
        }
        let expected: Vec<String> = (0..30).map(|file| format!("handle_{file:02}")).collect();
        all.sort();
        assert_eq!(all, expected);
        let types = search(client, json!({ "name": "handle", "kinds": ["type"] }));
        assert_eq!(names(&types), [("Handle".to_owned(), "case".to_owned())]);
        let web = search(client, json!({ "name": "handle", "path_prefix": "web/" }));
        assert_eq!(names(&web).len(), 1);
        for (input, pointer) in [
            (json!({ "query": " " }), "/query"),
            (json!({ "name": "x", "limit": 101 }), "/limit"),
            (json!({ "name": "x", "namespace": "nowhere" }), "/namespace"),
            (json!({ "name": "x", "cursor": "zz" }), "/cursor"),
            (json!({ "name": "x", "kinds": ["verb"] }), "/kinds"),
        ] {
            let message = refusal(&client.call("search_names", input.clone()));
            assert!(message.contains(pointer), "{input}: {message}");
        }
    });
}

#[test]
fn a_page_continues_after_the_last_definition_when_earlier_ones_were_added() {
    let workspace = TempWorkspace::new();
    let define = |file: &str| {
        let text = format!("def handle_{file}(x):\n    a = x\n    b = a\n    return b\n");
        workspace.put(&format!("src/{file}.py"), text);
    };
    ["b", "c", "d", "e", "f", "g"].into_iter().for_each(define);
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let input = |cursor: &Value| json!({ "name": "handle_", "limit": 3, "cursor": cursor });
    let first = search(&mut client, input(&Value::Null));
    define("a");
    let second = search(&mut client, input(&first["cursor"]));
    let names_of = |page: &Value| names(page).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names_of(&first), ["handle_b", "handle_c", "handle_d"]);
    assert_eq!(names_of(&second), ["handle_e", "handle_f", "handle_g"]);
}

#[test]
fn equal_names_have_different_containers_and_filters_apply_before_the_limit() {
    let two = "class A:\n    def go(self):\n        a = 1\n        b = 2\n        return a + b\n\n\n\
        class B:\n    def go(self):\n        c = 1\n        d = 2\n        return c + d\n";
    let mut workspace = TempWorkspace::new().file("src/two.py", two);
    for file in 0..9 {
        workspace =
            workspace.file(&format!("src/go{file}.py"), format!("def go{file}():\n    pass\n"));
    }
    let workspace = workspace.file("docs/go.md", "# Other\n\nText.\n\n## Go far\n\nMore text.\n");
    over_both(&workspace, |client| {
        let all = search(client, json!({ "name": "go" }));
        let exact = all["definitions"].as_array().unwrap().iter().take(2);
        let places: Vec<_> = exact.map(|it| (&it["container"][0], &it["line"])).collect();
        assert_eq!(places, [(&json!("A"), &json!(2)), (&json!("B"), &json!(9))]);
        let sections = json!({ "name": "go", "kinds": ["section"], "limit": 1 });
        let section = search(client, sections);
        assert_eq!(section["definitions"][0]["name"], "Go far", "{section}");
        let root = workspace.root().to_str().unwrap();
        for prefix in ["docs/", "./docs", &format!("{root}/docs")] {
            let docs = search(client, json!({ "name": "go", "path_prefix": prefix }));
            assert_eq!(names(&docs), [("Go far".to_owned(), "prefix".to_owned())], "{prefix}");
        }
        // Small neighbours in a document share a passage, so only its head is known.
        let documents = json!([{ "id": "x.rs", "text": "fn first() {}\nfn second() {}\n" }]);
        let put = json!({ "namespace": "notes", "documents": documents });
        structured(&client.call("search_upsert", put));
        let second = search(client, json!({ "name": "second", "namespace": "notes" }));
        let head = second["definitions"][0]["head"].as_str().unwrap_or("second");
        assert!(head.contains("second"), "{second}");
    });
}

#[test]
fn a_definition_is_found_once_written_and_at_its_current_line() {
    let workspace = code();
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    assert_eq!(names(&search(&mut client, json!({ "name": "quagga" }))), []);
    let text = "def quagga(x):\n    y = x\n    z = y\n    return z\n";
    let write = json!({ "path": "src/q.py", "content": text });
    structured(&client.call("files_write", write));
    let first = search(&mut client, json!({ "name": "quagga" }));
    assert_eq!(first["definitions"][0]["line"], 1, "{first}");
    let write = json!({ "path": "src/q.py", "content": format!("import os\n\n\n{text}"), "overwrite": true });
    structured(&client.call("files_write", write));
    let moved = search(&mut client, json!({ "name": "quagga" }));
    assert_eq!(moved["definitions"][0]["line"], 4, "{moved}");
    structured(&client.call("files_delete", json!({ "path": "src/q.py" })));
    assert_eq!(names(&search(&mut client, json!({ "name": "quagga" }))), []);
}
