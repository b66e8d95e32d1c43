//! Example tools that return each kind of content: text, image, audio, resource, and a failure.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolgate_contract::{
    ContentBlock, Effects, NoInput, ResourceContents, Tool, ToolContext, ToolError,
    UnstructuredResult,
};
use toolgate_service::ServerBuilder;

/// PNG image of a red dot.
pub(crate) const DOT: &[u8] = include_bytes!("dot.png");
/// Short audio clip (WAV) without a sound.
const SILENCE: &[u8] = include_bytes!("silence.wav");

/// Adds the tools of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    builder
        .tool(SimpleTextTool)
        .tool(ImageTool)
        .tool(AudioTool)
        .tool(EmbeddedResourceTool)
        .tool(MixedContentTool)
        .tool(FailingTool)
        .tool(HandwrittenSchemaTool)
        .tool(CustomHeaderTool)
}

struct SimpleTextTool;

impl Tool for SimpleTextTool {
    const NAME: &'static str = "test_simple_text";
    const TITLE: &'static str = "Simple text";
    const DESCRIPTION: &'static str = "Returns a sentence.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult::text("This is a simple text response for testing."))
    }
}

struct ImageTool;

impl Tool for ImageTool {
    const NAME: &'static str = "test_image_content";
    const TITLE: &'static str = "Image";
    const DESCRIPTION: &'static str = "Returns an image of a red dot.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult(vec![ContentBlock::image("image/png", DOT)]))
    }
}

struct AudioTool;

impl Tool for AudioTool {
    const NAME: &'static str = "test_audio_content";
    const TITLE: &'static str = "Audio";
    const DESCRIPTION: &'static str = "Returns a short silent sound.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult(vec![ContentBlock::audio("audio/wav", SILENCE)]))
    }
}

struct EmbeddedResourceTool;

impl Tool for EmbeddedResourceTool {
    const NAME: &'static str = "test_embedded_resource";
    const TITLE: &'static str = "Embedded resource";
    const DESCRIPTION: &'static str = "Shows a resource with what it holds.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let text = "This is an embedded resource content.";
        let contents = ResourceContents::text("test://embedded-resource", "text/plain", text);
        Ok(UnstructuredResult(vec![ContentBlock::resource(contents)]))
    }
}

struct MixedContentTool;

impl Tool for MixedContentTool {
    const NAME: &'static str = "test_multiple_content_types";
    const TITLE: &'static str = "Mixed content";
    const DESCRIPTION: &'static str = "Returns a text, an image and a resource.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let data = json!({ "test": "data", "value": 123 }).to_string();
        let contents =
            ResourceContents::text("test://mixed-content-resource", "application/json", data);
        Ok(UnstructuredResult(vec![
            ContentBlock::text("Multiple content types test:"),
            ContentBlock::image("image/png", DOT),
            ContentBlock::resource(contents),
        ]))
    }
}

struct FailingTool;

impl Tool for FailingTool {
    const NAME: &'static str = "test_error_handling";
    const TITLE: &'static str = "Failure";
    const DESCRIPTION: &'static str = "Always fails.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        Err(ToolError::failed("This tool intentionally returns an error for testing"))
    }
}

/// Tool whose input schema is written by hand. Clients must receive the schema unchanged.
struct HandwrittenSchemaTool;

impl Tool for HandwrittenSchemaTool {
    const NAME: &'static str = "json_schema_2020_12_tool";
    const TITLE: &'static str = "Schema";
    const DESCRIPTION: &'static str = "Tool with JSON Schema 2020-12 features.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Value;
    type Output = UnstructuredResult;

    fn input_schema() -> Value {
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {
                "address": {
                    "$anchor": "addressDef",
                    "type": "object",
                    "properties": {
                        "street": { "type": "string" },
                        "city": { "type": "string" },
                    },
                },
            },
            "properties": {
                "name": { "type": "string" },
                "address": { "$ref": "#/$defs/address" },
                "contactMethod": { "type": "string", "enum": ["phone", "email"] },
                "phone": { "type": "string" },
                "email": { "type": "string" },
            },
            "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
            "if": {
                "properties": { "contactMethod": { "const": "phone" } },
                "required": ["contactMethod"],
            },
            "then": { "required": ["phone"] },
            "else": { "required": ["email"] },
            "additionalProperties": false,
        })
    }

    async fn run(&self, _ctx: &ToolContext, input: Value) -> Result<UnstructuredResult, ToolError> {
        Ok(UnstructuredResult::text(format!("Received: {input}")))
    }
}

/// Tool with an argument that clients also send as an HTTP header, so that proxies can read it.
struct CustomHeaderTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CustomHeaderInput {
    /// Text to return. It is also sent in the header `Mcp-Param-Value`.
    #[schemars(extend("x-mcp-header" = "Value"))]
    value: String,
}

impl Tool for CustomHeaderTool {
    const NAME: &'static str = "test_custom_header";
    const TITLE: &'static str = "Custom header";
    const DESCRIPTION: &'static str = "Returns its input, which is also sent in a header.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = CustomHeaderInput;
    type Output = UnstructuredResult;

    async fn run(&self, _ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        Ok(UnstructuredResult::text(input.value))
    }
}
