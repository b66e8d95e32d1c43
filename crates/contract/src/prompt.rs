//! Prompts: message templates that a person chooses and an agent starts from.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    BoxFuture, ChangeFeed, CompletionRequest, Icon, KeepActiveGuard, PromptMessage, ToolContext,
    ToolError, ToolFuture, ToolSpec, schema_of,
};

/// The description of a prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptSpec {
    /// The name of the prompt for programs.
    pub name: String,
    /// The name of the prompt for people.
    pub title: Option<String>,
    /// The purpose of the prompt, for people.
    pub description: Option<String>,
    /// The arguments of the prompt, required and optional.
    pub arguments: Vec<PromptArgument>,
    /// The icons of the prompt.
    pub icons: Vec<Icon>,
}

/// An argument of a prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptArgument {
    /// The name of the argument.
    pub name: String,
    /// The name of the argument for people.
    pub title: Option<String>,
    /// The meaning of the argument, for people.
    pub description: Option<String>,
    /// True if the prompt needs this argument.
    pub required: bool,
}

/// A rendered prompt: messages for a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RenderedPrompt {
    /// The purpose of the rendered prompt.
    pub description: Option<String>,
    /// The messages of the rendered prompt, in the order in which a model reads them.
    pub messages: Vec<PromptMessage>,
}

/// The arguments of a prompt: each text by its name.
pub type PromptArguments = BTreeMap<String, String>;

/// Prompt with typed arguments.
pub trait Prompt: Send + Sync + 'static {
    /// The name of the prompt for programs.
    const NAME: &'static str;
    /// The name of the prompt for people.
    const TITLE: &'static str;
    /// The purpose of the prompt, for people.
    const DESCRIPTION: &'static str;
    /// The type of the prompt's arguments: a struct of strings. Its schema defines which are
    /// required.
    type Arguments: DeserializeOwned + JsonSchema + Send;

    /// Renders the prompt with `arguments`.
    fn make(
        &self,
        ctx: &ToolContext,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<RenderedPrompt, ToolError>> + Send;

    /// Returns candidate values for an argument of the prompt. The host filters and ranks them by
    /// the typed text.
    fn complete(
        &self,
        _ctx: &ToolContext,
        _asked: &CompletionRequest,
    ) -> impl Future<Output = Result<Vec<String>, ToolError>> + Send {
        async { Ok(Vec::new()) }
    }
}

/// Prompt without static types, as the catalog stores it.
pub trait AnyPrompt: Send + Sync + 'static {
    /// Returns the description of the prompt.
    fn spec(&self) -> &PromptSpec;
    /// Returns the tool whose policy applies to this prompt, if the prompt reads data that a tool
    /// could read. A caller without access to that tool does not see the prompt.
    fn guard(&self) -> Option<&ToolSpec> {
        None
    }
    /// Renders the prompt with `arguments`. The host has checked that all arguments are known and
    /// none is missing.
    fn make<'a>(
        &'a self,
        ctx: &'a ToolContext,
        arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt>;
    /// Returns true if [`AnyPrompt::complete`] returns complete lists in order, which the host must
    /// not rank again.
    fn completes_in_order(&self) -> bool {
        false
    }
    /// Returns candidate values for an argument of the prompt.
    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>>;
}

/// A source of prompts, which may change at any time.
pub trait PromptSource: Send + Sync + 'static {
    /// Returns all current prompts of the source, ordered by name.
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>>;
    /// Returns true if the source may have a prompt with the name `name`. If false, the host skips
    /// the source.
    fn may_have(&self, _name: &str) -> bool {
        true
    }
    /// Returns the reason that the prompt `name` is unusable, as of the last [`PromptSource::all`].
    /// `None` if the prompt is usable or unknown.
    fn unusable_reason(&self, _name: &str) -> Option<String> {
        None
    }
    /// Publishes to `changes` when the list of prompts changes, until the returned guard is
    /// dropped.
    fn watch_list(&self, _changes: &ChangeFeed) -> KeepActiveGuard {
        KeepActiveGuard::none()
    }
}

/// A fixed list of prompts, which never changes.
impl PromptSource for Vec<Arc<dyn AnyPrompt>> {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async { self.clone() })
    }
}

/// A fixed list of prompts, which is created when it is first needed.
impl<F> PromptSource for LazyLock<Vec<Arc<dyn AnyPrompt>>, F>
where
    F: FnOnce() -> Vec<Arc<dyn AnyPrompt>> + Send + 'static,
{
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        LazyLock::force(self).all()
    }
}

/// Converts a typed prompt to an [`AnyPrompt`].
pub fn erase_prompt<P: Prompt>(prompt: P) -> Arc<dyn AnyPrompt> {
    let spec = PromptSpec {
        name: P::NAME.to_owned(),
        title: Some(P::TITLE.to_owned()),
        description: Some(P::DESCRIPTION.to_owned()),
        arguments: schema_arguments(&schema_of::<P::Arguments>()),
        icons: Vec::new(),
    };
    Arc::new(TypeErasedPrompt { spec, prompt })
}

/// Returns the members of an object's JSON Schema as prompt arguments.
fn schema_arguments(schema: &Value) -> Vec<PromptArgument> {
    let members = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let argument = |(name, member): (&String, &Value)| {
        let text_of = |key| member.get(key).and_then(Value::as_str).map(str::to_owned);
        PromptArgument {
            name: name.clone(),
            title: text_of("title"),
            description: text_of("description"),
            required: required.is_some_and(|all| all.iter().any(|one| one == name)),
        }
    };
    members.into_iter().flatten().map(argument).collect()
}

/// Adapter that makes an [`AnyPrompt`] from a [`Prompt`].
struct TypeErasedPrompt<P> {
    spec: PromptSpec,
    prompt: P,
}

impl<P: Prompt> AnyPrompt for TypeErasedPrompt<P> {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn make<'a>(
        &'a self,
        ctx: &'a ToolContext,
        arguments: PromptArguments,
    ) -> ToolFuture<'a, RenderedPrompt> {
        Box::pin(async move {
            let arguments = arguments.into_iter().map(|(name, text)| (name, Value::String(text)));
            let arguments = serde_json::from_value(Value::Object(arguments.collect()))
                .map_err(|err| ToolError::invalid("", err.to_string()))?;
            self.prompt.make(ctx, arguments).await
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a ToolContext,
        asked: &'a CompletionRequest,
    ) -> ToolFuture<'a, Vec<String>> {
        Box::pin(self.prompt.complete(ctx, asked))
    }
}
