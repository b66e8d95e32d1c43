//! Texts and errors of catalog tools, converted to the contract's names of tools and parameters.

use toolgate_contract::{CallError, ValidationProblem};

use super::results::not_text;
use super::{ContractToolBehavior, WorkstationContractTool};
use crate::tool_mentions::rename_tools;
use crate::workstation::encoding::dialect_name;

/// Parameters of catalog tools that no tool of the workstation contract has, quoted as in messages.
/// Advice about these parameters is left out.
const FOREIGN_PARAMETERS: [&str; 35] = [
    "`all`",
    "`allow_empty`",
    "`args`",
    "`author`",
    "`context`",
    "`create`",
    "`cursor`",
    "`end_line`",
    "`encoding`",
    "`env`",
    "`filter`",
    "`grep`",
    "`if_match`",
    "`if_none_match`",
    "`kind`",
    "`length`",
    "`limit`",
    "`line_count`",
    "`max_bytes`",
    "`max_output_bytes`",
    "`missing_ok`",
    "`mkdirs`",
    "`mode`",
    "`offset`",
    "`overwrite`",
    "`parents`",
    "`recursive`",
    "`remote`",
    "`shell`",
    "`since`",
    "`start_line`",
    "`stat`",
    "`stdin`",
    "`timeout_ms`",
    "`until`",
];
/// Separators between a piece of advice in a message and the text before it.
const ADVICE_SEPARATORS: [&str; 2] = ["; ", ", or "];

impl WorkstationContractTool {
    /// Returns a catalog tool's `text` with the workstation contract's names of tools and
    /// parameters.
    pub(crate) fn in_own_names(&self, text: &str) -> String {
        let text = without_foreign_advice(text);
        let text = rename_tools(&text, Some(self.tool), dialect_name);
        self.parameters.iter().fold(text, |text, parameter| {
            let foreign = parameter.pointer.trim_start_matches('/');
            text.replace(&format!("`{foreign}`"), &format!("`{}`", parameter.name))
        })
    }

    /// Converts the parameter names in `error` to those of the workstation contract.
    pub(crate) fn rename_parameters(&self, error: CallError) -> CallError {
        let CallError::InvalidInput { problems } = error else { return error };
        // The contract has no `encoding` parameter, so the error must concern the file's content.
        let is_about_encoding = |problem: &ValidationProblem| {
            self.behavior == ContractToolBehavior::Read && problem.pointer == "/encoding"
        };
        if let Some(problem) = problems.iter().find(|problem| is_about_encoding(problem)) {
            return not_text(problem.message.split("; ").next().unwrap_or_default());
        }
        let renamed = problems.into_iter().map(|ValidationProblem { pointer, message }| {
            let parameter =
                self.parameters.iter().find(|parameter| pointer.starts_with(parameter.pointer));
            let pointer = parameter.map_or(pointer, |parameter| format!("/{}", parameter.name));
            ValidationProblem { pointer, message }
        });
        CallError::InvalidInput { problems: renamed.collect() }
    }
}

/// Returns the message `text` without the advice about parameters that the workstation contract
/// does not have.
fn without_foreign_advice(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        // Each piece begins with its separator, except the first.
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let separators = ADVICE_SEPARATORS.iter();
        let next = separators.filter_map(|separator| Some(rest[first..].find(separator)? + first));
        let (piece, others) = rest.split_at(next.min().unwrap_or(rest.len()));
        let is_foreign = || FOREIGN_PARAMETERS.iter().any(|quoted| piece.contains(quoted));
        if kept.is_empty() || !is_foreign() {
            kept.push_str(piece);
        }
        rest = others;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workstation::contract_tools::{CONTRACT_TOOLS, find_tool};

    fn own(tool: &str, text: &str) -> String {
        find_tool(tool).expect("a tool").in_own_names(text)
    }

    #[test]
    fn advice_about_parameters_that_the_contract_lacks_is_left_out() {
        for (tool, text, expected) in [
            (
                "git/commit",
                "nothing is staged; stage files with git_add first, or set `all` to commit all",
                "nothing is staged; stage files with git/add first",
            ),
            (
                "ci/run",
                "it took too long; set `timeout_ms` for more time, up to 600000; try again",
                "it took too long; try again",
            ),
            ("ci/run", "über lang, or use `stdin`", "über lang"),
            ("ci/build", "it has no targets; name them in `args`", "it has no targets"),
            // The first statement stays, even if it quotes such a parameter.
            ("filesystem/read", "`limit` does not exist", "`limit` does not exist"),
            ("git/log", "", ""),
        ] {
            assert_eq!(own(tool, text), expected);
        }
    }

    #[test]
    fn parameters_have_the_names_of_the_contract() {
        for (tool, text, expected) in [
            ("git/status", "name a folder in `repo`", "name a folder in `repositoryPath`"),
            ("git/add", "name it in `repo` or `paths`", "name it in `repositoryPath` or `files`"),
            ("ci/test", "name its folder in `path`", "name its folder in `projectPath`"),
            ("ci/run", "set the directory in `path`", "set the directory in `workingDirectory`"),
            ("filesystem/list", "set `limit`", "set `limit`"),
        ] {
            assert_eq!(own(tool, text), expected);
        }
    }

    #[test]
    fn no_foreign_parameter_is_one_of_the_contract() {
        let known = |quoted: &str| {
            let mut parameters = CONTRACT_TOOLS.iter().flat_map(|tool| tool.parameters);
            parameters.any(|parameter| parameter.name == quoted.trim_matches('`'))
        };
        assert!(!FOREIGN_PARAMETERS.iter().any(|quoted| known(quoted)));
    }
}
