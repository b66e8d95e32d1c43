//! Tests of commands that print information: `tools`, `check-config`, `policy`, `doctor`, `login`,
//! `completions` and `--help`.

use std::fs::{self, Permissions};
use std::io::{Read, Write, pipe};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{TestCommandLine, run};
use crate::support::{TempWorkspace, binary, keys_of};

#[test]
fn tools_are_listed_one_per_line() {
    let done = run(TempWorkspace::new().root(), &["tools"]);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines.len() >= 14, "{done:?}");
    assert!(lines.iter().all(|line| line.split_whitespace().count() >= 4), "{done:?}");
    assert!(lines.iter().any(|line| line.starts_with("files_read ")), "{done:?}");
    let tokens = run(TempWorkspace::new().root(), &["tools", "--tokens"]);
    let all = tokens.out.lines().last().unwrap();
    let sum: f64 = all.split(' ').next_back().unwrap().parse().unwrap();
    assert!(all.starts_with("all ") && sum <= 5_000.0, "{all}");
    let why = run(TempWorkspace::new().root(), &["tools", "--why", "make a commit"]);
    assert!(why.code == 0 && why.out.lines().count() <= 10, "{why:?}");
    assert!(why.out.contains(" git_commit ") && why.out.contains("commit "), "{why:?}");
    let none = run(TempWorkspace::new().root(), &["tools", "--why", "zzzqqq"]);
    assert!(none.code != 0 && none.err.contains("no tool contains a word"), "{none:?}");
    let reads = run(TempWorkspace::new().root(), &["tools", "--read-only"]);
    assert!(reads.out.lines().all(|line| line.contains(" reads ")), "{reads:?}");
}

#[test]
fn one_tool_is_shown_with_all_its_arguments() {
    for name in ["files_edit", "files.edit"] {
        let done = run(TempWorkspace::new().root(), &["tools", name]);
        assert_eq!(done.code, 0);
        let parts = [
            "files_edit",
            "path: string (optional)",
            "edits[].old: string",
            "if_match:",
            "dry_run: boolean (default false)",
        ];
        for part in parts {
            assert!(done.out.contains(part), "{part}: {done:?}");
        }
    }
}

#[test]
fn json_prints_all_details_of_tools() {
    let workspace = TempWorkspace::new();
    let all = run(workspace.root(), &["tools", "--json"]);
    let all: Vec<Value> = serde_json::from_str(&all.out).unwrap();
    assert!(all.len() >= 14);
    for tool in &all {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert!(tool["id"].is_string() && tool["description"].is_string(), "{tool}");
    }
    let one = run(workspace.root(), &["tools", "files_edit", "--json"]);
    let one: Vec<Value> = serde_json::from_str(&one.out).unwrap();
    assert_eq!(one.len(), 1);
    assert!(all.contains(&one[0]));
}

#[test]
fn the_printed_configuration_can_be_read_again() {
    let workspace = TempWorkspace::new();
    let first = run(workspace.root(), &["check-config"]);
    assert_eq!(first.code, 0, "{first:?}");
    assert!(first.err.contains("no toolgate.toml"), "{first:?}");
    workspace.put("toolgate.toml", &first.out);
    let second = run(workspace.root(), &["check-config"]);
    assert_eq!((second.code, &second.out), (0, &first.out));
    assert!(second.err.contains("toolgate.toml is valid"), "{second:?}");
}

