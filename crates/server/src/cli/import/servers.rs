//! Imports upstreams from the configuration files of MCP clients.

mod clients;
mod filters;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value};
use toml::Table;
use toolgate_contract::strip_byte_order_mark;
use toolgate_service::config::SETTINGS_FILE_NAME;
use toolgate_upstream::{EXCLUSION, UpstreamSettings};

use crate::cli::clients::{is_toolgate, server_keys};
use crate::cli::{complain, print, secret_detection};
use clients::{ClientSettingsFiles, LoadedClientSettings, read_files};
use filters::{
    ClientSettingsFilters, OFF_KEYS, ON_KEYS, excluded_tools, excluded_tools_note, included_tools,
    is_read_filter, is_switched_off, other_filters,
};

/// JSON pointer to the MCP servers in the settings of older versions of VS Code.
const OLD_VSCODE_SERVERS: &str = "/mcp/servers";
/// Keys of a server's entry in a client's settings that the import reads, besides filters.
const READ_KEYS: [&str; 18] = [
    "command",
    "path",
    "args",
    "env",
    "env_vars",
    "cwd",
    "url",
    "serverUrl",
    "httpUrl",
    "type",
    "transport",
    "transportType",
    "headers",
    "http_headers",
    "env_http_headers",
    "bearer_token_env_var",
    "startup_timeout_sec",
    "tool_timeout_sec",
];
/// Keys of a server's entry in a client's settings that the import ignores.
const IGNORED_KEYS: [&str; 8] =
    ["name", "title", "description", "id", "icon", "source", "gallery", "version"];

/// Reason that the import prints when it skips toolgate itself.
const IS_TOOLGATE_ITSELF: &str = "this server is toolgate itself, which would start itself again \
                                  and again; to serve another folder, write the table by hand";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate import servers                          print the servers of all known clients
  toolgate import servers cursor --to toolgate.toml
  toolgate import servers ~/other/.mcp.json

Clients: claude, claude-desktop, cline, codex, cursor, gemini, jetbrains, roo, vscode, windsurf, zed.

The command keeps filters of tools and disabled servers, and lists the settings that it does not
import. For secrets in variables, headers, arguments and URLs, the command writes `${NAME}` and
names the variable to set. After `--to toolgate.toml`, run `toolgate trust`.")]
pub(super) struct ImportServersArgs {
    /// A client or a file; by default all clients
    from: Vec<String>,
    /// Append the upstreams to this file instead of printing them
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Workspace; the settings of clients in this folder are read, too
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
}

pub(super) fn run(args: &ImportServersArgs) -> anyhow::Result<ExitCode> {
    let mut import = McpServerImport {
        root: &args.root,
        names: ImportedUpstreamNames {
            known: match &args.to {
                Some(file) => names_in(file)?,
                None => Vec::new(),
            },
            imported: BTreeMap::new(),
        },
        secrets: SecretsByVariable::new(),
        text: String::new(),
    };
    let LoadedClientSettings { clients, has_broken } = read_files(&args.from, &args.root)?;
    for client in &clients {
        import.add_client(client)?;
    }
    let text = import.text;
    if text.is_empty() {
        bail!("there is no new server to import");
    }
    match &args.to {
        None => print(text.trim_start())?,
        Some(file) => {
            append(file, &text)?;
            complain(&format!("written to {}", file.display()));
            if file.file_name().is_some_and(|name| name == SETTINGS_FILE_NAME) {
                complain("read the file, then run `toolgate trust`");
            }
        }
    }
    // If a file that the user named is skipped, the command must fail.
    Ok(match has_broken && !args.from.is_empty() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// State of one import of MCP servers from clients' settings.
struct McpServerImport<'a> {
    root: &'a Path,
    names: ImportedUpstreamNames,
    secrets: SecretsByVariable,
    /// The TOML tables of the upstreams that were imported so far.
    text: String,
}

impl McpServerImport<'_> {
    /// Imports the servers in a client's settings files. Prints a reason for each omission.
    fn add_client(&mut self, client: &ClientSettingsFiles) -> anyhow::Result<()> {
        let filters = ClientSettingsFilters::read(client.files.iter().map(|(_, it)| it), self.root);
        for (path, content) in &client.files {
            for filter in other_filters(content) {
                complain(&format!("`{filter}` of {} is not imported", path.display()));
            }
            for (name, server) in servers(content, self.root) {
                self.add_server(path, &name, &server, &filters)?;
            }
        }
        Ok(())
    }

    /// Imports the server `name` of the client's settings at `path`, or prints why it is skipped.
    fn add_server(
        &mut self,
        path: &Path,
        name: &str,
        server: &Value,
        filters: &ClientSettingsFilters,
    ) -> anyhow::Result<()> {
        let path = path.display();
        let Some(upstream_name) = self.names.find_free(name) else {
            complain(&format!("not imported: `{name}` of {path}: this name exists already"));
            return Ok(());
        };
        let entry = ImportedUpstream::new(upstream_name.clone(), self.secrets.clone());
        let mut upstream = match entry.read(server, self.root) {
            Ok(upstream) => upstream,
            Err(why) => {
                complain(&format!("not imported: `{name}` of {path}: {why}"));
                return Ok(());
            }
        };
        upstream.apply_filters(name, filters);
        if !name.is_ascii() {
            upstream.notes.push(format!("its name was `{name}`; you can rename the table"));
        }
        self.names.imported.insert(upstream_name, name.to_owned());
        self.secrets = std::mem::take(&mut upstream.secrets);
        for note in &upstream.notes {
            complain(&format!("{}: {note}", upstream.name));
        }
        let excluded = excluded_tools_note(&upstream.table);
        self.text += &format!("\n# From {path}{excluded}\n{}", upstream.to_toml()?);
        Ok(())
    }
}

