//! Parses a prompt file: front matter with its arguments, and a text template.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;
use toolgate_contract::{PromptArgument, PromptSpec};

use super::template::Template;
use crate::front_matter::{self, Parts, Wishes, Wrong};
use crate::icons;

/// A parsed prompt file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sheet {
    pub(super) spec: PromptSpec,
    /// The completions of each argument.
    pub(super) offers: BTreeMap<String, Offer>,
    pub(super) template: Template,
}

/// The completions of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Offer {
    /// A fixed list of values.
    Values(Vec<String>),
    /// The paths of the workspace.
    Paths,
}

/// The front matter of a prompt file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    title: Option<String>,
    description: Option<String>,
    #[serde(default)]
    arguments: Vec<Spanned<Argument>>,
}

/// An argument in the front matter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argument {
    name: String,
    title: Option<String>,
    description: Option<String>,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    values: Vec<String>,
}

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Text,
    Path,
}

/// The requirements for values in the front matter, for error messages.
const WISHES: Wishes = &[
    ("title", "must be text; put it in quotes"),
    ("description", "must be text; put it in quotes"),
    ("arguments", "must be a list: `- name: path`"),
    ("name", "must be text; put it in quotes"),
    ("required", "must be true or false"),
    ("kind", "must be `path` or `text`"),
    ("values", "must be a list of texts: `[brief, thorough]`"),
];

impl Sheet {
    /// Parses `text` as the prompt `name`.
    pub(super) fn read(name: &str, text: &str) -> Result<Self, Wrong> {
        if !is_name(name) {
            let why = "a prompt's name is letters, digits, `-`, `_` and `.`, at most 64 of them";
            return Err(Wrong::whole(why));
        }
        let Parts { head, body, body_line } = front_matter::split_if_any(text)?;
        let Head { title, description, arguments } = front_matter::parse(head, WISHES)?;
        let mut spec = PromptSpec {
            name: name.to_owned(),
            title,
            about: description,
            arguments: Vec::with_capacity(arguments.len()),
            icons: icons::of("prompts"),
        };
        let mut offers = BTreeMap::new();
        for argument in arguments {
            let line = front_matter::line_of(&argument);
            let Argument { name, title, description: about, required, kind, values } =
                argument.value;
            if !is_name(&name) {
                let why = format!("`{name}` is no name of an argument: letters, digits, `-`, `_`");
                return Err(Wrong::at(line, why));
            }
            let offer = match kind {
                Kind::Text => Offer::Values(values),
                Kind::Path if values.is_empty() => Offer::Paths,
                Kind::Path => {
                    let why = format!("`{name}` has `values` and `kind: path`; give one of them");
                    return Err(Wrong::at(line, why));
                }
            };
            if offers.insert(name.clone(), offer).is_some() {
                return Err(Wrong::at(line, format!("the argument `{name}` stands twice")));
            }
            spec.arguments.push(PromptArgument { name, title, about, required });
        }
        let names: Vec<&str> = offers.keys().map(String::as_str).collect();
        let template = Template::read(body, body_line, &names)?;
        Ok(Self { spec, offers, template })
    }

    /// Checks whether the prompt includes workspace files or completes their paths.
    pub(super) fn reads(&self) -> bool {
        self.template.takes_in() || self.offers.values().any(|offer| *offer == Offer::Paths)
    }
}

fn is_name(name: &str) -> bool {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&name.len()) && name.chars().all(sound) && !name.starts_with('.')
}