#[test]
fn literal_secrets_of_upstreams_are_redacted_from_the_printed_configuration() {
    let settings = r#"
        [upstream.a]
        url = "https://ann:s3cret-1@a.example/mcp?token=s3cret-2&v=1"
        headers = { Authorization = "Bearer s3cret-3", Cookie = "s3cret-4", X-Team = "tea" }
        [upstream.b]
        command = ["b", "--api-key", "s3cret-5", "--level", "debug"]
        env = { API_KEY = "s3cret-6-${X}", B_TOKEN = "${TOKEN}" }
        [upstream.c]
        url = "https://c.example/mcp"
        oauth = { issuer = "https://c.example", client_id = "me", client_secret = "s3cret-7" }
        [upstream.d]
        url = "https://d.example/mcp"
        oauth = { issuer = "https://d.example", client_id = "me", client_key = "s3cret-8" }
    "#;
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let done = run(workspace.root(), &["check-config"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!done.out.contains("s3cret"), "{done:?}");
    for part in ["tea", "${TOKEN}", "v=1", "debug", "https://ann:[redacted]@a.example/mcp"] {
        assert!(done.out.contains(part), "{part}: {done:?}");
    }
}

#[test]
fn two_configurations_are_compared_before_a_server_reads_the_second() {
    let workspace = TempWorkspace::new().file("toolgate.toml", "[limits]\ncalls = 3\n").file(
        "next.toml",
        "[limits]\ncalls = 4\n[jobs]\nto = \"off\"\n[tools]\ndeny = [\"exec.*\"]\n",
    );
    let compare = |next| {
        let words = ["check-config", "--config", next, "--against", "toolgate.toml"];
        let done = run(workspace.root(), &words);
        assert_eq!(done.code, 0, "{done:?}");
        done.out
    };
    let changes = compare("next.toml");
    for line in [
        "limits.calls: applies at the next reload\n",
        "tools.deny: applies at the next reload\n",
        "jobs.to: needs a restart\n",
        "exec.run: this tool is removed\n",
    ] {
        assert!(changes.contains(line), "{line}: {changes}");
    }
    assert_eq!(compare("toolgate.toml"), "nothing changes\n");
}

#[test]
fn the_environment_overrides_the_file_and_config_names_another() {
    let workspace =
        TempWorkspace::new().file("toolgate.toml", "[limits]\ncalls = 3\nprograms = 4\n");
    let line =
        TestCommandLine::new(workspace.root(), &["check-config"]).env("TOOLGATE_LIMITS_CALLS", "9");
    let done = line.run();
    assert!(done.out.contains("calls = 9\n") && done.out.contains("programs = 4\n"), "{done:?}");
    // Another file replaces the one in the folder.
    let workspace = workspace.file("other.toml", "[limits]\ncalls = 5\n");
    let done = run(workspace.root(), &["check-config", "--config", "other.toml"]);
    assert!(done.out.contains("calls = 5\n") && done.out.contains("programs = 16\n"), "{done:?}");
}

#[test]
fn a_public_address_is_refused_by_serve_and_check_config_only() {
    let text = "[server]\nlisten = \"0.0.0.0:80\"\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", text);
    for args in [&["check-config"][..], &["serve"]] {
        let done = run(workspace.root(), args);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("server.listen") && done.err.contains("credential"), "{done:?}");
    }
    assert_eq!(run(workspace.root(), &["tools"]).code, 0);
}

#[test]
fn a_pattern_of_tools_works_in_either_spelling_and_must_match_a_tool() {
    let workspace = TempWorkspace::new();
    for rule in ["exec.*", "exec_*", "exec_run,exec.output"] {
        let line =
            TestCommandLine::new(workspace.root(), &["tools"]).env("TOOLGATE_TOOLS_DENY", rule);
        let done = line.run();
        assert!(done.code == 0 && !done.out.contains("exec"), "{rule}: {done:?}");
    }
    for rule in ["audit.read", "audit.*"] {
        let line = TestCommandLine::new(workspace.root(), &["check-config"])
            .env("TOOLGATE_TOOLS_DENY", rule);
        let done = line.run();
        assert_eq!(done.code, 0, "audit.read guards `audit://tail`: {rule}: {done:?}");
    }
    for (rule, nearest) in
        [("exce.*", "exec"), ("fils_read", "files.read"), ("audit_raed", "audit")]
    {
        let line = TestCommandLine::new(workspace.root(), &["check-config"])
            .env("TOOLGATE_TOOLS_DENY", rule);
        let done = line.run();
        let names_both = done.err.contains(rule) && done.err.contains(nearest);
        assert!(done.code == 2 && names_both, "{done:?}");
    }
}

#[test]
fn a_sandbox_rule_for_an_unknown_tool_is_refused() {
    let rule =
        |tools: &str| format!("[[sandbox.for]]\ntools = \"{tools}\"\nprofile = \"read-only\"\n");
    let workspace = TempWorkspace::new().file("toolgate.toml", rule("exec.*"));
    assert_eq!(run(workspace.root(), &["check-config"]).code, 0);
    let workspace = workspace.file("toolgate.toml", rule("exce.*"));
    let done = run(workspace.root(), &["check-config"]);
    assert!(done.code == 2 && done.err.contains("sandbox.for"), "{done:?}");
    assert!(done.err.contains("exce.*"), "{done:?}");
}

