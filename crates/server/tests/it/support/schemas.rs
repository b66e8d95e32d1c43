//! Validates every MCP message of the tests against the JSON Schema of its revision.
//!
//! The schemas are in the official conformance suite, an npm package that `cargo xtask setup`
//! installs. The suite has no schema for 2024-11-05. Messages of this revision are validated
//! against the schema of the next one, which only adds definitions. Without the package, nothing is
//! validated. The tests in `mcp::schemas` check that the package is installed.
//!
//! Messages that tests send must be valid, too, unless the server answers them with an error. A
//! test that sends an invalid message that the server may accept uses
//! [`super::TestHttpRequest::malformed`] or [`super::StdioServerProcess::send_malformed`].

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use jsonschema::{Draft, Registry, RegistryBuilder, Validator};
use serde_json::{Map, Value, json};

use super::{MODERN, REVISIONS};

const PACKAGE: &str = ".tools/node/node_modules/@modelcontextprotocol/conformance/dist/index.js";

/// Methods of extensions of the newest MCP revision. MCP has no schemas for them.
const EXTENSIONS: [&str; 7] = [
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "notifications/tasks",
    "skills/list",
    "skills/get",
    "resources/directory/read",
];

/// Returns the JSON Schema of the messages of `revision`, or `None` if the package is not
/// installed.
pub(crate) fn for_revision(revision: &str) -> Option<&'static RevisionSchemas> {
    static ALL: OnceLock<Mutex<HashMap<String, Option<&'static RevisionSchemas>>>> =
        OnceLock::new();
    let mut all = ALL.get_or_init(Mutex::default).lock().unwrap();
    let read = || RevisionSchemas::read(revision).map(|schemas| &*Box::leak(Box::new(schemas)));
    *all.entry(revision.to_owned()).or_insert_with(read)
}

/// Checks a message from a client against the schema of `revision`. Panics if it is invalid.
#[track_caller]
pub(crate) fn check_to_server(revision: &str, message: &Value) {
    let faults =
        for_revision(revision).map(|schemas| schemas.client_faults(message)).unwrap_or_default();
    assert!(faults.is_empty(), "invalid message from a test in {revision}: {faults:#?}\n{message}");
}

/// Checks a message from the server against the schema of `revision`. Panics if it is invalid.
/// `method` is the method of the request that the message answers, if any.
#[track_caller]
pub(crate) fn check_from_server(revision: &str, method: Option<&str>, message: &Value) {
    let faults = for_revision(revision)
        .map(|schemas| schemas.server_faults(method, message))
        .unwrap_or_default();
    assert!(
        faults.is_empty(),
        "invalid message from the server in {revision}: {faults:#?}\n{message}"
    );
}

/// JSON Schema of the messages of one MCP revision.
pub(crate) struct RevisionSchemas {
    revision: String,
    whole: &'static Value,
    registry: Registry<'static>,
    /// Name of the JSON member that contains the definitions of the schema.
    definitions: &'static str,
    /// Names of the definitions of requests and notifications, by method.
    requests: BTreeMap<String, String>,
    /// Names of the definitions of results, by the method of the request.
    results: BTreeMap<String, String>,
    /// Names of the definitions of errors, by code.
    errors: BTreeMap<i64, String>,
    compiled: Mutex<HashMap<String, Arc<Validator>>>,
}

impl RevisionSchemas {
    fn read(revision: &str) -> Option<Self> {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let package = fs::read_to_string(checkout.join(PACKAGE)).ok()?;
        let full =
            find_schema(&package, if revision == "2024-11-05" { "2025-03-26" } else { revision });
        Some(Self::new(revision, full))
    }

