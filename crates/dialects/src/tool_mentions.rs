//! Replaces the names of the server's own tools in texts, for dialects that spell the names
//! differently.
//!
//! Errors of the host contain ids in backquotes, as in "`files.read` is called too often". Texts of
//! tools contain MCP's names, as in "stage files with git_add first".

use toolgate_contract::{CallError, ValidationProblem, fold_name};

/// The ids of the server's own tools. The list is a copy, because this crate does not depend on the
/// crates that define the tools. A test compares the list with the generated reference of tools.
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

/// Returns the id of the server's own tool that `name` spells with any separators, such as
/// `git.add` for `git_add`. `None` if the server has no such tool.
pub(crate) fn own_tool_id(name: &str) -> Option<&'static str> {
    let name = fold_name(name);
    OWN_TOOLS.into_iter().find(|id| fold_name(id) == name)
}

/// Replaces tool names in `text` by the names that `name_of` returns for an id. `called` is the id
/// of the called tool, if it is known.
///
/// If the called tool belongs to an upstream, replaces only the id of this tool, because other
/// names may have a different meaning in its texts.
pub(crate) fn rename_tools(
    text: &str,
    called: Option<&str>,
    name_of: impl Fn(&str) -> Option<String>,
) -> String {
    let is_own_text = called.is_none_or(is_own_tool);
    let is_called = |part: &str| {
        called.is_some_and(|called| {
            called == part || part.contains('.') && fold_name(called) == fold_name(part)
        })
    };
    let mut renamed = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            renamed.push('`');
        }
        if index % 2 == 1 {
            let is_id = is_called(part) || (is_own_text && is_own_tool(part));
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

/// Returns `error` with the tool names in its texts replaced, as in [`rename_tools`].
pub(crate) fn rename_tools_in_error(
    error: &CallError,
    called: Option<&str>,
    name_of: impl Fn(&str) -> Option<String>,
) -> CallError {
    let text = |text: &str| rename_tools(text, called, &name_of);
    let id = |id: &str| name_of(id).unwrap_or_else(|| id.to_owned());
    let renamed = |problems: &[ValidationProblem]| {
        let problems = problems.iter().map(|ValidationProblem { pointer, message }| {
            ValidationProblem { pointer: pointer.clone(), message: text(message) }
        });
        problems.collect()
    };
    match error {
        CallError::UnknownTool { name, nearest, unavailable } => CallError::UnknownTool {
            name: name.clone(),
            nearest: nearest.as_deref().map(id),
            unavailable: unavailable.as_deref().map(text),
        },
        CallError::InvalidInput { problems } => {
            CallError::InvalidInput { problems: renamed(problems) }
        }
        CallError::InvalidOutput { problems } => {
            CallError::InvalidOutput { problems: renamed(problems) }
        }
        CallError::NotAllowed { message } => CallError::NotAllowed { message: text(message) },
        CallError::Scope { message, needs } => {
            CallError::Scope { message: text(message), needs: needs.clone() }
        }
        CallError::Limited { message, retry_after } => {
            CallError::Limited { message: text(message), retry_after: *retry_after }
        }
        CallError::NotFound { message } => CallError::NotFound { message: text(message) },
        CallError::Conflict { message, details } => {
            CallError::Conflict { message: text(message), details: details.clone() }
        }
        CallError::TooLarge { message } => CallError::TooLarge { message: text(message) },
        CallError::Unavailable { message } => CallError::Unavailable { message: text(message) },
        CallError::Failed { message, cause } => {
            CallError::Failed { message: text(message), cause: cause.clone() }
        }
        CallError::CannotAsk { kind, what } => {
            CallError::CannotAsk { kind: *kind, what: what.as_deref().map(text) }
        }
        CallError::NeedsJob { tool } => CallError::NeedsJob { tool: id(tool) },
        CallError::NoJob { tool } => CallError::NoJob { tool: id(tool) },
        CallError::Mismatch { message } => CallError::Mismatch { message: text(message) },
        // An upstream's message contains only the upstream's own names.
        CallError::Refused { .. }
        | CallError::TimedOut { .. }
        | CallError::Canceled
        | CallError::Interrupted
        | CallError::Asks { .. } => error.clone(),
    }
}

/// Appends `word`, which may end in a space or punctuation, to `renamed`. If `word` is a tool's
/// name, appends the tool's new name instead.
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
    fn names_in_every_part_of_an_error_are_replaced() {
        let name_of = |id: &str| Some(id.replace('.', "-"));
        let renamed = |error| rename_tools_in_error(&error, Some("git.commit"), name_of);
        let message = "stage files with git_add; `git.commit` is slow".to_owned();
        let expected = "stage files with git-add; `git-commit` is slow";
        assert_eq!(renamed(CallError::NotFound { message: message.clone() }).to_string(), expected);
        let cause = "git_add".to_owned();
        let failed = CallError::Failed { message: message.clone(), cause: cause.clone() };
        let expected_error = CallError::Failed { message: expected.to_owned(), cause };
        assert_eq!(renamed(failed), expected_error);
        let problem =
            |message: &str| ValidationProblem { pointer: "/a".into(), message: message.into() };
        let invalid = CallError::InvalidInput { problems: vec![problem(&message)] };
        let expected_error = CallError::InvalidInput { problems: vec![problem(expected)] };
        assert_eq!(renamed(invalid), expected_error);
        let unknown = CallError::UnknownTool {
            name: "git.comit".into(),
            nearest: Some("git.commit".into()),
            unavailable: None,
        };
        assert!(renamed(unknown).to_string().ends_with("did you mean `git-commit`?"));
        assert!(
            renamed(CallError::NeedsJob { tool: "git.commit".into() })
                .to_string()
                .starts_with("`git-commit` runs only")
        );
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
            "`exec.allow` and `files.read.txt`, or raise limits.message_bytes",
            "`git_add",
            "",
        ] {
            assert_eq!(renamed(text, None), text);
        }
    }

    #[test]
    fn the_called_id_is_recognized_in_any_spelling() {
        let text = "`ev.get-Sum` is called too often; ev_get_Sum and `ev_get_Sum` stay";
        let expected = "`ev/get-Sum` is called too often; ev_get_Sum and `ev_get_Sum` stay";
        assert_eq!(renamed(text, Some("ev-get_Sum")), expected);
    }

    #[test]
    fn only_the_called_id_is_replaced_in_the_text_of_a_foreign_tool() {
        let text = "`ev.sum` is called too often; `files.read` and git_add, but results_read";
        let expected = "`ev/sum` is called too often; `files.read` and git_add, but results/read";
        assert_eq!(renamed(text, Some("ev.sum")), expected);
    }
}