/// Names of upstreams that are no longer free for further imported servers.
struct ImportedUpstreamNames {
    /// Names of upstreams that are already in the file to write.
    known: Vec<String>,
    /// Names that this import has given to upstreams, each with the server's name in the client.
    imported: BTreeMap<String, String>,
}

impl ImportedUpstreamNames {
    /// Returns a free upstream name for the server `name` of a client. Returns `None` if the output
    /// file already has this server, or if this import has already added it.
    fn find_free(&self, name: &str) -> Option<String> {
        if self.imported.values().any(|imported| imported == name) {
            return None;
        }
        let first = upstream_name(name);
        if self.known.contains(&first) {
            return None;
        }
        let others = (2..).map(|turn| format!("{first}_{turn}"));
        let is_free =
            |name: &String| !self.imported.contains_key(name) && !self.known.contains(name);
        std::iter::once(first.clone()).chain(others).find(is_free)
    }
}

/// Returns the MCP servers in a client's settings `content`, those of the project `root` first.
fn servers(content: &Value, root: &Path) -> Vec<(String, Value)> {
    let mut tables = Vec::new();
    if let Ok(root) = root.canonicalize()
        && let Some(project) = content["projects"].get(&*root.to_string_lossy())
    {
        tables.push(&project["mcpServers"]);
    }
    tables.extend(server_keys().into_iter().filter_map(|key| content.get(key)));
    tables.extend(content.pointer(OLD_VSCODE_SERVERS));
    let servers = tables.into_iter().filter_map(Value::as_object).flatten();
    servers.map(|(name, server)| (name.clone(), server.clone())).collect()
}

/// Secrets of all imported upstreams, by the name of the environment variable that replaces each.
type SecretsByVariable = BTreeMap<String, String>;

/// An upstream to write into toolgate's settings.
struct ImportedUpstream {
    name: String,
    table: Table,
    /// Notes about the imported upstream for the user, one sentence each.
    notes: Vec<String>,
    secrets: SecretsByVariable,
    /// Path of the workspace, which replaces a client's `${workspaceFolder}`.
    folder: String,
}

impl ImportedUpstream {
    fn new(name: String, secrets: SecretsByVariable) -> Self {
        Self { name, table: Table::new(), notes: Vec::new(), secrets, folder: ".".to_owned() }
    }

