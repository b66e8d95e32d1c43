//! Tests that the `git` tools return the information that git itself prints.

use super::*;

#[tokio::test]
async fn status_matches_git_for_any_file_name() {
    let bench = GitTestBench::new();
    for name in ["gone", "moved", "staged", "changed", "both"] {
        bench.put(name, &format!("the file {name}\nis long enough\nto be known again\n"));
    }
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    bench.git(&["mv", "moved", "to here"]);
    bench.git(&["rm", "-q", "gone"]);
    bench.put("staged", "x");
    bench.put("both", "x");
    bench.git(&["add", "staged", "both"]);
    bench.put("both", "y");
    bench.put("changed", "y");
    for name in
        ["new file", "quo\"te", "tab\there", "ünï", "back\\slash", "-dash", "dir/inner", ":(top)x"]
    {
        bench.put(name, "new");
    }
    let status = bench.done("git.status", json!({})).await;
    // Unquoted names, which git accepts as arguments.
    let plain = bench.git(&["-c", "core.quotePath=false", "status", "--porcelain"]);
    assert!(plain.contains("ünï"), "{plain}");
    assert_eq!(status.value["porcelain"], plain);
    assert_eq!(status.text.body, plain);
    let entries = status.value["entries"].as_array().unwrap();
    let moved = entries.iter().find(|entry| entry["path"] == "to here").unwrap();
    assert_eq!((&moved["from"], &moved["index"]), (&json!("moved"), &json!("R")));
    assert_eq!((&status.value["branch"], &status.value["clean"]), (&json!("main"), &json!(false)));
    bench.git(&["config", "core.quotePath", "true"]);
    let status = bench.done("git.status", json!({})).await;
    assert_eq!(status.text.body, plain, "whatever the repository sets");
}

#[tokio::test]
async fn status_shows_conflicts_and_the_distance_to_the_upstream() {
    let bench = GitTestBench::new();
    bench.git(&["clone", "-q", ".", "clone"]);
    let home = bench.folder.path().join("home");
    let clone = bench.root().join("clone");
    git_in(&clone, &home, &["config", "user.name", "Ada"]);
    git_in(&clone, &home, &["config", "user.email", "ada@example.org"]);
    fs::write(clone.join("a.txt"), "ours\n").unwrap();
    git_in(&clone, &home, &["commit", "-qam", "ours"]);
    bench.put("a.txt", "theirs\n");
    bench.git(&["commit", "-qam", "theirs"]);
    git_in(&clone, &home, &["fetch", "-q"]);
    let mut merge = Command::new("git");
    merge.args(["merge", "-q", "origin/main"]).current_dir(&clone).env("HOME", &home);
    assert!(!merge.output().unwrap().status.success(), "they are in conflict");
    let status = bench.done("git.status", json!({ "repo": "clone" })).await;
    assert_eq!(status.text.body, "UU a.txt\n");
    let upstream = ["upstream", "ahead", "behind"].map(|name| status.value[name].clone());
    assert_eq!(upstream, [json!("origin/main"), json!(1), json!(1)]);
    assert_eq!(status.value["under_way"], "merge");
    let note = status.text.note.unwrap();
    assert!(note.contains("a merge is in progress, with 1 file in conflict"), "{note}");
    // A file in conflict is not staged, and `all` does not commit it.
    fs::write(clone.join("new.txt"), "new\n").unwrap();
    let added = bench.done("git.add", json!({ "repo": "clone", "paths": ["new.txt"] })).await;
    assert_eq!(added.value["staged"].as_array().unwrap().len(), 1, "{}", added.value);
    let all = json!({ "repo": "clone", "message": "merged", "all": true });
    let refused = bench.refused("git.commit", all).await;
    assert!(refused.message.contains("`a.txt` is in conflict"), "{}", refused.message);
    fs::write(clone.join("a.txt"), "both\n").unwrap();
    bench.done("git.add", json!({ "repo": "clone", "paths": ["a.txt"] })).await;
    bench.done("git.commit", json!({ "repo": "clone", "message": "merged" })).await;
    let status = bench.done("git.status", json!({ "repo": "clone" })).await;
    assert_eq!(status.value["under_way"], json!(null));
}

