//! Starts the servers and workers of a fleet, its members.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use jiff::fmt::rfc2822;

use crate::requests::get;
use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// Offsets of the members' clocks. The members take the offsets in turn.
const CLOCK_OFFSETS: [&str; 3] = ["+10m", "-10m", "+0"];
/// Minimum number of seconds by which a wrong clock differs from the machine's clock.
const CLOCK_ERROR_MIN: i64 = 9 * 60;

/// Clocks of the servers and workers of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberClocks {
    /// All members use the clock of the machine.
    Right,
    /// Some clocks are ten minutes fast, some are ten minutes slow, and some are right. Durations
    /// are right everywhere.
    Wrong,
}

/// Starter of the servers and workers of one fleet, which all have the same settings.
pub(super) struct FleetMemberStarter<'f> {
    pub(super) folder: &'f ChaosRunFolder,
    /// URL of the PostgreSQL database.
    url: String,
    /// Duration of a server's lease, and of the further time until its job counts as interrupted,
    /// in milliseconds.
    lease_ms: u64,
    clocks: MemberClocks,
    session_key: PathBuf,
    /// Address of a load balancer by which clients name the servers, if there is one.
    host: Option<SocketAddr>,
    /// Number of servers and workers that were started.
    started: usize,
    /// Process ids of the members whose clocks have an offset.
    clock_users: Vec<u32>,
}

impl<'f> FleetMemberStarter<'f> {
    pub(super) fn new(
        folder: &'f ChaosRunFolder,
        url: String,
        lease_ms: u64,
    ) -> anyhow::Result<Self> {
        let session_key = folder.folder.join("session.key");
        fs::write(&session_key, [7_u8; 32])?;
        fs::set_permissions(&session_key, Permissions::from_mode(0o600))?;
        Ok(Self {
            folder,
            url,
            lease_ms,
            clocks: MemberClocks::Right,
            session_key,
            host: None,
            started: 0,
            clock_users: Vec::new(),
        })
    }

    /// Allows clients to name the address `host` of a load balancer in requests to the servers.
    pub(super) fn set_host(&mut self, host: SocketAddr) {
        self.host = Some(host);
    }

    /// Sets the duration of the lease for members that are started from now on, in milliseconds.
    pub(super) fn set_lease(&mut self, lease_ms: u64) {
        self.lease_ms = lease_ms;
    }

    /// Sets the URL of the database for members that are started from now on.
    pub(super) fn set_url(&mut self, url: String) {
        self.url = url;
    }

    /// Sets the clocks for members that are started from now on.
    pub(super) fn set_clocks(&mut self, clocks: MemberClocks) {
        self.clocks = clocks;
    }

    /// Starts a worker with the command `toolgate work`.
    pub(super) fn start_worker(&mut self) -> anyhow::Result<ChaosServerProcess> {
        self.start("work", &[])
    }

    /// Starts `toolgate serve` with `flags` on a free port, and waits until it listens. Returns the
    /// process and its address.
    pub(super) fn start_server(
        &mut self,
        flags: &[&str],
    ) -> anyhow::Result<(ChaosServerProcess, SocketAddr)> {
        self.start_server_at("127.0.0.1:0", flags)
    }

    /// Starts `toolgate serve` with `flags` at `address`, and waits until it listens. Returns the
    /// process and its address.
    pub(super) fn start_server_at(
        &mut self,
        address: &str,
        flags: &[&str],
    ) -> anyhow::Result<(ChaosServerProcess, SocketAddr)> {
        let mut server = self.start("serve", &[&["--listen", address], flags].concat())?;
        let address = server.address()?;
        Ok((server, address))
    }

    fn start(&mut self, word: &str, flags: &[&str]) -> anyhow::Result<ChaosServerProcess> {
        self.started += 1;
        let lease = self.lease_ms.to_string();
        let key = self.session_key.display().to_string();
        let host = self.host.map(|host| host.to_string());
        let mut variables = vec![
            ("TOOLGATE_FLEET_URL", self.url.as_str()),
            ("TOOLGATE_FLEET_LEASE_MS", lease.as_str()),
            ("TOOLGATE_FLEET_LOST_MS", lease.as_str()),
            ("TOOLGATE_SERVER_SESSION_KEY", key.as_str()),
        ];
        variables.extend(host.as_deref().map(|host| ("TOOLGATE_SERVER_ALLOWED_HOSTS", host)));
        let has_wrong_clock = self.clocks == MemberClocks::Wrong;
        let library =
            if has_wrong_clock { clock_library()?.display().to_string() } else { String::new() };
        if has_wrong_clock {
            let offset = CLOCK_OFFSETS[(self.started - 1) % CLOCK_OFFSETS.len()];
            variables.extend([
                ("LD_PRELOAD", library.as_str()),
                ("FAKETIME", offset),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ]);
        }
        let member = self.folder.start_member(self.started, word, flags, &variables)?;
        if has_wrong_clock {
            self.clock_users.push(member.pid());
        }
        Ok(member)
    }
}

impl Drop for FleetMemberStarter<'_> {
    fn drop(&mut self) {
        // The library removes its shared memory only if its process exits by itself.
        for pid in &self.clock_users {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                let _ = fs::remove_file(PathBuf::from("/dev/shm").join(name));
            }
        }
    }
}

/// Returns the path of the library in Debian's package `faketime` that changes the clock of a
/// process.
fn clock_library() -> anyhow::Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let found = libraries.find(|library| library.exists());
    found.context("faketime is not installed; `cargo xtask setup` installs it")
}

/// Checks that the clock of the server at `address` is wrong, by the date header of an answer.
pub(super) fn ensure_wrong_clock(address: SocketAddr) -> anyhow::Result<()> {
    let answer = get(address, "/healthz")?;
    let date = answer.header("date").context("an answer without a date")?;
    let shown = rfc2822::parse(date).with_context(|| date.to_owned())?.timestamp();
    let error = shown.as_second() - Timestamp::now().as_second();
    ensure!(error.abs() >= CLOCK_ERROR_MIN, "the clock of the server is only {error} s off");
    Ok(())
}
