//! Files that are taken in, and paths that are offered.

use std::fs;
use std::os::unix::fs::symlink;

use toolgate_contract::{ContentBody, MessageRole, ResourceData, ToolFault};

use super::{Bench, text};

#[tokio::test]
async fn a_file_comes_along_as_a_resource_between_the_texts() {
    let bench = Bench::new();
    bench.put("docs/a b.md", "# It");
    bench.prompt("p", "", "before\n![[./docs/../docs/a b.md]]\nafter");
    let made = bench.made("p", &[]).await.unwrap();
    assert_eq!((text(&made[0]), text(&made[2]), made.len()), ("before", "after", 3));
    let ContentBody::Resource(contents) = &made[1].content.shown else { panic!("{made:?}") };
    let uri = format!("file://{}/docs/a%20b.md", bench.path().display());
    assert_eq!(contents.uri, uri);
    assert_eq!(contents.media_type.as_deref(), Some("text/markdown"));
    assert_eq!(contents.held, ResourceData::Text("# It".to_owned()));
    assert!(made.iter().all(|message| message.role == MessageRole::User));
}

#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let bench = Bench::new();
    bench.put("in.txt", "in");
    symlink("/etc/hostname", bench.path().join("link")).unwrap();
    bench.prompt("p", "arguments: [{name: path, kind: path, required: true}]\n", "![[{{path}}]]");
    assert_eq!(
        bench.made("p", &[("path", "./x/../in.txt")]).await.unwrap_err().fault,
        ToolFault::NotFound
    );
    assert_eq!(bench.made("p", &[("path", "in.txt")]).await.unwrap().len(), 1);
    for path in ["../etc/passwd", "/etc/passwd", "link", "a/../../x", "..", "/"] {
        let err = bench.made("p", &[("path", path)]).await.unwrap_err();
        let refused = matches!(err.fault, ToolFault::NotAllowed | ToolFault::NotFound);
        assert!(refused, "{path}: {err:?}");
        assert!(err.message.starts_with("the prompt takes in a file"), "{}", err.message);
    }
    let err = bench.made("p", &[("path", ".")]).await.unwrap_err();
    assert!(err.message.contains("directory"), "{}", err.message);
}

#[tokio::test]
async fn what_is_required_is_not_empty() {
    let bench = Bench::new();
    bench.prompt("tidy", "arguments: [{name: path, required: true}, {name: n}]\n", "a\n{{path}}");
    let err = bench.made("tidy", &[("path", ""), ("n", "")]).await.unwrap_err();
    assert!(matches!(err.fault, ToolFault::Invalid { .. }), "{err:?}");
    assert_eq!(err.message, "`path` is empty; the prompt `tidy` needs it");
    assert_eq!(bench.made("tidy", &[("path", "x"), ("n", "")]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_that_is_too_large_is_refused_and_one_that_is_no_text_is_bytes() {
    let bench = Bench::new();
    bench.put("large", vec![b'x'; (1 << 20) + 1]);
    bench.put("full", vec![b'x'; 1 << 20]);
    bench.put("a.png", b"\x89PNG\xff");
    for name in ["large", "full", "a.png"] {
        bench.prompt(&name.replace('.', "-"), "", &format!("![[{name}]]"));
    }
    assert_eq!(bench.made("large", &[]).await.unwrap_err().fault, ToolFault::TooLarge);
    assert_eq!(bench.made("full", &[]).await.unwrap().len(), 1);
    let made = bench.made("a-png", &[]).await.unwrap();
    let ContentBody::Resource(contents) = &made[0].content.shown else { panic!("{made:?}") };
    assert_eq!(contents.media_type.as_deref(), Some("image/png"));
    assert!(
        matches!(&contents.held, ResourceData::Bytes(bytes) if bytes.0.as_ref() == b"\x89PNG\xff")
    );
}

#[tokio::test]
async fn a_prompt_does_not_become_larger_than_a_model_could_read() {
    let bench = Bench::new();
    bench.put("full", vec![b'x'; 1 << 20]);
    bench.prompt("files", "", &"![[full]]\n".repeat(9));
    bench.prompt("words", "arguments: [{name: a}]\n", &"{{a}}".repeat(9));
    assert_eq!(bench.made("files", &[]).await.unwrap_err().fault, ToolFault::TooLarge);
    let long = "x".repeat(1 << 20);
    assert_eq!(bench.made("words", &[("a", &long)]).await.unwrap_err().fault, ToolFault::TooLarge);
    assert_eq!(bench.made("words", &[("a", &long[..900_000])]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_argument_is_offered_its_values_or_the_paths_of_the_workspace() {
    let bench = Bench::new();
    let head = "arguments: [{name: v, values: [x, y]}, {name: p, kind: path}, {name: n}]\n";
    bench.prompt("p", head, "{{v}}{{p}}{{n}}");
    bench.put("src/deep/a.rs", "");
    bench.put("src/b.rs", "");
    bench.put("target/c.rs", "");
    bench.put(".gitignore", "target\n");
    fs::create_dir(bench.path().join(".git")).unwrap();
    symlink("/", bench.path().join("root")).unwrap();
    assert_eq!(bench.offered("p", "v", "").await, ["x", "y"]);
    assert!(bench.offered("p", "n", "").await.is_empty());
    let all = bench.offered("p", "p", "").await;
    for path in ["src/", "src/b.rs", "src/deep/", "src/deep/a.rs", "root"] {
        assert!(all.iter().any(|one| one == path), "{path} is not in {all:?}");
    }
    assert!(!all.iter().any(|one| one.contains("target") || one.starts_with("root/")), "{all:?}");
    assert_eq!(bench.offered("p", "p", "src/deep/").await, ["src/deep/a.rs"]);
    for so_far in ["../", "/etc/", "root/", "nowhere/x"] {
        assert!(bench.offered("p", "p", so_far).await.is_empty(), "{so_far}");
    }
}

#[tokio::test]
async fn who_may_not_read_files_sees_no_prompt_that_takes_one_in_or_offers_their_paths() {
    let bench = Bench::new();
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
