//! JSON assets of a workspace, schemas and examples, as resources at `asset://`.
//!
//! `asset://schemas/NAME` is `NAME.json` or `NAME.schema.json` in the folder of schemas or in a
//! folder beneath it, which is then a part of its name.

mod settings;
mod read;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

pub use read::Assets;
pub use settings::Settings;
