//! Named sets of tools, for the setting `tools.allow` and the option `--tools`.

use toolgate_contract::ToolId;

use crate::assembly::tool_search::searches_tools;
use crate::config::Config;

/// Tools of the set `core`, with which an agent can find, read, change and test code.
const CORE_TOOLS: [&str; 14] = [
    "files.tree",
    "files.search",
    "files.read",
    "files.write",
    "files.edit",
    "search.text",
    "search.semantic",
    "exec.run",
    "exec.output",
    "git.status",
    "git.diff",
    "git.log",
    "git.commit",
    "ci.test",
];

/// Returns the patterns of the tools that the settings allow. `tools` are the server's own tools.
///
/// If the server has upstreams, the tool that reads long results is allowed. If tool search is on,
/// the tools that find and call other tools are allowed, because each called tool is checked
/// separately.
pub(crate) fn allowed_patterns(config: &Config, tools: &[ToolId]) -> Vec<String> {
    let upstreams = config.upstream.iter().flat_map(|(name, upstream)| {
        [Some(name.clone()), upstream.prefix.clone()].into_iter().flatten()
    });
    let own = tools.iter().map(|id| id.toolset().to_owned());
    let toolsets: Vec<String> = own.chain(upstreams).collect();
    let allowed = config.tools.allow.iter().flat_map(|name| patterns_of(name, tools, &toolsets));
    let results = config.upstream.values().next().map(|_| "results.read");
    let searching = ["tools.search", "tools.call", "tools.read"];
    let searching = searching.into_iter().filter(|_| searches_tools(config));
    let added = results.into_iter().chain(searching).map(str::to_owned);
    allowed.chain(added).collect()
}

/// Returns the patterns for `name`, an entry of `tools.allow`. The entry is the name of a set, the
/// name of a toolset, or already a pattern.
fn patterns_of(name: &str, tools: &[ToolId], toolsets: &[String]) -> Vec<String> {
    let is_tool = tools.iter().any(|id| id.as_str() == name);
    match name {
        "core" => CORE_TOOLS.map(str::to_owned).into(),
        "all" => vec!["*".to_owned()],
        toolset if !is_tool && toolsets.iter().any(|known| known == toolset) => {
            vec![format!("{toolset}.*")]
        }
        pattern => vec![pattern.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_set_a_toolset_or_a_pattern() {
        let tools = ["files.read", "git.log", "echo"].map(|id| ToolId::new(id).expect("an id"));
        let toolsets = ["files", "git", "echo", "docs"].map(str::to_owned);
        let patterns = |name: &str| patterns_of(name, &tools, &toolsets).join(" ");
        assert_eq!(patterns("all"), "*");
        assert_eq!(patterns("files"), "files.*");
        assert_eq!(patterns("docs"), "docs.*");
        assert_eq!(patterns("echo"), "echo");
        assert_eq!(patterns("git.log"), "git.log");
        assert_eq!(patterns("files_*"), "files_*");
        assert!(patterns("core").contains("files.read"));
    }
}
