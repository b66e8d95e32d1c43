//! Prompts that an upstream offers.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolgate_contract::{
    AnyPrompt, BoxFuture, CompletionRequest, PromptArguments, PromptSource, PromptSpec,
    RenderedPrompt, ToolContext, ToolError, ToolErrorKind, ToolFuture, ToolSpec,
};
use toolgate_dialects::mcp::upstream::{parse_prompt_spec, parse_prompt_text};

use crate::names;
use crate::resources::complete_argument;
use crate::upstream::{Upstream, UpstreamCallRequest};

/// The prompts of an upstream.
pub(crate) struct UpstreamPrompts(pub(crate) Arc<Upstream>);

/// Prompt that an upstream offers.
struct UpstreamPrompt {
    upstream: Arc<Upstream>,
    /// The upstream's own name for the prompt.
    name: String,
    spec: PromptSpec,
    guard: ToolSpec,
}

impl PromptSource for UpstreamPrompts {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async move {
            self.0.wait_listed().await;
            let title = format!("Prompts of {}", self.0.name);
            let guard = self.0.guard_tool("prompts", title, "Get prompts of an upstream.");
            let listing = self.0.listing();
            let prompt = |entry: &Value| -> Option<Arc<dyn AnyPrompt>> {
                let spec = parse_prompt_spec(entry)?;
                let upstream = self.0.clone();
                let name = spec.name.clone();
                let spec = PromptSpec { name: names::prompt_name(self.0.prefix(), &name), ..spec };
                Some(Arc::new(UpstreamPrompt { upstream, name, spec, guard: guard.clone() }))
            };
            let mut all: Vec<_> = listing.prompts.iter().filter_map(prompt).collect();
            all.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
            all.dedup_by(|a, b| a.spec().name == b.spec().name);
            all
        })
    }

    fn may_have(&self, name: &str) -> bool {
        name.starts_with(&names::prompt_name(self.0.prefix(), ""))
    }
}

impl AnyPrompt for UpstreamPrompt {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn make<'a>(
        &'a self,
        ctx: &'a ToolContext,
        arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        Box::pin(async move {
            let params = Map::from_iter([
                ("name".to_owned(), json!(self.name)),
                ("arguments".to_owned(), json!(arguments)),
            ]);
            let request = UpstreamCallRequest::new("prompts/get", &self.name, params);
            parse_prompt_text(&self.upstream.call(ctx, request).await?).map_err(|why| {
                let message =
                    format!("the upstream returned an invalid prompt `{}`: {why}", self.name);
                ToolError::new(ToolErrorKind::Failed, message)
            })
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        let of = json!({ "type": "ref/prompt", "name": self.name });
        Box::pin(complete_argument(&self.upstream, ctx, of, asked))
    }

    fn completes_in_order(&self) -> bool {
        true
    }
}
