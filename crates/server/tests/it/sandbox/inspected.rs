//! Tests of programs whose TLS requests the network forwarder checks one by one, with a local
//! server.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::hosts::{FETCH, can_forward, python};
use super::*;

/// Secret that the network forwarder adds to requests in these tests.
const SECRET: &str = "s3cret-0123456789";
/// Commit id in the answers of the git server.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// An HTTPS server for `one.localhost`. It answers a GET request with its `Authorization` header,
/// and any other request with the length of the body.
struct TlsTarget {
    port: u16,
    /// Heads of the requests that the server received.
    received: Arc<Mutex<Vec<String>>>,
    /// File with the certificate of the authority that signed the server's certificate.
    authority: PathBuf,
    _folder: TempDir,
}

impl TlsTarget {
    fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let host_key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["one.localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&host_key, &issuer).unwrap();
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("authority.pem");
        fs::write(&file, pem(authority.der())).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(host_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::<Mutex<Vec<String>>>::default();
        let heads = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (config, heads) = (config.clone(), heads.clone());
                // A connection ends with an error if the client leaves.
                thread::spawn(move || serve(stream.unwrap(), config, &heads));
            }
        });
        Self { port, received, authority: file, _folder: folder }
    }

    /// Returns the URL of `path` on this server.
    fn url(&self, path: &str) -> String {
        format!("https://one.localhost:{}{path}", self.port)
    }

    /// Starts a toolgate server with the text `sandbox` in its settings, in which `HOST` stands for
    /// this HTTPS server. It trusts the certificate `authority`. Returns its client.
    fn client_trusting(
        &self,
        workspace: &TempWorkspace,
        sandbox: &str,
        authority: &Path,
    ) -> TestMcpClient {
        let sandbox = sandbox.replace("HOST", &format!("one.localhost:{}", self.port));
        workspace.put("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
        let launch = ServerLaunchOptions::over(workspace).env("SSL_CERT_FILE", authority);
        TestMcpClient::stdio(launch.env("REGISTRY_TOKEN", SECRET), MODERN)
    }

    /// Starts a toolgate server with the text `sandbox` in its settings, in which `HOST` stands for
    /// this HTTPS server. Returns its client.
    fn client(&self, workspace: &TempWorkspace, sandbox: &str) -> TestMcpClient {
        self.client_trusting(workspace, sandbox, &self.authority)
    }

    /// Returns the first line and the `Authorization` header of each request so far.
    fn requests(&self) -> Vec<String> {
        let heads = self.received.lock().unwrap();
        let line = |head: &String| {
            let first = head.lines().next().unwrap_or_default().to_owned();
            format!("{first} {}", header(head, "authorization").unwrap_or_default())
        };
        heads.iter().map(line).collect()
    }
}

/// Answers the requests on one connection, and appends their heads to `received`.
fn serve(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    received: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let head = String::from_utf8(head).map_err(io::Error::other)?;
        let length = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        let path = head.split(' ').nth(1).unwrap_or_default();
        let answer = match path.split('?').next() {
            Some(path) if path.ends_with("/info/refs") => format!("{COMMIT}\trefs/heads/main\n"),
            Some(path) if path.ends_with("/HEAD") => "ref: refs/heads/main\n".to_owned(),
            _ if head.starts_with("GET ") => {
                header(&head, "authorization").unwrap_or_else(|| "none".to_owned())
            }
            _ => format!("{length} bytes"),
        };
        received.lock().unwrap().push(head);
        let start = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length:";
        write!(stream, "{start} {}\r\n\r\n{answer}", answer.len())?;
        stream.flush()?;
    }
}

/// Returns the value of the header `name` in `head`.
fn header(head: &str, name: &str) -> Option<String> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(": "));
    let found = pairs.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_owned())
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let body = STANDARD.encode(certificate);
    let lines: Vec<_> =
        body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Settings that let programs reach one folder of the HTTPS server, with a credential.
