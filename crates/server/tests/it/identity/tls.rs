//! Tests that TLS uses the current certificate.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::provider::{python, script};
use crate::support::{
    PATIENCE, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestServerProcess, binary,
    initialize, path, wait_for, wait_until,
};

/// Writes the certificate `name` and its key into `folder`.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let mut making = Command::new(python());
    let made = making.arg(script("certificate.py")).arg(folder).arg(name).status().unwrap();
    assert!(made.success());
    let certificate = format!("{name}.pem");
    let key = format!("{name}.key");
    fs::set_permissions(folder.join(&key), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    (folder.join(certificate), folder.join(key))
}

/// Server that serves HTTP over TLS.
struct TlsServer {
    server: TestServerProcess,
    addr: SocketAddr,
}

fn served(launch: ServerLaunchOptions, certificate: &Path, key: &Path) -> TlsServer {
    let launch = launch.set("server_tls_certificate", certificate.display());
    let server =
        launch.set("server_tls_key", key.display()).serve_with_flags(&["--listen", "127.0.0.1:0"]);
    let addr = wait_for("the address is printed", || {
        assert!(server.is_running(), "the server ended: {}", server.log());
        let log = server.log();
        let (_, rest) = log.split_once(" at https://")?;
        rest.split_once("/mcp\n")?.0.parse().ok()
    });
    TlsServer { server, addr }
}

impl TlsServer {
    /// Returns the answer to a client that trusts only `certificate`, or `None` if the client
    /// cannot connect.
    fn answer(&self, certificate: &Path) -> Option<String> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(client, stream);
        let post = TestHttpRequest::mcp(&initialize(0, "2025-06-18")).with("connection", "close");
        let origin = format!("https://{}", self.addr);
        stream.write_all(&post.with("origin", &origin).to_bytes(self.addr)).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        Some(String::from_utf8(answer).unwrap())
    }

    fn answers(&self, certificate: &Path) -> bool {
        self.answer(certificate).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

#[test]
fn a_tls_client_is_served_and_a_plaintext_client_gets_no_http_answer() {
    let folder = TempDir::new().unwrap();
    let (first, key) = certificate(folder.path(), "first");
    let secured = served(ServerLaunchOptions::over(&TempWorkspace::new()), &first, &key);
    assert!(secured.answers(&first), "{:?}", secured.answer(&first));
    // toolgate's own client connects if the system trusts the certificate.
    let call = |trusted: &Path| {
        let url = format!("https://{}/mcp", secured.addr);
        let args = ["call", "files_exists", "{\"path\":\"README.md\"}", "--url", &url];
        let mut command = Command::new(binary());
        command.args(args).env_clear().env("HOME", folder.path()).env("PATH", path());
        command.env("SSL_CERT_FILE", trusted).output().unwrap().status.code()
    };
    let (stranger, _) = certificate(folder.path(), "stranger");
    assert_eq!((call(&first), call(&stranger)), (Some(0), Some(2)));
    let mut plain = TcpStream::connect(secured.addr).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"), "{answer:?}");
}

#[test]
fn a_replaced_certificate_is_used_without_losing_clients() {
    let folder = TempDir::new().unwrap();
    let (shown, key) = certificate(folder.path(), "shown");
    let (next, next_key) = certificate(folder.path(), "next");
    let first = folder.path().join("first.pem");
    fs::copy(&shown, &first).unwrap();
    let secured = served(ServerLaunchOptions::over(&TempWorkspace::new()), &shown, &key);
    wait_until("the server answers", || secured.answers(&first));
    let over = AtomicBool::new(false);
    let lost = AtomicUsize::new(0);
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match secured.answers(&first) || secured.answers(&next) {
                        true => served.fetch_add(1, Ordering::Relaxed),
                        false => lost.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        // Only the key is replaced at first.
        fs::rename(&next_key, &key).unwrap();
        let log = || secured.server.log();
        wait_until("the mismatch is logged", || log().contains("the certificate is unchanged"));
        assert!(secured.answers(&first), "the first certificate stays in use");
        fs::copy(&next, folder.path().join("renamed.pem")).unwrap();
        fs::rename(folder.path().join("renamed.pem"), &shown).unwrap();
        wait_until("the next certificate is used", || secured.answers(&next));
        over.store(true, Ordering::Relaxed);
    });
    assert!(!secured.answers(&first), "the first certificate is no longer used");
    let lost = lost.into_inner();
    let served = served.into_inner();
    assert!(lost == 0 && served > 20, "{lost} lost of {served}");
}

#[test]
fn an_invalid_certificate_or_key_is_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let (first, key) = certificate(folder.path(), "first");
    let (second, _) = certificate(folder.path(), "second");
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let inside = TempWorkspace::new().file("tls.key", fs::read_to_string(&key).unwrap());
    let within = inside.root().join("tls.key");
    for (certificate, key, reason) in [
        (&second, &key, "is not the key of the certificate"),
        (&empty, &key, "contains no certificate"),
        (&first, &empty, "contains no private key"),
        (&first, &folder.path().join("none"), "cannot read"),
        (&first, &within, "tools could read it"),
    ] {
        let launch =
            ServerLaunchOptions::over(&inside).set("server_tls_certificate", certificate.display());
        let launch = launch.set("server_tls_key", key.display());
        let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
        assert!(!server.wait_for_exit().success());
        wait_until(reason, || server.log().contains(reason));
    }
}
