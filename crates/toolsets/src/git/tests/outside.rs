//! Tests of workspaces that are a linked worktree, a submodule or a subfolder of a repository
//! outside.

use super::*;

/// Creates a test bench in a new folder. `make` creates the folder `workspace` in it by running
/// git, and `outside` is the access to repositories outside.
fn serve(
    outside: OutsideRepositoryAccess,
    make: impl Fn(&dyn Fn(&str, &[&str]), &Path),
) -> GitTestBench {
    let folder = TempDir::new().unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".gitconfig"), "[user]\nname = Ada\nemail = ada@example.org\n").unwrap();
    let git = |at: &str, args: &[&str]| _ = git_in(&folder.path().join(at), &home, args);
    make(&git, folder.path());
    let settings = GitSettings { outside, ..GitSettings::default() };
    GitTestBench::serve(folder, &settings, &exec::ExecSettings::default())
}

fn worktree(outside: OutsideRepositoryAccess) -> GitTestBench {
    serve(outside, |git, folder| {
        fs::create_dir(folder.join("main")).unwrap();
        git("main", &["init", "-q", "-b", "main", "."]);
        fs::write(folder.join("main/a.txt"), "one\n").unwrap();
        git("main", &["add", "."]);
        git("main", &["commit", "-qm", "first"]);
        git("main", &["worktree", "add", "-q", "-b", "topic", "../workspace"]);
    })
}

fn submodule(outside: OutsideRepositoryAccess) -> GitTestBench {
    serve(outside, |git, folder| {
        fs::create_dir(folder.join("source")).unwrap();
        git("source", &["init", "-q", "-b", "main", "."]);
        fs::write(folder.join("source/a.txt"), "one\n").unwrap();
        git("source", &["add", "."]);
        git("source", &["commit", "-qm", "first"]);
        git(".", &["init", "-q", "-b", "main", "."]);
        let add = ["submodule", "-q", "add", "./source", "workspace"];
        git(".", &[&["-c", "protocol.file.allow=always"][..], &add[..]].concat());
        git(".", &["commit", "-qm", "submodule"]);
    })
}

fn subfolder(outside: OutsideRepositoryAccess) -> GitTestBench {
    serve(outside, |git, folder| {
        git(".", &["init", "-q", "-b", "main", "."]);
        fs::create_dir(folder.join("workspace")).unwrap();
        fs::write(folder.join("secret.txt"), "private\n").unwrap();
        fs::write(folder.join(".gitignore"), "*.log\n").unwrap();
        fs::write(folder.join("workspace/a.txt"), "one\n").unwrap();
        git(".", &["add", "."]);
        git(".", &["commit", "-qm", "first"]);
        fs::write(folder.join("secret.txt"), "hidden\n").unwrap();
        git(".", &["add", "."]);
        git(".", &["commit", "-qm", "elsewhere"]);
        fs::write(folder.join("secret.txt"), "draft\n").unwrap();
    })
}

