//! The texts and schemas of the tools that a client sees instead of all others: `tools_search`,
//! `tools_call` and `tools_read`.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// Maximum number of servers that the description of `tools_search` names.
const SERVERS_MAX: usize = 15;

/// Description of `tools_call`.
pub const CALL_DESCRIPTION: &str = "Call a tool that tools_search found, by its name and with its \
    own arguments.";

/// Description of `tools_read`.
pub const READ_DESCRIPTION: &str = "Like tools_call, for tools that only read.";

/// Returns the description of `tools_search` for a caller who sees `servers`: the name of each with
/// the number of its tools that are not listed.
pub fn search_description(servers: &[(String, usize)]) -> String {
    let total: usize = servers.iter().map(|(_, count)| count).sum();
    let mut text = format!(
        "Find tools by what they do; call them with tools_call. Write one query for each need. \
         `names` returns whole schemas, `server` lists the tools of one server. {total} tools: "
    );
    let mut servers: Vec<&(String, usize)> = servers.iter().collect();
    servers.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    for (at, (name, count)) in servers.iter().take(SERVERS_MAX).enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        _ = write!(text, "{separator}{name} {count}");
    }
    if servers.len() > SERVERS_MAX {
        _ = write!(text, " and {} more servers", servers.len() - SERVERS_MAX);
    }
    text.push('.');
    text
}

/// Returns the JSON Schema of the arguments of `tools_search`.
pub fn search_schema() -> Value {
    let texts = || json!({ "type": "array", "items": { "type": "string" }, "maxItems": 20 });
    json!({
        "type": "object",
        "properties": {
            "queries": texts(),
            "names": texts(),
            "server": { "type": "string" },
            "limit": { "type": "integer", "minimum": 1, "maximum": 20, "default": 10 },
            "page": { "type": "integer", "minimum": 1 },
        },
    })
}

/// Returns the JSON Schema of the arguments of `tools_call` and `tools_read`.
pub fn call_schema() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "arguments": { "type": "object" } },
        "required": ["name"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_servers_are_named_first_and_the_rest_are_counted() {
        let servers: Vec<_> = (0..20).map(|at| (format!("s{at:02}"), at + 1)).collect();
        let text = search_description(&servers);
        assert!(text.contains("210 tools: s19 20, s18 19"), "{text}");
        assert!(text.ends_with("s05 6 and 5 more servers."), "{text}");
    }
}