    fn new(revision: &str, mut whole: Value) -> Self {
        let definitions = if whole.get("$defs").is_some() { "$defs" } else { "definitions" };
        allow_fractions(&mut whole[definitions]);
        // Read once and used until the process ends, so it may leak.
        let whole: &'static Value = Box::leak(Box::new(whole));
        let registry = Registry::new().draft(draft(definitions)).add(SCHEMA, whole);
        let mut schemas = Self {
            revision: revision.to_owned(),
            definitions,
            registry: registry.and_then(RegistryBuilder::prepare).unwrap(),
            requests: BTreeMap::new(),
            results: BTreeMap::new(),
            errors: BTreeMap::new(),
            compiled: Mutex::default(),
            whole,
        };
        let defined = whole[definitions].as_object().unwrap();
        for (name, definition) in defined {
            let unions =
                ["ClientRequest", "ClientNotification", "ServerRequest", "ServerNotification"];
            let method = definition["properties"]["method"]["const"].as_str();
            if let Some(method) = method.filter(|_| !unions.contains(&name.as_str())) {
                schemas.requests.insert(method.to_owned(), name.clone());
                let result = name.strip_suffix("Request").map(|stem| format!("{stem}Result"));
                if let Some(result) = result.filter(|result| defined.contains_key(result)) {
                    schemas.results.insert(method.to_owned(), result);
                }
            }
            for part in definition["properties"]["error"]["allOf"].as_array().into_iter().flatten()
            {
                if let Some(code) = part["properties"]["code"]["const"].as_i64() {
                    schemas.errors.insert(code, name.clone());
                }
            }
        }
        for method in ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"] {
            if schemas.requests.contains_key(method) {
                schemas.results.insert(method.to_owned(), "EmptyResult".to_owned());
            }
        }
        schemas
    }

    /// Returns every method of the revision.
    pub(crate) fn methods(&self) -> impl Iterator<Item = &str> {
        self.requests.keys().map(String::as_str)
    }

    /// Returns the schema violations of a message from a client.
    pub(crate) fn client_faults(&self, message: &Value) -> Vec<String> {
        match message {
            Value::Array(several) => self.batch(several, |one| self.client_faults(one)),
            one if one.get("method").is_some() => self.method_faults("Client", one),
            one => self.response_faults(None, one),
        }
    }

    /// Returns the schema violations of a message from the server, which answers `method` if that
    /// is set.
    pub(crate) fn server_faults(&self, method: Option<&str>, message: &Value) -> Vec<String> {
        match message {
            Value::Array(several) => self.batch(several, |one| self.server_faults(None, one)),
            one if one.get("method").is_some() => self.method_faults("Server", one),
            one => self.response_faults(method, one),
        }
    }

    fn batch(&self, several: &[Value], check: impl Fn(&Value) -> Vec<String>) -> Vec<String> {
        if self.revision != "2025-03-26" {
            return vec!["batches are not allowed".to_owned()];
        }
        several.iter().flat_map(check).collect()
    }

    /// Returns the schema violations of a request or notification. `side` names the sender: client
    /// or server.
    fn method_faults(&self, side: &str, message: &Value) -> Vec<String> {
        let method = message["method"].as_str().unwrap_or_default();
        let kind = if message.get("id").is_some() { "Request" } else { "Notification" };
        let envelope = self.faults(&format!("JSONRPC{kind}"), message);
        let Some(name) = self.requests.get(method) else {
            let is_extension = self.revision == MODERN && EXTENSIONS.contains(&method);
            // A client may send unknown notifications, which are ignored.
            if !is_extension && (side, kind) != ("Client", "Notification") {
                return vec![format!("unknown method `{method}`")];
            }
            return envelope;
        };
        if !self.may_send(side, kind, name) {
            return vec![format!("a {side} must not send `{method}` as a {kind}")];
        }
        // Older revisions define the envelope separately.
        if envelope.is_empty() { self.faults(name, message) } else { envelope }
    }

    /// Returns true if the definition `name` is one that `side` (client or server) may send.
    fn may_send(&self, side: &str, kind: &str, name: &str) -> bool {
        let union = &self.whole[self.definitions][format!("{side}{kind}")];
        let wanted = format!("#/{}/{name}", self.definitions);
        match union["anyOf"].as_array() {
            Some(several) => several.iter().any(|one| one["$ref"] == wanted.as_str()),
            // A union of one is inlined or a reference.
            None => {
                let method =
                    self.whole[self.definitions][name]["properties"]["method"].get("const");
                union["$ref"] == wanted.as_str()
                    || method
                        .is_some_and(|method| union["properties"]["method"]["const"] == *method)
            }
        }
    }

    /// Returns the schema violations of an answer to a request of `method`.
    fn response_faults(&self, method: Option<&str>, message: &Value) -> Vec<String> {
        if let Some(error) = message.get("error") {
            let typed = error["code"].as_i64().and_then(|code| self.errors.get(&code));
            let any = self.choose_definition("JSONRPCErrorResponse", "JSONRPCError");
            return self.faults(typed.map_or(any, String::as_str), &self.with_id(message));
        }
        let result = &message["result"];
        let name = match result["resultType"].as_str() {
            Some("input_required") if self.revision == MODERN => Some("InputRequiredResult"),
            Some("task") if self.revision == MODERN => None,
            _ if result.get("task").is_some() => Some("CreateTaskResult"),
            _ => method.and_then(|method| self.results.get(method)).map(String::as_str),
        };
        let faults = name.map(|name| self.faults(name, result)).unwrap_or_default();
        if faults.is_empty() {
            return self.faults(
                self.choose_definition("JSONRPCResultResponse", "JSONRPCResponse"),
                message,
            );
        }
        faults
    }

    /// Returns `message`, with another id if it is null, because older schemas do not allow errors
    /// with a null id.
    fn with_id(&self, message: &Value) -> Value {
        let mut message = message.clone();
        if self.revision.as_str() < "2025-11-25" && message["id"].is_null() {
            message["id"] = json!(0);
        }
        message
    }

    fn choose_definition<'n>(&self, new: &'n str, old: &'n str) -> &'n str {
        if self.whole[self.definitions].get(new).is_some() { new } else { old }
    }

    /// Returns the violations of the definition `name` in `value`.
    fn faults(&self, name: &str, value: &Value) -> Vec<String> {
        let mut compiled = self.compiled.lock().unwrap();
        let compile = || Arc::new(self.compile(name));
        let validator = compiled.entry(name.to_owned()).or_insert_with(compile).clone();
        drop(compiled);
        let describe = |fault: jsonschema::ValidationError| {
            format!("{name}{}: {fault}", fault.instance_path())
        };
        validator.iter_errors(value).take(6).map(describe).collect()
    }

    fn compile(&self, name: &str) -> Validator {
        let schema = json!({ "$ref": format!("{SCHEMA}#/{}/{name}", self.definitions) });
        let options = jsonschema::options().with_draft(draft(self.definitions));
        options.should_validate_formats(true).with_registry(&self.registry).build(&schema).unwrap()
    }
}

