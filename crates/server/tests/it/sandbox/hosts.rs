//! Tests of programs that may only reach some network hosts, with local servers.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::*;

/// Python script that fetches each URL in its arguments through the proxy in the environment
/// variables, and prints the status of each.
pub(super) const FETCH: &str = r#"
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as err:
        print(err.code)
    except OSError as err:
        print(type(err).__name__)
"#;

/// Python script that sends one request to the proxy and prints the first line of the answer. If
/// there is another argument, the script then starts TLS with the server of that name.
const ASK_PROXY: &str = r#"
import os, socket, ssl, sys
host, port = os.environ['HTTPS_PROXY'].removeprefix('http://').split(':')
s = socket.create_connection((host, int(port)), 5)
s.settimeout(5)
s.sendall(sys.argv[1].encode().decode('unicode_escape').encode())
print(s.recv(4096).decode().splitlines()[0])
if len(sys.argv) > 2:
    try:
        ssl.create_default_context().wrap_socket(s, server_hostname=sys.argv[2])
    except OSError as err:
        print(type(err).__name__)
"#;

/// Starts a server with the text `sandbox` in its table `[sandbox]`, and returns its client.
fn client_with(workspace: &TempWorkspace, sandbox: &str) -> TestMcpClient {
    workspace.put("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
    TestMcpClient::stdio(ServerLaunchOptions::over(workspace), MODERN)
}

/// Returns true if this system supports network namespaces, which the network forwarder needs.
pub(super) fn can_forward(workspace: &TempWorkspace) -> bool {
    has_layer(&mut confined_client(workspace, "workspace"), "network")
}

/// Returns an empty workspace if this system supports network namespaces, which the network
/// forwarder needs.
pub(super) fn forwarding_workspace() -> Option<TempWorkspace> {
    let workspace = TempWorkspace::new();
    can_forward(&workspace).then_some(workspace)
}

pub(super) fn python(
    client: &mut TestMcpClient,
    script: &str,
    args: &[String],
) -> SandboxedProgramResult {
    let args: Vec<_> =
        ["-c".to_owned(), script.to_owned()].into_iter().chain(args.to_vec()).collect();
    run(client, json!({ "command": "/usr/bin/python3", "args": args }))
}

/// Starts an HTTP server that answers `count` requests with their `Host` header. Returns its port
/// and its thread.
pub(super) fn answer_requests(count: usize) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<_> =
                lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            let host = head.iter().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned)
            });
            let host = host.unwrap();
            let length = host.len();
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            stream.write_all(format!("{head} {length}\r\n\r\n{host}").as_bytes()).unwrap();
        }
    });
    (port, serving)
}

fn assert_silent(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_program_reaches_an_allowed_host_and_the_result_and_record_name_the_others() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(2);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other.local_addr().unwrap().port();
    let mut client = client_with(&workspace, &format!("hosts = [\"one.localhost:{port}\"]"));
    let allowed = format!("http://one.localhost:{port}/");
    let refused = format!("http://one.localhost:{other_port}/");
    let urls = [allowed.clone(), refused, "http://169.254.169.254/latest/".to_owned()];
    let result = python(&mut client, FETCH, &urls);
    let expected = format!("200 one.localhost:{port}\n403\n403\n");
    assert_eq!(result.stdout, expected, "{}", result.stderr);
    let hosts = result.value["refused_hosts"].as_array().unwrap();
    let host = |name: String| hosts.iter().find(|it| it["host"] == name.as_str()).unwrap();
    let named = host(format!("one.localhost:{other_port}"));
    assert_eq!(named["tries"], 1, "{named}");
    let allow = format!("add \"one.localhost:{other_port}\" to sandbox.hosts");
    assert_eq!(named["allow"], allow.as_str(), "{named}");
    assert!(host("169.254.169.254:80".to_owned())["allow"].is_null());
    assert_silent(&other);
    // The next program has a network of its own, and the same hosts.
    let result = python(&mut client, FETCH, &[allowed]);
    assert_eq!(result.stdout, format!("200 one.localhost:{port}\n"), "{}", result.stderr);
    assert!(result.value.get("refused_hosts").is_none(), "{}", result.value);
    serving.join().unwrap();
    let records = || client.server().records();
    let line = format!("one.localhost:{other_port} (1 try)");
    let is_named = |record: &Value| record["refused_hosts"].to_string().contains(&line);
    wait_until("the refusal is recorded", || records().iter().any(is_named));
}

