//! JSON assets: schemas, examples, validation, patches between assets, and a backend that stores
//! them.
//!
//! Schemas and examples are read once, at start. They are also resources at `asset://`. A schema is
//! `NAME.json` or `NAME.schema.json`, at any depth in the folder of schemas. The path in that
//! folder is part of its name.

mod settings;
mod snapshot;
mod read;
mod list_schemas;
mod get_schema;
mod list_examples;
mod get_example;
mod validate_asset;
mod diff_assets;
mod populate_backend;
mod outcome;
mod named;
mod patch;
mod pointer;
mod validators;
mod phrasing;
mod python;
mod backend;
mod resources;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase};

pub use backend::Backend;
pub use diff_assets::DiffAssets;
pub use get_example::GetExample;
pub use get_schema::GetSchema;
pub use list_examples::ListExamples;
pub use list_schemas::ListSchemas;
pub use named::schema_of_example;
pub use outcome::Wrong;
#[cfg(any(fuzzing, test))]
pub(crate) use patch::check as fuzz_patch;
pub use populate_backend::PopulateBackend;
pub use resources::Source;
pub use settings::{Owner, Settings};
pub use snapshot::{Assets, Unusable};
pub use validate_asset::ValidateAsset;

use crate::world::Fetch;

/// Returns the tools for `assets`. They send assets with `fetch` to the backend in `settings`.
pub fn tools(assets: &Arc<Assets>, settings: &Settings, fetch: &Fetch) -> Vec<Arc<dyn AnyTool>> {
    let backend = Backend::new(settings, fetch);
    vec![
        erase(ListSchemas::new(assets)),
        erase(GetSchema::new(assets)),
        erase(ListExamples::new(assets)),
        erase(GetExample::new(assets)),
        erase(ValidateAsset::new(assets)),
        erase(DiffAssets::new(assets)),
        erase(PopulateBackend::new(assets, backend)),
    ]
}
