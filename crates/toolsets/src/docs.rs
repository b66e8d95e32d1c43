//! The `docs` toolset: loads, renders and searches documents.

mod load;
mod render;
mod search;
mod template;
mod yaml;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use toolgate_contract::{AnyTool, erase_tool};

use crate::search::SearchService;
use toolgate_world::Root;

pub use load::LoadDocument;
pub use render::RenderMarkdown;
pub use search::SearchDocuments;
pub use settings::Settings;

/// Returns all tools of this toolset for the documents beneath `root`. `docs.search` needs a
/// `service`.
pub fn tools(
    root: &Root,
    settings: &Settings,
    service: Option<&Arc<SearchService>>,
) -> Vec<Arc<dyn AnyTool>> {
    if !settings.enabled {
        return Vec::new();
    }
    let mut tools =
        vec![erase_tool(LoadDocument::new(root, settings)), erase_tool(RenderMarkdown::new(root))];
    tools.extend(service.map(|service| erase_tool(SearchDocuments::new(service))));
    tools
}

/// Returns the SHA-256 of `content` in hex.
fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
