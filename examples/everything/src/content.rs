//! Tools that show something: text, a picture, a sound, a resource, or that it failed.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolgate::Offer;
use toolgate_contract::{Content, Contents, Ctx, Effects, NoInput, Shown, Tool, ToolError};

/// A red dot.
pub(crate) const DOT: &[u8] = include_bytes!("dot.png");
/// A moment of silence.
const SILENCE: &[u8] = include_bytes!("silence.wav");

pub(crate) fn add(offer: Offer) -> Offer {
    offer
        .tool(SimpleText)
        .tool(Image)
        .tool(Audio)
        .tool(EmbeddedResource)
        .tool(Mixed)
        .tool(Fails)
        .tool(Schema)
        .tool(CustomHeader)
}

struct SimpleText;

impl Tool for SimpleText {
    const NAME: &'static str = "test_simple_text";
    const TITLE: &'static str = "Simple text";
    const ABOUT: &'static str = "Shows a sentence.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        Ok(Shown::text("This is a simple text response for testing."))
    }
}

struct Image;

impl Tool for Image {
    const NAME: &'static str = "test_image_content";
    const TITLE: &'static str = "Image";
    const ABOUT: &'static str = "Shows a red dot.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        Ok(Shown(vec![Content::image("image/png", DOT)]))
    }
}

struct Audio;

impl Tool for Audio {
    const NAME: &'static str = "test_audio_content";
    const TITLE: &'static str = "Audio";
    const ABOUT: &'static str = "Plays a moment of silence.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        Ok(Shown(vec![Content::audio("audio/wav", SILENCE)]))
    }
}

struct EmbeddedResource;

impl Tool for EmbeddedResource {
    const NAME: &'static str = "test_embedded_resource";
    const TITLE: &'static str = "Embedded resource";
    const ABOUT: &'static str = "Shows a resource with what it holds.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let text = "This is an embedded resource content.";
        let contents = Contents::text("test://embedded-resource", "text/plain", text);
        Ok(Shown(vec![Content::resource(contents)]))
    }
}

struct Mixed;

impl Tool for Mixed {
    const NAME: &'static str = "test_multiple_content_types";
    const TITLE: &'static str = "Mixed content";
    const ABOUT: &'static str = "Shows a text, a picture and a resource.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        let data = json!({ "test": "data", "value": 123 }).to_string();
        let contents = Contents::text("test://mixed-content-resource", "application/json", data);
        Ok(Shown(vec![
            Content::text("Multiple content types test:"),
            Content::image("image/png", DOT),
            Content::resource(contents),
        ]))
    }
}

struct Fails;

impl Tool for Fails {
    const NAME: &'static str = "test_error_handling";
    const TITLE: &'static str = "Failure";
    const ABOUT: &'static str = "Always fails.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, _input: NoInput) -> Result<Shown, ToolError> {
        Err(ToolError::failed("This tool intentionally returns an error for testing"))
    }
}

/// A tool whose schema is written by hand: clients must get it as it stands.
struct Schema;

impl Tool for Schema {
    const NAME: &'static str = "json_schema_2020_12_tool";
    const TITLE: &'static str = "Schema";
    const ABOUT: &'static str = "Tool with JSON Schema 2020-12 features.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Value;
    type Output = Shown;

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

    async fn run(&self, _ctx: &Ctx, input: Value) -> Result<Shown, ToolError> {
        Ok(Shown::text(format!("Received: {input}")))
    }
}

/// A tool of which a proxy can see an argument without reading the call.
struct CustomHeader;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Mirrored {
    /// What to say back; it is in the header `Mcp-Param-Value` too.
    #[schemars(extend("x-mcp-header" = "Value"))]
    value: String,
}

impl Tool for CustomHeader {
    const NAME: &'static str = "test_custom_header";
    const TITLE: &'static str = "Custom header";
    const ABOUT: &'static str = "Says back what it is told in a header as well.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = Mirrored;
    type Output = Shown;

    async fn run(&self, _ctx: &Ctx, input: Mirrored) -> Result<Shown, ToolError> {
        Ok(Shown::text(input.value))
    }
}
