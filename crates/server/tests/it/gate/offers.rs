//! Which tools are offered, and that no other can be called.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Client, Launch, MODERN, Workspace, over_both_tuned, over_both_with, refusal, structured,
};

const READS: [&str; 25] = [
    "exec_output",
    "ci_detect",
    "git_blame",
    "git_branches",
    "git_current_branch",
    "git_diff",
    "git_log",
    "git_show",
    "git_status",
    "files_exists",
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

/// Exactly `offered` is listed; each of the others is as unknown as what never was.
fn check(tune: impl Fn(Launch) -> Launch, offered: &[&[&str]]) {
    let offered: BTreeSet<&str> = offered.iter().copied().flatten().copied().collect();
    let all = [&READS[..], &ADDS, &CHANGES, &RUNS].concat();
    let workspace = Workspace::new();
    over_both_tuned(&workspace, tune, |client| {
        let tools = client.tools();
        let listed: BTreeSet<&str> =
            tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(listed, offered);
        for hidden in all.iter().filter(|name| !offered.contains(**name)) {
            let answer = client.call(hidden, arguments(hidden));
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(refusal(&answer).contains(&format!("no tool is named `{hidden}`")), "{answer}");
            let hint = format!("did you mean `{hidden}`");
            assert!(!refusal(&answer).contains(&hint), "{answer}");
        }
        assert_eq!(workspace.read("README.md"), Workspace::README);
        assert_eq!(std::fs::read_dir(workspace.root()).unwrap().count(), 1);
    });
}

/// Arguments that would leave a trace.
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
fn read_only_offers_nothing_that_changes_anything() {
    check(|launch| launch.arg("--read-only"), &[&READS]);
    // Whatever else the settings say.
    check(|launch| launch.set("tools_effects", "runs").arg("--read-only"), &[&READS]);
}

#[test]
fn the_most_a_tool_may_do_decides() {
    check(|launch| launch.set("tools_effects", "reads"), &[&READS]);
    check(|launch| launch.set("tools_effects", "adds"), &[&READS, &ADDS]);
    check(|launch| launch.set("tools_effects", "changes"), &[&READS, &ADDS, &CHANGES]);
}

#[test]
fn what_is_denied_is_not_offered_whatever_is_allowed() {
    check(
        |launch| {
            launch.set(
                "tools_deny",
                "exec.*, ci.[!d]*, ci.diagnostics, git.*, files.delete, jobs.start",
            )
        },
        &[
            &["ci_detect"],
            &READS[9..],
            &ADDS,
            &["files_copy", "files_edit", "files_move", "files_write", "jobs_cancel"],
            &["search_upsert"],
        ],
    );
    let both =
        |launch: Launch| launch.set("tools_allow", "files.*").set("tools_deny", "files.[!r]*");
    check(both, &[&["files_read"]]);
}

#[test]
fn whoever_is_to_run_nothing_is_offered_nothing_that_runs_what_it_says() {
    let left = [&READS[1..], &ADDS, &CHANGES, &["ci_diagnostics"]];
    check(|launch| launch.set("tools_deny", "exec.*"), &left);
    // What is allowed is allowed by its own name.
    let both = |launch: Launch| launch.set("tools_allow", "ci.*").set("tools_deny", "exec_run");
    check(both, &[&["ci_detect", "ci_diagnostics"]]);
    let ci = |launch: Launch| launch.set("tools_allow", "ci.run,files.read");
    check(ci, &[&["ci_run", "files_read"]]);
}

#[test]
fn who_is_asked_before_programs_run_is_asked_before_command_lines_run() {
    let workspace = Workspace::new().file("Makefile", "build:\n\ttouch ran\n");
    over_both_with(&workspace, &[("tools_confirm", "exec.run")], |client| {
        for (tool, input) in [("ci_run", arguments("ci_run")), ("ci_build", json!({}))] {
            let said = refusal(&client.call(tool, input));
            assert!(said.contains(&format!("`{}`", tool.replacen('_', ".", 1))), "{said}");
            assert!(said.contains("tools.confirm"), "{said}");
        }
        assert!(!workspace.root().join("ran").exists());
    });
}

#[test]
fn only_what_is_allowed_is_offered() {
    check(
        |launch| launch.set("tools_allow", "files.read,exec.run"),
        &[&["files_read", "exec_run"]],
    );
}

#[test]
fn what_is_not_offered_is_not_started_as_a_job_either() {
    let workspace = Workspace::new();
    over_both_with(&workspace, &[("tools_deny", "exec.*")], |client| {
        for tool in ["exec_run", "ci_run"] {
            let start = json!({ "tool": tool, "arguments": arguments(tool) });
            let said = refusal(&client.call("jobs_start", start));
            assert!(said.contains(&format!("no tool is named `{tool}`")), "{said}");
        }
        assert_eq!(structured(&client.call("jobs_list", json!({})))["jobs"], json!([]));
    });
    let served = Launch::over(&workspace).arg("--read-only").served();
    for mode in ["sync", "async"] {
        let arguments = arguments("exec_run");
        let params = json!({ "name": "exec-run", "arguments": arguments, "mode": mode });
        assert_eq!(served.rpc("tools/call", params).json()["error"]["code"], -32602, "{mode}");
    }
    assert_eq!(std::fs::read_dir(workspace.root()).unwrap().count(), 1);
}

#[test]
fn a_tool_says_what_it_does() {
    let mut client = Client::stdio(Launch::over(&Workspace::new()), MODERN);
    for tool in client.tools() {
        let name = tool["name"].as_str().unwrap();
        let hints = &tool["annotations"];
        assert_eq!(hints["readOnlyHint"], READS.contains(&name), "{tool}");
        let destructive = CHANGES.contains(&name) || RUNS.contains(&name);
        assert_eq!(hints["destructiveHint"], destructive, "{tool}");
        assert!(tool["description"].as_str().unwrap().len() > 40, "{tool}");
    }
}

#[test]
fn a_program_that_is_not_allowed_is_not_run() {
    over_both_with(&Workspace::new(), &[("exec_allow", "printf")], |client| {
        let said =
            refusal(&client.call("exec_run", json!({ "command": "touch", "args": ["ran"] })));
        assert!(said.contains("`touch`") && said.contains("printf"), "{said}");
        let script = json!({ "command": "printf x", "shell": true });
        assert!(refusal(&client.call("exec_run", script)).contains("`sh`"));
        let printf = client.call("exec_run", json!({ "command": "printf", "args": ["x"] }));
        assert_eq!(printf["result"]["structuredContent"]["stdout"], "x");
    });
}

#[test]
fn a_program_sees_nothing_of_the_servers_environment_it_was_not_given() {
    let settings = [("exec_env_keep", "HOME"), ("root", "/nowhere")];
    over_both_with(&Workspace::new(), &settings, |client| {
        let answer = client.call("exec_run", json!({ "command": "env" }));
        let stdout = answer["result"]["structuredContent"]["stdout"].as_str().unwrap().to_owned();
        let names: BTreeSet<&str> =
            stdout.lines().filter_map(|line| line.split('=').next()).collect();
        assert!(names.is_subset(&["GIT_TERMINAL_PROMPT", "HOME", "PATH"].into()), "{stdout}");
    });
}

#[test]
fn the_configuration_in_force_cannot_be_written_whatever_its_name() {
    let workspace = Workspace::new().file("my.toml", "[limits]\ncalls = 5\n");
    let file = workspace.path("my.toml");
    let mut client = Client::stdio(Launch::over(&workspace).arg("--config").arg(&file), MODERN);
    for path in ["my.toml", "toolgate.toml"] {
        let ask = json!({ "path": path, "content": "", "overwrite": true });
        let answer = client.call("files_write", ask);
        assert!(refusal(&answer).contains("protected"), "{path}: {answer}");
    }
}
