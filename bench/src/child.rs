//! Processes under measurement, ended when they are dropped.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to end when it is asked to.
const END: Duration = Duration::from_secs(2);

/// A process that is spoken to over its standard streams.
pub(crate) struct Child {
    process: std::process::Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: Option<ChildStdout>,
}

/// A process that listens.
pub(crate) struct Server {
    pub(crate) child: Child,
    /// Where it listens, `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl Child {
    pub(crate) fn stdio(program: &Path, args: &[&str]) -> anyhow::Result<Self> {
        let mut command = command(program, args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::start(command)
    }

    /// One that is not spoken to, and whose words nobody reads.
    pub(crate) fn quiet(program: &Path, args: &[&str]) -> anyhow::Result<Self> {
        let mut command = command(program, args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self::start(command)
    }

    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut process = command.spawn().with_context(|| format!("{command:?}"))?;
        let input = process.stdin.take();
        let output = process.stdout.take();
        Ok(Self { process, input, output })
    }

    /// What the process keeps in memory once it has had nothing to do for eleven seconds: what calls
    /// need is given back after five in which there were none, and it is looked every five.
    pub(crate) fn idle_mib(&self) -> anyhow::Result<f64> {
        std::thread::sleep(Duration::from_secs(11));
        self.settled_mib()
    }

    /// What it keeps in memory once that does not change any more.
    pub(crate) fn settled_mib(&self) -> anyhow::Result<f64> {
        let mut before = self.memory_mib("VmRSS:")?;
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.memory_mib("VmRSS:")?;
            if (now - before).abs() < 0.01 {
                return Ok(now);
            }
            before = now;
        }
        Ok(before)
    }

    /// How long its threads have run, in microseconds.
    pub(crate) fn cpu_micros(&self) -> anyhow::Result<f64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let mut nanos = 0.0;
        for thread in threads {
            // One may end meanwhile.
            let stats = std::fs::read_to_string(thread?.path().join("schedstat"));
            let stats = stats.unwrap_or_default();
            nanos += stats.split(' ').next().and_then(|ran| ran.parse::<f64>().ok()).unwrap_or(0.0);
        }
        Ok(nanos / 1000.0)
    }

    /// The most the process ever kept in memory.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        self.memory_mib("VmHWM:")
    }

    fn memory_mib(&self, name: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|line| line.starts_with(name)).context("no such figure")?;
        let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Child {
    /// Asks it to end first: one that is observed writes down what was seen when it does.
    fn drop(&mut self) {
        (self.input, self.output) = (None, None);
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let until = Instant::now() + END;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server that says on standard error `… at http://ADDRESS/…` once it listens.
pub(crate) fn start_server(program: &Path, args: &[&str]) -> anyhow::Result<Server> {
    let mut command = command(program, args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Child::start(command)?;
    let stderr = child.process.stderr.take().context("no standard error")?;
    let mut lines = BufReader::new(stderr).lines();
    let line = lines.next().context("the server printed nothing")??;
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.with_context(|| format!("no address in `{line}`"))?.to_owned();
    listening(child, address)
}

/// The server that `child` is, once it listens at `address`.
pub(crate) fn listening(child: Child, address: String) -> anyhow::Result<Server> {
    let until = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(&address).is_err() {
        ensure!(Instant::now() < until, "nothing is listening at {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Server { child, address })
}

/// The program as it runs by default, but for where its records and its jobs go.
fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    let state = std::env::temp_dir().join(format!("toolgate-bench-{}", std::process::id()));
    command.args(args).env("XDG_STATE_HOME", state).env("TOOLGATE_LOG_LEVEL", "error");
    // A file that lies in a folder is believed only if somebody says so.
    let mut settings = args.iter().map(|word| Path::new(word).join("toolgate.toml"));
    if let Some(settings) = settings.find(|settings| settings.exists()) {
        command.env("TOOLGATE_CONFIG", settings);
    }
    command
}
