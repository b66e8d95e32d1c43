//! Client that the suite tests: a simulated person who uses the suite's server through toolgate.
//!
//! The person lists what the server offers, calls each tool, and reads each resource and prompt.
//! They load each skill unless the scenario only lists skills. They answer requests of the server,
//! and sign in if toolgate asks for a login.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};

use crate::shell::checkout;

/// The longest wait for a response of toolgate.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest number of pages that a sign-in visits.
const PAGES_MAX: usize = 10;
/// Largest number of sign-ins in one scenario.
const SIGN_INS_MAX: usize = 3;
/// URL of the client metadata document that the suite's servers accept.
const CLIENT_METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";
/// Prefix of the names of scenarios about skills.
const SKILLS_PREFIX: &str = "sep-2640-client-";

/// Uses the suite's server at `url` through toolgate, as the scenario requires.
pub(crate) fn drive(url: &str) -> anyhow::Result<()> {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let scenario = variable("MCP_CONFORMANCE_SCENARIO");
    let context = serde_json::from_str(&variable("MCP_CONFORMANCE_CONTEXT")).unwrap_or(Value::Null);
    let folder = std::env::temp_dir().join(format!("toolgate-driven-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("toolgate.toml"), settings(url, &scenario, &context))?;
    let person = SimulatedUser { folder: folder.clone(), sign_ins: 0 };
    let outcome = match scenario.strip_prefix(SKILLS_PREFIX) {
        Some(kind) => person.load_skills(kind != "no-prefetch"),
        None => person.use_server(&context),
    };
    std::fs::remove_dir_all(&folder)?;
    outcome
}

/// Returns the settings of a toolgate whose upstream is the suite's server at `url`.
fn settings(url: &str, scenario: &str, context: &Value) -> String {
    let mut settings = format!("[upstream.it]\nurl = {url:?}\nprefix = \"\"\n");
    let context_text = |name: &str| context[name].as_str();
    let mut id = context_text("client_id");
    let secret = context_text("client_secret");
    if scenario == "auth/basic-cimd" {
        id = Some(CLIENT_METADATA_URL);
    }
    if let Some(id) = id {
        settings += &format!("[upstream.it.oauth]\nclient_id = {id:?}\n");
        if let Some(key) = context_text("private_key_pem") {
            settings += &format!("client_key = {key:?}\n");
        }
        if let Some(secret) = secret {
            settings += &format!("client_secret = {secret:?}\n");
        }
        if scenario.starts_with("auth/client-credentials") {
            settings += "grant = \"client_credentials\"\n";
        }
        // A client that has a secret knows the issuer that it belongs to.
        if ["client_secret", "private_key_pem"].into_iter().any(|name| context_text(name).is_some())
        {
            settings += &format!("issuer = {:?}\n", issuer(url).unwrap_or_default());
        }
    }
    settings
}

/// Returns the issuer of tokens for the server at `url`, which a person would configure in
/// toolgate.
fn issuer(url: &str) -> Option<String> {
    let (host, path) = url.strip_prefix("http://")?.split_once('/')?;
    let at = format!("http://{host}/.well-known/oauth-protected-resource");
    [format!("{at}/{path}"), at].iter().find_map(|at| {
        let (_, body) = get(at).ok()?;
        let metadata: Value = serde_json::from_str(&body).ok()?;
        Some(metadata["authorization_servers"][0].as_str()?.to_owned())
    })
}

/// Simulated person who uses toolgate as its client.
struct SimulatedUser {
    /// Working folder with the settings and the state of toolgate.
    folder: PathBuf,
    sign_ins: usize,
}

impl SimulatedUser {
    /// Returns a command that runs toolgate with `args` in the working folder of the simulated
    /// person.
    fn toolgate_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(checkout().join("target/debug/toolgate"));
        command.args(args).current_dir(&self.folder);
        command.env("HOME", &self.folder).env_remove("XDG_STATE_HOME");
        command.env_remove("XDG_CACHE_HOME");
        command.env("TOOLGATE_CONFIG", self.folder.join("toolgate.toml"));
        command.env("TOOLGATE_TOOLS_ALLOW", "it.*,*").env("TOOLGATE_AUDIT_TO", "off");
        command
    }

    /// Calls every tool of the suite's server, and reads all its resources and prompts.
    fn use_server(mut self, context: &Value) -> anyhow::Result<()> {
        let mut session = StdioMcpSession::begin(self.toolgate_command(&["stdio"]))?;
        let mut tools = session.upstream_tools()?;
        while tools.is_empty() && self.sign_ins < SIGN_INS_MAX && session.wants_sign_in() {
            self.sign_in()?;
            session = StdioMcpSession::begin(self.toolgate_command(&["stdio"]))?;
            tools = session.upstream_tools()?;
        }
        for (tool, arguments) in calls(&tools, context) {
            let mut answer = session.call(&tool, &arguments)?;
            while wants_sign_in(&answer.to_string()) && self.sign_ins < SIGN_INS_MAX {
                self.sign_in()?;
                answer = session.call(&tool, &arguments)?;
            }
            eprintln!("{tool}: {answer}");
        }
        let listed = session.request("resources/list", &json!({}))?;
        for resource in listed["result"]["resources"].as_array().into_iter().flatten() {
            let uri = resource["uri"].as_str().unwrap_or_default();
            if !uri.starts_with("toolgate") && !uri.starts_with("file:") {
                session.request("resources/read", &json!({ "uri": uri }))?;
            }
        }
        let listed = session.request("prompts/list", &json!({}))?;
        for prompt in listed["result"]["prompts"].as_array().into_iter().flatten() {
            session.request("prompts/get", &json!({ "name": prompt["name"] }))?;
        }
        Ok(())
    }

    /// Lists the skills of the suite's server. If `loads` is true, reads the files of each skill
    /// until a read fails, first the page of the skill.
    fn load_skills(self, loads: bool) -> anyhow::Result<()> {
        let mut session = StdioMcpSession::stateless(self.toolgate_command(&["stdio"]))?;
        let listed = session.request("skills/list", &json!({}))?;
        let skills = listed["result"]["skills"].as_array().cloned().unwrap_or_default();
        let is_upstream_skill = |skill: &&Value| skill["frontmatter"]["name"] != "toolgate";
        for skill in skills.iter().filter(is_upstream_skill).filter(|_| loads) {
            let files = skill["resources"].as_array().into_iter().flatten();
            let files = files.map(|file| &file["uri"]).filter(|uri| **uri != skill["uri"]);
            for uri in std::iter::once(&skill["uri"]).chain(files) {
                let answer = session.request("resources/read", &json!({ "uri": uri }))?;
                eprintln!("{uri}: {answer}");
                if answer.get("error").is_some() {
                    break;
                }
            }
        }
        ensure!(
            skills.iter().any(|skill| is_upstream_skill(&skill)),
            "no skills are listed: {listed}"
        );
        Ok(())
    }

    /// Runs `toolgate login`, and signs in on the page that it prints.
    fn sign_in(&mut self) -> anyhow::Result<()> {
        self.sign_ins += 1;
        let mut login = self.toolgate_command(&["login", "it", "--no-browser", "--wait", "5"]);
        let mut login = login.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut page = String::new();
        BufReader::new(login.stdout.take().context("a pipe")?).read_line(&mut page)?;
        if !page.trim().is_empty() {
            browse(page.trim())?;
        }
        let status = login.wait()?;
        ensure!(status.success(), "the sign-in failed");
        Ok(())
    }
}

fn wants_sign_in(text: &str) -> bool {
    text.contains("toolgate login it")
}

/// Returns the tool calls to make: those that `context` lists, or one call of each tool if it lists
/// none.
fn calls(tools: &[Value], context: &Value) -> Vec<(String, Value)> {
    if let Some(listed) = context["toolCalls"].as_array() {
        let call = |call: &Value| {
            let mut arguments = call["arguments"].clone();
            // The suite means a missing argument by null. The schema allows no null, and toolgate
            // does not send what its schema forbids.
            if let Some(all) = arguments.as_object_mut() {
                all.retain(|_, value| !value.is_null());
            }
            (call["name"].as_str().unwrap_or_default().to_owned(), arguments)
        };
        return listed.iter().map(call).collect();
    }
    let name_of = |tool: &Value| tool["name"].as_str().unwrap_or_default().to_owned();
    // One tool takes the schema of another as its argument.
    let schemas: Vec<_> =
        tools.iter().filter(|it| it["inputSchema"]["$defs"].is_object()).collect();
    tools
        .iter()
        .map(|tool| {
            let mut arguments = some_arguments(&tool["inputSchema"]);
            if let Some(other) = schemas.iter().find(|other| name_of(other) != name_of(tool))
                && arguments.get("schema").is_some()
            {
                arguments["schema"] = other["inputSchema"].clone();
            }
            (name_of(tool), arguments)
        })
        .collect()
}

/// Returns arguments that `schema` allows: its required properties, and a property `schema` if it
/// has one.
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

/// Returns a value that `schema` allows: its default, the first value of its `enum`, or a value of
/// its type.
fn some_value(schema: &Value) -> Value {
    if let Some(value) = schema.get("default").or_else(|| schema["enum"].get(0)) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("string") => json!("some"),
        _ => json!({}),
    }
}

