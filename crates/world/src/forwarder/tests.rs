//! Tests of the forwarder over the wire, with local servers.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::gate::{ForwardFailure, HostLookupFn, PendingHostLookup, connect_first};
use super::*;

/// A forwarder for a test, the address on which it listens, and a server that it may connect to
/// only if its rules allow this.
struct ForwarderTestBench {
    forwarder: NetworkForwarder,
    address: SocketAddr,
    server: TcpListener,
}

impl ForwarderTestBench {
    /// Starts a forwarder with `rules`, in which `PORT` stands for the server's port.
    async fn new(rules: &[&str]) -> Self {
        Self::with_agent(rules, |_| None).await
    }

    /// Starts a forwarder with `rules`, in which `PORT` stands for the server's port, and with the
    /// agent that `make_agent` returns for this port.
    async fn with_agent(
        rules: &[&str],
        make_agent: impl FnOnce(&str) -> Option<RunSshAgent>,
    ) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let rules: Vec<String> = rules.iter().map(|rule| rule.replace("PORT", &port)).collect();
        let access = ProgramHostAccess::parse(&rules, "sandbox.hosts").unwrap().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let agent = make_agent(&port);
        let forwarder = NetworkForwarder::start(listener.into(), &access, None, agent).unwrap();
        Self { forwarder, address, server }
    }

    fn port(&self) -> u16 {
        self.server.local_addr().unwrap().port()
    }

    /// Sends `request` to the forwarder and returns the connection. In `request`, `PORT` stands for
    /// the server's port.
    async fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = request.replace("PORT", &self.port().to_string());
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends `request` and returns the status line of the answer.
    async fn status(&self, request: &str) -> String {
        let mut stream = self.send(request).await;
        read_head(&mut stream).await.lines().next().unwrap_or_default().to_owned()
    }

    /// Returns the hosts that the forwarder has refused, with `PORT` instead of the server's port.
    fn refused(&self) -> Vec<String> {
        let refused = self.forwarder.network_use().refused;
        let port = self.port().to_string();
        refused.iter().map(|it| it.summary().replace(&port, "PORT")).collect()
    }
}

/// Reads from `stream` until the empty line after an HTTP head, or until the end.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_plain_request_is_forwarded_to_an_allowed_host() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT"]).await;
    let request = "GET http://user@one.localhost:PORT/a?b HTTP/1.1\r\nHost: one.localhost:PORT\r\n\
                   Proxy-Connection: keep-alive\r\nX-Own: 1\r\nConnection: x-own\r\n\r\n";
    let mut client = bench.send(request).await;
    let (mut server, _) = bench.server.accept().await.unwrap();
    let head = read_head(&mut server).await;
    assert!(head.starts_with("GET /a?b HTTP/1.1\r\n"), "{head}");
    let lower = head.to_ascii_lowercase();
    assert!(lower.contains(&format!("host: one.localhost:{}\r\n", bench.port())), "{head}");
    assert!(!lower.contains("proxy-connection") && !lower.contains("x-own"), "{head}");
    server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut body = [0; 2];
    client.read_exact(&mut body).await.unwrap();
    assert_eq!(body, *b"ok");
    assert_eq!(bench.refused(), [""; 0]);
}

#[tokio::test]
async fn hosts_without_a_rule_are_refused_and_listed_with_the_line_that_allows_them() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT"]).await;
    for (request, status) in [
        ("CONNECT two.localhost:PORT HTTP/1.1\r\n\r\n", "403"),
        ("CONNECT two.localhost:PORT HTTP/1.1\r\n\r\n", "403"),
        ("CONNECT one.localhost:1 HTTP/1.1\r\n\r\n", "403"),
        ("CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n", "403"),
        ("CONNECT [::ffff:127.0.0.1]:PORT HTTP/1.1\r\n\r\n", "403"),
        ("GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", "403"),
        ("GET https://one.localhost:PORT/ HTTP/1.1\r\nHost: one.localhost:PORT\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: one.localhost:PORT\r\n\r\n", "400"),
        ("CONNECT one.localhost HTTP/1.1\r\n\r\n", "400"),
    ] {
        let answered = bench.status(request).await;
        assert!(answered.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answered}");
    }
    let refused = bench.refused();
    let add = "to allow it, add \"two.localhost:PORT\" to sandbox.hosts";
    assert!(
        refused
            .contains(&format!("two.localhost:PORT (2 tries): it is not in sandbox.hosts; {add}")),
        "{refused:?}"
    );
    assert!(refused.iter().any(|it| it.starts_with("one.localhost:1 (1 try): port 1 is not in")));
    let metadata = refused.iter().find(|it| it.starts_with("169.254.169.254:80 ")).unwrap();
    assert!(!metadata.contains("to allow it"), "{metadata}");
}