/// Allows fractions in the numbers of forms. Published schemas only have integers, unlike the
/// specification.
fn allow_fractions(definitions: &mut Value) {
    let bounds = ["minimum", "maximum", "default"];
    let bounds = bounds.map(|bound| format!("/NumberSchema/properties/{bound}/type"));
    let contents = ["", "/anyOf/1"];
    let contents = contents
        .map(|or| format!("/ElicitResult/properties/content/additionalProperties{or}/type"));
    for kind in bounds.iter().chain(&contents) {
        if let Some(kind) = definitions.pointer_mut(kind) {
            let text = kind.to_string().replace("\"integer\"", "\"number\"");
            *kind = serde_json::from_str(&text).unwrap();
        }
    }
}

/// URI under which the validator knows the schema.
const SCHEMA: &str = "mcp:schema";

fn draft(definitions: &str) -> Draft {
    if definitions == "$defs" { Draft::Draft202012 } else { Draft::Draft7 }
}

/// Returns the schema of `revision` from the conformance package, whose only file is minified
/// JavaScript.
fn find_schema(package: &str, revision: &str) -> Value {
    // A definition that each revision has and its predecessor has not.
    let marks = [
        ("2025-03-26", "JSONRPCBatchRequest"),
        ("2025-06-18", "ElicitRequest"),
        ("2025-11-25", "GetTaskRequest"),
        (MODERN, "DiscoverRequest"),
    ];
    let mark = |schema: &Value| {
        let has = |name: &str| {
            ["$defs", "definitions"].iter().any(|defs| schema[*defs].get(name).is_some())
        };
        marks.iter().rev().find(|(_, name)| has(name)).map(|(revision, _)| *revision)
    };
    let begins = package.match_indices("={$schema:`").map(|(at, begin)| (at + 1, begin));
    let mut literals =
        begins.filter_map(|(at, _)| JavaScriptLiteralReader { rest: &package[at..] }.value());
    let found = literals.find(|schema| mark(schema) == Some(revision));
    found.unwrap_or_else(|| panic!("the conformance package has no schema of {revision}"))
}