#[test]
fn a_redirect_to_another_host_is_refused() {
    let Some(workspace) = forwarding_workspace() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let answer = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/latest/\r\n\
                      connection: close\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let mut client = client_with(&workspace, &format!("hosts = [\"one.localhost:{port}\"]"));
    let result = python(&mut client, FETCH, &[format!("http://one.localhost:{port}/")]);
    assert_eq!(result.stdout, "403\n", "{}", result.stderr);
    assert_eq!(result.value["refused_hosts"][0]["host"], "169.254.169.254:80");
    serving.join().unwrap();
}

#[test]
fn an_ipv6_address_with_a_rule_is_reached() {
    let workspace = TempWorkspace::new();
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        eprintln!("NOT TRIED: this system has no IPv6");
        return;
    };
    if !can_forward(&workspace) {
        return;
    }
    let port = listener.local_addr().unwrap().port();
    let mut client = client_with(&workspace, &format!("hosts = [\"[::1]:{port}\"]"));
    let connecting = thread::spawn(move || listener.accept().unwrap());
    let connect = format!(r"CONNECT [::1]:{port} HTTP/1.1\r\n\r\n");
    let result = python(&mut client, ASK_PROXY, &[connect]);
    assert_eq!(result.stdout, "HTTP/1.1 200 OK\n", "{}", result.stderr);
    connecting.join().unwrap();
}

#[test]
fn only_the_forwarder_leads_out_of_the_network() {
    let Some(workspace) = forwarding_workspace() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = client_with(&workspace, &format!("hosts = [\"one.localhost:{port}\"]"));
    let script = "import socket, sys\n\
         for kind, host, port in [(1, '127.0.0.1', int(sys.argv[1])), (1, '1.1.1.1', 53), \
                                  (2, '1.1.1.1', 443), (2, '8.8.8.8', 53)]:\n\
         \x20   try:\n\
         \x20       s = socket.socket(socket.AF_INET, kind); s.settimeout(2)\n\
         \x20       s.connect((host, port)); s.send(b'x'); print(host, port, 'REACHED')\n\
         \x20   except OSError: print('refused')\n\
         try:\n\
         \x20   socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('RAW')\n\
         except OSError: print('refused')\n";
    let result = python(&mut client, script, &[port.to_string()]);
    assert_eq!(result.stdout, "refused\n".repeat(5), "{}", result.stderr);
    // A proxy variable that the call or the program changes leads nowhere else.
    let env = json!({ "HTTP_PROXY": format!("http://127.0.0.1:{port}"), "NO_PROXY": "*" });
    let args = ["-c", FETCH, "http://two.localhost:1/"];
    let input = json!({ "command": "/usr/bin/python3", "args": args, "env": env });
    assert_eq!(run(&mut client, input).stdout, "403\n");
    let script = format!(
        "env HTTP_PROXY= http_proxy= /usr/bin/python3 -c '{}' \
         http://127.0.0.1:{port}/",
        FETCH.replace('\'', "\"")
    );
    assert_eq!(sh(&mut client, &script).stdout, "URLError\n");
    assert_silent(&listener);
}

