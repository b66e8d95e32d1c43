//! The `docs` toolset: loads, renders and searches documents.

mod load;
mod render;
mod search;
mod template;
mod yaml;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use toolgate_contract::{AnyTool, erase_tool};

use crate::search::SearchService;
use toolgate_world::Root;

pub use load::LoadDocument;
pub use render::RenderMarkdown;
pub use search::SearchDocuments;

/// Returns all tools of the `docs` toolset for the documents below `root`. `docs.search` searches
/// with `service`.
pub fn tools(root: &Root, service: &Arc<SearchService>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase_tool(LoadDocument { root: root.clone() }),
        erase_tool(RenderMarkdown { root: root.clone() }),
        erase_tool(SearchDocuments { service: service.clone() }),
    ]
}

/// Returns the SHA-256 of `content` in hex.
fn sha256(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}
