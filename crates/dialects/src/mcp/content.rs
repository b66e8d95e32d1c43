//! Content blocks, resources and icons as each MCP revision encodes them.

use std::borrow::Cow;

use serde::{Serialize, Serializer};
use toolgate_contract::{
    ContentAnnotations, ContentBlock, ContentBody, Icon, MessageRole, MetaFields, ResourceContents,
    ResourceData, ResourceSpec, ResourceTemplate, ResultText, ToolResultFormat,
};

use super::revision::{ContentBlockSupport, McpRevision};

/// A content block of MCP.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(crate) enum McpContentBlock<'a> {
    Text {
        text: ContentBlockText<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<ContentBlockAnnotations<'a>>,
    },
    Image {
        data: String,
        mime_type: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<ContentBlockAnnotations<'a>>,
    },
    Audio {
        data: String,
        mime_type: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<ContentBlockAnnotations<'a>>,
    },
    ResourceLink(Box<McpResourceEntry<'a>>),
    Resource {
        resource: EmbeddedResource<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        annotations: Option<ContentBlockAnnotations<'a>>,
    },
}

/// The text of a content block, in two parts, so that a long text and a note need not be copied
/// into one string.
pub(crate) struct ContentBlockText<'a> {
    pub(crate) start: Cow<'a, str>,
    /// The second part of the text, which is empty for most blocks.
    pub(crate) end: String,
}

impl<'a> ContentBlockText<'a> {
    fn whole(text: impl Into<Cow<'a, str>>) -> Self {
        Self { start: text.into(), end: String::new() }
    }

    fn is_empty(&self) -> bool {
        self.start.is_empty() && self.end.is_empty()
    }
}

impl Serialize for ContentBlockText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.end.is_empty() {
            true => serializer.serialize_str(&self.start),
            false => serializer.serialize_str(&format!("{}{}", self.start, self.end)),
        }
    }
}

impl<'a> McpContentBlock<'a> {
    /// Creates a content block of text without annotations.
    pub(crate) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text { text: ContentBlockText::whole(text), annotations: None }
    }

    /// Converts the text of a result to content blocks, for the result format `form`. `structured`
    /// is true if the result also has a structured value.
    pub(crate) fn from_result_text(
        text: &'a ResultText,
        form: ToolResultFormat,
        structured: bool,
    ) -> Vec<Self> {
        let mut blocks = Vec::new();
        let mut push = |text: ContentBlockText<'a>| {
            // Some model APIs refuse an empty block.
            if !text.is_empty() {
                blocks.push(Self::Text { text, annotations: None });
            }
        };
        match form {
            ToolResultFormat::Structured if structured => {}
            ToolResultFormat::Text | ToolResultFormat::Structured => {
                let (start, end) = text.joined_parts();
                push(ContentBlockText { start: start.into(), end });
            }
            // Programs get the body unchanged.
            ToolResultFormat::Both => {
                push(ContentBlockText::whole(text.body.as_str()));
                if let Some(note) = &text.note {
                    push(ContentBlockText::whole(note.as_str()));
                }
            }
        }
        blocks
    }

    /// Returns the approximate length of a text block in bytes, and 0 for other blocks.
    pub(crate) fn bytes_estimate(&self) -> usize {
        match self {
            Self::Text { text: ContentBlockText { start, end }, .. } => start.len() + end.len(),
            _ => 0,
        }
    }

    /// Converts `content` to a content block. The block is text if the protocol revision has no
    /// block of this kind.
    pub(crate) fn from_content(content: &'a ContentBlock, revision: &McpRevision) -> Self {
        let ContentBlock { shown, meant } = content;
        let annotations = ContentBlockAnnotations::from_annotations(meant, revision);
        match (shown, revision.content) {
            (ContentBody::Text(text), _) => {
                Self::Text { text: ContentBlockText::whole(text), annotations }
            }
            (ContentBody::Image(image), _) => {
                Self::Image { data: image.data.base64(), mime_type: &image.media_type, annotations }
            }
            (
                ContentBody::Audio(audio),
                ContentBlockSupport::Sounds | ContentBlockSupport::Links,
            ) => {
                Self::Audio { data: audio.data.base64(), mime_type: &audio.media_type, annotations }
            }
            (ContentBody::Link(resource), ContentBlockSupport::Links) => {
                let link = McpResourceEntry::from_spec(resource, revision);
                let annotations = annotations.or(link.annotations);
                Self::ResourceLink(Box::new(McpResourceEntry { annotations, ..link }))
            }
            (ContentBody::Resource(contents), _) => Self::Resource {
                resource: EmbeddedResource::from_contents(contents, revision),
                annotations,
            },
            (ContentBody::Audio(_), ContentBlockSupport::Pictures)
            | (ContentBody::Link(_), ContentBlockSupport::Pictures | ContentBlockSupport::Sounds) => {
                Self::Text { text: ContentBlockText::whole(content.as_text()), annotations }
            }
        }
    }
}