#[test]
fn a_tunnel_carries_tls_only_for_the_host_of_its_connect() {
    let Some(workspace) = forwarding_workspace() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = client_with(&workspace, &format!("hosts = [\"one.localhost:{port}\"]"));
    let received = thread::spawn(move || {
        let mut all = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut first = [0; 1];
            all.push(stream.read(&mut first).unwrap_or(0));
        }
        all
    });
    let connect = format!(r"CONNECT one.localhost:{port} HTTP/1.1\r\n\r\n");
    let mut ask = |name: &str| {
        let result = python(&mut client, ASK_PROXY, &[connect.clone(), name.to_owned()]);
        assert!(result.stdout.starts_with("HTTP/1.1 200 OK\n"), "{}", result.stderr);
        result.value["refused_hosts"].to_string()
    };
    assert!(ask("two.localhost").contains("asks for `two.localhost`"));
    assert_eq!(ask("one.localhost"), "null");
    assert_eq!(received.join().unwrap(), [0, 1]);
}

#[test]
fn a_host_rule_that_cannot_be_enforced_stops_the_server_at_its_start() {
    for (sandbox, why) in [
        ("hosts = [\"git.example.com/acme*\"]", "after its last `/`"),
        ("[[sandbox.credentials]]\nhost = \"a.example\"\nvalue = \"Bearer x\"", "names no secret"),
        (
            "[[sandbox.credentials]]\nhost = \"a.example\"\nvalue = \"${NO_TOKEN}\"",
            "`NO_TOKEN` of sandbox.credentials is not set",
        ),
        ("[[sandbox.ssh]]\nhost = \"*.a.example\"\nhost_keys = []\nkeys = []", "name one host"),
        ("hosts = [\"https://git.example.com\"]", "scheme"),
        ("hosts = [\"*\"]", "first label"),
        ("hosts = [\"a.example\", \"@crates\"]", "the presets are @npm, @pypi, @cargo, @go"),
        ("profile = \"network\"\nhosts = [\"a.example\"]", "no effect with the profile `network`"),
        (
            "[[sandbox.for]]\ntools = \"ci.*\"\nprofile = \"workspace\"\nhosts = [\"a b\"]",
            "table for `ci.*`",
        ),
    ] {
        let workspace = TempWorkspace::new();
        workspace.put("toolgate.toml", format!("[sandbox]\n{sandbox}\n"));
        let server =
            ServerLaunchOptions::over(&workspace).serve_with_flags(&["--listen", "127.0.0.1:0"]);
        assert!(!server.wait_for_exit().success(), "{sandbox}");
        wait_until(why, || server.log().contains(why));
    }
}

#[test]
fn the_first_matching_table_decides_the_hosts_of_a_tool() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let sandbox = format!(
        "hosts = [\"other.example\"]\n[[sandbox.for]]\ntools = \"exec.*\"\n\
         profile = \"workspace\"\nhosts = [\"*.localhost:{port}\"]"
    );
    let mut client = client_with(&workspace, &sandbox);
    let urls = [format!("http://a.localhost:{port}/"), "http://other.example/".to_owned()];
    let result = python(&mut client, FETCH, &urls);
    assert_eq!(result.stdout, format!("200 a.localhost:{port}\n403\n"), "{}", result.stderr);
    let refused = result.value["refused_hosts"].to_string();
    assert!(refused.contains("[[sandbox.for]] table for `exec.*`"), "{refused}");
    serving.join().unwrap();
}

#[test]
fn a_declared_command_with_hosts_reaches_no_others_even_under_the_profile_network() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other.local_addr().unwrap().port();
    workspace.put("fetch.py", FETCH);
    workspace.put(
        "toolgate.toml",
        format!(
            "[sandbox]\nprofile = \"network\"\n[command.\"web.fetch\"]\nabout = \"Fetch.\"\n\
             program = \"/usr/bin/python3\"\nargv = [\"fetch.py\", \
             \"http://one.localhost:{port}/\", \"http://127.0.0.1:{other_port}/\"]\n\
             hosts = [\"one.localhost:{port}\"]\n"
        ),
    );
    let mut client = TestMcpClient::stdio(ServerLaunchOptions::over(&workspace), MODERN);
    let answer = client.call("web_fetch", json!({}));
    let stdout = &answer["result"]["structuredContent"]["stdout"];
    assert_eq!(stdout, &format!("200 one.localhost:{port}\n403\n"), "{answer}");
    assert_silent(&other);
    serving.join().unwrap();
}

