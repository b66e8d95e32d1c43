//! Tests that neither arguments nor repositories make git run other programs or read other files.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Words that git or a shell could take for options, commands or patterns.
const WORDS: [&str; 12] = [
    "--help",
    "-h",
    "--upload-pack=touch trapped",
    "--output=trapped",
    "-o trapped",
    "--exec=touch trapped",
    "; touch trapped",
    "$(touch trapped)",
    "`touch trapped`",
    "| touch trapped",
    "--ext-diff",
    ":(exclude)a.txt",
];

#[tokio::test]
async fn arguments_are_never_options_commands_or_patterns() {
    let bench = GitTestBench::new();
    bench.put("b.txt", "b");
    let before = bench.git(&["status", "--porcelain"]);
    let head = bench.git(&["rev-parse", "HEAD"]);
    for word in WORDS {
        for (tool, input) in [
            ("git.log", json!({ "ref": word })),
            ("git.diff", json!({ "ref": word })),
            ("git.diff", json!({ "ref": format!("HEAD..{word}") })),
            ("git.show", json!({ "ref": word })),
            ("git.show", json!({ "file": word })),
            ("git.blame", json!({ "path": word })),
            ("git.blame", json!({ "path": "a.txt", "ref": word })),
            ("git.checkout", json!({ "ref": word })),
            ("git.checkout", json!({ "ref": word, "create": true })),
            ("git.checkout", json!({ "ref": "x", "create": true, "from": word })),
            ("git.restore", json!({ "paths": [word] })),
            ("git.restore", json!({ "paths": ["a.txt"], "ref": word })),
            ("git.add", json!({ "paths": [word] })),
            ("git.log", json!({ "path": word })),
            ("git.diff", json!({ "paths": [word] })),
            ("git.status", json!({ "repo": word })),
        ] {
            // Some of these words are valid branch names.
            if tool == "git.checkout"
                && input["create"] == true
                && !word.starts_with('-')
                && input["ref"] == word
            {
                continue;
            }
            let refused = bench.refused(tool, input.clone()).await;
            let is_expected = match refused.fault {
                ToolErrorKind::Invalid { .. } | ToolErrorKind::NotFound => true,
                _ => refused.message.starts_with("git failed: pathspec"),
            };
            assert!(is_expected, "{tool} {input}: {refused:?}");
        }
        for (tool, input) in
            [("git.log", json!({ "author": word })), ("git.log", json!({ "grep": word }))]
        {
            let output = bench.done(tool, input.clone()).await;
            assert_eq!(output.text.body, "", "{tool} {input}");
        }
        // Git would take an invalid time for the current time.
        bench.refused("git.log", json!({ "since": word })).await;
    }
    assert_eq!(bench.git(&["status", "--porcelain"]), before);
    assert_eq!(bench.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(bench.git(&["branch"]), "* main\n");
    for folder in [bench.root(), bench.folder.path().to_owned()] {
        assert!(!folder.join("trapped").exists(), "{}", folder.display());
    }
}

#[tokio::test]
async fn files_with_names_like_options_and_patterns_are_committed() {
    let bench = GitTestBench::new();
    for name in ["--help", "*", ":(top)a", "-A"] {
        bench.put(name, "x");
        let staged = bench.done("git.add", json!({ "paths": [name] })).await;
        assert_eq!(staged.value["staged"], json!([{ "path": name, "status": "A" }]));
        let made = bench.done("git.commit", json!({ "message": name })).await;
        assert_eq!(made.value["subject"], name);
    }
}

#[tokio::test]
async fn nothing_outside_the_repository_is_read() {
    let bench = GitTestBench::new();
    let secret = bench.folder.path().join("secret");
    fs::write(&secret, "secret\n").unwrap();
    let absolute = secret.display().to_string();
    for path in ["../secret", &absolute, "x/../../secret"] {
        for (tool, input) in [
            ("git.diff", json!({ "paths": [path, "a.txt"] })),
            ("git.blame", json!({ "path": path })),
            ("git.show", json!({ "file": path })),
            ("git.add", json!({ "paths": [path] })),
            ("git.log", json!({ "path": path })),
            ("git.restore", json!({ "paths": [path] })),
        ] {
            assert_eq!(
                bench.refused(tool, input.clone()).await.fault,
                ToolErrorKind::NotAllowed,
                "{tool} {input}"
            );
        }
    }
    // A tracked folder that has become a symlink.
    bench.put("folder/secret", "known\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    fs::remove_dir_all(bench.root().join("folder")).unwrap();
    symlink(bench.folder.path(), bench.root().join("folder")).unwrap();
    let blame = bench.refused("git.blame", json!({ "path": "folder/secret" })).await;
    assert_eq!(blame.fault, ToolErrorKind::NotAllowed);
    let diff = bench.done("git.diff", json!({})).await;
    assert!(!diff.text.body.contains("+secret"), "{}", diff.text.body);
}

#[tokio::test]
async fn a_repository_outside_the_workspace_is_refused() {
    let bench = GitTestBench::new();
    let outside = bench.folder.path();
    let home = outside.join("home");
    git_in(outside, &home, &["init", "-q", "-b", "main", "."]);
    git_in(outside, &home, &["init", "-q", "-b", "main", "other"]);
    fs::remove_dir_all(bench.root().join(".git")).unwrap();
    let status = || bench.refused("git.status", json!({}));
    // A repository around the workspace does not count.
    let none = status().await;
    assert_eq!(none.fault, ToolErrorKind::NotFound);
    assert!(none.message.contains("begins above it"), "{none:?}");
    assert!(!none.message.contains("git init"), "{none:?}");
    assert_eq!(
        bench.refused("git.status", json!({ "repo": ".." })).await.fault,
        ToolErrorKind::NotAllowed
    );
    let other = outside.join("other/.git");
    // A `.git` file with the path of the repository.
    let git = bench.root().join(".git");
    fs::write(&git, format!("gitdir: {}\n", other.display())).unwrap();
    assert_eq!(status().await.fault, ToolErrorKind::NotAllowed);
    fs::remove_file(&git).unwrap();
    symlink(&other, &git).unwrap();
    assert_eq!(status().await.fault, ToolErrorKind::NotAllowed);
    fs::remove_file(&git).unwrap();
    // A repository whose work tree, objects or alternate objects are outside.
    bench.git(&["init", "-q", "-b", "main", "."]);
    bench.git(&["config", "core.worktree", &outside.display().to_string()]);
    assert_eq!(status().await.fault, ToolErrorKind::NotAllowed);
    bench.git(&["config", "--unset", "core.worktree"]);
    bench.done("git.status", json!({})).await;
    let alternates = git.join("objects/info/alternates");
    fs::write(&alternates, format!("{}\n", other.join("objects").display())).unwrap();
    assert_eq!(status().await.fault, ToolErrorKind::NotAllowed);
    fs::remove_file(&alternates).unwrap();
    fs::remove_dir_all(git.join("objects")).unwrap();
    symlink(other.join("objects"), git.join("objects")).unwrap();
    assert_eq!(status().await.fault, ToolErrorKind::NotAllowed);
}

#[tokio::test]
async fn a_repository_with_a_symlink_out_of_the_workspace_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("passwd"), "root:x:0:0:secret\n").unwrap();
    let absolute = outside.path().join("passwd").display().to_string();
    for name in [
        "packed-refs",
        "shallow",
        "HEAD",
        "ORIG_HEAD",
        "MERGE_HEAD",
        "COMMIT_EDITMSG",
        "index",
        "config.worktree",
        "description",
        "refs/heads/deep/other",
        "logs/HEAD",
        "logs/refs/heads/main",
        "info/exclude",
        "info/attributes",
        "objects/info/commit-graph",
        "objects/pack/x.pack",
        "objects/ab",
        "objects/ac/x",
        "worktrees/x/gitdir",
        "rebase-merge/done",
    ] {
        let bench = GitTestBench::new();
        let link = bench.root().join(".git").join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        // Absolute, relative, and missing, which git would create.
        for target in [&absolute, "../../../../../../../../etc/passwd", "/nowhere/at/all"] {
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            let status = bench.refused("git.status", json!({})).await;
            assert!(!status.message.contains("root:x"), "{name} {target}: {status:?}");
            // Without a valid HEAD, git finds no repository.
            if name != "HEAD" {
                assert_eq!(status.fault, ToolErrorKind::NotAllowed, "{name} {target}: {status:?}");
                let place = format!("/.git/{name}");
                assert!(status.message.contains(&place), "{name} {target}: {status:?}");
            }
        }
    }
    // The configuration may name a file outside, but its content is not quoted.
    let bench = GitTestBench::new();
    bench.git(&["config", "blame.ignoreRevsFile", &absolute]);
    let blame = bench.refused("git.blame", json!({ "path": "a.txt" })).await;
    assert!(!blame.message.contains("root:x"), "{blame:?}");
    // Symlinks that stay inside are allowed. So are hooks anywhere, because they do not run.
    let bench = GitTestBench::new();
    bench.git(&["pack-refs", "--all"]);
    let git = bench.root().join(".git");
    fs::rename(git.join("packed-refs"), git.join("elsewhere")).unwrap();
    symlink("elsewhere", git.join("packed-refs")).unwrap();
    let _ = fs::remove_dir_all(git.join("hooks"));
    symlink(outside.path(), git.join("hooks")).unwrap();
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.value["branch"], "main");
}

