//! MCP from the other side: what is said to a server, and what is read of what it says.
//!
//! Pure, as all of the dialect is: who dials, waits and tries again is elsewhere.

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
