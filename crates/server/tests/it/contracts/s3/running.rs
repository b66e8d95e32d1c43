//! Tests of the method `exec/run` of Mira's contract.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{MiraClient, MiraServer, MiraTransport, over_all};
use crate::support::{ProcessMarker, ServerLaunchOptions, TempWorkspace};

/// Runs `command` with the further parameters `more` and returns the result.
#[track_caller]
fn run(mira: &mut MiraClient, command: &str, more: Value) -> Value {
    let mut params = json!({ "command": command });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    mira.get("exec/run", params)
}

#[test]
fn s3_51_52_56_57_59_a_program_gets_its_arguments_unchanged() {
    over_all(&TempWorkspace::new(), |mira| {
        let odd = ["a b", "\"q\"", "'s'", "$HOME", "; touch x", "*", "", "é\n", "--", "`id`"];
        let args = json!({ "args": ([&["%s|"], &odd[..]].concat()) });
        let printed = run(mira, "printf", args);
        assert_eq!(printed["stdout"], odd.map(|arg| format!("{arg}|")).concat());
        assert_eq!((&printed["exit_code"], &printed["stderr"]), (&json!(0), &json!("")));
        assert_eq!((&printed["timed_out"], printed["duration_ms"].is_u64()), (&json!(false), true));
        assert_eq!(run(mira, "cat", json!({ "stdin": "in é\n" }))["stdout"], "in é\n");
        assert_eq!(run(mira, "cat", json!({ "stdin": null }))["stdout"], "");
        assert_eq!(run(mira, "cat", json!({}))["stdout"], "");
        // Without a shell nothing is expanded, with one it is.
        assert_eq!(run(mira, "echo", json!({ "args": ["$HOME"] }))["stdout"], "$HOME\n");
        let shell = run(mira, "echo $HOME | tr a-z A-Z; exit 3", json!({ "shell": true }));
        assert_eq!(shell["exit_code"], 3, "a program that fails has a result: {shell}");
        let home = shell["stdout"].as_str().unwrap().trim_end();
        assert!(home.starts_with('/') && home == home.to_uppercase(), "{home}");
        let both = run(mira, "echo out; echo err >&2", json!({ "shell": true }));
        assert_eq!((&both["stdout"], &both["stderr"]), (&json!("out\n"), &json!("err\n")));
        let killed = run(mira, "kill -9 $$", json!({ "shell": true }));
        assert_eq!((&killed["exit_code"], &killed["timed_out"]), (&json!(137), &json!(false)));
        // Bytes that are not UTF-8 are replaced.
        let binary = run(mira, "printf", json!({ "args": ["a\\377b"] }));
        assert_eq!(binary["stdout"], "a\u{fffd}b");
        for (field, params) in [
            ("command", json!({})),
            ("command", json!({ "command": ["a"] })),
            ("args", json!({ "command": "a", "args": "b" })),
            ("args.1", json!({ "command": "a", "args": ["b", 1] })),
            ("env.A", json!({ "command": "a", "env": { "A": 1 } })),
            ("env", json!({ "command": "a", "env": null })),
            ("cwd", json!({ "command": "a", "cwd": 1 })),
            ("stdin", json!({ "command": "a", "stdin": 1 })),
            ("shell", json!({ "command": "a", "shell": "sh" })),
            ("stream", json!({ "command": "a", "stream": null })),
            ("max_output_bytes", json!({ "command": "a", "max_output_bytes": 1 })),
        ] {
            mira.expect_refusal_of(-32602, field, "exec/run", params);
        }
    });
}

