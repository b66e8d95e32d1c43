//! Starts the real toolgate executable as a server, with a separate home and environment.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use toolgate_test_support::tools;

use super::folders::AttackFolders;

/// Time that a server may take until it listens, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that a server may take to exit after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval between two measurements of a server's memory.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(2);

/// Command line, environment and settings with which a server starts.
#[derive(Debug, Clone)]
pub(super) struct AttackServerLaunch {
    pub(super) binary: PathBuf,
    /// Folder to serve. The workspace by default.
    pub(super) served_folder: PathBuf,
    /// Command to put before the command line of the server, which executes the server in the same
    /// process. Empty by default.
    pub(super) wrapper: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// Settings in TOML, which are written to a file outside the workspace.
    pub(super) config: String,
}

/// Server process under attack. Dropping the value kills the process.
pub(super) struct AttackedServer {
    child: Child,
    log: Arc<Mutex<Vec<u8>>>,
    /// Address at which the server listens, or `None` over stdio.
    pub(super) addr: Option<SocketAddr>,
}

impl AttackServerLaunch {
    pub(super) fn new(binary: &Path, folders: &AttackFolders) -> Self {
        Self {
            binary: binary.to_owned(),
            served_folder: folders.ws.clone(),
            wrapper: Vec::new(),
            env: Vec::new(),
            config: String::new(),
        }
    }

