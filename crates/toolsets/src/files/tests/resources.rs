//! Tests that read, list and complete workspace files by URI.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use toolgate_contract::{
    Caller, CompletionRequest, CompletionTarget, ResourceData, ResourceSource, ResourceSpec,
    ToolContext, ToolErrorKind,
};
use toolgate_world::Root;

use super::space::TestWorkspace;
use crate::files::{self, FileSettings, FileToolLimits};

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

fn resources(space: &TestWorkspace, settings: &FileSettings) -> Arc<dyn ResourceSource> {
    files::resources(&Root::open(&space.ws).unwrap(), settings)
}

fn uri(space: &TestWorkspace, rest: &str) -> String {
    format!("file://{}/{rest}", space.ws.display())
}

async fn contents(source: &dyn ResourceSource, uri: &str) -> (Option<String>, ResourceData) {
    let mut contents =
        source.read(&ctx(), uri).await.unwrap_or_else(|err| panic!("{uri}: {err:?}"));
    assert_eq!((contents.len(), contents[0].uri.as_str()), (1, uri));
    let contents = contents.remove(0);
    (contents.media_type, contents.held)
}

async fn fault(source: &dyn ResourceSource, uri: &str) -> ToolErrorKind {
    let read = source.read(&ctx(), uri).await;
    let err = read.err().unwrap_or_else(|| panic!("{uri} was read"));
    assert!(!err.message.contains("canary"));
    err.fault
}

/// Lists all resources, page by page.
async fn list_all(source: &dyn ResourceSource, at_most: usize) -> Vec<ResourceSpec> {
    let mut all: Vec<ResourceSpec> = Vec::new();
    loop {
        let after = all.last().map(|last| last.uri.clone());
        let mut page = source.list(&ctx(), after.as_deref(), at_most).await.unwrap();
        assert!(page.len() <= at_most);
        let is_last = page.len() < at_most;
        all.append(&mut page);
        if is_last {
            return all;
        }
    }
}

#[tokio::test]
async fn text_is_read_as_text_and_anything_else_as_bytes() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    space.put("src/main.rs", "fn main() {}");
    space.put("Makefile", "é");
    space.put("a.png", b"\x89PNG\xff");
    space.put("latin", b"caf\xe9");
    space.put("bin.dat", b"\0\x01");
    space.put("nul.txt", b"a\0");
    space.put("b.png", "text");
    space.put("a.json", "{}");
    space.put("a.svg", "<svg/>");
    space.put("empty", "");
    space.put("large", "x".repeat(200_000));
    for (path, media_type, text) in [
        ("src/main.rs", "text/x-rust", "fn main() {}"),
        ("Makefile", "text/plain", "é"),
        ("empty", "text/plain", ""),
        ("a.json", "application/json", "{}"),
        ("a.svg", "image/svg+xml", "<svg/>"),
        ("large", "text/plain", &"x".repeat(200_000)),
    ] {
        let (kind, held) = contents(&*source, &uri(&space, path)).await;
        assert_eq!(
            (kind.as_deref(), held),
            (Some(media_type), ResourceData::Text(text.to_owned()))
        );
    }
    for (path, media_type, bytes) in [
        ("a.png", "image/png", &b"\x89PNG\xff"[..]),
        ("latin", "application/octet-stream", b"caf\xe9"),
        ("bin.dat", "application/octet-stream", b"\0\x01"),
        ("nul.txt", "text/plain", b"a\0"),
        ("b.png", "image/png", b"text"),
    ] {
        let (kind, held) = contents(&*source, &uri(&space, path)).await;
        let ResourceData::Bytes(held) = held else { panic!("{path} is text") };
        assert_eq!((kind.as_deref(), &held.0[..]), (Some(media_type), bytes));
    }
}

#[tokio::test]
async fn a_missing_or_too_large_file_is_refused_with_the_reason() {
    let space = TestWorkspace::new();
    let limits = FileToolLimits { answer_bytes_max: 10, ..FileToolLimits::default() };
    let source = resources(&space, &FileSettings { limits, ..FileSettings::default() });
    space.put("folder/ten", "0123456789");
    space.put("eleven", "0123456789a");
    contents(&*source, &uri(&space, "folder/ten")).await;
    let err = source.read(&ctx(), &uri(&space, "eleven")).await.unwrap_err();
    assert_eq!(err.fault, ToolErrorKind::TooLarge);
    assert!(err.message.contains("files_read") && err.message.contains("`offset`"), "{err:?}");
    for path in ["none", "none/x", "folder", "", "folder/ten/x", &"a".repeat(300)] {
        assert_eq!(fault(&*source, &uri(&space, path)).await, ToolErrorKind::NotFound, "{path}");
    }
}