#[test]
fn s3_53_54_77_a_program_runs_in_the_given_folder_with_only_the_given_environment() {
    let workspace = TempWorkspace::new().file("sub/x", "").link("out", "/etc").link("in", "sub");
    let server = MiraServer::with(&workspace, "", |launch| {
        launch.env("SECRET_TOKEN", "canary-of-the-parent").env("LANG", "C.UTF-8")
    });
    let mut mira = server.root();
    let root = workspace.root().canonicalize().unwrap();
    let pwd = |mira: &mut MiraClient, cwd: Value| {
        let here = run(mira, "pwd", json!({ "cwd": cwd, "args": ["-P"] }));
        here["stdout"].as_str().unwrap().trim_end().to_owned()
    };
    assert_eq!(pwd(&mut mira, Value::Null), root.to_str().unwrap());
    assert_eq!(pwd(&mut mira, json!("sub")), root.join("sub").to_str().unwrap());
    assert_eq!(pwd(&mut mira, json!("in")), root.join("sub").to_str().unwrap());
    for cwd in ["..", "/etc", "out", "sub/../.."] {
        mira.expect_refusal(1002, "exec/run", json!({ "command": "pwd", "cwd": cwd }));
    }
    mira.expect_refusal(1001, "exec/run", json!({ "command": "pwd", "cwd": "none" }));
    // Its environment is that of the call and little else.
    let env = run(&mut mira, "env", json!({ "env": { "GREETING": "hi there", "EMPTY": "" } }));
    let env = env["stdout"].as_str().unwrap();
    assert!(env.contains("GREETING=hi there\n") && env.contains("EMPTY=\n"), "{env}");
    assert!(!env.contains("canary") && !env.contains("TOOLGATE_"), "{env}");
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "A=B", ""] {
        let params = json!({ "command": "env", "env": { name: "/tmp/x" } });
        let error = mira.expect_refusal(1003, "exec/run", params);
        let field = format!("env.{name}");
        assert_eq!(error["data"]["field"], field, "{error}");
    }
    mira.expect_refusal(1003, "exec/run", json!({ "command": "env", "env": { "A": "b\0c" } }));
}

#[test]
fn s3_11_17_60_61_77_only_allowed_programs_run() {
    let workspace = TempWorkspace::new()
        .file("Cargo.toml", "[package]\nname = \"p\"\nversion = \"0.1.0\"\nedition = \"2021\"\n")
        .file("src/main.rs", "fn main() {}\n");
    let cargo_home = |name: &str| std::env::var_os(name).unwrap_or_default();
    let server = MiraServer::with(&workspace, "", |launch| {
        launch
            .set("exec_allow", "cargo,echo")
            .set("exec_env_keep", "HOME,CARGO_HOME,RUSTUP_HOME,RUSTUP_TOOLCHAIN")
            .env("CARGO_HOME", cargo_home("CARGO_HOME"))
            .env("RUSTUP_HOME", cargo_home("RUSTUP_HOME"))
            .env("HOME", cargo_home("HOME"))
    });
    let mut mira = server.root();
    // The contract's own example.
    let built = mira.get("exec/run", json!({ "command": "cargo", "args": ["build"] }));
    assert_eq!(built["exit_code"], 0, "{built}");
    assert!(workspace.path("target/debug/p").exists());
    assert_eq!(run(&mut mira, "echo", json!({ "args": ["a"] }))["stdout"], "a\n");
    workspace.put("echo", "#!/bin/sh\necho mine\n");
    for command in ["ls", "sh", "/bin/ls", "./echo", "/bin/sh"] {
        mira.expect_refusal(1002, "exec/run", json!({ "command": command }));
    }
    mira.expect_refusal(1002, "exec/run", json!({ "command": "echo a; ls", "shell": true }));
    assert_eq!(run(&mut mira, "echo", json!({ "args": ["; ls"] }))["stdout"], "; ls\n");
}

#[test]
fn s3_60_a_command_that_cannot_run_is_refused_by_parameter() {
    let workspace = TempWorkspace::new().file("data.txt", "no program");
    over_all(&workspace, |mira| {
        for command in ["", "  ", "no-such-program-at-all", "./data.txt", "a\0b", "./none/x"] {
            mira.expect_refusal_of(1003, "command", "exec/run", json!({ "command": command }));
        }
        let args = json!({ "command": "echo", "args": ["a", "b\0c"] });
        mira.expect_refusal_of(1003, "args.1", "exec/run", args);
        mira.expect_refusal_of(
            1003,
            "command",
            "exec/run",
            json!({ "command": " ", "shell": true }),
        );
    });
}

#[test]
fn s3_60_a_program_that_cannot_be_started_is_an_internal_error() {
    let mut mira = MiraClient::stdio(ServerLaunchOptions::over(&TempWorkspace::new()));
    let call = json!({ "command": "true" });
    assert_eq!(mira.get("exec/run", call.clone())["exit_code"], 0);
    let MiraTransport::Stdio(stdio) = &mira.wire else { unreachable!() };
    let pid = stdio.pid;
    // A limit a little above the open files leaves none for a program's pipes.
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut codes = Vec::new();
    for more in 0..12 {
        let limit = format!("--nofile={}:", open + more);
        let limited = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
        assert!(limited.unwrap().success());
        codes.push(mira.ask("exec/run", call.clone()).map_err(|error| error["code"].clone()));
    }
    let failed_with =
        |code: i64| codes.iter().filter(|outcome| **outcome == Err(json!(code))).count();
    assert!(failed_with(-32603) > 0, "{codes:?}");
    let done = codes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(failed_with(-32603) + failed_with(1006) + done, 12, "{codes:?}");
}

