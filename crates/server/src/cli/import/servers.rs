//! Imports upstreams from the configuration files of MCP clients.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use jsonc_parser::{ParseOptions, parse_to_serde_value};
use serde_json::{Map, Value};
use toml::Table;
use toolgate::config::SETTINGS_FILE_NAME;

use crate::cli::{complain, print, secret_detection};

/// The known clients and their files. `~` is the home folder, and relative paths are in the
/// workspace.
const CLIENTS: [(&str, &[&str]); 5] = [
    ("claude", &[".mcp.json", "~/.claude.json"]),
    (
        "claude-desktop",
        &[
            "~/.config/Claude/claude_desktop_config.json",
            "~/Library/Application Support/Claude/claude_desktop_config.json",
        ],
    ),
    ("cursor", &[".cursor/mcp.json", "~/.cursor/mcp.json"]),
    (
        "vscode",
        &[
            ".vscode/mcp.json",
            "~/.config/Code/User/mcp.json",
            "~/Library/Application Support/Code/User/mcp.json",
        ],
    ),
    ("zed", &[".zed/settings.json", "~/.config/zed/settings.json"]),
];

/// JSON pointers to the servers in a client's configuration file.
const SERVER_POINTERS: [&str; 4] = ["/mcpServers", "/servers", "/context_servers", "/mcp/servers"];

/// Reason why toolgate itself is not imported.
const IS_TOOLGATE_ITSELF: &str = "it is toolgate itself, which would start itself again and again; to serve \
                      another folder through it, write the table by hand";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  toolgate import servers                          print the servers of all known clients
  toolgate import servers cursor --to toolgate.toml
  toolgate import servers ~/other/.mcp.json

Secrets in variables, headers, arguments and URLs are not copied. toolgate writes `${NAME}` instead
and tells you which variable to set. After `--to toolgate.toml`, run `toolgate trust`.")]
pub(super) struct ImportServersArgs {
    /// A client (claude, claude-desktop, cursor, vscode, zed) or a file; by default all clients
    from: Vec<String>,
    /// Append the upstreams to this file instead of printing them
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Workspace; the client files in this folder are read, too
    #[arg(long, value_name = "PATH", default_value = ".", env = "TOOLGATE_ROOT")]
    root: PathBuf,
}

pub(super) fn run(args: &ImportServersArgs) -> anyhow::Result<ExitCode> {
    let mut used_names = match &args.to {
        Some(file) => names_in(file)?,
        None => Vec::new(),
    };
    let mut text = String::new();
    let mut secrets = VariableSecrets::new();
    for (file, content) in read_files(args)? {
        for (name, server) in servers(&content, &args.root) {
            let mut upstream =
                match ImportedUpstream::from_client(&name, &server, &args.root, &secrets) {
                    Ok(upstream) => upstream,
                    Err(why) => {
                        complain(&format!("not imported: `{name}` of {}: {why}", file.display()));
                        continue;
                    }
                };
            if used_names.contains(&upstream.name) {
                let file = file.display();
                let name = &upstream.name;
                complain(&format!("not imported: `{name}` of {file}: this name exists already"));
                continue;
            }
            used_names.push(upstream.name.clone());
            secrets = std::mem::take(&mut upstream.secrets);
            for note in std::mem::take(&mut upstream.notes) {
                complain(&format!("{}: {note}", upstream.name));
            }
            text += &format!("\n# From {}\n{}", file.display(), upstream.to_toml()?);
        }
    }
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
    Ok(ExitCode::SUCCESS)
}

