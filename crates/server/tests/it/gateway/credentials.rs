//! What is said to an upstream over HTTP, and to nobody else.

use std::process::Command;

use serde_json::{Value, json};

use super::real::{Beside, free_port, listens, tool};
use super::{checkout, launch, text};
use crate::support::{Client, MODERN, Post, Served, Wire, Workspace, call, keys_of};

/// A server that tells what is said to it, at the URL, and sends on elsewhere.
struct Heard {
    url: String,
    away: String,
    _server: Beside,
}

impl Heard {
    fn start(elsewhere: &str) -> Self {
        let port = free_port();
        let mut command = Command::new(tool("upstreams/bin/python"));
        command.arg(checkout().join("tests/upstreams/heard.py")).arg(port.to_string());
        let (server, _) = Beside::begin(command.arg(elsewhere), "Uvicorn running");
        let at = format!("http://127.0.0.1:{port}");
        let url = format!("{at}/mcp");
        let away = format!("{at}/away");
        listens(&url);
        Self { url, away, _server: server }
    }
}

/// The headers that the upstream `name` hears with a call of Ada's, who says more than her key.
#[track_caller]
fn heard(served: &Served, name: &str) -> Value {
    let post = Post::mcp(&call(1, &format!("{name}_heard"), json!({})));
    let post = post.with("authorization", "Bearer ada-key").with("cookie", "session=ada-cookie");
    let post = post.with("x-other", "ada-header");
    serde_json::from_str(text(&served.send(&post).message())).unwrap()
}

#[test]
fn an_upstream_hears_its_own_headers_and_nothing_of_what_a_caller_is_let_in_with() {
    let one = Heard::start("http://127.0.0.1:1/");
    let other = Heard::start("http://127.0.0.1:1/");
    let settings = format!(
        "[upstream.one]\nurl = {:?}\nheaders = {{ X-Api-Key = \"${{ONE_KEY}}\" }}\n\
         [upstream.two]\nurl = {:?}\n{}",
        one.url,
        other.url,
        keys_of(&["ada"]),
    );
    let workspace = Workspace::new().file("toolgate.toml", settings);
    let served = launch(&workspace).env("ONE_KEY", "the-key-of-one").served();
    let one = heard(&served, "one");
    let two = heard(&served, "two");
    assert_eq!(one["x-api-key"], "the-key-of-one", "{one}");
    for (said, hers) in [(&one, false), (&two, false)] {
        assert_eq!(said.to_string().contains("ada"), hers, "{said}");
    }
    assert!(two.get("x-api-key").is_none() && two.get("authorization").is_none(), "{two}");
}

#[test]
fn an_upstream_that_sends_on_elsewhere_is_not_followed() {
    let other = Heard::start("http://127.0.0.1:1/");
    let sends_on = Heard::start(&other.url);
    let settings = format!(
        "[upstream.away]\nurl = {:?}\nheaders = {{ X-Api-Key = \"secret\" }}\nstart_ms = 5000\n",
        sends_on.away
    );
    let workspace = Workspace::new().file("toolgate.toml", settings);
    let mut client = Client::open(Wire::Http(launch(&workspace).served()), MODERN, json!({}));
    let listed = super::names(&mut client);
    assert!(!listed.iter().any(|name| name.starts_with("away_")), "{listed:?}");
    let log = client.server().log();
    assert!(log.contains("307"), "{log}");
}