/// MCP server in Python, whose only tool fetches the URLs in the program's arguments and returns a
/// status for each. The program connects directly to a `tcp://` URL. For an `env://` URL, it
/// returns the environment variable of that name. For a `postgres://` URL, it runs the `psql` named
/// in the variable `PSQL`.
pub(super) const FETCHING_SERVER: &str = r#"
import json, os, socket, subprocess, sys, time, urllib.error, urllib.request

def query(url):
    for _ in range(100):
        asked = [os.environ['PSQL'], url, '-tAc', 'select 6 * 7']
        done = subprocess.run(asked, capture_output=True, text=True)
        if 'refused' not in done.stderr:
            return done.stdout.strip() or done.stderr
        time.sleep(0.1)
    return 'refused'

def ask(host, port):
    for _ in range(100):
        try:
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.sendall(b'ping\n')
                return connection.recv(100).decode()
        except ConnectionRefusedError:
            time.sleep(0.1)
    return 'refused'

def fetch(url):
    if url.startswith('tcp://'):
        return ask(*url.removeprefix('tcp://').split(':'))
    if url.startswith('postgres://'):
        return query(url)
    if url.startswith('env://'):
        return os.environ.get(url.removeprefix('env://'), 'none')
    try:
        return str(urllib.request.urlopen(url, timeout=5).status)
    except urllib.error.HTTPError as err:
        return str(err.code)
    except OSError as err:
        return type(err).__name__

for line in sys.stdin:
    message = json.loads(line)
    if 'id' not in message:
        continue
    answer = {'jsonrpc': '2.0', 'id': message['id']}
    match message['method']:
        case 'initialize':
            answer['result'] = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}},
                                'serverInfo': {'name': 'fetching', 'version': '1'}}
        case 'tools/list':
            answer['result'] = {'tools': [{'name': 'fetch', 'inputSchema': {'type': 'object'}}]}
        case 'tools/call':
            text = ' '.join(map(fetch, sys.argv[1:]))
            answer['result'] = {'content': [{'type': 'text', 'text': text}]}
        case _:
            answer['error'] = {'code': -32601, 'message': 'unknown'}
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn an_upstream_with_hosts_reaches_no_others_and_the_result_and_record_name_them() {
    let Some(workspace) = forwarding_workspace() else { return };
    let (port, serving) = answer_requests(1);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other.local_addr().unwrap().port();
    workspace.put("server.py", FETCHING_SERVER);
    let settings = format!(
        "[upstream.web]\ncommand = [\"/usr/bin/python3\", \"server.py\", \
         \"http://one.localhost:{port}/\", \"http://127.0.0.1:{other_port}/\"]\ncwd = \".\"\n\
         sandbox = \"workspace\"\nhosts = [\"one.localhost:{port}\"]\n"
    );
    workspace.put("toolgate.toml", &settings);
    let launch =
        ServerLaunchOptions::over(&workspace).env("XDG_CACHE_HOME", workspace.path(".cache"));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    let answer = client.call("web_fetch", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "200 403", "{answer}");
    let line = format!("127.0.0.1:{other_port} (1 try): ");
    let allow = format!("to allow it, add \"127.0.0.1:{other_port}\" to `hosts` of the upstream");
    let note = answer["result"]["content"][1]["text"].as_str().unwrap();
    assert!(note.starts_with(&format!("refused host {line}")) && note.ends_with(&allow), "{note}");
    let is_named = |record: &Value| record["refused_hosts"].to_string().contains(&line);
    wait_until("the refusal is recorded", || client.server().records().iter().any(is_named));
    assert_silent(&other);
    serving.join().unwrap();
    workspace.put("toolgate.toml", settings.replace("\"workspace\"", "\"network\""));
    let server =
        ServerLaunchOptions::over(&workspace).serve_with_flags(&["--listen", "127.0.0.1:0"]);
    assert!(!server.wait_for_exit().success());
    wait_until("the refusal", || server.log().contains("no effect with `sandbox = \"network\"`"));
}

