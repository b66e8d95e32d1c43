//! Reads the settings files of MCP clients.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use jsonc_parser::{ParseOptions, parse_to_serde_value};
use serde_json::Value;
use toolgate_contract::strip_byte_order_mark;

use crate::cli::clients::{CLIENTS, KnownMcpClient};
use crate::cli::complain;

/// Settings files that are imported together: all files of a client, or a single file that the user
/// named.
pub(super) struct ClientSettingsFiles {
    pub(super) files: Vec<(PathBuf, Value)>,
}

/// Settings files of clients, after reading them from disk.
pub(super) struct LoadedClientSettings {
    pub(super) clients: Vec<ClientSettingsFiles>,
    /// True if one of the files could not be read. The reason was already printed.
    pub(super) has_broken: bool,
}

/// Reads the settings files of the clients in `from`, or of all clients if `from` is empty. A word
/// in `from` that is not the name of a client is the path of a file. A file that cannot be read is
/// reported and skipped.
///
/// # Errors
///
/// Fails if a named file does not exist, or if no file was found.
#[allow(clippy::disallowed_methods, reason = "the user's own files")]
pub(super) fn read_files(from: &[String], root: &Path) -> anyhow::Result<LoadedClientSettings> {
    let mut found = LoadedClientSettings { clients: Vec::new(), has_broken: false };
    if from.is_empty() {
        CLIENTS.iter().for_each(|client| found.read_client(client, root));
    }
    for word in from {
        match KnownMcpClient::find(word) {
            Some(client) => found.read_client(client, root),
            None if !Path::new(word).exists() => {
                let names = KnownMcpClient::names().join(", ");
                bail!("{word} is neither a file nor a known client; clients: {names}");
            }
            None => found.read_all(&[PathBuf::from(word)]),
        }
    }
    if found.clients.is_empty() && !found.has_broken {
        bail!(
            "no settings file of a known MCP client was found; name a file: toolgate import \
             servers FILE"
        );
    }
    Ok(found)
}

impl LoadedClientSettings {
    fn read_client(&mut self, client: &KnownMcpClient, root: &Path) {
        let paths: Vec<_> = client.files.iter().filter_map(|file| file.resolve(root)).collect();
        self.read_all(&paths);
    }

    fn read_all(&mut self, paths: &[PathBuf]) {
        let mut files = Vec::new();
        for path in paths {
            match read_file(path) {
                Ok(Some(content)) => files.push((path.clone(), content)),
                Ok(None) => {}
                Err(err) => {
                    self.has_broken = true;
                    complain(&format!("not imported: {err:#}"));
                }
            }
        }
        if !files.is_empty() {
            self.clients.push(ClientSettingsFiles { files });
        }
    }
}

/// Reads the settings file of a client at `path`, in TOML or JSON, as JSON. Returns `None` if it
/// does not exist, and fails if it is invalid.
#[allow(clippy::disallowed_methods, reason = "the user's own files")]
fn read_file(path: &Path) -> anyhow::Result<Option<Value>> {
    let text = match std::fs::read_to_string(path) {
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let text = strip_byte_order_mark(&text);
    if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("toml")) {
        let table = text.parse::<toml::Table>();
        let table = table.map_err(|why| anyhow!("{} is not TOML: {why}", path.display()))?;
        return Ok(Some(serde_json::to_value(table)?));
    }
    // Such files may have comments and trailing commas.
    let content = parse_to_serde_value::<Option<Value>>(text, &ParseOptions::default());
    let content = content.map_err(|why| anyhow!("{} is not JSON: {why}", path.display()))?;
    Ok(Some(content.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toml_file_is_read_by_its_extension_and_a_broken_file_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            #[allow(clippy::disallowed_methods, reason = "a test creates its files")]
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let paths = [
            put("a.toml", "\u{feff}[mcp_servers.a]\ncommand = 'x'\n"),
            put("b.json", "{ \"mcpServers\": {"),
            put("c.json", "\u{feff}// empty\n"),
            folder.path().join("d.json"),
        ];
        let mut found = LoadedClientSettings { clients: Vec::new(), has_broken: false };
        found.read_all(&paths);
        let [client] = &found.clients[..] else { panic!("one client") };
        let read: Vec<_> = client.files.iter().map(|(_, content)| content.clone()).collect();
        let servers = serde_json::json!({ "mcp_servers": { "a": { "command": "x" } } });
        assert_eq!(read, [servers, Value::Null]);
        assert!(found.has_broken);
    }
}
