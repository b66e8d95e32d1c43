//! Settings of the job store in PostgreSQL, and the description of a server for operators: its
//! name, its role and the digests of its settings.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use toolgate_contract::lock_mutex;
use toolgate_postgres::PostgresAddress;

use super::lease;
use crate::jobs::shared_folder::FleetLargeFileLocation;

/// Settings of a job store in PostgreSQL.
#[derive(Debug, Clone)]
pub struct PostgresStoreSettings {
    /// Address of the database.
    pub address: PostgresAddress,
    /// Name of the workspace. All servers with the same workspace name share their jobs.
    pub workspace: String,
    /// Time for which a server's lease is valid. If a server does not renew it in time, others take
    /// over its jobs that may run again.
    pub lease: Duration,
    /// Time after the end of a lease from which jobs that may not run twice count as interrupted.
    pub lost_after: Duration,
    /// Folder or bucket for files and results that are too large for the database, if there is one.
    pub files: Option<FleetLargeFileLocation>,
    /// Name and role of this server, and digests of its settings.
    pub profile: FleetServerProfile,
}

impl PostgresStoreSettings {
    /// Returns the time after a renewal of the lease for which no other server takes over this
    /// server's jobs.
    pub(in crate::jobs) fn trusted_time(&self) -> Duration {
        lease::trusted_time(self.lease)
    }
}

/// Name, role and settings of a server, for `toolgate fleet`.
#[derive(Debug, Clone, Default)]
pub struct FleetServerProfile {
    /// Name of the server's machine. Several servers may have the same name.
    pub name: String,
    /// Role of the server in the fleet.
    pub kind: FleetServerRole,
    /// Digests of the settings that the server uses.
    pub settings: SettingsDigests,
}

/// Role of a server in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FleetServerRole {
    /// The server accepts and runs jobs.
    #[default]
    Server,
    /// The server accepts jobs and runs none.
    Front,
    /// The server runs jobs and accepts none.
    Worker,
}

impl FleetServerRole {
    /// Returns the name of the role: `server`, `front` or `worker`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Front => "front",
            Self::Worker => "worker",
        }
    }
}

/// Digests of a server's settings by section, as JSON. All clones share the digests.
///
/// If the digests of a section differ, the servers have different settings there.
#[derive(Debug, Clone)]
pub struct SettingsDigests(Arc<Mutex<String>>);

impl Default for SettingsDigests {
    fn default() -> Self {
        Self(Arc::new(Mutex::new("{}".to_owned())))
    }
}

impl SettingsDigests {
    /// Replaces the digests by `json`, an object of strings.
    pub fn replace(&self, json: String) {
        *lock_mutex(&self.0) = json;
    }

    /// Returns the digests of the settings as JSON.
    pub(super) fn current(&self) -> String {
        lock_mutex(&self.0).clone()
    }
}