#[test]
fn an_upstream_inherits_the_variables_for_proxies_and_certificates_and_no_others() {
    const NAMES: [&str; 8] = [
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "NODE_EXTRA_CA_CERTS",
        "REQUESTS_CA_BUNDLE",
        "OTHER_VARIABLE",
    ];
    let workspace = TempWorkspace::new();
    workspace.put("server.py", FETCHING_SERVER);
    let words = NAMES.map(|name| format!("\"env://{name}\"")).join(", ");
    let settings = format!(
        "[upstream.web]\ncommand = [\"/usr/bin/python3\", \"server.py\", {words}]\ncwd = \".\"\n"
    );
    workspace.put("toolgate.toml", settings);
    let launch =
        ServerLaunchOptions::over(&workspace).env("XDG_CACHE_HOME", workspace.path(".cache"));
    let launch = NAMES.iter().fold(launch, |launch, name| launch.env(name, format!("/{name}")));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    let answer = client.call("web_fetch", json!({}));
    let kept =
        NAMES.map(|name| if name == "OTHER_VARIABLE" { "none".into() } else { format!("/{name}") });
    assert_eq!(answer["result"]["content"][0]["text"], kept.join(" ").as_str(), "{answer}");
}

#[test]
fn a_program_that_fails_without_a_network_gets_the_reason() {
    let Some(workspace) = forwarding_workspace() else { return };
    let script = "echo 'Could not resolve host: a.example' >&2; exit 1";
    for (sandbox, why) in [
        ("", "programs have no network here"),
        ("hosts = [\"a.example\"]", "only through the proxy in HTTPS_PROXY"),
    ] {
        let mut client = client_with(&workspace, sandbox);
        let answer = client.call("exec_run", json!({ "command": "sh", "args": ["-c", script] }));
        assert!(answer.to_string().contains(why), "{answer}");
    }
}

/// Python script that listens on a port of its own network namespace, and connects each client to a
/// host through the proxy.
pub(super) const RELAY: &str = r#"
import os, socket, sys, threading

def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)

host, port = os.environ['HTTPS_PROXY'].removeprefix('http://').split(':')
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    client, _ = listener.accept()
    server = socket.create_connection((host, int(port)))
    server.sendall(f'CONNECT {sys.argv[2]} HTTP/1.1\r\n\r\n'.encode())
    head = b''
    while not head.endswith(b'\r\n\r\n'):
        head += server.recv(1)
    for pair in [(client, server), (server, client)]:
        threading.Thread(target=copy, args=pair, daemon=True).start()
"#;

#[test]
fn a_database_server_reaches_its_database_through_a_relay_in_its_own_network() {
    let Some(workspace) = forwarding_workspace() else { return };
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = database.local_addr().unwrap().port();
    let serving = thread::spawn(move || {
        let (mut stream, _) = database.accept().unwrap();
        let mut message = [0; 5];
        stream.read_exact(&mut message).unwrap();
        assert_eq!(&message, b"ping\n");
        stream.write_all(b"pong").unwrap();
    });
    workspace.put("relay.py", RELAY);
    workspace.put("server.py", FETCHING_SERVER);
    let line = format!(
        "/usr/bin/python3 relay.py 5432 localhost:{port} & \
         exec /usr/bin/python3 server.py tcp://127.0.0.1:5432"
    );
    let settings = format!(
        "[upstream.orders]\ncommand = [\"sh\", \"-c\", \"{line}\"]\ncwd = \".\"\n\
         sandbox = \"workspace\"\nhosts = [\"localhost:{port}\"]\n"
    );
    workspace.put("toolgate.toml", settings);
    let launch =
        ServerLaunchOptions::over(&workspace).env("XDG_CACHE_HOME", workspace.path(".cache"));
    let mut client = TestMcpClient::stdio(launch, MODERN);
    client.tools();
    let answer = client.call("orders_fetch", json!({}));
    assert_eq!(answer["result"]["content"][0]["text"], "pong", "{answer}");
    serving.join().unwrap();
}
