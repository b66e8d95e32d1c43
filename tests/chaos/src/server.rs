//! Folder of a chaos run, and the server processes that use it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use toolgate_test_support::copy_current_exe;

use super::job_program::{ChaosJobKind, JOB_COMMAND, SEED_VARIABLE};

/// Name of the tool whose jobs run until they are cancelled, as results spell it. Their program
/// prints a word when it has started.
pub(super) const WAIT_TOOL: &str = "chaos_wait";
/// Name of the tool whose jobs print a word every 50 ms until they are cancelled, as results spell
/// it.
pub(super) const TICK_TOOL: &str = "chaos_tick";
/// Environment variable with the marker text of a run, which every process of the run has.
pub(super) const MARKER_VARIABLE: &str = "CHAOS_MARKER";
/// Time for which calls and jobs may continue after SIGTERM to their server, in milliseconds.
pub(super) const DRAIN_MS: u64 = 500;
/// Pause between two checks of a condition that the test waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time that a server may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a server may take to exit after SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Folder of a run, with the served folder, the servers' state and their logs.
pub(super) struct ChaosRunFolder {
    pub(super) folder: PathBuf,
    /// Text in the environment of every process of the run. The test finds the processes by this
    /// text.
    pub(super) marker: String,
    pub(super) seed: u64,
    toolgate: PathBuf,
    /// Executable of an older toolgate for every second member of a fleet, if one is set.
    older: Option<PathBuf>,
}

/// Server process of a chaos run. Dropping it kills the process.
pub(super) struct ChaosServerProcess {
    process: Child,
    started: Instant,
    log: PathBuf,
}

impl ChaosRunFolder {
    /// Creates the folder, with copies of the executables, because a build may replace the files
    /// during the run.
    pub(super) fn create(toolgate: &Path, seed: u64) -> anyhow::Result<Self> {
        let marker = format!("chaos-{seed:x}-{:x}", std::process::id());
        let folder = std::env::temp_dir().join(format!("toolgate-{marker}"));
        let run = Self { toolgate: folder.join("toolgate"), older: None, folder, marker, seed };
        let served = run.served();
        fs::create_dir_all(served.join("out")).with_context(|| served.display().to_string())?;
        fs::create_dir_all(run.folder.join("servers"))?;
        fs::copy(toolgate, &run.toolgate).with_context(|| toolgate.display().to_string())?;
        let program = run.folder.join("job");
        copy_current_exe(&program)?;
        for kind in ChaosJobKind::ALL {
            File::create(run.log(kind))?;
        }
        fs::write(served.join("toolgate.toml"), run.settings(&program)?)?;
        Ok(run)
    }

    /// Copies the older executable `toolgate` into the folder, so that every second member of a
    /// fleet runs it.
    pub(super) fn add_older(&mut self, toolgate: &Path) -> anyhow::Result<()> {
        let older = self.folder.join("toolgate-older");
        fs::copy(toolgate, &older).with_context(|| toolgate.display().to_string())?;
        self.older = Some(older);
        Ok(())
    }

    fn served(&self) -> PathBuf {
        self.folder.join("served")
    }

    /// Returns the path of the log to which programs of jobs of the type `kind` write.
    pub(super) fn log(&self, kind: ChaosJobKind) -> PathBuf {
        self.served().join(kind.log_name())
    }

    fn settings(&self, program: &Path) -> anyhow::Result<String> {
        let mut command = toml::Table::new();
        for kind in ChaosJobKind::ALL {
            let mut table = toml::toml! {
                about = "Follows the plan of a number."
                args = { n = "integer!" }
                artefacts = ["out/{n}.txt"]
            };
            let argv = [JOB_COMMAND, "{n}"].map(toml::Value::from);
            table.insert("argv".to_owned(), toml::Value::Array(argv.into()));
            table.insert("program".to_owned(), program.display().to_string().into());
            table.insert("idempotent".to_owned(), kind.is_idempotent().into());
            if kind == ChaosJobKind::Long {
                // Otherwise, they occupy all slots, and no kill lets one of them end.
                table.insert("at_once".to_owned(), 2.into());
            }
            let mut env = self.marker_table();
            env.insert(SEED_VARIABLE.to_owned(), self.seed.to_string().into());
            table.insert("env".to_owned(), env.into());
            command.insert(format!("chaos.{}", kind.name()), table.into());
        }
        let mut wait = toml::toml! {
            about = "Prints a word and waits for a number of seconds."
            program = "sh"
            argv = ["-c", "echo waits; exec sleep $0", "{n}"]
            args = { n = "integer!" }
            idempotent = true
        };
        wait.insert("env".to_owned(), self.marker_table().into());
        command.insert("chaos.wait".to_owned(), wait.into());
        let mut tick = toml::toml! {
            about = "Prints a word every 50 ms."
            program = "sh"
            argv = ["-c", "while sleep 0.05; do echo tick; done", "{n}"]
            args = { n = "integer!" }
            idempotent = true
        };
        tick.insert("env".to_owned(), self.marker_table().into());
        command.insert("chaos.tick".to_owned(), tick.into());
        let mut settings = toml::toml! {
            limits = { programs = 32 }
        };
        let drain_ms = toml::Value::from(i64::try_from(DRAIN_MS)?);
        let drain = toml::Table::from_iter([("drain_ms".to_owned(), drain_ms)]);
        settings.insert("server".to_owned(), drain.into());
        settings.insert("command".to_owned(), command.into());
        Ok(toml::to_string(&settings)?)
    }

