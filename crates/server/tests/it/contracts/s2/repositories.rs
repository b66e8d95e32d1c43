//! Compares the git tools with the output of `git`.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::client::{WorkstationClient, over_all};
use crate::support::{ServerLaunchOptions, TempWorkspace, path};

/// Runs `git` in `folder` and returns its output.
#[track_caller]
fn git(folder: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.args(args).current_dir(folder).env_clear().env("PATH", path()).env("HOME", "/nonexistent");
    for role in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{role}_NAME"), "Ada")
            .env(format!("GIT_{role}_EMAIL"), "ada@example.com");
    }
    let done = git.output().unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Returns a workspace that is a repository with `count` commits and a second branch.
pub(super) fn repository(count: usize) -> TempWorkspace {
    let workspace = TempWorkspace::new();
    let root = workspace.root();
    git(root, &["init", "-q", "-b", "main"]);
    for (name, value) in [("user.name", "Ada"), ("user.email", "ada@example.com")] {
        git(root, &["config", name, value]);
    }
    for number in 0..count {
        workspace.put("number.txt", format!("{number}\n"));
        git(root, &["add", "."]);
        git(root, &["commit", "-q", "-m", &format!("commit {number}")]);
    }
    git(root, &["branch", "beside"]);
    workspace
}

/// Returns the lines of `text` without trailing whitespace.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn s2_01_37_each_git_tool_returns_what_git_prints() {
    let workspace = repository(12);
    let root = workspace.root().to_owned();
    workspace.put("number.txt", "changed\n");
    workspace.put("a new file.txt", "new\n");
    over_all(&workspace, |client| {
        let mut run =
            |tool: &str, arguments| lines(&client.content(&format!("git/{tool}"), arguments));
        let git = |args: &[&str]| lines(&git(&root, args));
        assert_eq!(run("status", json!({})), git(&["status", "--porcelain"]));
        assert_eq!(
            run("status", json!({ "repositoryPath": null })),
            git(&["status", "--porcelain"])
        );
        assert_eq!(
            run("status", json!({ "repositoryPath": "." })),
            git(&["status", "--porcelain"])
        );
        let ten = run("log", json!({}));
        assert_eq!(ten, git(&["log", "--oneline", "--max-count=10"]));
        assert_eq!(ten.len(), 10);
        assert_eq!(run("log", json!({ "maxCount": 2 })), ten[..2]);
        assert_eq!(run("diff", json!({})), git(&["diff"]));
        assert_eq!(run("branches", json!({})), git(&["branch", "-a"]));
        assert_eq!(run("current_branch", json!({})), ["main"]);
    });
}

#[test]
fn s2_19_37_added_and_committed_files_are_in_the_repository() {
    let workspace = repository(1);
    let root = workspace.root().to_owned();
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    workspace.put("a b.txt", "1\n");
    workspace.put("c.txt", "1\n");
    client.content("git/add", json!({ "files": "a b.txt" }));
    assert_eq!(git(&root, &["diff", "--cached", "--name-only"]), "a b.txt\n");
    client.content("git/commit", json!({ "message": "one file\n\nwith a body" }));
    assert_eq!(git(&root, &["log", "-1", "--format=%B"]).trim_end(), "one file\n\nwith a body");
    client.content("git/add", json!({ "files": ".", "repositoryPath": "." }));
    client.content("git/commit", json!({ "message": "the rest", "repositoryPath": null }));
    assert_eq!(git(&root, &["status", "--porcelain"]), "");
    // There is nothing to commit, and these names do not exist.
    for (tool, arguments) in [
        ("git/commit", json!({ "message": "nothing" })),
        ("git/add", json!({ "files": "no-such-file" })),
        ("git/status", json!({ "repositoryPath": "no-such-folder" })),
    ] {
        let (code, error_message, data) = client.refusal(tool, arguments);
        assert_eq!((code, error_message.as_str()), (-32603, "Internal error"), "{tool}: {data}");
    }
}

#[test]
fn s2_37_shell_and_git_syntax_in_arguments_is_taken_literally() {
    let workspace = repository(1);
    let root = workspace.root().to_owned();
    workspace.put("--force", "a name\n");
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    for odd in [
        "--force",
        "-A",
        "--pathspec-from-file=number.txt",
        "; touch ran",
        "$(touch ran)",
        "| touch ran",
    ] {
        // It is a file name; it fails if there is no such file.
        let answer = client.call("git/add", json!({ "files": odd }));
        assert_eq!(answer.get("result").is_some(), odd == "--force", "{odd}: {answer}");
        client.call("git/status", json!({ "repositoryPath": odd }));
    }
    assert_eq!(git(&root, &["diff", "--cached", "--name-only"]), "--force\n");
    let message = "-m; touch ran `touch ran` $(touch ran) --amend";
    client.content("git/commit", json!({ "message": message }));
    assert_eq!(git(&root, &["log", "-1", "--format=%s"]).trim_end(), message);
    assert_eq!(git(&root, &["rev-list", "--count", "HEAD"]).trim_end(), "2");
    assert!(!workspace.path("ran").exists());
}
