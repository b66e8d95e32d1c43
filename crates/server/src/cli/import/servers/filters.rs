//! Filters of tools and servers in the settings of MCP clients.

use std::path::Path;

use serde_json::{Map, Value};
use toolgate_upstream::EXCLUSION;

/// Keys of a server's entry in a client's settings that list the tools to offer.
const INCLUDE_KEYS: [&str; 5] =
    ["includeTools", "enabled_tools", "enabledTools", "allowedTools", "tools"];
/// Keys of a server's entry in a client's settings that list the tools to leave out.
const EXCLUDE_KEYS: [&str; 5] =
    ["excludeTools", "disabledTools", "disabled_tools", "excludedTools", "deniedTools"];
/// Keys in a client's settings that switch a server or a tool off if they are true.
pub(super) const OFF_KEYS: [&str; 2] = ["disabled", "isDisabled"];
/// Keys in a client's settings that switch a server or a tool off if they are false.
pub(super) const ON_KEYS: [&str; 4] = ["enabled", "isActive", "active", "isEnabled"];
/// JSON pointers to the lists of disabled servers in clients' settings.
const OFF_LISTS: [&str; 5] = [
    "/mcp/excluded",
    "/excludeMCPServers",
    "/disabledMcpServers",
    "/disabledMcpjsonServers",
    "/mcp/disabled",
];
/// JSON pointers to the lists in clients' settings that enable only the listed servers.
const ON_LISTS: [&str; 2] = ["/mcp/allowed", "/allowMCPServers"];
/// JSON pointers to filters in clients' settings that apply to the tools of all servers, or to some
/// profiles. The import reports these filters and does not apply them.
const OTHER_FILTERS: [&str; 10] = [
    "/tools/exclude",
    "/tools/core",
    "/excludeTools",
    "/coreTools",
    "/agent/profiles",
    "/agent/tool_permissions",
    "/profiles",
    "/enabledMcpjsonServers",
    "/allowedMcpServers",
    "/permissions/ask",
];
/// Keys in a client's profile whose settings concern servers.
const PROFILE_KEYS: [&str; 2] = ["context_servers", "mcp_servers"];
/// JSON pointer to the list of servers that Claude Code must not start. An item is `{ "serverName":
/// "…" }`.
const DENIED_SERVERS: &str = "/deniedMcpServers";

/// The filters in a client's settings that are outside the entries of its servers.
#[derive(Default)]
pub(super) struct ClientSettingsFilters {
    off: Vec<String>,
    /// Names of the only enabled servers, or `None` if the client has no such list.
    on: Option<Vec<String>>,
    /// Tools that the client denies, as `mcp__SERVER__TOOL`, or `mcp__SERVER` for all tools of a
    /// server.
    denied: Vec<String>,
}

impl ClientSettingsFilters {
    /// Reads the filters in the `contents` of a client's files, for the project in `root`.
    pub(super) fn read<'c>(contents: impl Iterator<Item = &'c Value>, root: &Path) -> Self {
        let mut filters = Self::default();
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        for content in contents {
            let project = content["projects"].get(&*root.to_string_lossy());
            for part in std::iter::once(content).chain(project) {
                for place in OFF_LISTS {
                    filters.off.extend(texts(part.pointer(place)));
                }
                for place in ON_LISTS {
                    if let Some(list @ Value::Array(_)) = part.pointer(place) {
                        filters.on.get_or_insert_default().extend(texts(Some(list)));
                    }
                }
                filters.off.extend(denied_servers(part));
                filters.denied.extend(texts(part.pointer("/permissions/deny")));
            }
        }
        filters
    }

    /// Returns true if the client has switched the server `name` off.
    pub(super) fn is_off(&self, name: &str) -> bool {
        let is_named = |list: &[String]| list.iter().any(|one| one == name);
        let prefix = denied_prefix(name);
        let is_denied = |one: &String| {
            one.strip_prefix(&*prefix).is_some_and(|rest| matches!(rest, "" | "__*"))
        };
        is_named(&self.off)
            || self.on.as_deref().is_some_and(|on| !is_named(on))
            || self.denied.iter().any(is_denied)
    }

    /// Returns the names of the tools of the server `name` that the client denies.
    pub(super) fn denied_tools(&self, name: &str) -> Vec<String> {
        let prefix = denied_prefix(name);
        let tool = |one: &String| Some(one.strip_prefix(&*prefix)?.strip_prefix("__")?.to_owned());
        self.denied.iter().filter_map(tool).filter(|tool| tool != "*").collect()
    }
}

