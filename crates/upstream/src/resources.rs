//! Resources that an upstream offers.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolgate_contract::printable::check_visible;
use toolgate_contract::{
    ChangeFeed, CompletionRequest, CompletionTarget, KeepActiveGuard, ResourceContents,
    ResourceSource, ResourceSpec, ResourceTemplate, ToolContext, ToolError, ToolErrorKind,
    ToolFuture, ToolSpec, UriClaimStrength, json_len,
};
use toolgate_dialects::mcp::upstream::{
    parse_completion, parse_contents, parse_resource, parse_template,
};

use crate::definition_texts::remove_hidden_texts;
use crate::listing::uri_ownership;
use crate::upstream::{Upstream, UpstreamCallRequest};

/// Maximum number of pages of one folder listing.
const FOLDER_PAGES_MAX: usize = 100;
/// Maximum size of one folder listing, in bytes.
const FOLDER_BYTES_MAX: usize = 8 << 20;
/// Longest completion of an argument, in bytes.
const CANDIDATE_BYTES_MAX: usize = 8 << 10;

/// The resources of an upstream, including the files of its skills.
pub(crate) struct UpstreamResources {
    pub(crate) upstream: Arc<Upstream>,
    /// Tool spec that stands for reads from this source in policy rules and limits.
    pub(crate) guard: ToolSpec,
}

impl UpstreamResources {
    pub(crate) fn new(upstream: &Arc<Upstream>) -> Arc<Self> {
        let title = format!("Resources of {}", upstream.name);
        let guard = upstream.guard_tool("resources", title, "Read resources of an upstream.");
        Arc::new(Self { upstream: upstream.clone(), guard })
    }

    /// Lists the entries of the folder `uri` of the upstream, over its pages. Stops early if the
    /// listing is too long.
    async fn list_folder(
        &self,
        ctx: &ToolContext,
        uri: &str,
    ) -> Result<Vec<ResourceSpec>, ToolError> {
        let prefix = format!("{}/", uri.trim_end_matches('/'));
        let mut all = Vec::new();
        let mut cursor = None;
        let mut before: Option<Value> = None;
        let mut bytes = 0;
        for _ in 0..FOLDER_PAGES_MAX {
            let mut params = Map::from_iter([("uri".to_owned(), json!(uri))]);
            params.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor)));
            let request = UpstreamCallRequest::new("resources/directory/read", uri, params);
            let mut page = self.upstream.call(ctx, request).await?;
            bytes += json_len(&page);
            let entries = parse_page(&self.upstream.name, &mut page).into_iter();
            all.extend(entries.filter(|it| it.uri.starts_with(&prefix) && !self.is_own(&it.uri)));
            let next = page.get("nextCursor").filter(|it| it.is_string() || it.is_number());
            // An empty cursor and a repeated one lead to no other page.
            let next = next.filter(|next| **next != "" && Some(*next) != before.as_ref()).cloned();
            if next.is_none() || bytes > FOLDER_BYTES_MAX {
                break;
            }
            (before, cursor) = (next.clone(), next);
        }
        Ok(all)
    }

    /// Returns true if `uri` is one of this server's own URIs, which an upstream cannot override.
    pub(crate) fn is_own(&self, uri: &str) -> bool {
        self.upstream.host.is_own_uri(uri)
    }
}

