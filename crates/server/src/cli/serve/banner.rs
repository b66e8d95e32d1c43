//! Prints the startup message of a server: its address, and commands that connect clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::{Path, absolute};
use std::sync::Arc;

use jiff::Timestamp;
use toolgate_contract::Caller;
use toolgate_service::assembly::wiring::ServedWorkspace;
use toolgate_service::config::{ApiKey, Config, ConsoleMode, key_file};
use toolgate_upstream::UpstreamState;

/// Startup message of a server, with the data that it shows.
pub(super) struct StartupBanner<'a> {
    pub(super) workspace: &'a ServedWorkspace,
    pub(super) config: &'a Config,
    /// Folder that the server serves.
    pub(super) root: &'a Path,
    /// Settings file of the server, if there is one.
    pub(super) file: Option<&'a Path>,
    pub(super) read_only: bool,
    /// Scheme and address of the shared listener, such as `http://127.0.0.1:8000`. `None` if each
    /// dialect has its own listener.
    pub(super) origin: Option<String>,
    /// Names of the dialects that the shared listener serves.
    pub(super) dialects: Vec<&'static str>,
}

impl StartupBanner<'_> {
    /// Prints the startup message: instructions on a terminal, or one line in a log.
    #[allow(clippy::print_stderr, reason = "a person started the server to see this")]
    pub(super) fn print(&self) -> anyhow::Result<()> {
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.to_owned());
        let root = root.display();
        let read_only = if self.read_only { ", read-only" } else { "" };
        let place = self.place();
        if !std::io::stderr().is_terminal() {
            let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
            eprintln!("toolgate: serving {root}{read_only}{place}");
            return Ok(());
        }
        let version = env!("CARGO_PKG_VERSION");
        eprintln!("toolgate {version} serves {root}{read_only}");
        if let Some(place) = place {
            eprintln!("  at         {place}");
        }
        if let Some(file) = self.file {
            let file = absolute(file).unwrap_or_else(|_| file.to_owned());
            eprintln!("  config     {}", file.display());
        }
        eprintln!("  tools      {}", self.tools()?);
        if !self.config.upstream.is_empty() {
            eprintln!("  upstreams  {}", self.upstreams());
        }
        if let Some(console) = self.console()? {
            eprintln!("  console    {console}");
        }
        if let Some(url) = self.mcp_url() {
            eprintln!("\nConnect an agent:\n{}", connect_lines(&url, self.has_keys()?));
        }
        Ok(())
    }

    /// Returns the address of the console, or `None` if there is no console. If callers need no API
    /// key, the address is a one-time link.
    fn console(&self) -> anyhow::Result<Option<String>> {
        let Some(origin) = &self.origin else { return Ok(None) };
        if self.config.server.console == ConsoleMode::Off {
            return Ok(None);
        }
        if self.config.requires_credential()? {
            return Ok(Some(format!("{origin}/ (with a key that has the role admin or console)")));
        }
        // Without a home folder, there is no key for links, and the log says so.
        Ok(crate::cli::console::link(origin).ok())
    }

    /// Returns the URL of the MCP endpoint, if the shared listener serves MCP.
    fn mcp_url(&self) -> Option<String> {
        let origin = self.origin.as_deref().filter(|_| self.dialects.contains(&"mcp"))?;
        Some(format!("{origin}/mcp"))
    }

    /// Returns the URL of the MCP endpoint. If the shared listener does not serve MCP, returns the
    /// listener's address and dialects instead. Returns `None` if there is no shared listener.
    fn place(&self) -> Option<String> {
        let origin = self.origin.as_deref()?;
        Some(self.mcp_url().unwrap_or_else(|| match self.dialects.is_empty() {
            true => format!("{origin} (no dialects)"),
            false => format!("{origin} (dialects: {})", self.dialects.join(", ")),
        }))
    }

    /// Returns the number of tools by toolset as text. If callers need a credential, counts the
    /// tools that at least one API key allows.
    fn tools(&self) -> anyhow::Result<String> {
        let needs_credential = self.config.requires_credential()?;
        let callers: Vec<_> = match needs_credential {
            true => self.config.valid_keys(Timestamp::now())?.iter().map(key_caller).collect(),
            false => vec![Caller::anonymous()],
        };
        let mut ids = BTreeSet::new();
        for caller in &callers {
            let tools = self.workspace.host.tools(caller).tools;
            ids.extend(tools.iter().map(|tool| tool.spec().id.clone()));
        }
        let mut toolsets: BTreeMap<&str, usize> = BTreeMap::new();
        for id in &ids {
            *toolsets.entry(id.toolset()).or_default() += 1;
        }
        let toolsets: Vec<_> =
            toolsets.into_iter().map(|(toolset, count)| format!("{toolset} {count}")).collect();
        let count = ids.len();
        let toolsets = toolsets.join(", ");
        Ok(match (needs_credential, count) {
            (true, 0) => {
                "none that a key may use; each caller sees the tools that the policy allows \
                          (`toolgate policy explain` shows why)"
                    .to_owned()
            }
            (true, _) => {
                format!("{count}: {toolsets}; each caller sees those that the policy allows")
            }
            (false, 0) => "none; the settings allow no tool to the caller `http` (`toolgate \
                           policy explain http TOOL` shows why)"
                .to_owned(),
            (false, _) => format!("{count}: {toolsets}; `toolgate tools` lists them"),
        })
    }

    fn upstreams(&self) -> String {
        let states: BTreeMap<_, _> = self.workspace.upstream_states().into_iter().collect();
        let states = self.config.upstream.keys().map(|name| {
            let state = match states.get(name) {
                Some(UpstreamState::Connected) => "connected",
                Some(UpstreamState::Failing) => "unreachable",
                Some(UpstreamState::Idle) => "idle until a caller needs it",
                None => "disabled",
            };
            format!("{name} ({state})")
        });
        states.collect::<Vec<_>>().join(", ")
    }

    /// Returns true if the settings or the key file contain API keys. Fails if the key file cannot
    /// be read.
    fn has_keys(&self) -> anyhow::Result<bool> {
        if !self.config.keys.is_empty() {
            return Ok(true);
        }
        let Some(file) = key_file::path(&self.config.server)? else { return Ok(false) };
        Ok(key_file::list_keys(&file)?.is_some())
    }
}

