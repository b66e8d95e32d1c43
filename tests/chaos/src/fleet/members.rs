//! Starts the servers and workers of a fleet.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// Starts the servers and workers of one fleet, which have the same settings.
pub(super) struct MemberStarter<'f> {
    pub(super) folder: &'f ChaosRunFolder,
    /// The URL of the database.
    url: String,
    /// The length of a lease, and the further time until a job counts as interrupted.
    lease_ms: u64,
    session_key: PathBuf,
    /// The name that clients use for the servers, if it is that of a load balancer.
    host: Option<SocketAddr>,
    /// The number of started servers and workers.
    started: usize,
}

impl<'f> MemberStarter<'f> {
    pub(super) fn new(
        folder: &'f ChaosRunFolder,
        url: String,
        lease_ms: u64,
    ) -> anyhow::Result<Self> {
        let session_key = folder.folder.join("session.key");
        fs::write(&session_key, [7_u8; 32])?;
        fs::set_permissions(&session_key, Permissions::from_mode(0o600))?;
        Ok(Self { folder, url, lease_ms, session_key, host: None, started: 0 })
    }

    /// Lets clients call the servers by the address `host` of a load balancer.
    pub(super) fn behind(self, host: SocketAddr) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Starts all members from now on with leases of `lease_ms` milliseconds.
    pub(super) fn set_lease(&mut self, lease_ms: u64) {
        self.lease_ms = lease_ms;
    }

    /// Starts `toolgate work`.
    pub(super) fn start_worker(&mut self) -> anyhow::Result<ChaosServerProcess> {
        self.start("work", &[])
    }

    /// Starts `toolgate serve` with these flags at a free port, and waits until it listens.
    pub(super) fn start_server(
        &mut self,
        flags: &[&str],
    ) -> anyhow::Result<(ChaosServerProcess, SocketAddr)> {
        self.start_server_at("127.0.0.1:0", flags)
    }

    /// Starts `toolgate serve` with these flags at `address`, and waits until it listens.
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
        self.folder.start_member(self.started, word, flags, &variables)
    }
}
