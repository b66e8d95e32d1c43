//! Prompts: with and without arguments, with pictures and resources, and one that asks back.

use schemars::JsonSchema;
use serde::Deserialize;
use toolgate::ServerBuilder;
use toolgate_contract::{
    CompletionRequest, ContentBlock, NoInput, Prompt, PromptMessage, PromptText, ResourceContents,
    ToolContext, ToolError,
};

use crate::content::DOT;
use crate::rounds::{field, one_field};

pub(crate) fn add(offer: ServerBuilder) -> ServerBuilder {
    offer.prompt(Simple).prompt(WithArguments).prompt(WithResource).prompt(WithImage).prompt(Asks)
}

/// What the person says, in order.
fn said(contents: impl IntoIterator<Item = ContentBlock>) -> PromptText {
    PromptText {
        description: None,
        messages: contents.into_iter().map(PromptMessage::user).collect(),
    }
}

struct Simple;

impl Prompt for Simple {
    const NAME: &'static str = "test_simple_prompt";
    const TITLE: &'static str = "Simple prompt";
    const DESCRIPTION: &'static str = "A sentence.";
    type Arguments = NoInput;

    async fn make(&self, _ctx: &ToolContext, _told: NoInput) -> Result<PromptText, ToolError> {
        Ok(said([ContentBlock::text("This is a simple prompt for testing.")]))
    }
}

struct WithArguments;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Two {
    /// First test argument.
    arg1: String,
    /// Second test argument.
    arg2: String,
}

impl Prompt for WithArguments {
    const NAME: &'static str = "test_prompt_with_arguments";
    const TITLE: &'static str = "Prompt with arguments";
    const DESCRIPTION: &'static str = "A sentence with what it was told.";
    type Arguments = Two;

    async fn make(&self, _ctx: &ToolContext, told: Two) -> Result<PromptText, ToolError> {
        let Two { arg1, arg2 } = told;
        let text = format!("Prompt with arguments: arg1='{arg1}', arg2='{arg2}'");
        Ok(said([ContentBlock::text(text)]))
    }

    async fn complete(
        &self,
        _ctx: &ToolContext,
        asked: &CompletionRequest,
    ) -> Result<Vec<String>, ToolError> {
        let values: &[&str] = match asked.argument.as_str() {
            "arg1" => &["paris", "park", "party", "london", "lisbon"],
            _ => &["hello", "world"],
        };
        Ok(values.iter().map(ToString::to_string).collect())
    }
}

struct WithResource;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Embedded {
    /// URI of the resource to embed.
    #[serde(rename = "resourceUri")]
    uri: String,
}

impl Prompt for WithResource {
    const NAME: &'static str = "test_prompt_with_embedded_resource";
    const TITLE: &'static str = "Prompt with a resource";
    const DESCRIPTION: &'static str = "A resource, and what to do with it.";
    type Arguments = Embedded;

    async fn make(&self, _ctx: &ToolContext, told: Embedded) -> Result<PromptText, ToolError> {
        let text = "Embedded resource content for testing.";
        Ok(said([
            ContentBlock::resource(ResourceContents::text(told.uri, "text/plain", text)),
            ContentBlock::text("Please process the embedded resource above."),
        ]))
    }
}

struct WithImage;

impl Prompt for WithImage {
    const NAME: &'static str = "test_prompt_with_image";
    const TITLE: &'static str = "Prompt with a picture";
    const DESCRIPTION: &'static str = "A picture, and what to do with it.";
    type Arguments = NoInput;

    async fn make(&self, _ctx: &ToolContext, _told: NoInput) -> Result<PromptText, ToolError> {
        Ok(said([
            ContentBlock::image("image/png", DOT),
            ContentBlock::text("Please analyze the image above."),
        ]))
    }
}

struct Asks;

impl Prompt for Asks {
    const NAME: &'static str = "test_input_required_result_prompt";
    const TITLE: &'static str = "Prompt that asks back";
    const DESCRIPTION: &'static str = "A sentence with what the person says when they are asked.";
    type Arguments = NoInput;

    async fn make(&self, ctx: &ToolContext, _told: NoInput) -> Result<PromptText, ToolError> {
        let form = one_field("context", "string");
        let message = "What context should the prompt use?";
        let choice = ctx.ask_form("user_context", message, form).await?;
        let context = field(&choice, "context").unwrap_or_else(|| "none".to_owned());
        Ok(said([ContentBlock::text(format!("Work in this context: {context}"))]))
    }
}