    /// Reads `server`, a server's entry in a client's settings. The error is the reason to skip it.
    fn read(mut self, server: &Value, root: &Path) -> Result<Self, String> {
        let server = &flatten_entry(server.as_object().ok_or("it is not a table")?);
        let text = |key: &str| server.get(key).and_then(Value::as_str);
        let url = text("url").or(text("serverUrl")).or(text("httpUrl"));
        match (text("command"), url) {
            (Some(command), _) => self.read_program(command, server, root)?,
            (None, Some(url)) => self.read_url(url, server),
            (None, None) => return Err("it has neither a command nor a URL".to_owned()),
        }
        if is_switched_off(server) {
            self.put("enabled", false);
        }
        for (key, setting) in
            [("startup_timeout_sec", "start_ms"), ("tool_timeout_sec", "deadline_ms")]
        {
            if let Some(seconds) = server.get(key).and_then(Value::as_f64).filter(|it| *it > 0.0) {
                #[allow(clippy::cast_possible_truncation, reason = "a time of a person's settings")]
                let ms = (seconds * 1000.0) as i64;
                self.put(setting, ms);
            }
        }
        if let Some(tools) = included_tools(server) {
            self.put("tools", tools);
        }
        self.leave_out(excluded_tools(server));
        self.note_unread(server);
        let settings = self.table.clone().try_into::<UpstreamSettings>();
        settings.map_err(|why| why.message().to_owned())?.check()?;
        Ok(self)
    }

    /// Reads a client's entry for a server that `command` starts. The error is the reason to skip.
    fn read_program(
        &mut self,
        command: &str,
        server: &Map<String, Value>,
        root: &Path,
    ) -> Result<(), String> {
        if is_toolgate(command) {
            return Err(IS_TOOLGATE_ITSELF.to_owned());
        }
        let cwd = server.get("cwd").and_then(Value::as_str);
        if let Some(cwd) = cwd {
            let filled = self.convert_variables(cwd);
            // A relative path would be wrong in any other folder.
            if filled != "." {
                let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
                self.folder = root.to_string_lossy().into_owned();
            }
            self.put("cwd", filled);
        }
        let mut words = vec![command.to_owned()];
        for arg in server.get("args").and_then(Value::as_array).into_iter().flatten() {
            match arg {
                Value::String(word) => words.push(word.clone()),
                Value::Number(_) | Value::Bool(_) => words.push(arg.to_string()),
                other => self.notes.push(format!("argument `{other}` is not imported")),
            }
        }
        let before = std::iter::once("").chain(words.iter().map(String::as_str));
        let words = words.iter().zip(before);
        let words: Vec<_> = words.map(|(word, before)| self.convert_word(word, before)).collect();
        // Programs start in an empty folder unless `cwd` is set.
        let is_near = |word: &String| {
            matches!(&**word, "." | "..") || word.starts_with("./") || word.starts_with("../")
        };
        if cwd.is_none() && words.iter().any(is_near) {
            self.put("cwd", ".".to_owned());
        }
        self.put("command", words);
        let env = self.convert_named(server.get("env"), |name, _| name.to_owned());
        self.put_table("env", env);
        self.read_passed_variables(server.get("env_vars"));
        Ok(())
    }

    /// Reads `passed`, a client's list of environment variables that the server's program gets.
    fn read_passed_variables(&mut self, passed: Option<&Value>) {
        let passed = passed.and_then(Value::as_array).into_iter().flatten();
        let name = |one: &Value| one.as_str().or(one["name"].as_str()).map(str::to_owned);
        let names: Vec<_> = passed.filter_map(name).collect();
        if !names.is_empty() {
            let mut all = UpstreamSettings::default().keep_env;
            all.extend(names);
            self.put("keep_env", all);
        }
    }

    /// Reads a client's entry for a server that is reached at `url`.
    fn read_url(&mut self, url: &str, server: &Map<String, Value>) {
        let text = |key: &str| server.get(key).and_then(Value::as_str);
        let url_filled = self.convert_word(url, "");
        self.put("url", url_filled);
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let transport = match text("type").or(text("transport")).or(text("transportType")) {
            Some("sse") => Some("sse"),
            Some("ws" | "websocket") => Some("websocket"),
            Some(_) => None,
            None if path.trim_end_matches('/').ends_with("/sse") => Some("sse"),
            None if url.starts_with("ws") => Some("websocket"),
            None => None,
        };
        if let Some(transport) = transport {
            self.put("transport", transport);
        }
        let upstream = self.name.clone();
        let mut headers = Table::new();
        for key in ["headers", "http_headers"] {
            headers.extend(self.convert_named(server.get(key), |header, _| {
                format!("{upstream}_{header}").to_uppercase().replace('-', "_")
            }));
        }
        let variables = server.get("env_http_headers").and_then(Value::as_object);
        for (header, variable) in variables.into_iter().flatten() {
            if let Some(variable) = variable.as_str() {
                headers.insert(header.clone(), format!("${{{variable}}}").into());
            }
        }
        if let Some(variable) = text("bearer_token_env_var") {
            headers.insert("Authorization".to_owned(), format!("Bearer ${{{variable}}}").into());
        }
        self.put_table("headers", headers);
    }

