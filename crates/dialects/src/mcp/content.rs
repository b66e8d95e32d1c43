//! Content blocks, resources and icons as each MCP revision encodes them.

use std::borrow::Cow;

use serde::Serialize;
use toolgate_contract::{
    Content, Contents, Held, Icon, Meant, MetaFields, ResourceSpec, ResourceTemplate, Role, Shape,
};

use super::revision::{Revision, Shows};

/// A content block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(crate) enum Block<'a> {
    Text {
        text: Cow<'a, str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<Annotations<'a>>,
    },
    Image {
        data: String,
        mime_type: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<Annotations<'a>>,
    },
    Audio {
        data: String,
        mime_type: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<Annotations<'a>>,
    },
    ResourceLink(Box<Resource<'a>>),
    Resource {
        resource: Holding<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<Annotations<'a>>,
    },
}

impl<'a> Block<'a> {
    /// Creates a text block without annotations.
    pub(crate) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text { text: text.into(), annotations: None }
    }

    /// Returns the approximate length of a text block in bytes; 0 for other blocks.
    pub(crate) fn about(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            _ => 0,
        }
    }

    /// Converts `content`. It becomes text if the revision has no block of its kind.
    pub(crate) fn of(content: &'a Content, revision: &Revision) -> Self {
        let Content { shown, meant } = content;
        let annotations = Annotations::of(meant, revision);
        match (shown, revision.shows) {
            (Shape::Text(text), _) => Self::Text { text: text.into(), annotations },
            (Shape::Image(image), _) => {
                Self::Image { data: image.data.base64(), mime_type: &image.media_type, annotations }
            }
            (Shape::Audio(audio), Shows::Sounds | Shows::Links) => {
                Self::Audio { data: audio.data.base64(), mime_type: &audio.media_type, annotations }
            }
            (Shape::Link(resource), Shows::Links) => {
                let link = Resource::of(resource, revision);
                let annotations = annotations.or(link.annotations);
                Self::ResourceLink(Box::new(Resource { annotations, ..link }))
            }
            (Shape::Resource(contents), _) => {
                Self::Resource { resource: Holding::of(contents, revision), annotations }
            }
            (Shape::Audio(_), Shows::Pictures)
            | (Shape::Link(_), Shows::Pictures | Shows::Sounds) => {
                Self::Text { text: content.as_text().into(), annotations }
            }
        }
    }
}

/// The audience, priority and age of a block.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Annotations<'a> {
    #[serde(skip_serializing_if = "<[Role]>::is_empty")]
    audience: &'a [Role],
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_modified: Option<String>,
}

impl<'a> Annotations<'a> {
    /// Converts `meant`; `None` if nothing is set.
    fn of(meant: &'a Meant, revision: &Revision) -> Option<Self> {
        let Meant { audience, priority, modified } = meant;
        let last_modified = match revision.shows {
            Shows::Pictures | Shows::Sounds => None,
            Shows::Links => modified.map(|at| format!("{at:.0}")),
        };
        let some = !audience.is_empty() || priority.is_some() || last_modified.is_some();
        some.then_some(Self { audience, priority: *priority, last_modified })
    }
}

/// The contents of a resource, or of a part of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holding<'a> {
    uri: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(flatten)]
    held: HeldIn<'a>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

/// The data of a resource.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum HeldIn<'a> {
    Text(&'a str),
    Blob(String),
}

impl<'a> Holding<'a> {
    pub(crate) fn of(contents: &'a Contents, revision: &Revision) -> Self {
        let Contents { uri, media_type, held, meta: said } = contents;
        let held = match held {
            Held::Text(text) => HeldIn::Text(text),
            Held::Bytes(bytes) => HeldIn::Blob(bytes.base64()),
        };
        Self { uri, mime_type: media_type.as_deref(), held, meta: meta(said, revision) }
    }
}

/// A resource in a list or a link.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resource<'a> {
    uri: &'a str,
    #[serde(flatten)]
    face: Face<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations<'a>>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

impl<'a> Resource<'a> {
    pub(crate) fn of(spec: &'a ResourceSpec, revision: &Revision) -> Self {
        let ResourceSpec { uri, name, title, about, media_type, bytes, meant, icons, meta: said } =
            spec;
        Self {
            uri,
            face: Face::of(revision, name, title.as_deref(), about.as_deref(), icons),
            mime_type: media_type.as_deref(),
            size: *bytes,
            annotations: Annotations::of(meant, revision),
            meta: meta(said, revision),
        }
    }
}

/// A resource template.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Template<'a> {
    uri_template: &'a str,
    #[serde(flatten)]
    face: Face<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

impl<'a> Template<'a> {
    pub(crate) fn of(template: &'a ResourceTemplate, revision: &Revision) -> Self {
        let ResourceTemplate { uri, name, title, about, media_type, icons, meta: said } = template;
        Self {
            uri_template: uri,
            face: Face::of(revision, name, title.as_deref(), about.as_deref(), icons),
            mime_type: media_type.as_deref(),
            meta: meta(said, revision),
        }
    }
}

/// The names, description and icons of an item.
#[derive(Serialize)]
pub(crate) struct Face<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Icon]>::is_empty")]
    icons: &'a [Icon],
}

impl<'a> Face<'a> {
    pub(crate) fn of(
        revision: &Revision,
        name: &'a str,
        title: Option<&'a str>,
        about: Option<&'a str>,
        icons: &'a [Icon],
    ) -> Self {
        let title = title.filter(|_| revision.structured);
        Self { name, title, description: about, icons: shown(icons, revision) }
    }
}

/// Returns the metadata if it is not empty and the revision has `_meta` on items.
pub(crate) fn meta<'a>(meta: &'a MetaFields, revision: &Revision) -> Option<&'a MetaFields> {
    Some(meta).filter(|meta| revision.structured && !meta.is_empty())
}

/// Returns the icons if the revision has them.
pub(crate) fn shown<'a>(icons: &'a [Icon], revision: &Revision) -> &'a [Icon] {
    if revision.icons { icons } else { &[] }
}
