//! Serves a prompt from a parsed file.

use std::sync::{Arc, LazyLock};

use toolgate_contract::{
    AnyPrompt, Arguments, BoxFuture, Completing, Content, Ctx, Fault, Held, Message,
    PromptArgument, PromptSpec, PromptText, ToolError, ToolSpec,
};

use super::sheet::{Offer, Sheet};
use super::template::Part;
use super::{paths, taken};
use crate::files;
use crate::world::Root;

/// The most bytes of a prompt, including its files.
const BYTES_MAX: usize = 8 << 20;

/// The tool whose permission guards prompts that include files or complete their paths.
static READING: LazyLock<ToolSpec> = LazyLock::new(files::reading);

/// A prompt of a workspace.
pub(super) struct Written {
    root: Root,
    sheet: Arc<Sheet>,
}

impl Written {
    pub(super) fn new(root: &Root, sheet: &Arc<Sheet>) -> Self {
        Self { root: root.clone(), sheet: sheet.clone() }
    }

    /// Refuses an empty value for a required argument. The lines that name it would be left out.
    fn none_is_empty(&self, arguments: &Arguments) -> Result<(), ToolError> {
        let PromptSpec { name: prompt, arguments: known, .. } = &self.sheet.spec;
        let is_empty = |name: &String| arguments.get(name).is_some_and(String::is_empty);
        match known.iter().find(|one| one.required && is_empty(&one.name)) {
            None => Ok(()),
            Some(PromptArgument { name, .. }) => {
                let message = format!("`{name}` is empty; the prompt `{prompt}` needs it");
                Err(ToolError::invalid("/arguments", message))
            }
        }
    }

    async fn text(&self, ctx: &Ctx, arguments: &Arguments) -> Result<PromptText, ToolError> {
        self.none_is_empty(arguments)?;
        let mut bytes = self.sheet.template.bytes(arguments);
        bounded(bytes)?;
        let mut messages = Vec::new();
        for (role, part) in self.sheet.template.fill(arguments) {
            let content = match part {
                Part::Text(text) => Content::text(text),
                Part::File(path) => {
                    let read = move |root: &Root, watch: &_| taken::file(root, &path, watch);
                    let contents = self.root.work(ctx, read).await?;
                    bytes = bytes.saturating_add(bytes_of(&contents.held));
                    bounded(bytes)?;
                    Content::resource(contents)
                }
            };
            messages.push(Message { role, content });
        }
        if messages.is_empty() {
            return Err(ToolError::invalid("", "without any argument this prompt says nothing"));
        }
        Ok(PromptText { about: self.sheet.spec.about.clone(), messages })
    }

    async fn values(&self, ctx: &Ctx, asked: &Completing) -> Result<Vec<String>, ToolError> {
        match self.sheet.offers.get(&asked.argument) {
            Some(Offer::Values(values)) => Ok(values.clone()),
            Some(Offer::Paths) => {
                let so_far = asked.so_far.clone();
                self.root.work(ctx, move |root, watch| paths::near(root, &so_far, watch)).await
            }
            None => Ok(Vec::new()),
        }
    }
}

/// Refuses a prompt of more than the most bytes. A short template can repeat an argument many
/// times, or include many files.
fn bounded(bytes: usize) -> Result<(), ToolError> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    let message = format!("the prompt has more than {BYTES_MAX} bytes; give it shorter arguments");
    Err(ToolError::new(Fault::TooLarge, message))
}

/// Returns the number of bytes in `held`.
fn bytes_of(held: &Held) -> usize {
    match held {
        Held::Text(text) => text.len(),
        Held::Bytes(bytes) => bytes.0.len(),
    }
}

impl AnyPrompt for Written {
    fn spec(&self) -> &PromptSpec {
        &self.sheet.spec
    }

    fn guard(&self) -> Option<&ToolSpec> {
        self.sheet.reads().then(|| &*READING)
    }

    fn make<'a>(
        &'a self,
        ctx: &'a Ctx,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        Box::pin(async move { self.text(ctx, &arguments).await })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(self.values(ctx, asked))
    }
}
