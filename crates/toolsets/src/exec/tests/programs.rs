//! Which program runs, and what is said when none does.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use toolgate_contract::ToolFault;

use super::{Bench, pointer};
use crate::exec::ExecSettings;

fn only(programs: &[&str]) -> Bench {
    let allow = programs.iter().map(|&name| name.to_owned()).collect();
    Bench::with(&ExecSettings { allow, ..ExecSettings::default() })
}

async fn refusal(bench: &Bench, command: &str) -> String {
    let err = bench.run(json!({"command": command})).await.unwrap_err();
    assert_eq!(pointer(&err), Some("/command"), "{}", err.message);
    err.message
}

#[tokio::test]
async fn an_unknown_program_is_named_after_the_nearest_name() {
    let bench = Bench::with(&ExecSettings {
        path: Some("/usr/bin:/bin".into()),
        ..ExecSettings::default()
    });
    let message = refusal(&bench, "pritnf").await;
    assert_eq!(message, "did you mean `printf`? no program is named `pritnf` in PATH");
    let message = refusal(&bench, "xyzzy-plugh").await;
    assert_eq!(message, "no program is named `xyzzy-plugh` in PATH");
}

#[tokio::test]
async fn a_whole_command_line_gets_a_hint() {
    let message = refusal(&Bench::new(), "echo hello world").await;
    let said = "; no program is named `echo hello world` in PATH";
    let advice = "pass its arguments separately in `args`, or set `shell` to true";
    assert_eq!(message, format!("{advice}{said}"));
    // What is refused is not advised.
    let off = Bench::with(&ExecSettings { shell: false, ..ExecSettings::default() });
    let message = refusal(&off, "echo hello world").await;
    assert_eq!(message, format!("pass its arguments separately in `args`{said}"));
}

#[tokio::test]
async fn for_what_only_a_shell_has_there_is_another_way() {
    let bench =
        Bench::with(&ExecSettings { path: Some("/nowhere".into()), ..ExecSettings::default() });
    for (command, way) in [
        ("cd", "`cwd`"),
        ("cd src", "`cwd`"),
        ("source .env", "`env`"),
        ("export", "`env`"),
        ("alias", "`command`"),
        ("ulimit", "its own run"),
    ] {
        let message = refusal(&bench, command).await;
        assert!(message.contains(way) && message.contains("`shell: true`"), "{message}");
    }
    let off =
        ExecSettings { shell: false, path: Some("/nowhere".into()), ..ExecSettings::default() };
    let message = refusal(&Bench::with(&off), "cd").await;
    assert_eq!(
        message,
        "`cd` is a shell's own: give the directory as `cwd`; no program is named `cd` in PATH"
    );
}

#[tokio::test]
async fn what_cannot_be_executed_is_refused() {
    let bench = Bench::new();
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
    let bench = Bench::new();
    fs::create_dir(bench.workspace.path().join("sub")).unwrap();
    bench.put("sub/tool", "#!/bin/sh\necho \"$0\" \"$PWD\"");
    let ran = bench.run(json!({"command": "./tool", "cwd": "sub"})).await.expect("it runs");
    let sub = fs::canonicalize(bench.workspace.path().join("sub")).unwrap();
    assert_eq!(ran.stdout(), format!("./tool {}\n", sub.display()));
}

#[tokio::test]
async fn a_name_is_never_sought_in_the_workspace() {
    let bench = Bench::with(&ExecSettings {
        path: Some(".::/usr/bin:/bin".into()),
        ..ExecSettings::default()
    });
    bench.put("ls", "#!/bin/sh\necho mine");
    let ran = bench.run(json!({"command": "ls", "args": ["-d", "."]})).await.expect("it runs");
    assert_eq!(ran.stdout(), ".\n");
}

#[tokio::test]
async fn only_what_is_allowed_runs_whatever_it_is_called() {
    let bench = only(&["ls", "/bin/echo"]);
    let workspace = bench.workspace.path();
    fs::copy("/bin/sh", workspace.join("ls")).unwrap();
    symlink("/bin/sh", workspace.join("echo")).unwrap();
    symlink("/bin/ls", workspace.join("dir")).unwrap();
    fs::create_dir(workspace.join("real")).unwrap();
    symlink("/bin/ls", workspace.join("real/ls")).unwrap();
    let copy = workspace.join("ls").to_str().unwrap().to_owned();
    for command in ["sh", "./ls", &copy, "./echo", "./dir", "/proc/self/root/bin/sh", "../ls"] {
        let err = bench.run(json!({"command": command, "args": ["-c", "echo"]})).await.unwrap_err();
        assert_eq!(err.fault, ToolFault::NotAllowed, "{command}");
        assert!(err.message.ends_with("what may is: ls, /bin/echo"), "{}", err.message);
    }
    for command in ["ls", "/bin/ls", "real/ls", "/proc/self/root/bin/ls", "echo"] {
        let ran = bench.run(json!({"command": command, "args": ["real"]})).await;
        assert_eq!(ran.unwrap().exit_code(), 0, "{command}");
    }
}

#[tokio::test]
async fn what_is_allowed_and_absent_is_said_to_be_absent() {
    assert!(
        refusal(&only(&["xyzzy-plugh"]), "xyzzy-plugh").await.starts_with("no program is named")
    );
}

#[tokio::test]
async fn a_program_of_many_names_runs_only_under_the_one_allowed() {
    let many = tempfile::TempDir::new().unwrap();
    let path = many.path().to_str().unwrap();
    let settings = ExecSettings {
        allow: vec!["harmless".into()],
        path: Some(format!("{path}:/usr/bin:/bin")),
        ..ExecSettings::default()
    };
    let bench = Bench::with(&settings);
    fs::copy("/bin/sh", many.path().join("harmless")).unwrap();
    symlink("harmless", many.path().join("shell")).unwrap();
    let script = json!(["-c", "echo $0"]);
    let err = bench.run(json!({"command": "shell", "args": script})).await.unwrap_err();
    assert_eq!(err.fault, ToolFault::NotAllowed);
    let ran = bench.run(json!({"command": "harmless", "args": script})).await.unwrap();
    assert_eq!(ran.stdout(), "harmless\n");
}

#[tokio::test]
async fn a_shell_runs_only_where_it_is_allowed() {
    let script = json!({"command": "echo hi", "shell": true});
    let off = Bench::with(&ExecSettings { shell: false, ..ExecSettings::default() });
    assert_eq!(off.run(script.clone()).await.unwrap_err().fault, ToolFault::NotAllowed);
    assert_eq!(only(&["echo"]).run(script.clone()).await.unwrap_err().fault, ToolFault::NotAllowed);
    assert_eq!(only(&["sh"]).run(script).await.unwrap().stdout(), "hi\n");
}
