//! Tests of the offered tools, and that no other tool can be called.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestMcpClient, over_both_tuned, over_both_with,
    refusal, structured, text,
};

const READS: [&str; 23] = [
    "exec_output",
    "ci_detect",
    "git_blame",
    "git_branches",
    "git_diff",
    "git_log",
    "git_show",
    "git_status",
    "files_info",
    "files_list",
    "files_read",
    "files_search",
    "files_tree",
    "jobs_get",
    "jobs_list",
    "jobs_output",
    "docs_load_fetch",
    "docs_render",
    "docs_search",
    "search_semantic",
    "search_text",
    "search_names",
    "search_index_status",
];
const ADDS: [&str; 1] = ["files_mkdir"];
const CHANGES: [&str; 14] = [
    "git_add",
    "git_checkout",
    "git_commit",
    "git_restore",
    "git_stash",
    "git_unstage",
    "files_copy",
    "files_delete",
    "files_edit",
    "files_move",
    "files_write",
    "jobs_cancel",
    "jobs_start",
    "search_upsert",
];
const RUNS: [&str; 7] =
    ["ci_build", "ci_diagnostics", "ci_lint", "ci_restore", "ci_run", "ci_test", "exec_run"];

/// Checks that the server lists exactly the tools in `offered`, and that no other tool can be
/// called. `tune` changes the start options of the server.
fn check(tune: impl Fn(ServerLaunchOptions) -> ServerLaunchOptions, offered: &[&[&str]]) {
    let offered: BTreeSet<&str> = offered.iter().copied().flatten().copied().collect();
    let all = [&READS[..], &ADDS, &CHANGES, &RUNS].concat();
    let workspace = TempWorkspace::new();
    over_both_tuned(&workspace, tune, |client| {
        let tools = client.tools();
        let listed: BTreeSet<&str> =
            tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(listed, offered);
        for hidden in all.iter().filter(|name| !offered.contains(**name)) {
            let answer = client.call(hidden, arguments(hidden));
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            let expected = format!("`{hidden}` is not available: ");
            assert!(refusal(&answer).contains(&expected), "{answer}");
            assert!(!refusal(&answer).contains("did you mean"), "{answer}");
        }
        assert_eq!(workspace.read("README.md"), TempWorkspace::README);
        assert_eq!(std::fs::read_dir(workspace.root()).unwrap().count(), 1);
    });
}

/// Returns arguments with which a call of `tool` would change the workspace.
fn arguments(tool: &str) -> Value {
    match tool {
        "exec_run" | "ci_run" => json!({ "command": "touch", "args": ["ran"] }),
        "files_mkdir" => json!({ "path": "made" }),
        "files_write" => json!({ "path": "README.md", "content": "", "overwrite": true }),
        "files_edit" => {
            json!({ "path": "README.md", "edits": [{ "old": "small", "new": "gone" }] })
        }
        "files_move" | "files_copy" => json!({ "source": "README.md", "destination": "other" }),
        _ => json!({ "path": "README.md" }),
    }
}

#[test]
fn everything_is_offered_by_default() {
    check(|launch| launch, &[&READS, &ADDS, &CHANGES, &RUNS]);
}

#[test]
fn a_read_only_server_offers_only_reading_tools() {
    check(|launch| launch.arg("--read-only"), &[&READS]);
    // Other settings do not override it.
    check(|launch| launch.set("tools_effects", "runs").arg("--read-only"), &[&READS]);
}

#[test]
fn tools_effects_limits_the_offered_tools() {
    check(|launch| launch.set("tools_effects", "reads"), &[&READS]);
    check(|launch| launch.set("tools_effects", "adds"), &[&READS, &ADDS]);
    check(|launch| launch.set("tools_effects", "changes"), &[&READS, &ADDS, &CHANGES]);
}

