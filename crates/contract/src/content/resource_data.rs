//! Descriptions and contents of resources, independent of the protocol.

use serde::{Deserialize, Serialize};

use super::{Base64Bytes, ContentAnnotations, Icon, MetaFields};

/// The description of a resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// The URI of the resource.
    pub uri: String,
    /// The name of the resource for programs, often the last part of the URI.
    pub name: String,
    /// The name of the resource for people.
    pub title: Option<String>,
    /// A description of the resource's content.
    pub about: Option<String>,
    /// The media type of the resource, e.g. `text/plain`.
    pub media_type: Option<String>,
    /// The length of the resource in bytes, if it is known.
    pub bytes: Option<u64>,
    /// The audience, priority and age of the resource's content.
    #[serde(default)]
    pub meant: ContentAnnotations,
    /// The icons of the resource.
    #[serde(default)]
    pub icons: Vec<Icon>,
    /// Further metadata about the resource for clients.
    #[serde(
        default,
        skip_serializing_if = "MetaFields::is_empty",
        deserialize_with = "crate::exact_json::deserialize_object"
    )]
    pub meta: MetaFields,
}

impl ResourceSpec {
    /// Creates the description of the resource `uri`, named `name`.
    pub fn new(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uri: uri.into(), name: name.into(), ..Self::default() }
    }

    /// Returns the description of the resource with `about` as the text about its content.
    pub fn with_description(self, about: impl Into<String>) -> Self {
        Self { about: Some(about.into()), ..self }
    }

    /// Returns the description of the resource with `media_type`, e.g. `text/plain`.
    pub fn with_media_type(self, media_type: impl Into<String>) -> Self {
        Self { media_type: Some(media_type.into()), ..self }
    }
}

/// A URI pattern for many resources.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceTemplate {
    /// The pattern of URIs (a template of RFC 6570), e.g. `file:///src/{+path}`.
    pub uri: String,
    /// The name of the template for programs.
    pub name: String,
    /// The name of the template for people.
    pub title: Option<String>,
    /// A description of the resources that match the template.
    pub description: Option<String>,
    /// The media type of the resources that match the template, if all share one.
    pub media_type: Option<String>,
    /// The icons of the template.
    pub icons: Vec<Icon>,
    /// Further metadata about the template for clients.
    pub meta: MetaFields,
}

impl ResourceTemplate {
    /// Creates a resource template with the URI pattern `uri`, named `name`.
    pub fn new(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self { uri: uri.into(), name: name.into(), ..Self::default() }
    }

    /// Returns the template with `about` as the text about its resources.
    pub fn with_description(self, about: impl Into<String>) -> Self {
        Self { description: Some(about.into()), ..self }
    }

    /// Returns the template with the media type `media_type` for all its resources, e.g.
    /// `text/plain`.
    pub fn with_media_type(self, media_type: impl Into<String>) -> Self {
        Self { media_type: Some(media_type.into()), ..self }
    }
}

/// The contents of a resource, or of a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResourceContents {
    /// The URI of the resource.
    pub uri: String,
    /// The media type of the contents, e.g. `text/plain`.
    pub media_type: Option<String>,
    /// Data of the resource, as text or bytes.
    pub held: ResourceData,
    /// Metadata about the resource for clients, apart from the contents.
    #[serde(
        default,
        skip_serializing_if = "MetaFields::is_empty",
        deserialize_with = "crate::exact_json::deserialize_object"
    )]
    pub meta: MetaFields,
}

/// The data of a resource, as text if possible.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceData {
    /// Data of a resource that is text.
    Text(String),
    /// Data of a resource that is binary.
    Bytes(Base64Bytes),
}

impl ResourceContents {
    /// Creates text contents of the resource `uri`, of type `media_type`.
    pub fn text(
        uri: impl Into<String>,
        media_type: impl Into<String>,
        text: impl Into<String>,
    ) -> Self {
        let uri = uri.into();
        let media_type = Some(media_type.into());
        Self { uri, media_type, held: ResourceData::Text(text.into()), meta: MetaFields::new() }
    }

    /// Creates binary contents of the resource `uri`, of type `media_type`.
    pub fn bytes(
        uri: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<bytes::Bytes>,
    ) -> Self {
        let uri = uri.into();
        let media_type = Some(media_type.into());
        Self {
            uri,
            media_type,
            held: ResourceData::Bytes(Base64Bytes(bytes.into())),
            meta: MetaFields::new(),
        }
    }
}
