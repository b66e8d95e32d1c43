//! Content for a person or a model: text, images, audio, resources and links.

mod resource_data;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use resource_data::{ResourceContents, ResourceData, ResourceSpec, ResourceTemplate};

/// One piece of content of a result or message, with its annotations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContentBlock {
    /// Content without its annotations.
    pub shown: ContentBody,
    /// Annotations of the content: audience, priority and age.
    #[serde(default, skip_serializing_if = "ContentAnnotations::is_plain")]
    pub meant: ContentAnnotations,
}

/// Content of a result or message, without annotations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContentBody {
    /// Content that is text.
    Text(String),
    /// Content that is an image.
    Image(MediaData),
    /// Content that is an audio clip.
    Audio(MediaData),
    /// Content that is a link to a resource.
    Link(Box<ResourceSpec>),
    /// Content that is a resource with its contents.
    Resource(ResourceContents),
}

/// Image or audio data with its media type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MediaData {
    /// The media type of the data, e.g. `image/png`.
    pub media_type: String,
    /// The bytes of the image or audio clip.
    pub data: Base64Bytes,
}

/// Bytes that are serialized as Base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64Bytes(pub Bytes);

impl Base64Bytes {
    /// Returns the bytes as Base64.
    pub fn base64(&self) -> String {
        STANDARD.encode(&self.0)
    }
}

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.base64())
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

/// Annotations of content: audience, priority and time of change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContentAnnotations {
    /// The people or models that the content is for. An empty list means everybody.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<MessageRole>,
    /// The importance of the content from 0 (optional) to 1 (required).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<f64>,
    /// The time of the last change of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified: Option<jiff::Timestamp>,
}

impl ContentAnnotations {
    /// Returns true if no annotation is set.
    pub fn is_plain(&self) -> bool {
        self.audience.is_empty() && self.priority.is_none() && self.modified.is_none()
    }
}

/// The role of the speaker or addressee of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    /// Role of the person who uses the client.
    User,
    /// Role of the client's model.
    Assistant,
}

impl ContentBlock {
    fn plain(shown: ContentBody) -> Self {
        Self { shown, meant: ContentAnnotations::default() }
    }

    /// Creates content that is text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::plain(ContentBody::Text(text.into()))
    }

    /// Creates content that is an image of the type `media_type`, e.g. `image/png`.
    pub fn image(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self::plain(ContentBody::Image(MediaData::new(media_type, data)))
    }

    /// Creates content that is an audio clip of the type `media_type`, e.g. `audio/wav`.
    pub fn audio(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self::plain(ContentBody::Audio(MediaData::new(media_type, data)))
    }

    /// Creates content with the contents of a resource.
    pub fn resource(contents: ResourceContents) -> Self {
        Self::plain(ContentBody::Resource(contents))
    }

    /// Creates content that is a link to a resource.
    pub fn link(resource: ResourceSpec) -> Self {
        Self::plain(ContentBody::Link(Box::new(resource)))
    }

    /// Returns the content with `meant` as its annotations.
    pub fn with_annotations(self, meant: ContentAnnotations) -> Self {
        Self { meant, ..self }
    }

    /// Returns the content as text, for dialects that show only text. Binary data becomes a
    /// summary.
    pub fn as_text(&self) -> String {
        match &self.shown {
            ContentBody::Text(text) => text.clone(),
            ContentBody::Image(media) | ContentBody::Audio(media) => {
                format!("({}, {} bytes)", media.media_type, media.data.0.len())
            }
            ContentBody::Link(resource) => resource.uri.clone(),
            ContentBody::Resource(contents) => match &contents.held {
                ResourceData::Text(text) => text.clone(),
                ResourceData::Bytes(data) => {
                    format!("({}, {} bytes)", contents.uri, data.0.len())
                }
            },
        }
    }
}

impl MediaData {
    fn new(media_type: impl Into<String>, data: impl Into<Bytes>) -> Self {
        Self { media_type: media_type.into(), data: Base64Bytes(data.into()) }
    }
}

/// Metadata (`_meta`) for a client. The server passes it on unread.
pub type MetaFields = serde_json::Map<String, serde_json::Value>;

/// An icon for a tool, a prompt, a resource or the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Icon {
    /// An `https:` or `data:` URI of the icon.
    pub src: String,
    /// The media type of the icon, e.g. `image/svg+xml`.
    #[serde(rename = "mimeType", skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The sizes of the icon, e.g. `48x48` or `any`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<String>,
}

impl Icon {
    /// Creates an icon from SVG source.
    pub fn svg(source: &str) -> Self {
        Self {
            src: format!("data:image/svg+xml;base64,{}", STANDARD.encode(source)),
            media_type: Some("image/svg+xml".into()),
            sizes: vec!["any".into()],
        }
    }
}

/// A message of a rendered prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptMessage {
    /// The speaker of the message.
    pub role: MessageRole,
    /// The content of the message.
    pub content: ContentBlock,
}

impl PromptMessage {
    /// Creates a prompt message by the person.
    pub fn user(content: ContentBlock) -> Self {
        Self { role: MessageRole::User, content }
    }
}