const ONE_FOLDER: &str = "hosts = [\"HOST/acme/*\"]\n[[sandbox.credentials]]\n\
     host = \"HOST/acme/*\"\nvalue = \"Bearer ${REGISTRY_TOKEN}\"";

/// Runs curl with `options` and returns its output.
fn curl(client: &mut TestMcpClient, options: &str) -> SandboxedProgramResult {
    sh(client, &format!("curl -sS --max-time 20 {options}"))
}

#[test]
fn a_program_reaches_only_allowed_paths_and_the_result_and_record_name_the_others() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let urls = [target.url("/acme/a?b=1"), target.url("/other/repo/a"), target.url("/acme/b")];
    let result = python(&mut client, FETCH, &urls);
    let expected = "200 Bearer [redacted]\n403\n200 Bearer [redacted]\n";
    assert_eq!(result.stdout, expected, "{}", result.stderr);
    let bearer = format!("Bearer {SECRET}");
    let sent = ["GET /acme/a?b=1 HTTP/1.1", "GET /acme/b HTTP/1.1"];
    assert_eq!(target.requests(), sent.map(|line| format!("{line} {bearer}")));
    let refused = &result.value["refused_hosts"][0];
    let host = format!("one.localhost:{}", target.port);
    assert_eq!(refused["host"], format!("{host}/other/repo/a").as_str(), "{refused}");
    assert_eq!(refused["why"], "its path is not in sandbox.hosts", "{refused}");
    let allow = format!("add \"{host}/other/repo/*\" to sandbox.hosts");
    assert_eq!(refused["allow"], allow.as_str(), "{refused}");
    let line = format!("{host}/other/repo/a (1 try)");
    let is_named = |record: &Value| record["refused_hosts"].to_string().contains(&line);
    wait_until("the refusal is recorded", || client.server().records().iter().any(is_named));
    assert!(!client.server().log().contains(SECRET));
}

#[test]
fn a_path_that_servers_read_in_different_ways_never_reaches_the_server() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    for path in [
        "/acme/../other",
        "/acme/%2e%2e/other",
        "/acme/..%2fother",
        "/acme/..;/other",
        "/acme/%252e%252e/other",
        "/acme//other",
        "/acme/..%5cother",
    ] {
        let options = format!("--path-as-is -w ' %{{http_code}}' '{}'", target.url(path));
        let result = curl(&mut client, &options);
        assert!(result.stdout.ends_with(" 403"), "{path}: {} {}", result.stdout, result.stderr);
    }
    assert_eq!(target.requests(), [""; 0]);
}

#[test]
fn a_program_never_sees_the_credential_that_replaces_its_own() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let own = format!("-H 'Authorization: Basic own' '{}'", target.url("/acme/a"));
    assert_eq!(curl(&mut client, &own).stdout, "Bearer [redacted]");
    assert_eq!(target.requests(), [format!("GET /acme/a HTTP/1.1 Bearer {SECRET}")]);
    // A request that returns its own headers does not pass.
    let trace = format!("-X TRACE -w ' %{{http_code}}' '{}'", target.url("/acme/a"));
    let traced = curl(&mut client, &trace);
    assert!(traced.stdout.ends_with(" 403"), "{}", traced.stdout);
    // Redaction does not find an encoded value.
    let files = "env; cat \"$SSL_CERT_FILE\" /proc/*/environ toolgate.toml";
    let found = sh(&mut client, &format!("({files}) 2>/dev/null | od -An -v -tx1 | tr -d ' \\n'"));
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    assert!(found.stdout.len() > 1000 && !found.stdout.contains(&hex), "{}", found.stderr);
}

#[test]
fn each_run_trusts_an_authority_of_its_own_in_a_file_that_it_cannot_change() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let script = "echo \"$SSL_CERT_FILE\"; cksum < \"$SSL_CERT_FILE\"; \
                  [ \"$SSL_CERT_FILE\" = \"$NODE_EXTRA_CA_CERTS\" ] && echo same; \
                  echo x 2>/dev/null >> \"$SSL_CERT_FILE\" || echo kept";
    let mut run = || {
        let result = sh(&mut client, script);
        let lines: Vec<_> = result.stdout.lines().map(str::to_owned).collect();
        assert_eq!(lines[2..], ["same", "kept"], "{}", result.stderr);
        assert!(!Path::new(&lines[0]).exists(), "{}", lines[0]);
        lines[1].clone()
    };
    assert_ne!(run(), run());
}