/// Prints on a terminal how to stop the server.
#[allow(clippy::print_stderr, reason = "a person started the server to see this")]
pub(super) fn print_stop_hint() {
    if std::io::stderr().is_terminal() {
        eprintln!("\nctrl-c stops it.");
    }
}

/// Returns the caller who has the API key `key`.
fn key_caller(key: &ApiKey) -> Caller {
    let roles = key.roles.iter().map(|role| Arc::from(role.as_str())).collect();
    Caller { roles, ..Caller::with_key(&key.name) }
}

/// Returns the shell commands that connect clients to the server at `url`. If clients need an API
/// key, the commands use the key in `TOOLGATE_KEY`.
fn connect_lines(url: &str, needs_key: bool) -> String {
    let (note, option, flag, headers) = match needs_key {
        false => ("", "", "", ""),
        true => (
            "  Set TOOLGATE_KEY to your key first; `toolgate key new NAME` creates one.\n",
            " --key-env TOOLGATE_KEY",
            " --header \"Authorization: Bearer $TOOLGATE_KEY\"",
            ",\"headers\":{\"Authorization\":\"Bearer ${env:TOOLGATE_KEY}\"}",
        ),
    };
    format!(
        "{note}\
         \x20 Claude Code   claude mcp add --transport http toolgate {url}{flag}\n\
         \x20 Cursor        in .cursor/mcp.json: {{\"mcpServers\":{{\"toolgate\":{{\"url\":\"{url}\"{headers}}}}}}}\n\
         \x20 VS Code       code --add-mcp '{{\"name\":\"toolgate\",\"type\":\"http\",\"url\":\"{url}\"{headers}}}'\n\
         \x20 Other clients toolgate connect CLIENT --url {url}{option}"
    )
}
