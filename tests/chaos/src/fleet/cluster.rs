//! Database of a fleet: one PostgreSQL server, or a server with a standby for failovers.

use std::path::PathBuf;

use super::database;

/// Servers that run the database of a fleet: one server, or one with a standby for failovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatabaseKind {
    /// One database server, which crashes and starts again.
    Single,
    /// Database server with a standby. Each commit waits until the standby has it.
    SynchronousStandby,
    /// Database server with a standby that may lag behind.
    AsynchronousStandby,
}

/// Database of a fleet, with one or two PostgreSQL servers.
pub(super) struct FleetDatabase {
    kind: DatabaseKind,
    /// Database server that accepts writes.
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

    /// Returns the URL of the database, which stays valid after failovers.
    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns the path of the Unix socket of the database server that accepts writes.
    pub(super) fn socket(&self) -> PathBuf {
        self.primary.socket()
    }

    /// Runs `sql` at the database server that accepts writes, and returns the output.
    pub(super) fn run(&self, sql: &str) -> String {
        self.primary.run(sql)
    }

    /// Ends the database server at once, as in a crash.
    pub(super) fn crash(&mut self) {
        self.primary.stop();
    }

    /// Starts the database server again after a crash.
    pub(super) fn restart(&mut self) {
        self.primary.again();
    }

    /// Makes the standby receive no further changes. From then on, commits are not acknowledged if
    /// the standby is synchronous.
    pub(super) fn stop_replication(&self) {
        if let Some(standby) = &self.standby {
            standby.stop_receiving();
        }
    }

    /// Ends the database server that accepts writes at once, and makes the standby take its role.
    pub(super) fn fail_over(&mut self) {
        self.primary.stop();
        if let Some(standby) = &mut self.standby {
            standby.promote();
            std::mem::swap(&mut self.primary, standby);
        }
    }

    /// Makes the former database server the standby of its successor, and starts it.
    pub(super) fn rebuild_standby(&mut self) {
        if let Some(standby) = &mut self.standby {
            standby.follow(&self.primary);
        }
        self.use_standby();
    }

    /// Waits until the standby receives changes. If the standby is synchronous, then makes commits
    /// wait for it.
    fn use_standby(&self) {
        if self.standby.is_some() {
            self.primary.wait_until_replicated();
            self.primary.wait_for_standby(self.kind == DatabaseKind::SynchronousStandby);
        }
    }
}
