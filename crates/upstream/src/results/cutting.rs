//! Cuts results that are too long, the largest parts first. Texts keep their beginning and end, and
//! embedded files become links.

use std::cmp::Reverse;

use bytes::Bytes;
use serde_json::Value;
use toolgate_contract::{
    Caller, ContentBlock, ContentBody, ResourceContents, ResourceData, ResourceSpec, ResultText,
    ToolContext, ToolError, ToolId, ToolOutput, exact_json, fold_name, json_len,
};

use super::{StoredData, UpstreamResultStore, id_in_uri, piece};

/// Number of bytes at the beginning of a text that a cut keeps.
const HEAD_BYTES: usize = 4 << 10;
/// Number of bytes at the end of a text that a cut keeps.
const TAIL_BYTES: usize = 2 << 10;
/// Longest text in a result that is never cut, in bytes.
const UNCUT_BYTES_MAX: usize = HEAD_BYTES + TAIL_BYTES;

/// Estimated size in bytes of a link to a stored result and its note.
const LINK_BYTES: usize = 512;
/// Maximum number of links to stored parts in a result. More links would make the result too long
/// again.
const PARTS_MAX: usize = 64;
/// Maximum number of bytes of an item's name from an upstream that a note repeats.
const NAME_MAX: usize = 200;

const PLAIN: &str = "text/plain";
const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

/// Limits of the size of a tool's result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultSizeBudget {
    /// Maximum number of bytes of text in a result. 0 means no limit.
    pub(crate) text_bytes: usize,
    /// Maximum number of bytes of images, audio and binary files in a result. 0 means no limit.
    pub(crate) media_bytes: usize,
    /// True if clients know the tool's output schema. In that case the structured value is never
    /// cut.
    pub(crate) is_schema_promised: bool,
}

impl ResultSizeBudget {
    /// Returns true if the result `output` exceeds the budget.
    pub(crate) fn is_exceeded_by(self, output: &ToolOutput) -> bool {
        let media = output.content.iter().filter_map(media_of).map(|media| media.bytes.len());
        let has_media = self.media_bytes > 0 && media.sum::<usize>() > self.media_bytes;
        has_media || TruncationPlan::for_output(output, self).is_some()
    }
}

impl UpstreamResultStore {
    /// Cuts the result `output` of `tool` to the budget and stores the rest.
    pub(crate) fn cut(
        &self,
        ctx: &ToolContext,
        tool: &ToolId,
        output: ToolOutput,
        budget: ResultSizeBudget,
    ) -> Result<TruncatedToolResult, ToolError> {
        let mut cut = ResultTruncator {
            results: self,
            caller: &ctx.caller,
            tool,
            notes: Vec::new(),
            stored: Vec::new(),
        };
        let mut output = cut.cut_texts(output, budget)?;
        cut.cut_media(&mut output.content, budget.media_bytes)?;
        if !cut.notes.is_empty() {
            if let Some(via) = ctx.via {
                let via = fold_name(via);
                cut.notes.push(format!("If results_read is not in your list, call it by {via}."));
            }
            let notes = output.text.note.into_iter().chain(cut.notes);
            output.text.note = Some(notes.collect::<Vec<_>>().join("\n"));
        }
        Ok(TruncatedToolResult { output, stored: cut.stored })
    }
}

/// A tool's result after it was cut to its budget.
pub(crate) struct TruncatedToolResult {
    /// The part of the result that is sent.
    pub(crate) output: ToolOutput,
    /// Entries and data of the parts that were stored.
    pub(crate) stored: Vec<(ResourceSpec, StoredData)>,
}

/// A tool's result that is being cut to its budget.
struct ResultTruncator<'a> {
    results: &'a UpstreamResultStore,
    caller: &'a Caller,
    tool: &'a ToolId,
    /// Notes in the result on the stored parts.
    notes: Vec<String>,
    /// Entries and data of the stored parts.
    stored: Vec<(ResourceSpec, StoredData)>,
}

