//! The server under test: started at a free port, ended by its own id.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long it may take to end once it is told to.
const STOP: Duration = Duration::from_secs(30);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// A server that is ended when this is dropped.
pub(super) struct Server {
    process: Child,
    pub(super) url: String,
}

impl Server {
    /// Starts `program`, which keeps all that it keeps below `folder`.
    pub(super) fn start(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .arg("127.0.0.1:0")
            .current_dir(folder)
            .env("TMPDIR", folder)
            .env("XDG_STATE_HOME", folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let said = process.stderr.take().context("the server has no standard error")?;
        let mut server = Self { process, url: String::new() };
        let mut lines = BufReader::new(said).lines();
        let line = lines.next().context("the server said nothing")??;
        server.url = line.split_whitespace().last().context("it named no address")?.to_owned();
        // What it says from now on is for whoever reads along, and must not fill the pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(server)
    }

    /// Ends it in order, and fails if it does not.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the server ended by itself: {status}");
        }
        let id = self.process.id().to_string();
        let told = Command::new("kill").arg(&id).status().context("`kill` cannot be started")?;
        if !told.success() {
            bail!("the server could not be told to end: {told}");
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the server ended badly: {status}"),
                None => thread::sleep(LOOK),
            }
        }
        bail!("the server was told to end and did not within {} s", STOP.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
