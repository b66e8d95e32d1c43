//! Prompts of an upstream.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolgate_contract::{
    AnyPrompt, Arguments, BoxFuture, Completing, Ctx, Fault, PromptSpec, PromptText, Prompts,
    ToolError, ToolSpec,
};
use toolgate_dialects::mcp::upstream::{prompt_spec, prompt_text};

use crate::names;
use crate::resources::completed;
use crate::upstream::{Asked, Upstream};

/// The prompts of an upstream.
pub(crate) struct Source(pub(crate) Arc<Upstream>);

struct RemotePrompt {
    upstream: Arc<Upstream>,
    /// The upstream's own name for the prompt.
    name: String,
    spec: PromptSpec,
    guard: ToolSpec,
}

impl Prompts for Source {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async move {
            self.0.is_listed().await;
            let title = format!("Prompts of {}", self.0.name);
            let guard = self.0.guard("prompts", title, "Makes prompts of an upstream.");
            let listing = self.0.listing();
            let prompt = |entry: &Value| -> Option<Arc<dyn AnyPrompt>> {
                let spec = prompt_spec(entry)?;
                let upstream = self.0.clone();
                let name = spec.name.clone();
                let spec = PromptSpec { name: names::prompt(self.0.prefix(), &name), ..spec };
                Some(Arc::new(RemotePrompt { upstream, name, spec, guard: guard.clone() }))
            };
            let mut all: Vec<_> = listing.prompts.iter().filter_map(prompt).collect();
            all.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
            all.dedup_by(|a, b| a.spec().name == b.spec().name);
            all
        })
    }

    fn may_have(&self, name: &str) -> bool {
        name.starts_with(&names::prompt(self.0.prefix(), ""))
    }
}

impl AnyPrompt for RemotePrompt {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn make<'a>(
        &'a self,
        ctx: &'a Ctx,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        Box::pin(async move {
            let params = Map::from_iter([
                ("name".to_owned(), json!(self.name)),
                ("arguments".to_owned(), json!(arguments)),
            ]);
            let asked = Asked::of("prompts/get", &self.name, params);
            prompt_text(&self.upstream.carry(ctx, asked).await?).map_err(|why| {
                let message = format!("the prompt `{}` is none: {why}", self.name);
                ToolError::new(Fault::Failed, message)
            })
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        let of = json!({ "type": "ref/prompt", "name": self.name });
        Box::pin(completed(&self.upstream, ctx, of, asked))
    }

    fn completes_in_order(&self) -> bool {
        true
    }
}