/// The parts of a result's text that will be cut.
struct TruncationPlan {
    parts: Vec<ResultTextPart>,
    /// True if short embedded texts are merged into the text of the result, because there are too
    /// many of them.
    merges_embedded: bool,
    /// Media type of the result's text, if the text repeats the structured value.
    text_type: Option<&'static str>,
}

/// Text part of a tool's result.
#[derive(PartialEq, Eq)]
enum ResultTextPart {
    /// The text body and the text blocks of the result. If these texts repeat the structured value,
    /// they represent that value as well.
    Texts,
    /// Structured value of the result, as JSON.
    Structured,
    /// The text of the embedded resource in the content block at this index.
    Embedded(usize),
}

impl TruncationPlan {
    /// Plans the cuts of the result `output`. Returns `None` if its texts are within the budget.
    fn for_output(output: &ToolOutput, budget: ResultSizeBudget) -> Option<Self> {
        let most = budget.text_bytes.max(UNCUT_BYTES_MAX);
        let structured = output.structured && !budget.is_schema_promised;
        let value = if structured { json_len(&output.value) } else { 0 };
        let blocks = output.content.iter().filter_map(text_of).map(str::len);
        let texts = output.text.body.len() + blocks.sum::<usize>();
        let embedded = output.content.iter().filter_map(embedded_text).map(str::len);
        let mut left = texts + value + embedded.sum::<usize>();
        if budget.text_bytes == 0 || left <= most {
            return None;
        }
        let text_type = if structured { text_repeats_value(output) } else { None };
        let mut parts = match text_type {
            Some(_) => vec![(texts + value, ResultTextPart::Texts)],
            None => vec![(texts, ResultTextPart::Texts), (value, ResultTextPart::Structured)],
        };
        let embedded = output.content.iter().enumerate();
        let embedded = embedded.filter_map(|(at, one)| Some((at, embedded_text(one)?.len())));
        parts.extend(embedded.map(|(at, bytes)| (bytes, ResultTextPart::Embedded(at))));
        parts.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut cut = Vec::new();
        for (bytes, part) in parts {
            if left <= most || bytes <= UNCUT_BYTES_MAX || cut.len() == PARTS_MAX {
                break;
            }
            let stays =
                if let ResultTextPart::Embedded(_) = part { LINK_BYTES } else { UNCUT_BYTES_MAX };
            left -= bytes - stays;
            cut.push(part);
        }
        Some(Self { parts: cut, merges_embedded: left > most, text_type })
    }

    fn cuts(&self, part: &ResultTextPart) -> bool {
        self.parts.contains(part)
    }
}

