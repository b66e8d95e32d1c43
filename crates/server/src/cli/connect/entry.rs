//! Creates the entries of servers in the settings of clients.

use anyhow::{Context, bail, ensure};
use http::Uri;
use serde_json::{Map, Value, json};

use crate::cli::clients::{KnownMcpClient, UrlServerEntryFormat};

/// Option of `toolgate stdio` that offers only read-only tools.
const READ_ONLY: &str = "--read-only";

/// A server to add to a client's settings.
pub(super) enum ServerToConnect {
    /// A toolgate program that the client starts.
    Program {
        /// Path of the toolgate program.
        program: String,
        /// Folder that the program serves.
        folder: String,
        /// True if the program offers only read-only tools.
        read_only: bool,
    },
    /// A running server that the client reaches at a URL.
    Running {
        /// URL of the server's MCP endpoint.
        url: String,
        /// API key of the caller, if the server needs one.
        key: Option<RunningServerApiKey>,
    },
}

/// The caller's API key for a running server.
pub(super) enum RunningServerApiKey {
    /// The key itself, which is written into the client's settings.
    Literal(String),
    /// Name of the environment variable that contains the key.
    Variable(String),
}

impl ServerToConnect {
    /// Returns the entry for this server in the settings of `client`.
    ///
    /// # Errors
    /// The URL or the key is invalid, or the client cannot read the key from a variable.
    pub(super) fn entry(&self, client: &KnownMcpClient) -> anyhow::Result<Value> {
        match self {
            Self::Program { program, folder, read_only } => {
                let mut args = vec!["stdio", folder];
                if *read_only {
                    args.push(READ_ONLY);
                }
                let mut entry = Map::new();
                insert_type(&mut entry, client.program_type);
                entry.insert("command".to_owned(), json!(program));
                entry.insert("args".to_owned(), json!(args));
                Ok(entry.into())
            }
            Self::Running { url, key } => {
                check_url(url)?;
                key.as_ref().map_or(Ok(()), |key| key.check(client))?;
                Ok(url_entry(client, url, key.as_ref()))
            }
        }
    }

    /// Returns the API key that the settings entry of this server contains, or `None` if the entry
    /// contains no key, or only the name of a variable.
    pub(super) fn literal_key(&self) -> Option<&str> {
        match self {
            Self::Running { key: Some(RunningServerApiKey::Literal(key)), .. } => Some(key),
            Self::Running { .. } | Self::Program { .. } => None,
        }
    }
}

impl RunningServerApiKey {
    fn check(&self, client: &KnownMcpClient) -> anyhow::Result<()> {
        match self {
            Self::Literal(key) => ensure!(
                !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()),
                "the key of --key has characters that no header may have; `toolgate key new NAME` \
                 creates a key"
            ),
            Self::Variable(name) => {
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                ensure!(
                    !name.is_empty()
                        && name.chars().all(is_plain)
                        && !name.starts_with(|c: char| c.is_ascii_digit()),
                    "`{name}` of --key-env is not the name of a variable; write the name, not the key"
                );
                ensure!(
                    client.variable.is_some(),
                    "{} does not read variables in headers, so --key-env would not work; use --key, \
                     which writes the key into the user's settings",
                    client.title
                );
            }
        }
        Ok(())
    }

    /// Returns the value of the header `Authorization` as the settings of `client` must contain it:
    /// with the key, or with a reference to the environment variable.
    fn header(&self, client: &KnownMcpClient) -> String {
        match self {
            Self::Literal(key) => format!("Bearer {key}"),
            Self::Variable(name) => {
                let (before, after) = client.variable.unwrap_or_default();
                format!("Bearer {before}{name}{after}")
            }
        }
    }
}

/// Returns true if `entry`, a server's entry in a client's settings, offers only read-only tools.
pub(super) fn is_read_only(entry: &Value) -> bool {
    let args = entry.get("args").and_then(Value::as_array);
    args.is_some_and(|args| args.iter().any(|arg| arg == READ_ONLY))
}

fn url_entry(client: &KnownMcpClient, url: &str, key: Option<&RunningServerApiKey>) -> Value {
    let header = key.map(|key| key.header(client));
    let mut entry = Map::new();
    match (&client.url_entry, key) {
        (UrlServerEntryFormat::Headers { key: url_key, kind }, _) => {
            insert_type(&mut entry, *kind);
            entry.insert((*url_key).to_owned(), json!(url));
            if let Some(header) = header {
                entry.insert("headers".to_owned(), json!({ "Authorization": header }));
            }
        }
        (UrlServerEntryFormat::Codex, key) => {
            entry.insert("url".to_owned(), json!(url));
            match (key, header) {
                (Some(RunningServerApiKey::Variable(name)), _) => {
                    entry.insert("bearer_token_env_var".to_owned(), json!(name));
                }
                (_, Some(header)) => {
                    entry.insert("http_headers".to_owned(), json!({ "Authorization": header }));
                }
                (_, None) => {}
            }
        }
        (UrlServerEntryFormat::Bridge, _) => {
            let mut args = vec!["-y", "mcp-remote", url];
            if header.is_some() {
                // Some clients split arguments at spaces, so the header comes from a variable.
                args.extend(["--header", "Authorization:${AUTH}"]);
            }
            entry.insert("command".to_owned(), json!("npx"));
            entry.insert("args".to_owned(), json!(args));
            if let Some(header) = header {
                entry.insert("env".to_owned(), json!({ "AUTH": header }));
            }
        }
    }
    entry.into()
}

fn insert_type(entry: &mut Map<String, Value>, kind: Option<&str>) {
    if let Some(kind) = kind {
        entry.insert("type".to_owned(), json!(kind));
    }
}

fn check_url(url: &str) -> anyhow::Result<()> {
    let parsed: Uri = url.parse().with_context(|| format!("{url} is not a URL"))?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none() {
        bail!("{url} is not a URL of an MCP endpoint, such as http://127.0.0.1:8000/mcp");
    }
    if parsed.path() == "/" && parsed.query().is_none() {
        bail!("{url} has no path; did you mean {}/mcp?", url.trim_end_matches('/'));
    }
    Ok(())
}
