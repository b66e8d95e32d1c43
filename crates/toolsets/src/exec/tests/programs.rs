//! Tests that programs are found, and that errors explain why a program is missing.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use toolgate_contract::ToolErrorKind;

use super::{ExecTestBench, pointer};
use crate::exec::ExecSettings;

fn allowing(programs: &[&str]) -> ExecTestBench {
    let allow = programs.iter().map(|&name| name.to_owned()).collect();
    ExecTestBench::with(&ExecSettings { allow, ..ExecSettings::default() })
}

async fn refusal(bench: &ExecTestBench, command: &str) -> String {
    let err = bench.run(json!({"command": command})).await.unwrap_err();
    assert_eq!(pointer(&err), Some("/command"), "{}", err.message);
    err.message
}

#[tokio::test]
async fn an_unknown_program_is_reported_with_the_closest_name() {
    let bench = ExecTestBench::with_path(&ExecSettings::default(), "/usr/bin:/bin");
    let message = refusal(&bench, "pritnf").await;
    assert_eq!(message, "no program is named `pritnf` in PATH; did you mean `printf`?");
    let message = refusal(&bench, "xyzzy-plugh").await;
    assert_eq!(message, "no program is named `xyzzy-plugh` in PATH");
}

#[tokio::test]
async fn only_a_typing_error_gets_a_suggestion() {
    let folder = tempfile::TempDir::new().unwrap();
    for name in ["node", "cargo"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let bench = ExecTestBench::with_path(&ExecSettings::default(), folder.path());
    for (command, suggestion) in [("noed", "node"), ("nodde", "node"), ("cargp", "cargo")] {
        let message = refusal(&bench, command).await;
        assert!(message.ends_with(&format!("; did you mean `{suggestion}`?")), "{message}");
    }
    for command in ["nope", "code", "nodemon"] {
        let message = refusal(&bench, command).await;
        assert_eq!(message, format!("no program is named `{command}` in PATH"));
    }
}

#[tokio::test]
async fn a_command_line_as_the_program_gets_advice() {
    let message = refusal(&ExecTestBench::new(), "echo hello world").await;
    let reason = "no program is named `echo hello world` in PATH";
    let advice = "pass its arguments separately in `args`";
    assert_eq!(message, format!("{reason}; {advice}, or set `shell` to true"));
    // A shell is not suggested if it would be refused.
    let message = refusal(&allowing(&["echo hello world"]), "echo hello world").await;
    assert_eq!(message, format!("{reason}; {advice}"));
}

#[tokio::test]
async fn a_shell_builtin_gets_advice_on_what_to_use_instead() {
    let bench = ExecTestBench::with_path(&ExecSettings::default(), "/nowhere");
    for (command, advice) in [
        ("cd", "`cwd`"),
        ("cd src", "`cwd`"),
        ("source .env", "`env`"),
        ("export", "`env`"),
        ("alias", "`command`"),
        ("ulimit", "its own run"),
    ] {
        let message = refusal(&bench, command).await;
        assert!(message.contains(advice) && message.contains("`shell: true`"), "{message}");
    }
    let off = ExecSettings { allow: vec!["cd".into()], ..ExecSettings::default() };
    let message = refusal(&ExecTestBench::with_path(&off, "/nowhere"), "cd").await;
    assert_eq!(
        message,
        "no program is named `cd` in PATH; `cd` is a shell builtin: set the directory in `cwd`"
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_executed_is_refused() {
    let bench = ExecTestBench::new();
    fs::write(bench.workspace.path().join("notes"), "text").unwrap();
    bench.put("orphan", "#!/no/such/interpreter\n");
    assert!(refusal(&bench, "./notes").await.contains("is not executable"));
    assert!(refusal(&bench, "/usr").await.contains("is not a file"));
    assert!(refusal(&bench, "./missing").await.contains("does not exist"));
    assert!(refusal(&bench, "./orphan").await.contains("interpreter"));
    assert!(refusal(&bench, "").await.contains("empty"));
    assert!(refusal(&bench, "  ").await.contains("empty"));
    let err = bench.run(json!({"command": "", "shell": true})).await.unwrap_err();
    assert_eq!(pointer(&err), Some("/command"));
}

#[tokio::test]
async fn a_path_is_relative_to_the_directory_the_program_starts_in() {
    let bench = ExecTestBench::new();
    fs::create_dir(bench.workspace.path().join("sub")).unwrap();
    bench.put("sub/tool", "#!/bin/sh\necho \"$0\" \"$PWD\"");
    let ran = bench.run(json!({"command": "./tool", "cwd": "sub"})).await.expect("it runs");
    let sub = fs::canonicalize(bench.workspace.path().join("sub")).unwrap();
    assert_eq!(ran.stdout(), format!("./tool {}\n", sub.display()));
}

#[tokio::test]
async fn a_name_is_never_looked_up_in_the_workspace() {
    let bench = ExecTestBench::with_path(&ExecSettings::default(), ".::/usr/bin:/bin");
    bench.put("ls", "#!/bin/sh\necho mine");
    let ran = bench.run(json!({"command": "ls", "args": ["-d", "."]})).await.expect("it runs");
    assert_eq!(ran.stdout(), ".\n");
}

#[tokio::test]
async fn only_allowed_programs_run_under_any_spelling() {
    let bench = allowing(&["ls", "/bin/echo"]);
    let workspace = bench.workspace.path();
    fs::copy("/bin/sh", workspace.join("ls")).unwrap();
    symlink("/bin/sh", workspace.join("echo")).unwrap();
    symlink("/bin/ls", workspace.join("dir")).unwrap();
    fs::create_dir(workspace.join("real")).unwrap();
    symlink("/bin/ls", workspace.join("real/ls")).unwrap();
    let copy = workspace.join("ls").to_str().unwrap().to_owned();
    for command in ["sh", "./ls", &copy, "./echo", "./dir", "/proc/self/root/bin/sh", "../ls"] {
        let err = bench.run(json!({"command": command, "args": ["-c", "echo"]})).await.unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::NotAllowed, "{command}");
        assert!(err.message.ends_with("(`exec.allow`): ls, /bin/echo"), "{}", err.message);
    }
    for command in ["ls", "/bin/ls", "real/ls", "/proc/self/root/bin/ls", "echo"] {
        let ran = bench.run(json!({"command": command, "args": ["real"]})).await;
        assert_eq!(ran.unwrap().exit_code(), 0, "{command}");
    }
}

#[tokio::test]
async fn an_allowed_program_that_is_missing_is_reported_as_missing() {
    let message = refusal(&allowing(&["xyzzy-plugh"]), "xyzzy-plugh").await;
    assert!(message.starts_with("no program is named"), "{message}");
}

#[tokio::test]
async fn a_program_with_many_names_runs_only_under_the_allowed_one() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let settings = ExecSettings { allow: vec!["harmless".into()], ..ExecSettings::default() };
    let bench = ExecTestBench::with_path(&settings, format!("{path}:/usr/bin:/bin"));
    fs::copy("/bin/sh", folder.path().join("harmless")).unwrap();
    symlink("harmless", folder.path().join("shell")).unwrap();
    let script = json!(["-c", "echo $0"]);
    let err = bench.run(json!({"command": "shell", "args": script})).await.unwrap_err();
    assert_eq!(err.fault, ToolErrorKind::NotAllowed);
    let ran = bench.run(json!({"command": "harmless", "args": script})).await.unwrap();
    assert_eq!(ran.stdout(), "harmless\n");
}

#[tokio::test]
async fn a_shell_runs_only_if_it_is_allowed() {
    let script = json!({"command": "echo hi", "shell": true});
    let refused = allowing(&["echo"]).run(script.clone()).await.unwrap_err();
    assert_eq!(refused.fault, ToolErrorKind::NotAllowed);
    assert_eq!(allowing(&["sh"]).run(script).await.unwrap().stdout(), "hi\n");
}
