//! Serves a prompt from a parsed file.

use std::sync::{Arc, LazyLock};

use toolgate_contract::{
    AnyPrompt, CompletionRequest, ContentBlock, PromptArgument, PromptArguments, PromptMessage,
    PromptSpec, RenderedPrompt, ResourceData, ToolContext, ToolError, ToolErrorKind, ToolFuture,
    ToolSpec,
};

use super::prompt_file::{ArgumentCompletions, PromptFile};
use super::template::FilledPromptPart;
use super::{included_file, path_completion};
use crate::files;
use toolgate_world::Root;

/// The maximum size of a filled prompt, including its files, in bytes.
const BYTES_MAX: usize = 8 << 20;

/// The tool whose permission is required for prompts that include workspace files or suggest file
/// paths.
static READ_GUARD: LazyLock<ToolSpec> = LazyLock::new(files::read_file_spec);

/// A prompt that was parsed from a file of the workspace, or that is built in.
pub(super) struct FileBackedPrompt {
    root: Root,
    file: Arc<PromptFile>,
}

impl FileBackedPrompt {
    pub(super) fn new(root: &Root, file: &Arc<PromptFile>) -> Self {
        Self { root: root.clone(), file: file.clone() }
    }

    /// Refuses an empty value for a required argument. Otherwise, the prompt would lose the lines
    /// that contain this argument. Fails with an error that names the argument.
    fn check_not_empty(&self, arguments: &PromptArguments) -> Result<(), ToolError> {
        let PromptSpec { name: prompt, arguments: known, .. } = &self.file.spec;
        let is_empty = |name: &String| arguments.get(name).is_some_and(String::is_empty);
        match known.iter().find(|one| one.required && is_empty(&one.name)) {
            None => Ok(()),
            Some(PromptArgument { name, .. }) => {
                let message = format!("`{name}` is empty; the prompt `{prompt}` needs it");
                Err(ToolError::invalid("/arguments", message))
            }
        }
    }

    async fn render(
        &self,
        ctx: &ToolContext,
        arguments: &PromptArguments,
    ) -> Result<RenderedPrompt, ToolError> {
        self.check_not_empty(arguments)?;
        let mut bytes = self.file.template.bytes_max(arguments);
        check_size(bytes)?;
        let mut messages = Vec::new();
        for (role, part) in self.file.template.fill(arguments) {
            let content = match part {
                FilledPromptPart::Text(text) => ContentBlock::text(text),
                FilledPromptPart::File(path) => {
                    let read = move |root: &Root, watch: &_| {
                        included_file::read_included(root, &path, watch)
                    };
                    let contents = self.root.run_blocking(ctx, read).await?;
                    bytes = bytes.saturating_add(content_bytes(&contents.held));
                    check_size(bytes)?;
                    ContentBlock::resource(contents)
                }
            };
            messages.push(PromptMessage { role, content });
        }
        if messages.is_empty() {
            return Err(ToolError::invalid("", "this prompt is empty without arguments"));
        }
        Ok(RenderedPrompt { description: self.file.spec.description.clone(), messages })
    }

    async fn completions(
        &self,
        ctx: &ToolContext,
        request: &CompletionRequest,
    ) -> Result<Vec<String>, ToolError> {
        match self.file.completions.get(&request.argument) {
            Some(ArgumentCompletions::Values(values)) => Ok(values.clone()),
            Some(ArgumentCompletions::Paths) => {
                let prefix = request.prefix.clone();
                self.root
                    .run_blocking(ctx, move |root, watch| {
                        path_completion::complete_paths(root, &prefix, watch)
                    })
                    .await
            }
            None => Ok(Vec::new()),
        }
    }
}

/// Refuses a filled prompt of `bytes` bytes if it is too long. A short template can repeat an
/// argument many times, or include many files.
fn check_size(bytes: usize) -> Result<(), ToolError> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    let message = format!("the prompt has more than {BYTES_MAX} bytes; give it shorter arguments");
    Err(ToolError::new(ToolErrorKind::TooLarge, message))
}

/// Returns the size in bytes of `data`, the content of a file that a prompt includes.
fn content_bytes(data: &ResourceData) -> usize {
    match data {
        ResourceData::Text(text) => text.len(),
        ResourceData::Bytes(bytes) => bytes.0.len(),
    }
}

impl AnyPrompt for FileBackedPrompt {
    fn spec(&self) -> &PromptSpec {
        &self.file.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        self.file.needs_file_access().then(|| &*READ_GUARD)
    }

    fn make<'a>(
        &'a self,
        ctx: &'a ToolContext,
        arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        Box::pin(async move { self.render(ctx, &arguments).await })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        request: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(self.completions(ctx, request))
    }
}
