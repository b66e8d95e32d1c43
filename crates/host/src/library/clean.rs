//! Lists prompts with secrets redacted from their names and descriptions.

use std::sync::Arc;

use toolgate_contract::{
    AnyPrompt, Arguments, BoxFuture, Completing, Ctx, PromptSpec, PromptText, ToolError, ToolSpec,
};

use crate::secrets::Secrets;

/// A prompt whose own texts contain a secret, with that redacted in its spec.
pub(super) struct Clean {
    spec: PromptSpec,
    prompt: Arc<dyn AnyPrompt>,
}

impl Clean {
    /// Returns `prompt`, wrapped if its spec needs redaction.
    pub(super) fn of(prompt: Arc<dyn AnyPrompt>, secrets: &Secrets) -> Arc<dyn AnyPrompt> {
        let mut spec = prompt.spec().clone();
        secrets.clear(&mut spec);
        if spec == *prompt.spec() { prompt } else { Arc::new(Self { spec, prompt }) }
    }
}

impl AnyPrompt for Clean {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        self.prompt.guard()
    }

    fn make<'a>(
        &'a self,
        ctx: &'a Ctx,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        self.prompt.make(ctx, arguments)
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        self.prompt.complete(ctx, asked)
    }
}
