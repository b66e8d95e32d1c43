//! Where whoever runs the server wants the index kept.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "qdrant")]
use crate::world::fetch::Target;

/// The engine behind the tools that search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineSettings {
    /// In this process, its files in a cache folder.
    #[default]
    Embedded,
    /// A PostgreSQL server with the extension pgvector.
    Postgres(PostgresSettings),
    /// A Qdrant server, in a toolgate that is built with the feature `qdrant`.
    Qdrant(QdrantSettings),
}

/// How a PostgreSQL server with pgvector is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PostgresSettings {
    /// Where it is, without a password: `postgresql://user@host:5432/database`, or
    /// `postgresql:///database?host=/run/postgresql` for a Unix socket. `sslmode` may be `disable`,
    /// `require` (encrypted, whoever answers) or `verify-full`, which is what holds without it for
    /// hosts other than this one; `sslrootcert` names a file of certificates to trust instead of
    /// the system's.
    pub url: String,
    /// The environment variable that the password is in.
    #[serde(default = "postgres_password")]
    pub password_env: String,
    /// What the workspace is called there. Without it, by its folder's path; servers on several
    /// machines that serve the same files share an index where all give it the same name.
    #[serde(default)]
    pub workspace: Option<String>,
    /// How many connections are held at most, beside one to write.
    #[serde(default = "connections")]
    pub connections: usize,
    /// How long a search may take there, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// From how many vectors on an approximate index (HNSW) is made of them.
    #[serde(default = "approximate_from")]
    pub approximate_from: u64,
    /// The password itself, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub password: Password,
}

/// How a Qdrant server is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QdrantSettings {
    /// Where it speaks gRPC, such as `http://localhost:6334`; `https://` for other machines.
    pub url: String,
    /// The environment variable that the API key is in.
    #[serde(default = "qdrant_key")]
    pub api_key_env: String,
    /// What the workspace is called there. Without it, by its folder's path; servers on several
    /// machines that serve the same files share an index where all give it the same name.
    #[serde(default)]
    pub workspace: Option<String>,
    /// How long a search may take there, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// The API key itself, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub api_key: Password,
}

/// What nobody may read: a password, or none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(Option<String>);

impl Password {
    /// The password, for whoever must say it.
    pub fn said(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self(Some(text.to_owned()).filter(|it| !it.is_empty()))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "[redacted]" } else { "none" })
    }
}

impl EngineSettings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Embedded => Ok(()),
            Self::Postgres(settings) => settings.check(),
            Self::Qdrant(settings) => settings.check(),
        }
    }

    /// Takes the secrets that these name out of an environment, in which `variable` looks up.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        let secret = |name: &str| variable(name).map(Password::from).unwrap_or_default();
        match self {
            Self::Embedded => {}
            Self::Postgres(settings) => settings.password = secret(&settings.password_env),
            Self::Qdrant(settings) => {
                settings.api_key = variable(&settings.api_key_env)
                    .map(|key| Password::from(key.trim()))
                    .unwrap_or_default();
            }
        }
    }
}

impl PostgresSettings {
    fn check(&self) -> Result<(), String> {
        let Self { connections, timeout_ms, .. } = self;
        if let Err(why) = super::postgres::Address::of(self) {
            return Err(format!("`search.engine.postgres.url` {why}"));
        }
        if !(1..=64).contains(connections) {
            return Err(format!(
                "`search.engine.postgres.connections` is {connections}; it may be 1 to 64"
            ));
        }
        check_timeout("postgres", *timeout_ms)
    }
}

impl QdrantSettings {
    #[cfg(feature = "qdrant")]
    fn check(&self) -> Result<(), String> {
        let Self { url, api_key_env, timeout_ms, api_key, .. } = self;
        let wrong = |why: &str| Err(format!("`search.engine.qdrant.url` {why}"));
        let target = match Target::new(url, "/") {
            Ok(target) => target,
            Err(why) => return wrong(&format!("{why}; write it as `http://localhost:6334`")),
        };
        if let Some(key) = api_key.said() {
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "the variable {api_key_env}, which `search.engine.qdrant` has its API key \
                     from, holds no API key: there are characters in it that none has"
                ));
            }
            if !target.is_private() {
                return wrong(&format!(
                    "would send the API key of {api_key_env} unencrypted to another machine; give \
                     an `https` URL"
                ));
            }
        }
        check_timeout("qdrant", *timeout_ms)
    }

    #[cfg(not(feature = "qdrant"))]
    fn check(&self) -> Result<(), String> {
        Err("`search.engine.qdrant` is set, but this toolgate was built without Qdrant: build one \
             with `cargo build --release --features qdrant`, or leave the section out"
            .to_owned())
    }
}

