//! Neither words nor repositories make git do what it was not told to.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Words that would be options, commands or patterns if anything took them for such.
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
async fn words_are_words() {
    let bench = Bench::new();
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
            // A branch may be called so, which is then all that it is.
            if tool == "git.checkout"
                && input["create"] == true
                && !word.starts_with('-')
                && input["ref"] == word
            {
                continue;
            }
            let refused = bench.refused(tool, input.clone()).await;
            let is_told = match refused.fault {
                ToolFault::Invalid { .. } | ToolFault::NotFound => true,
                _ => refused.message.starts_with("git says: pathspec"),
            };
            assert!(is_told, "{tool} {input}: {refused:?}");
        }
        for (tool, input) in
            [("git.log", json!({ "author": word })), ("git.log", json!({ "grep": word }))]
        {
            let output = bench.done(tool, input.clone()).await;
            assert_eq!(output.text.body, "", "{tool} {input}");
        }
        // Whatever is no time git would take for now.
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
async fn files_are_called_what_they_are_called() {
    let bench = Bench::new();
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
    let bench = Bench::new();
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
                ToolFault::NotAllowed,
                "{tool} {input}"
            );
        }
    }
    // A folder that git knows, and that has become a symlink.
    bench.put("folder/secret", "known\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    fs::remove_dir_all(bench.root().join("folder")).unwrap();
    symlink(bench.folder.path(), bench.root().join("folder")).unwrap();
    let blame = bench.refused("git.blame", json!({ "path": "folder/secret" })).await;
    assert_eq!(blame.fault, ToolFault::NotAllowed);
    let diff = bench.done("git.diff", json!({})).await;
    assert!(!diff.text.body.contains("+secret"), "{}", diff.text.body);
}

#[tokio::test]
async fn a_repository_outside_the_workspace_is_refused() {
    let bench = Bench::new();
    let around = bench.folder.path();
    let home = around.join("home");
    git_in(around, &home, &["init", "-q", "-b", "main", "."]);
    git_in(around, &home, &["init", "-q", "-b", "main", "other"]);
    fs::remove_dir_all(bench.root().join(".git")).unwrap();
    let status = || bench.refused("git.status", json!({}));
    // The one around the workspace does not count.
    let none = status().await;
    assert_eq!(none.fault, ToolFault::NotFound);
    assert!(none.message.contains("git init"), "{none:?}");
    assert_eq!(
        bench.refused("git.status", json!({ "repo": ".." })).await.fault,
        ToolFault::NotAllowed
    );
    let other = around.join("other/.git");
    // A file that says where it is.
    let git = bench.root().join(".git");
    fs::write(&git, format!("gitdir: {}\n", other.display())).unwrap();
    assert_eq!(status().await.fault, ToolFault::NotAllowed);
    fs::remove_file(&git).unwrap();
    symlink(&other, &git).unwrap();
    assert_eq!(status().await.fault, ToolFault::NotAllowed);
    fs::remove_file(&git).unwrap();
    // One whose work tree, whose objects or whose borrowed objects are elsewhere.
    bench.git(&["init", "-q", "-b", "main", "."]);
    bench.git(&["config", "core.worktree", &around.display().to_string()]);
    assert_eq!(status().await.fault, ToolFault::NotAllowed);
    bench.git(&["config", "--unset", "core.worktree"]);
    bench.done("git.status", json!({})).await;
    let alternates = git.join("objects/info/alternates");
    fs::write(&alternates, format!("{}\n", other.join("objects").display())).unwrap();
    assert_eq!(status().await.fault, ToolFault::NotAllowed);
    fs::remove_file(&alternates).unwrap();
    fs::remove_dir_all(git.join("objects")).unwrap();
    symlink(other.join("objects"), git.join("objects")).unwrap();
    assert_eq!(status().await.fault, ToolFault::NotAllowed);
}

