//! Names of tools and prompts in the envelope dialect.

use toolgate_contract::{CallError, ToolId};

use super::requests::{clip_name, invalid_input};
use crate::tool_mentions::own_tool_id;

/// The prefix of a tool's id in the envelope dialect.
const TOOL: &str = "mcp.tool:";
/// The prefix of a prompt's id in the envelope dialect.
const PROMPT: &str = "core.generic.";
/// The major version of every prompt in the envelope dialect. No prompt has had a breaking change
/// yet.
pub(super) const PROMPT_MAJOR: u32 = 1;

/// Older names of tools in the envelope dialect, with the catalog's names.
const ALIASES: [(&str, &str); 2] =
    [("exports.render.markdown", "docs.render"), ("vector.query.search", "docs.search")];

/// Returns the envelope dialect's id for the catalog tool `id`.
pub fn canonical_tool_id(id: &ToolId) -> String {
    let alias = ALIASES.iter().find(|(_, ours)| *ours == id.as_str());
    format!("{TOOL}{}", alias.map_or(id.as_str(), |(theirs, _)| theirs))
}

/// Parses the tool id `id` of a request, which must be spelled as in the answer to a discovery
/// request. Returns the catalog's id.
pub(super) fn parse_tool_id(id: &str) -> Result<&str, CallError> {
    let spelled = id.strip_prefix(TOOL).and_then(ToolId::foreign);
    if spelled.is_none() {
        return Err(invalid_input("/tool", &explain_invalid_id(id)));
    }
    let tool = catalog_name(id);
    // A tool with an older name has only that name here.
    match ToolId::foreign(tool).filter(|tool| canonical_tool_id(tool) == id) {
        Some(_) => Ok(tool),
        None => Err(CallError::UnknownTool {
            name: clip_name(id),
            nearest: Some(tool.to_owned()),
            unavailable: None,
        }),
    }
}

/// Explains that `id` is not the id of any tool, and names the id that is probably meant.
fn explain_invalid_id(id: &str) -> String {
    if id.is_empty() {
        return "the tool id is missing; discovery lists the ids, such as \
                `mcp.tool:docs.load.fetch`"
            .to_owned();
    }
    let id = clip_name(id);
    match nearest_tool_id(&id) {
        Some(nearest) => {
            format!("`{id}` is not a tool id of this contract; did you mean `{nearest}`?")
        }
        None => format!(
            "`{id}` is not a tool id of this contract; discovery lists the ids, such as \
             `mcp.tool:docs.load.fetch`"
        ),
    }
}

/// Returns the tool id that the invalid `id` probably stands for. `id` may lack the prefix, have
/// another prefix, or spell one of the server's own tools with other separators (`git_add`). Returns
/// `None` if `id` resembles no tool id.
fn nearest_tool_id(id: &str) -> Option<String> {
    let name = catalog_name(id.rsplit(':').next().unwrap_or(id));
    let tool = match own_tool_id(name) {
        Some(own) => own,
        None if name.contains('.') => name,
        None => return None,
    };
    ToolId::foreign(tool).map(|tool| canonical_tool_id(&tool))
}

/// Returns the catalog's name for the tool `name`, which may have the prefix of ids.
pub fn catalog_name(name: &str) -> &str {
    let name = name.strip_prefix(TOOL).unwrap_or(name);
    let alias = ALIASES.iter().find(|(theirs, _)| *theirs == name);
    alias.map_or(name, |(_, ours)| ours)
}

/// Returns the envelope dialect's id of the prompt `name`.
pub(super) fn prompt_id(name: &str) -> String {
    format!("{PROMPT}{name}@{PROMPT_MAJOR}")
}

/// Parses the name of a prompt from its `id` in the envelope dialect.
pub(super) fn prompt_name(id: &str) -> Result<&str, CallError> {
    let parts = id.rsplit_once('@').and_then(|(path, major)| {
        let is_valid = !path.is_empty() && major.bytes().all(|b| b.is_ascii_digit());
        Some((path, major.parse::<u32>().ok()?)).filter(|_| is_valid)
    });
    let Some((path, major)) = parts else {
        let why =
            format!("`{}` is not a prompt id such as `core.generic.bootstrap@1`", clip_name(id));
        return Err(invalid_input("/promptId", &why));
    };
    let name = path.strip_prefix(PROMPT).filter(|_| major == PROMPT_MAJOR);
    name.ok_or_else(|| CallError::NotFound {
        message: format!("no prompt is named `{}`; discovery lists the prompts", clip_name(id)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_id_is_encoded_as_the_contract_spells_it() {
        let spelled = |id| canonical_tool_id(&ToolId::new(id).expect("an id"));
        assert_eq!(spelled("files.read"), "mcp.tool:files.read");
        assert_eq!(spelled("docs.render"), "mcp.tool:exports.render.markdown");
        for id in ["files.read", "docs.render", "docs.search", "docs.load.fetch"] {
            assert_eq!(catalog_name(&spelled(id)), id);
            assert_eq!(catalog_name(&format!("mcp.tool:{id}")), id);
        }
    }

    #[test]
    fn only_the_id_in_discovery_is_a_tool_id() {
        assert_eq!(parse_tool_id("mcp.tool:files.read"), Ok("files.read"));
        assert_eq!(parse_tool_id("mcp.tool:ev.get-Sum"), Ok("ev.get-Sum"));
        assert_eq!(parse_tool_id("mcp.tool:vector.query.search"), Ok("docs.search"));
        let unknown = parse_tool_id("mcp.tool:docs.search");
        assert!(matches!(unknown, Err(CallError::UnknownTool { .. })), "{unknown:?}");
        for id in [
            "",
            "mcp.tool:",
            "files.read",
            "docs_load_fetch",
            "MCP.TOOL:files.read",
            "mcp.tool:mcp.tool:files.read",
            "mcp.tool:files read",
            "mcp.tool: files.read",
            "mcp.tools:files.read",
        ] {
            let parsed = parse_tool_id(id);
            assert!(matches!(parsed, Err(CallError::InvalidInput { .. })), "{id}: {parsed:?}");
        }
    }

    #[test]
    fn an_invalid_tool_id_is_refused_with_the_id_that_is_meant() {
        for (id, expected) in [
            ("files.read", "did you mean `mcp.tool:files.read`?"),
            ("docs_load_fetch", "did you mean `mcp.tool:docs.load.fetch`?"),
            ("docs.search", "did you mean `mcp.tool:vector.query.search`?"),
            ("exports.render.markdown", "did you mean `mcp.tool:exports.render.markdown`?"),
            ("mcp.tools:ev.get-Sum", "did you mean `mcp.tool:ev.get-Sum`?"),
            ("frobnicate", "discovery lists the ids"),
            ("mcp.tool:a b", "discovery lists the ids"),
            ("", "the tool id is missing"),
        ] {
            let why = parse_tool_id(id).expect_err(id).to_string();
            assert!(why.contains(expected), "{id}: {why}");
        }
    }

    #[test]
    fn a_prompt_id_is_parsed_by_domain_and_version() {
        assert_eq!(prompt_name(&prompt_id("bootstrap")), Ok("bootstrap"));
        for unknown in ["core.generic.bootstrap@2", "other.bootstrap@1", "bootstrap@1"] {
            assert!(matches!(prompt_name(unknown), Err(CallError::NotFound { .. })), "{unknown}");
        }
        for none in ["", "core.generic.bootstrap", "@1", "a@", "a@x", "a@-1", "a@99999999999"] {
            assert!(matches!(prompt_name(none), Err(CallError::InvalidInput { .. })), "{none}");
        }
    }
}