#[tokio::test]
async fn log_matches_git_with_any_filter() {
    let bench = GitTestBench::new();
    for number in 0..12 {
        bench.put("b.txt", &format!("{number}"));
        bench.git(&["add", "."]);
        let author = format!("--author=Author {number} <{number}@example.org>");
        bench.git(&["commit", "-qm", &format!("commit {number}"), &author]);
    }
    let log = bench.done("git.log", json!({})).await;
    assert_eq!(log.text.body, bench.git(&["log", "--oneline", "--max-count=10"]));
    assert_eq!(
        (log.value["commits"].as_array().unwrap().len(), &log.value["more"]),
        (10, &json!(true))
    );
    let rest = bench.done("git.log", json!({ "cursor": 10 })).await;
    assert_eq!(rest.text.body, bench.git(&["log", "--oneline", "--skip=10"]));
    assert_eq!(rest.value["more"], false);
    let first = &rest.value["commits"][2];
    assert_eq!((&first["subject"], &first["author"]), (&json!("first"), &json!("Ada")));
    assert_eq!(first["parents"], json!([]));
    for (input, args) in [
        (json!({ "author": "author 1" }), vec!["-i", "--author=author 1"]),
        (json!({ "path": "a.txt" }), vec!["--", "a.txt"]),
        (json!({ "ref": "HEAD~3..HEAD" }), vec!["HEAD~3..HEAD"]),
        (json!({ "ref": "HEAD~4", "limit": 2 }), vec!["-2", "HEAD~4"]),
        (json!({ "grep": "commit 1" }), vec!["--grep=commit 1"]),
        (json!({ "since": "2000-01-01", "limit": 1 }), vec!["-1", "--since=2000-01-01"]),
        (json!({ "until": "2000-01-01" }), vec!["--until=2000-01-01"]),
    ] {
        let log = bench.done("git.log", input.clone()).await;
        let own = bench.git(&[&["log", "--oneline"], &args[..]].concat());
        assert_eq!(log.text.body, own, "{input}");
    }
}

#[tokio::test]
async fn log_lists_a_commit_with_a_huge_subject_and_all_older_ones() {
    let bench = GitTestBench::new();
    let message = bench.folder.path().join("message");
    fs::write(&message, "x".repeat(17 << 20)).unwrap();
    bench.git(&["commit", "-q", "--allow-empty", "-F", message.to_str().unwrap()]);
    fs::write(&message, "y".repeat(5000)).unwrap();
    bench.git(&["commit", "-q", "--allow-empty", "-F", message.to_str().unwrap()]);
    let first = bench.done("git.log", json!({})).await;
    let subjects: Vec<_> = first.value["commits"].as_array().unwrap().iter().collect();
    assert_eq!(subjects.len(), 2, "{:#}", first.value);
    assert_eq!(subjects[0]["subject"], format!("{}…", "y".repeat(1000)));
    assert_eq!(
        (&subjects[1]["subject"], &first.value["more"]),
        (&json!("(too long)"), &json!(true))
    );
    let rest = bench.done("git.log", json!({ "cursor": 2 })).await;
    assert_eq!(rest.value["commits"][0]["subject"], "first");
    assert_eq!(rest.value["more"], false);
}

#[tokio::test]
async fn diff_matches_git() {
    let bench = GitTestBench::new();
    bench.put("b.txt", "b\n");
    bench.git(&["add", "."]);
    bench.put("a.txt", "one\n2\n");
    bench.put("bin", "a\0b");
    for (input, args) in [
        (json!({}), vec![]),
        (json!({ "staged": true }), vec!["--cached"]),
        (json!({ "ref": "HEAD" }), vec!["HEAD"]),
        (json!({ "ref": "HEAD", "staged": true }), vec!["--cached", "HEAD"]),
        (json!({ "stat": true, "ref": "HEAD" }), vec!["--stat", "HEAD"]),
        (json!({ "context": 0 }), vec!["--unified=0"]),
        (json!({ "ref": "HEAD", "paths": ["b.txt"] }), vec!["HEAD", "--", "b.txt"]),
    ] {
        let diff = bench.done("git.diff", input.clone()).await;
        assert_eq!(diff.text.body, bench.git(&[&["diff"], &args[..]].concat()), "{input}");
    }
    let diff = bench.done("git.diff", json!({ "ref": "HEAD" })).await;
    let a = json!({ "path": "a.txt", "from": null, "added": 1, "removed": 1 });
    assert_eq!(diff.value["files"][0], a);
    let cut = bench.done("git.diff", json!({ "max_bytes": 20 })).await;
    assert_eq!((&cut.value["truncated"], cut.text.body.len()), (&json!(true), 20));
    let note = cut.text.note.unwrap();
    assert!(note.contains("max_bytes") && note.contains("; changed: `a.txt` +1 -1"), "{note}");
    bench.git(&["commit", "-qam", "second"]);
    let cut = bench.done("git.show", json!({ "max_bytes": 20 })).await;
    assert_eq!(cut.value["files"][0], a);
    let note = cut.text.note.unwrap();
    assert!(note.contains("; changed: `a.txt` +1 -1, `b.txt` +1 -0"), "{note}");
    for range in ["HEAD~1..HEAD", "HEAD~1...", "HEAD~1.."] {
        let diff = bench.done("git.diff", json!({ "ref": range })).await;
        assert_eq!(diff.text.body, bench.git(&["diff", "HEAD~1", "HEAD"]), "{range}");
    }
}

