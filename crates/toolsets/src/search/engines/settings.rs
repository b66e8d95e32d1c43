//! Settings of the engine that stores the search index.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_postgres::{DatabasePassword, PostgresAddress};

/// Engine of the search tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SearchEngineSettings {
    /// An index in this process, with files in a cache folder.
    #[default]
    Embedded,
    /// A PostgreSQL server with the extension pgvector.
    Postgres(PostgresSearchSettings),
}

/// Connection to a PostgreSQL server with pgvector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresSearchSettings {
    /// URL of the server without a password: `postgresql://user@host:5432/database`, or
    /// `postgresql:///database?host=/run/postgresql` for a Unix socket. `sslmode` is `disable`,
    /// `require` (encrypted, certificate not checked) or `verify-full`. The default is `disable`
    /// for this machine and `verify-full` for other hosts. `sslrootcert` names a file of
    /// certificates to trust instead of the system's.
    pub url: String,
    /// Environment variable with the password.
    #[serde(default = "postgres_password")]
    pub password_env: String,
    /// Name of the workspace on the server. The default is the path of its folder. Servers on
    /// several machines that serve the same files share an index if they use the same name.
    #[serde(default)]
    pub workspace: Option<String>,
    /// Maximum number of connections for searches. Writing uses one more connection.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Time limit of a search on the server, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Minimum number of vectors for an approximate index (HNSW).
    #[serde(default = "approximate_from")]
    pub approximate_from: u64,
    /// The password, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub password: DatabasePassword,
}

impl SearchEngineSettings {
    /// Checks the settings of the search engine.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid. The error describes a fix.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Embedded => Ok(()),
            Self::Postgres(settings) => settings.check(),
        }
    }

    /// Reads the secrets from the environment variables that these settings name. `variable` looks
    /// up an environment variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        if let Self::Postgres(settings) = self {
            let password = variable(&settings.password_env);
            settings.password = password.map(DatabasePassword::from).unwrap_or_default();
        }
    }
}

impl PostgresSearchSettings {
    /// Returns the address of the PostgreSQL server.
    ///
    /// # Errors
    /// Fails if the URL is invalid. The message continues a sentence that begins with the name of
    /// the setting.
    pub(super) fn address(&self) -> Result<PostgresAddress, String> {
        PostgresAddress::parse(&self.url, &self.password_env, &self.password)
    }

    fn check(&self) -> Result<(), String> {
        let Self { connections, timeout_ms, .. } = self;
        if let Err(why) = self.address() {
            return Err(format!("`search.engine.postgres.url` {why}"));
        }
        if !(1..=64).contains(connections) {
            return Err(format!(
                "`search.engine.postgres.connections` is {connections}; it must be from 1 to 64"
            ));
        }
        if !(100..=600_000).contains(timeout_ms) {
            return Err(format!(
                "`search.engine.postgres.timeout_ms` is {timeout_ms}; it must be from 100 to 600000"
            ));
        }
        Ok(())
    }
}

fn postgres_password() -> String {
    "PGPASSWORD".to_owned()
}

fn connections() -> usize {
    4
}

fn timeout_ms() -> u64 {
    10_000
}

fn approximate_from() -> u64 {
    50_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(toml: &str, expected: &str) {
        let settings: SearchEngineSettings = toml::from_str(toml).unwrap();
        assert_eq!(settings.check().err().as_deref().unwrap_or("valid"), expected);
    }

    #[test]
    fn an_invalid_value_is_an_error_that_names_its_setting() {
        check("[postgres]\nurl = 'postgresql://u@db.example/d'", "valid");
        check(
            "[postgres]\nurl = 'postgresql://u@db.example/d'\nconnections = 0",
            "`search.engine.postgres.connections` is 0; it must be from 1 to 64",
        );
        check(
            "[postgres]\nurl = 'postgresql://u@db.example/d'\ntimeout_ms = 1",
            "`search.engine.postgres.timeout_ms` is 1; it must be from 100 to 600000",
        );
    }

    #[test]
    fn the_password_is_read_from_its_variable_and_never_shown() {
        let toml = "[postgres]\nurl = 'postgresql://u@db.example/d'\npassword_env = 'A'";
        let mut settings: SearchEngineSettings = toml::from_str(toml).unwrap();
        settings.take_secrets(|name| (name == "A").then_some("very-secret"));
        let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
        assert!(!shown.contains("very"), "{shown}");
        let SearchEngineSettings::Postgres(settings) = settings else { panic!("{settings:?}") };
        assert_eq!(settings.password.expose(), Some("very-secret"));
    }
}