#[test]
fn a_denied_tool_is_not_offered_even_if_it_is_allowed() {
    check(
        |launch| {
            launch.set(
                "tools_deny",
                "exec.*, ci.[!d]*, ci.diagnostics, git.*, files.delete, jobs.start",
            )
        },
        &[
            &["ci_detect"],
            &READS[8..],
            &ADDS,
            &["files_copy", "files_edit", "files_move", "files_write", "jobs_cancel"],
            &["search_upsert"],
        ],
    );
    let both = |launch: ServerLaunchOptions| {
        launch.set("tools_allow", "files.*").set("tools_deny", "files.[!r]*")
    };
    check(both, &[&["files_read"]]);
}

#[test]
fn denying_exec_denies_every_tool_that_runs_given_commands() {
    let left = [&READS[1..], &ADDS, &CHANGES, &["ci_diagnostics"]];
    check(|launch| launch.set("tools_deny", "exec.*"), &left);
    // A tool is allowed by its own name only.
    let both = |launch: ServerLaunchOptions| {
        launch.set("tools_allow", "ci.*").set("tools_deny", "exec_run")
    };
    check(both, &[&["ci_detect", "ci_diagnostics"]]);
    let ci = |launch: ServerLaunchOptions| launch.set("tools_allow", "ci.run,files.read");
    check(ci, &[&["ci_run", "files_read"]]);
}

#[test]
fn confirming_exec_confirms_every_tool_that_runs_command_lines() {
    let workspace = TempWorkspace::new().file("Makefile", "build:\n\ttouch ran\n");
    over_both_with(&workspace, &[("tools_confirm", "exec.run")], |client| {
        for (tool, input) in [("ci_run", arguments("ci_run")), ("ci_build", json!({}))] {
            let message = refusal(&client.call(tool, input));
            assert!(message.contains(&format!("`{}`", tool.replacen('_', ".", 1))), "{message}");
            assert!(message.contains("tools.confirm"), "{message}");
        }
        assert!(!workspace.root().join("ran").exists());
    });
}

#[test]
fn only_allowed_tools_are_offered() {
    check(
        |launch| launch.set("tools_allow", "files.read,exec.run"),
        &[&["files_read", "exec_run"]],
    );
}

#[test]
fn tools_are_offered_by_the_names_of_sets_and_toolsets() {
    check(|launch| launch.arg("--tools").arg("all"), &[&READS, &ADDS, &CHANGES, &RUNS]);
    let named = |launch: ServerLaunchOptions| launch.arg("--tools").arg("docs,exec_run");
    check(named, &[&["docs_load_fetch", "docs_render", "docs_search", "exec_run"]]);
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&TempWorkspace::new())
            .set("tools_allow", "core")
            .set("tools_deny", "git.*"),
        MODERN,
    );
    let tools = client.tools();
    let names: Vec<_> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.contains(&"files_edit") && names.contains(&"exec_run"), "{names:?}");
    assert!(!names.contains(&"git_status") && !names.contains(&"files_copy"), "{names:?}");
}

#[test]
fn a_merged_tool_is_not_listed_and_still_called_by_its_old_name() {
    over_both_tuned(
        &TempWorkspace::new(),
        |launch| launch,
        |client| {
            let answer = client.call("files_exists", json!({ "path": "README.md" }));
            assert_eq!(structured(&answer)["exists"], true, "{answer}");
            assert!(client.tools().iter().all(|tool| tool["name"] != "files_exists"));
        },
    );
}

