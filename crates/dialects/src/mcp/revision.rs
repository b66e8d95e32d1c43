//! The revisions of MCP, each with named differences from the others. Code tests these fields,
//! never the date of a revision.

use super::message::MISSING_CAPABILITY;
use crate::rpc;

/// A revision of the MCP protocol and its differences from other revisions.
#[derive(Debug, PartialEq, Eq)]
pub struct McpRevision {
    /// The version string of the revision.
    pub name: &'static str,
    /// The session model of the revision: a session that `initialize` opens, or independent
    /// requests.
    pub era: SessionModel,
    /// Reaction to batches of messages.
    pub batches: BatchSupport,
    /// The error form for invalid arguments of a call.
    pub bad_input: InvalidInputErrorForm,
    /// True if the revision has annotations of tools (hints such as `readOnlyHint`) and a text
    /// (`message`) in progress notifications.
    pub annotations: bool,
    /// True if the revision has titles of tools, prompts and resources, output schemas of tools
    /// (`outputSchema`), and structured results (`structuredContent`).
    pub structured: bool,
    /// The kinds of content blocks that the revision has.
    pub content: ContentBlockSupport,
    /// True if the revision has icons of tools, prompts and resources.
    pub icons: bool,
    /// True if a server must declare that it supports completion.
    pub declares_completion: bool,
    /// True if a client can resume an interrupted event stream.
    pub resumes: bool,
    /// The JSON Schemas and structured results that the revision allows.
    pub schemas: SchemaSupport,
    /// The rule by which a call becomes a task.
    pub tasks: TaskSupport,
    /// The kinds of question to the client that the revision has.
    pub questions: RevisionQuestionSupport,
    /// True if the server's description of itself (`serverInfo`) includes a sentence about the
    /// server.
    pub describes_itself: bool,
    /// True if an error about a message with an unreadable id omits the id. Otherwise the id is
    /// `null`.
    pub anonymous_errors: bool,
}

/// The session model of a protocol revision: whether a client opens a session, and for how long the
/// client's settings apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionModel {
    /// The client begins with `initialize`, which opens a session. The client's settings apply to
    /// the whole session.
    Session,
    /// The client begins with any request. Each request contains the client's settings, and each
    /// result names its type.
    Stateless,
}

/// A server's reaction to a batch: several messages in one JSON array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSupport {
    /// The server accepts batches.
    Accepted,
    /// The server refuses batches.
    Refused,
}

/// The form of the error that a server returns for invalid arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidInputErrorForm {
    /// Invalid arguments cause a JSON-RPC error, which the model does not see.
    Error,
    /// Invalid arguments cause a result with `isError`, which the model sees.
    Result,
}

/// The kinds of content blocks of a protocol revision. Each variant includes the content blocks of
/// the variants before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentBlockSupport {
    /// Content blocks of text, images and embedded resources.
    Pictures,
    /// Audio in addition to [`ContentBlockSupport::Pictures`].
    Sounds,
    /// Resource links and `lastModified` annotations in addition to
    /// [`ContentBlockSupport::Sounds`].
    Links,
}

/// The JSON Schemas and structured results that a protocol revision allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaSupport {
    /// Schemas of tools and structured results must be objects. Schemas of properties must be
    /// objects, too.
    Objects,
    /// Any JSON Schema 2020-12 and any structured result is allowed.
    Any,
}

/// The rule by which a call becomes a task. A task outlives the request that made the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskSupport {
    /// Calls never become tasks.
    None,
    /// A call becomes a task if the client requests it by a parameter.
    Param,
    /// A call becomes a task if the server decides so and the request declares the extension.
    Extension,
}

/// The kinds of question to the client that a protocol revision has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionQuestionSupport {
    /// Questions to the client's model, without tools, and questions for the client's folders.
    Samples,
    /// Forms with text, numbers, booleans and single choices, in addition to
    /// [`RevisionQuestionSupport::Samples`].
    Forms,
    /// Page visits with an id, multiple choices in forms and sampling with tools, in addition to
    /// [`RevisionQuestionSupport::Forms`].
    NamedVisits,
    /// All questions of [`RevisionQuestionSupport::NamedVisits`], but page visits have no id.
    Visits,
}

/// All protocol revisions of MCP that are supported, newest first.
pub static REVISIONS: [McpRevision; 5] = ROWS;

