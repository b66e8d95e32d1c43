//! MCP from the client's side: requests to a server and parsing of its results.
//!
//! These functions are pure. Connections and retries are in the `upstream` crate.

mod asked;
mod read;
mod said;

pub use asked::{answer, question};
pub use read::{
    completion, contents, icons, meta, output, prompt_spec, prompt_text, resource, skill, template,
};
pub use said::{Beside, TASKS, capabilities, discover, handshake, request};

pub use super::asking::QUESTION_KEY;
pub use super::library::SKILLS;
pub use super::revision::{Asks, Era, NEWEST_SESSION, REVISIONS, Revision, Tasks};
