//! Sets up tool search from the settings, and lets it use the embedding model of code search.

use std::sync::Arc;

use toolgate_contract::BoxFuture;
use toolgate_host::{
    SentenceModel, ToolListSelection, ToolSearchMemoryScope, ToolSearchSettings, ToolVectors,
};
use toolgate_toolsets::search::SearchService;

use crate::config::{Config, ToolDiscoveryMemory, ToolDiscoveryMode};

/// Returns true if the settings `config` offer MCP clients the tools that find and call other
/// tools.
pub(crate) fn searches_tools(config: &Config) -> bool {
    config.discovery.mode != ToolDiscoveryMode::Off
}

/// Returns the settings of tool search that `config` contains.
pub(crate) fn tool_search_settings(config: &Config) -> ToolSearchSettings {
    let discovery = &config.discovery;
    ToolSearchSettings {
        mode: match discovery.mode {
            ToolDiscoveryMode::Off => ToolListSelection::Whole,
            ToolDiscoveryMode::Auto => ToolListSelection::Auto,
            ToolDiscoveryMode::On => ToolListSelection::Folded,
        },
        budget_tokens: usize::try_from(discovery.budget_tokens).unwrap_or(usize::MAX),
        memory: match discovery.memory {
            ToolDiscoveryMemory::Off => ToolSearchMemoryScope::Off,
            ToolDiscoveryMemory::Session => ToolSearchMemoryScope::Session,
            ToolDiscoveryMemory::Caller => ToolSearchMemoryScope::Caller,
            ToolDiscoveryMemory::Shared => ToolSearchMemoryScope::Shared,
        },
        // The older contracts promise their tools by name.
        dialects: &["mcp"],
        favourites: discovery.favourites.clone(),
        lists_read_tool: discovery.read_tool,
    }
}

/// Returns the vectors that tool search uses to compare tools, computed by the embedding model of
/// `search`. Returns `None` if code search has no embedding model.
pub(crate) fn tool_vectors(search: &Arc<SearchService>) -> Option<ToolVectors> {
    search.has_embedder().then(|| ToolVectors::new(Arc::new(SearchEmbeddingModel(search.clone()))))
}

/// Embedding model of code search, which tool search also uses.
struct SearchEmbeddingModel(Arc<SearchService>);

impl SentenceModel for SearchEmbeddingModel {
    fn embed_question(&self, question: String) -> BoxFuture<'_, Result<Vec<f32>, String>> {
        Box::pin(self.0.embed_query(question))
    }

    fn embed_tools(&self, sentences: Vec<String>) -> BoxFuture<'_, Result<Vec<Vec<f32>>, String>> {
        Box::pin(async move { self.0.embed_texts(&sentences).await })
    }
}
