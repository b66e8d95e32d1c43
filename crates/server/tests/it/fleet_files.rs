//! Tests of files of jobs, which every server of a fleet returns, whichever server ran the job.

use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::search_engines::server::PostgresServerProcess as Database;
use crate::shared_jobs::{TAKEOVER, launch, wait_for_state};
use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestServerProcess, binary, let_continue,
    path, wait_long_for, wait_until, wait_until_began,
};

/// Length of a file that is too large for the database.
const LARGE: usize = 17 << 20;
/// Settings of a command that leaves a small file and a large file.
const DRAWING: &str = r#"
[command."draw.both"]
about = "Leaves a small file and a large one."
program = "sh"
argv = ["-c", "mkdir -p out; printf small > out/small.txt; head -c 17825792 /dev/zero > out/large.bin"]
artefacts = ["out/**"]
"#;

/// Settings of a command that waits until the file `go` exists, and then leaves a file.
const LATE_DRAWING: &str = r#"
[command."draw.late"]
about = "Waits for the file `go` and leaves a file."
program = "sh"
argv = ["-c", "echo late >> ran; until [ -e go ]; do sleep 0.02; done; mkdir -p out; printf late > out/late.txt"]
artefacts = ["out/**"]
idempotent = true
"#;

/// Server that accepts jobs, a worker that runs them, and a job that has ended at the worker.
struct FleetWithEndedJob {
    front: HttpServerProcess,
    worker: TestServerProcess,
    id: String,
}

impl FleetWithEndedJob {
    /// Runs the command `tool` at a worker. `adapt` changes the start options of both servers.
    fn run_at_worker(
        workspace: &TempWorkspace,
        database: &Database,
        tool: &str,
        adapt: impl Fn(ServerLaunchOptions) -> ServerLaunchOptions,
    ) -> Self {
        let front = adapt(launch(workspace, database)).arg("--no-jobs").served();
        let worker = adapt(launch(workspace, database)).worker();
        let id = front.start_job(tool, json!({}));
        wait_for_state(&front, &id, "succeeded");
        Self { front, worker, id }
    }

    fn download(&self, query: &str) -> (u16, Vec<u8>) {
        let file = self.front.get(&format!("/jobs/{}/download{query}", self.id));
        (file.status, file.body)
    }
}

#[test]
fn a_file_of_a_job_is_downloaded_at_a_server_that_did_not_run_the_job() {
    let database = Database::start();
    let workspace = TempWorkspace::with_commands();
    let job = FleetWithEndedJob::run_at_worker(&workspace, &database, "draw-one", |launch| launch);
    assert_eq!(job.download(""), (200, b"drawn".to_vec()));
    job.worker.signal(Signal::KILL);
    job.worker.wait_for_exit();
    assert_eq!(job.download("?file=plot.png"), (200, b"drawn".to_vec()));
    let manifest = job.front.get(&format!("/jobs/{}/manifest", job.id)).json();
    assert_eq!(manifest["artifacts"][0]["name"], "plot.png", "{manifest}");
}

#[test]
fn a_large_file_of_a_job_is_downloaded_from_the_folder_that_the_servers_share() {
    let database = Database::start();
    let shared = TempDir::new().unwrap();
    let workspace = TempWorkspace::new().file("toolgate.toml", DRAWING);
    let files = |launch: ServerLaunchOptions| launch.set("fleet_files", shared.path().display());
    let job = FleetWithEndedJob::run_at_worker(&workspace, &database, "draw-both", files);
    assert_eq!(job.download("?file=small.txt"), (200, b"small".to_vec()));
    let (status, large) = job.download("?file=large.bin");
    assert!(status == 200 && large == vec![0; LARGE], "{status}: {} bytes", large.len());
    let (status, zip) = job.download("");
    assert!(status == 200 && zip.len() > LARGE, "{status}: {} bytes", zip.len());
}

#[test]
fn without_a_shared_folder_only_the_worker_has_a_large_file() {
    let database = Database::start();
    let workspace = TempWorkspace::new().file("toolgate.toml", DRAWING);
    let job = FleetWithEndedJob::run_at_worker(&workspace, &database, "draw-both", |launch| launch);
    assert_eq!(job.download("?file=small.txt"), (200, b"small".to_vec()));
    let (status, body) = job.download("?file=large.bin");
    assert_eq!(status, 404, "{}", String::from_utf8_lossy(&body));
}

#[test]
fn a_file_of_a_job_that_ends_without_the_database_is_shared_once_it_is_back() {
    let mut database = Database::start();
    let workspace = TempWorkspace::new().file("toolgate.toml", LATE_DRAWING);
    // The servers must not doubt their leases meanwhile.
    let start = || launch(&workspace, &database).set("fleet_lease_ms", 60_000).served();
    let [first, second] = [start(), start()];
    let id = first.start_job("draw-late", json!({}));
    wait_until_began(&workspace, "late");
    database.stop();
    let_continue(&workspace);
    wait_until("the file is written", || workspace.path("out/late.txt").exists());
    database.again();
    wait_long_for(TAKEOVER, "the job ends", || {
        let job = second.get(&format!("/jobs/{id}"));
        (job.status == 200 && job.json()["status"] == "succeeded").then_some(())
    });
    let file = second.get(&format!("/jobs/{id}/download"));
    assert_eq!((file.status, &*file.body), (200, &b"late"[..]));
}

#[test]
fn the_doctor_checks_whether_the_shared_folder_can_be_written() {
    let database = Database::start();
    let (workspace, home, shared) =
        (TempWorkspace::new(), TempDir::new().unwrap(), TempDir::new().unwrap());
    for (folder, code, expected) in [
        (shared.path().to_owned(), 0, "ok      large files are stored in "),
        (shared.path().join("missing"), 1, "FAILED  large files cannot be stored in "),
    ] {
        let mut command = Command::new(binary());
        command.args(["doctor", "fleet", "--root"]).arg(workspace.root());
        command.env_clear().env("PATH", path()).env("HOME", home.path());
        command.env("TOOLGATE_FLEET_URL", database.url()).env("TOOLGATE_FLEET_FILES", &folder);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(code) && text.contains(expected), "{text}");
    }
}