#[test]
fn policy_explain_prints_the_decision_and_returns_its_exit_code() {
    let rules = "[[policy.rules]]\nname = \"token-reads\"\neffect = \"deny\"\n\
                 callers = [\"okta:*\"]\neffects = [\"runs\"]\n\
                 [[policy.rules]]\nname = \"no-keys\"\neffect = \"confirm\"\n\
                 when = \"caller.kind == 'key'\"\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", rules);
    for (caller, tool, code, expected) in [
        ("okta:ada", "exec_run", 3, "denied by token-reads"),
        ("okta:ada", "files_read", 0, "allowed"),
        ("ada", "files_read", 4, "confirmation required by no-keys"),
        ("local", "exec_run", 0, "allowed"),
    ] {
        let input = if tool == "exec_run" { r#"{"command":"ls"}"# } else { r#"{"path":"a"}"# };
        let done = run(workspace.root(), &["policy", "explain", caller, tool, input]);
        assert_eq!(done.code, code, "{caller} {tool}: {done:?}");
        assert!(done.out.contains(expected), "{caller} {tool}: {done:?}");
    }
    let unknown = run(workspace.root(), &["policy", "explain", "ada", "files_raed"]);
    assert!(unknown.code == 2 && unknown.err.contains("files_raed"), "{unknown:?}");
}

