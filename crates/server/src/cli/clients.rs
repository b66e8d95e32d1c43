//! Known MCP clients: their settings files, and the format of a server's entry in them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toolgate_service::config::environment;

/// An MCP client that `toolgate connect` and `toolgate import` know.
pub(super) struct KnownMcpClient {
    /// Name of the client on the command line, such as `claude`.
    pub(super) name: &'static str,
    /// Name of the product, such as `Claude Code`.
    pub(super) title: &'static str,
    /// Name of a folder in the user's home folder that exists if the client is installed.
    home: &'static str,
    /// Settings files of the client that may contain servers or filters of tools, in the client's
    /// order of preference.
    pub(super) files: &'static [ClientSettingsFile],
    /// Key of the table of MCP servers in the client's settings.
    pub(super) servers_key: &'static str,
    /// Value of `type` in the settings entry of a server that the client starts. `None` if the
    /// entry needs no `type`.
    pub(super) program_type: Option<&'static str>,
    /// Format of the settings entry of a server that is reached at a URL.
    pub(super) url_entry: UrlServerEntryFormat,
    /// Text before and after the name of an environment variable in an HTTP header, such as `${`
    /// and `}`. `None` if the client does not replace variables there.
    pub(super) variable: Option<(&'static str, &'static str)>,
    /// Advice for the user after `toolgate connect` has changed the client's settings.
    pub(super) next_step: &'static str,
}

/// Format of the entry of a server that is reached at a URL, in a client's settings.
pub(super) enum UrlServerEntryFormat {
    /// An entry with the URL under the key `key`, and with HTTP headers under `headers`.
    Headers {
        /// Key of the URL in the entry.
        key: &'static str,
        /// Value of `type` in the entry. `None` if the entry needs no `type`.
        kind: Option<&'static str>,
    },
    /// An entry with the keys of Codex: `bearer_token_env_var` and `http_headers`.
    Codex,
    /// An entry that starts a program which forwards to the URL, for clients that only start
    /// programs.
    Bridge,
}

/// A settings file of an MCP client.
pub(super) struct ClientSettingsFile {
    /// Path of the settings file. `~` is the home folder, and relative paths are in the workspace.
    path: &'static str,
    /// True if `toolgate connect` adds servers to this file. Servers in other files are only
    /// imported.
    is_writable: bool,
}

/// The projects for which a client's settings file is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ClientSettingsScope {
    /// All projects of this user
    User,
    /// One folder
    Project,
}

/// Describes the settings file at `path`, to which `toolgate connect` may add servers.
const fn settings(path: &'static str) -> ClientSettingsFile {
    ClientSettingsFile { path, is_writable: true }
}

/// Describes the settings file at `path`, from which toolgate only imports servers.
const fn other(path: &'static str) -> ClientSettingsFile {
    ClientSettingsFile { path, is_writable: false }
}

/// Settings paths that an environment variable relocates: the start of the path, the variable, and
/// the path below the variable's folder that replaces this start.
const MOVED_PATHS: [(&str, &str, &str); 4] = [
    ("~/.claude.json", "CLAUDE_CONFIG_DIR", ".claude.json"),
    ("~/.claude/", "CLAUDE_CONFIG_DIR", ""),
    ("~/.codex/", "CODEX_HOME", ""),
    ("~/.config/", "XDG_CONFIG_HOME", ""),
];

