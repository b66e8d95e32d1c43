//! Runs a real OpenID provider as a process: tests/oauth/provider.py.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpConnection, TestHttpRequest,
    TestHttpResponse, path,
};

/// Audience of the tokens in these tests.
pub(crate) const AUDIENCE: &str = "https://tools.example/mcp";

/// Returns the path of the Python interpreter that has the packages of the OpenID provider.
pub(crate) fn python() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = checkout.join(".tools/oauth/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    python
}

/// Returns the path of the script `name` in tests/oauth.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oauth").join(name)
}

/// Running OpenID provider. It ends when its input closes.
pub(crate) struct TestIdentityProvider {
    process: Child,
    addr: SocketAddr,
}

impl TestIdentityProvider {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(python());
        command.arg(script("provider.py")).arg(AUDIENCE).env_clear().env("PATH", path());
        // The provider is reachable on this machine only.
        command.env("AUTHLIB_INSECURE_TRANSPORT", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("http://").expect("the provider prints its URL");
        Self { process, addr: addr.parse().unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn send(&self, post: &TestHttpRequest) -> TestHttpResponse {
        let mut connection = TestHttpConnection::to(self.addr);
        connection.post(post);
        let response = connection.response();
        assert_eq!(response.status, 200, "{response:?}");
        response
    }

    /// Requests a token with `scope` as the client `name`.
    pub(crate) fn request_token(&self, name: &str, scope: &str) -> String {
        use base64::Engine as _;
        let base64 = base64::engine::general_purpose::STANDARD;
        let credentials = base64.encode(format!("{name}:of no use elsewhere"));
        let body = format!("grant_type=client_credentials&scope={}", scope.replace(' ', "+"));
        let post = TestHttpRequest::bytes(body.as_bytes()).to("/token");
        let post = post.with("content-type", "application/x-www-form-urlencoded");
        let answer = self.send(&post.with("authorization", &format!("Basic {credentials}"))).json();
        answer["access_token"].as_str().unwrap().to_owned()
    }

    /// Creates a token that a correct provider would not issue. `wanted` describes the token.
    pub(crate) fn forge_token(&self, wanted: &Value) -> String {
        let post = TestHttpRequest::bytes(wanted.to_string().as_bytes()).to("/test/token");
        self.send(&post).text()
    }

    /// Creates a valid token with the additional or changed claims `claims`.
    pub(crate) fn with_claims(&self, claims: Value) -> String {
        self.forge_token(&json!({ "claims": claims }))
    }

    pub(crate) fn rotate(&self) {
        self.send(&TestHttpRequest::bytes(b"").to("/test/rotate"));
    }

    /// Sets how the provider behaves from now on: `well`, or with a fault such as `away`, `slow` or
    /// `huge`.
    pub(crate) fn set_mode(&self, mode: &str) {
        self.send(
            &TestHttpRequest::bytes(b"").to(&format!("/test/mode/{}", mode.replace(' ', "%20"))),
        );
    }

    /// Returns the number of times that the provider's keys were fetched.
    pub(crate) fn fetch_count(&self) -> u64 {
        self.send(&TestHttpRequest::bare("GET", "/test/asked")).json().as_u64().unwrap()
    }

    /// Returns settings of a server that accepts the provider's tokens.
    pub(crate) fn settings(&self) -> String {
        format!(
            "[[oauth]]\nissuer = \"{}\"\naudience = [\"{AUDIENCE}\"]\nalias = \"id\"\n\
             roles_claim = \"groups\"\n",
            self.url()
        )
    }

    /// Starts a server that accepts the provider's tokens, with `more` settings in addition.
    pub(crate) fn served(&self, more: &str) -> HttpServerProcess {
        let config = format!("{}\n{more}", self.settings());
        ServerLaunchOptions::over(&TempWorkspace::new().file("toolgate.toml", config)).served()
    }
}

impl Drop for TestIdentityProvider {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
