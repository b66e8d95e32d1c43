//! Converts texts to vectors with a model in a folder or at an endpoint, in addition to the
//! built-in model.

mod settings;
mod folder;
mod endpoint;

use std::path::Path;
use std::sync::Arc;

use toolgate_search::Embedder;

pub use settings::{DecimalMoneyAmount, EmbedderSettings};

use endpoint::EmbeddingEndpoint;
use folder::FolderEmbeddingModel;
use toolgate_world::HttpFetcher;

/// Returns the embedder that `settings` name. Returns `None` if none is configured. A relative
/// folder is relative to `root`. Sends no request, and reads only the description of a model in a
/// folder.
///
/// # Errors
/// Fails if there is no such model. The error is a sentence that names the setting.
pub fn open(
    settings: &EmbedderSettings,
    root: &Path,
    fetch: &HttpFetcher,
) -> Result<Option<Arc<dyn Embedder>>, String> {
    settings.check()?;
    if let Some(folder) = &settings.folder {
        let opened = FolderEmbeddingModel::open(&root.join(folder))
            .map_err(|why| format!("`search.embedder.folder` is not a usable model: {why}"))?;
        return Ok(Some(Arc::new(opened)));
    }
    if settings.url.is_some() {
        return Ok(Some(Arc::new(EmbeddingEndpoint::new(settings, fetch)?)));
    }
    Ok(None)
}