#[tokio::test]
async fn a_uri_that_leads_outside_the_workspace_is_refused() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    space.put("a/in", "inside");
    space.symlink(space.evil.join("secret"), "out");
    space.symlink(&space.evil, "evil");
    space.symlink("a", "b");
    let evil = format!("file://{}", space.evil.join("secret").display());
    let hosted = uri(&space, "a/in").replace("file://", "file://localhost");
    let escapes = [
        "../ws_evil/secret",
        "a/../../ws_evil/secret",
        "%2e%2e/ws_evil/secret",
        "a/%2E./../ws_evil/secret",
        "..%2fws_evil%2fsecret",
        "a%2fin",
        "a/in%00",
        "out",
        "evil/secret",
    ];
    let escapes = escapes.map(|path| uri(&space, path));
    for uri in escapes.into_iter().chain([evil, hosted, "file:///etc/passwd".to_owned()]) {
        assert!(source.owns(&uri));
        assert_eq!(fault(&*source, &uri).await, ToolErrorKind::NotAllowed, "{uri}");
        let changes = Default::default();
        assert!(source.watch(&ctx(), &uri, &changes).await.is_err(), "{uri}");
    }
    assert!(!source.owns("https://example.com/a") && !source.owns("skill://a"));
    assert_eq!(
        contents(&*source, &uri(&space, "b/in")).await.1,
        ResourceData::Text("inside".to_owned())
    );
}

#[tokio::test]
async fn every_file_is_listed_once_for_any_page_size() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    let own = ["a b", "a", "a.d/x", "a/y"];
    let own = own.into_iter().filter(|path| *path != "a");
    let mut own: BTreeSet<String> = own.map(str::to_owned).collect();
    for at in 0..25 {
        own.insert(format!("many/{at}/f#{at}"));
        own.insert(format!("many{at}"));
    }
    own.extend([".env".to_owned(), ".gitignore".to_owned(), "é?%20".to_owned()]);
    for path in &own {
        space.put(path, "12345");
    }
    space.put(".gitignore", "/target\n*.log\n");
    space.put("target/debug/x", "");
    space.put("many/1/a.log", "");
    space.put(".git/config", "");
    space.symlink("a b", "link");
    fs::create_dir(space.ws.join("empty")).unwrap();
    fs::write(space.ws.join(std::ffi::OsStr::from_bytes(b"not\xffutf8")), "").unwrap();
    let all = list_all(&*source, 1000).await;
    for at_most in [1, 2, 7, all.len(), all.len() + 1] {
        assert_eq!(list_all(&*source, at_most).await, all, "{at_most}");
    }
    let mut names = BTreeSet::new();
    for spec in &all {
        let title = spec.title.clone().unwrap_or_else(|| spec.name.clone());
        assert!(names.insert(title), "{} is listed twice", spec.uri);
        contents(&*source, &spec.uri).await;
    }
    assert_eq!(names, own);
    let spec = all.iter().find(|spec| spec.name == "a b").unwrap();
    let modified = fs::metadata(space.ws.join("a b")).unwrap().modified().unwrap();
    assert_eq!(spec.uri, uri(&space, "a%20b"));
    assert_eq!((spec.bytes, spec.media_type.as_deref()), (Some(5), None));
    assert_eq!(spec.meant.modified, Some(modified.try_into().unwrap()));
}

#[tokio::test]
async fn a_list_continues_even_if_its_last_file_was_deleted() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    for name in ["a", "b/c", "d"] {
        space.put(name, "");
    }
    let first = source.list(&ctx(), None, 2).await.unwrap();
    fs::remove_dir_all(space.ws.join("b")).unwrap();
    let rest = source.list(&ctx(), Some(&first[1].uri), 2).await.unwrap();
    assert_eq!(rest.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["d"]);
}

