//! Replaces the names of the server's own tools in texts, for dialects that spell the names
//! differently.
//!
//! Errors of the host contain ids in backquotes, as in "`files.read` is called too often". Texts of
//! tools contain MCP's names, as in "stage files with git_add first".

/// The ids of the server's own tools. This crate cannot see the crates with the tools. A test
/// compares the list with the generated reference of tools.
const OWN_TOOLS: [&str; 55] = [
    "assets.diff_assets",
    "assets.get_example",
    "assets.get_schema",
    "assets.list_examples",
    "assets.list_schemas",
    "assets.populate_backend",
    "assets.validate_asset",
    "ci.build",
    "ci.detect",
    "ci.diagnostics",
    "ci.lint",
    "ci.restore",
    "ci.run",
    "ci.test",
    "docs.load.fetch",
    "docs.render",
    "docs.search",
    "exec.output",
    "exec.run",
    "files.copy",
    "files.delete",
    "files.edit",
    "files.exists",
    "files.info",
    "files.list",
    "files.mkdir",
    "files.move",
    "files.read",
    "files.search",
    "files.tree",
    "files.write",
    "git.add",
    "git.blame",
    "git.branches",
    "git.checkout",
    "git.commit",
    "git.current_branch",
    "git.diff",
    "git.log",
    "git.restore",
    "git.show",
    "git.stash",
    "git.status",
    "git.unstage",
    "jobs.cancel",
    "jobs.get",
    "jobs.list",
    "jobs.output",
    "jobs.start",
    "results.read",
    "search.index_status",
    "search.names",
    "search.semantic",
    "search.text",
    "search.upsert",
];

/// Returns true if `id` is a tool of the server itself.
pub(crate) fn is_own_tool(id: &str) -> bool {
    OWN_TOOLS.contains(&id)
}

/// Replaces tool names in `text` by the names that `name_of` returns for an id. `called` is the id
/// of the called tool, if it is known.
///
/// In the text of a tool from another server, only the tool's own id is replaced, because other
/// names may have another meaning there.
pub(crate) fn rename_tools(
    text: &str,
    called: Option<&str>,
    name_of: impl Fn(&str) -> Option<String>,
) -> String {
    let is_own_text = called.is_none_or(is_own_tool);
    let mut renamed = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            renamed.push('`');
        }
        if index % 2 == 1 {
            let is_id = called == Some(part) || (is_own_text && is_own_tool(part));
            let name = is_id.then(|| name_of(part)).flatten();
            renamed.push_str(name.as_deref().unwrap_or(part));
        } else {
            for word in part.split_inclusive(|c: char| !is_name_char(c)) {
                push_word(&mut renamed, word, is_own_text, &name_of);
            }
        }
    }
    renamed
}

/// Appends `word`, which may end in a space or punctuation. If it is a tool's name, appends the new
/// name instead.
fn push_word(
    renamed: &mut String,
    word: &str,
    is_own_text: bool,
    name_of: impl Fn(&str) -> Option<String>,
) {
    let mcp_name = word.trim_end_matches(|c: char| c == '.' || !is_name_char(c));
    let id = OWN_TOOLS.iter().find(|id| is_mcp_name(mcp_name, id));
    // The server itself appends advice about `results_read` to foreign results.
    let id = id.filter(|id| is_own_text || **id == "results.read");
    match id.and_then(|id| name_of(id)) {
        Some(name) => {
            renamed.push_str(&name);
            renamed.push_str(word.strip_prefix(mcp_name).unwrap_or_default());
        }
        None => renamed.push_str(word),
    }
}

/// Returns true if `c` may be part of a tool's name or of a path.
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')
}

/// Returns true if `name` is MCP's name of the tool `id`, such as `git_add` for `git.add`.
fn is_mcp_name(name: &str, id: &str) -> bool {
    let is_same = |(byte, of_id): (u8, u8)| byte == if of_id == b'.' { b'_' } else { of_id };
    name.len() == id.len() && name.bytes().zip(id.bytes()).all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(text: &str, called: Option<&str>) -> String {
        rename_tools(text, called, |id| Some(id.replace('.', "/")))
    }

    #[test]
    fn every_tool_of_the_reference_is_known() {
        let reference = include_str!("../../../docs/reference/tools.md");
        let ids = || reference.lines().filter_map(|line| line.strip_prefix("## "));
        assert!(ids().count() > 40);
        let unknown: Vec<_> = ids().filter(|id| !is_own_tool(id)).collect();
        assert!(unknown.is_empty(), "add to OWN_TOOLS: {unknown:?}");
    }

    #[test]
    fn names_of_own_tools_are_replaced() {
        for (text, expected) in [
            ("stage files with git_add first", "stage files with git/add first"),
            ("read on with exec_output: output_id `a`", "read on with exec/output: output_id `a`"),
            ("an overview: files_tree.", "an overview: files/tree."),
            ("(docs_load_fetch)", "(docs/load/fetch)"),
            ("`files.read` is called too often", "`files/read` is called too often"),
        ] {
            assert_eq!(renamed(text, None), expected);
            assert_eq!(renamed(text, Some("files.read")), expected);
        }
    }

    #[test]
    fn paths_settings_and_other_words_are_kept() {
        for text in [
            "`git_add` does not exist",
            "tests/git_add.rs:3: git_adds",
            "`exec.allow` and `files.read.txt`, or raise files.answer_bytes_max",
            "`git_add",
            "",
        ] {
            assert_eq!(renamed(text, None), text);
        }
    }

    #[test]
    fn only_the_called_id_is_replaced_in_the_text_of_a_foreign_tool() {
        let text = "`ev.sum` is called too often; `files.read` and git_add, but results_read";
        let expected = "`ev/sum` is called too often; `files.read` and git_add, but results/read";
        assert_eq!(renamed(text, Some("ev.sum")), expected);
    }
}
