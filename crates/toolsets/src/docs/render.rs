//! `docs.render`: a template filled in, and the Markdown that comes of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use super::template::{Names, fill};
use super::{sha256, yaml};
use crate::world::Root;

/// More is not made of one call.
const MARKDOWN_BYTES_MAX: usize = 4 << 20;

/// Renders Markdown. It touches nothing: the same input is always the same output.
pub struct Render {
    root: Root,
}

/// The template and what fills it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// What `{{ title }}` stands for.
    #[schemars(length(min = 1))]
    title: String,
    /// The text with names in it: `{{ title }}`, `{{ body }}`, `{{ metadata.author.name }}` (or
    /// `{{ author.name }}`). What is filled in is not looked at for names again.
    #[schemars(length(min = 1))]
    template: String,
    /// What `{{ body }}` stands for.
    body: String,
    /// What is written above the text as YAML, keys in order.
    front_matter: Option<Map<String, Value>>,
    /// What other names stand for.
    metadata: Option<Map<String, Value>>,
}

/// What came of it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
pub struct Output {
    /// The text.
    markdown: String,
    /// The SHA-256 of the text.
    #[schemars(regex(pattern = "^[a-f0-9]{64}$"))]
    content_hash: String,
    /// What it was made of.
    metadata: Told,
}

/// What a text was made of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(deny_unknown_fields)]
struct Told {
    /// The title.
    title: String,
    /// What stands above the text; empty if nothing does.
    front_matter: Map<String, Value>,
}

impl Render {
    /// The tool; its work is done where `root` waits for the disk, and reads nothing there.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }
}

impl Tool for Render {
    const NAME: &'static str = "docs.render";
    const TITLE: &'static str = "Render Markdown";
    const ABOUT: &'static str = "Fills in a template's names ({{ title }}, {{ body }} and what \
        metadata has) and puts YAML front matter above, if it is given. No code and no loops; a \
        name that nothing is known of is refused. Writes no file.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        self.root.work(ctx, move |_, _| render(input)).await
    }

    fn text(output: &Output) -> Text {
        let note = format!("sha256 {}", output.content_hash);
        Text::body(output.markdown.clone()).with_note(note)
    }
}

fn render(input: Input) -> Result<Output, ToolError> {
    let Input { title, template, body, front_matter, metadata } = input;
    let metadata = metadata.unwrap_or_default();
    let names = Names { title: &title, body: &body, metadata: &metadata };
    let text = fill(&template, &names, MARKDOWN_BYTES_MAX)
        .map_err(|why| ToolError::invalid("/template", why))?;
    let markdown = match &front_matter {
        Some(fields) => {
            let left = MARKDOWN_BYTES_MAX.saturating_sub(text.len() + "---\n---\n\n".len());
            let block = yaml::block(fields, left).ok_or_else(|| {
                let why = format!(
                    "with it the text has more than {MARKDOWN_BYTES_MAX} bytes; what lies deep is \
                     indented on each line"
                );
                ToolError::invalid("/frontMatter", why)
            })?;
            format!("---\n{block}---\n\n{text}")
        }
        None => text,
    };
    let content_hash = sha256(markdown.as_bytes());
    let front_matter = front_matter.unwrap_or_default();
    Ok(Output { markdown, content_hash, metadata: Told { title, front_matter } })
}