    /// Returns the environment variables that mark the processes of this run.
    fn marker_table(&self) -> toml::Table {
        let mut env = toml::Table::new();
        env.insert(MARKER_VARIABLE.to_owned(), self.marker.clone().into());
        env
    }

    /// Returns the lines about errors and panics in the logs of all servers.
    pub(super) fn logged_errors(&self) -> anyhow::Result<Vec<String>> {
        logged_errors(&self.folder.join("servers"))
    }

    /// Starts `toolgate serve`. The name of its log contains `number`.
    pub(super) fn start_server(&self, number: usize) -> anyhow::Result<ChaosServerProcess> {
        let mut command = self.command(&self.toolgate, "serve", "state");
        command.args(["--listen", "127.0.0.1:0"]);
        ChaosServerProcess::start(&mut command, self.server_log(number))
    }

    /// Starts the command `toolgate WORD` as the member `number` of a fleet, with `flags`,
    /// additional environment `variables` and a separate state folder.
    pub(super) fn start_member(
        &self,
        number: usize,
        word: &str,
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> anyhow::Result<ChaosServerProcess> {
        let older = self.older.as_ref().filter(|_| number.is_multiple_of(2));
        let toolgate = older.unwrap_or(&self.toolgate);
        let mut command = self.command(toolgate, word, &format!("state-{number}"));
        command.args(flags).envs(variables.iter().copied());
        ChaosServerProcess::start(&mut command, self.server_log(number))
    }

    fn server_log(&self, number: usize) -> PathBuf {
        self.folder.join(format!("servers/{number}.log"))
    }

    /// Returns the command `WORD` of the executable `toolgate` for the served folder. `state` is
    /// the name of the state folder.
    fn command(&self, toolgate: &Path, word: &str, state: &str) -> Command {
        let mut command = Command::new(toolgate);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOOLGATE_") {
                command.env_remove(name);
            }
        }
        command.arg(word).arg(self.served());
        command.arg("--config").arg(self.served().join("toolgate.toml"));
        command.env("XDG_STATE_HOME", self.folder.join(state));
        command.env("TOOLGATE_SERVER_RESULTS", "structured");
        command.env(MARKER_VARIABLE, &self.marker);
        command
    }
}

/// Returns the lines about errors and panics in the logs in `folder`, each with the name of its
/// file.
pub(super) fn logged_errors(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut errors = Vec::new();
    for log in fs::read_dir(folder)? {
        let path = log?.path();
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().filter(|it| it.contains("panicked") || it.contains(" ERROR "));
        errors.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    Ok(errors)
}

impl ChaosServerProcess {
    /// Starts a server with `command`. Its standard error goes to the file `log`.
    pub(super) fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = command.spawn().context("the server cannot be started")?;
        Ok(Self { process, started: Instant::now(), log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the server prints its address, and returns that.
    pub(super) fn address(&mut self) -> anyhow::Result<SocketAddr> {
        while self.started.elapsed() < START_TIMEOUT {
            let log = fs::read_to_string(&self.log)?;
            let line = log.lines().find(|line| line.starts_with("toolgate: serving"));
            // The line may be incomplete.
            let line = line.filter(|line| line.ends_with("/mcp"));
            if let Some((_, url)) = line.and_then(|line| line.rsplit_once("http://")) {
                let address = url.trim_end_matches("/mcp");
                return address.parse().with_context(|| address.to_owned());
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("the server exited with {status}: {log}");
            }
            sleep(POLL_INTERVAL);
        }
        bail!("the server does not listen; see {}", self.log.display())
    }

    /// Returns the time since the start of the server.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Kills the server. Returns false if it had exited already.
    pub(super) fn kill(mut self) -> anyhow::Result<bool> {
        let exit = self.process.try_wait()?;
        self.process.kill()?;
        let status = self.process.wait()?;
        match (exit, status.signal()) {
            (None, Some(_)) => Ok(true),
            _ if status.success() => Ok(false),
            _ => bail!("{}", self.describe_exit(status)),
        }
    }

    /// Sends SIGTERM to the server process.
    pub(super) fn terminate(&self) -> anyhow::Result<()> {
        self.signal("TERM")
    }

    /// Sends the signal `name`, such as `STOP`, to the server process.
    pub(super) fn signal(&self, name: &str) -> anyhow::Result<()> {
        let pid = self.process.id().to_string();
        // `kill` is built into the shell, and may not be a program.
        let mut kill = Command::new("sh");
        let status = kill.args(["-c", "kill -$0 \"$1\"", name, &pid]).status()?;
        if !status.success() {
            bail!("the server gets no signal {name}; see {}", self.log.display());
        }
        Ok(())
    }

    /// Sends SIGTERM to the server process and waits until it has exited.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.terminate()?;
        let started = Instant::now();
        while started.elapsed() < EXIT_TIMEOUT {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("after SIGTERM, {}", self.describe_exit(status)),
                None => sleep(POLL_INTERVAL),
            }
        }
        bail!("the server does not exit after SIGTERM; see {}", self.log.display())
    }

    fn describe_exit(&self, status: ExitStatus) -> String {
        format!("the server exited with {status}; see {}", self.log.display())
    }
}

impl Drop for ChaosServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
