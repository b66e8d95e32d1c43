//! Methods of Mira: four methods of the contract, and all other tools under a derived name.

use std::time::Duration;

use toolgate_contract::ToolId;

use super::schemas::{self, MiraMethodSchemas};

/// The name of Mira's method that lists the tools.
pub(super) const LIST: &str = "tools/list";

/// The method of a request in Mira's dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MiraMethod {
    /// The method that lists the tools.
    List,
    /// A method that Mira's contract defines.
    Contracted(MiraContractMethod),
    /// A method that calls a tool outside Mira's contract, by a name derived from the tool's id.
    Tool {
        /// The name of the tool in Mira's dialect.
        name: String,
        /// The id of the tool.
        tool: String,
    },
}

/// A method whose parameters and result Mira's contract defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MiraContractMethod {
    Read,
    Write,
    Run,
    Search,
}

impl MiraMethod {
    /// Parses the name of a method. `None` if it cannot be a tool's name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if name == LIST {
            return Some(Self::List);
        }
        if let Some(method) =
            MiraContractMethod::ALL.into_iter().find(|method| method.name() == name)
        {
            return Some(Self::Contracted(method));
        }
        // The prefix belongs to the contract. Tools for finding tools have no method.
        if name.starts_with("tools/") {
            return None;
        }
        // A dot marks a version of a method (`files/read.v2`). There are none yet.
        let tool = name.replace('/', ".");
        let is_tool_name = name.contains('/') && !name.starts_with("notifications/");
        let id = ToolId::foreign(&tool).filter(|_| is_tool_name && !name.contains('.'))?;
        // A tool with a contract method has no other name.
        MiraContractMethod::for_tool(&id)
            .is_none()
            .then(|| Self::Tool { name: name.to_owned(), tool })
    }
}

impl MiraContractMethod {
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Run, Self::Search];

    /// The time limit of methods for which Mira's contract sets no other limit.
    pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);

    /// Returns the name of the method in Mira's contract.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "files/read",
            Self::Write => "files/write",
            Self::Run => "exec/run",
            Self::Search => "vector/search",
        }
    }

    /// Returns the id of the tool that implements Mira's method.
    pub(super) fn tool(self) -> &'static str {
        match self {
            Self::Read => "files.read",
            Self::Write => "files.write",
            Self::Run => "exec.run",
            Self::Search => "search.semantic",
        }
    }

    /// Returns the method of Mira's contract that the tool `id` implements, if there is one.
    pub(super) fn for_tool(id: &ToolId) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.tool() == id.as_str())
    }

    pub(super) fn schemas(self) -> &'static MiraMethodSchemas {
        match self {
            Self::Read => &schemas::READ,
            Self::Write => &schemas::WRITE,
            Self::Run => &schemas::RUN,
            Self::Search => &schemas::SEARCH,
        }
    }

    /// Returns the parameter of the method to report for an error that concerns no parameter in
    /// particular.
    pub(super) fn main_field(self) -> &'static str {
        match self {
            Self::Read => "path",
            Self::Write => "content",
            Self::Run => "command",
            Self::Search => "query",
        }
    }
}

/// Returns the name of the tool `id` in Mira's dialect.
pub(super) fn method_name(id: &ToolId) -> String {
    match MiraContractMethod::for_tool(id) {
        Some(method) => method.name().to_owned(),
        None => id.as_str().replace('.', "/"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_listed_name_of_a_tool_is_its_method(
            id in "[a-z][a-zA-Z0-9_-]{0,6}(\\.[a-zA-Z0-9_-]{1,6}){1,3}",
        ) {
            let id = ToolId::foreign(&id).expect("an id");
            let tool = match MiraMethod::parse(&method_name(&id)).expect("a method") {
                MiraMethod::Contracted(method) => method.tool().to_owned(),
                MiraMethod::Tool { tool, .. } => tool,
                MiraMethod::List => panic!("{id} is a tool"),
            };
            prop_assert_eq!(tool, id.to_string());
        }
    }

    #[test]
    fn only_the_listed_spelling_is_a_method() {
        for name in [
            "files.read",
            "files_read",
            "files-read",
            "files/read.v2",
            "files/read/",
            "/files",
            "files//read",
            "search/semantic",
            "initialize",
            "",
            "notifications/x-y",
        ] {
            assert_eq!(MiraMethod::parse(name), None, "{name}");
        }
    }
}
