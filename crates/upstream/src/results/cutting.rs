//! Cuts results that are too long, largest parts first. Texts keep their beginning and end, and
//! embedded files become links.

use std::cmp::Reverse;

use bytes::Bytes;
use serde_json::Value;
use toolgate_contract::{
    Caller, Content, Contents, Ctx, Held, Output, ResourceSpec, Shape, Text, ToolError, ToolId,
};

use super::{Results, Whole, id_of, piece};
use crate::listing::json_bytes;

/// Bytes shown of the beginning and of the end of a cut text.
const HEAD: usize = 4 << 10;
const TAIL: usize = 2 << 10;
/// Longest text that is never cut, in bytes.
const SHOWN: usize = HEAD + TAIL;

/// Estimated size of a link and its note, in bytes.
const INSTEAD: usize = 512;
/// Most links per result. More would make the result too long again.
const PARTS_MAX: usize = 64;
/// Most bytes of an upstream's own name that are repeated.
const NAME_MAX: usize = 200;

const PLAIN: &str = "text/plain";
const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

/// Limits of a result's size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Most bytes of text. 0 means no limit.
    pub(crate) text_bytes: usize,
    /// Most bytes of images, audio and binary files. 0 means no limit.
    pub(crate) media_bytes: usize,
    /// True if the output schema was promised to clients. The structured value is then never cut.
    pub(crate) promised: bool,
}

impl Budget {
    /// Returns true if `output` exceeds the budget.
    pub(crate) fn is_exceeded_by(self, output: &Output) -> bool {
        let media = output.content.iter().filter_map(media_of).map(|media| media.bytes.len());
        let has_media = self.media_bytes > 0 && media.sum::<usize>() > self.media_bytes;
        has_media || Plan::of(output, self).is_some()
    }
}

impl Results {
    /// Cuts `output` of `tool` to the budget and stores the rest.
    pub(crate) fn cut(
        &self,
        ctx: &Ctx,
        tool: &ToolId,
        output: Output,
        budget: Budget,
    ) -> Result<Output, ToolError> {
        let mut cut = Cut { results: self, whose: &ctx.caller, tool, notes: Vec::new() };
        let mut output = cut.texts(output, budget)?;
        cut.media(&mut output.content, budget.media_bytes)?;
        if !cut.notes.is_empty() {
            let notes = output.text.note.into_iter().chain(cut.notes);
            output.text.note = Some(notes.collect::<Vec<_>>().join("\n"));
        }
        Ok(output)
    }
}

/// A result that is being cut.
struct Cut<'a> {
    results: &'a Results,
    whose: &'a Caller,
    tool: &'a ToolId,
    /// Notes on the stored parts.
    notes: Vec<String>,
}

/// The texts of a result that are cut.
struct Plan {
    cut: Vec<Part>,
    /// True if short embedded texts are merged into the body, because there are too many of them.
    joins: bool,
    /// Media type of the text if it repeats the structured value.
    said: Option<&'static str>,
}

/// A text part of a result.
#[derive(PartialEq, Eq)]
enum Part {
    /// The body and the text blocks, with the structured value if they repeat it.
    Texts,
    /// The structured value, as JSON.
    Value,
    /// The embedded text of the block at this index.
    Embedded(usize),
}