#[tokio::test]
async fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let bench = GitTestBench::new();
    let pipe = bench.root().join(".git/packed-refs");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let status = bench.refused("git.status", json!({})).await;
    assert_eq!(status.fault, ToolErrorKind::NotAllowed, "{status:?}");
    assert!(status.message.contains("packed-refs"), "{status:?}");
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_in_full_is_refused() {
    let filter = "echo ran >> ../trapped; cat";
    // A configuration that hides a program behind much junk.
    let bench = GitTestBench::new();
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt filter=odd\n");
    let config = bench.root().join(".git/config");
    let original = fs::read_to_string(&config).unwrap();
    let junk = format!("[junk]\n\tkey = {}\n", "x".repeat(80_000)).repeat(60);
    let armed = format!("{original}{junk}[filter \"odd\"]\n\tclean = {filter}\n");
    fs::write(&config, armed).unwrap();
    let refused = bench.refused("git.add", json!({ "paths": ["."] })).await;
    assert_eq!(refused.fault, ToolErrorKind::NotAllowed, "{refused:?}");
    // A configuration with a key that is not UTF-8.
    let bench = GitTestBench::new();
    bench.put("odd.txt", "odd\n");
    fs::write(bench.root().join(".gitattributes"), b"odd.txt filter=\xff\n").unwrap();
    let config = bench.root().join(".git/config");
    let mut armed = fs::read(&config).unwrap();
    armed.extend(b"[filter \"\xff\"]\n\tclean = ");
    armed.extend(filter.as_bytes());
    fs::write(&config, armed).unwrap();
    let refused = bench.refused("git.add", json!({ "paths": ["."] })).await;
    assert_eq!(refused.fault, ToolErrorKind::NotAllowed, "{refused:?}");
    assert!(!bench.trap().exists());
}

