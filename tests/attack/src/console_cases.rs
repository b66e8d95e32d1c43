//! Attack cases about the web console: hostile texts on its pages, and requests that other sites
//! cause.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::attempt::{AttackAttempt, AttackCallResult, CallResults};
use super::client::AttackClient;
use super::http::{AttackHttpRequest, AttackHttpResponse};
use super::perform::wait_until;
use super::server::AttackedServer;

/// Time limit of an HTTP response.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Text that runs a script if a console page contains it unescaped.
const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>";
/// Text that runs a script if a console page contains it unescaped. It is also a valid file name.
const HOSTILE_NAME: &str = "<img src=x onerror=alert(1)>.txt";
/// Starts of both hostile texts, escaped as a page must show them.
const ESCAPED: [&str; 2] = ["&lt;script&gt;alert(1)", "&lt;img src=x"];
/// Name of the console's session cookie.
const COOKIE: &str = "toolgate_console";

/// Prepares the settings for an attack case about the console.
pub(super) fn prepare(attempt: &mut AttackAttempt) {
    if attempt.case.id == "M91" {
        attempt.launch.config = format!(
            "[command.\"attack.makes\"]\nabout = {about}\nprogram = \"touch\"\n\
             argv = [{name}]\nartefacts = [\"*.txt\"]\n\
             [upstream.evil]\ncommand = [\"/bin/sh\", \"-c\", \"echo '{HOSTILE_NAME}' >&2; exit 1\"]\n",
            about = json!(HOSTILE),
            name = json!(HOSTILE_NAME),
        );
    }
}

/// Performs an attack case about the console against a running server.
pub(super) fn perform(
    attempt: &mut AttackAttempt,
    server: &AttackedServer,
    client: &mut AttackClient,
) -> CallResults {
    let addr = server.addr.context("no address")?;
    let person = SignedInPerson::sign_in(attempt, addr)?;
    match attempt.case.id.as_str() {
        "M90" => show_hostile_calls(attempt, client, &person)?,
        "M91" => show_hostile_results(attempt, client, &person)?,
        "M92" => act_from_another_site(attempt, &person)?,
        "M93" => check_headers(attempt, &person)?,
        "M95" => show_hostile_change(attempt, client, &person)?,
        // M94
        _ => fix_a_session(attempt, &person)?,
    }
    Ok(vec![AttackCallResult { is_judged: true, ..AttackCallResult::default() }])
}

/// Person who is signed in to the web console.
struct SignedInPerson {
    addr: SocketAddr,
    /// Session cookie, as `NAME=VALUE`.
    cookie: String,
}

impl SignedInPerson {
    /// Signs in with the one-time link that the command `toolgate console` prints.
    fn sign_in(attempt: &AttackAttempt, addr: SocketAddr) -> anyhow::Result<Self> {
        let token = one_time_token(attempt, addr)?;
        let answer = form("/console/sign-in", &[("token", &token)]).send(addr, TIMEOUT)?;
        let cookie = answer.header("set-cookie").context("the link does not sign in")?;
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(Self { addr, cookie })
    }

    fn send(&self, request: AttackHttpRequest) -> anyhow::Result<AttackHttpResponse> {
        request.with_header("Cookie", &self.cookie).send(self.addr, TIMEOUT)
    }