    /// Adds a note for each setting of the client's entry that the import does not read.
    fn note_unread(&mut self, server: &Map<String, Value>) {
        let for_other: &[&str] = match self.table.contains_key("url") {
            true => &["args", "env", "env_vars", "cwd"],
            false => &["headers", "http_headers", "env_http_headers", "bearer_token_env_var"],
        };
        for (key, value) in server {
            let key = key.as_str();
            let is_switch = OFF_KEYS.contains(&key) || ON_KEYS.contains(&key);
            let is_read = READ_KEYS.contains(&key) && !for_other.contains(&key);
            let is_known = is_read || is_switch || is_read_filter(key, value);
            // `trust` is false by default.
            let says_nothing = is_empty(value) || (key == "trust" && *value == false);
            if !is_known && !says_nothing && !IGNORED_KEYS.contains(&key) {
                self.notes.push(format!("`{key}` is not imported"));
            }
        }
    }

    /// Applies the tool filters of a client's settings to this upstream, the client's server
    /// `name`.
    fn apply_filters(&mut self, name: &str, filters: &ClientSettingsFilters) {
        if filters.is_off(name) {
            self.put("enabled", false);
        }
        self.leave_out(filters.denied_tools(name));
    }

    /// Excludes `tools` in the upstream's setting `tools`.
    fn leave_out(&mut self, tools: Vec<String>) {
        let known = self.table.get("tools").and_then(toml::Value::as_array);
        // Without a tool to serve, exclusions alone would serve all others.
        if tools.is_empty() || known.is_some_and(Vec::is_empty) {
            return;
        }
        let excluded =
            tools.into_iter().map(|tool| toml::Value::from(format!("{EXCLUSION}{tool}")));
        let all: Vec<_> = known.into_iter().flatten().cloned().chain(excluded).collect();
        self.put("tools", all);
    }

    fn put(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.table.insert(key.to_owned(), value.into());
    }

    fn put_table(&mut self, key: &str, table: Table) {
        if !table.is_empty() {
            self.put(key, table);
        }
    }

    /// Converts `all`, a table of environment variables or HTTP headers in a client's entry.
    /// Replaces each secret value by a reference to an environment variable. The function
    /// `variable` determines the name of that variable.
    fn convert_named(
        &mut self,
        all: Option<&Value>,
        variable: impl Fn(&str, &str) -> String,
    ) -> Table {
        let all = all.and_then(Value::as_object).into_iter().flatten();
        let mut table = Table::new();
        for (name, value) in all {
            let value = match value {
                Value::String(text) => with_braces(text),
                Value::Null => continue,
                other => other.to_string(),
            };
            let value = match secret_detection::has_secret(name, &value) {
                true => {
                    let variable = self.variable_for(variable(name, &value), &value, name);
                    let scheme = ["Bearer ", "Basic "].into_iter().find(|it| value.starts_with(it));
                    format!("{}{variable}", scheme.unwrap_or_default())
                }
                false => self.convert_variables(&value),
            };
            table.insert(name.clone(), value.into());
        }
        table
    }

    /// Replaces the secrets in `word` by references to environment variables. `word` is a URL, or
    /// the command-line argument after `before`.
    fn convert_word(&mut self, word: &str, before: &str) -> String {
        let mut clean = String::new();
        let mut at = 0;
        for secret_detection::DetectedSecret { range: part, name } in
            secret_detection::secrets_in_word(word, before)
        {
            let label = if name.is_empty() { "secret" } else { &name };
            let is_variable = word[..part.start].ends_with('=')
                && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
            let variable = match is_variable && !name.is_empty() {
                true => name.clone(),
                false => upstream_name(&format!("{}_{label}", self.name)).to_uppercase(),
            };
            clean += &word[at..part.start];
            clean += &self.variable_for(variable, &word[part.clone()], label);
            at = part.end;
        }
        self.convert_variables(&(clean + &word[at..]))
    }

