//! Tests of upstreams that require OAuth: a real server on FastMCP and a real authorization server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::real::{RealUpstreamServer, free_port, node, tool, wait_until_listening};
use super::{checkout, launch, names, text};
use crate::support::{
    ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest, TestHttpResponse,
    TestMcpClient, binary, call, keys_of, path, trust_config, wait_for, wait_until,
};

/// Audience of the tokens that callers authenticate with.
const AUDIENCE: &str = "https://tools.example/mcp";

/// MCP server that requires tokens of a `TestAuthorizationServer`.
struct ProtectedUpstream {
    authorization: TestAuthorizationServer,
    url: String,
    _server: RealUpstreamServer,
}

/// An authorization server, and the log lines that it printed.
struct TestAuthorizationServer {
    url: String,
    lines: Arc<Mutex<Vec<String>>>,
    _server: RealUpstreamServer,
}

impl TestAuthorizationServer {
    /// Starts an authorization server whose tokens are valid for `life` seconds.
    fn start(life: u32) -> Self {
        Self::start_with(life, &[])
    }

    /// Starts an authorization server whose tokens are valid for `life` seconds, with more
    /// environment variables.
    fn start_with(life: u32, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(node());
        command.envs(variables.iter().copied());
        command.arg(checkout().join("tests/upstreams/authorization.mjs")).arg(tool("servers"));
        command.env("LIFE", life.to_string()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        thread::spawn(move || stderr.for_each(|line| sink.lock().unwrap().push(line)));
        let server = RealUpstreamServer(child);
        let url = wait_for("it prints its address", || {
            let lines = lines.lock().unwrap();
            let line = lines.iter().find_map(|line| line.strip_prefix("authorization server at "));
            line.map(str::to_owned)
        });
        Self { url, lines, _server: server }
    }

    /// Returns the private key of the OAuth client `client`, on one line.
    fn key(&self, client: &str) -> String {
        let lines = self.lines.lock().unwrap();
        let begins = format!("the key of {client} is ");
        let key = lines.iter().find_map(|line| line.strip_prefix(&begins));
        key.unwrap().to_owned()
    }

    fn addr(&self) -> SocketAddr {
        self.url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Waits until the authorization server has issued `tokens` tokens for `grant`.
    fn has_given(&self, grant: &str, tokens: usize) {
        wait_until(&format!("{tokens} tokens are issued"), || self.issued_count(grant) == tokens);
    }

    /// Returns the number of tokens that the authorization server has issued for `grant`.
    fn issued_count(&self, grant: &str) -> usize {
        let begins = format!("grant.success {grant} ");
        self.lines.lock().unwrap().iter().filter(|line| line.starts_with(&begins)).count()
    }

    /// Requests a token for `resource` from the authorization server, with the credentials of the
    /// service itself instead of a user.
    fn request_token(&self, resource: &str) -> String {
        use base64::Engine as _;
        let credentials = base64::engine::general_purpose::STANDARD;
        let credentials = credentials.encode("service:the-secret-of-the-service");
        let body = format!("grant_type=client_credentials&scope=read&resource={resource}");
        let post = TestHttpRequest::bytes(body.as_bytes()).to("/token");
        let post = post.with("content-type", "application/x-www-form-urlencoded");
        let mut connection = TestHttpConnection::to(self.addr());
        connection.post(&post.with("authorization", &format!("Basic {credentials}")));
        let answer = connection.response();
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        answer["access_token"].as_str().unwrap().to_owned()
    }

    /// Opens `page` and follows redirects like a browser. Returns the last response.
    fn browse(page: &str) -> TestHttpResponse {
        let mut at = page.to_owned();
        let mut cookies = Vec::<(String, String)>::new();
        for _ in 0..10 {
            let rest = at.strip_prefix("http://").expect("a page of this machine");
            let (host, path) = rest.split_once('/').unwrap();
            let sent_cookies: Vec<_> =
                cookies.iter().map(|(name, it)| format!("{name}={it}")).collect();
            let mut connection = TestHttpConnection::to(host.parse().unwrap());
            let get = TestHttpRequest::bare("GET", &format!("/{path}"))
                .with("cookie", &sent_cookies.join("; "));
            connection.post(&get);
            let answer = connection.response();
            for (name, value) in &answer.headers {
                if name.eq_ignore_ascii_case("set-cookie") {
                    let (name, value) = value.split(';').next().unwrap().split_once('=').unwrap();
                    cookies.retain(|(known, _)| known != name);
                    cookies.push((name.to_owned(), value.to_owned()));
                }
            }
            let Some(next) = answer.header("location") else { return answer };
            at = if next.starts_with('/') {
                format!("http://{host}{next}")
            } else {
                next.to_owned()
            };
        }
        panic!("{page} leads nowhere");
    }
}

impl ProtectedUpstream {
    fn start(life: u32) -> Self {
        Self::behind(TestAuthorizationServer::start(life))
    }

    /// Starts an MCP server that requires tokens of `authorization`.
    fn behind(authorization: TestAuthorizationServer) -> Self {
        let port = free_port();
        let mut command = Command::new(tool("upstreams/bin/python"));
        command.arg(checkout().join("tests/upstreams/protected.py")).arg(&authorization.url);
        command.arg(format!("{}/jwks", authorization.url)).arg(port.to_string()).arg("read");
        let (server, _) = RealUpstreamServer::start_job(&mut command, "Uvicorn running");
        let url = format!("http://127.0.0.1:{port}/mcp");
        wait_until_listening(&url);
        Self { authorization, url, _server: server }
    }

    /// Returns a workspace that has this server as an upstream, with `more` settings for it.
    fn workspace(&self, more: &str) -> TempWorkspace {
        let settings = format!("[upstream.prot]\nurl = {:?}\n{more}\n", self.url);
        TempWorkspace::new().file("toolgate.toml", settings)
    }
}

/// Returns the command `toolgate` with `args` for `workspace`, with the state folder `state`.
fn toolgate(workspace: &TempWorkspace, state: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).current_dir(workspace.root()).env_clear();
    command.env("PATH", path()).env("HOME", state.path()).env("XDG_STATE_HOME", state.path());
    trust_config(&mut command, workspace.root());
    command
}

#[track_caller]
fn check_exit(result: &Output, code: i32) -> String {
    assert_eq!(result.status.code(), Some(code), "{result:?}");
    String::from_utf8_lossy(&result.stdout).into_owned() + &String::from_utf8_lossy(&result.stderr)
}

/// Signs the caller Ada in to the upstream, and returns the output of the command.
fn sign_in(workspace: &TempWorkspace, state: &TempDir) -> String {
    let mut command = toolgate(workspace, state, &["login", "prot", "--no-browser"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut page = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut page).unwrap();
    let last = TestAuthorizationServer::browse(page.trim());
    assert!(last.text().contains("Return to the terminal"), "{last:?}");
    check_exit(&child.wait_with_output().unwrap(), 0)
}

const SERVICE: &str = "client_id = \"service\"\nclient_secret = \"${SERVICE_SECRET}\"\n";

fn service(launch: ServerLaunchOptions) -> ServerLaunchOptions {
    launch.env("SERVICE_SECRET", "the-secret-of-the-service")
}

#[test]
fn a_sign_in_without_declared_pkce_is_refused_unless_the_settings_assume_it() {
    let protected =
        ProtectedUpstream::behind(TestAuthorizationServer::start_with(300, &[("NO_PKCE", "1")]));
    let state = TempDir::new().unwrap();
    let workspace = protected.workspace("");
    for words in [&["login", "prot", "--no-browser"][..], &["doctor", "oauth", "prot"]] {
        let refused = toolgate(&workspace, &state, words).stdin(Stdio::null()).output().unwrap();
        let output = check_exit(&refused, if words[0] == "doctor" { 1 } else { 2 });
        assert!(output.contains("`assume_pkce = true` in [upstream.prot.oauth]"), "{output}");
    }
    let workspace = protected.workspace("[upstream.prot.oauth]\nassume_pkce = true\n");
    sign_in(&workspace, &state);
    let checked = toolgate(&workspace, &state, &["doctor", "oauth", "prot"]).output().unwrap();
    check_exit(&checked, 0);
}

#[test]
fn a_running_server_uses_and_renews_the_sign_in_of_a_person() {
    let protected = ProtectedUpstream::start(300);
    let workspace = protected.workspace("");
    let state = TempDir::new().unwrap();
    let mut client = TestMcpClient::http(launch(&workspace).with_state(&state), "2025-06-18");
    assert!(!names(&mut client).contains(&"prot_whoami".to_owned()));
    let log = client.server().log();
    assert!(log.contains("toolgate login prot"), "{log}");

    let output = sign_in(&workspace, &state);
    assert!(output.contains("signed in to `prot`"), "{output}");
    wait_until("its tools are listed", || names(&mut client).contains(&"prot_whoami".to_owned()));
    assert_eq!(text(&client.call("prot_whoami", json!({}))), "ada read");

    // The upstream no longer accepts the token.
    client.call("prot_forget", json!({}));
    assert_eq!(text(&client.call("prot_whoami", json!({}))), "ada read");
    protected.authorization.has_given("refresh_token", 1);

    let stored: Vec<_> = fs::read_dir(state.path().join("toolgate/upstreams")).unwrap().collect();
    let stored = stored.into_iter().map(|it| it.unwrap().path());
    let stored =
        stored.filter(|it| it.extension().is_some_and(|it| it == "json")).collect::<Vec<_>>();
    let [stored] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!(fs::metadata(stored).unwrap().permissions().mode() & 0o777, 0o600);
    let stored: Value = serde_json::from_str(&fs::read_to_string(stored).unwrap()).unwrap();
    let token = stored["tokens"]["access"].as_str().unwrap();
    let everything = client.server().log() + &output + &format!("{:?}", client.server().records());
    assert!(!everything.contains(token), "{everything}");

    let signed_out = toolgate(&workspace, &state, &["logout", "prot"]).output().unwrap();
    assert!(check_exit(&signed_out, 0).contains("signed out of `prot`"), "{signed_out:?}");
    let called = toolgate(&workspace, &state, &["call", "prot_whoami"]).output().unwrap();
    assert!(check_exit(&called, 1).contains("toolgate login prot"), "{called:?}");
    // A running server drops the token, too.
    wait_until("it is signed out", || {
        client.call("prot_whoami", json!({})).to_string().contains("toolgate login prot")
    });
    sign_in(&workspace, &state);
    wait_until("it is signed in again", || {
        client.call("prot_whoami", json!({})).to_string().contains("ada read")
    });
}

#[test]
fn an_expiring_token_is_renewed_before_it_is_refused() {
    // A token that is valid for less than 30 seconds is renewed with each call.
    let protected = ProtectedUpstream::start(20);
    let workspace = protected.workspace("");
    let state = TempDir::new().unwrap();
    sign_in(&workspace, &state);
    let mut client = TestMcpClient::stdio(launch(&workspace).with_state(&state), "2025-06-18");
    assert!(names(&mut client).contains(&"prot_whoami".to_owned()));
    let before = protected.authorization.issued_count("refresh_token");
    assert_eq!(text(&client.call("prot_whoami", json!({}))), "ada read");
    let renewed = || protected.authorization.issued_count("refresh_token") > before;
    wait_until("it is renewed", renewed);
}

#[test]
fn client_credentials_get_a_token_and_another_once_it_is_refused() {
    let protected = ProtectedUpstream::start(300);
    let oauth = format!(
        "[upstream.prot.oauth]\ngrant = \"client_credentials\"\n{SERVICE}issuer = {:?}\n",
        protected.authorization.url
    );
    let workspace = protected.workspace(&oauth);
    let mut client = TestMcpClient::stdio(service(launch(&workspace)), "2025-06-18");
    assert!(names(&mut client).contains(&"prot_whoami".to_owned()));
    let has_given = |tokens| protected.authorization.has_given("client_credentials", tokens);
    for _ in 0..3 {
        assert!(text(&client.call("prot_whoami", json!({}))).ends_with(" read"));
    }
    // A token is used as long as it is valid.
    has_given(1);
    client.call("prot_forget", json!({}));
    assert!(text(&client.call("prot_whoami", json!({}))).ends_with(" read"));
    has_given(2);
}

#[test]
fn a_client_authenticates_with_a_signing_key() {
    let protected = ProtectedUpstream::start(300);
    let other = ProtectedUpstream::start(300);
    let authorization = &protected.authorization;
    let state = TempDir::new().unwrap();
    for (at, id) in ["ec", "rsa"].into_iter().enumerate() {
        let oauth = format!(
            "[upstream.prot.oauth]\ngrant = \"client_credentials\"\nclient_id = {id:?}\n\
             client_key = \"${{KEY}}\"\nclient_key_id = \"${{KEY_ID}}\"\nissuer = {:?}\n",
            authorization.url
        );
        let workspace = protected.workspace(&oauth);
        let launch = launch(&workspace).env("KEY", authorization.key(id)).env("KEY_ID", "first");
        let mut client = TestMcpClient::stdio(launch, "2025-06-18");
        assert!(names(&mut client).contains(&"prot_whoami".to_owned()), "{id}");
        assert!(text(&client.call("prot_whoami", json!({}))).ends_with(" read"), "{id}");
        authorization.has_given("client_credentials", at + 1);
        let doctor = |key: &str, code| {
            let mut command = toolgate(&workspace, &state, &["doctor", "oauth", "prot"]);
            check_exit(&command.env("KEY", key).env("KEY_ID", "first").output().unwrap(), code)
        };
        let output = doctor(&other.authorization.key(id), 1);
        assert!(output.contains("invalid_client"), "{output}");
        let output = doctor("hunter2", 2);
        assert!(output.contains("`oauth.client_key`") && !output.contains("hunter2"), "{output}");
    }
}

#[test]
fn the_token_of_each_caller_is_exchanged_and_never_forwarded() {
    let protected = ProtectedUpstream::start(300);
    let authorization = &protected.authorization;
    let oauth = format!(
        "[upstream.prot.oauth]\ngrant = \"token_exchange\"\n{SERVICE}issuer = {issuer:?}\n\
         {}\n[[oauth]]\nissuer = {issuer:?}\naudience = [{AUDIENCE:?}]\nalias = \"id\"\n",
        keys_of(&["carol"]),
        issuer = authorization.url
    );
    let workspace = protected.workspace(&oauth);
    let served = service(launch(&workspace)).served();
    let called = |tool: &str, secret: &str| {
        let post = TestHttpRequest::mcp(&call(1, tool, json!({})));
        served.send(&post.with("Authorization", &format!("Bearer {secret}"))).message()
    };
    let ada = authorization.request_token(AUDIENCE);
    wait_until("its tools are known", || {
        let list = TestHttpRequest::mcp(&crate::support::modern(1, "tools/list", json!({})));
        let list = served.send(&list.with("Authorization", &format!("Bearer {ada}"))).message();
        list.to_string().contains("prot_whoami")
    });
    let answer = called("prot_whoami", &ada);
    assert!(text(&answer).ends_with(" read"), "{answer}\n{}", served.log());
    authorization.has_given("urn:ietf:params:oauth:grant-type:token-exchange", 1);
    called("prot_whoami", &ada);
    authorization.has_given("urn:ietf:params:oauth:grant-type:token-exchange", 1);
    // Another token may allow less and is exchanged separately.
    let again = authorization.request_token(AUDIENCE);
    called("prot_whoami", &again);
    authorization.has_given("urn:ietf:params:oauth:grant-type:token-exchange", 2);
    let refused = called("prot_whoami", "carol-key");
    assert!(refused.to_string().contains("needs a token of the caller"), "{refused}");
    let everything = served.log() + &format!("{:?}", served.records());
    assert!(!everything.contains(&ada), "{everything}");
}

#[test]
fn a_secret_is_not_sent_to_an_authorization_server_that_only_the_upstream_names() {
    let protected = ProtectedUpstream::start(300);
    let begins = "[upstream.prot.oauth]\ngrant = \"client_credentials\"\n";
    let none = protected.workspace(&format!("{begins}{SERVICE}"));
    let state = TempDir::new().unwrap();
    let doctor = |workspace: &TempWorkspace, code| {
        let mut command = toolgate(workspace, &state, &["doctor", "oauth", "prot"]);
        check_exit(
            &command.env("SERVICE_SECRET", "the-secret-of-the-service").output().unwrap(),
            code,
        )
    };
    let output = doctor(&none, 2);
    assert!(output.contains("`oauth.issuer`"), "{output}");
    let other = format!("{begins}{SERVICE}issuer = \"https://login.example\"\n");
    let output = doctor(&protected.workspace(&other), 1);
    assert!(output.contains("does not name the authorization server"), "{output}");
    assert_eq!(protected.authorization.issued_count("client_credentials"), 0);
}

#[test]
fn doctor_reports_each_step_of_authorization_and_the_one_that_fails() {
    let protected = ProtectedUpstream::start(300);
    let workspace = protected.workspace("");
    let state = TempDir::new().unwrap();
    let doctor = |workspace: &TempWorkspace| {
        toolgate(workspace, &state, &["doctor", "oauth", "prot"]).output().unwrap()
    };
    let output = check_exit(&doctor(&workspace), 1);
    let lines: Vec<_> = output.lines().collect();
    let begins = [
        "ok      upstream: `http://127.0.0.1:",
        "ok      resource metadata: `http://127.0.0.1:",
        "ok      authorization server: `http://127.0.0.1:",
        "FAILED  authorization: not signed in: run `toolgate login prot`",
    ];
    assert_eq!(lines.len(), begins.len(), "{output}");
    assert!(lines.iter().zip(begins).all(|(line, begins)| line.starts_with(begins)), "{output}");
    sign_in(&workspace, &state);
    let output = check_exit(&doctor(&workspace), 0);
    assert!(output.contains("ok      token: valid for "), "{output}");
    assert!(output.trim_end().ends_with("(tools: 2)"), "{output}");

    // The metadata describes another URL.
    let other = protected.url.replace("127.0.0.1", "localhost");
    let other =
        TempWorkspace::new().file("toolgate.toml", format!("[upstream.prot]\nurl = {other:?}\n"));
    let output = check_exit(&doctor(&other), 1);
    assert!(
        output.contains("FAILED  resource metadata: ") && output.contains("instead of"),
        "{output}"
    );
}