#[tokio::test]
async fn the_checked_repository_is_the_one_that_git_uses() {
    let bench = GitTestBench::new();
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt filter=odd\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    let trap = bench.trap().display().to_string();
    bench.git(&["config", "filter.odd.clean", &format!("echo ran >> {trap}; cat")]);
    bench.put("odd.txt", "changed\n");
    // An inner repository whose work tree is that of the outer one.
    bench.git(&["init", "-q", "-b", "within", "sub"]);
    bench.git(&["-C", "sub", "config", "core.worktree", "../.."]);
    let status = bench.done("git.status", json!({ "repo": "sub" })).await;
    assert_eq!(status.value["branch"], "within", "{}", status.value);
    assert!(!bench.trap().exists());
}

#[tokio::test]
async fn a_linked_work_tree_in_the_workspace_is_accepted() {
    let bench = GitTestBench::new();
    bench.git(&["worktree", "add", "-q", "linked", "-b", "linked"]);
    let status = bench.done("git.status", json!({ "repo": "linked" })).await;
    assert_eq!(status.value["branch"], "linked");
}

/// Enters a trap program in every git setting and file of the test repository that can name a
/// program.
fn arm(bench: &GitTestBench) {
    let script = bench.folder.path().join("trap.sh");
    fs::write(&script, format!("#!/bin/sh\necho \"$0 $*\" >> {}\ncat\n", bench.trap().display()))
        .unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let trap = script.display().to_string();
    for hook in [
        "pre-commit",
        "commit-msg",
        "post-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "prepare-commit-msg",
    ] {
        let path = bench.root().join(".git/hooks").join(hook);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(&script, path).unwrap();
    }
    for key in [
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshCommand",
        "core.askPass",
        "diff.external",
        "diff.odd.command",
        "diff.odd.textconv",
        "merge.odd.driver",
        "filter.odd.clean",
        "filter.odd.smudge",
        "gpg.program",
        "credential.helper",
        "core.alternateRefsCommand",
        "pager.log",
        "pager.status",
        "interactive.diffFilter",
    ] {
        bench.git(&["config", key, &trap]);
    }
    bench.git(&["config", "commit.gpgSign", "true"]);
    bench.git(&["config", "log.showSignature", "true"]);
    bench.git(&["config", "filter.odd.required", "true"]);
}

