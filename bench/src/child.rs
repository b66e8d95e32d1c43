//! Processes whose speed and memory the benchmark measures. Dropping a value stops its process.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// The longest time that a process may take to stop after SIGTERM, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Child process whose standard input and output are pipes.
pub(crate) struct PipedProcess {
    process: std::process::Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: Option<ChildStdout>,
}

/// Server process that listens for TCP connections on this machine.
pub(crate) struct BenchServerProcess {
    pub(crate) child: PipedProcess,
    /// Address of the server, `127.0.0.1:PORT`.
    pub(crate) address: String,
}

impl PipedProcess {
    /// Starts `program` with pipes for its standard input and output.
    pub(crate) fn stdio(program: &Path, args: &[&str]) -> anyhow::Result<Self> {
        let mut command = command(program, args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::start(command)
    }

    /// Starts `program` without standard input, and discards its output.
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

    /// Returns the resident memory of the process after eleven idle seconds, in MiB. toolgate frees
    /// the memory of calls after five idle seconds, and checks for that every five seconds.
    pub(crate) fn idle_mib(&self) -> anyhow::Result<f64> {
        std::thread::sleep(Duration::from_secs(11));
        self.settled_mib()
    }

    /// Returns the resident memory of the process in MiB, once the memory no longer changes or 2 s
    /// have passed.
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

    /// Returns the sum of the processor times of the process's current threads, in microseconds.
    pub(crate) fn cpu_micros(&self) -> anyhow::Result<f64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let mut nanos = 0.0;
        for thread in threads {
            // A thread may end meanwhile.
            let stats = std::fs::read_to_string(thread?.path().join("schedstat"));
            let stats = stats.unwrap_or_default();
            nanos +=
                stats.split(' ').next().and_then(|time| time.parse::<f64>().ok()).unwrap_or(0.0);
        }
        Ok(nanos / 1000.0)
    }

    /// Returns the largest resident memory of the process so far, in MiB.
    pub(crate) fn peak_mib(&self) -> anyhow::Result<f64> {
        self.memory_mib("VmHWM:")
    }

    /// Returns the memory figure that the line `name` of `/proc/PID/status` shows, in MiB.
    fn memory_mib(&self, name: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|line| line.starts_with(name)).context("no such figure")?;
        let kib: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for PipedProcess {
    /// Stops the process with SIGTERM, and kills it if it does not stop in time. A profiled process
    /// writes its profile when it stops.
    fn drop(&mut self) {
        (self.input, self.output) = (None, None);
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server that prints `… at http://ADDRESS/…` to standard error once it listens.
pub(crate) fn start_server(program: &Path, args: &[&str]) -> anyhow::Result<BenchServerProcess> {
    let mut command = command(program, args);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = PipedProcess::start(command)?;
    let stderr = child.process.stderr.take().context("no standard error")?;
    let mut lines = BufReader::new(stderr).lines();
    let line = lines.next().context("the server printed nothing")??;
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.with_context(|| format!("no address in `{line}`"))?.to_owned();
    wait_until_listening(child, address)
}

/// Waits up to 60 s until `child` accepts connections at `address`.
pub(crate) fn wait_until_listening(
    child: PipedProcess,
    address: String,
) -> anyhow::Result<BenchServerProcess> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(&address).is_err() {
        ensure!(Instant::now() < deadline, "nothing is listening at {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(BenchServerProcess { child, address })
}

/// Returns the path of the state folder of all servers that this process starts. `main` deletes the
/// folder after the last section.
pub(crate) fn state_folder() -> PathBuf {
    std::env::temp_dir().join(format!("toolgate-bench-{}", std::process::id()))
}

/// Returns a command that runs `program` with default settings and a temporary state folder. If one
/// of `args` is a folder with a `toolgate.toml`, that file has the settings.
fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("XDG_STATE_HOME", state_folder()).env("TOOLGATE_LOG_LEVEL", "error");
    // toolgate only trusts a settings file in the workspace if it is named.
    let mut settings = args.iter().map(|arg| Path::new(arg).join("toolgate.toml"));
    if let Some(settings) = settings.find(|settings| settings.exists()) {
        command.env("TOOLGATE_CONFIG", settings);
    }
    command
}
