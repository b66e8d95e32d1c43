//! Memory and time for work on untrusted input.
//!
//! A caller, an upstream or a cloned folder decides how large a schema, a pattern, a value or a
//! message is. This crate computes the cost before anything is allocated, bounds each part, and
//! runs the work on threads of its own with a deadline.
//!
//! | work | bound |
//! |---|---|
//! | messages that arrive, their values, running jobs | [`InputMemoryBudget`], [`parsed_json_bytes`] |
//! | compiled schemas and their patterns | [`MemoryBudget`], [`SchemaSize`] |
//! | validation of one value | [`BoundedSchemaValidator`] |
//! | threads and time | [`BlockingWorkPool`] |

mod memory;
mod input_memory;
mod json_memory;
mod work;
mod schema;

pub use input_memory::{
    InputMemoryBudget, InputMemoryFull, InputMemoryOwner, InputMemoryReservation, UNCOUNTED_BYTES,
};
pub use json_memory::{json_value_bytes, parsed_json_bytes};
pub use memory::{MemoryBudget, MemoryReservation};
pub use schema::{BoundedSchemaValidator, SchemaSize};
pub use work::{BlockingWorkPool, WorkPoolError, run_until};
