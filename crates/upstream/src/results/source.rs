//! Stored results as resources. Each result is visible only to its own caller.

use serde_json::{Value, json};
use toolgate_contract::{
    ResourceContents, ResourceSource, ResourceSpec, ResourceTemplate, ToolContext, ToolFuture,
    ToolSpec,
};

use super::{SCHEME, StoredData, UpstreamResultStore};

/// Source of resources that are stored results.
pub(super) struct StoredResultSource {
    pub(super) results: UpstreamResultStore,
    pub(super) guard: ToolSpec,
}

impl ResourceSource for StoredResultSource {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }

    fn policy_input(&self, uri: &str) -> Value {
        json!({ "id": uri })
    }

    fn list<'a>(
        &'a self,
        ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            let mut own = self.results.list(&ctx.caller).await;
            own.retain(|one| after.is_none_or(|after| one.uri.as_str() > after));
            own.truncate(at_most);
            Ok(own)
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let about = "A result, or a part of one, that was too long to return at once.";
        vec![ResourceTemplate::new("result://{id}", "result").with_description(about)]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            let (spec, data) = self.results.find(&ctx.caller, uri).await?;
            let media_type = spec.media_type.unwrap_or_default();
            Ok(vec![match data {
                StoredData::Text(text) => ResourceContents::text(uri, media_type, &*text),
                StoredData::Bytes(bytes) => ResourceContents::bytes(uri, media_type, bytes),
            }])
        })
    }
}