/// The MCP clients that toolgate knows.
pub(super) static CLIENTS: [KnownMcpClient; 11] = [
    KnownMcpClient {
        name: "claude",
        title: "Claude Code",
        home: "~/.claude",
        files: &[
            settings(".mcp.json"),
            settings("~/.claude.json"),
            other(".claude/settings.json"),
            other(".claude/settings.local.json"),
            other("~/.claude/settings.json"),
        ],
        servers_key: "mcpServers",
        program_type: Some("stdio"),
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: Some("http") },
        variable: Some(("${", "}")),
        next_step: "start Claude Code again; it asks you to approve the servers of a project, and \
                    `claude mcp list` shows whether they are connected",
    },
    KnownMcpClient {
        name: "claude-desktop",
        title: "Claude Desktop",
        home: "~/.config/Claude",
        files: &[
            settings("~/.config/Claude/claude_desktop_config.json"),
            settings("~/Library/Application Support/Claude/claude_desktop_config.json"),
        ],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Bridge,
        variable: None,
        next_step: "quit and start Claude Desktop",
    },
    KnownMcpClient {
        name: "cline",
        title: "Cline",
        home: "~/.cline",
        files: &[
            settings("~/.cline/data/settings/cline_mcp_settings.json"),
            settings(
                "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ),
            settings(
                "~/Library/Application Support/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ),
        ],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: Some("streamableHttp") },
        variable: None,
        next_step: "open MCP Servers in Cline to see the server",
    },
    KnownMcpClient {
        name: "codex",
        title: "Codex",
        home: "~/.codex",
        files: &[settings(".codex/config.toml"), settings("~/.codex/config.toml")],
        servers_key: "mcp_servers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Codex,
        variable: Some(("", "")),
        next_step: "start Codex again; it reads the file of a project only after you trust the \
                    project, and `codex mcp list` shows the servers",
    },
    KnownMcpClient {
        name: "cursor",
        title: "Cursor",
        home: "~/.cursor",
        files: &[settings(".cursor/mcp.json"), settings("~/.cursor/mcp.json")],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: None },
        variable: Some(("${env:", "}")),
        next_step: "turn the server on in Cursor Settings, under MCP",
    },
    KnownMcpClient {
        name: "gemini",
        title: "Gemini CLI",
        home: "~/.gemini",
        files: &[settings(".gemini/settings.json"), settings("~/.gemini/settings.json")],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "httpUrl", kind: None },
        variable: Some(("${", "}")),
        next_step: "start Gemini CLI again, in a folder that it trusts; `gemini mcp list` shows the \
                    servers",
    },
    KnownMcpClient {
        name: "jetbrains",
        title: "JetBrains Junie",
        home: "~/.junie",
        files: &[
            settings(".junie/mcp/mcp.json"),
            settings("~/.junie/mcp/mcp.json"),
            other(".air/mcp.json"),
            other("~/.config/github-copilot/intellij/mcp.json"),
            other("~/.local/share/github-copilot/intellij/mcp.json"),
            other("~/Library/Application Support/github-copilot/intellij/mcp.json"),
        ],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Bridge,
        variable: None,
        next_step: "Junie reads the file when it starts. AI Assistant has no file: paste the output \
                    of `--print` into Settings > Tools > AI Assistant > Model Context Protocol (MCP)",
    },
    KnownMcpClient {
        name: "roo",
        title: "Roo Code",
        home: "~/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline",
        files: &[
            settings(".roo/mcp.json"),
            settings(
                "~/.config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
            ),
            settings(
                "~/Library/Application Support/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
            ),
        ],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: Some("streamable-http") },
        variable: None,
        next_step: "open the MCP servers of Roo Code to see the server",
    },
    KnownMcpClient {
        name: "vscode",
        title: "VS Code",
        home: "~/.config/Code",
        files: &[
            settings(".vscode/mcp.json"),
            settings("~/.config/Code/User/mcp.json"),
            settings("~/Library/Application Support/Code/User/mcp.json"),
        ],
        servers_key: "servers",
        program_type: Some("stdio"),
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: Some("http") },
        variable: None,
        next_step: "open the file in VS Code and select Start above the entry",
    },
    KnownMcpClient {
        name: "windsurf",
        title: "Windsurf",
        home: "~/.codeium",
        files: &[
            settings("~/.codeium/windsurf/mcp_config.json"),
            settings("~/.codeium/mcp_config.json"),
        ],
        servers_key: "mcpServers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "serverUrl", kind: None },
        variable: Some(("${env:", "}")),
        next_step: "refresh the MCP servers in Windsurf",
    },
    KnownMcpClient {
        name: "zed",
        title: "Zed",
        home: "~/.config/zed",
        files: &[settings(".zed/settings.json"), settings("~/.config/zed/settings.json")],
        servers_key: "context_servers",
        program_type: None,
        url_entry: UrlServerEntryFormat::Headers { key: "url", kind: None },
        variable: None,
        next_step: "open the settings of the Agent Panel in Zed to see the server",
    },
];

