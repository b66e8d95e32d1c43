//! Tests of `toolgate jobs` and of `toolgate call --follow`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{CliCommandResult, TestCommandLine, run};
use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, binary, path, peak_memory_kib,
    trust_config, wait_until,
};

/// Settings of a command that reports progress, waits for the file `go` and leaves a file.
const SLOW: &str = r#"
[command."say.slow"]
about = "Says things"
program = "sh"
argv = ["-c", "echo one; echo oops >&2; while [ ! -e go ]; do printf '\\033[31m40%%\\033[0m\\n'; sleep 0.1; done; printf 'no end'; echo x > out.txt"]
progress = '(\d+)%'
artefacts = ["out.txt"]
"#;

fn workspace() -> TempWorkspace {
    TempWorkspace::new().file("toolgate.toml", SLOW)
}

/// Returns the command line `toolgate` with `args` in the workspace, run by the user who started
/// the server.
fn toolgate_line(
    served: &HttpServerProcess,
    workspace: &TempWorkspace,
    args: &[&str],
) -> TestCommandLine {
    TestCommandLine::new(workspace.root(), args).env("HOME", served.server.home())
}

/// Starts `tool` as a job and returns its id.
fn start(
    served: &HttpServerProcess,
    workspace: &TempWorkspace,
    tool: &str,
    arguments: Value,
) -> String {
    let input = json!({ "tool": tool, "arguments": arguments }).to_string();
    let args = ["call", "jobs_start", &input, "--json", "--url", &served.url()];
    let done = toolgate_line(served, workspace, &args).run();
    let job: Value = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    job["job_id"].as_str().unwrap().to_owned()
}

/// Runs a script as a job and returns its id.
fn script(served: &HttpServerProcess, workspace: &TempWorkspace, script: &str) -> String {
    let id = start(served, workspace, "exec_run", json!({ "command": script, "shell": true }));
    toolgate_line(served, workspace, &["jobs", &id]).run();
    id
}

#[test]
fn a_job_that_asks_nothing_cannot_be_answered() {
    let workspace = workspace();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = script(&served, &workspace, "true");
    for args in [&["jobs", &id, "--answer", "{}"][..], &["jobs", &id, "--decline"]] {
        let done = toolgate_line(&served, &workspace, args).run();
        assert_eq!((done.code, done.out.as_str()), (1, ""), "{done:?}");
        assert!(done.err.contains("asks no question"), "{done:?}");
    }
}

/// Running command line, and the text that it has printed to standard error so far.
struct RunningCommand {
    child: Child,
    err: BufReader<ChildStderr>,
    printed: String,
}

impl RunningCommand {
    fn start(mut line: TestCommandLine) -> Self {
        line.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = line.command.spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, err, printed: String::new() }
    }

    /// Reads the command's output until `line` is printed.
    fn read_until(&mut self, line: &str) {
        while !self.printed.lines().any(|printed| printed == line) {
            let read = self.err.read_line(&mut self.printed).unwrap();
            assert_ne!(read, 0, "no `{line}`: {}", self.printed);
        }
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    fn wait_for_exit(mut self) -> CliCommandResult {
        self.err.read_to_string(&mut self.printed).unwrap();
        let done = self.child.wait_with_output().unwrap();
        let out = String::from_utf8(done.stdout).unwrap();
        CliCommandResult {
            code: done.status.code().expect("no signal ended it"),
            out,
            err: self.printed,
        }
    }
}

#[test]
fn follow_prints_each_update_as_a_line_and_the_result_unchanged() {
    let workspace = workspace();
    let mut running = RunningCommand::start(TestCommandLine::new(
        workspace.root(),
        &["call", "say_slow", "--follow"],
    ));
    running.read_until("progress: 40 %");
    workspace.put("go", "");
    let done = running.wait_for_exit();
    let plain = run(workspace.root(), &["call", "say_slow"]);
    let far = |line: &&str| line.contains("40%");
    let same = done.out.lines().filter(|line| !far(line)).eq(plain.out.lines());
    assert!(done.code == 0 && same && done.out.lines().any(|line| far(&line)), "{done:?}");
    for line in ["stdout: one", "stderr: oops", "stdout: 40%", "stdout: no end", "file: out.txt"] {
        assert!(done.err.lines().any(|printed| printed == line), "{line}: {done:?}");
        assert!(!plain.err.contains(line), "{plain:?}");
    }
}

