//! Redacts known secret values from results, resources and prompts.

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolgate_contract::{
    Base64Bytes, ContentBlock, ContentBody, PromptArgument, PromptSpec, PromptText,
    ResourceContents, ResourceData, ResourceSpec, ResourceTemplate, Skill, ToolOutput,
};

use super::REDACTED;
use super::values::SecretValues;

/// A value that is sent to a client.
pub(crate) trait Redactable {
    /// Redacts these values in place.
    fn redact_with(&mut self, of: &SecretValues);
}

impl Redactable for ToolOutput {
    fn redact_with(&mut self, of: &SecretValues) {
        self.value.redact_with(of);
        self.text.body.redact_with(of);
        self.text.note.redact_with(of);
        self.content.iter_mut().for_each(|content| Redactable::redact_with(content, of));
        self.meta.redact_with(of);
    }
}

impl Redactable for Vec<ResourceContents> {
    fn redact_with(&mut self, of: &SecretValues) {
        self.iter_mut().for_each(|contents| Redactable::redact_with(contents, of));
    }
}

impl Redactable for Vec<ResourceSpec> {
    fn redact_with(&mut self, of: &SecretValues) {
        self.iter_mut().for_each(|spec| Redactable::redact_with(spec, of));
    }
}

impl Redactable for Vec<String> {
    fn redact_with(&mut self, of: &SecretValues) {
        self.iter_mut().for_each(|text| Redactable::redact_with(text, of));
    }
}

impl Redactable for Skill {
    fn redact_with(&mut self, of: &SecretValues) {
        redact_uri(&mut self.uri, of);
        self.front_matter.redact_with(of);
    }
}

impl Redactable for PromptSpec {
    fn redact_with(&mut self, of: &SecretValues) {
        Redactable::redact_with(&mut self.name, of);
        self.title.redact_with(of);
        self.description.redact_with(of);
        for PromptArgument { title, description: about, .. } in &mut self.arguments {
            title.redact_with(of);
            about.redact_with(of);
        }
    }
}

impl Redactable for PromptText {
    fn redact_with(&mut self, of: &SecretValues) {
        self.description.redact_with(of);
        self.messages.iter_mut().for_each(|message| message.content.redact_with(of));
    }
}

impl Redactable for String {
    fn redact_with(&mut self, of: &SecretValues) {
        if let Cow::Owned(clean) = of.redact(self) {
            *self = clean;
        }
    }
}

impl Redactable for Option<String> {
    fn redact_with(&mut self, of: &SecretValues) {
        if let Some(text) = self {
            Redactable::redact_with(text, of);
        }
    }
}

/// Redacts keys as well, since content that is read may come from anywhere.
impl Redactable for Map<String, Value> {
    fn redact_with(&mut self, of: &SecretValues) {
        self.values_mut().for_each(|value| value.redact_with(of));
        let is_told = |key: &String| matches!(of.redact(key), Cow::Owned(_));
        if self.keys().any(is_told) {
            let all = std::mem::take(self).into_iter();
            *self = all.map(|(key, it)| (of.redact(&key).into(), it)).collect();
        }
    }
}

impl Redactable for Value {
    fn redact_with(&mut self, of: &SecretValues) {
        match self {
            Self::String(text) => Redactable::redact_with(text, of),
            Self::Array(items) => items.iter_mut().for_each(|item| item.redact_with(of)),
            Self::Object(fields) => fields.redact_with(of),
            // A password may consist of digits, and YAML readers turn it into a number.
            Self::Number(number) => {
                if let Cow::Owned(clean) = of.redact(&number.to_string()) {
                    *self = Self::String(clean);
                }
            }
            Self::Null | Self::Bool(_) => {}
        }
    }
}

impl Redactable for ContentBlock {
    fn redact_with(&mut self, of: &SecretValues) {
        match &mut self.shown {
            ContentBody::Text(text) => Redactable::redact_with(text, of),
            ContentBody::Link(spec) => spec.redact_with(of),
            ContentBody::Resource(contents) => contents.redact_with(of),
            // Images and audio cannot be redacted.
            ContentBody::Image(_) | ContentBody::Audio(_) => {}
        }
    }
}

/// Redacts the URI as well, since a listed entry may have any name.
impl Redactable for ResourceSpec {
    fn redact_with(&mut self, of: &SecretValues) {
        redact_uri(&mut self.uri, of);
        Redactable::redact_with(&mut self.name, of);
        self.title.redact_with(of);
        self.about.redact_with(of);
        self.meta.redact_with(of);
    }
}

/// Keeps the URI template, because a changed one could no longer be used.
impl Redactable for Vec<ResourceTemplate> {
    fn redact_with(&mut self, of: &SecretValues) {
        for ResourceTemplate { name, title, description: about, meta, .. } in self {
            Redactable::redact_with(name, of);
            title.redact_with(of);
            about.redact_with(of);
            meta.redact_with(of);
        }
    }
}

/// Redacts a URI, with a placeholder that is valid in URIs.
fn redact_uri(uri: &mut String, of: &SecretValues) {
    if let Cow::Owned(clean) = of.redact(uri) {
        *uri = clean.replace(REDACTED, "%5Bredacted%5D");
    }
}

impl Redactable for ResourceContents {
    fn redact_with(&mut self, of: &SecretValues) {
        self.meta.redact_with(of);
        match &mut self.held {
            ResourceData::Text(text) => Redactable::redact_with(text, of),
            ResourceData::Bytes(Base64Bytes(bytes)) => {
                if let Some(clean) = of.redact_bytes(bytes) {
                    *bytes = clean.into();
                }
            }
        }
    }
}
