//! What the suite starts as the client that it holds against MCP: a person, and toolgate between
//! them and the suite's server.
//!
//! The person lists what there is, calls each tool, reads each resource and prompt, loads each skill
//! unless they are only to look, answers what they are asked, and signs in where toolgate says that
//! somebody must.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use crate::shell::checkout;

/// How long the person waits for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often a page leads elsewhere.
const REDIRECTS: usize = 10;
/// How often the person signs in before they give up.
const SIGNED_IN: usize = 3;
/// What the client metadata document is that the suite's servers read.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";
/// What the names of scenarios begin with that are about skills.
const SKILLS: &str = "sep-2640-client-";

/// Uses the server at `url` through toolgate.
pub(crate) fn drive(url: &str) -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let scenario = variable("MCP_CONFORMANCE_SCENARIO");
    let context = serde_json::from_str(&variable("MCP_CONFORMANCE_CONTEXT")).unwrap_or(Value::Null);
    let folder = std::env::temp_dir().join(format!("toolgate-driven-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("toolgate.toml"), settings(url, &scenario, &context))?;
    let person = Person { folder: folder.clone(), signed_in: 0 };
    let used = match scenario.strip_prefix(SKILLS) {
        Some(what) => person.loads_skills(what != "no-prefetch"),
        None => person.uses(&context),
    };
    std::fs::remove_dir_all(&folder)?;
    used
}

/// The settings by which toolgate is put before `url`.
fn settings(url: &str, scenario: &str, context: &Value) -> String {
    let mut settings = format!("[upstream.it]\nurl = {url:?}\nprefix = \"\"\n");
    let known = |name: &str| context[name].as_str();
    let mut id = known("client_id");
    let secret = known("client_secret");
    if scenario == "auth/basic-cimd" {
        id = Some(DOCUMENT);
    }
    if let Some(id) = id {
        settings += &format!("[upstream.it.oauth]\nclient_id = {id:?}\n");
        if let Some(key) = known("private_key_pem") {
            settings += &format!("client_key = {key:?}\n");
        }
        if let Some(secret) = secret {
            settings += &format!("client_secret = {secret:?}\n");
        }
        if scenario.starts_with("auth/client-credentials") {
            settings += "grant = \"client_credentials\"\n";
        }
        // Who has a secret knows whom it is for.
        if ["client_secret", "private_key_pem"].into_iter().any(|name| known(name).is_some()) {
            settings += &format!("issuer = {:?}\n", issuer(url).unwrap_or_default());
        }
    }
    settings
}

/// Who gives tokens for the server at `url`, as whoever configures toolgate would know.
fn issuer(url: &str) -> Option<String> {
    let (host, path) = url.strip_prefix("http://")?.split_once('/')?;
    let at = format!("http://{host}/.well-known/oauth-protected-resource");
    [format!("{at}/{path}"), at].iter().find_map(|at| {
        let (_, body) = get(at).ok()?;
        let metadata: Value = serde_json::from_str(&body).ok()?;
        Some(metadata["authorization_servers"][0].as_str()?.to_owned())
    })
}

struct Person {
    folder: PathBuf,
    signed_in: usize,
}

impl Person {
    fn toolgate(&self, words: &[&str]) -> Command {
        let mut command = Command::new(checkout().join("target/debug/toolgate"));
        command.args(words).current_dir(&self.folder);
        command.env("HOME", &self.folder).env_remove("XDG_STATE_HOME");
        command.env_remove("XDG_CACHE_HOME");
        command.env("TOOLGATE_CONFIG", self.folder.join("toolgate.toml"));
        command.env("TOOLGATE_TOOLS_ALLOW", "it.*,*").env("TOOLGATE_AUDIT_TO", "off");
        command
    }

    /// Uses all there is.
    fn uses(mut self, context: &Value) -> anyhow::Result<()> {
        let mut session = Session::begin(self.toolgate(&["stdio"]))?;
        let mut tools = session.upstream_tools()?;
        while tools.is_empty() && self.signed_in < SIGNED_IN && session.wants_sign_in() {
            self.signs_in()?;
            session = Session::begin(self.toolgate(&["stdio"]))?;
            tools = session.upstream_tools()?;
        }
        for (tool, arguments) in calls(&tools, context) {
            let mut answer = session.call(&tool, &arguments)?;
            while wants_sign_in(&answer.to_string()) && self.signed_in < SIGNED_IN {
                self.signs_in()?;
                answer = session.call(&tool, &arguments)?;
            }
            eprintln!("{tool}: {answer}");
        }
        let listed = session.ask("resources/list", &json!({}))?;
        for resource in listed["result"]["resources"].as_array().into_iter().flatten() {
            let uri = resource["uri"].as_str().unwrap_or_default();
            if !uri.starts_with("toolgate") && !uri.starts_with("file:") {
                session.ask("resources/read", &json!({ "uri": uri }))?;
            }
        }
        let listed = session.ask("prompts/list", &json!({}))?;
        for prompt in listed["result"]["prompts"].as_array().into_iter().flatten() {
            session.ask("prompts/get", &json!({ "name": prompt["name"] }))?;
        }
        Ok(())
    }

    /// Lists the skills of the upstream, and reads all files of each, the first one first, as long
    /// as that is answered.
    fn loads_skills(self, loads: bool) -> anyhow::Result<()> {
        let mut session = Session::stateless(self.toolgate(&["stdio"]))?;
        let listed = session.ask("skills/list", &json!({}))?;
        let skills = listed["result"]["skills"].as_array().cloned().unwrap_or_default();
        let theirs = |skill: &&Value| skill["frontmatter"]["name"] != "toolgate";
        for skill in skills.iter().filter(theirs).filter(|_| loads) {
            let files = skill["resources"].as_array().into_iter().flatten();
            let files = files.map(|file| &file["uri"]).filter(|uri| **uri != skill["uri"]);
            for uri in std::iter::once(&skill["uri"]).chain(files) {
                let answer = session.ask("resources/read", &json!({ "uri": uri }))?;
                eprintln!("{uri}: {answer}");
                if answer.get("error").is_some() {
                    break;
                }
            }
        }
        ensure!(skills.iter().any(|skill| theirs(&skill)), "no skills are listed: {listed}");
        Ok(())
    }

    /// Signs in, on the page that toolgate prints.
    fn signs_in(&mut self) -> anyhow::Result<()> {
        self.signed_in += 1;
        let mut login = self.toolgate(&["login", "it", "--no-browser", "--wait", "5"]);
        let mut login = login.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut page = String::new();
        BufReader::new(login.stdout.take().context("a pipe")?).read_line(&mut page)?;
        if !page.trim().is_empty() {
            browse(page.trim())?;
        }
        let ended = login.wait()?;
        ensure!(ended.success(), "the sign-in failed");
        Ok(())
    }
}

fn wants_sign_in(text: &str) -> bool {
    text.contains("toolgate login it")
}

/// The calls of each tool: those that the suite asks for, or one that the tool's schema allows.
fn calls(tools: &[Value], context: &Value) -> Vec<(String, Value)> {
    if let Some(wanted) = context["toolCalls"].as_array() {
        let call = |call: &Value| {
            let mut arguments = call["arguments"].clone();
            // An argument that is null is none to the suite's server, whose schema allows no null:
            // what is against a schema is not sent.
            if let Some(all) = arguments.as_object_mut() {
                all.retain(|_, value| !value.is_null());
            }
            (call["name"].as_str().unwrap_or_default().to_owned(), arguments)
        };
        return wanted.iter().map(call).collect();
    }
    let named = |tool: &Value| tool["name"].as_str().unwrap_or_default().to_owned();
    // One tool is to be handed another's schema.
    let schemas: Vec<_> =
        tools.iter().filter(|it| it["inputSchema"]["$defs"].is_object()).collect();
    tools
        .iter()
        .map(|tool| {
            let mut arguments = some_arguments(&tool["inputSchema"]);
            if let Some(other) = schemas.iter().find(|other| named(other) != named(tool))
                && arguments.get("schema").is_some()
            {
                arguments["schema"] = other["inputSchema"].clone();
            }
            (named(tool), arguments)
        })
        .collect()
}

/// Something that `schema` allows.
fn some_arguments(schema: &Value) -> Value {
    let mut some = Map::new();
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_needed = required.iter().any(|it| *it == name) || name == "schema";
        if is_needed {
            some.insert(name.clone(), some_value(property));
        }
    }
    Value::Object(some)
}

