//! Tests of the networks and sockets that a confined program can reach.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;

/// Python script that tries to connect to each address in its arguments, and prints the results.
const REACH: &str = r#"
import socket, sys
for spec in sys.argv[1:]:
    kind, _, at = spec.partition('=')
    try:
        if kind == 'tcp':
            host, port = at.rsplit(':', 1)
            socket.create_connection((host, int(port)), 2).send(b'x')
        elif kind == 'udp':
            host, port = at.rsplit(':', 1)
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((host, int(port))); s.send(b'x')
        elif kind == 'pair':
            a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', at)
        elif kind == 'unix':
            socket.socket(socket.AF_UNIX).connect(at.replace('@', '\0'))
        else:
            socket.socket(int(at), socket.SOCK_DGRAM if at != '40' else socket.SOCK_STREAM)
        print(spec, 'REACHED')
    except OSError as err:
        print(spec, 'refused')
"#;

fn reach(client: &mut TestMcpClient, specs: &[String]) -> String {
    let args: Vec<_> =
        ["-c".to_owned(), REACH.to_owned()].into_iter().chain(specs.to_vec()).collect();
    run(client, json!({ "command": "/usr/bin/python3", "args": args })).stdout
}

#[test]
fn networks_and_sockets_of_others_are_unreachable() {
    let workspace = TempWorkspace::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let inside = UnixListener::bind(workspace.path("socket")).unwrap();
    let datagrams = UnixDatagram::bind(workspace.path("datagrams")).unwrap();
    let Some(mut client) = confined_with_layer(&workspace, "seccomp") else { return };
    let port = listener.local_addr().unwrap();
    let specs = [
        format!("tcp={port}"),
        "tcp=1.1.1.1:53".to_owned(),
        "udp=1.1.1.1:53".to_owned(),
        "udp=8.8.8.8:53".to_owned(),
        format!("unix={}", workspace.path("socket").display()),
        "unix=@anything".to_owned(),
        format!("pair={}", workspace.path("datagrams").display()),
        "unix=/run/docker.sock".to_owned(),
        "family=17".to_owned(),
        "family=38".to_owned(),
        "family=40".to_owned(),
    ];
    let results = reach(&mut client, &specs);
    assert_eq!(results.lines().count(), specs.len(), "{results}");
    assert!(!results.contains("REACHED"), "{results}");
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    inside.set_nonblocking(true).unwrap();
    assert_eq!(inside.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    datagrams.set_nonblocking(true).unwrap();
    assert_eq!(datagrams.recv(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_program_has_its_own_loopback_and_socket_pairs() {
    let workspace = TempWorkspace::new();
    let Some(mut client) = confined_with_layer(&workspace, "network") else { return };
    let script = "import socket; a, b = socket.socketpair(); a.send(b'pair'); print(b.recv(9))\n\
         s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); \
         c = socket.create_connection(s.getsockname()); c.send(b'own'); print(s.accept()[0].recv(9))";
    let result = run(&mut client, json!({ "command": "/usr/bin/python3", "args": ["-c", script] }));
    assert_eq!(result.stdout, "b'pair'\nb'own'\n", "{}", result.stderr);
}

#[test]
fn the_network_is_reachable_if_the_profile_of_the_tool_allows_it() {
    let workspace = TempWorkspace::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = confined_client(&workspace, "network");
    let port = listener.local_addr().unwrap();
    let results = reach(&mut client, &[format!("tcp={port}"), "unix=@anything".to_owned()]);
    assert_eq!(results, format!("tcp={port} REACHED\nunix=@anything refused\n"));
    let mut byte = [0];
    listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
    let config = "[sandbox]\nprofile = \"network\"\n[[sandbox.for]]\ntools = \"exec.*\"\nprofile = \"read-only\"\n";
    workspace.put("toolgate.toml", config);
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    if has_layer(&mut client, "network") {
        assert_eq!(reach(&mut client, &[format!("tcp={port}")]), format!("tcp={port} refused\n"));
    }
}
