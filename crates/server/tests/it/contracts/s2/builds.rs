//! Tests of the tools that build, test, restore and run.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::client::{WorkstationClient, over_all, over_all_tuned};
use crate::support::{ServerLaunchOptions, TempWorkspace, path};

const MAKEFILE: &str =
    "build:\n\t@echo built\ntest:\n\t@echo tested; echo it is wrong >&2; exit 3\n";

#[test]
fn s2_01_38_a_command_is_run_and_its_exit_code_is_printed_first() {
    over_all(&TempWorkspace::new().file("sub/there.txt", ""), |client| {
        let mut run = |command: &str| client.content("ci/run", json!({ "command": command }));
        assert_eq!(run("echo one  two"), "Exit Code: 0\none two\n");
        assert_eq!(run("false"), "Exit Code: 1\n");
        assert_eq!(run("sh -c 'echo out; echo err >&2; exit 7'"), "Exit Code: 7\nout\nerr\n");
        // A command that needs a shell gets one, as with exec/run.
        assert_eq!(run("echo a; echo b | tr b c"), "Exit Code: 0\na\nc\n");
        assert_eq!(run("echo 'a; echo b'"), "Exit Code: 0\na; echo b\n");
        let there = json!({ "command": "ls", "workingDirectory": "sub" });
        assert_eq!(client.content("ci/run", there), "Exit Code: 0\nthere.txt\n");
        let (code, ..) =
            client.refusal("ci/run", json!({ "command": "ls", "workingDirectory": ".." }));
        assert_eq!(code, -32603);
        let (code, _, data) = client.refusal("ci/run", json!({ "command": "no-such-program x" }));
        assert!(code == -32602 || code == -32603, "{data}");
        assert!(data["detail"].as_str().unwrap().contains("no-such-program"), "{data}");
    });
}

#[test]
fn s2_38_diagnostics_describe_the_machine() {
    over_all(&TempWorkspace::new(), |client| {
        let text = client.content("ci/diagnostics", json!({}));
        for head in
            ["OS: ", "64-bit OS: ", "Processor Count: ", "Working Directory: ", ".NET Version: "]
        {
            assert!(
                text.lines().any(|line| line.len() > head.len() && line.starts_with(head)),
                "{text}"
            );
        }
    });
}

#[test]
fn s2_38_a_project_is_built_and_tested_with_its_build_tool() {
    let workspace = TempWorkspace::new().file("app/Makefile", MAKEFILE);
    let mut client = WorkstationClient::stdio(ServerLaunchOptions::over(&workspace));
    let project = || json!({ "projectPath": "app" });
    let built = client.content("ci/build", project());
    assert!(built.starts_with("Exit Code: 0\n") && built.contains("built"), "{built}");
    // A failed test run is a result with its output.
    let tested = client.content("ci/test", project());
    assert!(tested.starts_with("Exit Code: ") && !tested.starts_with("Exit Code: 0"), "{tested}");
    assert!(tested.contains("tested") && tested.contains("it is wrong"), "{tested}");
    let (code, message, data) = client.refusal("ci/build", json!({ "projectPath": "nowhere" }));
    assert_eq!((code, message.as_str()), (-32603, "Internal error"), "{data}");
}

#[test]
fn s2_38_a_dotnet_project_is_built_tested_and_restored_by_dotnet() {
    let bin = tempfile::TempDir::with_prefix("toolgate-bin-").unwrap();
    let dotnet = bin.path().join("dotnet");
    fs::write(&dotnet, "#!/bin/sh\necho dotnet \"$@\"\n").unwrap();
    fs::set_permissions(&dotnet, fs::Permissions::from_mode(0o755)).unwrap();
    let project = "<Project Sdk=\"Microsoft.NET.Sdk\"/>\n";
    let workspace = TempWorkspace::new().file("app.csproj", project);
    let mut search = bin.path().as_os_str().to_owned();
    search.push(":");
    search.push(path());
    over_all_tuned(
        &workspace,
        |launch| launch.env("PATH", search.clone()),
        |client| {
            for verb in ["build", "test", "restore"] {
                let text = client.content(&format!("ci/{verb}"), json!({}));
                assert!(text.starts_with("Exit Code: 0\n"), "{text}");
                assert!(text.contains(&format!("dotnet {verb}")), "{text}");
            }
        },
    );
}
