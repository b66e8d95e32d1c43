//! Names of tools and prompts in the envelope dialect.

use toolgate_contract::{CallError, ToolId};

use super::requests::{clip_name, invalid_input};

/// The prefix of a tool's id.
const TOOL: &str = "mcp.tool:";
/// The prefix of a prompt's id.
const PROMPT: &str = "core.generic.";
/// The major version of every prompt. No prompt has had a breaking change yet.
pub(super) const PROMPT_MAJOR: u32 = 1;

/// Older names of tools in this dialect, with the catalog's names.
const ALIASES: [(&str, &str); 2] =
    [("exports.render.markdown", "docs.render"), ("vector.query.search", "docs.search")];

/// Returns the dialect's id for the catalog tool `id`.
pub fn canonical_tool_id(id: &ToolId) -> String {
    let alias = ALIASES.iter().find(|(_, ours)| *ours == id.as_str());
    format!("{TOOL}{}", alias.map_or(id.as_str(), |(theirs, _)| theirs))
}

/// Returns the catalog's name for the tool `name`, which may have the id prefix.
pub fn catalog_name(name: &str) -> &str {
    let name = name.strip_prefix(TOOL).unwrap_or(name);
    let alias = ALIASES.iter().find(|(theirs, _)| *theirs == name);
    alias.map_or(name, |(_, ours)| ours)
}

/// Returns the id of the prompt `name`.
pub(super) fn prompt_id(name: &str) -> String {
    format!("{PROMPT}{name}@{PROMPT_MAJOR}")
}

/// Parses the prompt's name from its `id`.
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
