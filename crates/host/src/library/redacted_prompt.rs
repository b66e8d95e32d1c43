//! Lists prompts with secrets redacted from their names and descriptions.

use std::sync::Arc;

use toolgate_contract::{
    AnyPrompt, CompletionRequest, PromptArguments, PromptSpec, RenderedPrompt, ToolContext,
    ToolFuture, ToolSpec,
};

use crate::secrets::SecretSet;

/// A prompt whose spec contained a secret, which is now redacted.
pub(super) struct RedactedPrompt {
    spec: PromptSpec,
    prompt: Arc<dyn AnyPrompt>,
}

impl RedactedPrompt {
    /// Returns `prompt`, wrapped if its spec contains one of `secrets`.
    pub(super) fn redact(prompt: Arc<dyn AnyPrompt>, secrets: &SecretSet) -> Arc<dyn AnyPrompt> {
        let mut spec = prompt.spec().clone();
        secrets.redact_value(&mut spec);
        if spec == *prompt.spec() { prompt } else { Arc::new(Self { spec, prompt }) }
    }
}

impl AnyPrompt for RedactedPrompt {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        self.prompt.guard()
    }

    fn make<'a>(
        &'a self,
        ctx: &'a ToolContext,
        arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        self.prompt.make(ctx, arguments)
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        request: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        self.prompt.complete(ctx, request)
    }
}
