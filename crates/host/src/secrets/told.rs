//! What is told without secrets that are known by their values: results, resources, prompts.

use std::borrow::Cow;

use serde_json::Value;
use toolgate_contract::{Blob, Content, Contents, Held, Output, PromptText, ResourceSpec, Shape};

use super::values::Values;

/// What a call comes to.
pub(crate) trait Told {
    /// Rids it of these values.
    fn rid(&mut self, of: &Values);
}

impl Told for Output {
    fn rid(&mut self, of: &Values) {
        self.value.rid(of);
        self.text.body.rid(of);
        self.text.note.rid(of);
        self.content.iter_mut().for_each(|content| Told::rid(content, of));
    }
}

impl Told for Vec<Contents> {
    fn rid(&mut self, of: &Values) {
        self.iter_mut().for_each(|contents| Told::rid(contents, of));
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

/// Keys, too: whatever is read may have come from anywhere.
impl Told for Value {
    fn rid(&mut self, of: &Values) {
        match self {
            Self::String(text) => Told::rid(text, of),
            Self::Array(items) => items.iter_mut().for_each(|item| item.rid(of)),
            Self::Object(fields) => {
                fields.values_mut().for_each(|value| value.rid(of));
                let is_told = |key: &String| matches!(of.redacted(key), Cow::Owned(_));
                if fields.keys().any(is_told) {
                    let all = std::mem::take(fields).into_iter();
                    *fields = all.map(|(key, it)| (of.redacted(&key).into(), it)).collect();
                }
            }
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
        }
    }
}

impl Told for Content {
    fn rid(&mut self, of: &Values) {
        match &mut self.shown {
            Shape::Text(text) => Told::rid(text, of),
            Shape::Link(spec) => spec.rid(of),
            Shape::Resource(contents) => contents.rid(of),
            // In a picture or a sound nothing could be taken out.
            Shape::Image(_) | Shape::Audio(_) => {}
        }
    }
}

impl Told for ResourceSpec {
    fn rid(&mut self, of: &Values) {
        Told::rid(&mut self.name, of);
        self.title.rid(of);
        self.about.rid(of);
    }
}

impl Told for Contents {
    fn rid(&mut self, of: &Values) {
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