#[tokio::test]
async fn an_empty_diff_counts_the_untracked_files_that_it_does_not_show() {
    let bench = GitTestBench::new();
    let diff = bench.done("git.diff", json!({})).await;
    assert_eq!(diff.text.note.as_deref(), Some("no differences"));
    bench.put("new.txt", "x\n");
    let one = "no differences; 1 untracked file is not shown, see git_status";
    for input in [json!({}), json!({ "paths": ["new.txt"] }), json!({ "ref": "HEAD" })] {
        let diff = bench.done("git.diff", input.clone()).await;
        assert_eq!(diff.text.note.as_deref(), Some(one), "{input}");
    }
    bench.put("src/other.txt", "x\n");
    let two = "no differences; 2 untracked files are not shown, see git_status";
    let diff = bench.done("git.diff", json!({})).await;
    assert_eq!(diff.text.note.as_deref(), Some(two));
    for input in [json!({ "staged": true }), json!({ "paths": ["a.txt"] })] {
        let diff = bench.done("git.diff", input.clone()).await;
        assert_eq!(diff.text.note.as_deref(), Some("no differences"), "{input}");
    }
}

#[tokio::test]
async fn settings_of_the_repository_do_not_change_a_diff() {
    let bench = GitTestBench::new();
    let deep = format!("{}/Straße nach Köln.txt", "packages/of/a/deep/tree".repeat(4));
    let lines: String = (1..40).map(|number| format!("line {number}\n\n")).collect();
    for name in ["old.txt", "many.txt", deep.as_str()] {
        bench.put(name, &lines);
    }
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    bench.git(&["mv", "old.txt", "new.txt"]);
    for name in ["many.txt", deep.as_str()] {
        bench.put(name, &lines.replace("line 10\n", "ten\n").replace("line 14\n", "fourteen\n"));
    }
    bench.git(&["commit", "-qam", "third"]);
    bench.put("a.txt", "1\n");
    bench.put(&deep, &lines.replace("line 20\n", "twenty\n"));
    let inputs = [
        ("git.diff", json!({})),
        ("git.diff", json!({ "stat": true })),
        ("git.diff", json!({ "ref": "HEAD~1" })),
        ("git.show", json!({})),
        ("git.show", json!({ "stat": true })),
        ("git.show", json!({ "ref": "HEAD~2" })),
    ];
    let mut expected = Vec::new();
    for (tool, input) in inputs.clone() {
        expected.push(bench.done(tool, input).await.value);
    }
    let diff = bench.git(&["-c", "core.quotePath=false", "diff"]);
    assert_eq!(expected[0]["diff"], diff);
    for text in [&expected[1]["diff"], &expected[4]["text"]] {
        assert!(text.as_str().unwrap().contains(&deep), "{text}");
    }
    bench.put("order", "new*\nmany*\n");
    for (key, value) in [
        ("core.quotePath", "true"),
        ("color.ui", "always"),
        ("color.diff", "always"),
        ("log.showRoot", "false"),
        ("diff.noprefix", "true"),
        ("diff.renames", "false"),
        ("diff.context", "0"),
        ("diff.interHunkContext", "9"),
        ("diff.orderFile", "order"),
        ("diff.suppressBlankEmpty", "true"),
        ("diff.statNameWidth", "5"),
        ("diff.statGraphWidth", "1"),
        ("diff.wsErrorHighlight", "all"),
        ("diff.colorMoved", "zebra"),
        ("diff.all.binary", "true"),
        ("i18n.logOutputEncoding", "UTF-16"),
    ] {
        bench.git(&["config", key, value]);
    }
    bench.put(".git/info/attributes", "* diff=all\n");
    for ((tool, input), expected) in inputs.clone().into_iter().zip(&expected) {
        assert_eq!(&bench.done(tool, input.clone()).await.value, expected, "{tool} {input}");
    }
    bench.git(&["config", "diff.noprefix", "false"]);
    bench.git(&["config", "diff.renames", "copies"]);
    for (key, value) in [("diff.mnemonicPrefix", "true"), ("diff.srcPrefix", "old/")] {
        bench.git(&["config", key, value]);
        for ((tool, input), expected) in inputs.clone().into_iter().zip(&expected) {
            assert_eq!(
                &bench.done(tool, input.clone()).await.value,
                expected,
                "{key} {tool} {input}"
            );
        }
    }
}

