//! Tests of the tools that build and test, with real projects and build tools, and without a
//! network.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use crate::support::{
    MODERN, ServerLaunchOptions, TempWorkspace, TestClientTransport, TestMcpClient, converse, path,
    refusal, structured, text,
};

/// Starts a server that can find the build tools of this machine, and returns its client.
fn client(
    workspace: &TempWorkspace,
    configure: impl Fn(ServerLaunchOptions) -> ServerLaunchOptions,
) -> TestMcpClient {
    TestMcpClient::stdio(configure(launch_with_tools(workspace)), MODERN)
}

/// Returns start options of a server that can find the build tools of this machine.
fn launch_with_tools(workspace: &TempWorkspace) -> ServerLaunchOptions {
    let judges = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/judges/bin");
    assert!(judges.join("pytest").exists(), "pytest is missing: run `cargo xtask setup`");
    let folders = [judges.into_os_string(), path()].join(&OsString::from(":"));
    let home = |name: &str, folder: &str| {
        let set = std::env::var_os(name).map(PathBuf::from);
        set.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(folder))
    };
    ServerLaunchOptions::over(workspace)
        .env("PATH", folders)
        .env("CARGO_HOME", home("CARGO_HOME", ".cargo"))
        .env("RUSTUP_HOME", home("RUSTUP_HOME", ".rustup"))
}

/// Returns the structured result in the answer to a call that ran a program, whatever its exit
/// code.
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
fn a_cargo_project_is_built_tested_and_fixed() {
    let workspace =
        TempWorkspace::new().file("tiny/Cargo.toml", MANIFEST).file("tiny/src/lib.rs", LIB);
    let mut client = client(&workspace, |launch| launch);
    let found = client.call("ci_detect", json!({}));
    let project = &structured(&found)["projects"][0];
    assert_eq!((&project["kind"], &project["folder"]), (&json!("cargo"), &json!("tiny")));
    let input = json!({ "project": "tiny/src" });
    let built = client.call("ci_build", input.clone());
    assert_eq!(report(&built)["ok"], true, "{built}");
    let tested = client.call("ci_test", input.clone());
    let result = report(&tested);
    assert_eq!((&result["ok"], &result["exit_code"]), (&json!(false), &json!(101)), "{tested}");
    let summary = &result["summary"];
    assert_eq!((&summary["passed"], &summary["failed"]), (&json!(1), &json!(1)));
    let [failure] = &result["failures"].as_array().unwrap()[..] else { panic!("{tested}") };
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
    let fixed = client.call("ci_test", input);
    assert_eq!((&report(&fixed)["ok"], &report(&fixed)["failures"]), (&json!(true), &json!([])));
}

#[test]
fn an_npm_project_is_tested_by_its_own_script() {
    let package =
        json!({ "name": "tiny", "version": "1.0.0", "scripts": { "test": "node --test" } });
    let test = "const test = require('node:test');\nconst assert = require('node:assert');\n\
                test('adds', () => assert.strictEqual(1 + 2, 3));\n\
                test('adds wrongly', () => assert.strictEqual(1 + 2, 4));\n";
    let workspace =
        TempWorkspace::new().file("package.json", package.to_string()).file("sum.test.js", test);
    let mut client = client(&workspace, |launch| launch);
    let tested = client.call("ci_test", json!({}));
    let result = report(&tested);
    assert_eq!((&result["kind"], &result["ok"]), (&json!("npm"), &json!(false)), "{tested}");
    let summary = &result["summary"];
    assert_eq!((&summary["passed"], &summary["failed"]), (&json!(1), &json!(1)));
    let failure = &result["failures"][0];
    let place = ["file", "line", "test"].map(|name| failure[name].clone());
    assert_eq!(place, ["sum.test.js".into(), json!(4), "adds wrongly".into()], "{tested}");
    let message = refusal(&client.call("ci_build", json!({})));
    assert!(message.contains("no script `build`; it has `test`"), "{message}");
    let restored = client.call("ci_restore", json!({ "args": ["--offline", "--no-audit"] }));
    assert_eq!(report(&restored)["ok"], true, "{restored}");
}

/// Owner of the npm settings that name a registry: the user or the project.
enum NpmSettingsOwner {
    User,
    Project,
}

