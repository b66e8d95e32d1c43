//! Tests of headers that are sent only to the upstream for which they are configured.

use std::process::Command;

use serde_json::{Value, json};

use super::real::{RealUpstreamServer, free_port, tool, wait_until_listening};
use super::{checkout, launch, text};
use crate::support::{
    HttpServerProcess, MODERN, TempWorkspace, TestClientTransport, TestHttpRequest, TestMcpClient,
    call, keys_of,
};

/// HTTP server with a tool that returns the headers that it received. The server redirects its URL
/// `away` to another server.
struct HeaderEchoServer {
    url: String,
    away: String,
    _server: RealUpstreamServer,
}

impl HeaderEchoServer {
    fn start(elsewhere: &str) -> Self {
        let port = free_port();
        let mut command = Command::new(tool("upstreams/bin/python"));
        command.arg(checkout().join("tests/upstreams/heard.py")).arg(port.to_string());
        let (server, _) = RealUpstreamServer::start_job(command.arg(elsewhere), "Uvicorn running");
        let at = format!("http://127.0.0.1:{port}");
        let url = format!("{at}/mcp");
        let away = format!("{at}/away");
        wait_until_listening(&url);
        Self { url, away, _server: server }
    }
}

/// Calls a tool of the upstream `name` as Ada, with additional headers. Returns the headers that
/// the upstream receives.
#[track_caller]
fn received_headers(served: &HttpServerProcess, name: &str) -> Value {
    let post = TestHttpRequest::mcp(&call(1, &format!("{name}_heard"), json!({})));
    let post = post.with("authorization", "Bearer ada-key").with("cookie", "session=ada-cookie");
    let post = post.with("x-other", "ada-header");
    serde_json::from_str(text(&served.send(&post).message())).unwrap()
}

#[test]
fn an_upstream_receives_its_own_headers_and_no_credentials_of_the_caller() {
    let one = HeaderEchoServer::start("http://127.0.0.1:1/");
    let other = HeaderEchoServer::start("http://127.0.0.1:1/");
    let settings = format!(
        "[upstream.one]\nurl = {:?}\nheaders = {{ X-Api-Key = \"${{ONE_KEY}}\" }}\n\
         [upstream.two]\nurl = {:?}\n{}",
        one.url,
        other.url,
        keys_of(&["ada"]),
    );
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).env("ONE_KEY", "the-key-of-one").served();
    let one = received_headers(&served, "one");
    let two = received_headers(&served, "two");
    assert_eq!(one["x-api-key"], "the-key-of-one", "{one}");
    for headers in [&one, &two] {
        assert!(!headers.to_string().contains("ada"), "{headers}");
    }
    assert!(two.get("x-api-key").is_none() && two.get("authorization").is_none(), "{two}");
}

#[test]
fn a_redirect_of_an_upstream_is_not_followed() {
    let other = HeaderEchoServer::start("http://127.0.0.1:1/");
    let redirecting = HeaderEchoServer::start(&other.url);
    let settings = format!(
        "[upstream.away]\nurl = {:?}\nheaders = {{ X-Api-Key = \"secret\" }}\nstart_ms = 5000\n",
        redirecting.away
    );
    let workspace = TempWorkspace::new().file("toolgate.toml", settings);
    let mut client = TestMcpClient::open(
        TestClientTransport::Http(launch(&workspace).served()),
        MODERN,
        json!({}),
    );
    let listed = super::names(&mut client);
    assert!(!listed.iter().any(|name| name.starts_with("away_")), "{listed:?}");
    let log = client.server().log();
    assert!(log.contains("307"), "{log}");
}