fn check_timeout(engine: &str, timeout_ms: u64) -> Result<(), String> {
    if (100..=600_000).contains(&timeout_ms) {
        return Ok(());
    }
    Err(format!("`search.engine.{engine}.timeout_ms` is {timeout_ms}; it may be 100 to 600000"))
}

fn postgres_password() -> String {
    "PGPASSWORD".to_owned()
}

fn qdrant_key() -> String {
    "QDRANT_API_KEY".to_owned()
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
        let settings: EngineSettings = toml::from_str(toml).unwrap();
        assert_eq!(settings.check().err().as_deref().unwrap_or("right"), expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_setting() {
        check("[postgres]\nurl = 'postgresql://u@db.example/d'", "right");
        check(
            "[postgres]\nurl = 'postgresql://u@db.example/d'\nconnections = 0",
            "`search.engine.postgres.connections` is 0; it may be 1 to 64",
        );
        check(
            "[postgres]\nurl = 'postgresql://u@db.example/d'\ntimeout_ms = 1",
            "`search.engine.postgres.timeout_ms` is 1; it may be 100 to 600000",
        );
    }

    #[test]
    #[cfg(not(feature = "qdrant"))]
    fn qdrant_is_refused_by_a_toolgate_without_it() {
        check(
            "[qdrant]\nurl = 'http://localhost:6334'",
            "`search.engine.qdrant` is set, but this toolgate was built without Qdrant: build one \
             with `cargo build --release --features qdrant`, or leave the section out",
        );
    }

    #[test]
    #[cfg(feature = "qdrant")]
    fn what_is_wrong_with_qdrant_is_said_with_its_setting() {
        let with = |url: &str, more: &str| format!("[qdrant]\nurl = '{url}'\n{more}");
        for url in ["http://localhost:6334", "http://qdrant:6334/", "https://q.example:6334"] {
            check(&with(url, ""), "right");
        }
        check(
            &with("q.example", ""),
            "`search.engine.qdrant.url` begins neither with `http://` nor `https://`; write it as \
             `http://localhost:6334`",
        );
        check(
            &with("http://me:secret@q.example", ""),
            "`search.engine.qdrant.url` has a user name in it, which would be shown to every \
             caller; write it as `http://localhost:6334`",
        );
        check(
            &with("http://localhost:6334", "timeout_ms = 1"),
            "`search.engine.qdrant.timeout_ms` is 1; it may be 100 to 600000",
        );
    }

    #[test]
    #[cfg(feature = "qdrant")]
    fn an_api_key_goes_to_no_other_machine_unencrypted_and_is_shown_nowhere() {
        let with = |url: &str, key: &str| {
            let toml = format!("[qdrant]\nurl = '{url}'\napi_key_env = 'A_KEY'");
            let mut settings: EngineSettings = toml::from_str(&toml).unwrap();
            settings.take_secrets(|name| (name == "A_KEY").then_some(key));
            let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
            assert!(!shown.contains("secret"), "{shown}");
            settings.check().err().unwrap_or_else(|| "right".to_owned())
        };
        for here in ["http://localhost:6334", "http://[::1]:6334", "https://q.example:6334"] {
            assert_eq!(with(here, "very-secret\n"), "right", "{here}");
        }
        assert_eq!(with("http://q.example:6334", ""), "right");
        assert_eq!(
            with("http://q.example:6334", "very-secret"),
            "`search.engine.qdrant.url` would send the API key of A_KEY unencrypted to another \
             machine; give an `https` URL"
        );
        assert_eq!(
            with("http://localhost:6334", "very secret"),
            "the variable A_KEY, which `search.engine.qdrant` has its API key from, holds no API \
             key: there are characters in it that none has"
        );
    }
}
