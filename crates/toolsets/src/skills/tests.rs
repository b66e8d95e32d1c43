//! Tests of skills, each in its own workspace.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use toolgate_contract::{
    Caller, ChangeFeed, CompletionRequest, CompletionTarget, ResourceContents, ResourceData,
    ResourceSource, ResourceSpec, ServerChange, Skill, SkillFile, SkillFileList, SkillSource,
    ToolContext, ToolErrorKind,
};

use super::entry::{OfferedSkill, SkillFileInfo, SkillFileOrigin};
use super::{SkillLibrary, SkillSettings, search};
use crate::workspace_scan::FileValueCache;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

/// Test bench: a workspace with skills.
struct SkillTestBench {
    dir: TempDir,
    root: Root,
    library: Arc<SkillLibrary>,
}

impl SkillTestBench {
    /// Creates a test bench without the built-in skill.
    fn new() -> Self {
        Self::with(|root| SkillLibrary::open(root, &SkillSettings::default().folders, false))
    }

    fn with(open: impl FnOnce(&Root) -> Arc<SkillLibrary>) -> Self {
        let dir = TempDir::new().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let library = open(&root);
        Self { dir, root, library }
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes a skill called `name` in the folder `path`.
    fn skill(&self, path: &str, name: &str) {
        let text = format!("---\nname: {name}\ndescription: Does {name}.\n---\n# {name}\n");
        self.put(&format!("{path}/SKILL.md"), text);
    }

    async fn all(&self) -> Vec<Skill> {
        self.library.all(&ctx()).await.unwrap()
    }

    async fn uris(&self) -> Vec<String> {
        self.all().await.into_iter().map(|skill| skill.uri).collect()
    }

    async fn read(&self, uri: &str) -> ResourceContents {
        let mut read = self.library.read(&ctx(), uri).await.unwrap();
        assert_eq!(read.len(), 1);
        read.remove(0)
    }

    async fn fault(&self, uri: &str) -> ToolErrorKind {
        self.library.read(&ctx(), uri).await.unwrap_err().fault
    }

    async fn children(&self, uri: &str) -> Vec<(String, String)> {
        let children = self.library.list_folder(&ctx(), uri, None, 100).await.unwrap();
        let child = |spec: ResourceSpec| (spec.uri, spec.media_type.unwrap());
        children.into_iter().map(child).collect()
    }

    /// Returns the log lines about skipped skills and files.
    fn left_out(&self) -> Vec<String> {
        let folders = SkillSettings::default().folders;
        let mut files = FileValueCache::default();
        let found =
            search::search_folders(&self.root, &folders, &mut files, &DiskWorkMonitor::default());
        found.unwrap().1.iter().map(ToString::to_string).collect()
    }

    /// Checks that there are no skills, and that the log has a single line about a skipped skill,
    /// whose reason begins with `start`.
    async fn check_left_out(&self, start: &str) {
        assert!(self.all().await.is_empty(), "{start}");
        let lines = self.left_out();
        let start = format!("a skill is left out: {start}");
        assert!(lines.len() == 1 && lines[0].starts_with(&start), "{start}: {lines:#?}");
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

fn files(skill: &Skill) -> &[SkillFile] {
    match &skill.files {
        SkillFileList::All(files) => files,
        SkillFileList::Dynamic => panic!("{skill:?}"),
    }
}

fn bytes(contents: &ResourceContents) -> Vec<u8> {
    match &contents.held {
        ResourceData::Text(text) => text.as_bytes().to_vec(),
        ResourceData::Bytes(bytes) => bytes.0.to_vec(),
    }
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(content)))
}

/// Checks that every file of `skill` has the size and digest in the skill's list of files.
async fn check_files(bench: &SkillTestBench, skill: &Skill) {
    assert!(files(skill).iter().any(|file| file.uri == skill.uri));
    for file in files(skill) {
        let contents = bench.read(&file.uri).await;
        assert_eq!(contents.uri, file.uri);
        assert_eq!(digest(&bytes(&contents)), file.digest, "{}", file.uri);
        assert_eq!(bytes(&contents).len() as u64, file.bytes, "{}", file.uri);
    }
}

#[tokio::test]
async fn a_skill_with_values_that_lack_quotes_is_served_as_they_stand() {
    let bench = SkillTestBench::new();
    let text = "\u{feff}---\r\nname: tidy\r\ndescription: Use it: `always`\r\nhint: @all\r\n---\r\nBody\r\n";
    bench.put("skills/tidy/SKILL.md", text);
    let all = bench.all().await;
    let [skill] = &all[..] else { panic!("{all:?} {:?}", bench.left_out()) };
    assert_eq!(skill.front_matter["description"], "Use it: `always`");
    assert_eq!(skill.front_matter["hint"], "@all");
    check_files(&bench, skill).await;
    // The error of a file that cannot be repaired names its own line.
    bench.put("skills/tidy/SKILL.md", "---\nname: tidy\ndescription: a: b\n[\n---\n");
    bench.check_left_out("skills/tidy/SKILL.md:3: ").await;
}

#[tokio::test]
async fn every_file_of_a_skill_matches_its_digest_and_size() {
    let bench = SkillTestBench::new();
    bench.skill("skills/pdf", "pdf");
    bench.put("skills/pdf/references/a b.md", "\u{feff}# Ü\r\n");
    bench.put("skills/pdf/scripts/run.py", "print()");
    bench.put("skills/pdf/assets/logo.png", b"\x89PNG\xff\x00");
    bench.put("skills/pdf/empty", "");
    bench.put("skills/pdf/.hidden", "not of the skill");
    let all = bench.all().await;
    assert_eq!(files(&all[0]).len(), 5, "{all:#?}");
    assert!(files(&all[0]).iter().all(|file| file.uri.starts_with("skill://pdf/")));
    check_files(&bench, &all[0]).await;
    let read = bench.read("skill://pdf/references/a%20b.md").await;
    assert_eq!(read.media_type.as_deref(), Some("text/markdown"));
    assert_eq!(bench.fault("skill://pdf/.hidden").await, ToolErrorKind::NotFound);
    assert_eq!(bench.fault("skill://pdf/../pdf/SKILL.md").await, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn the_front_matter_is_returned_unchanged() {
    let bench = SkillTestBench::new();
    let head = "name: a\ndescription: 'It: does'\nlicense: MIT\nmetadata:\n  version: \"1.0\"\n  \
                n: 3\nallowed-tools: [x, y]\nok: yes\n";
    bench.put("skills/a/SKILL.md", format!("---\n{head}---\ntext"));
    let expected = json!({"name": "a", "description": "It: does", "license": "MIT",
        "metadata": {"version": "1.0", "n": 3}, "allowed-tools": ["x", "y"], "ok": "yes"});
    assert_eq!(serde_json::Value::Object(bench.all().await[0].front_matter.clone()), expected);
}

#[tokio::test]
async fn skills_are_found_at_any_depth_and_the_first_folder_wins() {
    let bench = SkillTestBench::new();
    bench.skill("skills/acme/billing/refunds", "refunds");
    bench.skill(".claude/skills/pdf", "pdf");
    bench.skill(".agents/skills/pdf", "pdf");
    bench.put(".agents/skills/pdf/other", "");
    let uris = ["skill://acme/billing/refunds/SKILL.md", "skill://pdf/SKILL.md"];
    assert_eq!(bench.uris().await, uris);
    assert_eq!(files(&bench.all().await[1]).len(), 1);
    let lines = bench.left_out();
    assert_eq!(lines.len(), 1);
    let start = "a skill is left out: .agents/skills/pdf/SKILL.md: another folder";
    assert!(lines[0].starts_with(start), "{lines:?}");
    let got = bench.library.get(&ctx(), uris[0]).await.unwrap();
    assert_eq!(got.as_ref(), Some(&bench.all().await[0]));
    for uri in ["skill://nobody/SKILL.md", "skill://pdf", "skill://pdf/other", "x"] {
        assert_eq!(bench.library.get(&ctx(), uri).await.unwrap(), None, "{uri}");
    }
}

#[tokio::test]
async fn an_invalid_skill_is_left_out_with_its_line() {
    for (path, text, start) in [
        ("a", "---\nname: b\ndescription: d\n---\n", "skills/a/SKILL.md:2: its name is `b`"),
        ("a", "---\ndescription: d\nname: b\n---\n", "skills/a/SKILL.md:3: its name is `b`"),
        ("a", "---\nname: a\n---\n", "skills/a/SKILL.md:1: the front matter has no `desc"),
        (
            "a",
            "---\nname: a\ndescription: ' '\n---\n",
            "skills/a/SKILL.md:3: `description` must be",
        ),
        (
            "a",
            "---\nname: a\ndescription: d\u{200b}\n---\n",
            "skills/a/SKILL.md:3: a text of `description` has the hidden character U+200B at byte 1",
        ),
        ("1", "---\nname: 1\ndescription: d\n---\n", "skills/1/SKILL.md:2: `name` must be text"),
        ("A", "---\nname: A\ndescription: d\n---\n", "skills/A/SKILL.md:2: `A` is not a valid"),
        ("a--b", "---\nname: a--b\ndescription: d\n---\n", "skills/a--b/SKILL.md:2: `a--b` is not"),
        ("a", "---\n- name\n---\n", "skills/a/SKILL.md:2: the front matter is not a list"),
        ("a", "# no front matter\n", "skills/a/SKILL.md:1: the file does not begin with"),
        ("a", "---\nname: a\ndescription: d\n", "skills/a/SKILL.md:1: the front matter has no end"),
    ] {
        let bench = SkillTestBench::new();
        bench.put(&format!("skills/{path}/SKILL.md"), text);
        bench.check_left_out(start).await;
    }
    let bench = SkillTestBench::new();
    bench.put("skills/a/SKILL.md", b"---\nname: a\ndescription: \xff\n---\n");
    bench.check_left_out("skills/a/SKILL.md: it is not UTF-8").await;
    let bench = SkillTestBench::new();
    bench.put("skills/a/x", "");
    symlink("x", bench.dir.path().join("skills/a/SKILL.md")).unwrap();
    assert!(bench.all().await.is_empty());
    let line = "a skill is left out: skills/a/SKILL.md: it is not a regular file";
    assert_eq!(bench.left_out()[1], line);
    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    bench.skill("skills/a/inner/b", "b");
    bench.check_left_out("skills/a/SKILL.md: it contains another skill").await;
}

#[tokio::test]
async fn a_skill_file_at_the_top_of_a_folder_of_skills_is_left_out_alone() {
    let bench = SkillTestBench::new();
    bench.skill("skills", "skills");
    bench.skill("skills/a", "a");
    bench.skill("skills/acme/b", "b");
    assert_eq!(bench.uris().await, ["skill://a/SKILL.md", "skill://acme/b/SKILL.md"]);
    let line = "skills/SKILL.md is left out: a skill must be in a separate folder that has the \
                skill's name";
    assert_eq!(bench.left_out(), [line]);
}

#[tokio::test]
async fn a_request_for_an_invalid_skill_gets_the_reason() {
    let bench = SkillTestBench::new();
    bench.skill("skills", "skills");
    bench.skill("skills/good", "good");
    bench.skill(".claude/skills/acme/b a d", "other");
    bench.put(".claude/skills/acme/b a d/more.md", "");
    symlink("SKILL.md", bench.dir.path().join("skills/good/link")).unwrap();
    assert_eq!(bench.uris().await, ["skill://good/SKILL.md"]);
    let place = "`.claude/skills/acme/b a d/SKILL.md:2` cannot be used: its name is `other`";
    for uri in ["skill://acme/b%20a%20d/SKILL.md", "skill://acme/b%20a%20d/more.md"] {
        let reason = bench.library.unusable_reason(uri).unwrap();
        assert!(reason.starts_with(place), "{reason}");
        let err = bench.library.read(&ctx(), uri).await.unwrap_err();
        assert_eq!((err.fault, err.message), (ToolErrorKind::NotFound, reason));
    }
    let reason = bench.library.unusable_reason("skill://good/link").unwrap();
    let start = "`skills/good/link` cannot be used: it is a symlink";
    assert!(reason.starts_with(start), "{reason}");
    for uri in ["skill://good/SKILL.md", "skill://nobody/SKILL.md", "skill://acme", "other"] {
        assert_eq!(bench.library.unusable_reason(uri), None, "{uri}");
    }
}

#[test]
fn a_folder_outside_the_workspace_is_refused() {
    SkillSettings::default().check().unwrap();
    let folders = vec!["skills".to_owned(), "/etc".to_owned()];
    let settings = SkillSettings { folders, ..SkillSettings::default() };
    let message = settings.check().unwrap_err();
    assert!(message.starts_with("`skills.folders` is `/etc`, which is outside"), "{message}");
}

#[tokio::test]
async fn a_skill_with_too_many_or_too_large_files_is_left_out() {
    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    for n in 1..512 {
        bench.put(&format!("skills/a/n/{n}"), "");
    }
    assert_eq!(files(&bench.all().await[0]).len(), 512);
    bench.put("skills/a/one-more", "");
    bench.check_left_out("skills/a/SKILL.md: the skill has 513 files").await;

    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    let room = (16 << 20) - fs::metadata(bench.dir.path().join("skills/a/SKILL.md")).unwrap().len();
    bench.put("skills/a/large", vec![0; usize::try_from(room).unwrap()]);
    assert_eq!(files(&bench.all().await[0]).len(), 2);
    bench.put("skills/a/z", "x");
    bench.check_left_out("skills/a/SKILL.md: the files of the skill have").await;

    let bench = SkillTestBench::new();
    let long = "x".repeat(1 << 20);
    bench.put("skills/a/SKILL.md", format!("---\nname: a\ndescription: d\n---\n{long}"));
    bench.check_left_out("skills/a/SKILL.md: it has").await;
}

#[tokio::test]
async fn a_symlink_to_a_skill_is_followed_only_inside_the_workspace() {
    let bench = SkillTestBench::new();
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("SKILL.md"), "---\nname: out\ndescription: d\n---\n").unwrap();
    bench.skill("elsewhere/a", "a");
    bench.put("secret", "canary");
    let link = |to: &Path, at: &str| symlink(to, bench.dir.path().join(at)).unwrap();
    fs::create_dir_all(bench.dir.path().join("skills")).unwrap();
    link(Path::new("../elsewhere/a"), "skills/a");
    link(outside.path(), "skills/out");
    link(Path::new("../../secret"), "elsewhere/a/link");
    link(Path::new("."), "skills/round");
    link(Path::new("a"), "skills/0");
    link(Path::new("skills"), ".agents");
    link(Path::new("../skills"), "elsewhere/skills");
    assert_eq!(bench.uris().await, ["skill://a/SKILL.md"]);
    check_files(&bench, &bench.all().await[0]).await;
    assert_eq!(files(&bench.all().await[0]).len(), 1);
    assert_eq!(bench.fault("skill://a/link").await, ToolErrorKind::NotFound);
    let lines = bench.left_out();
    let has = |part: &str| lines.iter().any(|line| line.contains(part));
    assert!(has("a skill is left out: skills/out: "), "{lines:#?}");
    assert!(has("a file of a skill is left out: skills/a/link: it is a symlink"), "{lines:#?}");
    assert!(has("a skill is left out: skills/0/SKILL.md:2: its name is `a`"), "{lines:#?}");
    assert!(!has("skills/round") && !has(".agents"), "{lines:#?}");
}

#[tokio::test]
async fn changed_skills_are_read_again() {
    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    bench.put("skills/a/x", "one");
    let before = bench.all().await;
    bench.put("skills/a/x", "two");
    let after = bench.all().await;
    assert_ne!(before, after);
    check_files(&bench, &after[0]).await;
    bench.skill("skills/a", "b");
    assert!(bench.all().await.is_empty());
    bench.skill("skills/b", "b");
    assert_eq!(bench.read("skill://b/SKILL.md").await.media_type.as_deref(), Some("text/markdown"));
    fs::remove_dir_all(bench.dir.path().join("skills")).unwrap();
    assert_eq!(bench.fault("skill://b/SKILL.md").await, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn a_subscriber_is_notified_of_the_changed_file() {
    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    bench.put("skills/a/x", "one");
    bench.all().await;
    let changes = ChangeFeed::default();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    changes.subscribe(move |change| drop(sender.send(change.clone())));
    let _guard = bench.library.watch(&ctx(), "skill://a/x", &changes).await.unwrap();
    bench.put("skills/a/x", "two");
    let mut next = async || {
        let change = tokio::time::timeout(Duration::from_secs(20), receiver.recv()).await;
        change.expect("notified in time").unwrap()
    };
    assert_eq!(next().await, ServerChange::Resource("skill://a/x".into()));
    assert_eq!(next().await, ServerChange::Resources);
}

#[tokio::test]
async fn the_list_has_each_skill_with_its_name_and_description() {
    let bench = SkillTestBench::new();
    bench.skill("skills/a", "a");
    bench.skill("skills/b", "b");
    bench.put("skills/b/more.md", "");
    let list = bench.library.list(&ctx(), None, 10).await.unwrap();
    let listed: Vec<_> = list.iter().map(|spec| (spec.uri.as_str(), spec.name.as_str())).collect();
    assert_eq!(listed, [("skill://a/SKILL.md", "a"), ("skill://b/SKILL.md", "b")]);
    assert_eq!(list[0].about.as_deref(), Some("Does a."));
    assert_eq!(list[0].media_type.as_deref(), Some("text/markdown"));
    assert_eq!(bench.library.list(&ctx(), None, 1).await.unwrap(), list[..1]);
    assert_eq!(bench.library.list(&ctx(), Some(&list[0].uri), 9).await.unwrap(), list[1..]);
    let request = CompletionRequest {
        target: CompletionTarget::Template("skill://{+path}".to_owned()),
        argument: "path".to_owned(),
        prefix: String::new(),
        other_arguments: std::collections::BTreeMap::new(),
    };
    assert_eq!(bench.library.templates()[0].uri, "skill://{+path}");
    let paths = bench.library.complete(&ctx(), &request).await.unwrap();
    assert_eq!(paths, ["a/SKILL.md", "b/SKILL.md", "b/more.md"]);
}

#[tokio::test]
async fn a_folder_lists_its_files_and_folders_and_a_file_is_refused() {
    let bench = SkillTestBench::new();
    bench.skill("skills/acme/a", "a");
    bench.put("skills/acme/a/r e/x.md", "");
    bench.put("skills/acme/a/z.txt", "");
    let child = |uri: &str, media: &str| (uri.to_owned(), media.to_owned());
    let folder = "inode/directory";
    assert_eq!(bench.children("skill://").await, [child("skill://acme", folder)]);
    assert_eq!(bench.children("skill://acme/").await, [child("skill://acme/a", folder)]);
    let inner = [
        child("skill://acme/a/SKILL.md", "text/markdown"),
        child("skill://acme/a/r%20e", folder),
        child("skill://acme/a/z.txt", "text/plain"),
    ];
    assert_eq!(bench.children("skill://acme/a").await, inner);
    let after =
        bench.library.list_folder(&ctx(), "skill://acme/a", Some(&inner[0].0), 1).await.unwrap();
    assert_eq!((after[0].uri.as_str(), after[0].name.as_str()), ("skill://acme/a/r%20e", "r e"));
    let fault =
        async |uri| bench.library.list_folder(&ctx(), uri, None, 1).await.unwrap_err().fault;
    assert_eq!(
        fault("skill://acme/a/SKILL.md").await,
        ToolErrorKind::Invalid { pointer: "/uri".into() }
    );
    assert_eq!(fault("skill://nobody").await, ToolErrorKind::NotFound);
    assert_eq!(fault("skill://acm").await, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn the_built_in_skill_is_valid_and_a_workspace_skill_replaces_it() {
    let bench = SkillTestBench::with(|root| {
        SkillLibrary::new(root, &SkillSettings::default()).expect("skills are on")
    });
    let all = bench.all().await;
    assert_eq!(all[0].uri, "skill://toolgate/SKILL.md");
    assert_eq!(files(&all[0]).len(), 3);
    check_files(&bench, &all[0]).await;
    let folder = bench.children("skill://toolgate").await;
    assert!(folder.iter().any(|(_, media)| media == "inode/directory"), "{folder:?}");
    bench.skill("skills/toolgate", "toolgate");
    assert_eq!(files(&bench.all().await[0]).len(), 1);
    let none = SkillSettings { folders: Vec::new(), ..SkillSettings::default() };
    assert!(SkillLibrary::new(&bench.root, &none).is_none());
}

proptest! {
    #[test]
    fn any_markdown_is_parsed_without_a_panic(text in "(---\n)?(name: [a-b]{1,2}\n|description: .{0,20}\n|[a-z]+:.{0,20}\n){0,4}(---\n)?\\PC{0,40}") {
        let info = Arc::new(SkillFileInfo::from_content("SKILL.md", text.as_bytes()));
        let file = ("SKILL.md".to_owned(), info, SkillFileOrigin::BuiltIn(""));
        if let Ok(entry) = OfferedSkill::new("x/a", [file]) {
            prop_assert_eq!(entry.name.as_str(), "a");
            prop_assert!(entry.skill().front_matter.contains_key("description"));
        }
    }
}
