//! Which tool a method is: the four that the contract names, and every other by its spelling.

use std::time::Duration;

use toolgate_contract::ToolId;

use super::schemas::{self, Schemas};

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Method {
    /// The tools there are.
    List,
    /// One of the contract's own.
    Contracted(Contracted),
    /// Any other tool.
    Tool {
        /// As it is called here.
        name: String,
        /// As it is called everywhere.
        tool: String,
    },
}

/// A method whose parameters and result the contract lays down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contracted {
    Read,
    Write,
    Run,
    Search,
}

impl Method {
    /// The method called `name`; `None` where no tool could be called so.
    pub(super) fn read(name: &str) -> Option<Self> {
        if name == "tools/list" {
            return Some(Self::List);
        }
        if let Some(method) = Contracted::ALL.into_iter().find(|method| method.name() == name) {
            return Some(Self::Contracted(method));
        }
        // A dot is for versions of methods (`files/read.v2`), and there are none.
        let tool = name.replace('/', ".");
        let is_tools = name.contains('/') && !name.starts_with("notifications/");
        let id = ToolId::foreign(&tool).filter(|_| is_tools && !name.contains('.'))?;
        // What has a name of the contract's goes by no other.
        Contracted::of(&id).is_none().then(|| Self::Tool { name: name.to_owned(), tool })
    }
}

impl Contracted {
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Run, Self::Search];

    /// How long a client waits where the contract notes nothing else.
    pub(super) const PATIENCE: Duration = Duration::from_secs(10);

    /// As the contract calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "files/read",
            Self::Write => "files/write",
            Self::Run => "exec/run",
            Self::Search => "vector/search",
        }
    }

    /// The tool that does it.
    pub(super) fn tool(self) -> &'static str {
        match self {
            Self::Read => "files.read",
            Self::Write => "files.write",
            Self::Run => "exec.run",
            Self::Search => "search.semantic",
        }
    }

    /// The method that the tool `id` does.
    pub(super) fn of(id: &ToolId) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.tool() == id.as_str())
    }

    pub(super) fn schemas(self) -> &'static Schemas {
        match self {
            Self::Read => &schemas::READ,
            Self::Write => &schemas::WRITE,
            Self::Run => &schemas::RUN,
            Self::Search => &schemas::SEARCH,
        }
    }

    /// What a fault is about that is about no parameter more than another.
    pub(super) fn main_field(self) -> &'static str {
        match self {
            Self::Read => "path",
            Self::Write => "content",
            Self::Run => "command",
            Self::Search => "query",
        }
    }
}

/// How the tool `id` is called here.
pub(super) fn name_of(id: &ToolId) -> String {
    match Contracted::of(id) {
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
        fn a_tool_is_called_by_the_name_it_is_listed_under(
            id in "[a-z][a-zA-Z0-9_-]{0,6}(\\.[a-zA-Z0-9_-]{1,6}){1,3}",
        ) {
            let id = ToolId::foreign(&id).expect("an id");
            let tool = match Method::read(&name_of(&id)).expect("a method") {
                Method::Contracted(method) => method.tool().to_owned(),
                Method::Tool { tool, .. } => tool,
                Method::List => panic!("{id} is a tool"),
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
            assert_eq!(Method::read(name), None, "{name}");
        }
    }
}
