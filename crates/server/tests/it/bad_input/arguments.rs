//! Tests of invalid arguments, and of a disk that changes or fails during a call.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::support::{TempWorkspace, over_both, over_both_tuned, refusal, structured};

#[test]
fn an_argument_of_the_wrong_type_is_named_by_its_pointer() {
    let cases = [
        ("files_read", json!({ "path": 5 }), "/path"),
        ("files_read", json!({ "path": "README.md", "offset": "x" }), "/offset"),
        (
            "files_edit",
            json!({ "path": "README.md", "edits": [{ "old": 1, "new": "" }] }),
            "/edits/0",
        ),
        ("exec_run", json!({ "command": "true", "args": ["a", 1] }), "/args/1"),
        ("files_read", json!({}), "`path` is missing"),
        ("files_read", json!({ "path": "README.md", "pth": 1 }), "unknown field `pth`"),
    ];
    over_both(&TempWorkspace::new(), |client| {
        for (tool, arguments, pointer) in &cases {
            let answer = client.call(tool, arguments.clone());
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(refusal(&answer).contains(pointer), "{pointer}: {answer}");
        }
    });
}

#[test]
fn null_and_quoted_values_of_optional_arguments_are_repaired() {
    let workspace = TempWorkspace::new().file("n.txt", "null 12 true\n");
    over_both(&workspace, |client| {
        let nulls = json!({ "path": "README.md", "offset": null, "max_bytes": null });
        let read = client.call("files_read", nulls);
        assert_eq!(structured(&read)["content"], TempWorkspace::README, "{read}");
        let quoted = json!({ "path": "README.md", "max_bytes": "4", "encoding": null });
        let read = client.call("files_read", quoted);
        assert_eq!(structured(&read)["content"], &TempWorkspace::README[..4], "{read}");
        let found = client.call("files_search", json!({ "text": "12", "limit": "5" }));
        assert_eq!(structured(&found)["matches"].as_array().unwrap().len(), 1, "{found}");
        // A text stays a text, and a required argument is not made up.
        for (arguments, part) in [
            (json!({ "path": null }), "`path` is missing"),
            (json!({ "path": "README.md", "max_bytes": "four" }), "/max_bytes"),
            (json!({ "path": "README.md", "unknown": null }), "unknown field `unknown`"),
        ] {
            let answer = client.call("files_read", arguments);
            assert!(refusal(&answer).contains(part), "{part}: {answer}");
        }
    });
}

#[test]
fn names_that_models_guess_for_arguments_are_accepted() {
    let workspace =
        TempWorkspace::new().file("n.txt", "one\ntwo\nthree\n").file("d/m.txt", "two\n");
    over_both(&workspace, |client| {
        let read = client.call("files_read", json!({ "file_path": "n.txt", "limit": 1 }));
        assert_eq!(structured(&read)["content"], "one\n", "{read}");
        let range = json!({ "path": "n.txt", "start_line": "2", "end_line": "2" });
        assert_eq!(structured(&client.call("files_read", range))["content"], "two\n");
        for query in ["query", "text", "q", "pattern"] {
            let found = client.call("search_text", json!({ query: "two", "glob": "*.txt" }));
            assert_eq!(structured(&found)["files_total"], 2, "{found}");
        }
        let edits = json!([{ "old_string": "two", "new_string": "2" }]);
        let edited = client
            .call("files_edit", json!({ "file": "d/m.txt", "edits": edits, "dry_run": true }));
        assert_eq!(structured(&edited)["replacements"], 1, "{edited}");
        let edits = r#"[{"old_string": "two", "new_string": "2", "replace_all": "true"}]"#;
        let quoted = json!({ "file": "d/m.txt", "edits": edits, "dry_run": "true" });
        let edited = client.call("files_edit", quoted);
        assert_eq!(structured(&edited)["replacements"], 1, "{edited}");
        // The message has the name that the caller wrote.
        let answer = client.call("search_text", json!({ "q": "two", "max_results": "many" }));
        assert!(refusal(&answer).contains("/max_results"), "{answer}");
        let both = client.call("search_text", json!({ "q": "two", "query": "one" }));
        assert!(refusal(&both).contains("unknown field `q`"), "{both}");
    });
}