impl ResultTruncator<'_> {
    /// Cuts the texts of the result `output` if they exceed the budget.
    fn cut_texts(
        &mut self,
        output: ToolOutput,
        budget: ResultSizeBudget,
    ) -> Result<ToolOutput, ToolError> {
        let Some(plan) = TruncationPlan::for_output(&output, budget) else { return Ok(output) };
        let cuts_texts = plan.merges_embedded || plan.cuts(&ResultTextPart::Texts);
        let ToolOutput { mut value, mut structured, text, content, meta, ending, from_upstream } =
            output;
        let ResultText { mut body, note } = text;
        let mut others = Vec::new();
        let mut links = Vec::new();
        for (at, ContentBlock { shown, meant }) in content.into_iter().enumerate() {
            let shown = match shown {
                ContentBody::Text(text) if cuts_texts => {
                    append(&mut body, &text);
                    continue;
                }
                ContentBody::Resource(ResourceContents {
                    uri,
                    media_type,
                    held: ResourceData::Text(text),
                    ..
                }) if plan.cuts(&ResultTextPart::Embedded(at)) => {
                    let media_type = media_type.as_deref().unwrap_or(PLAIN);
                    let spec = self.store(media_type, StoredData::Text(text.into()))?;
                    self.notes.push(read_on_note(&format!("`{}`", shortened_name(&uri)), &spec, 0));
                    ContentBody::Link(Box::new(spec.with_description(shortened_name(&uri))))
                }
                ContentBody::Resource(ResourceContents {
                    uri,
                    held: ResourceData::Text(text),
                    ..
                }) if plan.merges_embedded => {
                    append(&mut body, &uri);
                    append(&mut body, &text);
                    continue;
                }
                ContentBody::Text(_)
                | ContentBody::Image(_)
                | ContentBody::Audio(_)
                | ContentBody::Link(_)
                | ContentBody::Resource(_) => shown,
            };
            others.push(ContentBlock { shown, meant });
        }
        if cuts_texts && body.len() > UNCUT_BYTES_MAX {
            let media_type = plan.text_type.filter(|_| !plan.merges_embedded).unwrap_or(PLAIN);
            body = self.shorten("The whole result", body, media_type, &mut links)?;
        }
        if plan.cuts(&ResultTextPart::Structured) {
            let json = value.to_string();
            append(&mut body, &self.shorten("Its structured value", json, JSON, &mut links)?);
        }
        if plan.cuts(&ResultTextPart::Structured)
            || (plan.text_type.is_some() && plan.cuts(&ResultTextPart::Texts))
        {
            (value, structured) = (Value::Null, false);
        }
        others.extend(links);
        Ok(ToolOutput {
            value,
            structured,
            text: ResultText { body, note },
            content: others,
            meta,
            ending,
            from_upstream,
        })
    }

    /// Stores `text` and returns only its beginning and end. Adds a link to the stored text to
    /// `links`, and a note that calls the text `what`.
    fn shorten(
        &mut self,
        what: &str,
        text: String,
        media_type: &str,
        links: &mut Vec<ContentBlock>,
    ) -> Result<String, ToolError> {
        let tail = &text[text.ceil_char_boundary(text.len() - TAIL_BYTES)..];
        let head = piece(&text, 0, HEAD_BYTES);
        let left_out = text.len() - head.len() - tail.len();
        let shown = format!("{head}\n[… {left_out} bytes omitted …]\n{tail}");
        let read_on = head.len();
        let spec = self.store(media_type, StoredData::Text(text.into()))?;
        self.notes.push(read_on_note(what, &spec, read_on));
        links.push(ContentBlock::link(spec));
        Ok(shown)
    }

    /// Replaces the largest images, audio clips and files in `content` by links until at most
    /// `bytes_max` bytes are left.
    fn cut_media(
        &mut self,
        content: &mut [ContentBlock],
        bytes_max: usize,
    ) -> Result<(), ToolError> {
        let all = content.iter().enumerate();
        let all = all.filter_map(|(at, one)| Some((media_of(one)?.bytes.len(), at)));
        let mut all: Vec<_> = all.collect();
        let mut left: usize = all.iter().map(|(bytes, _)| bytes).sum();
        if bytes_max == 0 || left <= bytes_max {
            return Ok(());
        }
        all.sort_by_key(|(bytes, _)| Reverse(*bytes));
        for (bytes, at) in all {
            if left <= bytes_max {
                break;
            }
            // A smaller item would not shrink, and neither would those after it.
            if bytes <= LINK_BYTES || self.notes.len() >= PARTS_MAX {
                break;
            }
            left -= bytes - LINK_BYTES;
            let Some(media) = media_of(&content[at]) else { continue };
            let spec = self.store(media.media_type, StoredData::Bytes(media.bytes.clone()))?;
            let what = shortened_name(media.uri.unwrap_or(media.media_type));
            self.notes.push(format!(
                "`{what}` has {bytes} bytes and is stored for an hour; read it as the resource {}.",
                spec.uri
            ));
            let spec =
                ResourceSpec { about: media.uri.map(|uri| shortened_name(uri).to_owned()), ..spec };
            content[at].shown = ContentBody::Link(Box::new(spec));
        }
        Ok(())
    }

    fn store(&mut self, media_type: &str, data: StoredData) -> Result<ResourceSpec, ToolError> {
        // No valid media type is this long.
        let media_type = if media_type.len() > NAME_MAX { OCTETS } else { media_type };
        let spec =
            ResourceSpec::new("", format!("result of {}", self.tool)).with_media_type(media_type);
        let spec = self.results.store(self.caller, spec, data.clone())?;
        self.stored.push((spec.clone(), data));
        Ok(spec)
    }
}

