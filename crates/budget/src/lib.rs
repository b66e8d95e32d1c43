//! Memory and time for work on untrusted input.
//!
//! A caller, an upstream or a cloned folder decides how large a schema, a pattern, a value or a
//! message is. This crate computes the cost before anything is allocated, bounds each part, and
//! runs the work on threads of its own with a deadline.
//!
//! | work | bound |
//! |---|---|
//! | messages that arrive | [`InputMemory`], [`parsed_json_bytes`] |
//! | compiled schemas and their patterns | [`MemoryAccount`], [`SchemaSize`] |
//! | validation of one value | [`BoundedValidator`] |
//! | threads and time | [`WorkPool`] |

mod memory;
mod input_memory;
mod json_memory;
mod work;
mod schema;

pub use input_memory::{InputMemory, InputMemoryFull, InputOwner, InputShare, UNCOUNTED_BYTES};
pub use json_memory::parsed_json_bytes;
pub use memory::{MemoryAccount, MemoryShare};
pub use schema::{BoundedValidator, SchemaSize};
pub use work::{WorkPool, WorkRefusal, run_until};