/// MCP session with a toolgate process over pipes.
struct StdioMcpSession {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    log: Receiver<String>,
    last_id: u64,
    /// Member `_meta` of each request in a revision without a handshake. `None` in other revisions.
    meta: Option<Value>,
}

impl StdioMcpSession {
    /// Starts toolgate with `command`, and initializes an MCP session.
    fn begin(command: Command) -> anyhow::Result<Self> {
        let mut session = Self::open(command)?;
        let capabilities = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
        session.request(
            "initialize",
            &json!({
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "clientInfo": { "name": "a person", "version": "1" },
            }),
        )?;
        session.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(session)
    }

    /// Starts toolgate with `command` for requests without a handshake, in the MCP revision that
    /// has skills.
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

    /// Starts toolgate with `command`, and threads that read its output and its log.
    fn open(mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (sender, messages) = channel();
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap_or(Value::Null));
            }
        });
        let (sender, log) = channel();
        let errors = BufReader::new(child.stderr.take().context("a pipe")?);
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("{line}");
                let _ = sender.send(line);
            }
        });
        let input = child.stdin.take().context("a pipe")?;
        Ok(Self { child, input, messages, log, last_id: 0, meta: None })
    }

    /// Waits up to 2 s for a log line that a sign-in is needed. Returns true if there is one.
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

    /// Lists the tools of the upstream, without those of toolgate itself.
    fn upstream_tools(&mut self) -> anyhow::Result<Vec<Value>> {
        let own_prefixes =
            ["files_", "exec_", "git_", "ci_", "search_", "jobs_", "assets_", "docs_", "results_"];
        let mut tools = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let listed = self.request("tools/list", &params)?;
            let page = listed["result"]["tools"].as_array().cloned().unwrap_or_default();
            tools.extend(page.into_iter().filter(|tool| {
                let name = tool["name"].as_str().unwrap_or_default();
                !own_prefixes.iter().any(|prefix| name.starts_with(prefix))
            }));
            cursor = listed["result"]["nextCursor"].clone();
            if cursor.is_null() {
                return Ok(tools);
            }
        }
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> anyhow::Result<Value> {
        self.request("tools/call", &json!({ "name": tool, "arguments": arguments }))
    }

    /// Sends a request and returns its response. Answers the requests of the server that arrive
    /// meanwhile.
    fn request(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut params = params.clone();
        if let Some(meta) = &self.meta {
            params["_meta"] = meta.clone();
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = self.messages.recv_timeout(RESPONSE_TIMEOUT);
            let message = message.with_context(|| format!("`{method}` got no response"))?;
            match (message["method"].as_str(), &message["id"]) {
                (None, received) if *received == json!(id) => return Ok(message),
                (Some(requested), received) if !received.is_null() => {
                    let result = answer(requested, &message["params"]);
                    self.send(&json!({ "jsonrpc": "2.0", "id": received, "result": result }))?;
                }
                _ => {}
            }
        }
    }

    fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        writeln!(self.input, "{message}").context("toolgate does not read its input")
    }
}

impl Drop for StdioMcpSession {
    fn drop(&mut self) {
        // On SIGTERM, a server also ends its sessions with upstreams. SIGKILL would leave them
        // open.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Returns the person's answer to the request `method` of the server.
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

/// Opens the URL `page` and follows its redirects.
fn browse(page: &str) -> anyhow::Result<()> {
    let mut url = page.to_owned();
    for _ in 0..PAGES_MAX {
        let (head, _) = get(&url)?;
        let host = url.trim_start_matches("http://").split('/').next().unwrap_or_default();
        let next = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        match next {
            Some(next) if next.starts_with('/') => url = format!("http://{host}{next}"),
            Some(next) => url = next,
            None => return Ok(()),
        }
    }
    bail!("{page} redirects too often")
}

/// Requests the URL `page` over plain HTTP, and returns the head and the body of the response.
fn get(page: &str) -> anyhow::Result<(String, String)> {
    let rest = page.strip_prefix("http://").context("not a page of this machine")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.to_owned(), body.to_owned()))
}

/// Returns the command line by which the suite starts this driver. `xtask` is the path of the
/// program `xtask`.
pub(super) fn command(xtask: &Path) -> String {
    format!("{} conformance-driver", xtask.display())
}
