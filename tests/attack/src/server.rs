//! The real binary over a stage, with a home and an environment of its own.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use toolgate_test_support::tools;

use super::stage::Stage;

/// How long a server may take to listen, on a machine that does much else.
const START: Duration = Duration::from_secs(20);
/// How long it may take to end once it is told to.
const STOP: Duration = Duration::from_secs(15);

/// How to start it.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) binary: PathBuf,
    /// What is served: the workspace unless said otherwise.
    pub(super) served: PathBuf,
    /// Started by this, which becomes it.
    pub(super) wrapper: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) args: Vec<String>,
    /// Settings, in a file outside the workspace.
    pub(super) config: String,
}

/// The binary, running. Killed when dropped.
pub(super) struct Server {
    child: Child,
    log: Arc<Mutex<Vec<u8>>>,
    /// Where it listens, if it does.
    pub(super) addr: Option<SocketAddr>,
}

impl Launch {
    pub(super) fn of(binary: &Path, stage: &Stage) -> Self {
        Self {
            binary: binary.to_owned(),
            served: stage.ws.clone(),
            wrapper: Vec::new(),
            env: Vec::new(),
            args: Vec::new(),
            config: String::new(),
        }
    }

    /// With a setting by its variable, e.g. `EXEC_ALLOW`.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.env.push((format!("TOOLGATE_{name}"), value.to_string()));
    }

    pub(super) fn env(&mut self, name: &str, value: impl Into<String>) {
        self.env.push((name.to_owned(), value.into()));
    }

    /// `toolgate stdio`.
    pub(super) fn stdio(
        &self,
        stage: &Stage,
        dialect: &str,
    ) -> anyhow::Result<(Server, ChildStdin, ChildStdout)> {
        let mut command = self.command(stage, &["stdio", "--dialect", dialect])?;
        command.env("MCP_READY_FILE", stage.home.join("ready"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Server::started(command)?;
        let input = server.child.stdin.take().context("no input")?;
        let output = server.child.stdout.take().context("no output")?;
        Ok((server, input, output))
    }

    /// `toolgate serve` at a free port.
    pub(super) fn serve(&self, stage: &Stage) -> anyhow::Result<Server> {
        let mut command = self.command(stage, &["serve", "--listen", "127.0.0.1:0"])?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Server::started(command)?;
        let begun = Instant::now();
        loop {
            let log = server.log();
            if let Some(addr) = address(&String::from_utf8_lossy(&log)) {
                server.addr = Some(addr);
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() || begun.elapsed() > START {
                bail!("it does not listen: {}", String::from_utf8_lossy(&log).trim());
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// The command line, ready to be started.
    pub(super) fn command(&self, stage: &Stage, words: &[&str]) -> anyhow::Result<Command> {
        let mut all: Vec<String> = self.wrapper.clone();
        all.push(self.binary.display().to_string());
        all.push(words[0].to_owned());
        all.push(self.served.display().to_string());
        all.extend(words[1..].iter().map(|word| (*word).to_owned()));
        if !self.config.is_empty() {
            let file = stage.base.join("toolgate.toml");
            fs::write(&file, &self.config)?;
            all.extend(["--config".to_owned(), file.display().to_string()]);
        }
        all.extend(self.args.iter().cloned());
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).env_clear().env("PATH", path()).env("HOME", &stage.home);
        command.env("TOOLGATE_AUDIT_TO", audit(stage));
        command.env("TOOLGATE_ENVELOPE_LOG_DIR", stage.home.join("envelopes"));
        command.env("MCP_CANARY_SECRET", &stage.env_canary);
        command.env("AWS_SECRET_ACCESS_KEY", &stage.env_canary);
        // Build tools are found where this user has them; their homes are settings of `ci`.
        for name in ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if std::env::var_os("RUSTUP_HOME").is_none()
            && let Some(home) = std::env::var_os("HOME")
        {
            command.env("RUSTUP_HOME", Path::new(&home).join(".rustup"));
            command.env("CARGO_HOME", Path::new(&home).join(".cargo"));
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stderr(Stdio::piped());
        Ok(command)
    }
}

/// Where the audit log of a stage is.
pub(super) fn audit(stage: &Stage) -> PathBuf {
    stage.home.join("audit.jsonl")
}

/// Where programs are sought, the server's and ours: ours have ripgrep, too.
pub(super) fn path() -> String {
    let own = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    format!("{own}:{}", tools().join("ripgrep/bin").display())
}

fn address(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once(" at http://")?;
    rest.split_once("/mcp\n")?.0.parse().ok()
}

impl Server {
    fn started(mut command: Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("`{program}` does not start"))?;
        let mut errors = child.stderr.take().context("no log")?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let tail = log.clone();
        spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(length) = errors.read(&mut piece)
                && length > 0
            {
                tail.lock().unwrap_or_else(PoisonError::into_inner).extend(&piece[..length]);
            }
        });
        Ok(Self { child, log, addr: None })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard error so far.
    pub(super) fn log(&self) -> Vec<u8> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn kill(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }

    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Tells it to stop, and waits until it has; how it ended, or that it did not.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid
            && self.is_running()
        {
            _ = kill_process(pid, Signal::TERM);
        }
        self.ended()
    }

    /// Waits until it has ended by itself.
    pub(super) fn ended(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server ended with {status}")),
                Ok(None) if begun.elapsed() < STOP => sleep(Duration::from_millis(2)),
                Ok(None) => {
                    self.kill();
                    return Err(format!("the server did not end within {} s", STOP.as_secs()));
                }
                Err(err) => return Err(err.to_string()),
            }
        }
    }

    /// How much memory it holds, and the most it ever held, in KiB: without its own code, which it
    /// lets go of when nobody asks and has again when somebody does.
    pub(super) fn memory(&self) -> (u64, u64) {
        let file = |name: &str| format!("/proc/{}/{name}", self.pid());
        let status = fs::read_to_string(file("status")).unwrap_or_default();
        let kib = |line: &str, name: &str| -> Option<u64> {
            line.strip_prefix(name)?.trim().trim_end_matches(" kB").parse().ok()
        };
        let of = |name: &str| status.lines().find_map(|line| kib(line, name)).unwrap_or(0);
        let program = fs::read_link(file("exe")).unwrap_or_default();
        let program = program.to_string_lossy();
        let mut code = 0;
        let mut is_code = false;
        for line in fs::read_to_string(file("smaps")).unwrap_or_default().lines() {
            match line.split_once(' ') {
                Some((name, _)) if !name.ends_with(':') => is_code = line.ends_with(&*program),
                _ if is_code => code += kib(line, "Rss:").unwrap_or(0),
                _ => {}
            }
        }
        (of("VmRSS:").saturating_sub(code), of("VmHWM:").saturating_sub(code))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `line` by `sh` in `folder`; what it printed, or how it failed.
pub(super) fn sh(folder: &Path, line: &str) -> anyhow::Result<String> {
    // Not `sh`, whose printf knows no \x.
    let output = Command::new("bash")
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", path())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes all of `bytes`, which may be more than a pipe holds.
pub(super) fn put(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
