//! The `search` toolset: searches a workspace by meaning, by name and by text.
//!
//! The tools parse the input. The [`SearchService`] keeps indexes up to date and searches them, and
//! an [engine](engines) stores them.

mod semantic;
mod text;
mod names;
mod index_status;
mod upsert;
mod service;
pub mod engines;
pub mod embedders;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase_tool};

pub use index_status::GetIndexStatus;
pub use names::SearchNames;
pub use semantic::SearchByMeaning;
pub use service::{IndexFolders, IndexState, IndexStateReport, SearchService};
pub(crate) use service::{
    SearchHit, SearchHitLocation, SearchRequest, SearchResult, distinct_tags, explain_narrowing,
};
pub use settings::{IndexLimits, SearchSettings};
pub use text::SearchText;
pub use upsert::UpsertDocuments;

/// The name of the namespace that contains the complete workspace.
const WORKSPACE: &str = "workspace";

/// Returns all tools of this toolset, which share `service`.
pub fn tools(service: &Arc<SearchService>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase_tool(SearchByMeaning::new(service)),
        erase_tool(SearchText { service: service.clone() }),
        erase_tool(SearchNames { service: service.clone() }),
        erase_tool(GetIndexStatus { service: service.clone() }),
        erase_tool(UpsertDocuments { service: service.clone() }),
    ]
}
