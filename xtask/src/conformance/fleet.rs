//! Starts three toolgates behind HAProxy, with one upstream and one database. The suite tests them
//! as one server.

#[path = "../../../tests/haproxy/balancer.rs"]
mod balancer;
#[path = "../../../tests/postgres/server.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the server")]
mod database;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

use super::server::ConformanceServerProcess;
use super::through::{GatewaySettingsFile, toolgate};
use crate::shell::checkout;
use balancer::LoadBalancer;

/// Number of toolgate servers behind HAProxy.
const REPLICAS: usize = 3;
/// MCP revision between toolgate and the upstream.
const UPSTREAM_REVISION: &str = "2026-07-28";

/// Running toolgates that share a database and an upstream, which is the example server.
pub(super) struct TestedFleet {
    balancer: LoadBalancer,
    replicas: Vec<ConformanceServerProcess>,
    upstream: ConformanceServerProcess,
    _database: database::PostgresServerProcess,
}

impl TestedFleet {
    /// Starts the database, the upstream, the toolgates and HAProxy, with their files in `folder`.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let database = database::PostgresServerProcess::start();
        let upstream = ConformanceServerProcess::start(
            &checkout().join("target/debug/example-everything"),
            folder,
        )?;
        let address = format!("url = {:?}", upstream.url);
        let settings = GatewaySettingsFile::write(folder, "tested", &address, UPSTREAM_REVISION)?;
        let key = folder.join("session.key");
        fs::write(&key, [7_u8; 32])?;
        fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        let host = LoadBalancer::choose_address()?;
        let variables = [
            ("TOOLGATE_FLEET_URL", database.url()),
            ("TOOLGATE_SERVER_SESSION_KEY", key.display().to_string()),
            ("TOOLGATE_SERVER_ALLOWED_HOSTS", host.to_string()),
        ];
        let mut replicas = Vec::new();
        for number in 0..REPLICAS {
            let state = folder.join(format!("replica-{number}"));
            fs::create_dir(&state)?;
            let GatewaySettingsFile { file, served } = &settings;
            replicas.push(ConformanceServerProcess::replica(
                &toolgate(),
                file,
                served,
                &state,
                &variables,
            )?);
        }
        let addresses = replicas.iter().map(|replica| socket_address(&replica.url));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?;
        let balancer = LoadBalancer::start(host, &addresses, folder)?;
        Ok(Self { balancer, replicas, upstream, _database: database })
    }

    /// Returns the URL of the MCP endpoint of the load balancer.
    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.balancer.address)
    }

    /// Stops all toolgates and then their upstream. Fails if one does not exit with success.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        let Self { balancer, replicas, upstream, _database } = self;
        drop(balancer);
        replicas.into_iter().try_for_each(ConformanceServerProcess::stop)?;
        upstream.stop()
    }
}

/// Returns the socket address in `url`.
fn socket_address(url: &str) -> anyhow::Result<SocketAddr> {
    let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    host.parse().with_context(|| url.to_owned())
}