impl KnownMcpClient {
    /// Returns the client with this command-line `name`, or `None` if no client has this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        CLIENTS.iter().find(|client| client.name == name)
    }

    /// Returns the command-line names of all clients.
    pub(super) fn names() -> [&'static str; 11] {
        CLIENTS.each_ref().map(|client| client.name)
    }

    /// Returns true if the client is installed: its folder in the user's home folder exists.
    #[allow(clippy::disallowed_methods, reason = "the user's own folders")]
    pub(super) fn is_installed(&self) -> bool {
        user_path(self.home).is_some_and(|folder| folder.is_dir())
    }

    /// Returns true if the client has settings for `scope`.
    pub(super) fn has_scope(&self, scope: ClientSettingsScope) -> bool {
        self.files.iter().any(|file| file.is_writable && file.scope() == scope)
    }

    /// Returns the settings file of the client for new servers of `scope`: the first that exists,
    /// or the first of all. `root` is the workspace. Returns `None` if the client has no such file,
    /// or if there is no home folder.
    pub(super) fn settings_file(&self, scope: ClientSettingsScope, root: &Path) -> Option<PathBuf> {
        let of_scope = |file: &&ClientSettingsFile| file.is_writable && file.scope() == scope;
        let files = self.files.iter().filter(of_scope);
        let paths: Vec<PathBuf> = files.filter_map(|file| file.resolve(root)).collect();
        let existing = paths.iter().find(|path| path.symlink_metadata().is_ok());
        existing.or(paths.first()).cloned()
    }
}

impl ClientSettingsFile {
    /// Returns the path of this settings file, or `None` if there is no home folder. `root` is the
    /// workspace.
    pub(super) fn resolve(&self, root: &Path) -> Option<PathBuf> {
        match self.scope() {
            ClientSettingsScope::User => user_path(self.path),
            ClientSettingsScope::Project => Some(root.join(self.path)),
        }
    }

    fn scope(&self) -> ClientSettingsScope {
        if self.path.starts_with("~/") {
            ClientSettingsScope::User
        } else {
            ClientSettingsScope::Project
        }
    }
}

/// Returns the keys under which any client's settings list servers.
pub(super) fn server_keys() -> Vec<&'static str> {
    let mut keys = Vec::new();
    for client in &CLIENTS {
        if !keys.contains(&client.servers_key) {
            keys.push(client.servers_key);
        }
    }
    keys
}

/// Returns true if `command` starts toolgate.
pub(super) fn is_toolgate(command: &str) -> bool {
    Path::new(command).file_stem() == Some(OsStr::new("toolgate"))
}

/// Returns the absolute path of `path`, which begins with `~/`. An environment variable may replace
/// the beginning. Returns `None` if there is no home folder.
fn user_path(path: &str) -> Option<PathBuf> {
    for (prefix, variable, replacement) in MOVED_PATHS {
        if let Some(rest) = path.strip_prefix(prefix)
            && let Some(folder) = absolute_variable(variable)
        {
            return Some(folder.join(format!("{replacement}{rest}")));
        }
    }
    Some(absolute_variable("HOME")?.join(path.strip_prefix("~/")?))
}

/// Returns the path in the environment variable `name`, or `None` if the variable is not set or its
/// path is not absolute.
fn absolute_variable(name: &str) -> Option<PathBuf> {
    let value = environment().into_iter().find(|(key, _)| key == name)?.1;
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}
