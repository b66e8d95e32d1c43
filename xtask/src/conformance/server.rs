//! Server process that the suite tests. It listens on a free port, and is stopped by its process
//! id.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::shell::checkout;

/// Longest time that a server may take to stop after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two checks whether the server has stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Server process of a conformance run. Dropping it kills the process.
pub(super) struct ConformanceServerProcess {
    process: Child,
    pub(super) url: String,
}

impl ConformanceServerProcess {
    /// Starts the server `program` with its files below `folder`.
    pub(super) fn start(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        Self::spawn(Command::new(program).arg("127.0.0.1:0"), folder)
    }

    /// Starts a bridge that runs `program` over stdio for each WebSocket connection.
    pub(super) fn over_websocket(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(checkout().join(".tools/upstreams/bin/python"));
        command.arg(checkout().join("tests/upstreams/over_websocket.py")).arg(program).arg("stdio");
        Self::spawn(&mut command, folder)
    }

    /// Starts the toolgate executable `program` with the settings file `settings` and the workspace
    /// `served`.
    pub(super) fn gateway(program: &Path, settings: &Path, served: &Path) -> anyhow::Result<Self> {
        Self::replica(program, settings, served, settings.parent().unwrap_or(served), &[])
    }

    /// Starts toolgate like [`Self::gateway`], with the state folder `state` and additional
    /// environment `variables`.
    pub(super) fn replica(
        program: &Path,
        settings: &Path,
        served: &Path,
        state: &Path,
        variables: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(settings).arg(served);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut server = Self::spawn(&mut command, state)?;
        if !server.url.ends_with("/mcp") {
            server.url = format!("{}/mcp", server.url.trim_end_matches('/'));
        }
        Ok(server)
    }

    /// Starts `command` in `folder`, and waits until the server prints its address.
    fn spawn(command: &mut Command, folder: &Path) -> anyhow::Result<Self> {
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
        let stderr = process.stderr.take().context("the server has no standard error")?;
        let mut server = Self { process, url: String::new() };
        let mut lines = BufReader::new(stderr).lines();
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
        // The rest of its log is passed on: an unread pipe would fill and block the server.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(server)
    }

    /// Sends SIGTERM to the server. Fails unless it exits with success in time.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the server exited unexpectedly: {status}");
        }
        let id = self.process.id().to_string();
        let status = Command::new("kill").arg(&id).status().context("cannot start `kill`")?;
        if !status.success() {
            bail!("cannot stop the server: {status}");
        }
        let started = Instant::now();
        while started.elapsed() < STOP_TIMEOUT {
            match self.process.try_wait()? {
                Some(exit) if exit.success() => return Ok(()),
                Some(exit) => bail!("the server failed while stopping: {exit}"),
                None => thread::sleep(POLL_INTERVAL),
            }
        }
        bail!("the server did not stop within {} s", STOP_TIMEOUT.as_secs())
    }
}

impl Drop for ConformanceServerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
