//! Tests of the tools that build and test, run on small projects.

use std::ffi::OsString;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use toolgate_contract::{AnyTool, Caller, ToolContext, ToolError, ToolErrorKind, ToolOutput};

use super::tools;
use crate::exec::{self, WorkspaceProgramRunner};
use toolgate_world::{ProcessRunner, Root};

const MANIFEST: &str =
    "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n";

/// Test workspace with the tools of the `ci` toolset.
struct CiTestBench {
    tools: Vec<Arc<dyn AnyTool>>,
    folder: TempDir,
}

impl CiTestBench {
    fn new(exec: &exec::ExecSettings) -> Self {
        Self::with_path(exec, std::env::var_os("PATH").expect("PATH is set"))
    }

    /// Creates a test bench that looks up programs in the folders of `path`, a value of the
    /// variable PATH.
    fn with_path(exec: &exec::ExecSettings, path: OsString) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let names = ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
        let env = names.iter().filter_map(|name| {
            let value = std::env::var_os(name)?;
            Some((OsString::from(name), value))
        });
        let env = env.chain([("PATH".into(), path)]);
        let processes = ProcessRunner::new(env).expect("programs start");
        let root = Root::open(folder.path()).expect("the workspace opens");
        let programs = WorkspaceProgramRunner::new(&root, &processes, exec);
        Self { tools: tools(&programs, "0"), folder }
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is made");
        fs::write(path, content).expect("the file is written");
    }

    async fn call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(120));
        let found = self.tools.iter().find(|it| it.spec().id.as_str() == tool);
        found.expect("the tool exists").run(&ctx, input).await
    }

    async fn refused(&self, tool: &str, input: Value) -> ToolError {
        let call = format!("{tool} {input}");
        match self.call(tool, input).await {
            Ok(output) => panic!("{call}: {}", output.value),
            Err(err) => err,
        }
    }
}

#[tokio::test]
async fn a_refused_command_line_gets_advice_on_its_own_fields() {
    let bench = CiTestBench::new(&exec::ExecSettings::default());
    for (line, advice) in [
        ("cd src", "set the directory in `path`; to run a command after it, add `&& COMMAND`"),
        ("./missing", "paths are relative to `path`"),
        ("export A", "`env NAME=value`"),
    ] {
        let message = bench.refused("ci.run", json!({ "command": line })).await.message;
        assert!(message.contains(advice), "{message}");
        assert!(!message.contains("`shell") && !message.contains("`cwd`"), "{message}");
    }
    let input = json!({ "command": "echo hi", "args": [] });
    let message = bench.refused("ci.run", input).await.message;
    assert!(message.contains("; with `args`, `command` is only the program"), "{message}");
    let allow = vec!["ls".to_owned(), "wc".to_owned()];
    let bench = CiTestBench::new(&exec::ExecSettings { allow, ..exec::ExecSettings::default() });
    let message = bench.refused("ci.run", json!({ "command": "ls | wc" })).await.message;
    assert!(message.starts_with("this line needs a shell, "), "{message}");
    assert!(!message.contains("`shell`"), "{message}");
}

#[tokio::test]
async fn a_program_that_is_not_allowed_is_not_reported_as_missing() {
    let allow = vec!["make".to_owned()];
    let bench = CiTestBench::new(&exec::ExecSettings { allow, ..exec::ExecSettings::default() });
    let output = bench.call("ci.diagnostics", json!({})).await.unwrap();
    assert!(output.text.body.contains("\nGit Version: may not be run\n"), "{}", output.text.body);
    let bench = CiTestBench::with_path(&exec::ExecSettings::default(), "/nowhere".into());
    let output = bench.call("ci.diagnostics", json!({})).await.unwrap();
    assert!(output.text.body.contains("\nGit Version: not found\n"), "{}", output.text.body);
}

#[tokio::test]
async fn a_filter_without_a_match_and_a_crash_are_failures() {
    let bench = CiTestBench::new(&exec::ExecSettings::default());
    bench.put("Cargo.toml", MANIFEST);
    let lib = "#[test]\nfn fine() {}\n#[test]\nfn crashes() { std::process::abort(); }\n";
    bench.put("src/lib.rs", lib);
    let nothing = bench.call("ci.test", json!({ "filter": "xyzzy" })).await.unwrap();
    assert_eq!((&nothing.value["ok"], &nothing.value["exit_code"]), (&json!(false), &json!(0)));
    let failure = &nothing.value["failures"][0]["message"];
    assert_eq!(failure, "no test matched the filter `xyzzy`");
    assert!(nothing.text.body.starts_with("no test was run: 0 passed"), "{}", nothing.text.body);
    let one = json!({ "filter": "fine", "args": ["--lib", "--", "--nocapture"] });
    let one = bench.call("ci.test", one).await.unwrap();
    assert_eq!((&one.value["ok"], &one.value["summary"]["passed"]), (&json!(true), &json!(1)));
    let crash = bench.call("ci.test", json!({ "filter": "crashes" })).await.unwrap();
    let failures = crash.value["failures"].as_array().unwrap();
    let [failure] = &failures[..] else { panic!("{}", crash.value) };
    assert!(failure["message"].as_str().unwrap().contains("signal: 6"), "{failure}");
}

#[tokio::test]
async fn packages_are_not_installed_without_a_virtual_environment() {
    let bench = CiTestBench::new(&exec::ExecSettings::default());
    bench.put("requirements.txt", "");
    let refused = bench.refused("ci.restore", json!({})).await;
    assert_eq!(refused.fault, ToolErrorKind::NotFound);
    assert!(refused.message.contains("`python3 -m venv .venv`"), "{refused:?}");
    let output = bench.call("ci.detect", json!({})).await.unwrap();
    assert_eq!(output.value["projects"][0]["restore"], Value::Null);
}

#[tokio::test]
async fn a_package_json_with_a_byte_order_mark_is_read_and_a_broken_one_is_reported() {
    let bench = CiTestBench::new(&exec::ExecSettings::default());
    bench.put("package.json", "\u{feff}{ \"scripts\": { \"lint\": \"eslint .\" } }");
    let refused = bench.refused("ci.test", json!({})).await;
    assert!(refused.message.contains("it has `lint`"), "{refused:?}");
    bench.put("package.json", "{ \"scripts\": { \"test\": ");
    let refused = bench.refused("ci.test", json!({})).await;
    assert!(refused.message.contains("package.json is not JSON: EOF"), "{refused:?}");
}

#[tokio::test]
async fn a_filter_for_an_unknown_test_runner_is_refused() {
    let bench = CiTestBench::new(&exec::ExecSettings::default());
    bench.put("package.json", r#"{ "scripts": { "test": "node a.js" } }"#);
    let refused = bench.refused("ci.test", json!({ "filter": "adds" })).await;
    assert_eq!(refused.fault, ToolErrorKind::Invalid { pointer: "/filter".to_owned() });
    assert!(refused.message.contains("`args`"), "{refused:?}");
}