const ROWS: [McpRevision; 5] = [
    McpRevision {
        name: "2026-07-28",
        era: SessionModel::Stateless,
        schemas: SchemaSupport::Any,
        tasks: TaskSupport::Extension,
        questions: RevisionQuestionSupport::Visits,
        resumes: false,
        ..NEWEST_SESSION
    },
    NEWEST_SESSION,
    McpRevision {
        name: "2025-06-18",
        bad_input: InvalidInputErrorForm::Error,
        tasks: TaskSupport::None,
        questions: RevisionQuestionSupport::Forms,
        icons: false,
        describes_itself: false,
        anonymous_errors: false,
        ..NEWEST_SESSION
    },
    McpRevision {
        name: "2025-03-26",
        era: SessionModel::Session,
        batches: BatchSupport::Accepted,
        bad_input: InvalidInputErrorForm::Error,
        annotations: true,
        structured: false,
        content: ContentBlockSupport::Sounds,
        icons: false,
        declares_completion: true,
        resumes: true,
        schemas: SchemaSupport::Objects,
        tasks: TaskSupport::None,
        questions: RevisionQuestionSupport::Samples,
        describes_itself: false,
        anonymous_errors: false,
    },
    McpRevision {
        name: "2024-11-05",
        era: SessionModel::Session,
        batches: BatchSupport::Refused,
        bad_input: InvalidInputErrorForm::Error,
        annotations: false,
        structured: false,
        content: ContentBlockSupport::Pictures,
        icons: false,
        declares_completion: false,
        resumes: false,
        schemas: SchemaSupport::Objects,
        tasks: TaskSupport::None,
        questions: RevisionQuestionSupport::Samples,
        describes_itself: false,
        anonymous_errors: false,
    },
];

/// The newest protocol revision with `initialize`. A client that requests an unknown revision gets
/// this revision.
pub const NEWEST_SESSION: McpRevision = McpRevision {
    name: "2025-11-25",
    era: SessionModel::Session,
    batches: BatchSupport::Refused,
    bad_input: InvalidInputErrorForm::Result,
    annotations: true,
    structured: true,
    content: ContentBlockSupport::Links,
    icons: true,
    declares_completion: true,
    resumes: true,
    schemas: SchemaSupport::Objects,
    tasks: TaskSupport::Param,
    questions: RevisionQuestionSupport::NamedVisits,
    describes_itself: true,
    anonymous_errors: true,
};

/// The protocol revisions for a server without jobs, which have no tasks.
static WITHOUT_TASKS: [McpRevision; 5] = {
    let mut rows = ROWS;
    let mut at = 0;
    while at < rows.len() {
        rows[at].tasks = TaskSupport::None;
        at += 1;
    }
    rows
};

impl McpRevision {
    /// Returns this protocol revision without tasks.
    pub fn without_tasks(&self) -> &'static Self {
        WITHOUT_TASKS.iter().find(|row| row.name == self.name).unwrap_or(&WITHOUT_TASKS[0])
    }

    /// Returns the protocol revision with the version string `name` and the session model `era`.
    /// Returns `None` if there is no such revision.
    pub fn find(name: &str, era: SessionModel) -> Option<&'static Self> {
        REVISIONS.iter().find(|row| row.name == name && row.era == era)
    }

    /// Returns the version strings of the protocol revisions with the session model `era`, newest
    /// first.
    pub fn names(era: SessionModel) -> Vec<&'static str> {
        REVISIONS.iter().filter(|row| row.era == era).map(|row| row.name).collect()
    }

    /// Translates the error `code` of an upstream server. Codes that the specification reserves may
    /// have a different meaning in this revision, and become an internal error.
    pub fn refusal_code(&self, code: i32) -> i32 {
        match self.era {
            // The client lacks the capability for this server's request, too.
            SessionModel::Stateless if code == MISSING_CAPABILITY => code,
            SessionModel::Stateless if matches!(code, -32099..=-32020 | -32002) => {
                rpc::INTERNAL_ERROR
            }
            SessionModel::Stateless | SessionModel::Session => code,
        }
    }

    /// Returns the newest protocol revision with the session model `era`.
    pub fn newest(era: SessionModel) -> &'static Self {
        match era {
            SessionModel::Stateless => &REVISIONS[0],
            SessionModel::Session => &REVISIONS[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_revision_of_each_era_belongs_to_it() {
        for era in [SessionModel::Session, SessionModel::Stateless] {
            let newest = McpRevision::newest(era);
            assert_eq!(newest.era, era);
            assert_eq!(McpRevision::names(era).iter().max(), Some(&newest.name));
        }
    }

    #[test]
    fn reserved_error_codes_of_upstreams_are_replaced() {
        let newest = McpRevision::newest(SessionModel::Stateless);
        for kept in [-32042, -32002, -32020, -32022, -32099] {
            assert_eq!(newest.refusal_code(kept), rpc::INTERNAL_ERROR, "{kept}");
            assert_eq!(McpRevision::newest(SessionModel::Session).refusal_code(kept), kept);
        }
        for free in [MISSING_CAPABILITY, -32602, -32603, -32000, -32019, -32100, 7] {
            assert_eq!(newest.refusal_code(free), free);
        }
    }
}