/// Reads a constant JavaScript literal. Returns `None` for an expression that computes a value.
struct JavaScriptLiteralReader<'t> {
    rest: &'t str,
}

impl JavaScriptLiteralReader<'_> {
    fn value(&mut self) -> Option<Value> {
        match self.rest.chars().next()? {
            '{' => {
                let mut object = Map::new();
                self.each('}', |read| {
                    let key = read.key()?;
                    read.skip(":")?;
                    object.insert(key, read.value()?);
                    Some(())
                })?;
                Some(Value::Object(object))
            }
            '[' => {
                let mut array = Vec::new();
                self.each(']', |read| {
                    array.push(read.value()?);
                    Some(())
                })?;
                Some(Value::Array(array))
            }
            '`' | '"' | '\'' => self.read_string().map(Value::String),
            _ => match self.read_word() {
                "!0" | "true" => Some(json!(true)),
                "!1" | "false" => Some(json!(false)),
                "null" => Some(Value::Null),
                number => number
                    .parse::<i64>()
                    .map(Value::from)
                    .ok()
                    .or_else(|| number.parse::<f64>().ok().map(Value::from)),
            },
        }
    }

    /// Reads a list from its opening bracket up to the character `end`. Calls `one` to read each
    /// item.
    fn each(&mut self, end: char, mut one: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.rest = &self.rest[1..];
        while !self.rest.starts_with(end) {
            one(self)?;
            self.rest = self.rest.strip_prefix(',').unwrap_or(self.rest);
        }
        self.skip(end.encode_utf8(&mut [0; 4]))
    }

    fn key(&mut self) -> Option<String> {
        if self.rest.starts_with(['`', '"', '\'']) {
            return self.read_string();
        }
        Some(self.read_word().to_owned())
    }

    fn read_word(&mut self) -> &str {
        let end = self.rest.find([',', ':', '}', ']', '{', '[']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn read_string(&mut self) -> Option<String> {
        let mut chars = self.rest.char_indices();
        let (_, quote) = chars.next()?;
        let mut string = String::new();
        while let Some((at, letter)) = chars.next() {
            match letter {
                '\\' => string.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'u' | 'x' => return None,
                    plain => plain,
                }),
                '$' if quote == '`' && self.rest[at..].starts_with("${") => return None,
                letter if letter == quote => {
                    self.rest = &self.rest[at + 1..];
                    return Some(string);
                }
                letter => string.push(letter),
            }
        }
        None
    }

    fn skip(&mut self, what: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }
}

/// Checks the messages on one connection between a client and the server against MCP's schemas.
#[derive(Default)]
pub(crate) struct McpMessageChecker {
    /// Session of the connection, if a handshake opened one.
    session: Option<Arc<CheckedMcpSession>>,
    /// Unanswered requests of the client, by their id as JSON.
    pending: HashMap<String, UnansweredClientRequest>,
}

/// MCP session, with the revision that its handshake agreed on.
struct CheckedMcpSession {
    revision: &'static str,
    /// Methods of the server's unanswered requests, by their id as JSON.
    server_requests: Mutex<HashMap<String, String>>,
}

/// Request of a client that has no answer yet.
struct UnansweredClientRequest {
    revision: &'static str,
    method: String,
    /// Message to validate once the server accepts it. `None` if it is invalid on purpose.
    message: Option<Value>,
}

/// All HTTP sessions by id. A session may have many connections.
static SESSIONS: LazyLock<Mutex<HashMap<String, Arc<CheckedMcpSession>>>> =
    LazyLock::new(Mutex::default);

impl McpMessageChecker {
    /// Marks the connection as an HTTP+SSE stream of 2024-11-05, with requests on other
    /// connections.
    pub(crate) fn use_http_sse(&mut self) {
        let session =
            CheckedMcpSession { revision: "2024-11-05", server_requests: Mutex::default() };
        self.session = Some(Arc::new(session));
    }