/// Returns the beginning of Claude Code's permission rules about the server `name`.
fn denied_prefix(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    format!("mcp__{}", name.chars().map(valid).collect::<String>())
}

/// Returns the names of the servers that the settings `content` of Claude Code deny.
fn denied_servers(content: &Value) -> impl Iterator<Item = String> {
    let entries = content.pointer(DENIED_SERVERS).and_then(Value::as_array).into_iter().flatten();
    entries.filter_map(|entry| entry["serverName"].as_str()).map(str::to_owned)
}

/// Returns the JSON pointers of the filters in the settings `content` of a client that the import
/// does not apply.
pub(super) fn other_filters(content: &Value) -> Vec<&'static str> {
    let has = |place: &&&str| match content.pointer(place) {
        None | Some(Value::Null) => false,
        Some(Value::Object(permissions)) if **place == "/agent/tool_permissions" => {
            !permissions.is_empty()
        }
        Some(Value::Object(profiles)) => {
            let is_about_servers =
                |profile: &Value| PROFILE_KEYS.iter().any(|key| profile.get(*key).is_some());
            profiles.values().any(is_about_servers)
        }
        // Rules about the client's own tools have no meaning here.
        Some(list @ Value::Array(_)) if **place == "/permissions/ask" => {
            texts(Some(list)).any(|rule| rule.starts_with("mcp__"))
        }
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    let named = OTHER_FILTERS.iter().filter(has).copied();
    let denied = content.pointer(DENIED_SERVERS).and_then(Value::as_array);
    let is_unread = |entry: &Value| !entry["serverName"].is_string();
    let unread = denied.is_some_and(|entries| entries.iter().any(is_unread));
    named.chain(unread.then_some(DENIED_SERVERS)).collect()
}

/// Returns true if the entry of a server in a client's settings switches the server off.
pub(super) fn is_switched_off(server: &Map<String, Value>) -> bool {
    let is = |key: &&str, word: &str| match server.get(*key) {
        Some(Value::Bool(value)) => value.to_string() == word,
        Some(Value::String(text)) => text.eq_ignore_ascii_case(word),
        _ => false,
    };
    OFF_KEYS.iter().any(|key| is(key, "true")) || ON_KEYS.iter().any(|key| is(key, "false"))
}

/// Returns the tools that a server's entry in a client's settings includes, or `None` if the entry
/// has no such list. Leaves out names that toolgate would read as an exclusion.
pub(super) fn included_tools(server: &Map<String, Value>) -> Option<Vec<String>> {
    let lists = INCLUDE_KEYS.iter().filter_map(|key| server.get(*key)?.as_array());
    lists.fold(None, |all: Option<Vec<String>>, list| {
        let mut all = all.unwrap_or_default();
        all.extend(list.iter().filter_map(tool_name).filter(|tool| !tool.starts_with(EXCLUSION)));
        Some(all)
    })
}

/// Returns the end of a TOML comment, which lists the tools that the upstream's `table` excludes.
/// The comment helps readers who do not know that an entry with `!` excludes a tool. Returns an
/// empty text if no tool is excluded.
pub(super) fn excluded_tools_note(table: &toml::Table) -> String {
    let tools = table.get("tools").and_then(toml::Value::as_array);
    let entries = tools.into_iter().flatten().filter_map(toml::Value::as_str);
    let names: Vec<_> = entries.filter_map(|entry| entry.strip_prefix(EXCLUSION)).collect();
    if names.is_empty() { String::new() } else { format!(", without `{}`", names.join("`, `")) }
}

/// Returns the tools that a server's entry in a client's settings leaves out.
pub(super) fn excluded_tools(server: &Map<String, Value>) -> Vec<String> {
    let lists = EXCLUDE_KEYS.iter().filter_map(|key| server.get(*key)?.as_array());
    let listed = lists.flatten().filter_map(tool_name);
    // Some clients have a switch for each tool.
    let switches = server.get("tools").and_then(Value::as_object).into_iter().flatten();
    let off = switches.filter(|(_, switch)| is_tool_off(switch)).map(|(name, _)| name.clone());
    listed.chain(off).collect()
}