impl Plan {
    /// Plans the cuts of `output`. Returns `None` if its texts are within the budget.
    fn of(output: &Output, budget: Budget) -> Option<Self> {
        let most = budget.text_bytes.max(SHOWN);
        let structured = output.structured && !budget.promised;
        let value = if structured { json_bytes(&output.value) } else { 0 };
        let beside = output.content.iter().filter_map(text_of).map(str::len);
        let texts = output.text.body.len() + beside.sum::<usize>();
        let embedded = output.content.iter().filter_map(embedded_text).map(str::len);
        let mut left = texts + value + embedded.sum::<usize>();
        if budget.text_bytes == 0 || left <= most {
            return None;
        }
        let said = if structured { says_its_value(output) } else { None };
        let mut parts = match said {
            Some(_) => vec![(texts + value, Part::Texts)],
            None => vec![(texts, Part::Texts), (value, Part::Value)],
        };
        let embedded = output.content.iter().enumerate();
        let embedded = embedded.filter_map(|(at, one)| Some((at, embedded_text(one)?.len())));
        parts.extend(embedded.map(|(at, bytes)| (bytes, Part::Embedded(at))));
        parts.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut cut = Vec::new();
        for (bytes, part) in parts {
            if left <= most || bytes <= SHOWN || cut.len() == PARTS_MAX {
                break;
            }
            let stays = if let Part::Embedded(_) = part { INSTEAD } else { SHOWN };
            left -= bytes - stays;
            cut.push(part);
        }
        Some(Self { cut, joins: left > most, said })
    }

    fn cuts(&self, part: &Part) -> bool {
        self.cut.contains(part)
    }
}

impl Cut<'_> {
    /// Cuts the texts of `output` if they exceed the budget.
    fn texts(&mut self, output: Output, budget: Budget) -> Result<Output, ToolError> {
        let Some(plan) = Plan::of(&output, budget) else { return Ok(output) };
        let cuts_texts = plan.joins || plan.cuts(&Part::Texts);
        let Output { mut value, mut structured, text, content, meta, ending } = output;
        let Text { mut body, note } = text;
        let mut others = Vec::new();
        let mut links = Vec::new();
        for (at, Content { shown, meant }) in content.into_iter().enumerate() {
            let shown = match shown {
                Shape::Text(text) if cuts_texts => {
                    append(&mut body, &text);
                    continue;
                }
                Shape::Resource(Contents { uri, media_type, held: Held::Text(text), .. })
                    if plan.cuts(&Part::Embedded(at)) =>
                {
                    let media_type = media_type.as_deref().unwrap_or(PLAIN);
                    let spec = self.keep(media_type, Whole::Text(text.into()))?;
                    self.notes.push(how_to_read_on(&format!("`{}`", name(&uri)), &spec, 0));
                    Shape::Link(Box::new(spec.about(name(&uri))))
                }
                Shape::Resource(Contents { uri, held: Held::Text(text), .. }) if plan.joins => {
                    append(&mut body, &uri);
                    append(&mut body, &text);
                    continue;
                }
                Shape::Text(_)
                | Shape::Image(_)
                | Shape::Audio(_)
                | Shape::Link(_)
                | Shape::Resource(_) => shown,
            };
            others.push(Content { shown, meant });
        }
        if cuts_texts && body.len() > SHOWN {
            let media_type = plan.said.filter(|_| !plan.joins).unwrap_or(PLAIN);
            body = self.shown("The whole result", body, media_type, &mut links)?;
        }
        if plan.cuts(&Part::Value) {
            let json = value.to_string();
            append(&mut body, &self.shown("Its structured value", json, JSON, &mut links)?);
        }
        if plan.cuts(&Part::Value) || (plan.said.is_some() && plan.cuts(&Part::Texts)) {
            (value, structured) = (Value::Null, false);
        }
        others.extend(links);
        Ok(Output { value, structured, text: Text { body, note }, content: others, meta, ending })
    }

    /// Stores `text` and returns its beginning and end. `what` names it in the note.
    fn shown(
        &mut self,
        what: &str,
        text: String,
        media_type: &str,
        links: &mut Vec<Content>,
    ) -> Result<String, ToolError> {
        let tail = &text[text.ceil_char_boundary(text.len() - TAIL)..];
        let head = piece(&text, 0, HEAD);
        let left_out = text.len() - head.len() - tail.len();
        let shown = format!("{head}\n[… {left_out} bytes are left out here …]\n{tail}");
        let read_on = head.len();
        let spec = self.keep(media_type, Whole::Text(text.into()))?;
        self.notes.push(how_to_read_on(what, &spec, read_on));
        links.push(Content::link(spec));
        Ok(shown)
    }

    /// Replaces the largest media in `content` by links until at most `bytes_max` bytes are left.
    fn media(&mut self, content: &mut [Content], bytes_max: usize) -> Result<(), ToolError> {
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
            if bytes <= INSTEAD || self.notes.len() >= PARTS_MAX {
                break;
            }
            left -= bytes - INSTEAD;
            let Some(media) = media_of(&content[at]) else { continue };
            let spec = self.keep(media.media_type, Whole::Bytes(media.bytes.clone()))?;
            let what = name(media.uri.unwrap_or(media.media_type));
            self.notes.push(format!(
                "`{what}` has {bytes} bytes and is at {} for an hour, to be read as a resource.",
                spec.uri
            ));
            let spec = ResourceSpec { about: media.uri.map(|uri| name(uri).to_owned()), ..spec };
            content[at].shown = Shape::Link(Box::new(spec));
        }
        Ok(())
    }

    fn keep(&self, media_type: &str, whole: Whole) -> Result<ResourceSpec, ToolError> {
        // No valid media type is this long.
        let media_type = if media_type.len() > NAME_MAX { OCTETS } else { media_type };
        let spec = ResourceSpec::new("", format!("result of {}", self.tool)).media_type(media_type);
        self.results.keep(self.whose, spec, whole)
    }
}