fn some_value(schema: &Value) -> Value {
    if let Some(one) = schema.get("default").or_else(|| schema["enum"].get(0)) {
        return one.clone();
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("string") => json!("some"),
        _ => json!({}),
    }
}

/// A session with toolgate, over pipes.
struct Session {
    child: Child,
    input: ChildStdin,
    said: Receiver<Value>,
    log: Receiver<String>,
    next: u64,
    /// What each request says of itself, where there is no handshake.
    meta: Option<Value>,
}

impl Session {
    fn begin(command: Command) -> anyhow::Result<Self> {
        let mut session = Self::open(command)?;
        let capabilities = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
        session.ask(
            "initialize",
            &json!({
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": { "name": "a person", "version": "1" },
            }),
        )?;
        session.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(session)
    }

    /// Without a session, of the revision that has skills.
    fn stateless(command: Command) -> anyhow::Result<Self> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": { "name": "a person", "version": "1" },
        });
        let mut session = Self::open(command)?;
        session.meta = Some(meta);
        Ok(session)
    }

    fn open(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (tell, said) = channel();
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
        });
        let (tell, log) = channel();
        let errors = BufReader::new(child.stderr.take().context("a pipe")?);
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("{line}");
                let _ = tell.send(line);
            }
        });
        let input = child.stdin.take().context("a pipe")?;
        Ok(Self { child, input, said, log, next: 0, meta: None })
    }

    /// Whether toolgate has said that somebody must sign in.
    fn wants_sign_in(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(2);
        while let Ok(line) = self.log.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if wants_sign_in(&line) {
                return true;
            }
        }
        false
    }

    /// The tools that are not toolgate's own.
    fn upstream_tools(&mut self) -> anyhow::Result<Vec<Value>> {
        let own =
            ["files_", "exec_", "git_", "ci_", "search_", "jobs_", "assets_", "docs_", "results_"];
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let listed = self.ask("tools/list", &params)?;
            let page = listed["result"]["tools"].as_array().cloned().unwrap_or_default();
            tools.extend(page.into_iter().filter(|tool| {
                let name = tool["name"].as_str().unwrap_or_default();
                !own.iter().any(|own| name.starts_with(own))
            }));
            cursor = listed["result"]["nextCursor"].clone();
            if cursor.is_null() {
                return Ok(tools);
            }
        }
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> anyhow::Result<Value> {
        self.ask("tools/call", &json!({ "name": tool, "arguments": arguments }))
    }

    /// Asks, and answers what is asked meanwhile.
    fn ask(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.next += 1;
        let id = self.next;
        let mut params = params.clone();
        if let Some(meta) = &self.meta {
            params["_meta"] = meta.clone();
        }
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let said = self.said.recv_timeout(PATIENCE);
            let said = said.with_context(|| format!("`{method}` got no response"))?;
            match (said["method"].as_str(), &said["id"]) {
                (None, of) if *of == json!(id) => return Ok(said),
                (Some(asked), of) if !of.is_null() => {
                    let result = answer(asked, &said["params"]);
                    self.say(&json!({ "jsonrpc": "2.0", "id": of, "result": result }))?;
                }
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &Value) -> anyhow::Result<()> {
        writeln!(self.input, "{message}").context("toolgate does not read its input")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A server that is told to stop ends what it began elsewhere.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// What the person answers.
fn answer(method: &str, params: &Value) -> Value {
    match method {
        "elicitation/create" => {
            let properties = params["requestedSchema"]["properties"].as_object();
            let filled = properties.into_iter().flatten();
            let filled: Map<_, _> =
                filled.map(|(name, schema)| (name.clone(), some_value(schema))).collect();
            json!({ "action": "accept", "content": filled })
        }
        "sampling/createMessage" => json!({
            "role": "assistant", "model": "none",
            "content": { "type": "text", "text": "some" },
        }),
        "roots/list" => json!({ "roots": [] }),
        _ => json!({}),
    }
}

/// Goes to `page`, and wherever it leads.
fn browse(page: &str) -> anyhow::Result<()> {
    let mut at = page.to_owned();
    for _ in 0..REDIRECTS {
        let (head, _) = get(&at)?;
        let host = at.trim_start_matches("http://").split('/').next().unwrap_or_default();
        let next = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        match next {
            Some(next) if next.starts_with('/') => at = format!("http://{host}{next}"),
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
    bail!("{page} redirects too often")
}

/// The head and the body of what is at `page`.
fn get(page: &str) -> anyhow::Result<(String, String)> {
    let rest = page.strip_prefix("http://").context("not a page of this machine")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.to_owned(), body.to_owned()))
}

/// How the suite is told to start this.
pub(super) fn command(xtask: &Path) -> String {
    format!("{} conformance-driver", xtask.display())
}