/// Reads the requested files.
#[allow(clippy::disallowed_methods, reason = "the user's own files")]
fn read_files(args: &ImportServersArgs) -> anyhow::Result<Vec<(PathBuf, Value)>> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let known = |(_, files): &(&str, &'static [&'static str])| *files;
    let mut wanted = Vec::new();
    for from in &args.from {
        match CLIENTS.iter().find(|(name, _)| name == from) {
            Some(client) => wanted.extend(known(client).iter().map(|&file| (file, false))),
            None => wanted.push((from.as_str(), true)),
        }
    }
    if args.from.is_empty() {
        wanted.extend(CLIENTS.iter().flat_map(known).map(|&file| (file, false)));
    }
    let mut all = Vec::new();
    for (file, named) in wanted {
        let path = match file.strip_prefix("~/") {
            Some(within) => home.join(within),
            None if named => PathBuf::from(file),
            None => args.root.join(file),
        };
        let text = match std::fs::read_to_string(&path) {
            Err(why) if why.kind() == ErrorKind::NotFound && !named => continue,
            Err(why) if why.kind() == ErrorKind::NotFound => {
                let names: Vec<_> = CLIENTS.iter().map(|(name, _)| *name).collect();
                bail!("{file} is neither a file nor a known client; clients: {}", names.join(", "));
            }
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        // Such files may have comments and trailing commas.
        let text = text.trim_start_matches('\u{feff}');
        let content = parse_to_serde_value::<Option<Value>>(text, &ParseOptions::default());
        let content = content.map_err(|why| anyhow!("{} is not JSON: {why}", path.display()))?;
        all.push((path, content.unwrap_or_default()));
    }
    if all.is_empty() {
        bail!("found no file of a known client; name one: toolgate import servers FILE");
    }
    Ok(all)
}

/// Returns the servers in `content`. The servers of the project in `root` come first.
fn servers(content: &Value, root: &Path) -> Vec<(String, Value)> {
    let mut tables = Vec::new();
    if let Ok(root) = root.canonicalize()
        && let Some(project) = content["projects"].get(&*root.to_string_lossy())
    {
        tables.push(&project["mcpServers"]);
    }
    tables.extend(SERVER_POINTERS.iter().filter_map(|place| content.pointer(place)));
    let servers = tables.into_iter().filter_map(Value::as_object).flatten();
    servers.map(|(name, server)| (name.clone(), server.clone())).collect()
}

/// Secrets of all upstreams that are replaced by environment variables, by the name of the
/// variable.
type VariableSecrets = BTreeMap<String, String>;

/// An upstream to write into the settings.
struct ImportedUpstream {
    name: String,
    table: Table,
    /// Notes for the user, one sentence each.
    notes: Vec<String>,
    secrets: VariableSecrets,
    /// Path that replaces a client's `${workspaceFolder}`.
    folder: String,
}

impl ImportedUpstream {
    /// Converts a client's entry for the server `name`. Returns the reason if that is impossible.
    fn from_client(
        name: &str,
        server: &Value,
        root: &Path,
        secrets: &VariableSecrets,
    ) -> Result<Self, String> {
        let server = server.as_object().ok_or("it is not a table")?;
        let table = Table::new();
        let notes = Vec::new();
        let folder = ".".to_owned();
        let secrets = secrets.clone();
        let mut this = Self { name: upstream_name(name), table, notes, secrets, folder };
        this.read(server, root).map(|()| this)
    }