/// A media item that is not text.
struct Media<'a> {
    media_type: &'a str,
    bytes: &'a Bytes,
    /// URI of the item, if it has one.
    uri: Option<&'a str>,
}

fn media_of(content: &Content) -> Option<Media<'_>> {
    match &content.shown {
        Shape::Image(media) | Shape::Audio(media) => {
            Some(Media { media_type: &media.media_type, bytes: &media.data.0, uri: None })
        }
        Shape::Resource(Contents { uri, media_type, held: Held::Bytes(bytes), .. }) => {
            let media_type = media_type.as_deref().unwrap_or(OCTETS);
            Some(Media { media_type, bytes: &bytes.0, uri: Some(uri) })
        }
        Shape::Text(_) | Shape::Link(_) | Shape::Resource(_) => None,
    }
}

fn text_of(content: &Content) -> Option<&str> {
    match &content.shown {
        Shape::Text(text) => Some(text),
        Shape::Image(_) | Shape::Audio(_) | Shape::Link(_) | Shape::Resource(_) => None,
    }
}

fn embedded_text(content: &Content) -> Option<&str> {
    match &content.shown {
        Shape::Resource(Contents { held: Held::Text(text), .. }) => Some(text),
        Shape::Resource(_)
        | Shape::Text(_)
        | Shape::Image(_)
        | Shape::Audio(_)
        | Shape::Link(_) => None,
    }
}

/// Returns the media type of the text of `output` if it repeats the structured value: as its JSON,
/// or as the value's only field.
fn says_its_value(output: &Output) -> Option<&'static str> {
    if output.content.iter().any(|one| text_of(one).is_some()) {
        return None;
    }
    let value = &output.value;
    let body = &output.text.body;
    let held = value.as_object().filter(|fields| fields.len() == 1);
    let held = held.and_then(|fields| fields.values().next());
    if held.and_then(Value::as_str) == Some(body) {
        return Some(PLAIN);
    }
    let said: Value = serde_json::from_str(body).ok()?;
    (said == *value || Some(&said) == held).then_some(JSON)
}

/// Returns the part of an upstream's own name that is repeated.
fn name(said: &str) -> &str {
    piece(said, 0, NAME_MAX)
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// Returns a note on the stored `spec` and how to read on from byte `from`.
fn how_to_read_on(what: &str, spec: &ResourceSpec, from: usize) -> String {
    let bytes = spec.bytes.unwrap_or_default();
    let uri = &spec.uri;
    let id = id_of(spec);
    format!(
        "{what} has {bytes} bytes and is at {uri} for an hour. Read on with results_read and the id \
         `{id}`: an `offset` from {from}, or what to `find`."
    )
}
