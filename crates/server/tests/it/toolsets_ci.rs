//! Building and testing over the wire: real projects, by their own tools, without a network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Client, Launch, MODERN, Workspace, path, refusal, structured, text};

/// A client of a server that finds the build tools of this machine.
fn client(workspace: &Workspace, tune: impl Fn(Launch) -> Launch) -> Client {
    let judges = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/judges/bin");
    assert!(judges.join("pytest").exists(), "pytest is missing: run `cargo xtask setup`");
    let folders = [judges.into_os_string(), path()].join(&OsString::from(":"));
    let home = |name: &str, folder: &str| {
        let set = std::env::var_os(name).map(PathBuf::from);
        set.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(folder))
    };
    let launch = Launch::over(workspace)
        .env("PATH", folders)
        .env("CARGO_HOME", home("CARGO_HOME", ".cargo"))
        .env("RUSTUP_HOME", home("RUSTUP_HOME", ".rustup"));
    Client::stdio(tune(launch), MODERN)
}

/// The structured result of a program, however it ended.
#[track_caller]
fn report(answer: &Value) -> &Value {
    let report = &answer["result"]["structuredContent"];
    assert!(report.is_object(), "{answer}");
    report
}

const MANIFEST: &str =
    "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";
const LIB: &str = "pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\n#[test]\nfn adds() {\n    assert_eq!(add(1, 2), 3);\n}\n\n#[test]\nfn adds_wrongly() {\n    assert_eq!(add(1, 2), 4);\n}\n";

#[test]
fn a_cargo_project_is_built_tested_and_mended() {
    let workspace = Workspace::new().file("tiny/Cargo.toml", MANIFEST).file("tiny/src/lib.rs", LIB);
    let mut client = client(&workspace, |launch| launch);
    let found = client.call("ci_detect", json!({}));
    let project = &structured(&found)["projects"][0];
    assert_eq!((&project["kind"], &project["folder"]), (&json!("cargo"), &json!("tiny")));
    let input = json!({ "project": "tiny/src" });
    let built = client.call("ci_build", input.clone());
    assert_eq!(report(&built)["ok"], true, "{built}");
    let tested = client.call("ci_test", input.clone());
    let told = report(&tested);
    assert_eq!((&told["ok"], &told["exit_code"]), (&json!(false), &json!(101)), "{tested}");
    assert_eq!((&told["summary"]["passed"], &told["summary"]["failed"]), (&json!(1), &json!(1)));
    let [failure] = &told["failures"].as_array().unwrap()[..] else { panic!("{tested}") };
    let place = ["file", "line", "test", "severity"].map(|name| failure[name].clone());
    assert_eq!(
        place,
        ["tiny/src/lib.rs".into(), json!(12), "adds_wrongly".into(), "failure".into()]
    );
    assert!(failure["message"].as_str().unwrap().contains("left: 3"), "{failure}");
    assert!(text(&tested).contains("tiny/src/lib.rs:12"), "{tested}");
    let one = json!({ "project": "tiny", "filter": "adds_wrongly" });
    let one = client.call("ci_test", one);
    assert_eq!(report(&one)["summary"]["failed"], 1, "{one}");
    assert_eq!(report(&one)["summary"]["passed"], 0, "{one}");
    workspace.put("tiny/src/lib.rs", LIB.replace("a + b", "let x: i32 = \"a\";\n    x + a + b"));
    let broken = client.call("ci_build", input.clone());
    let failure = &report(&broken)["failures"][0];
    let place = ["file", "line", "column", "code"].map(|name| failure[name].clone());
    assert_eq!(place, ["tiny/src/lib.rs".into(), json!(2), json!(18), "E0308".into()], "{broken}");
    assert!(!report(&broken)["output"].as_str().unwrap().contains("\"reason\""), "{broken}");
    workspace.put("tiny/src/lib.rs", LIB.replace(", 4", ", 3"));
    let mended = client.call("ci_test", input);
    assert_eq!((&report(&mended)["ok"], &report(&mended)["failures"]), (&json!(true), &json!([])));
}

#[test]
fn an_npm_project_is_tested_by_its_own_script() {
    let package =
        json!({ "name": "tiny", "version": "1.0.0", "scripts": { "test": "node --test" } });
    let test = "const test = require('node:test');\nconst assert = require('node:assert');\n\
                test('adds', () => assert.strictEqual(1 + 2, 3));\n\
                test('adds wrongly', () => assert.strictEqual(1 + 2, 4));\n";
    let workspace =
        Workspace::new().file("package.json", package.to_string()).file("sum.test.js", test);
    let mut client = client(&workspace, |launch| launch);
    let tested = client.call("ci_test", json!({}));
    let told = report(&tested);
    assert_eq!((&told["kind"], &told["ok"]), (&json!("npm"), &json!(false)), "{tested}");
    assert_eq!((&told["summary"]["passed"], &told["summary"]["failed"]), (&json!(1), &json!(1)));
    let failure = &told["failures"][0];
    let place = ["file", "line", "test"].map(|name| failure[name].clone());
    assert_eq!(place, ["sum.test.js".into(), json!(4), "adds wrongly".into()], "{tested}");
    let said = refusal(&client.call("ci_build", json!({})));
    assert!(said.contains("no script `build`; it has `test`"), "{said}");
    let restored = client.call("ci_restore", json!({ "args": ["--offline", "--no-audit"] }));
    assert_eq!(report(&restored)["ok"], true, "{restored}");
}

