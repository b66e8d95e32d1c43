//! Git's tools over the wire: a change from the work tree to a commit, and what is refused.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Workspace, over_both, over_both_with, path, refusal, structured, text};

/// What git itself prints in `workspace`.
#[track_caller]
pub(crate) fn git(workspace: &Workspace, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(args).current_dir(workspace.root()).env_clear().env("PATH", path());
    git.env("HOME", "/nonexistent").env("LC_ALL", "C.UTF-8");
    let done = git.output().unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// A workspace that is a repository with one commit on `main`.
pub(crate) fn repository() -> Workspace {
    let workspace = Workspace::new();
    git(&workspace, &["init", "-q", "-b", "main", "."]);
    git(&workspace, &["config", "user.name", "Ada"]);
    git(&workspace, &["config", "user.email", "ada@example.org"]);
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "first"]);
    workspace
}

#[test]
fn a_change_goes_from_the_work_tree_to_a_branch() {
    let workspace = repository();
    over_both(&workspace, |client| {
        let branch = format!("work-{}", client.server().pid);
        client.call("git_checkout", json!({ "ref": branch, "create": true }));
        workspace.put("new file.txt", &branch);
        let status = client.call("git_status", json!({}));
        assert!(
            text(&status).starts_with(&git(&workspace, &["status", "--porcelain"])),
            "{status}"
        );
        assert_eq!(structured(&status)["branch"], branch);
        let added = client.call("git_add", json!({ "paths": ["new file.txt"] }));
        assert_eq!(structured(&added)["staged"][0]["path"], "new file.txt");
        let staged = client.call("git_diff", json!({ "staged": true }));
        assert_eq!(structured(&staged)["diff"], git(&workspace, &["diff", "--cached"]));
        let made = client.call("git_commit", json!({ "message": format!("{branch}\n\nand why") }));
        assert_eq!(structured(&made)["commit"], git(&workspace, &["rev-parse", "HEAD"]).trim());
        let log = client.call("git_log", json!({ "count": 1 }));
        assert_eq!(structured(&log)["oneline"], git(&workspace, &["log", "--oneline", "-1"]));
        let branches = client.call("git_branches", json!({}));
        assert_eq!(structured(&branches)["listing"], git(&workspace, &["branch", "-a"]));
        let current = client.call("git_current_branch", json!({}));
        assert_eq!(text(&current), branch);
        client.call("git_checkout", json!({ "ref": "main" }));
    });
}

#[test]
fn reading_a_repository_is_offered_where_nothing_may_change() {
    let workspace = repository();
    over_both_with(&workspace, &[("tools_effects", "reads")], |client| {
        let log = client.call("git_log", json!({}));
        assert_eq!(structured(&log)["commits"][0]["subject"], "first");
        let add = client.call("git_add", json!({ "paths": ["."] }));
        assert!(refusal(&add).contains("no tool is named `git_add`"), "{add}");
    });
}

#[test]
fn words_that_would_be_options_are_refused() {
    let workspace = repository();
    over_both(&workspace, |client| {
        for (tool, input) in [
            ("git_log", json!({ "ref": "--output=trapped" })),
            ("git_diff", json!({ "ref": "--output=trapped" })),
            ("git_show", json!({ "ref": "--output=trapped" })),
            ("git_checkout", json!({ "ref": "--orphan=trapped" })),
            ("git_diff", json!({ "paths": ["/etc/passwd", "/etc/hosts"] })),
            ("git_status", json!({ "repo": ".." })),
        ] {
            let answer = client.call(tool, input.clone());
            assert_eq!(answer["result"]["isError"], true, "{tool} {input}: {answer}");
        }
        assert_eq!(git(&workspace, &["status", "--porcelain"]), "");
    });
}

#[test]
fn where_there_is_no_repository_it_says_what_to_do() {
    let workspace = Workspace::new();
    over_both(&workspace, |client| {
        let said = refusal(&client.call("git_status", json!({})));
        assert!(said.contains("git init") && said.contains("`repo`"), "{said}");
    });
}

#[test]
fn hooks_run_only_where_the_owner_says_so() {
    let workspace = repository();
    let hook = workspace.path(".git/hooks/post-commit");
    workspace.put(".git/hooks/post-commit", "#!/bin/sh\ntouch hooked\n");
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let commit = json!({ "message": "more", "allow_empty": true });
    over_both(&workspace, |client| {
        assert!(structured(&client.call("git_commit", commit.clone()))["commit"].is_string());
        assert!(!workspace.path("hooked").exists());
    });
    over_both_with(&workspace, &[("git_hooks", "true")], |client| {
        let made: Value = client.call("git_commit", commit.clone());
        assert!(structured(&made)["commit"].is_string());
        assert!(workspace.path("hooked").exists());
        std::fs::remove_file(workspace.path("hooked")).unwrap();
    });
}
