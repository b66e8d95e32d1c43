//! Tests of submodules, linked worktrees and repositories that contain the workspace.

use super::*;

impl GitTestBench {
    /// Adds the submodule `name`, which has one commit. The submodule's repository is in
    /// `.git/modules`.
    fn add_submodule(&self, name: &str) {
        let source = self.folder.path().join("source");
        fs::create_dir_all(&source).unwrap();
        let home = self.folder.path().join("home");
        let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
        git_in(&source, &home, &["init", "-q", "-b", "main", "."]);
        let commit = ["commit", "-q", "--allow-empty", "-m", "first"];
        git_in(&source, &home, &[&identity[..], &commit[..]].concat());
        let source = source.display().to_string();
        self.git(&["-c", "protocol.file.allow=always", "submodule", "-q", "add", &source, name]);
        self.git(&["commit", "-qm", "submodule"]);
    }
}

#[tokio::test]
async fn a_submodule_with_changes_is_not_reported_as_clean() {
    let bench = GitTestBench::new();
    bench.add_submodule("parts/engine");
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.value["clean"], true, "{}", status.value);
    bench.put("parts/engine/new.txt", "new\n");
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.value["clean"], false, "{}", status.value);
    assert_eq!(status.text.body, bench.git(&["status", "--porcelain"]));
    let tracked = bench.done("git.status", json!({ "untracked": false })).await;
    assert_eq!(tracked.value["clean"], true, "{}", tracked.value);
    let diff = bench.done("git.diff", json!({})).await;
    assert_eq!(diff.value["submodules"], json!(["parts/engine"]));
    assert!(diff.text.note.unwrap().contains("`parts/engine`"));
    let other = bench.done("git.diff", json!({ "paths": ["a.txt"] })).await;
    assert_eq!(other.value["submodules"], json!([]));
    let input = json!({ "repo": "parts/engine", "paths": ["new.txt"] });
    let added = bench.done("git.add", input).await;
    assert_eq!(added.value["repository"], "parts/engine");
}

#[tokio::test]
async fn a_path_in_another_repository_is_refused_with_that_repository() {
    let bench = GitTestBench::new();
    bench.add_submodule("parts/engine");
    bench.put("parts/engine/deep/new.txt", "new\n");
    bench.put("nested/deep/new.txt", "new\n");
    bench.git(&["init", "-q", "nested"]);
    for repository in ["parts/engine", "nested"] {
        let path = format!("{repository}/deep/new.txt");
        for (tool, input) in [
            ("git.add", json!({ "paths": [path] })),
            ("git.unstage", json!({ "paths": ["a.txt", path] })),
            ("git.diff", json!({ "paths": [path] })),
            ("git.log", json!({ "path": path })),
            ("git.blame", json!({ "path": path })),
            ("git.restore", json!({ "paths": [path] })),
            ("git.show", json!({ "file": path })),
        ] {
            let refused = bench.refused(tool, input).await;
            assert_eq!(refused.fault, ToolErrorKind::NotFound, "{tool}: {refused:?}");
            let expected = format!(
                "`{path}` is in another repository; name `{repository}` in `repo`, and the path \
                 `deep/new.txt`"
            );
            assert_eq!(refused.message, expected, "{tool}");
        }
        let input = json!({ "repo": repository, "paths": ["deep/new.txt"] });
        bench.done("git.add", input).await;
    }
    // A file that is tracked here belongs to this repository, also if a `.git` appears beside it.
    bench.put("vendor/lib.c", "int x;\n");
    bench.done("git.add", json!({ "paths": ["vendor/lib.c"] })).await;
    bench.git(&["init", "-q", "vendor"]);
    bench.put("vendor/lib.c", "int y;\n");
    let staged = bench.done("git.add", json!({ "paths": ["vendor/lib.c"] })).await;
    assert!(staged.text.body.contains("A `vendor/lib.c`"), "{}", staged.text.body);
    let diff = bench.done("git.diff", json!({ "paths": ["vendor/lib.c"] })).await;
    assert_eq!(diff.text.note.as_deref(), Some("no differences"));
}

