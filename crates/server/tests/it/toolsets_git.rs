//! Tests of the git tools with a running server: from a change to a commit, and refusals.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both, over_both_with, path, refusal,
    structured, text,
};

/// Runs the git program in `workspace`, and returns its output.
#[track_caller]
pub(crate) fn git(workspace: &TempWorkspace, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(args).current_dir(workspace.root()).env_clear().env("PATH", path());
    git.env("HOME", "/nonexistent").env("LC_ALL", "C.UTF-8");
    let done = git.output().unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Creates a workspace that is a repository with one commit on `main`.
pub(crate) fn repository() -> TempWorkspace {
    let workspace = TempWorkspace::new();
    git(&workspace, &["init", "-q", "-b", "main", "."]);
    git(&workspace, &["config", "user.name", "Ada"]);
    git(&workspace, &["config", "user.email", "ada@example.org"]);
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "first"]);
    workspace
}

#[test]
fn a_change_is_staged_and_committed_to_a_new_branch() {
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
        let committed =
            client.call("git_commit", json!({ "message": format!("{branch}\n\nand why") }));
        assert_eq!(
            structured(&committed)["commit"],
            git(&workspace, &["rev-parse", "HEAD"]).trim()
        );
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
fn a_read_only_server_offers_only_the_git_tools_that_read() {
    let workspace = repository();
    over_both_with(&workspace, &[("tools_effects", "reads")], |client| {
        let log = client.call("git_log", json!({}));
        assert_eq!(structured(&log)["commits"][0]["subject"], "first");
        let add = client.call("git_add", json!({ "paths": ["."] }));
        let expected = "`git_add` is not available: this server is read-only";
        assert!(refusal(&add).contains(expected), "{add}");
    });
}

#[test]
fn revisions_like_options_and_paths_outside_are_refused() {
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
fn without_a_repository_the_error_names_the_fix() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        let message = refusal(&client.call("git_status", json!({})));
        assert!(message.contains("git init") && message.contains("`repo`"), "{message}");
    });
}

#[test]
fn hooks_run_only_if_the_settings_allow_them() {
    let workspace = repository();
    let hook = workspace.path(".git/hooks/post-commit");
    workspace.put(".git/hooks/post-commit", "#!/bin/sh\ntouch hooked\n");
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let commit = json!({ "message": "more", "allow_empty": true });
    over_both(&workspace, |client| {
        assert!(structured(&client.call("git_commit", commit.clone()))["commit"].is_string());
        assert!(!workspace.path("hooked").exists());
    });
    over_both_with(&workspace, &[("git_programs", "hooks")], |client| {
        let committed: Value = client.call("git_commit", commit.clone());
        assert!(structured(&committed)["commit"].is_string());
        assert!(workspace.path("hooked").exists());
        std::fs::remove_file(workspace.path("hooked")).unwrap();
    });
}

/// Creates a folder with a repository on `main`, and a linked worktree of it as the workspace.
fn linked_worktree() -> (TempWorkspace, tempfile::TempDir) {
    let (workspace, outside) = (TempWorkspace::new(), tempfile::TempDir::new().unwrap());
    let at = |args: &[&str]| {
        let repository = outside.path().display().to_string();
        git(&workspace, &[&["-C", repository.as_str()][..], args].concat());
    };
    at(&["init", "-q", "-b", "main", "."]);
    at(&["config", "user.name", "Ada"]);
    at(&["config", "user.email", "ada@example.org"]);
    at(&["commit", "-q", "--allow-empty", "-m", "first"]);
    let tree = workspace.path("tree").display().to_string();
    at(&["worktree", "add", "-q", "-b", "topic", &tree]);
    (workspace, outside)
}

#[test]
fn a_served_worktree_is_committed_to_without_touching_the_other_worktrees() {
    let (workspace, outside) = linked_worktree();
    let tree = workspace.path("tree");
    std::fs::write(tree.join("a.txt"), "one\n").unwrap();
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::at(&tree).set("git_outside", "write"),
        "2025-06-18",
    );
    let status = client.call("git_status", json!({}));
    assert_eq!(structured(&status)["entries"][0]["path"], "a.txt", "{status}");
    let repository = outside.path().canonicalize().unwrap().display().to_string();
    assert_eq!(structured(&status)["repository"], json!(repository));
    client.call("git_add", json!({ "paths": ["a.txt"] }));
    let commit = client.call("git_commit", json!({ "message": "second" }));
    assert_eq!(structured(&commit)["repository"], json!(repository), "{commit}");
    let git_dir = ["-C", repository.as_str()];
    let log = git(&workspace, &[&git_dir[..], &["log", "--format=%s", "topic"]].concat());
    assert_eq!(log, "second\nfirst\n");
    let main = git(&workspace, &[&git_dir[..], &["log", "--format=%s", "main"]].concat());
    assert_eq!(main, "first\n");
    assert_eq!(git(&workspace, &[&git_dir[..], &["status", "--porcelain"]].concat()), "");
}

#[test]
fn a_served_worktree_is_refused_with_the_setting_that_allows_it() {
    let (workspace, _outside) = linked_worktree();
    let tree = workspace.path("tree");
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::at(&tree), "2025-06-18");
    let refused = refusal(&client.call("git_status", json!({})));
    assert!(refused.contains("a linked worktree of the repository"), "{refused}");
    assert!(refused.contains("`git.outside`") && !refused.contains("git init"), "{refused}");
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::at(&tree).set("git_outside", "read"),
        "2025-06-18",
    );
    let log = client.call("git_log", json!({}));
    assert_eq!(structured(&log)["commits"][0]["subject"], "first", "{log}");
    let commit = client.call("git_commit", json!({ "message": "x", "allow_empty": true }));
    assert!(refusal(&commit).contains("`git.outside = \"write\"`"), "{commit}");
}

#[test]
fn a_served_subfolder_shows_only_its_own_files() {
    let workspace = repository();
    workspace.put("packages/app/a.txt", "one\n");
    workspace.put("secret.txt", "private\n");
    workspace.put(".gitignore", "*.log\n");
    git(&workspace, &["add", "."]);
    git(&workspace, &["commit", "-qm", "second"]);
    workspace.put("packages/app/a.txt", "two\n");
    workspace.put("packages/app/b.log", "ignored\n");
    workspace.put("secret.txt", "draft\n");
    let app = workspace.path("packages/app");
    let launch = ServerLaunchOptions::at(&app).set("git_outside", "read");
    let mut client = TestMcpClient::stdio(launch, "2025-06-18");
    let status = client.call("git_status", json!({}));
    assert_eq!(structured(&status)["porcelain"], " M a.txt\n", "{status}");
    let diff = client.call("git_diff", json!({}));
    assert_eq!(structured(&diff)["files"][0]["path"], "a.txt", "{diff}");
    let show = client.call("git_show", json!({}));
    assert!(text(&show).contains("second") && !text(&show).contains("private"), "{show}");
    let outside = client.call("git_show", json!({ "file": "../../secret.txt" }));
    assert!(refusal(&outside).contains("outside the repository"), "{outside}");
}