#[test]
fn follow_shows_progress_of_a_call_at_a_server_too() {
    let workspace = workspace();
    let served = ServerLaunchOptions::over(&workspace).served();
    let args = ["call", "say_slow", "--follow", "--url", &served.url()];
    let mut running = RunningCommand::start(TestCommandLine::new(workspace.root(), &args));
    while !running.printed.contains("progress: 40 %") {
        let read = running.err.read_line(&mut running.printed).unwrap();
        assert_ne!(read, 0, "{}", running.printed);
    }
    workspace.put("go", "");
    let done = running.wait_for_exit();
    assert!(done.code == 0 && done.out.contains("no end"), "{done:?}");
}

#[test]
fn a_signal_cancels_the_followed_call() {
    let workspace = workspace();
    let served = ServerLaunchOptions::over(&workspace).served();
    for more in [&[][..], &["--url", &served.url()]] {
        let args = [&["call", "say_slow", "--follow"], more].concat();
        let mut running = RunningCommand::start(TestCommandLine::new(workspace.root(), &args));
        running.err.read_line(&mut running.printed).unwrap();
        running.interrupt();
        let done = running.wait_for_exit();
        assert!(done.code == 1 && done.err.contains("the call was cancelled"), "{done:?}");
    }
    assert_eq!(served.server.outcomes(1), ["canceled"]);
}

#[test]
fn a_terminal_shows_a_progress_bar_that_is_removed_at_the_end() {
    let workspace = workspace();
    let home = tempfile::tempdir().unwrap();
    let line = format!("{} call say_slow --follow", binary().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", home.path()).env("TERM", "xterm");
    command.env("TOOLGATE_AUDIT_TO", "off").stdin(Stdio::null()).stdout(Stdio::piped());
    trust_config(&mut command, workspace.root());
    let Ok(mut child) = command.spawn() else {
        return eprintln!("NOT TRIED: `script` is not installed");
    };
    let mut out = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("░  40 %  0:0") {
        let mut piece = [0; 4096];
        let read = out.read(&mut piece).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..read]);
    }
    workspace.put("go", "");
    out.read_to_end(&mut seen).unwrap();
    assert!(child.wait().unwrap().success());
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("  oops") && !seen.contains("stderr: oops"), "{seen}");
    let (_, last) = seen.rsplit_once("\u{1b}[2K").expect("lines are cleared");
    assert!(
        last.contains("one\r\n") && !last.contains('█') && last.contains("exit code 0"),
        "{last}"
    );
}

#[test]
fn a_terminal_gets_the_output_of_a_program_without_its_control_sequences() {
    let workspace =
        TempWorkspace::new().file("evil.txt", "a\u{1b}]52;c;eA==\u{7}b\n\u{1b}[2Jc\u{202e}d\n");
    let home = tempfile::tempdir().unwrap();
    let line = format!(
        "{} call exec_run '{{\"command\":\"cat\",\"args\":[\"evil.txt\"]}}'",
        binary().display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", home.path()).env("TERM", "xterm");
    command.env("TOOLGATE_AUDIT_TO", "off").stdin(Stdio::null());
    let Ok(done) = command.output() else {
        return eprintln!("NOT TRIED: `script` is not installed");
    };
    let seen = String::from_utf8_lossy(&done.stdout);
    assert!(seen.contains("ab\r\ncd\r\n"), "{seen:?}");
    assert!(!seen.contains("\u{1b}]52") && !seen.contains("\u{1b}[2J"), "{seen:?}");
}

#[test]
fn a_folder_without_jobs_is_reported_and_left_unchanged() {
    let workspace = TempWorkspace::new();
    let home = tempfile::tempdir().unwrap();
    let looks = [(&["jobs"][..], 0), (&["jobs", "--json"], 0), (&["jobs", "abcd"], 1)];
    for (args, code) in looks {
        let done = TestCommandLine::new(workspace.root(), args).env("HOME", home.path()).run();
        assert_eq!((done.code, done.out.as_str()), (code, ""), "{done:?}");
        assert_eq!(done.err.contains("toolgate call jobs_start"), args == ["jobs"], "{done:?}");
        assert_eq!(done.err.contains("with --root"), args.contains(&"abcd"), "{done:?}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "{args:?}");
    }
    let line =
        TestCommandLine::new(workspace.root(), &["jobs"]).env("TOOLGATE_JOBS_TO", "off").run();
    assert!(line.code == 2 && line.err.contains("jobs.to"), "{line:?}");
}

#[test]
fn jobs_are_listed_newest_first_with_their_outcomes() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let ids = ["true", "exit 7"].map(|text| script(&served, &workspace, text));
    let third = start(&served, &workspace, "files_read", json!({ "path": "none" }));
    let list = |args: &[&str]| toolgate_line(&served, &workspace, args).run();
    list(&["jobs", &third]);
    let done = list(&["jobs"]);
    let rows: Vec<Vec<&str>> =
        done.out.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |row: usize, cells: &[&str]| assert_eq!(rows[row][..cells.len()], *cells, "{done:?}");
    row(0, &["JOB", "TOOL", "STATE", "DONE"]);
    row(1, &[&third[..8], "files_read", "failed"]);
    row(2, &[&ids[1][..8], "exec_run", "failed", "exit", "7"]);
    row(3, &[&ids[0][..8], "exec_run", "succeeded", "exit", "0"]);
    assert!(done.out.contains("`none` does not exist") && done.err.is_empty(), "{done:?}");
    let done = list(&["jobs", "--limit", "1"]);
    assert!(done.out.lines().count() == 2 && done.err.contains("--limit"), "{done:?}");
    let done = list(&["jobs", "--json", "--limit", "2"]);
    let jobs: Vec<Value> =
        done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (jobs.len(), &jobs[1]["job_id"], &jobs[1]["exit_code"]),
        (2, &json!(ids[1]), &json!(7))
    );
}

