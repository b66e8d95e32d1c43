//! The client side of MCP: requests to a server, and parsing of its results.
//!
//! These functions are pure. Connections and retries are in the `upstream` crate.

mod questions;
mod results;
mod requests;

pub use questions::{encode_answer, parse_question};
pub use requests::{
    TASKS_EXTENSION, UpstreamRequestMetadata, client_capabilities, discover_params,
    initialize_params, request_params,
};
pub use results::{
    parse_completion, parse_contents, parse_icons, parse_meta, parse_output, parse_prompt_spec,
    parse_prompt_text, parse_resource, parse_skill, parse_template,
};

pub use super::library::SKILLS;
pub use super::questions::QUESTION_KEY;
pub use super::revision::{
    McpRevision, NEWEST_SESSION, REVISIONS, RevisionQuestionSupport, SessionModel, TaskSupport,
};