#[tokio::test]
async fn programs_that_a_repository_configures_do_not_run() {
    let bench = GitTestBench::new();
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt diff=odd merge=odd filter=odd\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    bench.git(&["branch", "other"]);
    arm(&bench);
    bench.put("a.txt", "changed\n");
    for (tool, input) in [
        ("git.status", json!({})),
        ("git.diff", json!({})),
        ("git.diff", json!({ "ref": "HEAD~1..HEAD" })),
        ("git.log", json!({ "path": "odd.txt" })),
        ("git.show", json!({})),
        ("git.show", json!({ "file": "odd.txt" })),
        ("git.blame", json!({ "path": "odd.txt" })),
        ("git.branches", json!({})),
        ("git.add", json!({ "paths": ["a.txt"] })),
        ("git.commit", json!({ "message": "third" })),
        ("git.checkout", json!({ "ref": "other" })),
        ("git.restore", json!({ "paths": ["."], "ref": "HEAD~1" })),
        ("git.restore", json!({ "paths": ["."] })),
        ("git.checkout", json!({ "ref": "main" })),
    ] {
        bench.done(tool, input.clone()).await;
        let ran = fs::read_to_string(bench.trap()).unwrap_or_default();
        assert_eq!(ran, "", "{tool} {input}");
    }
    bench.put("odd.txt", "changed\n");
    for (tool, input) in [
        ("git.add", json!({ "paths": ["odd.txt"] })),
        ("git.commit", json!({ "message": "x", "all": true })),
        ("git.stash", json!({})),
    ] {
        let refused = bench.refused(tool, input).await;
        assert!(refused.message.contains("filter `odd`"), "{tool}: {refused:?}");
    }
    bench.done("git.diff", json!({})).await;
    assert!(!bench.trap().exists());
}

#[tokio::test]
async fn hooks_and_filters_run_if_the_settings_allow_them() {
    let settings = GitSettings {
        programs: vec![GitProgram::Hooks, GitProgram::Filters],
        ..GitSettings::default()
    };
    let bench = GitTestBench::with(&settings);
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt filter=odd\n");
    arm(&bench);
    bench.git(&["config", "commit.gpgSign", "false"]);
    bench.done("git.add", json!({ "paths": ["."] })).await;
    bench.done("git.commit", json!({ "message": "first" })).await;
    let ran = fs::read_to_string(bench.trap()).unwrap();
    assert!(ran.contains("trap.sh") && ran.contains("hooks/pre-commit"), "{ran}");
}

#[tokio::test]
async fn the_error_of_a_failed_hook_has_its_output() {
    let bench = GitTestBench::with(&GitSettings {
        programs: vec![GitProgram::Hooks],
        ..GitSettings::default()
    });
    let hook = bench.root().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\necho 'no tabs, please' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    bench.put("a", "a");
    bench.git(&["add", "."]);
    let refused = bench.refused("git.commit", json!({ "message": "x" })).await;
    assert!(refused.message.contains("no tabs, please"), "{refused:?}");
}

#[tokio::test]
async fn control_characters_of_others_are_escaped() {
    let bench = GitTestBench::new();
    let title = "\u{1b}]0;pwn\u{7}";
    let turned = "\u{202e}cod";
    bench.put(&format!("{title}.txt"), "x\n");
    bench.put(&format!("{turned}.txt"), "x\n");
    let untracked = bench.call("git.status", json!({})).await.unwrap();
    bench.git(&["config", "core.quotePath", "false"]);
    let unquoted = bench.call("git.status", json!({})).await.unwrap();
    bench.git(&["add", "."]);
    let author = format!("--author=Eve{title}{turned} <eve@example.org>");
    let message = format!("first {title}{turned}\n\nmore {title}\n");
    bench.git(&["commit", "-q", &author, "-m", &message]);
    bench.git(&["branch", turned]);
    let file = format!("{turned}.txt");
    let mut outputs = vec![untracked, unquoted];
    for (tool, input) in [
        ("git.log", json!({})),
        ("git.show", json!({ "stat": true })),
        ("git.branches", json!({})),
        ("git.blame", json!({ "path": file })),
        ("git.checkout", json!({ "ref": turned })),
        ("git.current_branch", json!({})),
    ] {
        outputs.push(bench.call(tool, input).await.unwrap());
    }
    for output in outputs {
        let is_active = |c: &char| (c.is_control() && *c != '\n' && *c != '\t') || *c == '\u{202e}';
        assert_eq!(output.text.body.chars().find(is_active), None, "{:?}", output.text.body);
        let is_escaped =
            output.text.body.contains("\\u{202e}") || output.text.body.contains("\\342\\200");
        assert!(is_escaped, "{:?}", output.text.body);
    }
}
