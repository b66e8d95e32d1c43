//! Starts HAProxy with the configuration that toolgate ships, for tests. `cargo xtask setup`
//! installs HAProxy from Debian.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// HAProxy configuration that toolgate ships. Tests replace its address and its servers.
const SHIPPED: &str = include_str!("../../dist/fleet/haproxy.cfg");
/// Host that health checks in [`SHIPPED`] name, which tests replace.
const SHIPPED_HOST: &str = "127.0.0.1:8000";
/// Longest time that HAProxy may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two checks whether HAProxy listens.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Running HAProxy process. Dropping it kills the process.
pub(crate) struct LoadBalancer {
    process: Child,
    /// Address at which clients reach the servers through HAProxy.
    pub(crate) address: SocketAddr,
}

impl LoadBalancer {
    /// Returns a free address for HAProxy. The servers must know the address before they start,
    /// because clients name it as the host.
    pub(crate) fn choose_address() -> anyhow::Result<SocketAddr> {
        Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
    }

    /// Starts HAProxy at `address` in front of `servers`, with its files in `folder`.
    pub(crate) fn start(
        address: SocketAddr,
        servers: &[SocketAddr],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let configuration = folder.join("haproxy.cfg");
        let log = folder.join("haproxy.log");
        fs::write(&configuration, configuration_text(address, servers))?;
        let process = Command::new("haproxy")
            .arg("-db")
            .arg("-f")
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("HAProxy cannot be started; `cargo xtask setup` installs it")?;
        let mut balancer = Self { process, address };
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = balancer.process.try_wait()? {
                bail!("HAProxy exited with {status}: {}", fs::read_to_string(&log)?);
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("HAProxy does not listen; see {}", log.display());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(balancer)
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the shipped configuration, with `address` and `servers` filled in.
fn configuration_text(address: SocketAddr, servers: &[SocketAddr]) -> String {
    let mut text = String::new();
    for line in SHIPPED.lines() {
        match line.trim_start().split(' ').next() {
            Some("bind") => text += &format!("    bind {address}\n"),
            Some("server") => {}
            _ => text += &format!("{}\n", line.replace(SHIPPED_HOST, &address.to_string())),
        }
    }
    for (number, server) in servers.iter().enumerate() {
        text += &format!("    server front-{number} {server} check\n");
    }
    text
}
