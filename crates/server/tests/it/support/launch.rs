//! Starts toolgate as a process with its own home folder, and ends it by its process id.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio as Pipe};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{HttpServerProcess, StdioServerProcess, TempWorkspace, wait_for, wait_until};

/// Options with which a test starts toolgate in a workspace.
pub(crate) struct ServerLaunchOptions {
    root: PathBuf,
    workspace: Option<TempWorkspace>,
    env: Vec<(String, OsString)>,
    args: Vec<OsString>,
    wrapper: Vec<OsString>,
    /// Path of the example server, if it is started instead of toolgate.
    example: Option<PathBuf>,
    /// Path of a copy of the toolgate program, if the copy is started instead.
    copy: Option<PathBuf>,
}

impl ServerLaunchOptions {
    pub(crate) fn over(workspace: &TempWorkspace) -> Self {
        Self { workspace: Some(workspace.clone()), ..Self::at(workspace.root()) }
    }

    /// Returns options to start toolgate in the existing folder `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            workspace: None,
            env: Vec::new(),
            args: Vec::new(),
            wrapper: Vec::new(),
            example: None,
            copy: None,
        }
    }

    /// Starts `copy`, a copy of the toolgate program.
    pub(crate) fn copy(mut self, copy: &Path) -> Self {
        self.copy = Some(copy.to_owned());
        self
    }

    /// Returns options that start `example-everything`, a server with one tool of each type and no
    /// settings.
    pub(crate) fn everything() -> Self {
        let example = binary().with_file_name("example-everything");
        let build = "run `cargo build --package example-everything`";
        assert!(example.exists(), "{} is missing: {build}", example.display());
        Self { example: Some(example), ..Self::at(Path::new("/")) }
    }

    /// Sets the setting `setting`, for example `limits_wait_ms`, to `value`.
    pub(crate) fn set(mut self, setting: &str, value: impl Display) -> Self {
        let name = format!("TOOLGATE_{}", setting.to_uppercase());
        self.env.push((name, value.to_string().into()));
        self
    }

    /// Sets an environment variable that is not a setting.
    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Stores the server's caches in the folder `cache`, which outlives the server.
    pub(crate) fn with_cache(self, cache: &TempDir) -> Self {
        self.env("XDG_CACHE_HOME", cache.path())
    }

    /// Stores the server's state in the folder `state`, which outlives the server.
    pub(crate) fn with_state(self, state: &TempDir) -> Self {
        self.env("XDG_STATE_HOME", state.path())
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().into());
        self
    }

    /// Starts toolgate through the program `wrapper`, which must `exec` toolgate.
    pub(crate) fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Starts `toolgate stdio`, and returns the process with its client.
    pub(crate) fn stdio(self) -> StdioServerProcess {
        let mut command = self.command("stdio", &[]);
        command.stdin(Pipe::piped()).stdout(Pipe::piped());
        StdioServerProcess::new(self.start(command))
    }

    /// Starts `toolgate serve` on a free port, and waits until it listens.
    pub(crate) fn served(self) -> HttpServerProcess {
        let server = self.serve_with_flags(&["--listen", "127.0.0.1:0"]);
        let addr = wait_for("the server logs its address", || {
            assert!(server.is_running(), "the server ended: {}", server.log());
            let log = server.log();
            let (_, rest) = log.split_once(" at http://")?;
            rest.split_once("/mcp\n")?.0.parse().ok()
        });
        HttpServerProcess { addr, server }
    }

    /// Starts `toolgate serve` with only the flags `flags`. Does not wait until the server listens.
    pub(crate) fn serve_with_flags(self, flags: &[&str]) -> TestServerProcess {
        let mut command = self.command("serve", flags);
        command.stdin(Pipe::null()).stdout(Pipe::null());
        self.start(command)
    }

    /// Starts `toolgate work`, a worker that only runs jobs of its fleet.
    pub(crate) fn worker(self) -> TestServerProcess {
        let mut command = self.command("work", &[]);
        command.stdin(Pipe::null()).stdout(Pipe::null());
        self.start(command)
    }

    fn command(&self, word: &str, more: &[&str]) -> Command {
        let mut command_line: Vec<OsString> = self.wrapper.clone();
        match &self.example {
            Some(example) => {
                command_line.extend([example.into(), more.last().unwrap_or(&word).into()]);
            }
            None => {
                let program = self.copy.as_deref().unwrap_or(binary());
                command_line.extend([program.into(), word.into(), self.root.clone().into()]);
                command_line.extend(more.iter().map(OsString::from));
            }
        }
        command_line.extend(self.args.iter().cloned());
        let mut command = Command::new(&command_line[0]);
        command.args(&command_line[1..]).env_clear().env("PATH", path());
        command
    }

    fn start(&self, mut command: Command) -> TestServerProcess {
        let home = TempDir::with_prefix("toolgate-home-").unwrap();
        command.env("HOME", home.path()).env("TOOLGATE_AUDIT_TO", home.path().join("audit.jsonl"));
        // Tests compare structured values with texts.
        command.env("TOOLGATE_SERVER_RESULTS", "both");
        trust_config(&mut command, &self.root);
        // A setting given for the test overrides that.
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let mut child = command.stderr(Pipe::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let listening = listen(child.stderr.take().unwrap(), log.clone());
        TestServerProcess {
            pid: child.id(),
            child: Mutex::new(child),
            home,
            log,
            _listening: listening,
            root: self.root.clone(),
            _workspace: self.workspace.clone(),
        }
    }
}