#[test]
fn git_reads_a_repository_below_an_allowed_path_only() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let allowed = sh(&mut client, &format!("git ls-remote '{}'", target.url("/acme/repo.git")));
    assert!(allowed.stdout.contains(&format!("{COMMIT}\trefs/heads/main")), "{}", allowed.stderr);
    let refused = sh(&mut client, &format!("git ls-remote '{}'", target.url("/other/repo.git")));
    assert!(refused.code != 0 && refused.stderr.contains("403"), "{}", refused.stderr);
    let hosts = refused.value["refused_hosts"].to_string();
    assert!(hosts.contains("/other/repo.git/info/refs"), "{hosts}");
}

#[test]
fn http_2_clients_fall_back_and_uploads_pass_but_no_websockets() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let url = target.url("/acme/a");
    let version = curl(&mut client, &format!("--http2 -o /dev/null -w '%{{http_version}}' {url}"));
    assert_eq!(version.stdout, "1.1", "{}", version.stderr);
    let upload = format!("head -c 2000000 /dev/zero | curl -sS --data-binary @- '{url}'");
    assert_eq!(sh(&mut client, &upload).stdout, "2000000 bytes");
    let upgrade = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -w ' %{http_code}'";
    let refused = curl(&mut client, &format!("{upgrade} '{url}'"));
    assert!(refused.stdout.contains("WebSockets"), "{}", refused.stdout);
    assert!(refused.stdout.ends_with(" 403"), "{}", refused.stdout);
}

#[test]
fn a_credential_for_a_folder_is_not_sent_to_the_other_paths_of_an_allowed_host() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let settings = ONE_FOLDER.replacen("HOST/acme/*", "HOST", 1);
    let mut client = target.client(&workspace, &settings);
    let mut get = |path: &str| {
        let own = "-H 'Authorization: Basic own'";
        curl(&mut client, &format!("--path-as-is {own} '{}'", target.url(path))).stdout
    };
    assert_eq!(get("/acme/a"), "Bearer [redacted]");
    assert_eq!(get("/other/a"), "Basic own");
    assert_eq!(get("/acme/../other/a"), "Basic own");
    assert_eq!(get("/acme/..%2fother/a"), "Basic own");
}

#[test]
fn a_server_with_an_untrusted_certificate_gets_no_request() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let [target, other] = [TlsTarget::start(), TlsTarget::start()];
    let mut client = target.client_trusting(&workspace, ONE_FOLDER, &other.authority);
    let options = format!("-w ' %{{http_code}}' '{}'", target.url("/acme/a"));
    let result = curl(&mut client, &options);
    assert!(result.stdout.ends_with(" 502"), "{} {}", result.stdout, result.stderr);
    assert_eq!(target.requests(), [""; 0]);
}

#[test]
fn a_program_that_does_not_trust_the_forwarder_gets_the_reason() {
    let workspace = TempWorkspace::new();
    if !can_forward(&workspace) {
        return;
    }
    let target = TlsTarget::start();
    let mut client = target.client(&workspace, ONE_FOLDER);
    let script = FETCH.replace('\'', "\"");
    let url = target.url("/acme/a");
    let line = format!("env SSL_CERT_FILE=/dev/null /usr/bin/python3 -c '{script}' '{url}'");
    // The program may end before the forwarder has read its last message.
    wait_until("the reason is reported", || {
        let result = sh(&mut client, &line);
        assert_eq!(result.stdout, "URLError\n", "{}", result.stderr);
        let refused = result.value["refused_hosts"].to_string();
        refused.contains("let it trust the file in SSL_CERT_FILE")
    });
}