#[tokio::test]
async fn the_history_of_a_path_that_is_in_a_submodule_now_is_not_refused() {
    let bench = GitTestBench::new();
    bench.put("engine/old.txt", "old\n");
    bench.git(&["add", "engine/old.txt"]);
    bench.git(&["commit", "-qm", "old"]);
    let old = bench.git(&["rev-parse", "HEAD"]);
    let old = old.trim();
    bench.git(&["rm", "-rq", "engine"]);
    bench.git(&["commit", "-qm", "gone"]);
    bench.add_submodule("engine");
    let path = "engine/old.txt";
    let log = bench.done("git.log", json!({ "path": path })).await;
    assert_eq!(log.value["commits"].as_array().map(Vec::len), Some(2), "{}", log.value);
    let none = bench.done("git.log", json!({ "path": path, "author": "nobody" })).await;
    assert_eq!(none.value["commits"], json!([]));
    let unchanged = bench.done("git.show", json!({ "ref": "HEAD", "paths": [path] })).await;
    assert_eq!(unchanged.value["text"], "");
    let shown = bench.done("git.show", json!({ "ref": old, "file": path })).await;
    assert_eq!(shown.value["text"], "old\n");
    let blame = bench.done("git.blame", json!({ "ref": old, "path": path })).await;
    assert_eq!(blame.value["lines"][0]["text"], "old");
    let absent = bench.refused("git.show", json!({ "ref": "HEAD", "file": path })).await;
    assert!(absent.message.starts_with("there is no file `engine/old.txt` in"), "{absent:?}");
    let added = bench.refused("git.add", json!({ "paths": [path] })).await;
    assert!(added.message.contains("is in another repository"), "{added:?}");
}

#[tokio::test]
async fn a_submodule_that_cannot_be_opened_is_not_reported_as_clean() {
    let bench = GitTestBench::new();
    bench.add_submodule("engine");
    let modules = bench.root().join(".git/modules/engine");
    let outside = bench.folder.path().join("moved");
    fs::rename(&modules, &outside).unwrap();
    fs::write(bench.root().join("engine/.git"), format!("gitdir: {}\n", outside.display()))
        .unwrap();
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.value["unchecked"], json!(["engine"]), "{}", status.value);
    assert_eq!(status.value["clean"], false);
}

#[tokio::test]
async fn a_submodule_that_is_not_checked_out_is_not_taken_for_the_repository_above() {
    let bench = GitTestBench::new();
    bench.add_submodule("engine");
    bench.git(&["submodule", "-q", "deinit", "engine"]);
    let head = bench.git(&["rev-parse", "HEAD"]);
    bench.put("draft.txt", "draft\n");
    fs::create_dir_all(bench.root().join("engine/deep")).unwrap();
    for repo in ["engine", "engine/deep", "./engine/"] {
        for (tool, input) in [
            ("git.status", json!({ "repo": repo })),
            ("git.add", json!({ "repo": repo, "paths": ["."] })),
            ("git.commit", json!({ "repo": repo, "message": "m", "allow_empty": true })),
        ] {
            let refused = bench.refused(tool, input).await;
            assert!(refused.message.contains("a submodule that is not checked out"), "{refused:?}");
        }
    }
    assert_eq!(bench.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(bench.git(&["status", "--porcelain"]), "?? draft.txt\n");
    // Another folder of the repository names the repository itself.
    bench.put("docs/guide.md", "x\n");
    let status = bench.done("git.status", json!({ "repo": "docs" })).await;
    assert_eq!(status.value["repository"], ".");
}

#[tokio::test]
async fn a_repository_outside_is_named_by_the_folders_that_belong_to_it() {
    let bench = GitTestBench::with(&GitSettings::default());
    fs::remove_dir_all(bench.root().join(".git")).unwrap();
    let home = bench.folder.path().join("home");
    let outside = bench.folder.path().join("main");
    fs::create_dir(&outside).unwrap();
    git_in(&outside, &home, &["init", "-q", "-b", "main", "."]);
    git_in(&outside, &home, &["init", "-q", "--bare", ".git/modules/engine"]);
    let author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    let commit = ["commit", "-q", "--allow-empty", "-m", "first"];
    git_in(&outside, &home, &[&author[..], &commit[..]].concat());
    let tree = bench.root().join("tree").display().to_string();
    git_in(&outside, &home, &["worktree", "add", "-q", "-b", "topic", &tree]);
    bench.put("tree/folder/x", "x");
    let module = outside.join(".git/modules/engine");
    bench.put("lib/.git", &format!("gitdir: {}\n", module.display()));
    let name = outside.display().to_string();
    for (repo, kind) in
        [("tree", "linked worktree"), ("tree/folder", "linked worktree"), ("lib", "submodule")]
    {
        let refused = bench.refused("git.status", json!({ "repo": repo })).await;
        assert_eq!(refused.fault, ToolErrorKind::NotAllowed, "{refused:?}");
        let expected = format!("`{repo}` belongs to a {kind} of the repository `{name}`");
        assert!(refused.message.starts_with(&expected), "{refused:?}");
    }
    let missing = bench.refused("git.status", json!({ "repo": "nowhere" })).await;
    assert!(missing.message.contains("nowhere"), "{missing:?}");
}
