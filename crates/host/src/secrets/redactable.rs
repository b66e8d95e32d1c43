//! Redacts known secret values from results, resources and prompts.

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolgate_contract::{
    Base64Bytes, ContentBlock, ContentBody, PromptArgument, PromptSpec, RenderedPrompt,
    ResourceContents, ResourceData, ResourceSpec, ResourceTemplate, Skill, ToolOutput,
};

use super::REDACTED;
use super::values::SecretValueMatcher;

/// A value that is sent to a client and may contain secrets.
pub(crate) trait Redactable {
    /// Redacts `secrets` from this value, in place.
    fn redact_with(&mut self, secrets: &SecretValueMatcher);
}

impl Redactable for ToolOutput {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.value.redact_with(secrets);
        self.text.body.redact_with(secrets);
        self.text.note.redact_with(secrets);
        self.content.iter_mut().for_each(|content| Redactable::redact_with(content, secrets));
        self.meta.redact_with(secrets);
    }
}

impl Redactable for Vec<ResourceContents> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.iter_mut().for_each(|contents| Redactable::redact_with(contents, secrets));
    }
}

impl Redactable for Vec<ResourceSpec> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.iter_mut().for_each(|spec| Redactable::redact_with(spec, secrets));
    }
}

impl Redactable for Vec<String> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.iter_mut().for_each(|text| Redactable::redact_with(text, secrets));
    }
}

impl Redactable for Skill {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        redact_uri(&mut self.uri, secrets);
        self.front_matter.redact_with(secrets);
    }
}

impl Redactable for PromptSpec {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        Redactable::redact_with(&mut self.name, secrets);
        self.title.redact_with(secrets);
        self.description.redact_with(secrets);
        for PromptArgument { title, description: about, .. } in &mut self.arguments {
            title.redact_with(secrets);
            about.redact_with(secrets);
        }
    }
}

impl Redactable for RenderedPrompt {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.description.redact_with(secrets);
        self.messages.iter_mut().for_each(|message| message.content.redact_with(secrets));
    }
}

impl Redactable for String {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        if let Cow::Owned(clean) = secrets.redact(self) {
            *self = clean;
        }
    }
}

impl Redactable for Option<String> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        if let Some(text) = self {
            Redactable::redact_with(text, secrets);
        }
    }
}

/// Redacts the keys of the object, too, because the content may come from any source.
impl Redactable for Map<String, Value> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.values_mut().for_each(|value| value.redact_with(secrets));
        let has_secret = |key: &String| matches!(secrets.redact(key), Cow::Owned(_));
        if self.keys().any(has_secret) {
            let all = std::mem::take(self).into_iter();
            *self = all.map(|(key, it)| (secrets.redact(&key).into(), it)).collect();
        }
    }
}

impl Redactable for Value {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        match self {
            Self::String(text) => Redactable::redact_with(text, secrets),
            Self::Array(items) => items.iter_mut().for_each(|item| item.redact_with(secrets)),
            Self::Object(fields) => fields.redact_with(secrets),
            // A password may consist of digits, and YAML readers turn it into a number.
            Self::Number(number) => {
                if let Cow::Owned(clean) = secrets.redact(&number.to_string()) {
                    *self = Self::String(clean);
                }
            }
            Self::Null | Self::Bool(_) => {}
        }
    }
}

impl Redactable for ContentBlock {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        match &mut self.shown {
            ContentBody::Text(text) => Redactable::redact_with(text, secrets),
            ContentBody::Link(spec) => spec.redact_with(secrets),
            ContentBody::Resource(contents) => contents.redact_with(secrets),
            // Images and audio cannot be redacted.
            ContentBody::Image(_) | ContentBody::Audio(_) => {}
        }
    }
}

/// Redacts the URI of a resource, too, because a listed entry may have any name.
impl Redactable for ResourceSpec {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        redact_uri(&mut self.uri, secrets);
        Redactable::redact_with(&mut self.name, secrets);
        self.title.redact_with(secrets);
        self.about.redact_with(secrets);
        self.meta.redact_with(secrets);
    }
}

/// Leaves the URI template unchanged, because a changed template could not be used.
impl Redactable for Vec<ResourceTemplate> {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        for ResourceTemplate { name, title, description: about, meta, .. } in self {
            Redactable::redact_with(name, secrets);
            title.redact_with(secrets);
            about.redact_with(secrets);
            meta.redact_with(secrets);
        }
    }
}

/// Redacts a URI, with a placeholder that is valid in URIs.
fn redact_uri(uri: &mut String, secrets: &SecretValueMatcher) {
    if let Cow::Owned(clean) = secrets.redact(uri) {
        *uri = clean.replace(REDACTED, "%5Bredacted%5D");
    }
}

impl Redactable for ResourceContents {
    fn redact_with(&mut self, secrets: &SecretValueMatcher) {
        self.meta.redact_with(secrets);
        match &mut self.held {
            ResourceData::Text(text) => Redactable::redact_with(text, secrets),
            ResourceData::Bytes(Base64Bytes(bytes)) => {
                if let Some(clean) = secrets.redact_bytes(bytes) {
                    *bytes = clean.into();
                }
            }
        }
    }
}