#[test]
fn a_tool_that_is_not_offered_does_not_start_as_a_job() {
    let workspace = TempWorkspace::new();
    over_both_with(&workspace, &[("tools_deny", "exec.*")], |client| {
        for tool in ["exec_run", "ci_run"] {
            let start = json!({ "tool": tool, "arguments": arguments(tool) });
            let message = refusal(&client.call("jobs_start", start));
            let expected = format!("`{tool}` is not available: the rule `tools.deny: exec.*`");
            assert!(message.contains(&expected), "{message}");
        }
        assert_eq!(structured(&client.call("jobs_list", json!({})))["jobs"], json!([]));
    });
    let served = ServerLaunchOptions::over(&workspace).arg("--read-only").served();
    for mode in ["sync", "async"] {
        let arguments = arguments("exec_run");
        let params = json!({ "name": "exec-run", "arguments": arguments, "mode": mode });
        assert_eq!(served.rpc("tools/call", params).json()["error"]["code"], -32602, "{mode}");
    }
    assert_eq!(std::fs::read_dir(workspace.root()).unwrap().count(), 1);
}

#[test]
fn each_tool_has_a_description_and_the_hints_that_clients_do_not_assume() {
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()), MODERN);
    for tool in client.tools() {
        let name = tool["name"].as_str().unwrap();
        let hints = &tool["annotations"];
        let is_read_only = hints["readOnlyHint"] == true;
        assert_eq!(is_read_only, READS.contains(&name), "{tool}");
        let is_destructive = !is_read_only && hints["destructiveHint"] != false;
        let expected = CHANGES.contains(&name) || RUNS.contains(&name);
        assert_eq!(is_destructive, expected, "{tool}");
        assert!(tool["description"].as_str().unwrap().len() > 25, "{tool}");
    }
}

#[test]
fn a_program_outside_exec_allow_is_not_run() {
    over_both_with(&TempWorkspace::new(), &[("exec_allow", "printf")], |client| {
        let message =
            refusal(&client.call("exec_run", json!({ "command": "touch", "args": ["ran"] })));
        assert!(message.contains("`touch`") && message.contains("printf"), "{message}");
        let script = json!({ "command": "printf x", "shell": true });
        assert!(refusal(&client.call("exec_run", script)).contains("`sh`"));
        let printf = client.call("exec_run", json!({ "command": "printf", "args": ["x"] }));
        assert_eq!(printf["result"]["structuredContent"]["stdout"], "x");
    });
}

#[test]
fn a_program_sees_only_the_environment_that_it_was_given() {
    let settings = [("exec_env_keep", "HOME"), ("root", "/nowhere")];
    over_both_with(&TempWorkspace::new(), &settings, |client| {
        let answer = client.call("exec_run", json!({ "command": "env" }));
        let stdout = answer["result"]["structuredContent"]["stdout"].as_str().unwrap().to_owned();
        let names: BTreeSet<&str> =
            stdout.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.is_subset(&["GIT_TERMINAL_PROMPT", "HOME", "PATH"].into()), "{stdout}");
    });
}

#[test]
fn the_active_configuration_cannot_be_written_under_any_name() {
    let workspace = TempWorkspace::new().file("my.toml", "[limits]\ncalls = 5\n");
    let file = workspace.path("my.toml");
    let mut client = TestMcpClient::stdio(
        ServerLaunchOptions::over(&workspace).arg("--config").arg(&file),
        MODERN,
    );
    for path in ["my.toml", "toolgate.toml"] {
        let ask = json!({ "path": path, "content": "", "overwrite": true });
        let answer = client.call("files_write", ask);
        assert!(refusal(&answer).contains("protected"), "{path}: {answer}");
    }
}

#[test]
fn a_cut_output_names_exec_output_only_if_the_caller_can_call_it() {
    let workspace = TempWorkspace::new();
    let input = json!({ "command": "seq", "args": ["1", "1000"], "max_output_bytes": 20 });
    for (denied, expected, other) in [
        ("exec.output", "set `max_output_bytes`", "exec_output"),
        ("git.add", "exec_output: output_id", "set `max_output_bytes`"),
    ] {
        let launch = ServerLaunchOptions::over(&workspace).set("tools_deny", denied);
        let mut client = TestMcpClient::stdio(launch, MODERN);
        let text = text(&client.call("exec_run", input.clone()));
        assert!(text.contains(expected) && !text.contains(other), "{denied}: {text}");
    }
}