#[test]
fn a_job_is_found_by_the_beginning_of_its_id_and_a_near_id_is_suggested() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = script(&served, &workspace, "echo said");
    let find = |id: &str| toolgate_line(&served, &workspace, &["jobs", id]).run();
    for digits in [4, 9, 32] {
        let done = find(&id[..digits]);
        assert_eq!((done.code, done.out.as_str()), (0, "said\n"), "{done:?}");
        assert!(done.err.contains(&id) && done.err.contains("succeeded"), "{done:?}");
    }
    assert_eq!(find(&id[..6].to_uppercase()).code, 0);
    let mut near = id.clone();
    near.replace_range(3..4, if &id[3..4] == "0" { "1" } else { "0" });
    for digits in [5, 32] {
        let done = find(&near[..digits]);
        let is_suggested = done.err.contains(&format!("did you mean `{}`", &id[..digits]));
        assert!(done.code == 1 && is_suggested, "{done:?}");
    }
    let done = find(&id[..3]);
    assert!(done.code == 1 && done.err.contains("4 digits"), "{done:?}");
    let done = find("zzzz");
    assert!(done.code == 1 && done.err.contains("`toolgate jobs` lists the jobs"), "{done:?}");
}

#[test]
fn a_job_is_followed_until_it_ends_and_its_files_are_listed() {
    let workspace = workspace();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = start(&served, &workspace, "say_slow", json!({}));
    let mut running = RunningCommand::start(toolgate_line(&served, &workspace, &["jobs", &id]));
    running.read_until("progress: 40 %");
    // The present state has the output so far.
    let now = toolgate_line(&served, &workspace, &["jobs", &id, "--no-follow"]).run();
    assert!(now.code == 0 && now.out.contains("one\n") && now.err.contains("40 %"), "{now:?}");
    workspace.put("go", "");
    let done = running.wait_for_exit();
    assert!(
        done.code == 0 && done.out.contains("one\n") && done.out.contains("no end"),
        "{done:?}"
    );
    let lines = ["stdout: one", "stderr: oops", "stdout: no end", "toolgate: wrote out.txt (2 B)"];
    for line in lines {
        assert!(done.err.lines().any(|printed| printed == line), "{line}: {done:?}");
    }
    fs::remove_file(workspace.path("out.txt")).unwrap();
    let get = |args: &[&str]| {
        toolgate_line(&served, &workspace, &[&["jobs", &id[..6], "--get"], args].concat()).run()
    };
    assert_eq!(get(&["out.txt", "-o", "-"]).out, "x\n");
    assert_eq!((get(&["out.txt"]).code, workspace.read("out.txt").as_str()), (0, "x\n"));
    assert_eq!(get(&["out.txt"]).code, 2, "an existing file is not overwritten");
    assert_eq!(get(&["all", "-o", "all.zip"]).code, 0);
    assert!(fs::read(workspace.path("all.zip")).unwrap().starts_with(b"PK"));
    assert!(get(&["none"]).err.contains("out.txt"));
    let done = toolgate_line(&served, &workspace, &["jobs", &id, "--json"]).run();
    let job: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&job["state"], &job["result"]["exit_code"]), (&json!("succeeded"), &json!(0)));
}