    fn read(&mut self, server: &Map<String, Value>, root: &Path) -> Result<(), String> {
        let this = self;
        let outer = server;
        // Zed used to nest the command in a table.
        let nested = server.get("command").and_then(Value::as_object).cloned();
        let server = match nested {
            Some(mut inner) => {
                if let Some(path) = inner.remove("path") {
                    inner.insert("command".into(), path);
                }
                inner
            }
            None => server.clone(),
        };
        let text = |key: &str| server.get(key).and_then(Value::as_str);
        let url = text("url").or(text("serverUrl")).or(text("httpUrl"));
        match (text("command"), url) {
            (Some(command), _) => {
                if Path::new(command).file_stem().is_some_and(|name| name == "toolgate") {
                    return Err(IS_TOOLGATE_ITSELF.to_owned());
                }
                if let Some(cwd) = text("cwd") {
                    let filled = this.convert_variables(cwd);
                    // A relative path would be wrong in any other folder.
                    if filled != "." {
                        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
                        this.folder = root.to_string_lossy().into_owned();
                    }
                    this.put("cwd", filled);
                }
                let mut words = vec![command.to_owned()];
                for arg in server.get("args").and_then(Value::as_array).into_iter().flatten() {
                    match arg {
                        Value::String(word) => words.push(word.clone()),
                        Value::Number(_) | Value::Bool(_) => words.push(arg.to_string()),
                        other => this.notes.push(format!("argument `{other}` is not imported")),
                    }
                }
                let before = std::iter::once("").chain(words.iter().map(String::as_str));
                let words = words.iter().zip(before);
                let words: Vec<_> =
                    words.map(|(word, before)| this.convert_word(word, before)).collect();
                // Programs start in an empty folder unless `cwd` is set.
                let is_near = |word: &String| {
                    matches!(&**word, "." | "..")
                        || word.starts_with("./")
                        || word.starts_with("../")
                };
                if text("cwd").is_none() && words.iter().any(is_near) {
                    this.put("cwd", ".".to_owned());
                }
                this.put("command", words);
                let env = this.convert_named(server.get("env"), |name, _| name.to_owned());
                this.put_table("env", env);
            }
            (None, Some(url)) => {
                let url_filled = this.convert_word(url, "");
                this.put("url", url_filled);
                let path = url.split(['?', '#']).next().unwrap_or_default();
                let transport = match text("type").or(text("transport")) {
                    Some("sse") => Some("sse"),
                    Some("ws" | "websocket") => Some("websocket"),
                    Some(_) => None,
                    None if path.trim_end_matches('/').ends_with("/sse") => Some("sse"),
                    None if url.starts_with("ws") => Some("websocket"),
                    None => None,
                };
                if let Some(transport) = transport {
                    this.put("transport", transport);
                }
                let upstream = this.name.clone();
                let headers = this.convert_named(server.get("headers"), |header, _| {
                    format!("{upstream}_{header}").to_uppercase().replace('-', "_")
                });
                this.put_table("headers", headers);
            }
            (None, None) => return Err("it has neither a command nor a URL".to_owned()),
        }
        let is = |key: &str| server.get(key).or_else(|| outer.get(key)).and_then(Value::as_bool);
        if is("disabled") == Some(true) || is("enabled") == Some(false) {
            this.put("enabled", false);
        }
        for key in ["envFile", "oauth", "headersHelper"] {
            if server.contains_key(key) {
                this.notes.push(format!("`{key}` is not imported"));
            }
        }
        let settings = this.table.clone().try_into::<toolgate_upstream::UpstreamSettings>();
        let settings = settings.map_err(|why| why.message().to_owned())?;
        settings.check()
    }

    fn put(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.table.insert(key.to_owned(), value.into());
    }

    fn put_table(&mut self, key: &str, table: Table) {
        if !table.is_empty() {
            self.put(key, table);
        }
    }

    /// Converts variables or headers. A secret is replaced by the variable that `variable` names.
    fn convert_named(
        &mut self,
        all: Option<&Value>,
        variable: impl Fn(&str, &str) -> String,
    ) -> Table {
        let all = all.and_then(Value::as_object).into_iter().flatten();
        let mut table = Table::new();
        for (name, value) in all {
            let value = match value {
                Value::String(text) => text.clone(),
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

    /// Replaces the secrets in `word`, a URL or the argument after `before`, by variables.
    fn convert_word(&mut self, word: &str, before: &str) -> String {
        let mut clean = String::new();
        let mut at = 0;
        for secret_detection::FoundSecret { range: part, name } in
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

    /// Returns a reference to the variable for the secret `value` of `name`. If another secret has
    /// the name `variable`, picks a similar name.
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

    /// Converts the variable syntax of clients in `text`.
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

    /// Returns the upstream's table.
    fn to_toml(&self) -> anyhow::Result<String> {
        let one = BTreeMap::from([(&self.name, &self.table)]);
        Ok(toml::to_string(&BTreeMap::from([("upstream", one)]))?)
    }
}

/// Converts `name` into a valid upstream name: a-z, 0-9 and `_`.
fn upstream_name(name: &str) -> String {
    let valid_char = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() => c,
        _ => '_',
    };
    let name: String = name.chars().map(valid_char).collect();
    if name.is_empty() { "_".to_owned() } else { name }
}

/// Returns the upstream names that `file` already has.
#[allow(clippy::disallowed_methods, reason = "the user's own file, named on the command line")]
fn names_in(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = match std::fs::read_to_string(file) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let table = text.parse::<Table>();
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