#[tokio::test]
async fn a_folder_lists_its_files_and_folders() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    space.put("f/b.rs", "1");
    space.put("f/a/inner", "");
    space.put("f/c", "");
    space.symlink("../f/c", "f/d");
    space.symlink(&space.evil, "f/out");
    let seen = async |after: Option<String>, at_most| {
        let page = source.list_folder(&ctx(), &uri(&space, "f"), after.as_deref(), at_most).await;
        let page = page.unwrap().into_iter().map(|spec| (spec.name, spec.media_type, spec.bytes));
        page.collect::<Vec<_>>()
    };
    let expected = [
        ("a".to_owned(), Some("inode/directory".to_owned()), None),
        ("b.rs".to_owned(), Some("text/x-rust".to_owned()), Some(1)),
        ("c".to_owned(), None, Some(0)),
        ("d".to_owned(), None, Some(0)),
    ];
    assert_eq!(seen(None, 10).await, expected);
    assert_eq!(seen(None, 2).await, expected[..2]);
    assert_eq!(seen(Some(uri(&space, "f/b.rs")), 10).await, expected[2..]);
    let top = source.list_folder(&ctx(), &uri(&space, ""), None, 10).await.unwrap();
    assert_eq!((top.len(), &top[0].uri), (1, &uri(&space, "f")));
    for path in ["f/b.rs", "none"] {
        let err = source.list_folder(&ctx(), &uri(&space, path), None, 10).await.unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::NotFound, "{path}");
    }
    let err = source.list_folder(&ctx(), &uri(&space, "f/out"), None, 10).await.unwrap_err();
    assert_eq!(err.fault, ToolErrorKind::NotAllowed);
}

#[tokio::test]
async fn a_path_is_completed_from_existing_files() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    space.put("src/main.rs", "");
    space.put("src/a b#.rs", "");
    space.put("docs/other", "");
    space.put(".gitignore", "/target\n");
    space.put("target/debug", "");
    let template = source.templates().remove(0);
    assert_eq!(template.uri, uri(&space, "{+path}"));
    let complete = async |template: &str, prefix: &str| {
        let request = CompletionRequest {
            target: CompletionTarget::Template(template.to_owned()),
            argument: "path".to_owned(),
            prefix: prefix.to_owned(),
            other_arguments: Default::default(),
        };
        source.complete(&ctx(), &request).await.unwrap()
    };
    let ours = template.uri.as_str();
    assert_eq!(complete(ours, "src/").await, ["src/a%20b%23.rs", "src/main.rs"]);
    assert_eq!(complete(ours, "src/a%20").await, ["src/a%20b%23.rs"]);
    assert_eq!(complete(ours, "MAIN").await, ["src/main.rs"]);
    assert_eq!(complete(ours, "target/").await, ["target/debug"]);
    assert_eq!(complete(ours, "../ws_e").await, [""; 0]);
    assert_eq!(complete("skill://{+path}", "src").await, [""; 0]);
    for value in complete(ours, "rs").await.iter().filter(|value| !value.ends_with('/')) {
        contents(&*source, &ours.replace("{+path}", value)).await;
    }
}

#[tokio::test]
async fn resources_are_guarded_by_files_read() {
    let space = TestWorkspace::new();
    let source = resources(&space, &FileSettings::default());
    let guard = source.guard();
    let tools = files::tools(&Root::open(&space.ws).unwrap(), &FileSettings::default());
    let tool = tools.iter().find(|tool| tool.spec().id == guard.id).expect("the guard is a tool");
    assert_eq!(guard.id.as_str(), "files.read");
    assert_eq!(
        (guard.effects, guard.concurrency_max),
        (tool.spec().effects, tool.spec().concurrency_max)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_file_of_any_name_is_listed_and_read_by_its_uri(name in "[^/\u{0}]{1,30}") {
        prop_assume!(name != "." && name != ".." && name != ".git" && name != ".gitignore");
        let space = TestWorkspace::new();
        space.put(&name, name.as_bytes());
        let source = resources(&space, &FileSettings::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let all = list_all(&*source, 10).await;
            assert_eq!(all.len(), 1, "{name:?}");
            assert_eq!(all[0].name, name);
            assert_eq!(contents(&*source, &all[0].uri).await.1, ResourceData::Text(name.clone()));
        });
    }
}
