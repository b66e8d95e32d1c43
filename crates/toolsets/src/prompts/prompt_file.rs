//! Parses a prompt file: front matter with its arguments, and a text template.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;
use toolgate_contract::{PromptArgument, PromptSpec};

use super::template::PromptTemplate;
use crate::front_matter::{self, FileErrorWithLine, MarkdownFileParts, YamlValueRequirements};
use crate::icons;

/// A parsed prompt file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PromptFile {
    pub(super) spec: PromptSpec,
    /// The values to suggest for each argument of the prompt.
    pub(super) completions: BTreeMap<String, ArgumentCompletions>,
    pub(super) template: PromptTemplate,
}

/// The values that are suggested for an argument of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgumentCompletions {
    /// Fixed list of values to suggest.
    Values(Vec<String>),
    /// Paths of files and folders in the workspace, as suggestions.
    Paths,
}

/// The front matter of a prompt file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptFrontMatter {
    title: Option<String>,
    description: Option<String>,
    #[serde(default)]
    arguments: Vec<Spanned<FrontMatterArgument>>,
}

/// An argument in the front matter of a prompt file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FrontMatterArgument {
    name: String,
    title: Option<String>,
    description: Option<String>,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    kind: PromptArgumentKind,
    #[serde(default)]
    values: Vec<String>,
}

/// The type of a prompt's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PromptArgumentKind {
    #[default]
    Text,
    Path,
}

/// The requirements for values in the front matter of a prompt file, as texts for error messages.
const REQUIREMENTS: YamlValueRequirements = &[
    ("title", "must be text; put it in quotes"),
    ("description", "must be text; put it in quotes"),
    ("arguments", "must be a list: `- name: path`"),
    ("name", "must be text; put it in quotes"),
    ("required", "must be true or false"),
    ("kind", "must be `path` or `text`"),
    ("values", "must be a list of texts: `[brief, thorough]`"),
];

impl PromptFile {
    /// Parses `text`, the content of a prompt file, as the prompt `name`. Fails if the text is
    /// invalid.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, FileErrorWithLine> {
        if !is_name(name) {
            let why = format!("a prompt's name must be {NAME_RULE}");
            return Err(FileErrorWithLine::whole(why));
        }
        let MarkdownFileParts { head, body, body_line } = front_matter::split_if_any(text)?;
        let PromptFrontMatter { title, description, arguments } =
            front_matter::parse(head, REQUIREMENTS)?;
        let mut spec = PromptSpec {
            name: name.to_owned(),
            title,
            description,
            arguments: Vec::with_capacity(arguments.len()),
            icons: icons::for_toolset("prompts"),
        };
        let mut completions = BTreeMap::new();
        for argument in arguments {
            let line = front_matter::line_number(&argument);
            let FrontMatterArgument { name, title, description: about, required, kind, values } =
                argument.value;
            if !is_name(&name) {
                let why = format!("`{name}` is not a valid argument name: it must be {NAME_RULE}");
                return Err(FileErrorWithLine::at_line(line, why));
            }
            let completion = match kind {
                PromptArgumentKind::Text => ArgumentCompletions::Values(values),
                PromptArgumentKind::Path if values.is_empty() => ArgumentCompletions::Paths,
                PromptArgumentKind::Path => {
                    let why = format!("`{name}` has `values` and `kind: path`; give one of them");
                    return Err(FileErrorWithLine::at_line(line, why));
                }
            };
            if completions.insert(name.clone(), completion).is_some() {
                return Err(FileErrorWithLine::at_line(
                    line,
                    format!("the argument `{name}` appears twice"),
                ));
            }
            spec.arguments.push(PromptArgument { name, title, description: about, required });
        }
        let own = [&spec.title, &spec.description];
        let arguments = spec.arguments.iter().flat_map(|it| [&it.title, &it.description]);
        own.into_iter().chain(arguments).flatten().try_for_each(|text| {
            front_matter::check_text(text).map_err(|fault| {
                FileErrorWithLine::whole(format!("a title or description {fault}"))
            })
        })?;
        let names: Vec<&str> = completions.keys().map(String::as_str).collect();
        let template = PromptTemplate::parse(body, body_line, &names)?;
        Ok(Self { spec, completions, template })
    }

    /// Returns `true` if the prompt includes workspace files or completes their paths.
    pub(super) fn needs_file_access(&self) -> bool {
        self.template.includes_files()
            || self.completions.values().any(|it| *it == ArgumentCompletions::Paths)
    }
}

/// The rule for prompt names that [`is_name`] checks, as a text for error messages.
const NAME_RULE: &str = "1 to 64 letters, digits, `-`, `_` or `.`, not beginning with `.`";

fn is_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&name.len()) && name.chars().all(is_valid) && !name.starts_with('.')
}
