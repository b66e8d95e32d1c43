//! Redacts known secret values from results, resources and prompts.

use std::borrow::Cow;

use serde_json::{Map, Value};
use toolgate_contract::{
    Blob, Content, Contents, Held, Output, PromptArgument, PromptSpec, PromptText, ResourceSpec,
    ResourceTemplate, Shape, Skill,
};

use super::REDACTED;
use super::values::Values;

/// A value that is sent to a client.
pub(crate) trait Told {
    /// Redacts these values in place.
    fn rid(&mut self, of: &Values);
}

impl Told for Output {
    fn rid(&mut self, of: &Values) {
        self.value.rid(of);
        self.text.body.rid(of);
        self.text.note.rid(of);
        self.content.iter_mut().for_each(|content| Told::rid(content, of));
        self.meta.rid(of);
    }
}

impl Told for Vec<Contents> {
    fn rid(&mut self, of: &Values) {
        self.iter_mut().for_each(|contents| Told::rid(contents, of));
    }
}

impl Told for Vec<ResourceSpec> {
    fn rid(&mut self, of: &Values) {
        self.iter_mut().for_each(|spec| Told::rid(spec, of));
    }
}

impl Told for Vec<String> {
    fn rid(&mut self, of: &Values) {
        self.iter_mut().for_each(|text| Told::rid(text, of));
    }
}

impl Told for Skill {
    fn rid(&mut self, of: &Values) {
        rid_uri(&mut self.uri, of);
        self.front_matter.rid(of);
    }
}

impl Told for PromptSpec {
    fn rid(&mut self, of: &Values) {
        Told::rid(&mut self.name, of);
        self.title.rid(of);
        self.about.rid(of);
        for PromptArgument { title, about, .. } in &mut self.arguments {
            title.rid(of);
            about.rid(of);
        }
    }
}

impl Told for PromptText {
    fn rid(&mut self, of: &Values) {
        self.about.rid(of);
        self.messages.iter_mut().for_each(|message| message.content.rid(of));
    }
}

impl Told for String {
    fn rid(&mut self, of: &Values) {
        if let Cow::Owned(clean) = of.redacted(self) {
            *self = clean;
        }
    }
}

impl Told for Option<String> {
    fn rid(&mut self, of: &Values) {
        if let Some(text) = self {
            Told::rid(text, of);
        }
    }
}

/// Redacts keys as well, since content that is read may come from anywhere.
impl Told for Map<String, Value> {
    fn rid(&mut self, of: &Values) {
        self.values_mut().for_each(|value| value.rid(of));
        let is_told = |key: &String| matches!(of.redacted(key), Cow::Owned(_));
        if self.keys().any(is_told) {
            let all = std::mem::take(self).into_iter();
            *self = all.map(|(key, it)| (of.redacted(&key).into(), it)).collect();
        }
    }
}

impl Told for Value {
    fn rid(&mut self, of: &Values) {
        match self {
            Self::String(text) => Told::rid(text, of),
            Self::Array(items) => items.iter_mut().for_each(|item| item.rid(of)),
            Self::Object(fields) => fields.rid(of),
            // A password may consist of digits, and YAML readers turn it into a number.
            Self::Number(number) => {
                if let Cow::Owned(clean) = of.redacted(&number.to_string()) {
                    *self = Self::String(clean);
                }
            }
            Self::Null | Self::Bool(_) => {}
        }
    }
}

impl Told for Content {
    fn rid(&mut self, of: &Values) {
        match &mut self.shown {
            Shape::Text(text) => Told::rid(text, of),
            Shape::Link(spec) => spec.rid(of),
            Shape::Resource(contents) => contents.rid(of),
            // Images and audio cannot be redacted.
            Shape::Image(_) | Shape::Audio(_) => {}
        }
    }
}

/// Redacts the URI as well, since a listed entry may have any name.
impl Told for ResourceSpec {
    fn rid(&mut self, of: &Values) {
        rid_uri(&mut self.uri, of);
        Told::rid(&mut self.name, of);
        self.title.rid(of);
        self.about.rid(of);
        self.meta.rid(of);
    }
}

/// Keeps the URI template, because a changed one could no longer be used.
impl Told for Vec<ResourceTemplate> {
    fn rid(&mut self, of: &Values) {
        for ResourceTemplate { name, title, about, meta, .. } in self {
            Told::rid(name, of);
            title.rid(of);
            about.rid(of);
            meta.rid(of);
        }
    }
}

/// Redacts a URI, with a placeholder that is valid in URIs.
fn rid_uri(uri: &mut String, of: &Values) {
    if let Cow::Owned(clean) = of.redacted(uri) {
        *uri = clean.replace(REDACTED, "%5Bredacted%5D");
    }
}

impl Told for Contents {
    fn rid(&mut self, of: &Values) {
        self.meta.rid(of);
        match &mut self.held {
            Held::Text(text) => Told::rid(text, of),
            Held::Bytes(Blob(bytes)) => {
                if let Some(clean) = of.redacted_bytes(bytes) {
                    *bytes = clean.into();
                }
            }
        }
    }
}