#[tokio::test]
async fn a_diff_lists_each_file_in_conflict_once() {
    let bench = GitTestBench::new();
    bench.put("gone.txt", "x\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    bench.git(&["checkout", "-qb", "topic"]);
    bench.git(&["rm", "-q", "gone.txt"]);
    bench.put("a.txt", "topic\n");
    bench.put("both ways.txt", "topic\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "topic"]);
    bench.git(&["checkout", "-q", "main"]);
    bench.put("gone.txt", "y\n");
    bench.put("a.txt", "main\n");
    bench.put("both ways.txt", "main\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "main"]);
    let mut rebase = Command::new("git");
    let home = bench.folder.path().join("home");
    rebase.args(["rebase", "-q", "topic"]).current_dir(bench.root()).env("HOME", &home);
    assert!(!rebase.output().unwrap().status.success(), "they are in conflict");
    for input in [json!({}), json!({ "stat": true }), json!({ "ref": "HEAD" })] {
        let diff = bench.done("git.diff", input.clone()).await;
        let files = diff.value["files"].as_array().unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["a.txt", "both ways.txt", "gone.txt"], "{input}");
        assert_eq!(files[0]["added"], 4, "{input}");
    }
    let staged = bench.done("git.diff", json!({ "staged": true })).await;
    assert_eq!(staged.value["files"].as_array().unwrap().len(), 3, "{}", staged.value);
}

#[tokio::test]
async fn show_returns_a_commit_or_a_file_of_it() {
    let bench = GitTestBench::new();
    bench.put("a.txt", "one\n2\n");
    bench.git(&["commit", "-qam", "second\n\nand why"]);
    let show = bench.done("git.show", json!({})).await;
    assert_eq!(show.value["text"], bench.git(&["show", "--format="]));
    assert_eq!(show.value["message"], "second\n\nand why");
    assert!(show.text.body.contains("Author: Ada <ada@example.org>\n"), "{}", show.text.body);
    let was = bench.done("git.show", json!({ "ref": "HEAD~1", "file": "a.txt" })).await;
    assert_eq!(was.text.body, "one\ntwo\n");
    let none = bench.refused("git.show", json!({ "file": "none" })).await;
    assert_eq!(none.fault, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn blame_returns_committed_and_uncommitted_lines() {
    let bench = GitTestBench::new();
    bench.put("a.txt", "one\n2\nthree\n");
    bench.git(&["commit", "-qam", "second"]);
    bench.put("a.txt", "one\n2\nthree\nfour\n");
    let blame = bench.done("git.blame", json!({ "path": "a.txt" })).await;
    let head = bench.git(&["rev-parse", "HEAD"]);
    let first = bench.git(&["rev-parse", "HEAD~1"]);
    let commits: Vec<&Value> =
        blame.value["lines"].as_array().unwrap().iter().map(|line| &line["commit"]).collect();
    assert_eq!(
        commits,
        [first.trim(), head.trim(), head.trim()]
            .map(Value::from)
            .iter()
            .chain([&Value::Null])
            .collect::<Vec<_>>()
    );
    assert_eq!(blame.value["lines"][3]["text"], "four");
    assert_eq!(blame.value["lines"][0]["author"], "Ada");
    let part = json!({ "path": "a.txt", "start_line": 2, "end_line": 2, "ref": "HEAD" });
    let part = bench.done("git.blame", part).await;
    assert_eq!(
        (part.value["lines"].as_array().unwrap().len(), &part.value["lines"][0]["line"]),
        (1, &json!(2))
    );
    bench.put("long", &"line\n".repeat(700));
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "long"]);
    let long = bench.done("git.blame", json!({ "path": "long" })).await;
    assert_eq!(
        (long.value["lines"].as_array().unwrap().len(), &long.value["next_line"]),
        (500, &json!(501))
    );
    let rest = bench.done("git.blame", json!({ "path": "long", "start_line": 501 })).await;
    assert_eq!(
        (rest.value["lines"].as_array().unwrap().len(), &rest.value["next_line"]),
        (200, &Value::Null)
    );
}

#[tokio::test]
async fn branches_match_git() {
    let bench = GitTestBench::new();
    bench.git(&["branch", "feat/x"]);
    let branches = bench.done("git.branches", json!({})).await;
    assert_eq!(branches.text.body, bench.git(&["branch", "-a"]));
    assert_eq!(branches.value["current"], "main");
    assert_eq!(branches.value["branches"][0]["name"], "feat/x");
    assert_eq!(branches.value["branches"][1]["current"], true);
    let current = bench.done("git.current_branch", json!({})).await;
    assert_eq!(current.text.body, bench.git(&["rev-parse", "--abbrev-ref", "HEAD"]).trim());
    bench.git(&["checkout", "-q", "--detach"]);
    let current = bench.done("git.current_branch", json!({})).await;
    assert_eq!((current.text.body.as_str(), &current.value["detached"]), ("HEAD", &json!(true)));
    let branches = bench.done("git.branches", json!({})).await;
    assert_eq!(branches.text.body, bench.git(&["branch", "-a"]));
}

#[tokio::test]
async fn before_the_first_commit_there_is_a_branch_without_commits() {
    let bench = GitTestBench::with(&GitSettings::default());
    let current = bench.done("git.current_branch", json!({})).await;
    assert_eq!((current.text.body.as_str(), &current.value["commit"]), ("main", &Value::Null));
    bench.put("a", "a");
    assert_eq!(bench.done("git.status", json!({})).await.text.body, "?? a\n");
    bench.done("git.add", json!({ "paths": ["a"] })).await;
    let unstaged = bench.done("git.unstage", json!({})).await;
    assert_eq!(unstaged.value["staged"], json!([]));
    let log = bench.refused("git.log", json!({})).await;
    assert_eq!(log.fault, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn an_unknown_path_is_refused_instead_of_shown_as_unchanged() {
    let bench = GitTestBench::new();
    bench.put("gone.txt", "x\n");
    bench.git(&["add", "."]);
    bench.git(&["commit", "-qm", "second"]);
    bench.git(&["rm", "-q", "gone.txt"]);
    bench.git(&["commit", "-qm", "third"]);
    bench.put("new.txt", "x\n");
    for (tool, input) in [
        ("git.diff", json!({ "paths": ["a.txt", "proj/a.txt"] })),
        ("git.show", json!({ "paths": ["proj/a.txt"] })),
        ("git.log", json!({ "path": "proj/a.txt" })),
        ("git.unstage", json!({ "paths": ["proj/a.txt"] })),
    ] {
        let refused = bench.refused(tool, input).await;
        assert_eq!(refused.fault, ToolErrorKind::NotFound, "{tool}");
        let expected = "`proj/a.txt` does not exist; paths are relative to the top folder of the \
                        repository, the workspace";
        assert_eq!(refused.message, expected, "{tool}");
    }
    // Paths that exist, or existed in a commit, are accepted.
    for path in ["a.txt", "gone.txt", "new.txt", "."] {
        bench.done("git.diff", json!({ "paths": [path] })).await;
        bench.done("git.unstage", json!({ "paths": [path] })).await;
        bench.done("git.log", json!({ "path": path, "author": "nobody" })).await;
    }
    bench.git(&["init", "-q", "proj"]);
    bench.put("proj/b.txt", "x\n");
    let refused = bench.refused("git.diff", json!({ "repo": "proj", "paths": ["proj/b.txt"] }));
    let message = refused.await.message;
    assert!(message.ends_with("the top folder of the repository, `proj`"), "{message}");
    bench.done("git.diff", json!({ "repo": "proj", "paths": ["b.txt"] })).await;
}

#[tokio::test]
async fn an_invalid_time_is_refused() {
    let bench = GitTestBench::new();
    for name in ["since", "until"] {
        let refused = bench.refused("git.log", json!({ name: "garbage in" })).await;
        assert_eq!(refused.fault, ToolErrorKind::Invalid { pointer: format!("/{name}") });
        assert!(refused.message.contains("`2 weeks ago`"), "{refused:?}");
    }
    let log = bench.done("git.log", json!({ "since": "2 weeks ago", "until": "now" })).await;
    assert_eq!(log.value["commits"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_name_that_is_not_a_commit_gets_advice() {
    let bench = GitTestBench::new();
    let refused = bench.refused("git.show", json!({ "ref": "HEAD:a.txt" })).await;
    assert_eq!(refused.fault, ToolErrorKind::Invalid { pointer: "/ref".to_owned() });
    assert!(refused.message.ends_with("set `ref` to `HEAD` and `file` to `a.txt`"), "{refused:?}");
    bench.done("git.show", json!({ "ref": "HEAD^{/first}" })).await;
    bench.git(&["checkout", "-q", "--orphan", "other"]);
    for tool in ["git.log", "git.show"] {
        let message = bench.refused(tool, json!({})).await.message;
        assert!(message.starts_with("there is no commit yet; "), "{tool}: {message}");
        bench.done(tool, json!({ "ref": "main" })).await;
    }
}