    /// Assigns the following messages to the session `id`, or to no session.
    pub(crate) fn use_session(&mut self, id: Option<&str>) {
        self.session = id.and_then(|id| SESSIONS.lock().unwrap().get(id).cloned());
    }

    /// Records a message of the client. Validates it unless `valid` is false.
    #[track_caller]
    pub(crate) fn sent(&mut self, message: &Value, valid: bool) {
        for message in messages_of(message) {
            let Some(revision) = self.revision(message) else { continue };
            match (message["method"].as_str(), message.get("id")) {
                (Some(method), Some(id)) => {
                    let id = id.to_string();
                    let method = method.to_owned();
                    let message = valid.then(|| message.clone());
                    self.pending.insert(id, UnansweredClientRequest { revision, method, message });
                }
                (Some(_), None) if valid => check_to_server(revision, message),
                (None, _) if valid => self.check_client_response(message),
                _ => {}
            }
        }
    }

    /// Validates an answer of the client to a request of the server.
    #[track_caller]
    fn check_client_response(&self, message: &Value) {
        let Some(session) = &self.session else { return };
        let Some(schemas) = for_revision(session.revision) else { return };
        let method =
            session.server_requests.lock().unwrap().get(&message["id"].to_string()).cloned();
        let faults = schemas.response_faults(method.as_deref(), message);
        assert!(
            faults.is_empty(),
            "invalid answer from a test to {method:?}: {faults:#?}\n{message}"
        );
    }

    /// Validates a message of the server. `opened` is the id of the session that the message opens,
    /// if any.
    #[track_caller]
    pub(crate) fn received(&mut self, message: &Value, opened: Option<&str>) {
        for message in messages_of(message) {
            if message.get("method").is_some() {
                self.check_server_method(message);
            } else {
                self.check_response(message, opened);
            }
        }
    }

    /// Validates a notification or request of the server.
    #[track_caller]
    fn check_server_method(&self, message: &Value) {
        let tagged = message["params"]["_meta"].get("io.modelcontextprotocol/subscriptionId");
        match &self.session {
            Some(session) if tagged.is_none() => {
                if let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) {
                    session
                        .server_requests
                        .lock()
                        .unwrap()
                        .insert(id.to_string(), method.to_owned());
                }
                check_from_server(session.revision, None, message);
            }
            _ if self.pending.values().any(|request| request.revision == MODERN) => {
                check_from_server(MODERN, None, message);
            }
            _ => {}
        }
    }

    #[track_caller]
    fn check_response(&mut self, message: &Value, opened: Option<&str>) {
        let Some(request) = self.pending.get_mut(&message["id"].to_string()) else {
            if let Some(session) = &self.session {
                check_from_server(session.revision, None, message);
            }
            return;
        };
        let mut revision = request.revision;
        if message.get("result").is_some() {
            if request.method == "initialize" {
                revision =
                    known_revision(&message["result"]["protocolVersion"]).unwrap_or(revision);
                let session =
                    Arc::new(CheckedMcpSession { revision, server_requests: Mutex::default() });
                if let Some(id) = opened {
                    SESSIONS.lock().unwrap().insert(id.to_owned(), session.clone());
                }
                self.session = Some(session);
            }
            if let Some(sent) = request.message.take() {
                check_to_server(request.revision, &sent);
            }
        }
        check_from_server(revision, Some(&request.method), message);
    }

    /// Returns the MCP revision that applies to a client's message, if it is known.
    fn revision(&self, message: &Value) -> Option<&'static str> {
        match message["params"]["_meta"].get("io.modelcontextprotocol/protocolVersion") {
            Some(named) => known_revision(named),
            None if message["method"] == "initialize" => {
                let wanted = known_revision(&message["params"]["protocolVersion"]);
                wanted.filter(|wanted| *wanted != MODERN).or(Some("2025-11-25"))
            }
            None => self.session.as_ref().map(|session| session.revision),
        }
    }
}

/// Returns the messages in one frame, which is a single message or a batch.
fn messages_of(frame: &Value) -> &[Value] {
    frame.as_array().map_or(std::slice::from_ref(frame), Vec::as_slice)
}

fn known_revision(revision: &Value) -> Option<&'static str> {
    REVISIONS.into_iter().find(|known| revision == known)
}
