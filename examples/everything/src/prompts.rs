//! Example prompts: with and without arguments, with images and resources, and one that asks a
//! question.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate_contract::{
    CompletionRequest, ContentBlock, NoInput, Prompt, PromptMessage, RenderedPrompt,
    ResourceContents, ToolContext, ToolError,
};
use toolgate_service::ServerBuilder;

use crate::content::DOT;
use crate::rounds::{field, one_field};

/// Adds the prompts of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    builder
        .prompt(SimplePrompt)
        .prompt(PromptWithArguments)
        .prompt(PromptWithResource)
        .prompt(PromptWithImage)
        .prompt(AskingPrompt)
}

/// Returns a prompt whose messages are `contents`, all from the user and in order.
fn user_messages(contents: impl IntoIterator<Item = ContentBlock>) -> RenderedPrompt {
    RenderedPrompt {
        description: None,
        messages: contents.into_iter().map(PromptMessage::user).collect(),
    }
}

struct SimplePrompt;

impl Prompt for SimplePrompt {
    const NAME: &'static str = "test_simple_prompt";
    const TITLE: &'static str = "Simple prompt";
    const DESCRIPTION: &'static str = "A sentence.";
    type Arguments = NoInput;

    async fn make(
        &self,
        _ctx: &ToolContext,
        _arguments: NoInput,
    ) -> Result<RenderedPrompt, ToolError> {
        Ok(user_messages([ContentBlock::text("This is a simple prompt for testing.")]))
    }
}

struct PromptWithArguments;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TwoTextArguments {
    /// First test argument.
    arg1: String,
    /// Second test argument.
    arg2: String,
}

impl Prompt for PromptWithArguments {
    const NAME: &'static str = "test_prompt_with_arguments";
    const TITLE: &'static str = "Prompt with arguments";
    const DESCRIPTION: &'static str = "A sentence with its arguments.";
    type Arguments = TwoTextArguments;

    async fn make(
        &self,
        _ctx: &ToolContext,
        arguments: TwoTextArguments,
    ) -> Result<RenderedPrompt, ToolError> {
        let TwoTextArguments { arg1, arg2 } = arguments;
        let text = format!("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'");
        Ok(user_messages([ContentBlock::text(text)]))
    }

    async fn complete(
        &self,
        _ctx: &ToolContext,
        request: &CompletionRequest,
    ) -> Result<Vec<String>, ToolError> {
        let values: &[&str] = match request.argument.as_str() {
            "arg1" => &["paris", "park", "party", "london", "lisbon"],
            _ => &["hello", "world"],
        };
        Ok(values.iter().map(ToString::to_string).collect())
    }
}

struct PromptWithResource;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ResourcePromptArguments {
    /// URI of the resource to embed.
    #[serde(rename = "resourceUri")]
    uri: String,
}

impl Prompt for PromptWithResource {
    const NAME: &'static str = "test_prompt_with_embedded_resource";
    const TITLE: &'static str = "Prompt with a resource";
    const DESCRIPTION: &'static str = "A resource, and what to do with it.";
    type Arguments = ResourcePromptArguments;

    async fn make(
        &self,
        _ctx: &ToolContext,
        arguments: ResourcePromptArguments,
    ) -> Result<RenderedPrompt, ToolError> {
        let text = "Embedded resource content for testing.";
        Ok(user_messages([
            ContentBlock::resource(ResourceContents::text(arguments.uri, "text/plain", text)),
            ContentBlock::text("Please process the embedded resource above."),
        ]))
    }
}

struct PromptWithImage;

impl Prompt for PromptWithImage {
    const NAME: &'static str = "test_prompt_with_image";
    const TITLE: &'static str = "Prompt with an image";
    const DESCRIPTION: &'static str = "An image, and what to do with it.";
    type Arguments = NoInput;

    async fn make(
        &self,
        _ctx: &ToolContext,
        _arguments: NoInput,
    ) -> Result<RenderedPrompt, ToolError> {
        Ok(user_messages([
            ContentBlock::image("image/png", DOT),
            ContentBlock::text("Please analyze the image above."),
        ]))
    }
}

struct AskingPrompt;

impl Prompt for AskingPrompt {
    const NAME: &'static str = "test_input_required_result_prompt";
    const TITLE: &'static str = "Prompt that asks a question";
    const DESCRIPTION: &'static str = "A sentence with the answer of the person.";
    type Arguments = NoInput;

    async fn make(
        &self,
        ctx: &ToolContext,
        _arguments: NoInput,
    ) -> Result<RenderedPrompt, ToolError> {
        let form = one_field("context", "string");
        let message = "What context should the prompt use?";
        let choice = ctx.ask_form("user_context", message, form).await?;
        let context = field(&choice, "context").unwrap_or_else(|| "none".to_owned());
        Ok(user_messages([ContentBlock::text(format!("Work in this context: {context}"))]))
    }
}
