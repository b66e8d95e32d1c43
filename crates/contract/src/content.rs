//! What is shown to whoever reads: text, pictures, sounds, files, links.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Contents, ResourceSpec};

/// One thing shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// It.
    pub shown: Shape,
    /// For whom it is and how much it matters.
    #[serde(default, skip_serializing_if = "Meant::is_plain")]
    pub meant: Meant,
}

/// What can be shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Text.
    Text(String),
    /// A picture.
    Image(Media),
    /// A sound.
    Audio(Media),
    /// A resource, for whoever wants to read it.
    Link(Box<ResourceSpec>),
    /// A resource with what it holds.
    Resource(Contents),
}

/// Bytes that a program shows or plays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Media {
    /// What it is, e.g. `image/png`.
    pub media_type: String,
    /// It.
    pub data: Blob,
}

/// Bytes, Base64 where they must be text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob(pub Bytes);

impl Blob {
    /// The bytes as Base64.
    pub fn base64(&self) -> String {
        STANDARD.encode(&self.0)
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.base64())
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

/// For whom a thing is and how much it matters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meant {
    /// For whom; empty is for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<Role>,
    /// How much it matters, 0 (hardly) to 1 (it must be had).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<f64>,
    /// When it last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<jiff::Timestamp>,
}

impl Meant {
    /// Whether nothing is said.
    pub fn is_plain(&self) -> bool {
        self.audience.is_empty() && self.priority.is_none() && self.modified.is_none()
    }
}

/// Who speaks, or is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Content {
    fn plain(shown: Shape) -> Self {
        Self { shown, meant: Meant::default() }
    }

    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::plain(Shape::Text(text.into()))
    }

    /// A picture of type `media_type`, e.g. `image/png`.
    pub fn image(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self::plain(Shape::Image(Media::new(media_type, data)))
    }

    /// A sound of type `media_type`, e.g. `audio/wav`.
    pub fn audio(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self::plain(Shape::Audio(Media::new(media_type, data)))
    }

    /// A resource with what it holds.
    pub fn resource(contents: Contents) -> Self {
        Self::plain(Shape::Resource(contents))
    }

    /// A resource, for whoever wants to read it.
    pub fn link(resource: ResourceSpec) -> Self {
        Self::plain(Shape::Link(Box::new(resource)))
    }

    /// The same, for `meant`.
    pub fn meant(self, meant: Meant) -> Self {
        Self { meant, ..self }
    }

    /// What a wire that shows text alone has of it.
    pub fn as_text(&self) -> String {
        match &self.shown {
            Shape::Text(text) => text.clone(),
            Shape::Image(media) | Shape::Audio(media) => {
                format!("({}, {} bytes)", media.media_type, media.data.0.len())
            }
            Shape::Link(resource) => resource.uri.clone(),
            Shape::Resource(contents) => match &contents.held {
                crate::Held::Text(text) => text.clone(),
                crate::Held::Bytes(data) => format!("({}, {} bytes)", contents.uri, data.0.len()),
            },
        }
    }
}

impl Media {
    fn new(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self { media_type: media_type.into(), data: Blob(data.into()) }
    }
}

/// What is said of a thing for whoever shows it, by names that they know; nobody here looks into it.
pub type MetaFields = serde_json::Map<String, serde_json::Value>;

/// A picture that stands for a tool, a prompt, a resource or the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Icon {
    /// Where it is: an `https:` or a `data:` URI.
    pub src: String,
    /// What it is, e.g. `image/svg+xml`.
    #[serde(rename = "mimeType", skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Its sizes, e.g. `48x48` or `any`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
}

impl Icon {
    /// A picture written in SVG.
    pub fn svg(source: &str) -> Self {
        Self {
            src: format!("data:image/svg+xml;base64,{}", STANDARD.encode(source)),
            media_type: Some("image/svg+xml".into()),
            sizes: vec!["any".into()],
        }
    }
}