/// The audience, priority and age of a content block.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContentBlockAnnotations<'a> {
    #[serde(skip_serializing_if = "<[MessageRole]>::is_empty")]
    audience: &'a [MessageRole],
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_modified: Option<String>,
}

impl<'a> ContentBlockAnnotations<'a> {
    /// Converts `meant`, the annotations of content, to MCP's annotations. `None` if no annotation
    /// is set.
    fn from_annotations(meant: &'a ContentAnnotations, revision: &McpRevision) -> Option<Self> {
        let ContentAnnotations { audience, priority, modified } = meant;
        let last_modified = match revision.content {
            ContentBlockSupport::Pictures | ContentBlockSupport::Sounds => None,
            ContentBlockSupport::Links => modified.map(|at| format!("{at:.0}")),
        };
        let some = !audience.is_empty() || priority.is_some() || last_modified.is_some();
        some.then_some(Self { audience, priority: *priority, last_modified })
    }
}

/// MCP's JSON for the contents of a resource, or of a part of a resource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EmbeddedResource<'a> {
    uri: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(flatten)]
    held: EmbeddedResourceData<'a>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

/// MCP's JSON for the data of a resource: text or Base64.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum EmbeddedResourceData<'a> {
    Text(&'a str),
    Blob(String),
}

impl<'a> EmbeddedResource<'a> {
    pub(crate) fn from_contents(contents: &'a ResourceContents, revision: &McpRevision) -> Self {
        let ResourceContents { uri, media_type, held, meta: said } = contents;
        let held = match held {
            ResourceData::Text(text) => EmbeddedResourceData::Text(text),
            ResourceData::Bytes(bytes) => EmbeddedResourceData::Blob(bytes.base64()),
        };
        Self {
            uri,
            mime_type: media_type.as_deref(),
            held,
            meta: meta_if_supported(said, revision),
        }
    }
}

/// MCP's JSON for a resource in a list or a link.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct McpResourceEntry<'a> {
    uri: &'a str,
    #[serde(flatten)]
    face: ItemDisplayInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<ContentBlockAnnotations<'a>>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

impl<'a> McpResourceEntry<'a> {
    pub(crate) fn from_spec(spec: &'a ResourceSpec, revision: &McpRevision) -> Self {
        let ResourceSpec { uri, name, title, about, media_type, bytes, meant, icons, meta: said } =
            spec;
        Self {
            uri,
            face: ItemDisplayInfo::new(revision, name, title.as_deref(), about.as_deref(), icons),
            mime_type: media_type.as_deref(),
            size: *bytes,
            annotations: ContentBlockAnnotations::from_annotations(meant, revision),
            meta: meta_if_supported(said, revision),
        }
    }
}

/// MCP's JSON for a resource template.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ResourceTemplateEntry<'a> {
    uri_template: &'a str,
    #[serde(flatten)]
    face: ItemDisplayInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'a str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a MetaFields>,
}

impl<'a> ResourceTemplateEntry<'a> {
    pub(crate) fn from_template(template: &'a ResourceTemplate, revision: &McpRevision) -> Self {
        let ResourceTemplate {
            uri,
            name,
            title,
            description: about,
            media_type,
            icons,
            meta: said,
        } = template;
        Self {
            uri_template: uri,
            face: ItemDisplayInfo::new(revision, name, title.as_deref(), about.as_deref(), icons),
            mime_type: media_type.as_deref(),
            meta: meta_if_supported(said, revision),
        }
    }
}

/// The names, description and icons of a listed resource, template or prompt.
#[derive(Serialize)]
pub(crate) struct ItemDisplayInfo<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Icon]>::is_empty")]
    icons: &'a [Icon],
}

impl<'a> ItemDisplayInfo<'a> {
    pub(crate) fn new(
        revision: &McpRevision,
        name: &'a str,
        title: Option<&'a str>,
        about: Option<&'a str>,
        icons: &'a [Icon],
    ) -> Self {
        let title = title.filter(|_| revision.structured);
        Self { name, title, description: about, icons: icons_if_supported(icons, revision) }
    }
}

/// Returns the metadata `meta` if it is not empty and the protocol revision supports `_meta` on
/// list entries.
pub(crate) fn meta_if_supported<'a>(
    meta: &'a MetaFields,
    revision: &McpRevision,
) -> Option<&'a MetaFields> {
    Some(meta).filter(|meta| revision.structured && !meta.is_empty())
}

/// Returns the icons if the protocol revision supports icons.
pub(crate) fn icons_if_supported<'a>(icons: &'a [Icon], revision: &McpRevision) -> &'a [Icon] {
    if revision.icons { icons } else { &[] }
}
