//! Example tools that send questions to the client, and return the answers.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolgate_contract::{
    Effects, ElicitationAnswer, NoInput, SamplingRequest, Tool, ToolContext, ToolError,
    UnstructuredResult,
};
use toolgate_service::ServerBuilder;

/// Adds the tools of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    builder
        .tool(SamplingTool)
        .tool(ModelRequiredTool)
        .tool(ElicitationTool)
        .tool(StreamElicitationTool)
        .tool(ElicitDefaultsTool)
        .tool(ElicitEnumsTool)
}

/// Returns MCP's name for the person's action (such as accept), and the content of the form.
fn action_and_content(choice: ElicitationAnswer) -> (&'static str, Value) {
    match choice {
        ElicitationAnswer::Accepted(content) => ("accept", Value::Object(content)),
        ElicitationAnswer::Declined => ("decline", json!({})),
        ElicitationAnswer::Canceled => ("cancel", json!({})),
    }
}

struct SamplingTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SamplingInput {
    /// Prompt for the model.
    prompt: String,
}

impl Tool for SamplingTool {
    const NAME: &'static str = "test_sampling";
    const TITLE: &'static str = "Sampling";
    const DESCRIPTION: &'static str = "Sends a prompt to the client's model.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = SamplingInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let sampled =
            ctx.ask_model("answer", SamplingRequest::from_text(input.prompt, 100)).await?;
        Ok(UnstructuredResult::text(format!("LLM response: {}", sampled.text)))
    }
}

struct ModelRequiredTool;

impl Tool for ModelRequiredTool {
    const NAME: &'static str = "test_missing_capability";
    const TITLE: &'static str = "Missing capability";
    const DESCRIPTION: &'static str = "Only works for clients that support sampling.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let sampled = ctx.ask_model("hello", SamplingRequest::from_text("Say hello.", 100)).await?;
        Ok(UnstructuredResult::text(sampled.text))
    }
}

struct ElicitationTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ElicitationInput {
    /// Question for the person.
    message: String,
}

impl Tool for ElicitationTool {
    const NAME: &'static str = "test_elicitation";
    const TITLE: &'static str = "Elicitation";
    const DESCRIPTION: &'static str = "Asks a person to fill in a form.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = ElicitationInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": {
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            },
            "required": ["username", "email"],
        });
        let (action, content) =
            action_and_content(ctx.ask_form("user", input.message, schema).await?);
        Ok(UnstructuredResult::text(format!("User response: action={action}, content={content}")))
    }
}

struct StreamElicitationTool;

impl Tool for StreamElicitationTool {
    const NAME: &'static str = "test_streaming_elicitation";
    const TITLE: &'static str = "Streaming elicitation";
    const DESCRIPTION: &'static str = "Asks a person for a confirmation.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": { "ok": { "type": "boolean" } },
            "required": ["ok"],
        });
        let (action, _) = action_and_content(ctx.ask_form("ok", "Continue?", schema).await?);
        Ok(UnstructuredResult::text(format!("The person chose to {action}")))
    }
}

struct ElicitDefaultsTool;

impl Tool for ElicitDefaultsTool {
    const NAME: &'static str = "test_elicitation_sep1034_defaults";
    const TITLE: &'static str = "Form with defaults";
    const DESCRIPTION: &'static str = "Asks a person to fill in a form with default values.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
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
                "verified": { "type": "boolean", "description": "Verified", "default": true },
            },
            "required": [],
        });
        ask_and_report(ctx, "Please review the default values of this form", schema).await
    }
}

struct ElicitEnumsTool;

impl Tool for ElicitEnumsTool {
    const NAME: &'static str = "test_elicitation_sep1330_enums";
    const TITLE: &'static str = "Form with choices";
    const DESCRIPTION: &'static str = "Asks a person to choose, with every kind of choice.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let schema = json!({
            "type": "object",
            "properties": {
                "untitledSingle": {
                    "type": "string",
                    "description": "One choice",
                    "enum": ["option1", "option2", "option3"],
                },
                "titledSingle": {
                    "type": "string",
                    "description": "One choice with titles",
                    "oneOf": [
                        { "const": "value1", "title": "First Option" },
                        { "const": "value2", "title": "Second Option" },
                        { "const": "value3", "title": "Third Option" },
                    ],
                },
                "legacyEnum": {
                    "type": "string",
                    "description": "One choice with titles, in the older form",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": {
                    "type": "array",
                    "description": "Several choices",
                    "minItems": 1,
                    "maxItems": 3,
                    "items": { "type": "string", "enum": ["option1", "option2", "option3"] },
                },
                "titledMulti": {
                    "type": "array",
                    "description": "Several choices with titles",
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
        ask_and_report(ctx, "Please choose", schema).await
    }
}

/// Shows a form to the person, and returns the person's action and answers as text.
async fn ask_and_report(
    ctx: &ToolContext,
    message: &str,
    schema: Value,
) -> Result<UnstructuredResult, ToolError> {
    let (action, content) = action_and_content(ctx.ask_form("form", message, schema).await?);
    Ok(UnstructuredResult::text(format!(
        "Elicitation completed: action={action}, content={content}"
    )))
}