    /// Sets the environment variable of a setting. `name` has no prefix, for example `EXEC_ALLOW`.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.env.push((format!("TOOLGATE_{name}"), value.to_string()));
    }

    /// Adds a variable to the server's environment.
    pub(super) fn env(&mut self, name: &str, value: impl Into<String>) {
        self.env.push((name.to_owned(), value.into()));
    }

    /// Starts `toolgate stdio` in the given dialect. Returns the server, its input and its output.
    pub(super) fn stdio(
        &self,
        folders: &AttackFolders,
        dialect: &str,
    ) -> anyhow::Result<(AttackedServer, ChildStdin, ChildStdout)> {
        let mut command = self.command(folders, &["stdio", "--dialect", dialect])?;
        command.env("MCP_READY_FILE", folders.home.join("ready"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = AttackedServer::spawn(command)?;
        let input = server.child.stdin.take().context("no input")?;
        let output = server.child.stdout.take().context("no output")?;
        Ok((server, input, output))
    }

    /// Starts `toolgate serve` on a free port with these settings, and waits until the server
    /// listens.
    pub(super) fn serve(&self, folders: &AttackFolders) -> anyhow::Result<AttackedServer> {
        let mut command = self.command(folders, &["serve", "--listen", "127.0.0.1:0"])?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = AttackedServer::spawn(command)?;
        let started = Instant::now();
        loop {
            let log = server.log();
            if let Some(addr) = address_in(&String::from_utf8_lossy(&log)) {
                server.addr = Some(addr);
                return Ok(server);
            }
            if server.child.try_wait()?.is_some() || started.elapsed() > START_TIMEOUT {
                bail!("the server does not listen: {}", String::from_utf8_lossy(&log).trim());
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Returns a command that starts the server with the arguments `words`.
    pub(super) fn command(
        &self,
        folders: &AttackFolders,
        words: &[&str],
    ) -> anyhow::Result<Command> {
        let mut all: Vec<String> = self.wrapper.clone();
        all.push(self.binary.display().to_string());
        all.push(words[0].to_owned());
        all.push(self.served_folder.display().to_string());
        all.extend(words[1..].iter().map(|word| (*word).to_owned()));
        if !self.config.is_empty() {
            let file = folders.base.join("toolgate.toml");
            fs::write(&file, &self.config)?;
            all.extend(["--config".to_owned(), file.display().to_string()]);
        }
        if ["serve", "stdio"].contains(&words[0]) {
            let envelopes = folders.home.join("envelopes");
            all.extend(["--log-dir".to_owned(), envelopes.display().to_string()]);
        }
        let mut command = Command::new(&all[0]);
        command.args(&all[1..]).env_clear().env("PATH", search_path()).env("HOME", &folders.home);
        command.env("TOOLGATE_AUDIT_TO", audit_log(folders));
        command.env("TOOLGATE_SERVER_RESULTS", "both");
        command.env("MCP_CANARY_SECRET", &folders.env_canary);
        command.env("AWS_SECRET_ACCESS_KEY", &folders.env_canary);
        // Builds need this user's toolchains.
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

/// Returns the path of the server's audit log.
pub(super) fn audit_log(folders: &AttackFolders) -> PathBuf {
    folders.home.join("audit.jsonl")
}

/// Returns the `PATH` for the server and for setup commands: that of this process, and the folder
/// of the installed ripgrep.
pub(super) fn search_path() -> String {
    let own = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
    format!("{own}:{}", tools().join("ripgrep/bin").display())
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once(" at http://")?;
    rest.split_once("/mcp\n")?.0.parse().ok()
}

impl AttackedServer {
    fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().with_context(|| format!("`{program}` does not start"))?;
        let mut errors = child.stderr.take().context("no log")?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let shared_log = log.clone();
        spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(length) = errors.read(&mut piece)
                && length > 0
            {
                shared_log.lock().unwrap_or_else(PoisonError::into_inner).extend(&piece[..length]);
            }
        });
        Ok(Self { child, log, addr: None })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns everything that the server has written to standard error.
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

    /// Sends SIGTERM and waits for the exit. Fails if the server exits with an error, or not in
    /// time.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid
            && self.is_running()
        {
            _ = kill_process(pid, Signal::TERM);
        }
        self.wait_for_exit()
    }

    /// Waits for the exit of the server. Fails if it exits with an error, or not in time.
    pub(super) fn wait_for_exit(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server exited with {status}")),
                Ok(None) if started.elapsed() < EXIT_TIMEOUT => sleep(Duration::from_millis(2)),
                Ok(None) => {
                    self.kill();
                    return Err(format!(
                        "the server did not exit within {} s",
                        EXIT_TIMEOUT.as_secs()
                    ));
                }
                Err(err) => return Err(err.to_string()),
            }
        }
    }

    /// Returns the current and the peak memory of the server in KiB, without program code, which
    /// the system loads and releases at any time.
    pub(super) fn memory_kib(&self) -> (u64, u64) {
        let file = |name: &str| format!("/proc/{}/{name}", self.pid());
        let status = fs::read_to_string(file("status")).unwrap_or_default();
        let kib = |line: &str, name: &str| -> Option<u64> {
            line.strip_prefix(name)?.trim().trim_end_matches(" kB").parse().ok()
        };
        let field = |name: &str| status.lines().find_map(|line| kib(line, name)).unwrap_or(0);
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
        (field("VmRSS:").saturating_sub(code), field("VmHWM:").saturating_sub(code))
    }
}

/// Measures the peak of the memory that a server allocates, in a thread. Mapped files do not count,
/// because the system loads and releases their pages at any time.
pub(super) struct AllocatedMemorySampler {
    is_over: Arc<AtomicBool>,
    before_kib: u64,
    /// Thread that measures, and returns the peak in KiB.
    sampler: JoinHandle<u64>,
}

impl AllocatedMemorySampler {
    /// Starts to measure the memory of `server`. May miss a peak that lasts less than
    /// [`MEMORY_SAMPLE_INTERVAL`].
    pub(super) fn start(server: &AttackedServer) -> Self {
        let pid = server.pid();
        let is_over = Arc::new(AtomicBool::new(false));
        let before_kib = allocated_kib(pid);
        let sampler = spawn({
            let is_over = is_over.clone();
            move || {
                let mut peak_kib = before_kib;
                while !is_over.load(Ordering::Acquire) {
                    peak_kib = peak_kib.max(allocated_kib(pid));
                    sleep(MEMORY_SAMPLE_INTERVAL);
                }
                peak_kib.max(allocated_kib(pid))
            }
        });
        Self { is_over, before_kib, sampler }
    }

    /// Stops measuring. Returns the peak minus the memory at the start, in MiB.
    pub(super) fn growth_mib(self) -> u64 {
        self.is_over.store(true, Ordering::Release);
        let peak_kib = self.sampler.join().unwrap_or(u64::MAX);
        peak_kib.saturating_sub(self.before_kib) / 1024
    }
}

/// Returns the memory of the process `pid` that maps no file, in KiB. Returns 0 if the process has
/// ended.
fn allocated_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    };
    field("RssAnon:") + field("RssShmem:")
}

impl Drop for AttackedServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a shell command in `folder` and returns its standard output. Fails if the command fails.
pub(super) fn sh(folder: &Path, line: &str) -> anyhow::Result<String> {
    // The printf of `sh` may not know \x.
    let output = Command::new("bash")
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", search_path())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes all of `bytes` to `to`, and flushes it.
pub(super) fn write_all(to: &mut impl Write, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