#[tokio::test]
async fn a_host_header_that_names_another_host_than_the_url_is_refused() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT"]).await;
    for host in ["two.localhost:PORT", "one.localhost:1", "one.localhost", "x@one.localhost:PORT"] {
        let request = format!("GET http://one.localhost:PORT/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert!(bench.status(&request).await.contains(" 403 "), "{host}");
    }
    let twice = "GET http://one.localhost:PORT/ HTTP/1.1\r\nHost: one.localhost:PORT\r\n\
                 Host: two.localhost:PORT\r\n\r\n";
    assert!(!bench.status(twice).await.contains(" 200 "));
    let refused = bench.refused();
    assert!(refused[0].contains("the Host header differs"), "{refused:?}");
}

#[tokio::test]
async fn a_tunnel_carries_other_protocols_to_a_ruled_port_but_no_plain_http() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT"]).await;
    let connect = "CONNECT one.localhost:PORT HTTP/1.1\r\n\r\n";
    let mut client = bench.send(connect).await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
    let (mut server, _) = bench.server.accept().await.unwrap();
    // A server of many protocols speaks first.
    server.write_all(b"hello\n").await.unwrap();
    let mut text = [0; 6];
    client.read_exact(&mut text).await.unwrap();
    client.write_all(b"SSH-2.0\n").await.unwrap();
    let mut text = [0; 8];
    server.read_exact(&mut text).await.unwrap();
    assert_eq!(text, *b"SSH-2.0\n");

    let mut client = bench.send(connect).await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
    let (mut server, _) = bench.server.accept().await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: two.localhost\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap_or_default();
    assert_eq!(received, b"");
    assert!(bench.refused()[0].contains("plain HTTP in a CONNECT tunnel"), "{:?}", bench.refused());
}