impl ResourceSource for UpstreamResources {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        self.claim(uri).is_some()
    }

    fn claim(&self, uri: &str) -> Option<UriClaimStrength> {
        let listing = self.upstream.listing();
        let skills = self.upstream.skill_index();
        uri_ownership::claim_of_uri(&listing, &skills, uri).filter(|_| !self.is_own(uri))
    }

    fn list<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            self.upstream.wait_listed().await;
            let listing = self.upstream.listing();
            let all = listing.resources.iter().filter_map(parse_resource);
            Ok(page_after(all.filter(|one| !self.is_own(&one.uri)).collect(), after, at_most))
        })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let listing = self.upstream.listing();
        let all = listing.templates.iter().filter_map(parse_template);
        all.filter(|one| !self.is_own(&one.uri)).collect()
    }

    fn read<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> ToolFuture<'a, Vec<ResourceContents>> {
        Box::pin(async move {
            self.upstream.check_normal_form(uri)?;
            let params = Map::from_iter([("uri".to_owned(), json!(uri))]);
            let request = UpstreamCallRequest::new("resources/read", uri, params);
            let read = parse_contents(&self.upstream.call(ctx, request).await?).map_err(|why| {
                ToolError::new(
                    ToolErrorKind::Failed,
                    format!("the upstream returned no valid contents of `{uri}`: {why}"),
                )
            })?;
            self.upstream.check_skill_file(ctx, uri, &read).await?;
            Ok(read)
        })
    }

    fn list_folder<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        after: Option<&'a str>,
        at_most: usize,
    ) -> ToolFuture<'a, Vec<ResourceSpec>> {
        Box::pin(async move {
            if !self.upstream.listing().has_folders {
                let name = &self.upstream.name;
                let message = format!("the upstream `{name}` cannot list folders");
                return Err(ToolError::not_found(message));
            }
            Ok(page_after(self.list_folder(ctx, uri).await?, after, at_most))
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(async move {
            let CompletionTarget::Template(uri) = &asked.target else { return Ok(Vec::new()) };
            let of = json!({ "type": "ref/resource", "uri": uri });
            complete_argument(&self.upstream, ctx, of, asked).await
        })
    }

    fn completes_in_order(&self) -> bool {
        true
    }

    fn watch<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
        _changes: &'a ChangeFeed,
    ) -> ToolFuture<'a, KeepActiveGuard> {
        Box::pin(async move {
            match self.upstream.instance_for(ctx)? {
                None => self.upstream.watch(uri).await,
                Some(instance) => instance.watch(uri).await,
            }
        })
    }
}

/// Removes the resources from a `page` of a folder of the upstream `name`, and returns those
/// without a hidden character.
fn parse_page(name: &str, page: &mut Value) -> Vec<ResourceSpec> {
    let mut entries = match page.get_mut("resources").map(Value::take) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    remove_hidden_texts(name, "resources", &mut entries);
    entries.iter().filter_map(parse_resource).collect()
}

/// Returns up to `at_most` distinct folder entries after the URI `after`, sorted by URI.
fn page_after(
    mut all: Vec<ResourceSpec>,
    after: Option<&str>,
    at_most: usize,
) -> Vec<ResourceSpec> {
    all.sort_by(|a, b| a.uri.cmp(&b.uri));
    all.dedup_by(|a, b| a.uri == b.uri);
    all.retain(|one| after.is_none_or(|after| one.uri.as_str() > after));
    all.truncate(at_most);
    all
}

/// Requests completions of an argument from an upstream. `of` is the MCP reference to the prompt or
/// resource template that has the argument.
pub(crate) async fn complete_argument(
    upstream: &Upstream,
    ctx: &ToolContext,
    of: Value,
    asked: &CompletionRequest,
) -> Result<Vec<String>, ToolError> {
    let instance = upstream.instance_for(ctx)?;
    let link = instance.as_deref().unwrap_or(upstream).connection_for_call().await?;
    if !link.has("completions") && link.revision.declares_completion {
        return Ok(Vec::new());
    }
    let argument = json!({ "name": asked.argument, "value": asked.prefix });
    let mut params = Map::from_iter([("ref".to_owned(), of), ("argument".to_owned(), argument)]);
    if !asked.other_arguments.is_empty() {
        params.insert("context".into(), json!({ "arguments": asked.other_arguments }));
    }
    let result =
        upstream.call(ctx, UpstreamCallRequest::new("completion/complete", "", params)).await?;
    Ok(visible_candidates(parse_completion(&result).values))
}

/// Returns the completions in `candidates` that are not too long and have no hidden character.
fn visible_candidates(mut candidates: Vec<String>) -> Vec<String> {
    candidates.retain(|candidate| check_visible(candidate, CANDIDATE_BYTES_MAX).is_ok());
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_with_a_hidden_character_is_left_out() {
        let long = "x".repeat(CANDIDATE_BYTES_MAX + 1);
        let candidates = ["main", "ma\u{202e}in", "\u{1b}[2J", long.as_str(), "maître"];
        let visible = visible_candidates(Vec::from(candidates.map(str::to_owned)));
        assert_eq!(visible, ["main", "maître"]);
    }

    #[test]
    fn a_file_with_a_hidden_character_is_left_out_of_its_folder() {
        let file = |uri: &str| json!({ "uri": uri, "name": "a file" });
        let files = [file("skill://a/\u{202e}x"), file("skill://a/y"), json!({ "name": "no URI" })];
        let parsed = parse_page("up", &mut json!({ "resources": files }));
        let uris: Vec<_> = parsed.iter().map(|one| one.uri.as_str()).collect();
        assert_eq!(uris, ["skill://a/y"]);
        assert!(parse_page("up", &mut json!({})).is_empty());
    }
}
