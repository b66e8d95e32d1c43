//! Tools that ask whoever called, and tell what they were answered.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolgate::ServerBuilder;
use toolgate_contract::{
    ContentOnly, Effects, NoInput, PersonChoice, SamplingRequest, Tool, ToolContext, ToolError,
};

pub(crate) fn add(offer: ServerBuilder) -> ServerBuilder {
    offer
        .tool(Samples)
        .tool(NeedsModel)
        .tool(Elicits)
        .tool(ElicitsOnStream)
        .tool(Defaults)
        .tool(Enums)
}

/// What a person did with a form, as the protocol calls it, and what they filled in.
fn in_words(choice: PersonChoice) -> (&'static str, Value) {
    match choice {
        PersonChoice::Accepted(content) => ("accept", Value::Object(content)),
        PersonChoice::Declined => ("decline", json!({})),
        PersonChoice::Canceled => ("cancel", json!({})),
    }
}

struct Samples;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Prompted {
    /// What the model is asked.
    prompt: String,
}

impl Tool for Samples {
    const NAME: &'static str = "test_sampling";
    const TITLE: &'static str = "Sampling";
    const DESCRIPTION: &'static str = "Has the client's model answer.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Prompted;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, input: Prompted) -> Result<ContentOnly, ToolError> {
        let sampled =
            ctx.ask_model("answer", SamplingRequest::from_text(input.prompt, 100)).await?;
        Ok(ContentOnly::text(format!("LLM response: {}", sampled.text)))
    }
}

struct NeedsModel;

impl Tool for NeedsModel {
    const NAME: &'static str = "test_missing_capability";
    const TITLE: &'static str = "Missing capability";
    const DESCRIPTION: &'static str = "Works only for clients whose model can be asked.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let sampled = ctx.ask_model("hello", SamplingRequest::from_text("Say hello.", 100)).await?;
        Ok(ContentOnly::text(sampled.text))
    }
}

struct Elicits;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// What the person is asked.
    message: String,
}

impl Tool for Elicits {
    const NAME: &'static str = "test_elicitation";
    const TITLE: &'static str = "Elicitation";
    const DESCRIPTION: &'static str = "Has a person fill in a form.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Asked;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, input: Asked) -> Result<ContentOnly, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": {
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            },
            "required": ["username", "email"],
        });
        let (action, content) = in_words(ctx.ask_form("user", input.message, schema).await?);
        Ok(ContentOnly::text(format!("User response: action={action}, content={content}")))
    }
}

struct ElicitsOnStream;

impl Tool for ElicitsOnStream {
    const NAME: &'static str = "test_streaming_elicitation";
    const TITLE: &'static str = "Streaming elicitation";
    const DESCRIPTION: &'static str = "Has a person say yes.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": { "ok": { "type": "boolean" } },
            "required": ["ok"],
        });
        let (action, _) = in_words(ctx.ask_form("ok", "Shall it go on?", schema).await?);
        Ok(ContentOnly::text(format!("The person chose to {action}")))
    }
}

struct Defaults;

impl Tool for Defaults {
    const NAME: &'static str = "test_elicitation_sep1034_defaults";
    const TITLE: &'static str = "Form with defaults";
    const DESCRIPTION: &'static str = "Has a person fill in a form that is filled in already.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "description": "A name", "default": "John Doe" },
                "age": { "type": "integer", "description": "An age", "default": 30 },
                "score": { "type": "number", "description": "A score", "default": 95.5 },
                "status": {
                    "type": "string",
                    "description": "A status",
                    "enum": ["active", "inactive", "pending"],
                    "default": "active",
                },
                "verified": { "type": "boolean", "description": "Whether it is so", "default": true },
            },
            "required": [],
        });
        completed(ctx, "Please review the form that is filled in with defaults", schema).await
    }
}

struct Enums;

impl Tool for Enums {
    const NAME: &'static str = "test_elicitation_sep1330_enums";
    const TITLE: &'static str = "Form with choices";
    const DESCRIPTION: &'static str = "Has a person choose, in every way there is.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = ContentOnly;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<ContentOnly, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": {
                "untitledSingle": {
                    "type": "string",
                    "description": "One of some",
                    "enum": ["option1", "option2", "option3"],
                },
                "titledSingle": {
                    "type": "string",
                    "description": "One of some that have titles",
                    "oneOf": [
                        { "const": "value1", "title": "First Option" },
                        { "const": "value2", "title": "Second Option" },
                        { "const": "value3", "title": "Third Option" },
                    ],
                },
                "legacyEnum": {
                    "type": "string",
                    "description": "One of some with titles, as it was written once",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": {
                    "type": "array",
                    "description": "Several of some",
                    "minItems": 1,
                    "maxItems": 3,
                    "items": { "type": "string", "enum": ["option1", "option2", "option3"] },
                },
                "titledMulti": {
                    "type": "array",
                    "description": "Several of some that have titles",
                    "minItems": 1,
                    "maxItems": 3,
                    "items": {
                        "anyOf": [
                            { "const": "value1", "title": "First Choice" },
                            { "const": "value2", "title": "Second Choice" },
                            { "const": "value3", "title": "Third Choice" },
                        ],
                    },
                },
            },
            "required": [],
        });
        completed(ctx, "Please choose", schema).await
    }
}

async fn completed(
    ctx: &ToolContext,
    message: &str,
    schema: Value,
) -> Result<ContentOnly, ToolError> {
    let (action, content) = in_words(ctx.ask_form("form", message, schema).await?);
    Ok(ContentOnly::text(format!("Elicitation completed: action={action}, content={content}")))
}