#[test]
fn s3_55_a_program_times_out_as_given_and_its_children_are_killed() {
    let workspace = TempWorkspace::new();
    let server = MiraServer::over(&workspace);
    let mut mira = server.root();
    for timeout_ms in [json!(999), json!(600_001), json!(0), json!(-1), json!(null), json!("1000")]
    {
        let params = json!({ "command": "true", "timeout_ms": timeout_ms });
        mira.expect_refusal_of(-32602, "timeout_ms", "exec/run", params);
    }
    for timeout_ms in [1000, 600_000] {
        assert_eq!(run(&mut mira, "true", json!({ "timeout_ms": timeout_ms }))["exit_code"], 0);
    }
    let marker = ProcessMarker::new();
    let script = format!("echo begun; sleep {0} & sleep {0}", marker.0);
    let started = Instant::now();
    let over = run(&mut mira, &script, json!({ "shell": true, "timeout_ms": 1000 }));
    assert_eq!((&over["timed_out"], &over["exit_code"]), (&json!(true), &json!(-1)), "{over}");
    assert_eq!(over["stdout"], "begun\n");
    let took = started.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(5), "{took:?}");
    marker.wait_until_gone();
}

#[test]
fn s3_58_output_is_streamed_and_repeated_in_the_result() {
    let workspace = TempWorkspace::new();
    over_all(&workspace, |mira| {
        let script = "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.1; done; \
                      printf 'é€😀'; seq 1 20000; exit 4";
        for stream in [true, false] {
            let params = json!({ "shell": true, "stream": stream });
            let result = run(mira, script, params);
            assert_eq!(result["exit_code"], 4, "{result}");
            let notifications = std::mem::take(&mut mira.notifications);
            if !stream || !mira.is_connected() {
                assert!(notifications.is_empty(), "{notifications:?}");
                continue;
            }
            let mut printed = [String::new(), String::new()];
            for (seq, message) in notifications.iter().enumerate() {
                let params = message["params"].as_object().unwrap();
                let keys: Vec<_> = params.keys().collect();
                assert_eq!(message["method"], "exec/stream");
                assert_eq!(keys, ["id", "stream", "chunk", "seq"], "{message}");
                assert_eq!((&params["id"], &params["seq"]), (&json!(1), &json!(seq)), "{message}");
                let at = ["stdout", "stderr"].iter().position(|name| params["stream"] == *name);
                printed[at.unwrap()] += params["chunk"].as_str().unwrap();
            }
            assert!(notifications.len() > 3, "too few chunks: {}", notifications.len());
            assert_eq!(result["stdout"], printed[0]);
            assert_eq!(result["stderr"], printed[1]);
            // No notification comes after the answer.
            mira.get("files/read", json!({ "path": "README.md" }));
            assert!(mira.notifications.is_empty(), "{:?}", mira.notifications);
        }
    });
}

#[test]
fn s3_59_too_long_output_is_cut_with_a_line_that_says_how_to_read_the_rest() {
    let workspace = TempWorkspace::new();
    let mut mira = MiraClient::stdio(ServerLaunchOptions::over(&workspace));
    let result = run(&mut mira, "seq", json!({ "args": ["1", "400000"] }));
    let stdout = result["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("1\n2\n") && stdout.ends_with("\n400000\n"));
    let line = stdout.lines().find(|line| line.contains("bytes left out")).unwrap();
    let between = |from: &str, to: &str| {
        line.split_once(from).and_then(|(_, rest)| rest.split_once(to)).unwrap().0.to_owned()
    };
    // The line says how to read the rest.
    let offset: u64 = between("offset ", "]").parse().unwrap();
    let params = json!({
        "output_id": between("output_id \"", "\""), "stream": between("stream \"", "\""), "offset": offset,
    });
    let rest = mira.get("exec/output", params);
    let head = &stdout[..usize::try_from(offset).unwrap()];
    let full: String = (1..=400_000).map(|n| format!("{n}\n")).collect();
    assert!(full.starts_with(&format!("{head}{}", rest["text"].as_str().unwrap())));
}
