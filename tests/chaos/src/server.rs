//! The folder in which it happens, and one life of the server there.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use toolgate_test_support::copy_of_this;

use super::work::{self, Kind};

/// The variable by which all that is ours is known.
pub(super) const MARKER: &str = "CHAOS_MARKER";
/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(1);
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(30);
/// How long a server may take to end once it is told to.
const STOP: Duration = Duration::from_secs(30);

/// Where it happens: a folder that is served, and one for the server's state.
pub(super) struct Stage {
    pub(super) folder: PathBuf,
    /// What stands in the environment of all that is ours.
    pub(super) marker: String,
    pub(super) seed: u64,
    toolgate: PathBuf,
}

/// One life of the server.
pub(super) struct Server {
    process: Child,
    begun: Instant,
    log: PathBuf,
}

impl Stage {
    /// Makes the folders, with copies of the programs: others build while this runs.
    pub(super) fn set(toolgate: &Path, seed: u64) -> anyhow::Result<Self> {
        let marker = format!("chaos-{seed:x}-{:x}", std::process::id());
        let folder = std::env::temp_dir().join(format!("toolgate-{marker}"));
        let stage = Self { toolgate: folder.join("toolgate"), folder, marker, seed };
        let served = stage.served();
        fs::create_dir_all(served.join("out")).with_context(|| served.display().to_string())?;
        fs::create_dir_all(stage.folder.join("servers"))?;
        fs::copy(toolgate, &stage.toolgate).with_context(|| toolgate.display().to_string())?;
        let program = stage.folder.join("job");
        copy_of_this(&program)?;
        for kind in Kind::ALL {
            File::create(stage.log(kind))?;
        }
        fs::write(served.join("toolgate.toml"), stage.settings(&program)?)?;
        Ok(stage)
    }

    /// The folder that is served.
    fn served(&self) -> PathBuf {
        self.folder.join("served")
    }

    /// Where the programs of jobs write down that they ran.
    pub(super) fn log(&self, kind: Kind) -> PathBuf {
        self.served().join(kind.log())
    }

    fn settings(&self, program: &Path) -> anyhow::Result<String> {
        let mut command = toml::Table::new();
        for kind in Kind::ALL {
            let mut table = toml::toml! {
                about = "Does what the number says."
                args = { n = "integer!" }
                artefacts = ["out/{n}.txt"]
            };
            let argv = [work::WORD, "{n}"].map(toml::Value::from);
            table.insert("argv".to_owned(), toml::Value::Array(argv.into()));
            table.insert("program".to_owned(), program.display().to_string().into());
            table.insert("idempotent".to_owned(), kind.is_idempotent().into());
            if kind == Kind::Long {
                // Else they take all places, and none ever ends.
                table.insert("at_once".to_owned(), 2.into());
            }
            let mut env = toml::Table::new();
            env.insert(work::SEED.to_owned(), self.seed.to_string().into());
            env.insert(MARKER.to_owned(), self.marker.clone().into());
            table.insert("env".to_owned(), env.into());
            command.insert(format!("chaos.{}", kind.name()), table.into());
        }
        let mut settings = toml::toml! {
            server = { drain_ms = 500 }
            exec = { output_bytes = 1048576 }
            jobs = { running = 16 }
        };
        settings.insert("command".to_owned(), command.into());
        Ok(toml::to_string(&settings)?)
    }

    /// What servers said that no server should ever have to say.
    pub(super) fn complaints(&self) -> anyhow::Result<Vec<String>> {
        complaints(&self.folder.join("servers"))
    }

    /// Starts the server for the `life`th time.
    pub(super) fn start(&self, life: usize) -> anyhow::Result<Server> {
        let log = self.folder.join(format!("servers/{life}.log"));
        let mut command = Command::new(&self.toolgate);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TOOLGATE_") {
                command.env_remove(name);
            }
        }
        command.arg("serve").arg(self.served()).args(["--listen", "127.0.0.1:0"]);
        command.arg("--config").arg(self.served().join("toolgate.toml"));
        command.env("XDG_STATE_HOME", self.folder.join("state")).env(MARKER, &self.marker);
        Server::start(&mut command, log)
    }
}

/// What is in the logs in `folder` that no server should ever have to say.
pub(super) fn complaints(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut complaints = Vec::new();
    for log in fs::read_dir(folder)? {
        let path = log?.path();
        let said = fs::read_to_string(&path)?;
        let bad = said.lines().filter(|it| it.contains("panicked") || it.contains(" ERROR "));
        complaints.extend(bad.map(|line| format!("{}: {line}", path.display())));
    }
    Ok(complaints)
}

impl Server {
    /// Starts one that says in `log` what it has to say.
    pub(super) fn start(command: &mut Command, log: PathBuf) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let process = command.spawn().context("the server cannot be started")?;
        Ok(Self { process, begun: Instant::now(), log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens, as soon as it does.
    pub(super) fn address(&mut self) -> anyhow::Result<SocketAddr> {
        while self.begun.elapsed() < START {
            let log = fs::read_to_string(&self.log)?;
            let url = log.lines().find(|line| line.starts_with("toolgate: serving"));
            // The line may be there in part.
            let url = url.filter(|line| line.ends_with("/mcp"));
            if let Some(rest) = url.and_then(|line| line.rsplit_once("http://")) {
                let address = rest.1.trim_end_matches("/mcp");
                return address.parse().with_context(|| address.to_owned());
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("the server ended by itself, {status}: {log}");
            }
            sleep(LOOK);
        }
        bail!("the server does not listen; see {}", self.log.display())
    }

    /// Since when it runs.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Kills it; whether it had not ended before.
    pub(super) fn kill(mut self) -> anyhow::Result<bool> {
        let ended = self.process.try_wait()?;
        self.process.kill()?;
        let status = self.process.wait()?;
        match (ended, status.signal()) {
            (None, Some(_)) => Ok(true),
            _ if status.success() => Ok(false),
            _ => bail!("the server ended by itself, {status}; see {}", self.log.display()),
        }
    }

    /// Asks it to stop.
    pub(super) fn ask_to_stop(&self) -> anyhow::Result<()> {
        let pid = self.process.id().to_string();
        // The shell's own `kill`: there need not be another.
        let mut kill = Command::new("sh");
        let status = kill.args(["-c", "kill -TERM \"$0\"", &pid]).status()?;
        if !status.success() {
            bail!("the server cannot be asked to stop; see {}", self.log.display());
        }
        Ok(())
    }

    /// Asks it to stop and waits for that.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.ask_to_stop()?;
        let start = Instant::now();
        while start.elapsed() < STOP {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("asked to stop, {}", self.ended(status)),
                None => sleep(LOOK),
            }
        }
        bail!("the server does not stop; see {}", self.log.display())
    }

    fn ended(&self, status: ExitStatus) -> String {
        format!("the server ended with {status}; see {}", self.log.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
