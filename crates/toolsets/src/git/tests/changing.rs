//! Tests that the `git` tools change a repository as git itself would.

use super::*;

#[tokio::test]
async fn files_are_staged_unstaged_and_committed() {
    let bench = GitTestBench::new();
    bench.put("b.txt", "b\n");
    bench.put("c.txt", "c\n");
    fs::remove_file(bench.root().join("a.txt")).unwrap();
    let staged = bench.done("git.add", json!({ "paths": ["."] })).await;
    assert_eq!(staged.text.body, "D `a.txt`\nA `b.txt`\nA `c.txt`\n");
    let staged = bench.done("git.unstage", json!({ "paths": ["c.txt"] })).await;
    assert_eq!(staged.text.body, "D `a.txt`\nA `b.txt`\n");
    let message = "second: `quotes` \"and\" $(more)\n\n# not a comment\n--no-verify";
    let made = bench.done("git.commit", json!({ "message": message })).await;
    assert_eq!(bench.git(&["log", "-1", "--format=%B"]).trim(), message);
    assert_eq!(made.value["commit"], bench.git(&["rev-parse", "HEAD"]).trim());
    let counts = ["files", "insertions", "deletions"].map(|name| made.value[name].clone());
    assert_eq!(counts, [json!(2), json!(1), json!(2)]);
    assert!(made.text.body.starts_with("[main "), "{}", made.text.body);
    assert_eq!(bench.git(&["status", "--porcelain"]), "?? c.txt\n");
    let nothing = bench.refused("git.commit", json!({ "message": "x" })).await;
    assert!(nothing.message.contains("nothing is staged"), "{nothing:?}");
    bench.put("b.txt", "B\n");
    bench.done("git.commit", json!({ "message": "third", "all": true })).await;
    bench.done("git.commit", json!({ "message": "empty", "allow_empty": true })).await;
    assert_eq!(bench.git(&["rev-list", "--count", "HEAD"]), "4\n");
    let none = bench.refused("git.add", json!({ "paths": ["none"] })).await;
    assert_eq!(none.fault, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn branches_are_created_and_checked_out() {
    let bench = GitTestBench::new();
    let made = bench.done("git.checkout", json!({ "ref": "feat/x", "create": true })).await;
    assert_eq!((&made.value["branch"], &made.value["detached"]), (&json!("feat/x"), &json!(false)));
    bench.put("a.txt", "changed\n");
    bench.git(&["commit", "-qam", "second"]);
    let back = bench.done("git.checkout", json!({ "ref": "main" })).await;
    assert_eq!(back.value["branch"], "main");
    let commit = bench.done("git.checkout", json!({ "ref": "feat/x~0" })).await;
    assert_eq!((&commit.value["branch"], &commit.value["detached"]), (&Value::Null, &json!(true)));
    bench.done("git.checkout", json!({ "ref": "main" })).await;
    bench.put("a.txt", "in the way\n");
    let refused = bench.refused("git.checkout", json!({ "ref": "feat/x" })).await;
    assert!(refused.message.contains("would be overwritten"), "{refused:?}");
    let none = bench.refused("git.checkout", json!({ "ref": "none" })).await;
    assert_eq!(none.fault, ToolErrorKind::NotFound);
    // The name of a file is not a branch.
    bench.put("b.txt", "kept");
    bench.refused("git.checkout", json!({ "ref": "b.txt" })).await;
    let from = json!({ "ref": "old", "create": true, "from": "HEAD" });
    bench.done("git.checkout", from).await;
    assert_eq!(bench.git(&["branch", "--show-current"]), "old\n");
    let taken = bench.refused("git.checkout", json!({ "ref": "main", "create": true })).await;
    assert!(taken.message.contains("already exists"), "{taken:?}");
}

#[tokio::test]
async fn a_checked_out_remote_branch_is_tracked() {
    let bench = GitTestBench::new();
    bench.git(&["branch", "there"]);
    bench.git(&["clone", "-q", ".", "clone"]);
    let checkout = bench.done("git.checkout", json!({ "ref": "there", "repo": "clone" })).await;
    assert_eq!(checkout.value["branch"], "there");
    let status = bench.done("git.status", json!({ "repo": "clone" })).await;
    assert_eq!(status.value["upstream"], "origin/there");
}

#[tokio::test]
async fn files_are_restored() {
    let bench = GitTestBench::new();
    bench.put("a.txt", "changed\n");
    bench.done("git.restore", json!({ "paths": ["a.txt"] })).await;
    assert_eq!(fs::read_to_string(bench.root().join("a.txt")).unwrap(), "one\ntwo\n");
    bench.put("a.txt", "second\n");
    bench.git(&["commit", "-qam", "second"]);
    bench.done("git.restore", json!({ "paths": ["."], "ref": "HEAD~1" })).await;
    assert_eq!(fs::read_to_string(bench.root().join("a.txt")).unwrap(), "one\ntwo\n");
    let none = bench.refused("git.restore", json!({ "paths": ["none"] })).await;
    assert_eq!(none.fault, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn changes_are_stashed_and_popped() {
    let bench = GitTestBench::new();
    bench.put("a.txt", "changed\n");
    bench.put("new", "new\n");
    let pushed = json!({ "message": "--all", "include_untracked": true });
    let pushed = bench.done("git.stash", pushed).await;
    assert_eq!(pushed.value["stashes"][0]["subject"], "On main: --all");
    assert_eq!(bench.git(&["status", "--porcelain"]), "");
    let listed = bench.done("git.stash", json!({ "action": "list" })).await;
    assert_eq!(listed.text.body, bench.git(&["stash", "list"]));
    let shown = bench.done("git.stash", json!({ "action": "show" })).await;
    assert!(shown.text.body.contains("+changed"), "{}", shown.text.body);
    bench.done("git.stash", json!({ "action": "apply" })).await;
    assert_eq!(bench.git(&["status", "--porcelain"]), " M a.txt\n?? new\n");
    bench.git(&["stash", "drop", "-q"]);
    let none = bench.refused("git.stash", json!({ "action": "pop" })).await;
    assert_eq!(none.fault, ToolErrorKind::NotFound, "{none:?}");
    bench.done("git.stash", json!({})).await;
    let popped = bench.done("git.stash", json!({ "action": "pop" })).await;
    assert_eq!(popped.value["stashes"], json!([]));
}

#[tokio::test]
async fn git_runs_even_if_exec_allow_excludes_it() {
    let exec = exec::ExecSettings { allow: vec!["ls".to_owned()], ..exec::ExecSettings::default() };
    let bench = GitTestBench::with_exec(&GitSettings::default(), &exec);
    bench.put("a", "a");
    assert_eq!(bench.done("git.status", json!({})).await.text.body, "?? a\n");
}

#[tokio::test]
async fn the_committer_is_the_user_if_the_repository_sets_none() {
    let bench = GitTestBench::new();
    bench.git(&["config", "--unset", "user.name"]);
    bench.git(&["config", "--unset", "user.email"]);
    bench.git(&["config", "--global", "user.name", "Grace"]);
    bench.git(&["config", "--global", "user.email", "grace@example.org"]);
    let trap = format!("touch {}", bench.trap().display());
    bench.git(&["config", "--global", "core.pager", &trap]);
    let made = json!({ "message": "second", "allow_empty": true });
    bench.done("git.commit", made).await;
    assert_eq!(
        bench.git(&["--no-pager", "log", "-1", "--format=%an %ae"]),
        "Grace grace@example.org\n"
    );
}

#[tokio::test]
async fn a_commit_of_all_without_tracked_changes_names_the_fix() {
    let bench = GitTestBench::new();
    let all = json!({ "message": "second", "all": true });
    let refused = bench.refused("git.commit", all.clone()).await;
    assert!(refused.message.contains("`allow_empty`"), "{refused:?}");
    bench.put("new.txt", "x\n");
    let refused = bench.refused("git.commit", all.clone()).await;
    assert!(refused.message.contains("git_add"), "{refused:?}");
    bench.put("a.txt", "three\n");
    bench.done("git.commit", all).await;
}