    /// Requests the console page at `path` and returns its text.
    fn page(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.send(AttackHttpRequest::get(path))?;
        ensure!(answer.status == 200, "{path}: status {}", answer.status);
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Returns the token against CSRF that the forms of this session contain.
    fn csrf(&self) -> anyhow::Result<String> {
        let page = self.page("/console/settings")?;
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").context("no form")?;
        Ok(rest.split('"').next().unwrap_or_default().to_owned())
    }
}

/// Runs `toolgate console` and returns the token in the link that it prints.
fn one_time_token(attempt: &AttackAttempt, addr: SocketAddr) -> anyhow::Result<String> {
    let url = format!("http://{addr}");
    let words = ["console", "--no-browser", "--url", &url];
    let mut command = attempt.launch.command(&attempt.folders, &words)?;
    let output = command.stdin(Stdio::null()).output()?;
    let link = String::from_utf8_lossy(&output.stdout).into_owned();
    let token = link.trim().split_once("token=").map(|(_, token)| token.to_owned());
    token.with_context(|| format!("no link: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Returns a POST request with `fields`, as a browser sends a form.
fn form(path: &str, fields: &[(&str, &str)]) -> AttackHttpRequest {
    let mut body = String::new();
    for (name, value) in fields {
        body += &format!("&{}=", encode(name));
        body += &encode(value);
    }
    AttackHttpRequest::post(path, body.trim_start_matches('&').as_bytes().to_vec())
        .with_header("Content-Type", "application/x-www-form-urlencoded")
}

/// Percent-encodes each byte of `text` for a form or a URL.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        let _ = write!(encoded, "%{byte:02X}");
    }
    encoded
}

/// Records a failure for each page in which a hostile text is unescaped, and a failure if fewer
/// than `shown_min` pages show one.
fn check_pages(attempt: &mut AttackAttempt, pages: &[(String, String)], shown_min: usize) {
    for (path, page) in pages {
        if page.contains("<script>") || page.contains("<img") || page.contains("\"'>") {
            attempt.failures.push(format!("{path} interprets a hostile text"));
        }
    }
    let is_shown = |page: &str| ESCAPED.iter().any(|text| page.contains(text));
    let shown = pages.iter().filter(|(_, page)| is_shown(page)).count();
    if shown < shown_min {
        attempt.failures.push(format!("the harness: only {shown} pages show the hostile text"));
    }
}

/// Attack case M90: makes calls with hostile paths and names, and checks the pages that show their
/// records.
fn show_hostile_calls(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
    person: &SignedInPerson,
) -> anyhow::Result<()> {
    let file = json!({ "path": "hostile.html", "content": HOSTILE, "overwrite": true });
    client.call("files.write", &file)?;
    client.call("files.read", &json!({ "path": HOSTILE }))?;
    let unknown = client.codec.call_request("unknown", &json!({ "path": HOSTILE }));
    client.send_and_wait(&unknown)?;
    let shows = |path: &str| person.page(path).is_ok_and(|page| page.contains(ESCAPED[0]));
    if !wait_until(TIMEOUT, || shows("/console/calls")) {
        attempt.failures.push("the harness: the calls are not shown".to_owned());
    }
    let calls = person.page("/console/calls")?;
    let links = calls.split("href=\"").skip(1).filter_map(|link| link.split('"').next());
    let records = links.filter(|link| link.starts_with("/console/calls/")).map(str::to_owned);
    let query = encode(HOSTILE);
    let mut pages = Vec::new();
    let others = [
        "/".to_owned(),
        "/console/calls".to_owned(),
        format!("/console/calls?caller={query}&tool={query}&outcome={query}&subject={query}"),
        format!("/console/policy?caller={query}&tool={query}&input={query}"),
        format!("/console/tools?q={query}"),
        format!("/console/sign-in?token={query}"),
    ];
    for path in records.chain(others) {
        let page = person.page(&path)?;
        pages.push((path, page));
    }
    let csrf = person.csrf()?;
    let path = "/console/tools/files.read/call";
    let call = form(path, &[("csrf", &csrf), ("arg.path", "hostile.html")]);
    let result = person.send(call)?;
    pages.push((path.to_owned(), String::from_utf8_lossy(&result.body).into_owned()));
    check_pages(attempt, &pages, 5);
    Ok(())
}

/// Attack case M91: uses an upstream with a hostile error text and a job that writes a file with a
/// hostile name, and checks the pages.
fn show_hostile_results(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
    person: &SignedInPerson,
) -> anyhow::Result<()> {
    let unknown = client.codec.call_request("evil_x", &json!({}));
    client.send_and_wait(&unknown)?;
    let body = json!({ "tool": "attack.makes", "arguments": {} }).to_string().into_bytes();
    let job = AttackHttpRequest::post("/v1/jobs", body).send(person.addr, TIMEOUT)?;
    let job: Value = serde_json::from_slice(&job.body)?;
    let id = job["job_id"].as_str().with_context(|| format!("no job: {job}"))?;
    let path = format!("/console/jobs/{id}");
    let shows = |path: &str| person.page(path).is_ok_and(|page| page.contains(ESCAPED[1]));
    for path in [path.as_str(), "/console/upstreams"] {
        if !wait_until(TIMEOUT, || shows(path)) {
            attempt.failures.push(format!("the harness: {path} does not show the hostile text"));
        }
    }
    let mut pages = Vec::new();
    let tool = "/console/tools/attack.makes".to_owned();
    for path in [path, tool, "/".to_owned(), "/console/upstreams".to_owned()] {
        let page = person.page(&path)?;
        pages.push((path, page));
    }
    check_pages(attempt, &pages, 3);
    let file = format!("/console/jobs/{id}/files/{}", encode(HOSTILE_NAME));
    let file = person.send(AttackHttpRequest::get(&file))?;
    let disposition = file.header("content-disposition").unwrap_or_default();
    if file.status != 200 || !disposition.starts_with("attachment") {
        attempt.failures.push(format!("the file is no download: {} {disposition}", file.status));
    }
    Ok(())
}

/// Attack case M92: sends forms and scripts of another site that use the person's session.
fn act_from_another_site(
    attempt: &mut AttackAttempt,
    person: &SignedInPerson,
) -> anyhow::Result<()> {
    let path = "/console/tools/files.write/call";
    let write = [("arg.path", "csrf.txt"), ("arg.content", "x")];
    let with_token = |token: &str| form(path, &[&[("csrf", token)][..], &write].concat());
    let csrf = person.csrf()?;
    let other = SignedInPerson::sign_in(attempt, person.addr)?.csrf()?;
    let foreign = "http://evil.example";
    let text = with_token(&csrf).with_header("Content-Type", "text/plain");
    let attacks = [
        ("no token", form(path, &write)),
        ("an empty token", with_token("")),
        ("the token of another session", with_token(&other)),
        ("another origin", with_token(&csrf).with_header("Origin", foreign)),
        ("no origin", with_token(&csrf).with_header("Origin", "null")),
        ("another site", with_token(&csrf).with_header("Sec-Fetch-Site", "cross-site")),
        ("another media type", text),
        ("an address", AttackHttpRequest::get(&format!("{path}?arg.path=csrf.txt&arg.content=x"))),
    ];
    for (name, request) in attacks {
        let answer = person.send(request)?;
        if answer.status < 400 {
            attempt.failures.push(format!("{name}: status {}", answer.status));
        }
        if attempt.folders.ws.join("csrf.txt").exists() {
            attempt.failures.push(format!("{name}: the file was written"));
        }
    }
    let link = format!("http://{}", person.addr);
    let own = person.send(with_token(&csrf).with_header("Origin", &link))?;
    if own.status != 200 || !attempt.folders.ws.join("csrf.txt").exists() {
        attempt.failures.push(format!("the harness: the own form fails: status {}", own.status));
    }
    std::fs::remove_file(attempt.folders.ws.join("csrf.txt"))?;
    Ok(())
}

/// Attack case M93: checks the headers that keep other sites from framing pages, and caches from
/// storing them.
fn check_headers(attempt: &mut AttackAttempt, person: &SignedInPerson) -> anyhow::Result<()> {
    for path in
        ["/", "/console/calls", "/console/tools/files.write", "/console/sign-in", "/console/x"]
    {
        let answer = person.send(AttackHttpRequest::get(path))?;
        let has =
            |name: &str, part: &str| answer.header(name).is_some_and(|value| value.contains(part));
        let is_safe = has("x-frame-options", "DENY")
            && has("content-security-policy", "frame-ancestors 'none'")
            && has("content-security-policy", "default-src 'none'")
            && !has("content-security-policy", "unsafe")
            && has("cache-control", "no-store")
            && has("x-content-type-options", "nosniff");
        if !is_safe {
            attempt.failures.push(format!("{path}: a header is missing"));
        }
    }
    Ok(())
}

/// Attack case M95: makes an edit with a hostile text, and checks the page that shows its arguments
/// and diff.
fn show_hostile_change(
    attempt: &mut AttackAttempt,
    client: &mut AttackClient,
    person: &SignedInPerson,
) -> anyhow::Result<()> {
    let file = json!({ "path": "hostile.html", "content": HOSTILE, "overwrite": true });
    client.call("files.write", &file)?;
    let edits = json!([{ "old": HOSTILE, "new": format!("{HOSTILE}!") }]);
    client.call("files.edit", &json!({ "path": "hostile.html", "edits": edits }))?;
    let list = "/console/calls?tool=files.edit";
    if !wait_until(TIMEOUT, || person.page(list).is_ok_and(|page| page.contains("lines</a>"))) {
        attempt.failures.push("the harness: the changed lines are not shown".to_owned());
    }
    let calls = person.page(list)?;
    let mut links = calls.split("href=\"").skip(1).filter_map(|link| link.split('"').next());
    let call = links.find(|link| link.starts_with("/console/calls/"));
    let call = call.context("the list has no link to the call")?.to_owned();
    let page = person.page(&call)?;
    check_pages(attempt, &[(call, page), (list.to_owned(), calls)], 1);
    Ok(())
}

/// Attack case M94: signs in with a cookie and a redirect target that the attacker chose (session
/// fixation).
fn fix_a_session(attempt: &mut AttackAttempt, person: &SignedInPerson) -> anyhow::Result<()> {
    let chosen = format!("{COOKIE}={}", "ab".repeat(32));
    let token = one_time_token(attempt, person.addr)?;
    let sign_in = form("/console/sign-in", &[("token", &token), ("next", "//evil.example/")]);
    let answer = sign_in.with_header("Cookie", &chosen).send(person.addr, TIMEOUT)?;
    if answer.header("set-cookie").is_none_or(|cookie| cookie.starts_with(&chosen)) {
        attempt.failures.push("the chosen cookie became the session".to_owned());
    }
    if answer.header("location") != Some("/") {
        attempt.failures.push("the page that signs in redirects elsewhere".to_owned());
    }
    let page =
        AttackHttpRequest::get("/").with_header("Cookie", &chosen).send(person.addr, TIMEOUT)?;
    if page.status == 200 {
        attempt.failures.push("the chosen cookie opens the console".to_owned());
    }
    let again = form("/console/sign-in", &[("token", &token)]).send(person.addr, TIMEOUT)?;
    if again.status < 400 {
        attempt.failures.push("a link signs in twice".to_owned());
    }
    for path in ["//evil.example/", "/console//evil.example/", "/console/x?next=//evil.example/"] {
        let answer = AttackHttpRequest::get(path).send(person.addr, TIMEOUT)?;
        let location = answer.header("location").unwrap_or("/");
        if !location.starts_with('/') || location.starts_with("//") {
            attempt.failures.push(format!("{path} redirects to {location}"));
        }
    }
    Ok(())
}
