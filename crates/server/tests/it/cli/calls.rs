//! Tests of `toolgate call`.

use serde_json::{Value, json};

use super::{TestCommandLine, run};
use crate::support::{ServerLaunchOptions, TempWorkspace, keys_of};

#[test]
fn a_file_is_printed_byte_for_byte_and_its_etag_on_standard_error() {
    for content in ["", "no end of line", "a\nb\n", "\n\n", "\r\n\t\u{feff}é\u{0}\u{1b}[31m\n"] {
        let workspace = TempWorkspace::new().file("a.txt", content);
        let done = run(workspace.root(), &["call", "files_read", r#"{"path":"a.txt"}"#]);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(
            done.err.starts_with("toolgate: etag ") && done.err.lines().count() == 1,
            "{done:?}"
        );
        assert_eq!(done.out, content);
    }
}

#[test]
fn the_exit_code_distinguishes_success_refusal_and_no_call() {
    let workspace = TempWorkspace::new();
    let cases = [
        ("files_read", r#"{"path":"README.md"}"#, 0),
        ("files.read", r#"{"path":"README.md"}"#, 0),
        ("files_list", "{}", 0),
        ("exec_run", r#"{"command":"true"}"#, 0),
        ("files_read", r#"{"path":"none"}"#, 1),
        ("files_read", r#"{"path":"../x"}"#, 1),
        ("exec_run", r#"{"command":"false"}"#, 1),
        ("exec_run", r#"{"command":"exit 7","shell":true}"#, 1),
        ("files_write", r#"{"path":"README.md","content":""}"#, 1),
        ("files_read", r#"{"path":5}"#, 1),
        ("files_read", "{}", 1),
        ("fils_read", "{}", 1),
        ("exec_run", r#"{"command":"none-such"}"#, 1),
        ("files_read", "nonsense", 2),
        ("files_read", "[]", 2),
    ];
    for (tool, arguments, code) in cases {
        let done = run(workspace.root(), &["call", tool, arguments]);
        assert_eq!(done.code, code, "{tool} {arguments}: {done:?}");
        assert_eq!(done.out.is_empty() && code > 0, code > 0, "{tool} {arguments}: {done:?}");
        if code > 0 {
            assert!(done.err.starts_with("toolgate: "), "{done:?}");
        }
    }
}

#[test]
fn the_output_of_a_failed_program_is_printed_too() {
    let script = r#"{"command":"echo said; exit 7","shell":true}"#;
    let done = run(TempWorkspace::new().root(), &["call", "exec_run", script]);
    assert_eq!((done.code, done.out.as_str()), (1, "said\n"));
    assert!(done.err.contains("exit code 7"), "{done:?}");
}

#[test]
fn json_prints_the_structured_result() {
    let args = ["call", "files_read", r#"{"path":"README.md"}"#, "--json"];
    let done = run(TempWorkspace::new().root(), &args);
    let value: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(value["content"], TempWorkspace::README);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

#[test]
fn arguments_come_from_a_file_or_from_standard_input() {
    let arguments = r#"{"path": "README.md"}"#;
    let workspace = TempWorkspace::new().file("args.json", arguments);
    let done = run(workspace.root(), &["call", "files_read", "@args.json"]);
    assert_eq!((done.code, done.out.as_str()), (0, TempWorkspace::README));
    let done =
        TestCommandLine::new(workspace.root(), &["call", "files_read", "-"]).input(arguments).run();
    assert_eq!((done.code, done.out.as_str()), (0, TempWorkspace::README));
    let done = run(workspace.root(), &["call", "files_read", "@none.json"]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("none.json"), "{done:?}");
}

#[test]
fn arguments_that_are_not_json_are_explained() {
    let workspace = TempWorkspace::new();
    let done = run(workspace.root(), &["call", "files_read", "{path:README.md}"]);
    assert_eq!(done.code, 2);
    assert!(
        done.err.contains("not JSON") && done.err.contains(r#"'{"path":"README.md"}'"#),
        "{done:?}"
    );
    assert!(done.err.contains("{path:README.md}"), "the arguments are quoted: {done:?}");
    let done = run(workspace.root(), &["call", "files_read", "[1]"]);
    assert!(done.err.contains("must be a JSON object"), "{done:?}");
}

#[test]
fn a_misspelled_tool_is_refused_with_the_nearest_name() {
    let workspace = TempWorkspace::new();
    for (command, code) in [("call", 1), ("tools", 2)] {
        let done = run(workspace.root(), &[command, "files_raed"]);
        assert_eq!(done.code, code, "{done:?}");
        assert!(done.err.contains("did you mean `files_read`"), "{done:?}");
    }
    let done = run(workspace.root(), &["tools", "qqq"]);
    assert!(!done.err.contains("did you mean"), "{done:?}");
    let done = run(workspace.root(), &["call", "quite_other"]);
    assert!(done.err.contains("toolgate tools"), "{done:?}");
}

#[test]
fn root_names_the_workspace_of_a_call() {
    let here = TempWorkspace::new();
    let there = TempWorkspace::new().file("there.txt", "yes");
    let read = r#"{"path":"there.txt"}"#;
    let root = there.root().to_str().unwrap();
    let done = run(here.root(), &["call", "files_read", read, "--root", root]);
    assert_eq!((done.code, done.out.trim()), (0, "yes"));
    let line = TestCommandLine::new(here.root(), &["call", "files_read", read]);
    assert_eq!(line.env("TOOLGATE_ROOT", root).run().code, 0);
    assert_eq!(run(here.root(), &["call", "files_read", read]).code, 1);
}

#[test]
fn read_only_refuses_tools_that_change_anything() {
    let workspace = TempWorkspace::new();
    let write = r#"{"path":"a","content":""}"#;
    let done = run(workspace.root(), &["call", "files_write", write, "--read-only"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(
        done.err.contains("`files_write` is not available: this server is read-only"),
        "{done:?}"
    );
    assert!(!workspace.path("a").exists());
}

#[test]
fn a_call_has_the_same_result_in_this_process_and_at_a_server() {
    let calls = [
        ("files_read", json!({ "path": "README.md" })),
        ("files.read", json!({ "path": "README.md" })),
        ("files_read", json!({ "path": "README.md", "start_line": 2, "line_count": 1 })),
        ("files_read", json!({ "path": "none" })),
        ("files_read", json!({ "path": "../x" })),
        ("files_list", json!({})),
        ("files_search", json!({ "text": "small" })),
        ("files_write", json!({ "path": "README.md", "content": "", "if_match": "other" })),
        ("exec_run", json!({ "command": "echo a; echo b >&2; exit 3", "shell": true })),
        ("exec_run", json!({ "command": "printf", "args": ["no end"] })),
        ("exec_run", json!({ "command": "none-such" })),
        ("files_read", json!({ "path": 5 })),
        ("files_read", json!({})),
        ("fils_read", json!({})),
    ];
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let url = served.url();
    for (tool, arguments) in calls {
        for more in [&[][..], &["--json"]] {
            let arguments = arguments.to_string();
            let args = [&["call", tool, &arguments], more].concat();
            let here = run(workspace.root(), &args);
            let there = run(workspace.root(), &[&args[..], &["--url", &url]].concat());
            assert_eq!(here.code, there.code, "{args:?}:\n{here:?}\n{there:?}");
            assert_eq!(without_durations(&here.out), without_durations(&there.out), "{args:?}");
            // A call in this process also prints the cause, which a server only logs.
            let here = without_durations(&here.err);
            let there = without_durations(&there.err);
            let same = here.starts_with(there.trim_end()) || here.contains("did you mean");
            assert!(same, "{args:?}:\n{here}\n{there}");
        }
    }
}

#[test]
fn the_tools_of_a_running_server_are_listed_for_the_key_of_the_caller() {
    let rule = "[[policy.rules]]\nname = \"reads\"\neffect = \"allow\"\ncallers = [\"ada\"]\n\
                effects = [\"reads\"]\n";
    let settings = format!("{}[policy]\ndefault = \"deny\"\n{rule}", keys_of(&["ada"]));
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = ServerLaunchOptions::over(&workspace).served();
    let url = served.url();
    let list = |more: &[&str]| {
        let args = [&["tools", "--url", &url], more].concat();
        TestCommandLine::new(workspace.root(), &args).env("TOOLGATE_KEY", "ada-key").run()
    };
    let all = list(&[]);
    assert_eq!(all.code, 0, "{all:?}");
    assert!(all.out.lines().any(|line| line.starts_with("files_read ")), "{all:?}");
    assert!(all.out.lines().all(|line| line.contains(" reads ")), "{all:?}");
    let one = list(&["files.read"]);
    assert!(one.code == 0 && one.out.contains("path: string (optional)"), "{one:?}");
    let hidden = list(&["files_write"]);
    assert_eq!(hidden.code, 2, "{hidden:?}");
    let refused = run(workspace.root(), &["tools", "--url", &url]);
    assert!(refused.code == 2 && refused.err.contains("TOOLGATE_KEY"), "{refused:?}");
}

#[test]
fn a_call_of_a_tool_of_an_unreachable_upstream_names_the_reason() {
    let settings = "[upstream.typo]\ncommand = [\"no-such-program-here\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let done = run(workspace.root(), &["call", "typo_x"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.contains("its upstream `typo` is unavailable"), "{done:?}");
    assert!(done.err.contains("no program `no-such-program-here`"), "{done:?}");
}

#[test]
fn a_replaced_built_in_tool_is_logged_by_servers_and_not_by_other_commands() {
    let settings = "[command.\"search.semantic\"]\nabout = \"Ours.\"\nprogram = \"echo\"\n\
                    argv = [\"ours\"]\nreplaces = true\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    for args in [&["tools"][..], &["call", "search_semantic"]] {
        let done = run(workspace.root(), args);
        assert_eq!(done.code, 0, "{done:?}");
        assert!(!done.err.contains("replaces the tool"), "{done:?}");
    }
    let served = ServerLaunchOptions::over(&workspace).served();
    assert!(served.log().contains("replaces the tool `search.semantic`"), "{}", served.log());
}

/// Returns `text` without durations.
fn without_durations(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains("duration_ms"));
    let lines = lines.map(|line| line.split_once(" in ").map_or(line, |(before, _)| before));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_missing_server_or_invalid_url_is_reported() {
    let workspace = TempWorkspace::new();
    let at = |url: &str| run(workspace.root(), &["call", "files_list", "{}", "--url", url]);
    // Nothing listens at port 1.
    for url in ["http://127.0.0.1:1/mcp", "https://127.0.0.1:1/mcp"] {
        let done = at(url);
        assert_eq!(done.code, 2);
        assert!(done.err.contains("toolgate serve"), "{done:?}");
    }
    for url in ["nonsense", "ftp://x"] {
        let done = at(url);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.err.contains("http"), "{done:?}");
    }
    let served = ServerLaunchOptions::over(&workspace).served();
    let done = at(&format!("http://{}/other", served.addr));
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.err.contains("404"), "{done:?}");
    for end in ["", "/"] {
        let done = at(&format!("http://{}{end}", served.addr));
        assert!(done.err.contains(&format!("MCP is at {}", served.url())), "{done:?}");
    }
}

#[test]
fn a_health_check_succeeds_only_while_a_server_answers_with_success() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let check = |url: &str| run(workspace.root(), &["healthcheck", url]);
    let healthy = check(&format!("http://{}/healthz", served.addr));
    assert_eq!((healthy.code, healthy.out.as_str()), (0, "healthy\n"), "{healthy:?}");
    let missing = check(&format!("http://{}/other", served.addr));
    assert_eq!(missing.code, 1);
    assert!(missing.err.contains("/other answered 404"), "{missing:?}");
    // Nothing listens at port 1.
    let alone = check("http://127.0.0.1:1/healthz");
    assert_eq!(alone.code, 1);
    assert!(alone.err.contains("cannot connect to 127.0.0.1:1"), "{alone:?}");
}

#[test]
fn a_call_that_needs_confirmation_is_refused_without_a_terminal() {
    let workspace = TempWorkspace::new();
    let write = r#"{"path":"new.txt","content":"x"}"#;
    let advice = "there is no terminal to ask in; run the command in a terminal";
    for (arguments, expected) in [
        (write, format!("{advice}\n")),
        ("-", format!("{advice}, with the arguments on the command line\n")),
    ] {
        let line = TestCommandLine::new(workspace.root(), &["call", "files_write", arguments])
            .input(write);
        let done = line.env("TOOLGATE_TOOLS_CONFIRM", "files.write").run();
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.err.ends_with(&expected), "{done:?}");
    }
    assert!(!workspace.path("new.txt").exists());
}