#[test]
fn all_problems_of_the_arguments_are_reported_at_once() {
    over_both(&TempWorkspace::new(), |client| {
        let arguments = json!({ "path": 1, "offset": "x", "max_bytes": -1, "surprise": null });
        let message = refusal(&client.call("files_read", arguments));
        for part in ["/path", "/offset", "/max_bytes", "surprise"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    });
}

#[test]
fn arguments_that_are_not_an_object_are_refused() {
    over_both(&TempWorkspace::new(), |client| {
        for arguments in [json!([]), json!("README.md"), json!(1), json!(true)] {
            let answer = client.call("files_read", arguments);
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
        }
        let answer = client.ask("tools/call", json!({ "arguments": {} }));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    });
}

#[test]
fn an_unknown_tool_is_refused_with_the_most_similar_name() {
    over_both(&TempWorkspace::new(), |client| {
        let answer = client.call("fils_read", json!({ "path": "README.md" }));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(refusal(&answer).contains("did you mean `files_read`?"), "{answer}");
    });
}

#[test]
fn no_path_leads_out_of_the_root() {
    let outside = tempfile::TempDir::new().unwrap();
    let secret = outside.path().join("secret.txt");
    fs::write(&secret, "secret").unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let workspace = TempWorkspace::new()
        .file("in/a.txt", "a")
        .link("file-out", &secret)
        .link("folder-out", outside.path())
        .link("up", "..")
        .link("proc", "/proc/self/root");
    let paths = [
        format!("../{name}/secret.txt"),
        format!("in/../../{name}/secret.txt"),
        secret.display().to_string(),
        "file-out".to_owned(),
        "folder-out/secret.txt".to_owned(),
        format!("up/{name}/secret.txt"),
        format!("proc{}", secret.display()),
        "/etc/passwd".to_owned(),
        "/proc/self/environ".to_owned(),
    ];
    over_both(&workspace, |client| {
        for path in &paths {
            let folder = path.rsplit_once('/').map_or(".", |(folder, _)| folder);
            let mut calls = vec![
                ("files_read", json!({ "path": path })),
                ("files_write", json!({ "path": path, "content": "x", "overwrite": true })),
                ("files_edit", json!({ "path": path, "edits": [{ "old": "secret", "new": "x" }] })),
                ("files_copy", json!({ "source": path, "destination": "copied" })),
                ("files_search", json!({ "path": path, "text": "secret" })),
            ];
            if path.contains('/') {
                calls.extend([
                    ("files_delete", json!({ "path": path })),
                    ("files_move", json!({ "source": path, "destination": "moved" })),
                    ("files_move", json!({ "source": "in/a.txt", "destination": path })),
                    (
                        "files_copy",
                        json!({ "source": "in/a.txt", "destination": path, "overwrite": true }),
                    ),
                    ("files_mkdir", json!({ "path": format!("{path}-new") })),
                    ("files_list", json!({ "path": folder })),
                    ("files_tree", json!({ "path": folder })),
                    ("exec_run", json!({ "command": "pwd", "cwd": folder })),
                ]);
            }
            for (tool, arguments) in calls {
                let answer = client.call(tool, arguments.clone());
                assert_eq!(answer["result"]["isError"], true, "{tool} {arguments}: {answer}");
            }
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(workspace.read("in/a.txt"), "a");
    });
}

#[test]
fn a_file_removed_between_list_and_read_is_named_in_the_error() {
    let workspace = TempWorkspace::new();
    over_both(&workspace, |client| {
        fs::write(workspace.path("brief.txt"), "soon gone").unwrap();
        let listed = client.call("files_list", json!({}));
        assert!(listed.to_string().contains("brief.txt"), "{listed}");
        fs::remove_file(workspace.path("brief.txt")).unwrap();
        let message = refusal(&client.call("files_read", json!({ "path": "brief.txt" })));
        assert!(message.contains("brief.txt"), "{message}");
    });
}

#[test]
fn a_file_that_shrinks_between_two_reads_is_an_error() {
    let workspace = TempWorkspace::new();
    let lines: String = (0..1000).map(|n| format!("line {n}\n")).collect();
    over_both(&workspace, |client| {
        fs::write(workspace.path("log.txt"), &lines).unwrap();
        let first = client.call("files_read", json!({ "path": "log.txt", "max_bytes": 100 }));
        let first = structured(&first);
        assert_eq!(first["truncated"], true);
        let next = first["next"].clone();
        let offset = next["offset"].clone();
        let line = next["start_line"].clone();
        fs::write(workspace.path("log.txt"), "short\n").unwrap();
        for arguments in [
            json!({ "path": "log.txt", "offset": offset }),
            json!({ "path": "log.txt", "start_line": line }),
        ] {
            assert!(arguments.as_object().unwrap().values().all(|v| !v.is_null()), "{next}");
            let answer = client.call("files_read", arguments.clone());
            if answer["result"]["isError"] == true {
                let message = refusal(&answer);
                assert!(
                    message.contains("log.txt")
                        || message.contains("/offset")
                        || message.contains("/start_line"),
                    "{message}"
                );
            } else {
                assert_eq!(structured(&answer)["content"], "", "{arguments}: {answer}");
                assert_eq!(structured(&answer)["size"], 6, "{answer}");
            }
        }
    });
}

#[test]
fn a_full_disk_is_reported_and_the_old_content_stays() {
    let workspace = TempWorkspace::new();
    fs::create_dir(workspace.path("full")).unwrap();
    // A mount in the server's own namespace, which ends with it.
    let unshare = ["unshare", "--mount", "sh", "-c"];
    let may =
        Command::new(unshare[0]).args(&unshare[1..]).arg("mount -t tmpfs tmpfs /mnt").output();
    if !may.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: this test must mount a disk; run it as root");
        return;
    }
    let full = workspace.path("full");
    let become_it =
        format!("mount -t tmpfs -o size=256k tmpfs {} && exec \"$0\" \"$@\"", full.display());
    let wrapper = [&unshare[..], &[&become_it]].concat();
    over_both_tuned(
        &workspace,
        |launch| launch.through(&wrapper),
        |client| {
            let write = |content: &str| json!({ "path": "full/a.txt", "content": content, "overwrite": true });
            let first = client.call("files_write", write("the old content"));
            assert_eq!(structured(&first)["created"], true);
            for _again in 0..3 {
                let message = refusal(&client.call("files_write", write(&"x".repeat(300_000))));
                assert!(message.contains("full/a.txt"), "{message}");
                assert!(
                    message.contains("no space") || message.contains("disk is full"),
                    "{message}"
                );
            }
            let read = client.call("files_read", json!({ "path": "full/a.txt" }));
            assert_eq!(structured(&read)["content"], "the old content");
            // No partial file takes up space.
            let listed = client.call("files_list", json!({ "path": "full" }));
            assert_eq!(structured(&listed)["entries"].as_array().unwrap().len(), 1, "{listed}");
            let fits = client.call("files_write", write(&"y".repeat(100_000)));
            assert_eq!(structured(&fits)["size"], 100_000);
        },
    );
}