#[tokio::test]
async fn no_file_of_a_repository_is_one_outside_the_workspace() {
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
        // Absolute, relative, and to what is not there, where git would make it.
        for target in [&absolute, "../../../../../../../../etc/passwd", "/nowhere/at/all"] {
            let bench = Bench::new();
            let link = bench.root().join(".git").join(name);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&link);
            symlink(target, &link).unwrap();
            let status = bench.refused("git.status", json!({})).await;
            assert!(!status.message.contains("root:x"), "{name} {target}: {status:?}");
            // Where git takes that for no repository at all, it says so.
            if name != "HEAD" {
                assert_eq!(status.fault, ToolFault::NotAllowed, "{name} {target}: {status:?}");
                let place = format!("/.git/{name}");
                assert!(status.message.contains(&place), "{name} {target}: {status:?}");
            }
        }
    }
    // What the configuration names may be anywhere; what stands in it is not told.
    let bench = Bench::new();
    bench.git(&["config", "blame.ignoreRevsFile", &absolute]);
    let blame = bench.refused("git.blame", json!({ "path": "a.txt" })).await;
    assert!(!blame.message.contains("root:x"), "{blame:?}");
    // Symlinks that stay inside are as good as any, and so are hooks, which do not run.
    let bench = Bench::new();
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
async fn a_pipe_in_place_of_a_file_keeps_nobody_waiting() {
    let bench = Bench::new();
    let pipe = bench.root().join(".git/packed-refs");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let status = bench.refused("git.status", json!({})).await;
    assert_eq!(status.fault, ToolFault::NotAllowed, "{status:?}");
    assert!(status.message.contains("packed-refs"), "{status:?}");
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_whole_is_not_run_by() {
    let filter = "echo ran >> ../trapped; cat";
    // One that hides a program behind a lot else.
    let bench = Bench::new();
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt filter=odd\n");
    let config = bench.root().join(".git/config");
    let own = fs::read_to_string(&config).unwrap();
    let junk = format!("[junk]\n\tkey = {}\n", "x".repeat(80_000)).repeat(60);
    let armed = format!("{own}{junk}[filter \"odd\"]\n\tclean = {filter}\n");
    fs::write(&config, armed).unwrap();
    let refused = bench.refused("git.add", json!({ "paths": ["."] })).await;
    assert_eq!(refused.fault, ToolFault::NotAllowed, "{refused:?}");
    // One that calls it what cannot be said.
    let bench = Bench::new();
    bench.put("odd.txt", "odd\n");
    fs::write(bench.root().join(".gitattributes"), b"odd.txt filter=\xff\n").unwrap();
    let config = bench.root().join(".git/config");
    let mut armed = fs::read(&config).unwrap();
    armed.extend(b"[filter \"\xff\"]\n\tclean = ");
    armed.extend(filter.as_bytes());
    fs::write(&config, armed).unwrap();
    let refused = bench.refused("git.add", json!({ "paths": ["."] })).await;
    assert_eq!(refused.fault, ToolFault::NotAllowed, "{refused:?}");
    assert!(!bench.trap().exists());
}

#[tokio::test]
async fn the_repository_that_was_looked_at_is_the_one_that_is_used() {
    let bench = Bench::new();
    bench.put("odd.txt", "odd\n");
    bench.put(".gitattributes", "odd.txt filter=odd\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    let trap = bench.trap().display().to_string();
    bench.git(&["config", "filter.odd.clean", &format!("echo ran >> {trap}; cat")]);
    bench.put("odd.txt", "changed\n");
    // Another, within, that says its work tree is the first one's.
    bench.git(&["init", "-q", "-b", "within", "sub"]);
    bench.git(&["-C", "sub", "config", "core.worktree", "../.."]);
    let status = bench.done("git.status", json!({ "repo": "sub" })).await;
    assert_eq!(status.value["branch"], "within", "{}", status.value);
    assert!(!bench.trap().exists());
}

#[tokio::test]
async fn a_linked_work_tree_within_the_workspace_is_one() {
    let bench = Bench::new();
    bench.git(&["worktree", "add", "-q", "linked", "-b", "linked"]);
    let status = bench.done("git.status", json!({ "repo": "linked" })).await;
    assert_eq!(status.value["branch"], "linked");
}

/// Programs that a repository names everywhere it can.
fn arm(bench: &Bench) {
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
async fn a_repository_runs_nothing() {
    let bench = Bench::new();
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
async fn hooks_and_filters_run_where_the_owner_says_so() {
    let settings = GitSettings { hooks: true, filters: true, ..GitSettings::default() };
    let bench = Bench::with(&settings);
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
async fn a_failing_hook_is_told_with_what_it_said() {
    let bench = Bench::with(&GitSettings { hooks: true, ..GitSettings::default() });
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
async fn what_strangers_write_is_shown_and_not_obeyed() {
    let bench = Bench::new();
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
    let mut told = vec![untracked, unquoted];
    for (tool, input) in [
        ("git.log", json!({})),
        ("git.show", json!({ "stat": true })),
        ("git.branches", json!({})),
        ("git.blame", json!({ "path": file })),
        ("git.checkout", json!({ "ref": turned })),
        ("git.current_branch", json!({})),
    ] {
        told.push(bench.call(tool, input).await.unwrap());
    }
    for output in told {
        let acts = |c: &char| (c.is_control() && *c != '\n' && *c != '\t') || *c == '\u{202e}';
        assert_eq!(output.text.body.chars().find(acts), None, "{:?}", output.text.body);
        let says =
            output.text.body.contains("\\u{202e}") || output.text.body.contains("\\342\\200");
        assert!(says, "{:?}", output.text.body);
    }
}
