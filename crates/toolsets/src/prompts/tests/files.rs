//! Tests of included files and completed paths.

use std::fs;
use std::os::unix::fs::symlink;

use toolgate_contract::{ContentBody, MessageRole, ResourceData, ToolErrorKind};

use super::{PromptTestBench, text};

#[tokio::test]
async fn an_included_file_is_a_resource_between_the_texts() {
    let bench = PromptTestBench::new();
    bench.put("docs/a b.md", "# It");
    bench.prompt("p", "", "before\n![[./docs/../docs/a b.md]]\nafter");
    let messages = bench.render("p", &[]).await.unwrap();
    assert_eq!((text(&messages[0]), text(&messages[2]), messages.len()), ("before", "after", 3));
    let ContentBody::Resource(contents) = &messages[1].content.shown else {
        panic!("{messages:?}")
    };
    let uri = format!("file://{}/docs/a%20b.md", bench.path().display());
    assert_eq!(contents.uri, uri);
    assert_eq!(contents.media_type.as_deref(), Some("text/markdown"));
    assert_eq!(contents.held, ResourceData::Text("# It".to_owned()));
    assert!(messages.iter().all(|message| message.role == MessageRole::User));
}

#[tokio::test]
async fn an_included_path_outside_the_workspace_is_refused() {
    let bench = PromptTestBench::new();
    bench.put("in.txt", "in");
    symlink("/etc/hostname", bench.path().join("link")).unwrap();
    bench.prompt("p", "arguments: [{name: path, kind: path, required: true}]\n", "![[{{path}}]]");
    assert_eq!(
        bench.render("p", &[("path", "./x/../in.txt")]).await.unwrap_err().fault,
        ToolErrorKind::NotFound
    );
    assert_eq!(bench.render("p", &[("path", "in.txt")]).await.unwrap().len(), 1);
    for path in ["../etc/passwd", "/etc/passwd", "link", "a/../../x", "..", "/"] {
        let err = bench.render("p", &[("path", path)]).await.unwrap_err();
        let refused = matches!(err.fault, ToolErrorKind::NotAllowed | ToolErrorKind::NotFound);
        assert!(refused, "{path}: {err:?}");
        assert!(err.message.starts_with("the prompt includes a file"), "{}", err.message);
    }
    let err = bench.render("p", &[("path", ".")]).await.unwrap_err();
    assert!(err.message.contains("directory"), "{}", err.message);
}

#[tokio::test]
async fn an_empty_required_argument_is_refused() {
    let bench = PromptTestBench::new();
    bench.prompt("tidy", "arguments: [{name: path, required: true}, {name: n}]\n", "a\n{{path}}");
    let err = bench.render("tidy", &[("path", ""), ("n", "")]).await.unwrap_err();
    assert!(matches!(err.fault, ToolErrorKind::Invalid { .. }), "{err:?}");
    assert_eq!(err.message, "`path` is empty; the prompt `tidy` needs it");
    assert_eq!(bench.render("tidy", &[("path", "x"), ("n", "")]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_too_large_file_is_refused_and_a_binary_file_is_bytes() {
    let bench = PromptTestBench::new();
    bench.put("large", vec![b'x'; (1 << 20) + 1]);
    bench.put("full", vec![b'x'; 1 << 20]);
    bench.put("a.png", b"\x89PNG\xff");
    for name in ["large", "full", "a.png"] {
        bench.prompt(&name.replace('.', "-"), "", &format!("![[{name}]]"));
    }
    assert_eq!(bench.render("large", &[]).await.unwrap_err().fault, ToolErrorKind::TooLarge);
    assert_eq!(bench.render("full", &[]).await.unwrap().len(), 1);
    let messages = bench.render("a-png", &[]).await.unwrap();
    let ContentBody::Resource(contents) = &messages[0].content.shown else {
        panic!("{messages:?}")
    };
    assert_eq!(contents.media_type.as_deref(), Some("image/png"));
    assert!(
        matches!(&contents.held, ResourceData::Bytes(bytes) if bytes.0.as_ref() == b"\x89PNG\xff")
    );
}

#[tokio::test]
async fn a_prompt_beyond_the_size_limit_is_refused() {
    let bench = PromptTestBench::new();
    bench.put("full", vec![b'x'; 1 << 20]);
    bench.prompt("files", "", &"![[full]]\n".repeat(9));
    bench.prompt("words", "arguments: [{name: a}]\n", &"{{a}}".repeat(9));
    assert_eq!(bench.render("files", &[]).await.unwrap_err().fault, ToolErrorKind::TooLarge);
    let long = "x".repeat(1 << 20);
    assert_eq!(
        bench.render("words", &[("a", &long)]).await.unwrap_err().fault,
        ToolErrorKind::TooLarge
    );
    assert_eq!(bench.render("words", &[("a", &long[..900_000])]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_argument_completes_to_its_values_or_to_workspace_paths() {
    let bench = PromptTestBench::new();
    let head = "arguments: [{name: v, values: [x, y]}, {name: p, kind: path}, {name: n}]\n";
    bench.prompt("p", head, "{{v}}{{p}}{{n}}");
    bench.put("src/deep/a.rs", "");
    bench.put("src/b.rs", "");
    bench.put("target/c.rs", "");
    bench.put(".gitignore", "target\n");
    fs::create_dir(bench.path().join(".git")).unwrap();
    symlink("/", bench.path().join("root")).unwrap();
    assert_eq!(bench.completions("p", "v", "").await, ["x", "y"]);
    assert!(bench.completions("p", "n", "").await.is_empty());
    let all = bench.completions("p", "p", "").await;
    for path in ["src/", "src/b.rs", "src/deep/", "src/deep/a.rs", "root"] {
        assert!(all.iter().any(|one| one == path), "{path} is not in {all:?}");
    }
    assert!(!all.iter().any(|one| one.contains("target") || one.starts_with("root/")), "{all:?}");
    assert_eq!(bench.completions("p", "p", "src/deep/").await, ["src/deep/a.rs"]);
    for prefix in ["../", "/etc/", "root/", "nowhere/x"] {
        assert!(bench.completions("p", "p", prefix).await.is_empty(), "{prefix}");
    }
}

#[tokio::test]
async fn a_prompt_that_includes_files_or_completes_paths_requires_files_read() {
    let bench = PromptTestBench::new();
    bench.prompt("takes", "", "![[a.txt]]");
    bench.prompt("offers", "arguments: [{name: path, kind: path}]\n", "{{path}}");
    bench.prompt("says", "arguments: [{name: word, values: [a]}]\n", "{{word}}");
    for (name, guard) in
        [("takes", Some("files.read")), ("offers", Some("files.read")), ("says", None)]
    {
        let prompt = bench.find(name).await;
        assert_eq!(prompt.guard().map(|guard| guard.id.as_str()), guard, "{name}");
    }
}