#[test]
fn the_exit_code_is_the_outcome_of_the_job() {
    let workspace = TempWorkspace::new();
    let served = ServerLaunchOptions::over(&workspace).served();
    for (text, code) in [("true", 0), ("echo bad >&2; exit 3", 1)] {
        let id = script(&served, &workspace, text);
        assert_eq!(toolgate_line(&served, &workspace, &["jobs", &id]).run().code, code, "{text}");
    }
    let id = start(&served, &workspace, "files_read", json!({ "path": "none" }));
    let done = toolgate_line(&served, &workspace, &["jobs", &id]).run();
    assert!(done.code == 1 && done.err.contains("`none` does not exist"), "{done:?}");
}

#[test]
fn a_job_goes_on_if_nobody_follows_it_and_is_cancelled_with_or_without_a_url() {
    let workspace = workspace();
    let served = ServerLaunchOptions::over(&workspace).served();
    let id = start(&served, &workspace, "say_slow", json!({}));
    let mut running = RunningCommand::start(toolgate_line(&served, &workspace, &["jobs", &id]));
    running.read_until("stdout: one");
    running.interrupt();
    let done = running.wait_for_exit();
    assert!(done.code == 130 && done.err.contains("continues"), "{done:?}");
    let cancel = |id: &str, args: &[&str]| {
        toolgate_line(&served, &workspace, &[&["jobs", &id[..8], "--cancel"], args].concat()).run()
    };
    let done = cancel(&id, &[]);
    assert!(done.code == 0 && done.err.contains("was cancelled"), "{done:?}");
    let other = start(&served, &workspace, "say_slow", json!({}));
    let done = cancel(&other, &["--url", &served.url()]);
    assert!(done.code == 0 && done.err.contains("canceled"), "{done:?}");
    let done = toolgate_line(&served, &workspace, &["jobs", &id]).run();
    assert!(
        done.code == 1 && done.out.contains("one\n") && done.err.contains("cancelled"),
        "{done:?}"
    );
    let done = cancel(&id, &[]);
    assert!(done.code == 0 && done.err.contains("was cancelled"), "{done:?}");
    let ended = start(&served, &workspace, "files_read", json!({ "path": "none" }));
    toolgate_line(&served, &workspace, &["jobs", &ended]).run();
    let done = cancel(&ended, &[]);
    assert!(done.code == 1 && done.err.contains("has ended already: it failed"), "{done:?}");
}

#[test]
fn a_job_is_not_started_without_a_server() {
    let workspace = TempWorkspace::new();
    let home = tempfile::tempdir().unwrap();
    let args = ["call", "jobs_start", r#"{"tool":"files_list"}"#];
    let done = TestCommandLine::new(workspace.root(), &args).env("HOME", home.path()).run();
    assert!(done.code == 2 && done.err.contains("--url"), "{done:?}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Checks that a slow reader loses output instead of delaying the program.
#[test]
fn output_that_is_read_too_slowly_is_left_out_with_a_note() {
    let workspace = TempWorkspace::new();
    let flood = "head -c 30000000 /dev/zero | tr '\\0' x | fold -w 90; touch done";
    let arguments = json!({ "command": flood, "shell": true }).to_string();
    let args = ["call", "exec_run", &arguments, "--follow"];
    let mut running = RunningCommand::start(TestCommandLine::new(workspace.root(), &args));
    wait_until("the program ends although nobody reads", || workspace.path("done").exists());
    assert!(peak_memory_kib(running.child.id()) < 200_000, "unread output is kept in memory");
    running.err.read_to_string(&mut running.printed).unwrap();
    let done = running.wait_for_exit();
    assert!(
        done.code == 0 && done.err.contains("left out ") && done.err.contains("of output here"),
        "{done:?}"
    );
}