/// An image, audio clip or binary file in a result.
struct ResultMediaItem<'a> {
    media_type: &'a str,
    bytes: &'a Bytes,
    /// URI of the image, audio clip or file, if it has one.
    uri: Option<&'a str>,
}

fn media_of(content: &ContentBlock) -> Option<ResultMediaItem<'_>> {
    match &content.shown {
        ContentBody::Image(media) | ContentBody::Audio(media) => {
            Some(ResultMediaItem { media_type: &media.media_type, bytes: &media.data.0, uri: None })
        }
        ContentBody::Resource(ResourceContents {
            uri,
            media_type,
            held: ResourceData::Bytes(bytes),
            ..
        }) => {
            let media_type = media_type.as_deref().unwrap_or(OCTETS);
            Some(ResultMediaItem { media_type, bytes: &bytes.0, uri: Some(uri) })
        }
        ContentBody::Text(_) | ContentBody::Link(_) | ContentBody::Resource(_) => None,
    }
}

fn text_of(content: &ContentBlock) -> Option<&str> {
    match &content.shown {
        ContentBody::Text(text) => Some(text),
        ContentBody::Image(_)
        | ContentBody::Audio(_)
        | ContentBody::Link(_)
        | ContentBody::Resource(_) => None,
    }
}

fn embedded_text(content: &ContentBlock) -> Option<&str> {
    match &content.shown {
        ContentBody::Resource(ResourceContents { held: ResourceData::Text(text), .. }) => {
            Some(text)
        }
        ContentBody::Resource(_)
        | ContentBody::Text(_)
        | ContentBody::Image(_)
        | ContentBody::Audio(_)
        | ContentBody::Link(_) => None,
    }
}

/// Returns the media type of the text of `output` if it repeats the structured value: as its JSON,
/// or as the value's only field.
fn text_repeats_value(output: &ToolOutput) -> Option<&'static str> {
    if output.content.iter().any(|one| text_of(one).is_some()) {
        return None;
    }
    let value = &output.value;
    let body = &output.text.body;
    let only_field = value.as_object().filter(|fields| fields.len() == 1);
    let only_field = only_field.and_then(|fields| fields.values().next());
    if only_field.and_then(Value::as_str) == Some(body) {
        return Some(PLAIN);
    }
    let parsed = exact_json::parse(body).ok()?;
    (parsed == *value || Some(&parsed) == only_field).then_some(JSON)
}

/// Returns the start of an item's name from an upstream, at most 200 bytes, for a note.
fn shortened_name(name: &str) -> &str {
    piece(name, 0, NAME_MAX)
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// Returns a note about the stored result `spec`, which explains how to read it from byte `from`
/// on.
fn read_on_note(what: &str, spec: &ResourceSpec, from: usize) -> String {
    let bytes = spec.bytes.unwrap_or_default();
    let uri = &spec.uri;
    let id = id_in_uri(spec);
    let fields = match spec.media_type.as_deref() {
        Some(JSON) => ", or `fields` to pick",
        _ => "",
    };
    format!(
        "{what} has {bytes} bytes and is stored at {uri} for an hour. To read on, call \
         results_read with the id `{id}` and an `offset` from {from}, or a text to `find`{fields}."
    )
}
