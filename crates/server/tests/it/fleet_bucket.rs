//! Tests of large files of jobs that the servers of a fleet share in an S3 bucket.

use std::fs;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::search_engines::server::PostgresServerProcess as Database;
use crate::shared_jobs::{launch, wait_for_state};
use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, binary, path,
};

#[path = "../../../../tests/seaweedfs/server.rs"]
mod seaweedfs;

use seaweedfs::{ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, SeaweedServer};

/// Settings of a command that leaves a file of 18 MiB. The bucket stores this file as two objects.
const DRAWING: &str = r#"
[command."draw.large"]
about = "Leaves a large file."
program = "sh"
argv = ["-c", "mkdir -p out; seq 2500000 > out/large.txt"]
artefacts = ["out/**"]
"#;

/// S3 bucket and the secret of its access key, as the settings name them.
struct BucketSettings<'s> {
    service: &'s SeaweedServer,
    bucket: &'s str,
    secret: &'s str,
}

impl BucketSettings<'_> {
    /// Returns the environment variables that configure the bucket.
    fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("TOOLGATE_FLEET_FILES", format!("s3://{}/fleet", self.bucket)),
            ("TOOLGATE_FLEET_FILES_ENDPOINT", format!("http://{}", self.service.authority())),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.to_owned()),
        ]
    }

    fn launch(&self, workspace: &TempWorkspace, database: &Database) -> ServerLaunchOptions {
        let launch = launch(workspace, database);
        self.variables().into_iter().fold(launch, |launch, (name, value)| launch.env(name, value))
    }
}

/// Server that ran a job with a large file, and another server of its fleet, which runs no jobs.
struct FleetWithEndedLargeJob {
    runner: HttpServerProcess,
    other: HttpServerProcess,
    id: String,
    /// Content of the file that the job produced.
    content: Vec<u8>,
}

impl FleetWithEndedLargeJob {
    fn run(database: &Database, settings: &BucketSettings<'_>) -> Self {
        let workspace = TempWorkspace::new().file("toolgate.toml", DRAWING);
        let runner = settings.launch(&workspace, database).served();
        let other = settings.launch(&workspace, database).arg("--no-jobs").served();
        let id = runner.start_job("draw-large", json!({}));
        wait_for_state(&other, &id, "succeeded");
        let content = fs::read(workspace.path("out/large.txt")).unwrap();
        assert!(content.len() > 16 << 20, "{} bytes", content.len());
        Self { runner, other, id, content }
    }

    /// Downloads the file of the job from `server`. Returns the status, and true if the content is
    /// that of the file.
    fn download(&self, server: &HttpServerProcess) -> (u16, bool) {
        let file = server.get(&format!("/jobs/{}/download?file=large.txt", self.id));
        (file.status, file.body == self.content)
    }

    /// Returns the events of the job as another server streams them.
    fn events(&self) -> String {
        let mut connection = self.other.connect();
        connection.post(&TestHttpRequest::bare("GET", &format!("/v1/jobs/{}/events", self.id)));
        assert_eq!(connection.head().status, 200);
        let mut events = Vec::new();
        while let Some(chunk) = connection.chunk() {
            events.extend(chunk);
        }
        String::from_utf8(events).unwrap()
    }
}

#[test]
fn a_large_file_of_a_job_is_downloaded_from_the_bucket_that_the_servers_share() {
    let (database, service) = (Database::start(), SeaweedServer::start());
    let settings = BucketSettings { service: &service, bucket: BUCKET, secret: SECRET_ACCESS_KEY };
    let job = FleetWithEndedLargeJob::run(&database, &settings);
    assert_eq!(job.download(&job.other), (200, true));
    assert_eq!(job.download(&job.runner), (200, true));
}

#[test]
fn a_large_file_that_the_bucket_refuses_stays_at_the_server_that_ran_the_job() {
    let (database, service) = (Database::start(), SeaweedServer::start());
    for (bucket, secret, answer) in [
        (BUCKET, "wrong", "403 Forbidden (SignatureDoesNotMatch)"),
        ("missing", SECRET_ACCESS_KEY, "404 Not Found (NoSuchBucket)"),
    ] {
        let settings = BucketSettings { service: &service, bucket, secret };
        let job = FleetWithEndedLargeJob::run(&database, &settings);
        assert_eq!(job.download(&job.runner), (200, true), "{answer}");
        assert_eq!(job.download(&job.other), (404, false), "{answer}");
        let events = job.events();
        let expected = format!(
            "only the server that ran the job has its file `out/large.txt`: it cannot be stored in \
             `fleet.files`: {} answered {answer}",
            service.authority()
        );
        assert!(events.contains(&expected), "{events}");
    }
}

#[test]
fn the_doctor_checks_whether_the_bucket_can_be_written() {
    let (database, service) = (Database::start(), SeaweedServer::start());
    let (workspace, home) = (TempWorkspace::new(), TempDir::new().unwrap());
    for (bucket, secret, code, expected) in [
        (BUCKET, SECRET_ACCESS_KEY, 0, "ok      large files are stored in s3://files/fleet"),
        (BUCKET, "wrong", 1, "FAILED  large files cannot be stored in s3://files/fleet: "),
        ("missing", SECRET_ACCESS_KEY, 1, "answered 404 Not Found (NoSuchBucket)"),
    ] {
        let mut command = Command::new(binary());
        command.args(["doctor", "fleet", "--root"]).arg(workspace.root());
        command.env_clear().env("PATH", path()).env("HOME", home.path());
        command.env("TOOLGATE_FLEET_URL", database.url());
        command.envs(BucketSettings { service: &service, bucket, secret }.variables());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(expected), "{text}");
    }
}