/// Makes `command` trust the settings file in `folder`, if there is one, by naming it. Also runs
/// `toolgate trust` for the schemas in `folder`.
pub(crate) fn trust_config(command: &mut Command, folder: &Path) {
    let file = folder.join("toolgate.toml");
    if file.exists() {
        command.env("TOOLGATE_CONFIG", file);
    }
    let schemas = ["apps/mcp_server/schemas", "codex/specs/schemas"];
    if schemas.iter().any(|schemas| folder.join(schemas).exists()) {
        let mut trust = Command::new(binary());
        trust.arg("trust").arg(folder).env_clear().env("PATH", path());
        let home = command.get_envs().filter(|(name, _)| *name == "HOME");
        trust.envs(home.filter_map(|(name, home)| Some((name.to_owned(), home?.to_owned()))));
        trust.output().unwrap();
    }
}

/// Returns the path of the toolgate program under test.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_toolgate"))
}

/// Returns the `PATH` variable that the tests and the server use.
pub(crate) fn path() -> OsString {
    std::env::var_os("PATH").unwrap()
}

/// Running toolgate process of a test. Dropping this value kills the process.
pub(crate) struct TestServerProcess {
    pub(crate) pid: u32,
    child: Mutex<Child>,
    home: TempDir,
    log: Arc<Mutex<String>>,
    _listening: JoinHandle<()>,
    root: PathBuf,
    _workspace: Option<TempWorkspace>,
}

impl TestServerProcess {
    pub(crate) fn take_child<T>(&self, take: impl FnOnce(&mut Child) -> T) -> T {
        take(&mut self.child.lock().unwrap())
    }

    pub(crate) fn is_running(&self) -> bool {
        self.take_child(|child| child.try_wait().unwrap().is_none())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the server has exited.
    #[track_caller]
    pub(crate) fn wait_for_exit(&self) -> ExitStatus {
        wait_for("the server ends", || self.take_child(|child| child.try_wait().unwrap()))
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the workspace that is served.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns all text that toolgate has written to standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Returns the lines of the audit log so far.
    pub(crate) fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.home.path().join("audit.jsonl")).unwrap_or_default();
        // The last line may be incomplete.
        let full = text.rfind('\n').map_or("", |end| &text[..end]);
        full.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until the audit log has `count` calls, and returns their outcomes.
    #[track_caller]
    pub(crate) fn outcomes(&self, count: usize) -> Vec<String> {
        let records = || self.records().len() >= count;
        wait_until(&format!("{count} calls are on record"), records);
        let outcome = |record: &Value| record["outcome"].as_str().unwrap().to_owned();
        self.records().iter().map(outcome).collect()
    }
}

impl Drop for TestServerProcess {
    fn drop(&mut self) {
        self.take_child(|child| {
            let _ = child.kill();
            let _ = child.wait();
        });
        if thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

fn listen(stderr: ChildStderr, log: Arc<Mutex<String>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut lines = BufReader::new(stderr);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            log.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}
