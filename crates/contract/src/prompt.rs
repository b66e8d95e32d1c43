//! Prompts: words that a person chooses and an agent starts from.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    BoxFuture, Changes, Completing, Content, Ctx, Hold, Icon, Role, ToolError, ToolSpec, schema_of,
};

/// What is known of a prompt without making it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptSpec {
    /// What it is called by programs.
    pub name: String,
    /// What it is called by people.
    pub title: Option<String>,
    /// What it is for.
    pub about: Option<String>,
    /// What it must or can be told.
    pub arguments: Vec<PromptArgument>,
    /// What stands for it.
    pub icons: Vec<Icon>,
}

/// Something a prompt is told.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptArgument {
    /// Its name.
    pub name: String,
    /// A name for people.
    pub title: Option<String>,
    /// What it is.
    pub about: Option<String>,
    /// Whether there is no prompt without it.
    pub required: bool,
}

/// A prompt, made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptText {
    /// What it is for.
    pub about: Option<String>,
    /// What is said, in order.
    pub messages: Vec<Message>,
}

/// Something said.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// By whom.
    pub role: Role,
    /// What.
    pub content: Content,
}

impl Message {
    /// Something the person says.
    pub fn user(content: Content) -> Self {
        Self { role: Role::User, content }
    }

    /// Something the model says.
    pub fn assistant(content: Content) -> Self {
        Self { role: Role::Assistant, content }
    }
}

/// The arguments of a prompt: text by name.
pub type Arguments = BTreeMap<String, String>;

/// A prompt as its author writes it.
pub trait Prompt: Send + Sync + 'static {
    /// What it is called by programs.
    const NAME: &'static str;
    /// What it is called by people.
    const TITLE: &'static str;
    /// What it is for.
    const ABOUT: &'static str;
    /// The arguments: an object whose members are text. Its schema says which are required.
    type Arguments: DeserializeOwned + JsonSchema + Send;

    /// Makes it.
    fn make(
        &self,
        ctx: &Ctx,
        arguments: Self::Arguments,
    ) -> impl Future<Output = Result<PromptText, ToolError>> + Send;

    /// What an argument may be; the host picks what is like what was typed, and orders it.
    fn complete(
        &self,
        _ctx: &Ctx,
        _asked: &Completing,
    ) -> impl Future<Output = Result<Vec<String>, ToolError>> + Send {
        async { Ok(Vec::new()) }
    }
}

/// A prompt whose types are forgotten.
pub trait AnyPrompt: Send + Sync + 'static {
    /// What is known of it without making it.
    fn spec(&self) -> &PromptSpec;
    /// What policy knows it by, where it takes in or offers what a tool could read: that tool.
    /// Who may not use the one does not see the other.
    fn guard(&self) -> Option<&ToolSpec> {
        None
    }
    /// Makes it from arguments that are known to it, with none missing that is required.
    fn make<'a>(
        &'a self,
        ctx: &'a Ctx,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>>;
    /// Whether what it says that an argument may be is all of that, the best first, and needs no
    /// ranking.
    fn completes_in_order(&self) -> bool {
        false
    }
    /// What an argument may be.
    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>>;
}

/// A source of prompts, which may change while it is served.
pub trait Prompts: Send + Sync + 'static {
    /// All there are now, in order of name.
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>>;
    /// Whether one of them may be called `name`, so that it has to be asked for all there are.
    fn may_have(&self, _name: &str) -> bool {
        true
    }
    /// Why there is none named `name`, where there would be if it could be used; of what there was
    /// when [`Prompts::all`] was asked last.
    fn trouble(&self, _name: &str) -> Option<String> {
        None
    }
    /// Tells `changes` when there are others, for as long as the result is held.
    fn watch_list(&self, _changes: &Changes) -> Hold {
        Hold::nothing()
    }
}

/// Prompts that stay as they are.
impl Prompts for Vec<Arc<dyn AnyPrompt>> {
    fn all(&self) -> BoxFuture<'_, Vec<Arc<dyn AnyPrompt>>> {
        Box::pin(async { self.clone() })
    }
}

/// Forgets the types of `prompt`.
pub fn erase_prompt<P: Prompt>(prompt: P) -> Arc<dyn AnyPrompt> {
    let spec = PromptSpec {
        name: P::NAME.to_owned(),
        title: Some(P::TITLE.to_owned()),
        about: Some(P::ABOUT.to_owned()),
        arguments: arguments_of(&schema_of::<P::Arguments>()),
        icons: Vec::new(),
    };
    Arc::new(Erased { spec, prompt })
}

/// The members of the object that `schema` is for.
fn arguments_of(schema: &Value) -> Vec<PromptArgument> {
    let members = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let argument = |(name, member): (&String, &Value)| {
        let said = |key| member.get(key).and_then(Value::as_str).map(str::to_owned);
        PromptArgument {
            name: name.clone(),
            title: said("title"),
            about: said("description"),
            required: required.is_some_and(|all| all.iter().any(|one| one == name)),
        }
    };
    members.into_iter().flatten().map(argument).collect()
}

struct Erased<P> {
    spec: PromptSpec,
    prompt: P,
}

impl<P: Prompt> AnyPrompt for Erased<P> {
    fn spec(&self) -> &PromptSpec {
        &self.spec
    }

    fn make<'a>(
        &'a self,
        ctx: &'a Ctx,
        arguments: Arguments,
    ) -> BoxFuture<'a, Result<PromptText, ToolError>> {
        Box::pin(async move {
            let arguments = arguments.into_iter().map(|(name, text)| (name, Value::String(text)));
            let arguments = serde_json::from_value(Value::Object(arguments.collect()))
                .map_err(|err| ToolError::invalid("", err.to_string()))?;
            self.prompt.make(ctx, arguments).await
        })
    }

    fn complete<'a>(
        &'a self,
        ctx: &'a Ctx,
        asked: &'a Completing,
    ) -> BoxFuture<'a, Result<Vec<String>, ToolError>> {
        Box::pin(self.prompt.complete(ctx, asked))
    }
}
