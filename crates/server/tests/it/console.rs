//! Tests of the web console at `/`: signing in, pages, actions, and hostile names and output.

mod acting;
mod hostile;
mod pages;
mod recent_calls;
mod signing_in;

use std::process::Command;

use crate::support::{
    HttpServerProcess, TestHttpRequest, TestHttpResponse, binary, path, trust_config,
};

/// Simulated user who is signed in to a server's web console.
pub(crate) struct ConsoleClient<'a> {
    served: &'a HttpServerProcess,
    /// Session cookie, as `NAME=VALUE`.
    cookie: String,
}

impl<'a> ConsoleClient<'a> {
    /// Signs in with the link that `toolgate console` prints.
    pub(crate) fn with_link(served: &'a HttpServerProcess) -> Self {
        let token = one_time_token(served);
        Self::with_answer(served, &sign_in(served, &[("token", &token)]))
    }

    /// Signs in to the console with the API key `key`.
    fn with_key(served: &'a HttpServerProcess, key: &str) -> Self {
        Self::with_answer(served, &sign_in(served, &[("key", key)]))
    }

    fn with_answer(served: &'a HttpServerProcess, answer: &TestHttpResponse) -> Self {
        assert_eq!(answer.status, 303, "{answer:?}");
        assert_eq!(answer.header("location"), Some("/"));
        let cookie = answer.header("set-cookie").unwrap();
        for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        Self { served, cookie: cookie.split(';').next().unwrap().to_owned() }
    }

    fn get(&self, target: &str) -> TestHttpResponse {
        self.served.send(&TestHttpRequest::bare("GET", target).with("cookie", &self.cookie))
    }

    /// Returns the text of the page at `target`.
    #[track_caller]
    pub(crate) fn page(&self, target: &str) -> String {
        let page = self.get(target);
        assert_eq!(page.status, 200, "{page:?}");
        page.text()
    }

    /// Sends a form to the console, with the CSRF token of the session.
    pub(crate) fn post(&self, target: &str, fields: &[(&str, &str)]) -> TestHttpResponse {
        let csrf = self.csrf();
        let fields: Vec<_> = [("csrf", csrf.as_str())].iter().chain(fields).copied().collect();
        self.served.send(&form(target, &fields).with("cookie", &self.cookie))
    }

    /// Returns the CSRF token in the forms of the session.
    fn csrf(&self) -> String {
        let page = self.page("/console/settings");
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    }
}

/// Returns a POST request with `fields`, as a browser sends a form.
fn form(target: &str, fields: &[(&str, &str)]) -> TestHttpRequest {
    let encode = |text: &str| {
        let bytes = text.bytes().map(|byte| format!("%{byte:02X}"));
        bytes.collect::<String>()
    };
    let fields = fields.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    let body = fields.collect::<Vec<_>>().join("&");
    TestHttpRequest::bytes(body.as_bytes())
        .to(target)
        .malformed()
        .with("content-type", "application/x-www-form-urlencoded")
}

fn sign_in(served: &HttpServerProcess, fields: &[(&str, &str)]) -> TestHttpResponse {
    served.send(&form("/console/sign-in", fields))
}

/// Returns the one-time token in the link that `toolgate console` prints for `served`.
fn one_time_token(served: &HttpServerProcess) -> String {
    let output = command_line(served, &["--no-browser"]).output().unwrap();
    let link = String::from_utf8(output.stdout).unwrap();
    let token = link.trim().strip_prefix(&format!("http://{}/console/sign-in?token=", served.addr));
    token.unwrap_or_else(|| panic!("{link} {}", String::from_utf8_lossy(&output.stderr))).to_owned()
}

/// Returns the command `toolgate console` with `args` for the server `served`, run by the user who
/// started the server.
fn command_line(served: &HttpServerProcess, args: &[&str]) -> Command {
    let url = format!("http://{}", served.addr);
    let mut command = Command::new(binary());
    command.args(["console", "--url", &url]).args(args).current_dir(served.root()).env_clear();
    command.env("PATH", path()).env("HOME", served.home());
    trust_config(&mut command, served.root());
    command
}
