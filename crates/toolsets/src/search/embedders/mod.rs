//! Who makes vectors of texts besides the model built in: one in a folder, or one at an endpoint.

mod settings;
mod folder;
mod endpoint;

use std::path::Path;
use std::sync::Arc;

use toolgate_search::Embedder;

pub use settings::{EmbedderSettings, Key, Money};

use crate::world::Fetch;
use endpoint::Endpoint;
use folder::InFolder;

/// The embedder that `settings` name, if they do. A folder that is not absolute is one of `root`.
/// Nothing is asked of an endpoint yet, and of a folder only what it says of itself is read.
///
/// # Errors
/// When there cannot be one, in a sentence that names the setting.
pub fn open(
    settings: &EmbedderSettings,
    root: &Path,
    fetch: &Fetch,
) -> Result<Option<Arc<dyn Embedder>>, String> {
    settings.check()?;
    if let Some(folder) = &settings.folder {
        let opened = InFolder::look(&root.join(folder)).map_err(|why| {
            format!("`search.embedder.folder` is no model that can be used: {why}")
        })?;
        return Ok(Some(Arc::new(opened)));
    }
    if settings.url.is_some() {
        return Ok(Some(Arc::new(Endpoint::new(settings, fetch)?)));
    }
    Ok(None)
}
