//! Tests of `toolgate doctor upstreams`.

use std::process::{Command, Output};

use super::{checkout, with_odd, with_odds};
use crate::support::{TempWorkspace, binary, path, trust_config};

/// Runs `toolgate doctor upstreams` with the upstream names `names` in `workspace`.
fn doctor(workspace: &TempWorkspace, names: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["doctor", "upstreams"]).args(names);
    command.current_dir(workspace.root()).env_clear().env("PATH", path());
    command.env("HOME", workspace.path(".home")).env("XDG_CACHE_HOME", workspace.path(".cache"));
    trust_config(&mut command, workspace.root());
    command.output().unwrap()
}

#[test]
fn doctor_prints_a_line_for_each_upstream() {
    let workspace = with_odds(&[("odd", "ODD_RESOURCES = \"odd://1\",", "")]);
    let settings = workspace.read("toolgate.toml");
    let dead = "[upstream.dead]\ncommand = [\"false\"]\n[upstream.off]\ncommand = [\"false\"]\nenabled = false\n";
    let workspace = workspace.file("toolgate.toml", settings + dead);
    let all = doctor(&workspace, &[]);
    let stdout = String::from_utf8(all.stdout.clone()).unwrap();
    let mut lines: Vec<_> = stdout.lines().filter(|line| !line.starts_with(' ')).collect();
    lines.sort_unstable();
    let [failed, ok, skipped] = lines[..] else { panic!("{all:?}") };
    assert!(skipped.starts_with("skipped off: no request was sent, "), "{all:?}");
    assert!(skipped.contains("remove `enabled = false` from [upstream.off]"), "{all:?}");
    assert!(failed.starts_with("FAILED  dead: "), "{all:?}");
    assert!(ok.starts_with("ok      odd: MCP 2025-06-18 (tools: "), "{all:?}");
    assert!(ok.ends_with(", resources: 1, prompts: 0)"), "{all:?}");
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    assert_eq!(doctor(&workspace, &["odd"]).status.code(), Some(0));
    let unknown = doctor(&workspace, &["oddd"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("the upstreams are dead, odd"),
        "{unknown:?}"
    );
}

#[test]
fn doctor_counts_hidden_tools_and_reports_a_misspelled_one() {
    let hidden = doctor(&with_odd("tools = [\"!shout\"]"), &[]);
    let stdout = String::from_utf8_lossy(&hidden.stdout);
    assert!(stdout.contains(", 1 hidden, resources: "), "{hidden:?}");
    assert_eq!(hidden.status.code(), Some(0), "{hidden:?}");
    let misspelled = doctor(&with_odd("tools = [\"!shuot\"]"), &[]);
    let stdout = String::from_utf8_lossy(&misspelled.stdout);
    let warning =
        "WARNING odd: `tools` has \"!shuot\", which matches no tool; did you mean `shout`?";
    assert!(stdout.lines().any(|line| line == warning), "{misspelled:?}");
    assert!(!stdout.contains("hidden"), "{misspelled:?}");
    assert_eq!(misspelled.status.code(), Some(1), "{misspelled:?}");
}

/// Runs `toolgate doctor upstreams` for an upstream program that runs `script`. Returns the output
/// lines below the upstream's line, and true if the upstream answered.
fn details(script: &str) -> (Vec<String>, bool) {
    let python = checkout().join(".tools/python/bin/python");
    let workspace = TempWorkspace::new().file("up.py", script);
    let script = workspace.path("up.py");
    let settings = format!("[upstream.up]\ncommand = [{python:?}, {script:?}]\nstart_ms = 5000\n");
    let workspace = workspace.file("toolgate.toml", settings);
    let report = doctor(&workspace, &[]);
    let stdout = String::from_utf8(report.stdout).unwrap();
    let (first, rest) = stdout.split_once('\n').unwrap();
    assert!(!rest.contains("hunter2-and-more"), "{rest}");
    (rest.lines().map(|line| line.trim_start().to_owned()).collect(), first.starts_with("ok "))
}

#[test]
fn doctor_shows_what_was_asked_what_came_back_and_what_the_program_wrote() {
    let (lines, is_ok) = details(
        "import sys\n\
         print('\u{feff}Welcome!')\n\
         print('Content-Length: 5')\n\
         print('no key', file=sys.stderr, flush=True)\n\
         sys.stdin.readline()\n\
         error = '\"error\":{\"code\":-32022,\"message\":\"no\",\"data\":{\"supported\":[\"2199-01-01\"]}}'\n\
         print('{\"jsonrpc\":\"2.0\",\"id\":1,' + error + '}', flush=True)\n\
         print('Password: ', end='', flush=True)\n\
         sys.stdin.read()\n",
    );
    assert!(!is_ok, "{lines:?}");
    for expected in [
        "asked `server/discover` (2026-07-28): it refused: no (-32022): {\"supported\":[\"2199-01-01\"]}",
        "asked `initialize` (2025-11-25): no answer",
        "output that is not a message: \\u{feff}Welcome!",
        "output that is not a message: Content-Length: 5",
        "output that is not a message: Password:",
        "it printed on standard error:",
        "no key",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
    }
    assert!(lines.iter().any(|line| line.contains("one message per line")), "{lines:#?}");
}

#[test]
fn doctor_shows_what_a_program_that_answers_wrote_besides() {
    let odd = checkout().join("tests/upstreams/odd.py");
    let (lines, is_ok) = details(&format!(
        "import os, runpy\n\
         os.environ['ODD_LOG'] = '/dev/null'\n\
         print('Listening on port 8080', flush=True)\n\
         import sys; print('ready', file=sys.stderr, flush=True)\n\
         runpy.run_path({odd:?}, run_name='__main__')\n"
    ));
    assert!(is_ok, "{lines:?}");
    assert_eq!(lines, ["output that is not a message: Listening on port 8080"]);
}

#[test]
fn doctor_shows_the_error_output_of_a_program_that_ends_once_and_in_whole_lines() {
    let settings = "[upstream.up]\ncommand = [\"sh\", \"-c\", \"read line; echo npm error one >&2; echo npm error two >&2; exit 1\"]\n";
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let report = doctor(&workspace, &[]);
    let stdout = String::from_utf8(report.stdout).unwrap();
    let stderr = String::from_utf8(report.stderr).unwrap();
    let lines: Vec<_> = stdout.lines().map(str::trim_start).collect();
    for line in ["npm error one", "npm error two"] {
        assert!(lines.contains(&line), "{stdout}");
        assert_eq!(
            (stdout.matches(line).count(), stderr.matches(line).count()),
            (1, 0),
            "{stdout}{stderr}"
        );
    }
    assert!(lines[0].starts_with("FAILED  up: "), "{stdout}");
}

#[test]
fn doctor_says_that_nothing_was_asked_if_the_program_does_not_start() {
    let settings = "[upstream.up]\ncommand = [\"no-such-program-here\"]\n";
    let report = doctor(&TempWorkspace::new().file("toolgate.toml", settings), &[]);
    let stdout = String::from_utf8(report.stdout).unwrap();
    assert!(stdout.starts_with("FAILED  up: "), "{stdout}");
    assert!(stdout.contains("no request was sent: "), "{stdout}");
}
