//! Tests that documents are loaded, rendered and searched.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{AnyTool, Caller, ToolContext, ToolError, ToolErrorKind};

use super::*;
use crate::{files, search};

/// Test bench with the tools of `docs`, in a workspace that contains given files.
struct DocsTestBench {
    _folder: TempDir,
    tools: Vec<Arc<dyn AnyTool>>,
}

impl DocsTestBench {
    #[allow(clippy::disallowed_methods, reason = "a test sets up the world itself")]
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = TempDir::new().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        let searched = search::SearchSettings::default();
        let files = files::FileSettings::default();
        let folders = search::IndexFolders::default();
        let fetch = toolgate_world::HttpFetcher::default();
        let service = SearchService::new(&root, &searched, &files, folders, &fetch).unwrap();
        Self { _folder: folder, tools: tools(&root, &service) }
    }

    async fn call(&self, tool: &str, input: Value) -> Result<Value, ToolError> {
        let tool = self.tools.iter().find(|it| it.spec().id.as_str() == tool).unwrap();
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60));
        Ok(tool.run(&ctx, input).await?.value)
    }

    async fn load(&self, input: Value) -> Result<Value, ToolError> {
        self.call("docs.load.fetch", input).await
    }
}

fn invalid(pointer: &str) -> ToolErrorKind {
    ToolErrorKind::Invalid { pointer: pointer.to_owned() }
}