    /// Returns a reference to an environment variable for the secret `value`. The variable has the
    /// name `variable`, or a similar name if another secret has that name. Adds a note to set the
    /// variable, in which the secret is called `name`.
    fn variable_for(&mut self, variable: String, value: &str, name: &str) -> String {
        let own = format!("{}_", self.name.to_uppercase());
        let own = (!variable.starts_with(&own)).then(|| own + &variable);
        let others = (2..).map(|turn| format!("{variable}_{turn}"));
        let mut free = std::iter::once(variable.clone()).chain(own).chain(others);
        let fits =
            |variable: &String| self.secrets.get(variable).is_none_or(|known| known == value);
        let variable = free.find(fits).unwrap_or(variable);
        if self.secrets.insert(variable.clone(), value.to_owned()).is_none() {
            self.notes.push(format!(
                "set the variable `{variable}` for toolgate: the value of `{name}` was not copied"
            ));
        }
        format!("${{{variable}}}")
    }

    /// Converts references to variables in `text` from a client's syntax to that of toolgate.
    fn convert_variables(&mut self, text: &str) -> String {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((reference, more)) = after.split_once('}') else { break };
            filled.push_str(before);
            match reference.split_once(':') {
                Some(("env", name)) => filled += &format!("${{{name}}}"),
                Some(("input", name)) => {
                    let name = upstream_name(name).to_uppercase();
                    self.notes.push(format!("set the variable `{name}` for toolgate"));
                    filled += &format!("${{{name}}}");
                }
                Some((name, default)) if default.starts_with('-') => {
                    let default = &default[1..];
                    self.notes.push(format!(
                        "set the variable `{name}`; the client's default was `{default}`"
                    ));
                    filled += &format!("${{{name}}}");
                }
                Some(_) => {
                    self.notes
                        .push(format!("`${{{reference}}}` is unknown to toolgate; change it"));
                    filled += &format!("${{{reference}}}");
                }
                None if reference == "workspaceFolder" => filled += &self.folder,
                None if reference == "userHome" => filled.push_str("${HOME}"),
                None => filled += &format!("${{{reference}}}"),
            }
            rest = more;
        }
        filled + rest
    }

    /// Returns the upstream's TOML table.
    fn to_toml(&self) -> anyhow::Result<String> {
        let one = BTreeMap::from([(&self.name, &self.table)]);
        Ok(toml::to_string(&BTreeMap::from([("upstream", one)]))?)
    }
}

/// Merges the nested `command` of a server's entry, which old versions of Zed use, into the entry.
fn flatten_entry(server: &Map<String, Value>) -> Map<String, Value> {
    let mut entry = server.clone();
    if let Some(Value::Object(nested)) = server.get("command") {
        entry.remove("command");
        entry.extend(nested.clone());
        if let Some(path) = entry.remove("path") {
            entry.insert("command".into(), path);
        }
    }
    entry
}

/// Returns true if the `value` of a client's setting has no effect: it is null, or empty.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Converts each reference `$NAME`, which Gemini CLI allows, to `${NAME}`.
fn with_braces(text: &str) -> String {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    match text.strip_prefix('$') {
        Some(name) if !name.is_empty() && name.chars().all(is_name) => format!("${{{name}}}"),
        Some(_) | None => text.to_owned(),
    }
}

/// Converts `name` into a valid upstream name: a-z, 0-9 and `_`. Letters of other scripts become
/// their code points, so that names stay distinct.
fn upstream_name(name: &str) -> String {
    let mut valid = String::new();
    let mut is_after_code = false;
    for c in name.chars() {
        let is_letter = c.is_ascii_alphanumeric() || !c.is_ascii();
        let is_between = is_letter && !valid.is_empty() && (is_after_code || !c.is_ascii());
        if is_between && !valid.ends_with('_') {
            valid.push('_');
        }
        match c.to_ascii_lowercase() {
            c if c.is_ascii_alphanumeric() => valid.push(c),
            c if c.is_ascii() => valid.push('_'),
            c => valid += &format!("u{:x}", u32::from(c)),
        }
        is_after_code = !c.is_ascii();
    }
    if valid.is_empty() { "_".to_owned() } else { valid }
}

/// Returns the names of the upstreams in the settings `file`, or an empty list if it is missing.
#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn names_in(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = match std::fs::read_to_string(file) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let table = strip_byte_order_mark(&text).parse::<Table>();
    let table = table.map_err(|why| anyhow!("{} is not TOML: {why}", file.display()))?;
    let upstreams = table.get("upstream").and_then(toml::Value::as_table);
    Ok(upstreams.into_iter().flat_map(|all| all.keys().cloned()).collect())
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn append(file: &Path, text: &str) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests;