/// Starts a package registry that answers each request with 404, until the test process ends.
/// Returns its port, and the first line of each request.
fn serve_empty_registry() -> (u16, mpsc::Receiver<String>) {
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = registry.local_addr().unwrap().port();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in registry.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let _ = sender.send(first);
            let head = "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\n";
            let _ = stream.write_all(format!("{head}{{}}").as_bytes());
        }
    });
    (port, requests)
}

/// Restores an npm project on a server with the text `sandbox` in `[sandbox]`. The npm settings of
/// `owner` name a local registry. Returns the first line of each request that the registry
/// received, and the answer to the call.
fn restore_from_local_registry(sandbox: &str, owner: &NpmSettingsOwner) -> (Vec<String>, Value) {
    let (port, requests) = serve_empty_registry();
    let package = json!({ "name": "tiny", "version": "1.0.0", "dependencies": { "leaf": "1" } });
    let workspace = TempWorkspace::new()
        .file("package.json", package.to_string())
        .file("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
    let home = TempWorkspace::new();
    let (folder, host) = match owner {
        NpmSettingsOwner::User => (&home, "one.localhost"),
        // A name that no program resolves by itself, so it goes to the forwarder.
        NpmSettingsOwner::Project => (&workspace, "one.example"),
    };
    folder.put(".npmrc", format!("registry=http://{host}:{port}/\n"));
    let mut client = client(&workspace, |launch| launch.env("HOME", home.root()));
    let answer = client.call("ci_restore", json!({ "args": ["--no-audit", "--no-fund"] }));
    (requests.try_iter().collect(), answer)
}

/// Returns true if the system could limit the network access of the call's programs to some hosts.
/// `report` is the result of the call.
fn can_limit_hosts(report: &Value) -> bool {
    let missing = report["sandbox"]["missing"].as_array();
    let needs = |it: &Value| it["layer"] == "view" || it["layer"] == "network";
    !missing.is_some_and(|missing| missing.iter().any(needs))
}

#[test]
fn a_restore_reaches_the_registry_of_the_users_npm_settings() {
    for settings in ["restore = \"confirm\"", "restore = \"allow\""] {
        let (requests, answer) = restore_from_local_registry(settings, &NpmSettingsOwner::User);
        let is_asked = requests.iter().any(|line| line.starts_with("GET /leaf "));
        assert!(is_asked || !can_limit_hosts(report(&answer)), "{requests:?} {answer}");
    }
}

#[test]
fn a_restore_that_the_settings_deny_a_network_is_refused_before_it_starts() {
    let denied = "fetching dependencies needs a network, which the sandbox denies here";
    for (settings, allowing) in [
        ("restore = \"deny\"", "set `restore = \"confirm\"` in [sandbox]"),
        ("profile = \"read-only\"", "tools = \"ci.restore\"\nprofile = \"network\""),
        (
            "[[sandbox.for]]\ntools = \"ci.*\"\nprofile = \"workspace\"",
            "tools = \"ci.restore\"\nprofile = \"network\"",
        ),
    ] {
        let (requests, answer) = restore_from_local_registry(settings, &NpmSettingsOwner::User);
        assert!(requests.is_empty(), "{requests:?} {answer}");
        let message = refusal(&answer);
        assert!(message.contains(denied) && message.contains(allowing), "{message}");
    }
    // A restore that may find all dependencies elsewhere runs.
    for (settings, option) in [("", "--offline"), ("read = [\"/usr/share\"]", "--no-audit")] {
        let package = json!({ "name": "tiny", "version": "1.0.0" });
        let workspace = TempWorkspace::new()
            .file("package.json", package.to_string())
            .file("toolgate.toml", format!("[sandbox]\nrestore = \"deny\"\n{settings}\n"));
        let mut client = client(&workspace, |launch| launch);
        let answer = client.call("ci_restore", json!({ "args": [option, "--no-fund"] }));
        assert_eq!(report(&answer)["ok"], true, "{answer}");
    }
}

#[test]
fn a_restore_does_not_reach_a_registry_that_only_the_project_names() {
    let settings = "restore = \"allow\"";
    let (requests, answer) = restore_from_local_registry(settings, &NpmSettingsOwner::Project);
    let report = report(&answer);
    if can_limit_hosts(report) {
        assert!(requests.is_empty(), "{requests:?} {answer}");
        let refused = report["refused_hosts"].to_string();
        assert!(refused.contains("one.example:"), "{answer}");
    }
}

#[test]
fn a_restore_of_cargo_reaches_the_registry_that_replaces_the_default_in_the_users_settings() {
    let (port, requests) = serve_empty_registry();
    let manifest = format!("{MANIFEST}[dependencies]\nleaf = \"1\"\n");
    let workspace = TempWorkspace::new().file("Cargo.toml", manifest).file("src/lib.rs", "");
    let config = format!(
        "[source.crates-io]\nreplace-with = \"mirror\"\n[source.mirror]\n\
         registry = \"sparse+http://one.localhost:{port}/index/\"\n"
    );
    let home = TempWorkspace::new().file(".cargo/config.toml", config);
    let mut client = client(&workspace, |launch| {
        launch.env("HOME", home.root()).env("CARGO_HOME", home.path(".cargo"))
    });
    let answer = client.call("ci_restore", json!({}));
    let report = report(&answer);
    if can_limit_hosts(report) {
        let requests: Vec<String> = requests.try_iter().collect();
        let expected = "GET /index/config.json ";
        assert!(requests.iter().any(|line| line.starts_with(expected)), "{requests:?} {answer}");
        // The user's own folder stays as it was.
        assert!(!home.path(".cargo/registry").exists(), "{answer}");
        let caches = std::fs::read_dir(home.path(".cache/toolgate/packages")).unwrap();
        let mut links = caches.map(|entry| entry.unwrap().path().join("cargo/config.toml"));
        assert!(links.any(|link| link.is_symlink()));
    }
}

#[test]
fn all_programs_use_the_cache_of_a_successful_restore() {
    let package = json!({ "name": "tiny", "version": "1.0.0" });
    let workspace = TempWorkspace::new().file("package.json", package.to_string());
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let mut client = client(&workspace, |launch| launch.env("HOME", home.root()));
    let run = json!({ "command": "sh", "args": ["-c", "echo [$npm_config_cache]"] });
    let cache = |client: &mut TestMcpClient| {
        structured(&client.call("exec_run", run.clone()))["stdout"].as_str().unwrap().to_owned()
    };
    assert_eq!(cache(&mut client), "[]\n");
    // Nothing is fetched, so the registry need not exist.
    let arguments = json!({ "args": ["--no-audit", "--no-fund"] });
    let answer = client.call("ci_restore", arguments);
    assert_eq!(report(&answer)["ok"], true, "{answer}");
    if can_limit_hosts(report(&answer)) {
        let cache = cache(&mut client);
        assert!(cache.contains("/toolgate/packages/"), "{cache}");
    }
}

/// Starts a package registry with one package, whose archive is on another host. The registry runs
/// until the test process ends. Returns its port.
fn serve_package_with_archive_elsewhere() -> u16 {
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = registry.local_addr().unwrap().port();
    let tarball = "http://files.example/leaf-1.0.0.tgz";
    let version = json!({ "name": "leaf", "version": "1.0.0", "dist": { "tarball": tarball } });
    let package = json!({
        "name": "leaf", "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version }
    });
    let body = package.to_string();
    thread::spawn(move || {
        for mut stream in registry.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
            let length = body.len();
            let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn a_person_is_asked_once_about_the_second_host_of_a_registry() {
    let port = serve_package_with_archive_elsewhere();
    let package = json!({ "name": "tiny", "version": "1.0.0", "dependencies": { "leaf": "1" } });
    let workspace = TempWorkspace::new().file("package.json", package.to_string());
    let home =
        TempWorkspace::new().file(".npmrc", format!("registry=http://one.localhost:{port}/\n"));
    let launch = launch_with_tools(&workspace).env("HOME", home.root());
    let wire = TestClientTransport::Stdio(launch.stdio());
    let mut client = TestMcpClient::open(wire, "2025-11-25", json!({ "elicitation": {} }));
    let accept = |_: &Value| json!({ "action": "accept", "content": {} });
    let arguments = json!({ "args": ["--no-audit", "--no-fund", "--fetch-retries=0"] });
    let restore = json!({ "name": "ci_restore", "arguments": arguments });
    let messages = |questions: &[Value]| -> Vec<String> {
        questions.iter().map(|question| question["params"]["message"].to_string()).collect()
    };
    let (answer, questions) = converse(&mut client, "tools/call", restore.clone(), accept);
    if !can_limit_hosts(report(&answer)) {
        return;
    }
    let asked = messages(&questions);
    assert_eq!(asked.len(), 2, "{asked:?} {answer}");
    assert!(asked[0].contains(&format!("from `one.localhost:{port}`")), "{asked:?}");
    assert!(asked[1].contains("also needs `files.example`"), "{asked:?}");
    // The host is allowed, although it does not exist.
    let refused = report(&answer)["refused_hosts"].to_string();
    assert!(!refused.contains("files.example"), "{answer}");
    let (answer, questions) = converse(&mut client, "tools/call", restore, accept);
    assert_eq!(messages(&questions).len(), 1, "{questions:?} {answer}");
}

#[test]
fn a_person_is_asked_once_about_the_registry_if_the_project_and_the_registry_name_hosts() {
    let port = serve_package_with_archive_elsewhere();
    let package = json!({ "name": "tiny", "version": "1.0.0", "dependencies": { "leaf": "1" } });
    let workspace = TempWorkspace::new()
        .file("package.json", package.to_string())
        .file(".npmrc", "@acme:registry=https://more.example/npm/\n");
    let home =
        TempWorkspace::new().file(".npmrc", format!("registry=http://one.localhost:{port}/\n"));
    let launch = launch_with_tools(&workspace).env("HOME", home.root());
    let wire = TestClientTransport::Stdio(launch.stdio());
    let mut client = TestMcpClient::open(wire, MODERN, json!({ "elicitation": {} }));
    let accept = |_: &Value| json!({ "action": "accept", "content": {} });
    let arguments = json!({ "args": ["--no-audit", "--no-fund", "--fetch-retries=0"] });
    let restore = json!({ "name": "ci_restore", "arguments": arguments });
    let (answer, questions) = converse(&mut client, "tools/call", restore, accept);
    // Without the layers, no host is allowed and nobody is asked.
    let Some(first) = questions.first() else { return };
    assert!(first.to_string().contains("`more.example` (`.npmrc`)"), "{first}");
    assert_eq!(questions.len(), 2, "{questions:?} {answer}");
    assert!(questions[1].to_string().contains("also needs `files.example`"), "{questions:?}");
}

#[test]
fn a_refused_second_host_stays_refused_and_the_report_says_how_to_allow_it() {
    let port = serve_package_with_archive_elsewhere();
    let package = json!({ "name": "tiny", "version": "1.0.0", "dependencies": { "leaf": "1" } });
    let workspace = TempWorkspace::new().file("package.json", package.to_string());
    let home =
        TempWorkspace::new().file(".npmrc", format!("registry=http://one.localhost:{port}/\n"));
    let mut client = client(&workspace, |launch| launch.env("HOME", home.root()));
    let arguments = json!({ "args": ["--no-audit", "--no-fund", "--fetch-retries=0"] });
    let answer = client.call("ci_restore", arguments);
    let report = report(&answer);
    if can_limit_hosts(report) {
        let refused = report["refused_hosts"][0].clone();
        assert_eq!(refused["host"], "files.example:80", "{answer}");
        assert_eq!(refused["allow"], "add \"files.example\" to sandbox.hosts", "{answer}");
    }
}

#[test]
fn a_person_sees_the_registries_that_only_files_of_the_project_name() {
    let package = json!({ "name": "tiny", "version": "1.0.0" });
    let workspace = TempWorkspace::new()
        .file("package.json", package.to_string())
        .file(".npmrc", "@acme:registry=https://ada:key@files.example/npm/\n");
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let launch = launch_with_tools(&workspace).env("HOME", home.root());
    let wire = TestClientTransport::Stdio(launch.stdio());
    let mut client = TestMcpClient::open(wire, "2025-11-25", json!({ "elicitation": {} }));
    let arguments = json!({ "args": ["--no-audit", "--no-fund"] });
    let restore = json!({ "name": "ci_restore", "arguments": arguments });
    let decline = |_: &Value| json!({ "action": "decline" });
    let (answer, questions) = converse(&mut client, "tools/call", restore.clone(), decline);
    // Without the layers, no host is allowed and nobody is asked.
    let Some(question) = questions.first() else { return };
    let question = question["params"]["message"].to_string();
    assert!(question.contains("from `one.localhost:1`"), "{question}");
    assert!(question.contains("`files.example` (`.npmrc`)"), "{question}");
    assert!(refusal(&answer).contains("did not agree"), "{answer}");
    let accept = |_: &Value| json!({ "action": "accept", "content": {} });
    converse(&mut client, "tools/call", restore.clone(), accept);
    let (_, questions) = converse(&mut client, "tools/call", restore, accept);
    let question = questions[0]["params"]["message"].to_string();
    assert!(!question.contains("files.example"), "{question}");
}

#[test]
fn an_answer_about_hosts_of_a_project_is_not_used_for_hosts_that_it_names_later() {
    let registry = |host: &str| format!("@acme:registry=https://{host}/npm/\n");
    let package = json!({ "name": "tiny", "version": "1.0.0" });
    let workspace = TempWorkspace::new()
        .file("package.json", package.to_string())
        .file(".npmrc", registry("files.example"));
    let home = TempWorkspace::new().file(".npmrc", "registry=http://one.localhost:1/\n");
    let launch = launch_with_tools(&workspace).env("HOME", home.root());
    let wire = TestClientTransport::Stdio(launch.stdio());
    let mut client = TestMcpClient::open(wire, MODERN, json!({ "elicitation": {} }));
    let arguments = json!({ "args": ["--no-audit", "--no-fund"] });
    let restore = json!({ "name": "ci_restore", "arguments": arguments });
    let accept = |_: &Value| {
        workspace.put(".npmrc", registry("other.example"));
        json!({ "action": "accept", "content": {} })
    };
    let (answer, questions) = converse(&mut client, "tools/call", restore, accept);
    // Without the layers, no host is allowed and nobody is asked.
    let Some(first) = questions.first() else { return };
    assert!(first.to_string().contains("`files.example` (`.npmrc`)"), "{first}");
    let second = questions.get(1).map(Value::to_string).unwrap_or_default();
    assert!(second.contains("`other.example` (`.npmrc`)"), "{questions:?} {answer}");
}

#[test]
fn each_tool_that_runs_a_program_without_a_network_names_the_cause_of_its_failure() {
    let makefile =
        "all test lint:\n\t@seq 9; echo 'Could not resolve host: a.example' >&2; exit 1\n";
    let workspace = TempWorkspace::new().file("Makefile", makefile);
    let mut client = client(&workspace, |launch| launch);
    for (tool, id, input) in [
        ("ci_build", "ci.build", json!({})),
        ("ci_test", "ci.test", json!({})),
        ("ci_lint", "ci.lint", json!({})),
        ("ci_run", "ci.run", json!({ "command": "make test" })),
        ("exec_run", "exec.run", json!({ "command": "make", "args": ["test"] })),
    ] {
        let answer = client.call(tool, input);
        let shown = text(&answer);
        let is_named = shown.contains("programs have no network here")
            && shown.contains(&format!("tools = \"{id}\""));
        assert!(is_named, "{tool}: {answer}");
        // Only a build tool may need dependencies.
        let is_advised = shown.contains("run ci_restore");
        assert_eq!(is_advised, !tool.ends_with("_run"), "{tool}: {answer}");
    }
}

#[test]
fn a_python_project_is_tested_by_pytest() {
    let test = "def test_adds():\n    assert 1 + 2 == 3\n\n\ndef test_adds_wrongly():\n    assert 1 + 2 == 4\n";
    let workspace = TempWorkspace::new()
        .file("sums/tests/test_sum.py", test)
        .file("sums/pytest.ini", "[pytest]\n");
    let mut client = client(&workspace, |launch| launch);
    let tested = client.call("ci_test", json!({ "project": "sums" }));
    let result = report(&tested);
    assert_eq!((&result["kind"], &result["ok"]), (&json!("pytest"), &json!(false)), "{tested}");
    let summary = &result["summary"];
    assert_eq!((&summary["passed"], &summary["failed"]), (&json!(1), &json!(1)));
    let failure = &result["failures"][0];
    let place = ["file", "line", "test"].map(|name| failure[name].clone());
    assert_eq!(place, ["sums/tests/test_sum.py".into(), json!(6), "test_adds_wrongly".into()]);
    let one = json!({ "project": "sums", "filter": "test_adds and not wrongly" });
    let passed = client.call("ci_test", one.clone());
    assert_eq!((&report(&passed)["ok"], &report(&passed)["output"]), (&json!(true), &json!("")));
    let mut shown = one;
    shown["max_output_bytes"] = json!(1000);
    let output = report(&client.call("ci_test", shown))["output"].to_string();
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn quiet_settings_of_pytest_hide_neither_counts_nor_ids() {
    let test = "def test_load():\n    assert 1 + 2 == 4\n";
    let config = "[pytest]\naddopts = -qq --tb=no -p no:terminal --import-mode=importlib\n";
    let workspace = TempWorkspace::new()
        .file("pytest.ini", config)
        .file("a/test_load.py", test)
        .file("b/test_load.py", format!("{test}\n\ndef test_good():\n    pass\n"));
    let mut client = client(&workspace, |launch| launch);
    for args in [json!([]), json!(["-q"]), json!(["-qq", "--tb=no"])] {
        let tested = client.call("ci_test", json!({ "args": args }));
        let result = report(&tested);
        let summary = &result["summary"];
        assert_eq!((&summary["passed"], &summary["failed"]), (&json!(1), &json!(2)), "{tested}");
        let ids: Vec<&Value> =
            result["failures"].as_array().unwrap().iter().map(|failure| &failure["id"]).collect();
        assert_eq!(ids, ["a/test_load.py::test_load", "b/test_load.py::test_load"], "{tested}");
    }
    let one = client.call("ci_test", json!({ "filter": "b/test_load.py::test_load" }));
    assert_eq!(report(&one)["summary"]["failed"], 1, "{one}");
    assert_eq!(report(&one)["failures"][0]["file"], "b/test_load.py", "{one}");
    let unknown = client.call("ci_test", json!({ "filter": "b/test_load.py::test_gone" }));
    assert!(text(&unknown).contains("no test matched the filter"), "{unknown}");
}

#[test]
fn a_make_project_is_built_and_tested_by_its_targets() {
    let makefile = "all: main.o\nmain.o: main.c\n\tcc -c main.c\ntest:\n\tseq 1 20000; exit 3\n";
    let workspace = TempWorkspace::new()
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
    let full = client.call("exec_output", json!({ "output_id": id, "max_bytes": 20 }));
    assert!(structured(&full)["text"].as_str().unwrap().contains("seq 1"), "{full}");
}

#[test]
fn command_lines_obey_the_settings_of_exec() {
    let workspace = TempWorkspace::new();
    let mut unlimited = client(&workspace, |launch| launch);
    let result = unlimited.call("ci_run", json!({ "command": "printf '%s|' 'a b' c" }));
    assert_eq!(structured(&result)["stdout"], "a b|c|");
    let result = unlimited.call("ci_run", json!({ "command": "echo $((1 + 2)) | cat; exit 4" }));
    assert_eq!(
        (&report(&result)["stdout"], &report(&result)["exit_code"]),
        (&json!("3\n"), &json!(4))
    );
    let argv = json!({ "command": "printf", "args": ["%s", "$HOME; *"], "folder": "." });
    assert_eq!(structured(&unlimited.call("ci_run", argv))["stdout"], "$HOME; *");
    let outside = json!({ "command": "true", "folder": ".." });
    assert!(
        refusal(&unlimited.call("ci_run", outside)).contains("leads out of the workspace"),
        "the folder is in the workspace"
    );
    let set = |launch: ServerLaunchOptions| launch.set("exec_allow", "echo");
    let mut limited = client(&workspace, set);
    assert_eq!(
        structured(&limited.call("ci_run", json!({ "command": "echo hi" })))["stdout"],
        "hi\n"
    );
    for (command, reason) in [
        ("touch made", "may not be run here"),
        ("echo hi > made", "this line needs a shell"),
        ("sh -c 'touch made'", "may not be run here"),
    ] {
        let answer = limited.call("ci_run", json!({ "command": command }));
        assert!(refusal(&answer).contains(reason), "{command}: {answer}");
    }
    workspace.put("Makefile", "all:\n\ttouch made\n");
    let message = refusal(&limited.call("ci_build", json!({})));
    assert!(message.contains("`make` may not be run here"), "{message}");
    assert!(!workspace.path("made").exists());
}

#[test]
fn diagnostics_describe_the_machine_in_lines() {
    let workspace = TempWorkspace::new();
    let mut client = client(&workspace, |launch| launch);
    let answer = client.call("ci_diagnostics", json!({}));
    let result = structured(&answer);
    let lines: Vec<&str> =
        result["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let count = thread::available_parallelism().unwrap();
    assert!(lines[0].starts_with("OS: Linux "), "{lines:?}");
    assert_eq!(lines[1..3], ["64-bit OS: True".to_owned(), format!("Processor Count: {count}")]);
    assert!(lines[3].ends_with(workspace.root().file_name().unwrap().to_str().unwrap()));
    let git = lines.iter().find(|line| line.starts_with("Git Version: git version 2")).is_some();
    assert!(git, "{lines:?}");
}
