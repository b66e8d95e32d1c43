//! The revisions of MCP as rows of named differences. Code asks a row, never a date.

use super::message::MISSING_CAPABILITY;
use crate::rpc;

/// One revision and how it differs from the others.
#[derive(Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its name on the wire.
    pub name: &'static str,
    /// How a client begins, and what may be remembered between requests.
    pub era: Era,
    /// Whether several messages may come in one array.
    pub batches: Batches,
    /// How arguments that break a tool's schema are told.
    pub bad_input: BadInput,
    /// Tools carry annotations; progress carries a message.
    pub annotations: bool,
    /// Tools, prompts and resources carry a title, tools an output schema, results structured
    /// content.
    pub structured: bool,
    /// What can be shown.
    pub shows: Shows,
    /// Tools, prompts and resources carry icons.
    pub icons: bool,
    /// A server that completes what is typed says so.
    pub declares_completion: bool,
    /// A stream that broke off can be taken up again.
    pub resumes: bool,
    /// What schemas and structured results may be.
    pub shapes: Shapes,
    /// How a call becomes a task.
    pub tasks: Tasks,
    /// What the client can be asked in it.
    pub asks: Asks,
    /// The server says in a sentence what it is.
    pub describes_itself: bool,
    /// An error to a message whose id could not be read has no id at all, instead of `null`.
    pub anonymous_errors: bool,
}

/// How a client begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// With `initialize`; what was agreed holds for the session.
    Session,
    /// With any request: each carries all it needs and each result says what it is.
    Stateless,
}

/// Whether several messages may come in one array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    /// They may.
    Taken,
    /// They may not.
    Refused,
}

/// How arguments that break a tool's schema are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadInput {
    /// As a protocol error, which models do not see.
    Error,
    /// As a result with `isError`, which they do.
    Result,
}

/// What can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Text, pictures and resources with what they hold.
    Pictures,
    /// Sounds, too.
    Sounds,
    /// Resources to be read, too; and whatever is shown may say when it last changed.
    Links,
}

/// What schemas and structured results may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shapes {
    /// Objects, and the schema of a property is an object too.
    Objects,
    /// Whatever JSON Schema 2020-12 has words for.
    Any,
}

/// How a call becomes a task, which outlives its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tasks {
    /// It does not.
    None,
    /// The client asks for it with a parameter.
    Param,
    /// The server decides, where the request declares the extension.
    Extension,
}

/// What there are words for to ask the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// What its model answers, and its folders.
    Samples,
    /// That a form be filled in, too: of text, numbers, booleans and one choice of several.
    Forms,
    /// That a page be visited, too, known by an id. A form may have several choices, and the model
    /// tools.
    NamedVisits,
    /// The same, but that a visit has no id.
    Visits,
}

/// The revisions, newest first.
pub static REVISIONS: [Revision; 5] = ROWS;

const ROWS: [Revision; 5] = [
    Revision {
        name: "2026-07-28",
        era: Era::Stateless,
        shapes: Shapes::Any,
        tasks: Tasks::Extension,
        asks: Asks::Visits,
        resumes: false,
        ..NEWEST_SESSION
    },
    NEWEST_SESSION,
    Revision {
        name: "2025-06-18",
        bad_input: BadInput::Error,
        tasks: Tasks::None,
        asks: Asks::Forms,
        icons: false,
        describes_itself: false,
        anonymous_errors: false,
        ..NEWEST_SESSION
    },
    Revision {
        name: "2025-03-26",
        era: Era::Session,
        batches: Batches::Taken,
        bad_input: BadInput::Error,
        annotations: true,
        structured: false,
        shows: Shows::Sounds,
        icons: false,
        declares_completion: true,
        resumes: true,
        shapes: Shapes::Objects,
        tasks: Tasks::None,
        asks: Asks::Samples,
        describes_itself: false,
        anonymous_errors: false,
    },
    Revision {
        name: "2024-11-05",
        era: Era::Session,
        batches: Batches::Refused,
        bad_input: BadInput::Error,
        annotations: false,
        structured: false,
        shows: Shows::Pictures,
        icons: false,
        declares_completion: false,
        resumes: false,
        shapes: Shapes::Objects,
        tasks: Tasks::None,
        asks: Asks::Samples,
        describes_itself: false,
        anonymous_errors: false,
    },
];

/// The newest revision that begins with `initialize`: what a client is offered that asks for another.
pub const NEWEST_SESSION: Revision = Revision {
    name: "2025-11-25",
    era: Era::Session,
    batches: Batches::Refused,
    bad_input: BadInput::Result,
    annotations: true,
    structured: true,
    shows: Shows::Links,
    icons: true,
    declares_completion: true,
    resumes: true,
    shapes: Shapes::Objects,
    tasks: Tasks::Param,
    asks: Asks::NamedVisits,
    describes_itself: true,
    anonymous_errors: true,
};

/// The same, as a server speaks them that keeps no jobs.
static WITHOUT_TASKS: [Revision; 5] = {
    let mut rows = ROWS;
    let mut at = 0;
    while at < rows.len() {
        rows[at].tasks = Tasks::None;
        at += 1;
    }
    rows
};

impl Revision {
    /// This revision without tasks.
    pub fn without_tasks(&self) -> &'static Self {
        WITHOUT_TASKS.iter().find(|row| row.name == self.name).unwrap_or(&WITHOUT_TASKS[0])
    }

    /// The revision called `name`, if it is of that era.
    pub fn named(name: &str, era: Era) -> Option<&'static Self> {
        REVISIONS.iter().find(|row| row.name == name && row.era == era)
    }

    /// The names of an era's revisions, newest first.
    pub fn names(era: Era) -> Vec<&'static str> {
        REVISIONS.iter().filter(|row| row.era == era).map(|row| row.name).collect()
    }

    /// The code of a refusal that another server made with `code`: those that the specification
    /// has to itself mean here what they meant there only in some revisions.
    pub fn refusal(&self, code: i32) -> i32 {
        match self.era {
            // What a client lacks it lacks here, too.
            Era::Stateless if code == MISSING_CAPABILITY => code,
            Era::Stateless if matches!(code, -32099..=-32020 | -32002) => rpc::INTERNAL_ERROR,
            Era::Stateless | Era::Session => code,
        }
    }

    /// The newest of an era.
    pub fn newest(era: Era) -> &'static Self {
        match era {
            Era::Stateless => &REVISIONS[0],
            Era::Session => &REVISIONS[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_era_is_of_that_era_and_newest() {
        for era in [Era::Session, Era::Stateless] {
            let newest = Revision::newest(era);
            assert_eq!(newest.era, era);
            assert_eq!(Revision::names(era).iter().max(), Some(&newest.name));
        }
    }

    #[test]
    fn what_the_specification_keeps_for_itself_is_no_code_of_another_servers_refusal() {
        let newest = Revision::newest(Era::Stateless);
        for kept in [-32042, -32002, -32020, -32022, -32099] {
            assert_eq!(newest.refusal(kept), rpc::INTERNAL_ERROR, "{kept}");
            assert_eq!(Revision::newest(Era::Session).refusal(kept), kept);
        }
        for free in [MISSING_CAPABILITY, -32602, -32603, -32000, -32019, -32100, 7] {
            assert_eq!(newest.refusal(free), free);
        }
    }
}
