//! The server under test: started at a free port, ended by its own id.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::shell::checkout;

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
        Self::of(Command::new(program).arg("127.0.0.1:0"), folder)
    }

    /// Starts what starts `program` for each WebSocket that is opened.
    pub(super) fn over_websocket(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(checkout().join(".tools/upstreams/bin/python"));
        command.arg(checkout().join("tests/upstreams/over_websocket.py")).arg(program).arg("stdio");
        Self::of(&mut command, folder)
    }

    /// Starts toolgate, `program`, with `settings` over the folder `served`.
    pub(super) fn gateway(program: &Path, settings: &Path, served: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(settings).arg(served);
        let mut server = Self::of(&mut command, settings.parent().unwrap_or(served))?;
        if !server.url.ends_with("/mcp") {
            server.url = format!("{}/mcp", server.url.trim_end_matches('/'));
        }
        Ok(server)
    }

    fn of(command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
        let program = command.get_program().display().to_string();
        let mut process = command
            .current_dir(folder)
            .env("TMPDIR", folder)
            .env("XDG_STATE_HOME", folder)
            .env("XDG_CACHE_HOME", folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let said = process.stderr.take().context("the server has no standard error")?;
        let mut server = Self { process, url: String::new() };
        let mut lines = BufReader::new(said).lines();
        while server.url.is_empty() {
            let line =
                lines.next().context("the server exited before it printed its address")??;
            let url = line
                .split_whitespace()
                .find(|word| ["http://", "ws://"].iter().any(|scheme| word.starts_with(scheme)));
            match url {
                Some(url) => url.clone_into(&mut server.url),
                None => eprintln!("{line}"),
            }
        }
        // What it says from now on is for whoever reads along, and must not fill the pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(server)
    }

    /// Ends it in order, and fails if it does not.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the server exited unexpectedly: {status}");
        }
        let id = self.process.id().to_string();
        let told = Command::new("kill").arg(&id).status().context("cannot start `kill`")?;
        if !told.success() {
            bail!("cannot stop the server: {told}");
        }
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            match self.process.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("the server failed at its end: {status}"),
                None => thread::sleep(LOOK),
            }
        }
        bail!("the server did not stop within {} s", STOP.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
