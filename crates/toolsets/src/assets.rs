//! JSON assets: schemas, examples, validation, patches between assets, and a backend that stores
//! them.
//!
//! Schemas and examples are read when a tool first needs them, and again when they or the settings
//! change. They are also resources at `asset://`. A schema is `NAME.json` or `NAME.schema.json`, at
//! any depth in the folder of schemas. The path in that folder is part of its name.

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
mod schema_names;
mod patch;
mod pointer;
mod validators;
mod error_messages;
mod python;
mod backend;
mod resources;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests change the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase_tool};

pub use backend::AssetBackendClient;
pub use diff_assets::DiffAssets;
pub use get_example::GetAssetExample;
pub use get_schema::GetAssetSchema;
pub use list_examples::ListAssetExamples;
pub use list_schemas::ListAssetSchemas;
pub use outcome::AssetError;
#[cfg(any(fuzzing, test))]
pub(crate) use patch::check as fuzz_patch;
pub use populate_backend::PopulateBackend;
pub use resources::AssetResourceSource;
pub use schema_names::schema_of_example;
pub use settings::{AssetSettings, EnvironmentAssetSettings};
pub use snapshot::{AssetLoadError, AssetSnapshot};
pub use validate_asset::ValidateAsset;

use toolgate_world::HttpFetcher;

/// Returns the tools of the `assets` toolset. They send assets with `fetch` to the backend in
/// `settings`.
pub fn tools(
    assets: &Arc<AssetSnapshot>,
    settings: &AssetSettings,
    fetch: &HttpFetcher,
) -> Vec<Arc<dyn AnyTool>> {
    let backend = AssetBackendClient::new(settings, fetch);
    vec![
        erase_tool(ListAssetSchemas { assets: assets.clone() }),
        erase_tool(GetAssetSchema { assets: assets.clone() }),
        erase_tool(ListAssetExamples { assets: assets.clone() }),
        erase_tool(GetAssetExample { assets: assets.clone() }),
        erase_tool(ValidateAsset { assets: assets.clone() }),
        erase_tool(DiffAssets { assets: assets.clone() }),
        erase_tool(PopulateBackend { assets: assets.clone(), backend }),
    ]
}
