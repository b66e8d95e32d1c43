//! Tests of files that the git tools write and programs that they run in repositories of other
//! people.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::toolsets_git::{git, repository};

const MCP: &str = ".mcp.json";

/// Start of a shell script that creates a git repository in the folder `r`.
const NESTED: &str = "set -e; git init -q r; git -C r config user.name a; \
                      git -C r config user.email a@b; ";

/// Writes a shell script as the executable file `name` in the workspace.
fn put_script(workspace: &TempWorkspace, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    workspace.put(name, format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(workspace.path(name), PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn git_tools_do_not_write_protected_files_for_a_repository_that_claims_the_workspace() {
    let workspace = repository().file(MCP, "{}");
    let Some(mut client) = confined_with_layer(&workspace, "view") else { return };
    let root = workspace.root().display();
    let script = format!(
        "{NESTED} mkdir -p stage/.vscode; cd stage; echo planted > {MCP}; \
         echo planted > .vscode/tasks.json; echo planted > config; echo fine > fine; cd ../r; \
         git --work-tree=../stage add -A; git --work-tree=../stage commit -qm x; \
         git config core.worktree {root}; git branch deep; rm -r ../stage"
    );
    let marker_file = sh(&mut client, &script);
    assert_eq!(marker_file.code, 0, "{}", marker_file.stderr);
    let restore = |client: &mut TestMcpClient, paths: &[&str]| {
        client.call("git_restore", json!({ "repo": "r", "paths": paths, "ref": "HEAD" }))
    };
    for path in [MCP, ".vscode"] {
        let refused = restore(&mut client, &[path]);
        assert_eq!(refused["result"]["isError"], true, "{refused}");
    }
    assert_eq!(workspace.read(MCP), "{}");
    wait_until("nothing is at the protected name", || !workspace.path(".vscode").exists());
    // Nor files of the workspace's own repository.
    let before = workspace.read(".git/config");
    sh(&mut client, &format!("git -C r config core.worktree {root}/.git"));
    restore(&mut client, &["config"]);
    assert_eq!(workspace.read(".git/config"), before);
    // Other files of the workspace are written.
    sh(&mut client, &format!("git -C r config core.worktree {root}"));
    let done = restore(&mut client, &["fine"]);
    assert!(done["result"]["isError"] != true, "{done}");
    assert_eq!(workspace.read("fine"), "fine\n");
}

#[test]
fn git_tools_check_out_and_stash_committed_files_that_the_file_tools_protect() {
    let workspace = repository();
    git(&workspace, &["checkout", "-qb", "feat"]);
    workspace.put(MCP, "{}");
    workspace.put(".vscode/settings.json", "{}");
    git(&workspace, &["add", "-A"]);
    git(&workspace, &["commit", "-qm", "settings"]);
    let main = "main";
    git(&workspace, &["checkout", "-q", "-B", main, "HEAD~1"]);
    let mut client = confined_client(&workspace, "workspace");
    let mut call = |tool: &str, arguments: Value| {
        let done = client.call(tool, arguments);
        assert!(done["result"]["isError"] != true && done["error"].is_null(), "{tool}: {done}");
    };
    call("git_checkout", json!({ "ref": "feat" }));
    assert_eq!(workspace.read(MCP), "{}");
    assert_eq!(workspace.read(".vscode/settings.json"), "{}");
    workspace.put(".vscode/settings.json", "{ }");
    workspace.put("new", "new");
    call("git_stash", json!({ "action": "push", "include_untracked": true }));
    assert_eq!(workspace.read(".vscode/settings.json"), "{}");
    assert!(!workspace.path("new").exists());
    call("git_stash", json!({ "action": "pop" }));
    assert_eq!(workspace.read("new"), "new");
    call("git_restore", json!({ "paths": ["."] }));
    assert_eq!(workspace.read(".vscode/settings.json"), "{}");
    call("git_checkout", json!({ "ref": main }));
    assert!(!workspace.path(MCP).exists() && !workspace.path(".vscode").exists());
    // A file of toolgate itself is not changed, and the call fails.
    git(&workspace, &["checkout", "-qb", "ours"]);
    workspace.put("toolgate.lock", "version = 1\n");
    git(&workspace, &["add", "-A"]);
    git(&workspace, &["commit", "-qm", "ours"]);
    let refused = client.call("git_checkout", json!({ "ref": main }));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    let message = crate::support::text(&refused);
    for part in ["HEAD points to it now", "`toolgate.lock` is protected and stays as it is"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(workspace.read("toolgate.lock"), "version = 1\n");
    // Other programs still cannot create a protected name.
    let marker_file = sh(&mut client, "mkdir .vscode && echo planted > .vscode/tasks.json");
    assert_ne!(marker_file.code, 0, "{}", marker_file.stdout);
}

#[test]
fn git_tools_do_not_check_out_protected_files_if_programs_may_write_the_repository() {
    let workspace = repository();
    let launch = ServerLaunchOptions::over(&workspace).set("sandbox_git", "write");
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    // A program can commit a file that it cannot create.
    let script = "set -e; blob=$(echo planted | git hash-object -w --stdin); \
                  git update-index --add --cacheinfo 100644,$blob,.vscode/tasks.json; \
                  tree=$(git write-tree); git reset -q; \
                  git branch planted $(git -c user.name=a -c user.email=a@b commit-tree -m x -p HEAD $tree)";
    let marker_file = sh(&mut client, script);
    assert_eq!(marker_file.code, 0, "{}", marker_file.stderr);
    let refused = client.call("git_checkout", json!({ "ref": "planted" }));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(!workspace.path(".vscode/tasks.json").exists());
}

#[test]
fn programs_that_a_nested_repository_configures_do_not_run() {
    let workspace = repository();
    // A submodule: git looks into it to find its staged changes.
    put_script(&workspace, "ran", "echo ran >> \"${0%/*}/marked\"; cat");
    git(&workspace, &["init", "-q", "sub"]);
    workspace.put("sub/f", "one\n");
    for args in [
        &["-C", "sub", "add", "f"][..],
        &["-C", "sub", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
        &["-c", "advice.addEmbeddedRepo=false", "add", "sub", "ran"],
        &["commit", "-qm", "sub"],
    ] {
        git(&workspace, args);
    }
    workspace.put("sub/.gitattributes", "f filter=mark diff=mark\n");
    let marker_file = workspace.path("ran").display().to_string();
    for key in ["filter.mark.clean", "core.fsmonitor", "diff.mark.command", "diff.mark.textconv"] {
        git(&workspace, &["-C", "sub", "config", key, &marker_file]);
    }
    let Some(mut client) = confined_with_layer(&workspace, "landlock") else { return };
    workspace.put("sub/f", "two\n");
    for (tool, input) in [
        ("git_status", json!({})),
        ("git_diff", json!({})),
        ("git_add", json!({ "paths": ["sub"] })),
        ("git_add", json!({ "paths": ["."] })),
        ("git_stash", json!({ "action": "push" })),
        ("git_checkout", json!({ "ref": "HEAD" })),
    ] {
        let answer = client.call(tool, input);
        assert!(!workspace.path("marked").exists(), "{tool}: {answer}");
    }
    // If the settings allow filters, they run.
    workspace.put("sub/f", "three\n");
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&workspace).set("git_programs", "filters"),
        MODERN,
    );
    let added = client.call("git_add", json!({ "repo": "sub", "paths": ["f"] }));
    assert!(workspace.path("marked").exists(), "the filter must run: {added}");
}

#[test]
fn a_repository_cannot_be_added_to_another() {
    let workspace = repository();
    let mut client = confined_client(&workspace, "workspace");
    let marker_file = sh(&mut client, &format!("{NESTED} cd r; git commit -qm x --allow-empty"));
    assert_eq!(marker_file.code, 0, "{}", marker_file.stderr);
    workspace.put("new", "new\n");
    for paths in [json!(["r"]), json!(["."]), json!(["r", "new"])] {
        let refused = client.call("git_add", json!({ "paths": paths }));
        assert!(crate::support::text(&refused).contains("`r` is a repository"), "{refused}");
        assert_eq!(git(&workspace, &["diff", "--cached", "--name-only"]), "");
    }
    let added = client.call("git_add", json!({ "paths": ["new"] }));
    assert!(added["result"]["isError"] != true, "{added}");
}

#[test]
fn a_git_in_a_folder_that_programs_can_write_is_not_run() {
    let workspace = repository();
    fs::create_dir(workspace.path("bin")).unwrap();
    put_script(&workspace, "bin/git", "echo planted >&2; exit 1");
    put_script(&workspace, "bin/ls", "echo planted");
    let path = format!("{}:/usr/bin:/bin", workspace.path("bin").display());
    let launch = ServerLaunchOptions::over(&workspace).env("PATH", &path).set("exec_allow", "ls");
    let mut client = TestMcpClient::stdio(launch, MODERN);
    let status = client.call("git_status", json!({}));
    assert!(status["result"]["isError"] != true, "{status}");
    let marker_file = run(&mut client, json!({ "command": "ls" }));
    assert!(marker_file.stdout.contains("README.md"), "{}", marker_file.stdout);
}

#[test]
fn git_tools_cannot_read_the_credentials_of_the_user() {
    let workspace = repository();
    let home = TempDir::new().unwrap();
    let folder = home.path().join(".config/git");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("credentials"), "https://ada:canary-31f@example.org").unwrap();
    fs::write(folder.join("config"), "[user]\nname = Own\nemail = own@example.org\n").unwrap();
    git(&workspace, &["config", "--unset", "user.name"]);
    git(&workspace, &["config", "--unset", "user.email"]);
    workspace.put(".gitattributes", "new filter=look\n");
    let look = format!("cat {}/credentials; cat", folder.display());
    git(&workspace, &["config", "filter.look.clean", &look]);
    let launch = ServerLaunchOptions::over(&workspace)
        .env("HOME", home.path())
        .set("git_programs", "filters");
    let Some(mut client) = with_layer(TestMcpClient::stdio(launch, MODERN), "view") else { return };
    workspace.put("new", "new\n");
    client.call("git_add", json!({ "paths": ["new"] }));
    assert_eq!(git(&workspace, &["show", ":new"]), "new\n");
    let committed = client.call("git_commit", json!({ "message": "by the owner" }));
    assert!(committed["result"]["isError"] != true, "{committed}");
    assert_eq!(git(&workspace, &["log", "-1", "--format=%an"]), "Own\n");
}