#[tokio::test]
async fn a_document_is_loaded_with_its_metadata() {
    let text = b"---\ntitle: A walk\nby: {name: Ada}\n---\n# Walk\n";
    let desk = DocsTestBench::new(&[
        ("a.md", text),
        ("plain.md", b"---\n\nA rule stands above.\n"),
        ("a.json", br#"{"title":"beside"}"#),
        ("a.yml", b"title: YAML\nn: 2\n"),
        ("list.json", b"[1]"),
        ("wrong.yml", b"a: 1\nb: [\n"),
        ("wrong.md", b"---\na: 1\na: 2\n---\n"),
    ]);
    let hash = sha256(text);
    let whole = json!({ "path": "a.md", "content": String::from_utf8_lossy(text), "sha256": hash });
    let own = json!({ "title": "A walk", "by": { "name": "Ada" } });
    let stats = json!({ "bytes": text.len() });
    let loaded = desk.load(json!({ "path": "a.md" })).await.unwrap();
    assert_eq!(loaded, json!({ "document": whole, "metadata": own, "stats": stats }));
    for (metadata_path, metadata) in
        [("a.json", json!({ "title": "beside" })), ("a.yml", json!({ "title": "YAML", "n": 2 }))]
    {
        let input = json!({ "path": "a.md", "metadataPath": metadata_path });
        assert_eq!(desk.load(input).await.unwrap()["metadata"], metadata);
    }
    let plain = desk.load(json!({ "path": "plain.md", "metadataPath": null })).await.unwrap();
    assert_eq!(plain["metadata"], json!({}));
    for (metadata_path, why) in [
        ("list.json", "`list.json` does not contain an object at its top level"),
        ("wrong.yml", "`wrong.yml` is not YAML: line "),
        ("../a.json", ""),
        ("/etc/passwd", ""),
    ] {
        let input = json!({ "path": "a.md", "metadataPath": metadata_path });
        let err = desk.load(input).await.unwrap_err();
        assert!(
            err.fault == invalid("/metadataPath") || err.fault == ToolErrorKind::NotAllowed,
            "{err:?}"
        );
        assert!(err.message.contains(why), "{}", err.message);
    }
    let err = desk.load(json!({ "path": "wrong.md" })).await.unwrap_err();
    assert!(err.message.starts_with("the front matter of `wrong.md`: line 3: "), "{}", err.message);
}

#[tokio::test]
async fn a_document_that_cannot_be_loaded_gives_the_right_fault() {
    let desk = DocsTestBench::new(&[("big.txt", &vec![b'x'; (1 << 20) + 1]), ("dir/a.txt", b"a")]);
    for (path, fault) in [
        ("none.md", ToolErrorKind::NotFound),
        ("big.txt", ToolErrorKind::TooLarge),
        ("../x", ToolErrorKind::NotAllowed),
        ("/etc/passwd", ToolErrorKind::NotAllowed),
        ("dir", invalid("/path")),
        ("", invalid("/path")),
    ] {
        let err = desk.load(json!({ "path": path })).await.unwrap_err();
        assert_eq!(err.fault, fault, "{path}: {}", err.message);
    }
}

#[tokio::test]
async fn a_document_is_decoded_in_the_given_encoding() {
    let desk = DocsTestBench::new(&[
        ("latin.txt", b"caf\xe9"),
        ("wide.txt", b"\xff\xfeh\0\xe9\0"),
        ("big-endian.txt", b"\xfe\xff\0h\0\xe9"),
        ("odd.txt", b"a\0b"),
    ]);
    for (path, encoding, content) in [
        ("latin.txt", "ISO-8859-1", Some("café")),
        ("latin.txt", "utf-8", None),
        ("latin.txt", "ascii", None),
        ("wide.txt", "utf_16", Some("hé")),
        ("big-endian.txt", "UTF-16", Some("hé")),
        ("odd.txt", "utf-16", None),
        ("odd.txt", "utf8", Some("a\0b")),
        ("odd.txt", "ebcdic", None),
    ] {
        let loaded = desk.load(json!({ "path": path, "encoding": encoding })).await;
        match (loaded, content) {
            (Ok(loaded), Some(content)) => assert_eq!(loaded["document"]["content"], content),
            (Err(err), None) => assert_eq!(err.fault, invalid("/encoding"), "{}", err.message),
            (loaded, _) => panic!("{path} as {encoding}: {loaded:?}"),
        }
    }
}

#[tokio::test]
async fn a_rendered_document_does_not_depend_on_the_order_of_keys() {
    let desk = DocsTestBench::new(&[]);
    let render = |front: Value| {
        json!({ "title": "T", "template": "# {{ title }}\n\n{{ body }}\n", "body": "{{ title }}",
            "frontMatter": front, "metadata": null })
    };
    let one = desk.call("docs.render", render(json!({ "b": 1, "a": { "d": 1, "c": [] } })));
    let two = desk.call("docs.render", render(json!({ "a": { "c": [], "d": 1 }, "b": 1 })));
    let one = one.await.unwrap();
    let two = two.await.unwrap();
    let text = "---\na:\n  c: []\n  d: 1\nb: 1\n---\n\n# T\n\n{{ title }}\n";
    assert_eq!(one["markdown"], text);
    assert_eq!(one["contentHash"], sha256(text.as_bytes()));
    assert_eq!(one["contentHash"], two["contentHash"]);
    let inputs = json!({ "title": "T", "frontMatter": { "a": { "d": 1, "c": [] }, "b": 1 } });
    assert_eq!(one["metadata"], inputs);
    let bare = desk.call("docs.render", render(Value::Null)).await.unwrap();
    assert_eq!(bare["markdown"], "# T\n\n{{ title }}\n");
    assert_eq!(bare["metadata"], json!({ "title": "T", "frontMatter": {} }));
    let mut unknown = render(Value::Null);
    unknown["template"] = "{{ x }}".into();
    let err = desk.call("docs.render", unknown).await.unwrap_err();
    assert_eq!(err.fault, invalid("/template"));
    assert!(err.message.contains("unknown name `x`"), "{}", err.message);
}

#[tokio::test]
async fn a_search_finds_passages_of_documents_with_titles_and_no_code() {
    let guide =
        b"# Guide\n\nWelcome.\n\nAll of it.\n\n## Bees\n\nHow to keep bees in winter.\n\nThey rest.\n";
    let note = b"---\ntitle: \"A note: bees\"\n---\n\nBees fly.\n";
    let desk = DocsTestBench::new(&[
        ("docs/guide.md", guide),
        ("note.md", note),
        ("bees.txt", b"bees and bees"),
        ("bees.rs", b"fn bees() {}\n"),
    ]);
    let search = |input: Value| desk.call("docs.search", input);
    let found = search(json!({ "query": "bees winter" })).await.unwrap();
    let hits = found["hits"].as_array().unwrap();
    assert_eq!((&found["query"], &found["total"]), (&json!("bees winter"), &json!(3)));
    let first = json!({ "title": "Guide", "snippet": "## Bees\n\nHow to keep bees in winter.\n\nThey rest.",
        "sourcePath": "docs/guide.md" });
    assert_eq!(hits[0]["document"], first);
    let ranks: Vec<_> = hits.iter().map(|hit| hit["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 2, 3]);
    let titles: Vec<_> =
        hits.iter().map(|hit| hit["document"]["title"].as_str().unwrap()).collect();
    assert!(titles.contains(&"A note: bees") && titles.contains(&"bees.txt"), "{titles:?}");
    let one = search(json!({ "query": "bees", "topK": 1 })).await.unwrap();
    assert_eq!((one["hits"].as_array().unwrap().len(), &one["total"]), (1, &json!(3)));
    let filters = json!({ "pathPrefix": "docs/", "tags": ["markdown"] });
    let within = search(json!({ "query": "bees", "filters": filters })).await.unwrap();
    assert_eq!(within["total"], 1);
    let err = search(json!({ "query": "?" })).await.unwrap_err();
    assert_eq!(err.fault, invalid("/query"));
}

#[tokio::test]
async fn a_too_large_rendering_is_refused_on_a_blocking_thread() {
    let desk = DocsTestBench::new(&[]);
    let input = |template: &str, front: Value| {
        json!({ "title": "T", "template": template, "body": "x".repeat(100_000),
            "frontMatter": { "a": front } })
    };
    let deep = (0..100).fold(json!(vec![1; 50_000]), |inner, _| json!([inner]));
    let half = vec!["y".repeat(100_000); 20];
    for (input, pointer) in [
        (input("t", deep), "/frontMatter"),
        (input(&"{{ body }}".repeat(30), json!(half)), "/frontMatter"),
        (input(&"{{ body }}".repeat(50), Value::Null), "/template"),
    ] {
        let err = desk.call("docs.render", input).await.unwrap_err();
        assert_eq!(err.fault, invalid(pointer));
        assert!(err.message.contains("more than 4194304 bytes"), "{}", err.message);
    }
    let fits = input(&"{{ body }}".repeat(20), json!(half));
    tokio::select! {
        biased;
        _ = desk.call("docs.render", fits.clone()) => panic!("rendering blocked the async thread"),
        () = std::future::ready(()) => {}
    }
    assert!(desk.call("docs.render", fits).await.is_ok());
}

#[tokio::test]
async fn a_search_by_more_than_32_tags_is_refused() {
    let desk = DocsTestBench::new(&[("a.md", b"# Bees\n")]);
    let tags = |many: usize| (0..many).map(|at| format!("t{at}")).collect::<Vec<_>>();
    let input = |tags: Vec<String>| json!({ "query": "bees", "filters": { "tags": tags } });
    assert_eq!(desk.call("docs.search", input(tags(32))).await.unwrap()["total"], 0);
    let err = desk.call("docs.search", input(tags(33))).await.unwrap_err();
    assert_eq!(err.fault, invalid("/filters/tags"));
}