#[test]
fn policy_explain_leaves_out_a_rule_that_the_settings_do_not_have() {
    for (settings, has_rule) in [("", false), ("[tools]\nallow = [\"files.*\"]\n", true)] {
        let workspace = TempWorkspace::new().file("toolgate.toml", settings);
        let explain = ["policy", "explain", "local", "files_read", r#"{"path":"a"}"#];
        let done = run(workspace.root(), &explain);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(done.out.contains("tools.allow"), has_rule, "{done:?}");
    }
}

#[test]
fn policy_explain_names_missing_arguments_and_unknown_keys() {
    let rules = "[[policy.rules]]\nname = \"no-reads\"\neffect = \"deny\"\n\
                 tools = [\"files.list\", \"files.delete\"]\n";
    let settings = format!("{}{rules}", keys_of(&["ada"]));
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let done = run(workspace.root(), &["policy", "explain", "ada", "files_delete"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(done.out.contains("denied by no-reads"), "{done:?}");
    assert!(
        done.err.contains("the call would be refused") && done.err.contains("path"),
        "{done:?}"
    );
    assert!(!done.err.contains("no valid key"), "{done:?}");
    let done = run(workspace.root(), &["policy", "explain", "grase", "files_delete"]);
    assert_eq!(done.code, 3, "{done:?}");
    assert!(done.err.contains("no valid key has the name `grase`"), "{done:?}");
    assert!(done.err.contains("`ada`"), "{done:?}");
}

#[test]
fn a_tool_that_the_policy_hides_is_reported_with_the_caller_and_the_cause() {
    let rule = "[[policy.rules]]\nname = \"readers\"\neffect = \"allow\"\n\
                roles = [\"reader\"]\neffects = [\"reads\"]\n";
    let settings =
        format!("{}roles = [\"reader\"]\n[policy]\ndefault = \"deny\"\n{rule}", keys_of(&["ada"]));
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let explain = "`toolgate policy explain local";
    let listed = run(workspace.root(), &["tools"]);
    assert_eq!(listed.code, 2, "{listed:?}");
    assert!(listed.err.contains("caller `local`") && listed.err.contains(explain), "{listed:?}");
    assert!(!listed.err.contains("tools.deny"), "{listed:?}");
    let called = run(workspace.root(), &["call", "files_read", r#"{"path":"README.md"}"#]);
    assert_eq!(called.code, 1, "{called:?}");
    assert!(called.err.contains("caller `local`") && called.err.contains(explain), "{called:?}");
}

#[test]
fn policy_explain_uses_the_roles_of_the_key_unless_a_role_is_given() {
    let rules = "[[policy.rules]]\nname = \"no-guests\"\neffect = \"deny\"\n\
                 roles = [\"guest\"]\n";
    let settings = format!("{}roles = [\"guest\"]\n{rules}", keys_of(&["ada"]));
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let home = TempDir::with_prefix("toolgate-home-").unwrap();
    let toolgate =
        |args: &[&str]| TestCommandLine::new(workspace.root(), args).env("HOME", home.path()).run();
    let created = toolgate(&["key", "new", "bob", "--role", "guest"]);
    assert_eq!(created.code, 0, "{created:?}");
    for (caller, more, code) in [
        ("ada", &[][..], 3),
        ("bob", &[], 3),
        ("carol", &[], 0),
        ("ada", &["--role", "builder"], 0),
        ("bob", &["--role", "builder"], 0),
        ("carol", &["--role", "guest"], 3),
    ] {
        let explain = ["policy", "explain", caller, "files_read", r#"{"path":"a"}"#];
        let done = toolgate(&[&explain[..], more].concat());
        assert_eq!(done.code, code, "{caller} {more:?}: {done:?}");
    }
}

#[test]
fn a_new_key_with_a_role_that_no_rule_names_gets_a_warning() {
    let rules = "[[policy.rules]]\nname = \"r\"\neffect = \"deny\"\nroles = [\"guest\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", rules);
    let home = TempDir::with_prefix("toolgate-home-").unwrap();
    for (role, is_known) in [("guest", true), ("admin", true), ("gest", false)] {
        let args = ["key", "new", "bob", "--role", role];
        let created = TestCommandLine::new(workspace.root(), &args).env("HOME", home.path()).run();
        assert_eq!(created.code, 0, "{created:?}");
        let warning = format!("names the role `{role}`; the roles there are guest");
        assert_eq!(!created.err.contains(&warning), is_known, "{role}: {created:?}");
    }
}

#[test]
fn an_invalid_configuration_is_refused_with_its_line_and_name() {
    let cases = [
        ("[server]\nlisten_at = 1\n", &["line 2", "listen_at"][..]),
        ("[sever]\n", &["line 1", "sever"]),
        ("[limits]\n\ncalls = \"many\"\n", &["line 3", "calls"]),
        ("[limits]\ncalls = -1\n", &["line 2"]),
        ("[limits]\ncalls = 0\n", &["limits.calls"]),
        ("[limits\n", &["line 1"]),
        ("[tools]\neffects = \"all\"\n", &["line 2", "reads"]),
        ("[tools]\nallow = [\"files.[\"]\n", &["files.["]),
        ("[server]\nlisten = \"localhost\"\n", &["line 2"]),
        ("[log]\nlevel = \"loud=very\"\n", &["log.level", "loud=very"]),
    ];
    for (text, parts) in cases {
        let workspace = TempWorkspace::new().file("toolgate.toml", text);
        for args in [&["check-config"][..], &["stdio"], &["serve"], &["tools"]] {
            let done = run(workspace.root(), args);
            assert_eq!((done.code, done.out.as_str()), (2, ""), "{text:?}: {done:?}");
            for part in parts {
                assert!(done.err.contains(part), "{part}: {done:?}");
            }
        }
    }
}

#[test]
fn an_invalid_variable_is_refused_by_name() {
    let workspace = TempWorkspace::new();
    let with = |name: &str, value: &str| {
        TestCommandLine::new(workspace.root(), &["check-config"]).env(name, value).run()
    };
    let done = with("TOOLGATE_LIMITS_CALLS", "many");
    assert_eq!(done.code, 2);
    assert!(done.err.contains("TOOLGATE_LIMITS_CALLS is `many`"), "{done:?}");
    let done = with("TOOLGATE_TOOLS_EFFECTS", "all");
    assert_eq!(done.code, 2);
    assert!(done.err.contains("TOOLGATE_TOOLS_EFFECTS") && done.err.contains("reads"), "{done:?}");
    let done = with("TOOLGATE_LIMIT_CALLS", "9");
    assert_eq!(done.code, 0);
    assert!(done.err.contains("did you mean TOOLGATE_LIMITS_CALLS?"), "{done:?}");
    let done = with("TOOLGATE_CONFIG", "none.toml");
    assert_eq!(done.code, 2);
    assert!(done.err.contains("none.toml"), "{done:?}");
}

#[test]
fn bash_accepts_the_completion_script() {
    let done = run(TempWorkspace::new().root(), &["completions", "bash"]);
    assert_eq!(done.code, 0);
    assert!(done.out.contains("check-config"), "{done:?}");
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(done.out.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert_eq!(run(TempWorkspace::new().root(), &["completions", shell]).code, 0);
    }
}

const COMMANDS: [&str; 6] = ["serve", "stdio", "call", "tools", "check-config", "completions"];

/// Returns the toolgate commands below `Example:` or `Examples:` in the help text `help`.
fn examples(help: &str) -> Vec<&str> {
    let (_, examples) = help.split_once("\nExample").expect("an example");
    examples.lines().map(str::trim).filter(|line| line.starts_with("toolgate ")).collect()
}

#[test]
fn the_help_of_every_command_has_an_example() {
    let workspace = TempWorkspace::new();
    let done = run(workspace.root(), &["--help"]);
    assert_eq!(done.code, 0);
    assert!(!examples(&done.out).is_empty());
    for command in COMMANDS {
        assert!(done.out.contains(&format!("\n  {command} ")), "{command}: {}", done.out);
        let help = run(workspace.root(), &[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.out.contains("toolgate"), "{help:?}");
        assert!(help.out.contains("\nExample"), "{help:?}");
    }
}

#[test]
fn every_option_in_an_example_exists() {
    let workspace = TempWorkspace::new();
    for command in [&[][..], &["serve"], &["call"], &["tools"], &["check-config"], &["completions"]]
    {
        let help = run(workspace.root(), &[command, &["--help"]].concat());
        for example in examples(&help.out) {
            // An explanation follows after two blanks.
            let line = example.split("  ").next().unwrap();
            let word = line.split(' ').nth(1).unwrap();
            let known = run(workspace.root(), &[word, "--help"]).out;
            for option in line.split(' ').filter(|word| word.starts_with("--")) {
                let listed =
                    known.split_whitespace().any(|word| word.trim_end_matches(',') == option);
                assert!(listed, "`{line}`: `toolgate {word}` has no option {option}");
            }
        }
    }
}

#[test]
fn a_reader_that_closes_early_is_not_an_error() {
    let workspace = TempWorkspace::new().file("long.txt", "line\n".repeat(10_000));
    for args in [
        &["tools"][..],
        &["tools", "--json"],
        &["tools", "files_edit"],
        &["call", "files_read", r#"{"path":"long.txt"}"#],
        &["call", "files_read", r#"{"path":"long.txt"}"#, "--json"],
        &["check-config"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
        &["help", "call"],
    ] {
        let (closed, out) = pipe().unwrap();
        drop(closed);
        let (mut stderr, err) = pipe().unwrap();
        let mut line = TestCommandLine::new(workspace.root(), args);
        let mut child = line.command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        drop(line);
        let mut err = String::new();
        stderr.read_to_string(&mut err).unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(0), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
}

#[test]
fn a_pipe_to_head_is_not_an_error() {
    let script = format!(
        "set -o pipefail; {} tools --json | head -1; {} completions zsh | head -1",
        binary().display(),
        binary().display()
    );
    let workspace = TempWorkspace::new();
    let mut bash = Command::new("bash");
    let done = bash.args(["-c", &script]).current_dir(workspace.root()).output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !err.contains("panicked"), "{err}");
}

#[test]
fn an_invalid_command_line_is_refused_with_its_usage() {
    for args in [&["sreve"][..], &["call"], &["serve", "--nonsense"], &["completions", "tcsh"], &[]]
    {
        let done = run(TempWorkspace::new().root(), args);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {done:?}");
        assert!(done.err.contains("--help") || done.err.contains("Usage"), "{done:?}");
    }
}

#[test]
fn the_doctor_reports_the_layers_of_each_profile() {
    let workspace = TempWorkspace::new();
    let done = run(workspace.root(), &["doctor", "--json"]);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["configured"], "workspace", "{report}");
    let missing = report["missing"].as_array().unwrap();
    assert_eq!(done.code, i32::from(!missing.is_empty()), "{report}");
    for (layer, is_present) in report["layers"].as_object().unwrap() {
        assert_eq!(*is_present, !missing.iter().any(|it| it["layer"] == **layer), "{report}");
    }
    let named = report["profiles"].as_array().unwrap().iter().map(|it| it["profile"].clone());
    assert_eq!(named.collect::<Vec<_>>(), ["read-only", "workspace", "network"]);
    let text = run(workspace.root(), &["doctor"]).out;
    assert!(text.contains("seccomp") && text.contains("network   reads and writes"), "{text}");
}

#[test]
fn the_doctor_lists_the_hosts_of_presets() {
    let workspace = TempWorkspace::new().file("toolgate.toml", "[sandbox]\nhosts = [\"@npm\"]\n");
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let line =
        |args: &[&str]| TestCommandLine::new(workspace.root(), args).env("HOME", home.root()).run();
    let report: Value = serde_json::from_str(&line(&["doctor", "--json"]).out).unwrap();
    let missing = report["missing"].as_array().unwrap();
    if missing.iter().any(|it| it["layer"] == "view" || it["layer"] == "network") {
        eprintln!("NOT TRIED: this system cannot limit programs to some hosts");
        return;
    }
    assert_eq!(report["presets"]["npm"][0], "one.localhost:1", "{report}");
    assert_eq!(report["hosts"], json!({ "checked": ["workspace"], "why": null }), "{report}");
    let text = line(&["doctor"]).out;
    assert!(text.contains("npm names the hosts one.localhost:1."), "{text}");
    assert!(text.contains("only by the forwarder: tested for workspace."), "{text}");
}

/// Shell scripts that stand in for Go, Maven and .NET. Each only answers the command that asks this
/// package manager for its registry hosts.
const PACKAGE_MANAGERS: [(&str, &str); 3] = [
    ("go", "[ \"$*\" = 'env GOPROXY GOSUMDB' ] && printf 'http://go.example:1\\nsum.example\\n'"),
    (
        "mvn",
        "[ \"$*\" = '-B -o toolgate:none' ] && echo 'not found in the repositories \
         [local (/home/ada/.m2), central (http://maven.example:1/m2)]' >&2; exit 1",
    ),
    (
        "dotnet",
        "[ \"$1 $2 $3\" = 'nuget list source' ] && echo E http://nuget.example:1/v3/index.json",
    ),
];

#[test]
fn each_preset_asks_its_package_manager() {
    let settings = "[sandbox]\nhosts = [\"@go\", \"@maven\", \"@nuget\", \"@debian\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    // A program has a `/tmp` of its own.
    let tools = TempDir::with_prefix_in("toolgate-tools-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, script) in PACKAGE_MANAGERS {
        let tool = tools.path().join(name);
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
    }
    let search = format!("{}:/usr/bin:/bin", tools.path().display());
    let done = TestCommandLine::new(workspace.root(), &["doctor", "--json"]);
    let done = done.env("PATH", search).run();
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    let missing = report["missing"].as_array().unwrap();
    if missing.iter().any(|it| it["layer"] == "view" || it["layer"] == "network") {
        eprintln!("NOT TRIED: this system cannot limit programs to some hosts");
        return;
    }
    let presets = &report["presets"];
    assert_eq!(presets["go"], json!(["go.example:1", "sum.example"]), "{report}");
    assert_eq!(presets["Maven"], json!(["maven.example:1"]), "{report}");
    assert_eq!(presets["NuGet"], json!(["nuget.example:1"]), "{report}");
    // The machine itself has sources of packages, unless it is no Debian.
    let list = "grep -hE '^(deb|URIs:).*http' /etc/apt/sources.list /etc/apt/sources.list.d/*";
    let listed = Command::new("sh").args(["-c", list]).output().unwrap();
    let has_sources = !listed.stdout.is_empty();
    assert_eq!(presets["apt"].as_array().unwrap().is_empty(), !has_sources, "{report}");
}

#[test]
fn the_doctor_tests_the_profiles_of_upstreams_and_commands_with_hosts() {
    let settings = "[upstream.a]\ncommand = [\"a\"]\nsandbox = \"read-only\"\n\
                    hosts = [\"a.example\"]\n[command.\"b.c\"]\nabout = \"Run.\"\n\
                    program = \"true\"\nargv = [\"x\"]\nhosts = [\"b.example\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let done = run(workspace.root(), &["doctor", "--json"]);
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    let missing = report["missing"].as_array().unwrap();
    if missing.iter().any(|it| it["layer"] == "view" || it["layer"] == "network") {
        eprintln!("NOT TRIED: this system cannot limit programs to some hosts");
        return;
    }
    let checked = json!({ "checked": ["read-only", "workspace"], "why": null });
    assert_eq!(report["hosts"], checked, "{report}");
}

#[test]
fn the_doctor_reports_the_layers_for_the_root_folder_too() {
    let done = run(Path::new("/"), &["doctor"]);
    assert!(done.out.contains("seccomp") && done.out.contains("network   reads"), "{done:?}");
    assert!(done.code == 1 && done.err.contains("is the whole machine"), "{done:?}");
}

#[test]
fn a_failed_step_of_authorization_is_printed_once() {
    // Nothing listens at port 1.
    let settings = "[upstream.far]\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let login = run(workspace.root(), &["login", "far", "--no-browser"]);
    let errors: Vec<_> = login.err.lines().filter(|line| line.starts_with("toolgate: ")).collect();
    assert!(login.code == 2 && errors.len() == 1, "{login:?}");
    let doctor = run(workspace.root(), &["doctor", "oauth", "far"]);
    let failures = doctor.out.lines().filter(|line| line.starts_with("FAILED  ")).count();
    assert!(doctor.code == 1 && failures == 1, "{doctor:?}");
}
