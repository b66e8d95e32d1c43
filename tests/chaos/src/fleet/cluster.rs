//! The database of a fleet: one server, or a server with a standby for failovers.

use std::path::PathBuf;

use super::database;

/// The servers of a fleet's database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatabaseKind {
    /// A single database server, which crashes and starts again.
    Single,
    /// A database server and a standby that has every acknowledged commit.
    SynchronousStandby,
    /// A database server and a standby that may lag behind.
    AsynchronousStandby,
}

/// The database of a fleet.
pub(super) struct FleetDatabase {
    kind: DatabaseKind,
    /// The server that accepts writes.
    primary: database::PostgresServerProcess,
    standby: Option<database::PostgresServerProcess>,
    url: String,
}

impl FleetDatabase {
    pub(super) fn start(kind: DatabaseKind) -> Self {
        let primary = database::PostgresServerProcess::start();
        let standby = (kind != DatabaseKind::Single).then(|| primary.start_standby());
        let url =
            standby.as_ref().map_or_else(|| primary.url(), |standby| primary.url_with(standby));
        let database = Self { kind, primary, standby, url };
        database.use_standby();
        database
    }

    /// Returns the URL, which stays the same after failovers.
    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns the path of the Unix socket of the server that accepts writes.
    pub(super) fn socket(&self) -> PathBuf {
        self.primary.socket()
    }

    /// Runs `sql` at the server that accepts writes.
    pub(super) fn run(&self, sql: &str) -> String {
        self.primary.run(sql)
    }

    /// Ends the server at once, as a crash does.
    pub(super) fn crash(&mut self) {
        self.primary.stop();
    }

    /// Starts the server again after a crash.
    pub(super) fn restart(&mut self) {
        self.primary.again();
    }

    /// Makes the standby receive no further changes. From then on, a synchronous one keeps the
    /// commits from being acknowledged.
    pub(super) fn stop_replication(&self) {
        if let Some(standby) = &self.standby {
            standby.stop_receiving();
        }
    }

    /// Ends the primary server at once, and makes the standby the primary server.
    pub(super) fn fail_over(&mut self) {
        self.primary.stop();
        if let Some(standby) = &mut self.standby {
            standby.promote();
            std::mem::swap(&mut self.primary, standby);
        }
    }

    /// Starts the former primary server as the standby of its successor.
    pub(super) fn rebuild_standby(&mut self) {
        if let Some(standby) = &mut self.standby {
            standby.follow(&self.primary);
        }
        self.use_standby();
    }

    /// Waits until the standby receives changes. Then lets commits wait for it, if it is
    /// synchronous.
    fn use_standby(&self) {
        if self.standby.is_some() {
            self.primary.wait_until_replicated();
            self.primary.wait_for_standby(self.kind == DatabaseKind::SynchronousStandby);
        }
    }
}