/// Returns true if the filter `key` with this `value`, in a server's entry, can be imported
/// completely.
pub(super) fn is_read_filter(key: &str, value: &Value) -> bool {
    let includes = INCLUDE_KEYS.contains(&key);
    let is_read = |tool: &Value| {
        tool_name(tool).is_some_and(|name| !(includes && name.starts_with(EXCLUSION)))
    };
    match value {
        Value::Array(tools) => {
            (includes || EXCLUDE_KEYS.contains(&key)) && tools.iter().all(is_read)
        }
        Value::Object(switches) => key == "tools" && switches.values().all(is_only_switch),
        _ => false,
    }
}

/// Returns the name of `tool`, an item of a list in a client's settings: a text, or an object with
/// a `name`. Returns `None` for any other item.
fn tool_name(tool: &Value) -> Option<String> {
    tool.as_str().or_else(|| tool["name"].as_str()).map(str::to_owned)
}

fn is_tool_off(switch: &Value) -> bool {
    match switch {
        Value::Bool(is_on) => !is_on,
        Value::Object(switches) => is_switched_off(switches),
        _ => false,
    }
}

fn is_only_switch(switch: &Value) -> bool {
    let is_known = |key: &String| OFF_KEYS.contains(&&**key) || ON_KEYS.contains(&&**key);
    match switch {
        Value::Bool(_) => true,
        Value::Object(switches) => switches.keys().all(is_known),
        _ => false,
    }
}

fn texts(list: Option<&Value>) -> impl Iterator<Item = String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filters(content: &Value) -> ClientSettingsFilters {
        ClientSettingsFilters::read(std::iter::once(content), Path::new("/"))
    }

    #[test]
    fn a_server_that_a_client_lists_as_off_is_off() {
        for content in [
            json!({ "mcp": { "excluded": ["a"] } }),
            json!({ "mcp": { "allowed": ["b"] } }),
            json!({ "mcp": { "allowed": [] }, "mcpServers": {} }),
            json!({ "disabledMcpjsonServers": ["a"] }),
            json!({ "projects": { "/": { "disabledMcpServers": ["b", "a"] } } }),
            json!({ "permissions": { "deny": ["Bash", "mcp__a"] } }),
            json!({ "permissions": { "deny": ["mcp__a__*"] } }),
            json!({ "deniedMcpServers": [{ "serverUrl": "https://x" }, { "serverName": "a" }] }),
        ] {
            assert!(filters(&content).is_off("a"), "{content}");
        }
        for content in [
            json!({}),
            json!({ "mcp": { "allowed": ["a"], "excluded": ["b"] } }),
            json!({ "projects": { "/x": { "disabledMcpServers": ["a"] } } }),
            json!({ "permissions": { "deny": ["mcp__a__rm", "mcp__ab"] } }),
        ] {
            assert!(!filters(&content).is_off("a"), "{content}");
        }
    }

    #[test]
    fn tools_that_are_denied_are_found_by_the_name_of_their_server() {
        let deny =
            json!({ "permissions": { "deny": ["mcp__my_fs__rm", "mcp__my_fs__*", "mcp__x__y"] } });
        assert_eq!(filters(&deny).denied_tools("my fs"), ["rm"]);
        assert!(filters(&deny).denied_tools("my").is_empty());
    }

    #[test]
    fn filters_for_all_servers_are_named() {
        let content = json!({ "tools": { "exclude": ["x"], "core": [] }, "agent": { "profiles": {
            "ask": { "context_servers": { "a": { "tools": { "rm": false } } } } } } });
        assert_eq!(other_filters(&content), ["/tools/exclude", "/agent/profiles"]);
        assert!(other_filters(&json!({ "agent": { "profiles": { "ask": {} } } })).is_empty());
        let content = json!({
            "profiles": { "work": { "mcp_servers": {} } },
            "permissions": { "ask": ["Bash", "mcp__a__w"] },
            "enabledMcpjsonServers": ["a"],
            "agent": { "tool_permissions": { "default": "ask" } },
            "deniedMcpServers": [{ "serverCommand": ["x"] }],
        });
        let expected = [
            "/agent/tool_permissions",
            "/profiles",
            "/enabledMcpjsonServers",
            "/permissions/ask",
            "/deniedMcpServers",
        ];
        assert_eq!(other_filters(&content), expected);
        let silent = json!({
            "profiles": { "work": { "model": "x" } },
            "permissions": { "ask": ["Bash"] },
            "deniedMcpServers": [{ "serverName": "a" }],
        });
        assert!(other_filters(&silent).is_empty());
    }
}