#[tokio::test]
async fn a_rule_with_a_path_allows_only_requests_below_it() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT/acme/*"]).await;
    let get = |path: &str| {
        format!(
            "GET http://one.localhost:PORT{path} HTTP/1.1\r\nHost: one.localhost:PORT\r\n\
             X-Original-URL: /other\r\n\r\n"
        )
    };
    for path in ["/other", "/acme/../other", "/acme/%2e%2e/other", "/acme/..%2fother", "//acme/a"] {
        let answered = bench.status(&get(path)).await;
        assert!(answered.starts_with("HTTP/1.1 403 "), "{path}: {answered}");
    }
    let _client = bench.send(&get("/acme/a")).await;
    let (mut server, _) = bench.server.accept().await.unwrap();
    let head = read_head(&mut server).await;
    assert!(head.starts_with("GET /acme/a HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("x-original-url"), "{head}");
    let refused = bench.refused();
    let add = "to allow it, add \"one.localhost:PORT/other\" to sandbox.hosts";
    let line = format!("one.localhost:PORT/other (1 try): its path is not in sandbox.hosts; {add}");
    assert!(refused.contains(&line), "{refused:?}");
    let odd = refused.iter().find(|it| it.starts_with("one.localhost:PORT/acme/../other "));
    assert!(odd.is_some_and(|it| it.contains("a segment of dots")), "{refused:?}");
}

#[tokio::test]
async fn a_tunnel_to_a_host_with_a_path_rule_carries_no_other_protocol() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT/acme/*"]).await;
    let mut client = bench.send("CONNECT one.localhost:PORT HTTP/1.1\r\n\r\n").await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
    client.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    assert_eq!(client.read(&mut [0; 9]).await.unwrap_or(0), 0);
    assert!(bench.refused()[0].contains("the tunnel does not use TLS"), "{:?}", bench.refused());
}

#[tokio::test]
async fn a_tunnel_to_an_ssh_server_needs_no_rule_with_its_port_and_carries_only_ssh() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let make_agent = |port: &str| {
        let key =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
        let (host, keys) = (format!("one.localhost:{port}"), [key.to_owned()]);
        let users = ["git".to_owned()];
        let remote = SshRemote::parse(&host, &keys, &keys, &users, Some("/nowhere")).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        Some(RunSshAgent { listener, remotes: Arc::from([remote]) })
    };
    let bench = ForwarderTestBench::with_agent(&["one.localhost"], make_agent).await;
    let connect = "CONNECT one.localhost:PORT HTTP/1.1\r\n\r\n";
    for (start, is_carried) in [
        (&b"SSH-2.0-a\r\n"[..], true),
        (&b"HELLO\r\n"[..], false),
        (&b"GET / HTTP/1.1\r\n\r\n"[..], false),
    ] {
        let mut client = bench.send(connect).await;
        assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
        let (mut server, _) = bench.server.accept().await.unwrap();
        client.write_all(start).await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap_or_default();
        assert_eq!(received == start, is_carried, "{received:?}");
    }
    let request = "GET http://one.localhost:PORT/ HTTP/1.1\r\nHost: one.localhost:PORT\r\n\r\n";
    assert!(bench.status(request).await.starts_with("HTTP/1.1 403 "));
    for other in ["two.localhost:PORT", "one.localhost:1"] {
        let connect = format!("CONNECT {other} HTTP/1.1\r\n\r\n");
        assert!(bench.status(&connect).await.starts_with("HTTP/1.1 403 "), "{other}");
    }
    let refused = bench.refused();
    assert!(refused.iter().any(|it| it.contains("does not carry SSH")), "{refused:?}");
}

#[tokio::test]
async fn a_dropped_forwarder_closes_its_connections() {
    let bench = ForwarderTestBench::new(&["one.localhost:PORT"]).await;
    let mut client = bench.send("CONNECT one.localhost:PORT HTTP/1.1\r\n\r\n").await;
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200 "));
    let (mut server, _) = bench.server.accept().await.unwrap();
    drop(bench);
    assert_eq!(server.read(&mut [0; 9]).await.unwrap_or(0), 0);
    assert_eq!(client.read(&mut [0; 9]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_name_that_rebinds_to_another_address_is_looked_up_once_and_refused() {
    let answers: [&[&str]; 3] =
        [&["169.254.169.254", "127.0.0.1"], &["10.0.0.1"], &["::ffff:127.0.0.1", "fd00:ec2::254"]];
    let lookups = Arc::new(AtomicUsize::new(0));
    let counted = lookups.clone();
    let lookup: HostLookupFn = Arc::new(move |_: String| -> PendingHostLookup {
        let answer = answers[counted.fetch_add(1, Ordering::Relaxed)];
        Box::pin(
            async move { Ok(answer.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect()) },
        )
    });
    let access =
        ProgramHostAccess::parse(&["*.example.com".to_owned()], "sandbox.hosts").unwrap().unwrap();
    let refused = Arc::new(RefusedHosts::default());
    let gate = ForwarderHostPolicy::with_lookup(access, refused.clone(), lookup);
    for tries in 1..=3 {
        let target = gate.admit("a.example.com", 443).unwrap();
        let failure = gate.connect(&target).await.unwrap_err();
        assert!(matches!(failure, ForwardFailure::Refused(_)), "{failure:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), tries);
    }
    assert_eq!(refused.list()[0].tries, 3);
}

#[tokio::test]
async fn an_address_that_does_not_answer_does_not_delay_the_next_for_long() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    // An address for documentation, at which nobody answers.
    let silent = IpAddr::from([203, 0, 113, 1]);
    let addresses = vec![silent, IpAddr::from(Ipv4Addr::LOCALHOST)];
    let connecting = tokio::time::timeout(Duration::from_secs(10), connect_first(addresses, port));
    let stream = connecting.await.unwrap().unwrap();
    assert_eq!(stream.peer_addr().unwrap(), server.local_addr().unwrap());
    let failure = connect_first(Vec::new(), port).await.unwrap_err();
    assert_eq!(failure.kind(), io::ErrorKind::NotFound);
}
