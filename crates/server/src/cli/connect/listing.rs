//! Lists the clients on this machine, and whether they are connected.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use super::entry::is_read_only;
use super::place::{ServerEntryLocation, SettingsFormat};
use super::record::SettingsChangeRecord;
use super::resolve_folder;
use super::settings_file::SettingsFile;
use crate::cli::clients::{CLIENTS, ClientSettingsScope, KnownMcpClient, is_toolgate};
use crate::cli::{complain, print};

/// Default name of the toolgate server in a client's settings.
const DEFAULT_NAME: &str = "toolgate";

/// A client's settings file, as a row of the list that `toolgate connect` prints.
struct ListedSettingsFile {
    client: &'static KnownMcpClient,
    scope: ClientSettingsScope,
    state: String,
    path: PathBuf,
}

/// Prints the settings files of the clients that are installed on this machine, and those that
/// exist in the project `folder`, each with the state of its connection.
pub(super) fn list_clients(folder: &Path) -> anyhow::Result<ExitCode> {
    let folder = resolve_folder(folder)?;
    let mut listed = Vec::new();
    for client in &CLIENTS {
        for scope in [ClientSettingsScope::Project, ClientSettingsScope::User] {
            let Some(path) = client.settings_file(scope, &folder) else { continue };
            let is_found = path.symlink_metadata().is_ok()
                || (scope == ClientSettingsScope::User && client.is_installed());
            if is_found {
                let state = connection_state(client, scope, &path, &folder);
                listed.push(ListedSettingsFile { client, scope, state, path });
            }
        }
    }
    if listed.is_empty() {
        complain(&format!(
            "found no settings of a client; name the client to connect: {}",
            KnownMcpClient::names().join(", ")
        ));
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&listed))?;
    Ok(ExitCode::SUCCESS)
}

fn table(listed: &[ListedSettingsFile]) -> String {
    let widest = |text: fn(&ListedSettingsFile) -> usize, heading: &str| {
        listed.iter().map(text).max().unwrap_or_default().max(heading.len())
    };
    let name_width = widest(|file| file.client.name.len(), "CLIENT");
    let state_width = widest(|file| file.state.chars().count(), "STATE");
    let mut table =
        format!("{:<name_width$}  {:<7}  {:<state_width$}  FILE\n", "CLIENT", "SCOPE", "STATE");
    for ListedSettingsFile { client, scope, state, path } in listed {
        let scope = match scope {
            ClientSettingsScope::User => "user",
            ClientSettingsScope::Project => "project",
        };
        let (name, path) = (client.name, path.display());
        table += &format!("{name:<name_width$}  {scope:<7}  {state:<state_width$}  {path}\n");
    }
    table
}

/// Describes the toolgate server in the client's settings at `path`, or says that the settings have
/// no such server.
fn connection_state(
    client: &KnownMcpClient,
    scope: ClientSettingsScope,
    path: &Path,
    folder: &Path,
) -> String {
    let project = (scope == ClientSettingsScope::Project).then_some(folder);
    let format = SettingsFormat::of_file(path);
    let place = ServerEntryLocation { format, table: client.servers_key, name: DEFAULT_NAME };
    let servers = SettingsFile::read(path, project).and_then(|file| {
        let servers = place.servers(file.text.as_deref().unwrap_or_default())?;
        Ok((servers, file.path))
    });
    match servers {
        Err(err) => format!("unreadable: {err:#}"),
        Ok((servers, path)) => {
            let is_recorded = |name: &str| SettingsChangeRecord::load(&path, name).is_some();
            let described: Vec<String> = servers
                .iter()
                .filter_map(|(name, entry)| describe_server(name, entry, is_recorded(name)))
                .collect();
            match described.is_empty() {
                true => "not connected".to_owned(),
                false => described.join("; "),
            }
        }
    }
}

/// Describes the entry `name` of a client's settings, or returns `None` if it is not a toolgate
/// server. An entry is a toolgate server if its name or program says so, or if `is_recorded` says
/// that `toolgate connect` added it.
fn describe_server(name: &str, entry: &Value, is_recorded: bool) -> Option<String> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let command = text("command").or_else(|| entry.pointer("/command/path")?.as_str());
    let url = ["url", "serverUrl", "httpUrl"].into_iter().find_map(text);
    let is_ours = is_recorded || name == DEFAULT_NAME || command.is_some_and(is_toolgate);
    let argument = |at: usize| entry.get("args")?.get(at)?.as_str();
    let served = match (command, url) {
        (Some(command), _) if is_toolgate(command) => argument(1),
        // A program that forwards to a URL has it as an argument.
        (Some(_), _) => argument(2),
        (None, url) => url,
    };
    let served = served.map(|served| format!(" to {served}")).unwrap_or_default();
    let own_name = if name == DEFAULT_NAME { String::new() } else { format!(" as `{name}`") };
    let access = if is_read_only(entry) { ", read-only" } else { "" };
    is_ours.then(|| format!("connected{served}{own_name}{access}"))
}
