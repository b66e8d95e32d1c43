//! Settings of jobs that servers on several machines share.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::{FleetServerKind, FleetServerProfile, PostgresStoreSettings, SettingsDigests};
use toolgate_postgres::{DatabasePassword, PostgresAddress};

/// Jobs and used confirmations that servers on several machines share, in a PostgreSQL database.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetSection {
    /// URL of a PostgreSQL database (version 14 or newer), without a password:
    /// `postgresql://user@host:5432/database`. All servers with the same URL and workspace share
    /// their jobs and used confirmations. `sslmode` and `sslrootcert` mean the same as in
    /// `search.engine.postgres.url`. By default, jobs are stored in the folder `jobs.to`, which
    /// servers on one machine share.
    pub url: Option<String>,
    /// Environment variable with the password of the database.
    pub password_env: String,
    /// Name of the workspace in the database. By default, the name is the path of the served
    /// folder. Servers that serve the same files under different paths need the same name.
    pub workspace: Option<String>,
    /// Folder that all machines of the fleet share, such as a network file system, as an absolute
    /// path. The folder must exist. Servers store files of jobs and long results there that are
    /// larger than 16 MiB. Smaller ones are in the database. By default, only the server that ran a
    /// job has its larger files.
    pub files: Option<String>,
    /// Time in milliseconds after which other servers take over the jobs of a server that lost its
    /// connection to the database. They run its waiting jobs, and run jobs of idempotent tools
    /// again.
    #[schemars(range(min = 1000, max = 600_000))]
    pub lease_ms: u64,
    /// Additional time in milliseconds to wait after `lease_ms`. After that, the other running jobs
    /// of that server fail as interrupted.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub lost_ms: u64,
    /// Kind of this server in the fleet: the command and its options decide it.
    #[serde(skip)]
    #[schemars(skip)]
    pub kind: FleetServerKind,
    /// Password of the database, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub password: DatabasePassword,
}

impl Default for FleetSection {
    fn default() -> Self {
        Self {
            url: None,
            password_env: "PGPASSWORD".to_owned(),
            workspace: None,
            files: None,
            lease_ms: 30_000,
            lost_ms: 300_000,
            kind: FleetServerKind::Server,
            password: DatabasePassword::default(),
        }
    }
}

impl FleetSection {
    /// Checks the fleet settings.
    ///
    /// # Errors
    /// A value is invalid. The message says how to fix it.
    pub fn check(&self) -> Result<(), String> {
        self.address()?;
        let lease_ms = self.lease_ms;
        if !(1_000..=600_000).contains(&lease_ms) {
            return Err(format!("fleet.lease_ms is {lease_ms}; it must be from 1000 to 600000"));
        }
        let lost_ms = self.lost_ms;
        if lost_ms > 86_400_000 {
            return Err(format!("fleet.lost_ms is {lost_ms}; it must be from 0 to 86400000"));
        }
        match &self.files {
            Some(files) if !Path::new(files).is_absolute() => Err(format!(
                "fleet.files is `{files}`; write an absolute path (a relative path would be in the \
                 workspace, where tools can write)"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Reads the database password from the environment. `variable` looks up an environment
    /// variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        let password = variable(&self.password_env);
        self.password = password.map(DatabasePassword::from).unwrap_or_default();
    }

    /// Returns the settings of the job store for the workspace at the resolved path `root`, or
    /// `None` if there is no database.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn job_store(&self, root: &Path) -> Result<Option<PostgresStoreSettings>, String> {
        let workspace = self.workspace.clone();
        Ok(self.address()?.map(|address| PostgresStoreSettings {
            address,
            workspace: workspace.unwrap_or_else(|| root.to_string_lossy().into_owned()),
            lease: Duration::from_millis(self.lease_ms),
            lost_after: Duration::from_millis(self.lost_ms),
            files: self.files.as_ref().map(PathBuf::from),
            profile: FleetServerProfile {
                name: machine_name(),
                kind: self.kind,
                settings: SettingsDigests::default(),
            },
        }))
    }

    fn address(&self) -> Result<Option<PostgresAddress>, String> {
        let parse = |url: &String| PostgresAddress::parse(url, &self.password_env, &self.password);
        let parsed = self.url.as_ref().map(parse).transpose();
        parsed.map_err(|why| format!("fleet.url {why}"))
    }
}

/// Returns the name of this machine, which may be empty.
#[allow(clippy::disallowed_methods, reason = "a file of the kernel, outside every root")]
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(toml: &str, expected: &str) {
        let settings: FleetSection = toml::from_str(toml).unwrap();
        assert_eq!(settings.check().err().as_deref().unwrap_or("valid"), expected);
    }

    #[test]
    fn an_invalid_value_is_an_error_that_names_its_setting() {
        check("", "valid");
        check("url = 'postgresql://u@db.example/d'", "valid");
        check(
            "url = 'mysql://u@db.example/d'",
            "fleet.url does not start with `postgresql://` or `postgres://`",
        );
        check("lease_ms = 10", "fleet.lease_ms is 10; it must be from 1000 to 600000");
        check("files = '/mnt/shared'", "valid");
        check(
            "files = 'shared'",
            "fleet.files is `shared`; write an absolute path (a relative path would be in the \
             workspace, where tools can write)",
        );
        check("lost_ms = 86400001", "fleet.lost_ms is 86400001; it must be from 0 to 86400000");
    }

    #[test]
    fn the_password_is_read_from_its_variable_and_never_shown() {
        let mut settings: FleetSection =
            toml::from_str("url = 'postgresql://u@db.example/d'\npassword_env = 'A'").unwrap();
        settings.take_secrets(|name| (name == "A").then_some("very-secret"));
        let store = settings.job_store(Path::new("/srv/app")).unwrap().unwrap();
        let shown = format!("{settings:?} {store:?} {}", toml::to_string(&settings).unwrap());
        assert!(!shown.contains("very"), "{shown}");
        assert_eq!(settings.password.expose(), Some("very-secret"));
        assert_eq!(store.workspace, "/srv/app");
    }
}
