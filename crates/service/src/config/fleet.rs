//! Settings of jobs that servers on several machines share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusty_s3::Credentials;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_host::{
    FleetLargeFileLocation, FleetServerProfile, FleetServerRole, PostgresStoreSettings,
    SettingsDigests,
};
use toolgate_postgres::{DatabasePassword, PostgresAddress};

use crate::object_store::{BucketLocation, FileBucketClient};

/// Start of a value of `fleet.files` that names an S3 bucket instead of a folder.
const BUCKET_SCHEME: &str = "s3://";

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
    /// Location where the fleet stores job files and long results that are larger than 16 MiB each.
    /// Give the absolute path of a folder that all machines share, or an S3 bucket: `s3://BUCKET`
    /// or `s3://BUCKET/PREFIX`. The folder or bucket must exist. Smaller files are in the database.
    /// By default, the larger files of a job are only on the server that ran the job.
    ///
    /// The access key of a bucket is in the environment variables `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY` and, if it is temporary, `AWS_SESSION_TOKEN`.
    pub files: Option<String>,
    /// URL of the service that has the bucket of `files`, such as `https://minio.example`. The
    /// default is the AWS service in `files_region`. With an `http` URL, files are neither
    /// encrypted on the network nor protected from changes.
    pub files_endpoint: Option<String>,
    /// Region of the bucket of `files`.
    pub files_region: String,
    /// Time in milliseconds after which other servers take over the jobs of a server that lost its
    /// connection to the database. The other servers run the waiting jobs of the lost server, and
    /// repeat its running jobs of idempotent tools.
    #[schemars(range(min = 1000, max = 600_000))]
    pub lease_ms: u64,
    /// Time in milliseconds that servers wait, in addition to `lease_ms`, for a server that lost
    /// its connection to the database. After both times, running jobs of the lost server that may
    /// not run twice fail as interrupted.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub lost_ms: u64,
    /// Kind of this server in the fleet: the command and its options decide it.
    #[serde(skip)]
    #[schemars(skip)]
    pub kind: FleetServerRole,
    /// Password of the database, once it was read from the environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub password: DatabasePassword,
    /// Access key of the bucket, once it was read from the environment. `Debug` prints only its id.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) files_key: Option<Credentials>,
}

impl Default for FleetSection {
    fn default() -> Self {
        Self {
            url: None,
            password_env: "PGPASSWORD".to_owned(),
            workspace: None,
            files: None,
            files_endpoint: None,
            files_region: "us-east-1".to_owned(),
            lease_ms: 30_000,
            lost_ms: 300_000,
            kind: FleetServerRole::Server,
            password: DatabasePassword::default(),
            files_key: None,
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
            Some(files) if files.starts_with(BUCKET_SCHEME) => self.bucket_place(files).map(drop),
            Some(files) if !Path::new(files).is_absolute() => Err(format!(
                "fleet.files is `{files}`; write an absolute path (a relative path would be in the \
                 workspace, where tools can write), or `s3://BUCKET`"
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Reads the database password and the access key of the bucket from the environment.
    /// `variable` returns the value of an environment variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        let password = variable(&self.password_env);
        self.password = password.map(DatabasePassword::from).unwrap_or_default();
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        let key = text("AWS_ACCESS_KEY_ID").zip(text("AWS_SECRET_ACCESS_KEY"));
        self.files_key = key.map(|(id, secret)| match text("AWS_SESSION_TOKEN") {
            Some(token) => Credentials::new_with_token(id, secret, token),
            None => Credentials::new(id, secret),
        });
    }

    /// Returns the settings of the job store for the workspace at the resolved path `root`, or
    /// `None` if there is no database.
    ///
    /// # Errors
    /// The URL or the bucket is invalid, or the access key of the bucket is missing.
    pub fn job_store(&self, root: &Path) -> Result<Option<PostgresStoreSettings>, String> {
        let workspace = self.workspace.clone();
        let Some(address) = self.address()? else { return Ok(None) };
        let files = self.file_place()?;
        Ok(Some(PostgresStoreSettings {
            address,
            workspace: workspace.unwrap_or_else(|| root.to_string_lossy().into_owned()),
            lease: Duration::from_millis(self.lease_ms),
            lost_after: Duration::from_millis(self.lost_ms),
            files,
            profile: FleetServerProfile {
                name: machine_name(),
                kind: self.kind,
                settings: SettingsDigests::default(),
            },
        }))
    }

    /// Returns the folder for large files that all machines share, if the settings name one.
    pub(crate) fn files_folder(&self) -> Option<&Path> {
        let files = self.files.as_deref().filter(|files| !files.starts_with(BUCKET_SCHEME));
        files.map(Path::new)
    }

    fn file_place(&self) -> Result<Option<FleetLargeFileLocation>, String> {
        let Some(files) = &self.files else { return Ok(None) };
        if let Some(folder) = self.files_folder() {
            return Ok(Some(FleetLargeFileLocation::Folder(folder.to_owned())));
        }
        let place = self.bucket_place(files)?;
        let Some(key) = self.files_key.clone() else {
            return Err(format!(
                "fleet.files is `{files}`, which needs an access key in the environment variables \
                 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ));
        };
        let bucket = FileBucketClient::new(place, key);
        Ok(Some(FleetLargeFileLocation::Store(Arc::new(bucket))))
    }

    fn bucket_place(&self, files: &str) -> Result<BucketLocation, String> {
        let place =
            BucketLocation::parse(files, self.files_endpoint.as_deref(), &self.files_region);
        place.map_err(|why| format!("fleet.files {why}"))
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
             workspace, where tools can write), or `s3://BUCKET`",
        );
        check("files = 's3://bucket/prefix'", "valid");
        check(
            "files = 's3://'",
            "fleet.files is `s3://`; write `s3://BUCKET` or `s3://BUCKET/PREFIX`, with letters, \
             digits, `.`, `_` and `-` only",
        );
        check("lost_ms = 86400001", "fleet.lost_ms is 86400001; it must be from 0 to 86400000");
    }

    #[test]
    fn a_bucket_needs_an_access_key_whose_secret_is_never_shown() {
        let mut settings: FleetSection =
            toml::from_str("url = 'postgresql://u@db.example/d'\nfiles = 's3://bucket'").unwrap();
        let refused = settings.job_store(Path::new("/srv/app")).unwrap_err();
        assert!(refused.contains("AWS_ACCESS_KEY_ID"), "{refused}");
        settings.take_secrets(|name| match name {
            "AWS_ACCESS_KEY_ID" => Some("AKIDTEST"),
            _ => name.starts_with("AWS_").then_some("very-secret"),
        });
        let store = settings.job_store(Path::new("/srv/app")).unwrap().unwrap();
        let shown = format!("{settings:?} {store:?} {}", toml::to_string(&settings).unwrap());
        assert!(!shown.contains("very"), "{shown}");
        assert!(matches!(store.files, Some(FleetLargeFileLocation::Store(_))), "{shown}");
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