#[tokio::test]
async fn a_worktree_and_a_submodule_are_read_and_changed_if_the_setting_allows_it() {
    for (bench, repository) in [
        (worktree(OutsideRepositoryAccess::Write), "main"),
        (submodule(OutsideRepositoryAccess::Write), "workspace"),
    ] {
        let repository = bench.folder.path().join(repository);
        let repository = repository.display().to_string();
        bench.put("a.txt", "two\n");
        let status = bench.done("git.status", json!({})).await;
        assert_eq!(status.text.body, " M a.txt\n");
        assert_eq!(status.value["repository"], json!(repository), "{}", status.value);
        let note = status.text.note.unwrap();
        assert!(note.contains(&format!("of `{repository}`")), "{note}");
        let diff = bench.done("git.diff", json!({})).await;
        assert!(diff.text.body.contains("-one\n+two\n"), "{}", diff.text.body);
        bench.done("git.add", json!({ "paths": ["a.txt"] })).await;
        let commit = bench.done("git.commit", json!({ "message": "second" })).await;
        assert_eq!(commit.value["repository"], json!(repository), "{}", commit.value);
        assert_eq!(bench.git(&["log", "-1", "--format=%s"]), "second\n");
        assert_eq!(bench.git(&["status", "--porcelain"]), "");
        let log = bench.done("git.log", json!({})).await;
        assert_eq!(log.value["commits"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_tool_that_changes_is_refused_with_the_setting_that_allows_it() {
    for bench in [worktree(OutsideRepositoryAccess::Read), submodule(OutsideRepositoryAccess::Read)]
    {
        bench.put("a.txt", "two\n");
        bench.done("git.status", json!({})).await;
        let refused = bench.refused("git.add", json!({ "paths": ["a.txt"] })).await;
        assert_eq!(refused.fault, ToolErrorKind::NotAllowed);
        assert!(refused.message.contains("`git.outside = \"write\"`"), "{refused:?}");
        assert_eq!(bench.git(&["diff", "--cached", "--name-only"]), "");
    }
    for bench in [worktree(OutsideRepositoryAccess::None), submodule(OutsideRepositoryAccess::None)]
    {
        let refused = bench.refused("git.status", json!({})).await;
        assert!(refused.message.contains("set `git.outside` to `read` or `write`"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_subfolder_is_read_without_the_files_around_it() {
    let bench = subfolder(OutsideRepositoryAccess::Write);
    bench.put("a.txt", "two\n");
    bench.put("deep/new.txt", "new\n");
    bench.put("build.log", "ignored above\n");
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.text.body, " M a.txt\n?? deep/\n");
    let top = bench.folder.path().display().to_string();
    assert_eq!(status.value["repository"], json!(top));
    let diff = bench.done("git.diff", json!({})).await;
    assert_eq!(diff.value["files"].as_array().unwrap().len(), 1, "{}", diff.value);
    assert_eq!(diff.value["files"][0]["path"], "a.txt");
    assert!(!diff.text.body.contains("secret"), "{}", diff.text.body);
    let between = bench.done("git.diff", json!({ "ref": "HEAD~1..HEAD" })).await;
    assert_eq!(between.text.body, "", "{}", between.value);
    let log = bench.done("git.log", json!({})).await;
    assert_eq!(log.value["commits"].as_array().unwrap().len(), 1, "{}", log.value);
    let show = bench.done("git.show", json!({})).await;
    assert!(!show.text.body.contains("hidden"), "{}", show.text.body);
    let file = bench.done("git.show", json!({ "file": "a.txt" })).await;
    assert_eq!(file.text.body, "one\n");
    let blame = bench.done("git.blame", json!({ "path": "a.txt" })).await;
    assert!(blame.text.body.contains("two"), "{}", blame.text.body);
    for (tool, input) in [
        ("git.show", json!({ "file": "../secret.txt" })),
        ("git.show", json!({ "ref": "HEAD:secret.txt" })),
        ("git.diff", json!({ "paths": ["../secret.txt"] })),
        ("git.log", json!({ "path": ".." })),
        ("git.blame", json!({ "path": "../secret.txt" })),
    ] {
        bench.refused(tool, input).await;
    }
    let refused = bench.refused("git.add", json!({ "paths": ["a.txt"] })).await;
    assert!(refused.message.contains("files outside the workspace"), "{refused:?}");
}

#[tokio::test]
async fn a_subfolder_of_a_linked_worktree_or_submodule_is_read() {
    let worktree = serve(OutsideRepositoryAccess::Read, |git, folder| {
        fs::create_dir_all(folder.join("main/app")).unwrap();
        git("main", &["init", "-q", "-b", "main", "."]);
        fs::write(folder.join("main/app/a.txt"), "one\n").unwrap();
        git("main", &["add", "."]);
        git("main", &["commit", "-qm", "first"]);
        git("main", &["worktree", "add", "-q", "-b", "topic", "../tree"]);
        std::os::unix::fs::symlink("tree/app", folder.join("workspace")).unwrap();
    });
    let submodule = serve(OutsideRepositoryAccess::Read, |git, folder| {
        fs::create_dir_all(folder.join("source/app")).unwrap();
        git("source", &["init", "-q", "-b", "main", "."]);
        fs::write(folder.join("source/app/a.txt"), "one\n").unwrap();
        git("source", &["add", "."]);
        git("source", &["commit", "-qm", "first"]);
        git(".", &["init", "-q", "-b", "main", "."]);
        let add = ["submodule", "-q", "add", "./source", "part"];
        git(".", &[&["-c", "protocol.file.allow=always"][..], &add[..]].concat());
        std::os::unix::fs::symlink("part/app", folder.join("workspace")).unwrap();
    });
    for (bench, branch) in [(worktree, "topic"), (submodule, "main")] {
        bench.put("a.txt", "two\n");
        let status = bench.done("git.status", json!({})).await;
        assert_eq!(status.text.body, " M a.txt\n", "{}", status.value);
        assert_eq!(status.value["branch"], branch, "{}", status.value);
        let refused = bench.refused("git.add", json!({ "paths": ["a.txt"] })).await;
        assert!(refused.message.contains("files outside the workspace"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_bare_repository_is_not_taken_for_the_repository_above() {
    for outside in [OutsideRepositoryAccess::None, OutsideRepositoryAccess::Read] {
        let bench = serve(outside, |git, _| {
            git(".", &["init", "-q", "-b", "main", "."]);
            git(".", &["init", "-q", "--bare", "workspace"]);
        });
        let refused = bench.refused("git.status", json!({})).await;
        assert!(refused.message.contains("cannot use bare repository"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_subfolder_is_refused_with_the_setting_and_without_advice_to_run_git_init() {
    let bench = subfolder(OutsideRepositoryAccess::None);
    let refused = bench.refused("git.status", json!({})).await;
    assert!(refused.message.contains("`git.outside = \"read\"`"), "{refused:?}");
    assert!(!refused.message.contains("git init"), "{refused:?}");
}

#[tokio::test]
async fn a_git_file_cannot_name_a_repository_that_does_not_know_the_workspace() {
    for target in ["main/.git", "main/.git/worktrees/other"] {
        let bench = serve(OutsideRepositoryAccess::Write, |git, folder| {
            fs::create_dir(folder.join("main")).unwrap();
            fs::create_dir(folder.join("workspace")).unwrap();
            git("main", &["init", "-q", "-b", "main", "."]);
            git("main", &["commit", "-q", "--allow-empty", "-m", "private"]);
            git("main", &["worktree", "add", "-q", "-b", "other", "../other"]);
            let link = format!("gitdir: ../{target}\n");
            fs::write(folder.join("workspace/.git"), link).unwrap();
        });
        for tool in ["git.status", "git.log", "git.branches"] {
            let refused = bench.refused(tool, json!({})).await;
            assert_eq!(refused.fault, ToolErrorKind::NotAllowed);
            assert!(refused.message.contains("is not used"), "{refused:?}");
        }
    }
}

#[tokio::test]
async fn a_program_that_an_outside_repository_configures_does_not_run() {
    let bench = worktree(OutsideRepositoryAccess::Write);
    let trap = bench.trap();
    let run = format!("touch {}", trap.display());
    bench.git(&["config", "core.fsmonitor", &run]);
    bench.git(&["config", "filter.x.clean", &run]);
    bench.git(&["config", "diff.x.textconv", &run]);
    let hooks = bench.folder.path().join("main/.git/hooks/pre-commit");
    fs::create_dir_all(hooks.parent().unwrap()).unwrap();
    fs::write(&hooks, format!("#!/bin/sh\n{run}\n")).unwrap();
    bench.put(".gitattributes", "*.txt diff=x\n");
    bench.put("a.txt", "two\n");
    bench.done("git.status", json!({})).await;
    bench.done("git.diff", json!({})).await;
    bench.done("git.add", json!({ "paths": ["."] })).await;
    bench.done("git.commit", json!({ "message": "second" })).await;
    assert!(!trap.exists());
}

#[tokio::test]
async fn a_workspace_that_is_a_submodule_without_content_is_not_taken_for_the_repository_above() {
    let bench = submodule(OutsideRepositoryAccess::Write);
    let home = bench.folder.path().join("home");
    git_in(bench.folder.path(), &home, &["submodule", "-q", "deinit", "-f", "workspace"]);
    let exec = exec::ExecSettings::default();
    let settings = GitSettings { outside: OutsideRepositoryAccess::Read, ..GitSettings::default() };
    let bench = GitTestBench::serve(bench.folder, &settings, &exec);
    let refused = bench.refused("git.status", json!({})).await;
    assert!(refused.message.contains("a submodule that is not checked out"), "{refused:?}");
}
