//! Tests of the environment of a program: variables, directory, descriptors, session and signals.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use toolgate_contract::ToolErrorKind;

use super::{ExecTestBench, pointer};
use crate::exec::ExecSettings;

#[tokio::test]
async fn the_environment_has_the_listed_variables_and_no_others() {
    let bench = ExecTestBench::new();
    let ran = bench.run(json!({"command": "env", "env": {"MINE": "1"}})).await.expect("env runs");
    assert!(!ran.stdout().contains("canary"));
    let names: BTreeSet<&str> = ran
        .stdout()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    let allowed = BTreeSet::from([
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "TMPDIR",
        "USER",
        "GIT_TERMINAL_PROMPT",
        "MINE",
    ]);
    assert!(names.is_subset(&allowed), "{names:?}");
    assert!(names.is_superset(&BTreeSet::from(["PATH", "GIT_TERMINAL_PROMPT", "MINE"])));
}

#[tokio::test]
async fn a_server_variable_is_passed_on_if_env_keep_lists_it() {
    let env_keep = vec!["MCP_CANARY_SECRET".to_owned()];
    let bench = ExecTestBench::with(&ExecSettings { env_keep, ..ExecSettings::default() });
    assert_eq!(bench.sh("echo $MCP_CANARY_SECRET").await.stdout(), "canary\n");
}

#[tokio::test]
async fn variables_that_run_code_or_have_invalid_names_are_refused() {
    let bench = ExecTestBench::new();
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "DYLD_INSERT_LIBRARIES",
        "BASH_ENV",
        "ENV",
        "PYTHONSTARTUP",
        "NODE_OPTIONS",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT",
        "BASH_FUNC_ls%%",
        "PATH",
    ] {
        let err = bench.run(json!({"command": "env", "env": {name: "x"}})).await.unwrap_err();
        assert_eq!(pointer(&err), Some(&*format!("/env/{name}")), "{}", err.message);
    }
    for name in ["", "A=B"] {
        let err = bench.run(json!({"command": "env", "env": {name: "x"}})).await.unwrap_err();
        assert_eq!(pointer(&err), Some(&*format!("/env/{name}")), "{}", err.message);
    }
}

#[tokio::test]
async fn a_program_inherits_only_the_three_standard_descriptors() {
    let bench = ExecTestBench::new();
    let file = File::open("/etc/passwd").unwrap();
    // Open across exec, as a careless parent or library would leave it.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let ran = bench.sh("ls -l /proc/$$/fd; exec 3</dev/null").await;
    let names = ran.stdout().lines().filter_map(|line| line.split(" -> ").next());
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next_back()).skip(1).collect();
    assert_eq!(names, ["0", "1", "2"], "{}", ran.stdout());
    assert!(ran.stdout().contains("0 -> /dev/null"));
}

#[tokio::test]
async fn a_program_has_its_own_session_and_default_signals() {
    let bench = ExecTestBench::new();
    let ran = bench.sh("cut -d' ' -f1,5,6,7 /proc/$$/stat; ulimit -c; true").await;
    let mut lines = ran.stdout().lines();
    let ids: Vec<&str> = lines.next().unwrap().split(' ').collect();
    assert_eq!(ids, [ids[0], ids[0], ids[0], "0"], "pid, group, session, terminal");
    assert_eq!(lines.next(), Some("0"), "core dumps");
    let ran = bench.run(json!({"command": "cat", "args": ["/proc/self/status"]})).await.unwrap();
    let zero = "0000000000000000";
    for set in ["SigBlk", "SigPnd"] {
        assert!(ran.stdout().contains(&format!("{set}:\t{zero}")), "{}", ran.stdout());
    }
    let ignored = ran.stdout().lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let sigpipe = 1 << (13 - 1);
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & sigpipe, 0, "{ignored}");
}

#[tokio::test]
async fn a_program_starts_inside_the_root() {
    let bench = ExecTestBench::new();
    let workspace = fs::canonicalize(bench.workspace.path()).unwrap();
    fs::create_dir(workspace.join("sub")).unwrap();
    symlink("sub", workspace.join("inside")).unwrap();
    let real = workspace.to_str().unwrap();
    for (cwd, expected) in [
        (Value::Null, real.to_owned()),
        (json!("."), real.to_owned()),
        (json!("inside"), format!("{real}/sub")),
        (json!(format!("{real}/sub")), format!("{real}/sub")),
    ] {
        let ran = bench.run(json!({"command": "pwd", "cwd": cwd})).await.unwrap();
        assert_eq!(ran.stdout().trim_end(), expected);
    }
}

#[tokio::test]
async fn a_program_does_not_start_outside_the_root() {
    let bench = ExecTestBench::new();
    symlink(bench.outside.path(), bench.workspace.path().join("link")).unwrap();
    let outside = bench.outside.path().to_str().unwrap();
    for cwd in ["link", "..", "link/..", outside, "/", "/proc/self/root"] {
        let err = bench.run(json!({"command": "pwd", "cwd": cwd})).await.unwrap_err();
        assert_eq!(err.fault, ToolErrorKind::NotAllowed, "{cwd}: {}", err.message);
    }
    let err = bench.run(json!({"command": "pwd", "cwd": "missing"})).await.unwrap_err();
    assert_eq!(err.fault, ToolErrorKind::NotFound);
}

#[tokio::test]
async fn a_prompt_fails_instead_of_waiting_for_input() {
    let bench = ExecTestBench::new();
    let ran = bench.sh("read line </dev/tty").await;
    assert_ne!(ran.exit_code(), 0);
    let clone = json!({
        "command": "git", "args": ["clone", "https://127.0.0.1:1/x"], "timeout_ms": 20000
    });
    let ran = bench.run(clone).await.unwrap();
    assert_eq!((ran.exit_code(), &ran.value["timed_out"]), (128, &json!(false)));
}
