//! `docs.render`: fills in a template and returns Markdown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, exact_json};

use super::template::{DocumentTemplateValues, fill_template};
use super::{sha256, yaml};
use toolgate_world::Root;

/// The maximum size of the Markdown text that one call renders, in bytes.
const MARKDOWN_BYTES_MAX: usize = 4 << 20;

/// The tool `docs.render`. It writes no files, and equal input gives equal output.
pub struct RenderMarkdown {
    /// The workspace root. The tool runs on its blocking threads, but reads no file.
    pub(super) root: Root,
}

/// Input of `docs.render`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenderMarkdownInput {
    /// Text for `{{ title }}`.
    #[schemars(length(min = 1))]
    title: String,
    /// The template.
    #[schemars(length(min = 1))]
    template: String,
    /// Text for `{{ body }}`.
    body: String,
    /// Data to write above the text, as YAML.
    #[serde(default, deserialize_with = "exact_json::deserialize_optional_object")]
    #[schemars(!default)]
    front_matter: Option<Map<String, Value>>,
    /// Values for `{{ metadata.NAME }}`.
    #[serde(default, deserialize_with = "exact_json::deserialize_optional_object")]
    #[schemars(!default)]
    metadata: Option<Map<String, Value>>,
}

/// Output of `docs.render`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct RenderMarkdownOutput {
    /// The rendered text.
    markdown: String,
    /// The SHA-256 of the rendered text.
    #[schemars(regex(pattern = "^[a-f0-9]{64}$"))]
    content_hash: String,
    /// Values that the text was made from.
    metadata: RenderedTextInputs,
}

/// The values that a text was rendered from.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
struct RenderedTextInputs {
    /// The title.
    title: String,
    /// The front matter, empty if there is none.
    front_matter: Map<String, Value>,
}

impl Tool for RenderMarkdown {
    const NAME: &'static str = "docs.render";
    const TITLE: &'static str = "Render Markdown";
    const DESCRIPTION: &'static str = "Fill in a template's variables, such as `{{ title }}`, \
        `{{ body }}` or `{{ metadata.name }}`. Writes no file.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["frontMatter"];
    const IDEMPOTENT: bool = true;
    type Input = RenderMarkdownInput;
    type Output = RenderMarkdownOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        self.root.run_blocking(ctx, move |_, _| render(input)).await
    }

    fn result_text(output: &RenderMarkdownOutput) -> ResultText {
        let note = format!("sha256 {}", output.content_hash);
        ResultText::from_body(output.markdown.clone()).with_note(note)
    }
}

fn render(input: RenderMarkdownInput) -> Result<RenderMarkdownOutput, ToolError> {
    let RenderMarkdownInput { title, template, body, front_matter, metadata } = input;
    let metadata = metadata.unwrap_or_default();
    let names = DocumentTemplateValues { title: &title, body: &body, metadata: &metadata };
    let text = fill_template(&template, &names, MARKDOWN_BYTES_MAX)
        .map_err(|why| ToolError::invalid("/template", why))?;
    let markdown = match &front_matter {
        Some(fields) => {
            let left = MARKDOWN_BYTES_MAX.saturating_sub(text.len() + "---\n---\n\n".len());
            let block = yaml::yaml_block(fields, left).ok_or_else(|| {
                let why = format!(
                    "with this front matter, the text has more than {MARKDOWN_BYTES_MAX} bytes; \
                     YAML indents each \
                     line of a nested value"
                );
                ToolError::invalid("/frontMatter", why)
            })?;
            format!("---\n{block}---\n\n{text}")
        }
        None => text,
    };
    let content_hash = sha256(markdown.as_bytes());
    let front_matter = front_matter.unwrap_or_default();
    Ok(RenderMarkdownOutput {
        markdown,
        content_hash,
        metadata: RenderedTextInputs { title, front_matter },
    })
}