#[test]
fn a_python_project_is_tested_by_pytest() {
    let test = "def test_adds():\n    assert 1 + 2 == 3\n\n\ndef test_adds_wrongly():\n    assert 1 + 2 == 4\n";
    let workspace =
        Workspace::new().file("sums/tests/test_sum.py", test).file("sums/pytest.ini", "[pytest]\n");
    let mut client = client(&workspace, |launch| launch);
    let tested = client.call("ci_test", json!({ "project": "sums" }));
    let told = report(&tested);
    assert_eq!((&told["kind"], &told["ok"]), (&json!("pytest"), &json!(false)), "{tested}");
    assert_eq!((&told["summary"]["passed"], &told["summary"]["failed"]), (&json!(1), &json!(1)));
    let failure = &told["failures"][0];
    let place = ["file", "line", "test"].map(|name| failure[name].clone());
    assert_eq!(place, ["sums/tests/test_sum.py".into(), json!(6), "test_adds_wrongly".into()]);
    let one = json!({ "project": "sums", "filter": "test_adds and not wrongly" });
    assert_eq!(report(&client.call("ci_test", one))["ok"], true);
}

#[test]
fn a_makefile_s_targets_are_run_and_the_compiler_read() {
    let makefile = "all: main.o\nmain.o: main.c\n\tcc -c main.c\ntest:\n\tseq 1 20000; exit 3\n";
    let workspace = Workspace::new()
        .file("Makefile", makefile)
        .file("main.c", "int main() {\n  return x;\n}\n");
    let mut client = client(&workspace, |launch| launch);
    let built = client.call("ci_build", json!({}));
    let failure = &report(&built)["failures"][0];
    assert_eq!((&failure["file"], &failure["line"]), (&json!("main.c"), &json!(2)), "{built}");
    let tested = client.call("ci_test", json!({}));
    let output = report(&tested)["output"].as_str().unwrap();
    assert!(output.contains("\n20000\n") && output.len() <= 8192, "{}", output.len());
    let id = report(&tested)["output_id"].clone();
    let whole = client.call("exec_output", json!({ "output_id": id, "max_bytes": 20 }));
    assert!(structured(&whole)["text"].as_str().unwrap().contains("seq 1"), "{whole}");
}

#[test]
fn command_lines_run_by_the_rules_of_exec() {
    let workspace = Workspace::new();
    let mut open = client(&workspace, |launch| launch);
    let ran = open.call("ci_run", json!({ "command": "printf '%s|' 'a b' c" }));
    assert_eq!(structured(&ran)["stdout"], "a b|c|");
    let ran = open.call("ci_run", json!({ "command": "echo $((1 + 2)) | cat; exit 4" }));
    assert_eq!((&report(&ran)["stdout"], &report(&ran)["exit_code"]), (&json!("3\n"), &json!(4)));
    let argv = json!({ "command": "printf", "args": ["%s", "$HOME; *"], "folder": "." });
    assert_eq!(structured(&open.call("ci_run", argv))["stdout"], "$HOME; *");
    let outside = json!({ "command": "true", "folder": ".." });
    assert!(
        refusal(&open.call("ci_run", outside)).contains("leads out of the workspace"),
        "it stays inside"
    );
    let set = |launch: Launch| launch.set("exec_allow", "echo").set("exec_shell", "false");
    let mut bound = client(&workspace, set);
    assert_eq!(
        structured(&bound.call("ci_run", json!({ "command": "echo hi" })))["stdout"],
        "hi\n"
    );
    for command in ["touch made", "echo hi > made", "sh -c 'touch made'"] {
        let answer = bound.call("ci_run", json!({ "command": command }));
        assert!(refusal(&answer).contains("may not be run here"), "{command}: {answer}");
    }
    workspace.put("Makefile", "all:\n\ttouch made\n");
    let said = refusal(&bound.call("ci_build", json!({})));
    assert!(said.contains("`make` may not be run here"), "{said}");
    assert!(!workspace.path("made").exists());
}

#[test]
fn diagnostics_tell_the_machine_in_lines() {
    let workspace = Workspace::new();
    let mut client = client(&workspace, |launch| launch);
    let answer = client.call("ci_diagnostics", json!({}));
    let told = structured(&answer);
    let lines: Vec<&str> =
        told["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let count = std::thread::available_parallelism().unwrap();
    assert!(lines[0].starts_with("OS: Linux "), "{lines:?}");
    assert_eq!(lines[1..3], ["64-bit OS: True".to_owned(), format!("Processor Count: {count}")]);
    assert!(lines[3].ends_with(workspace.root().file_name().unwrap().to_str().unwrap()));
    let git = lines.iter().find(|line| line.starts_with("Git Version: git version 2")).is_some();
    assert!(git, "{lines:?}");
}
