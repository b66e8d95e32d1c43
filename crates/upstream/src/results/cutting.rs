//! How an answer that is longer than is given at once is cut, the largest part of it first: texts
//! are shown by their beginning and their end, what is embedded by a link.

use std::cmp::Reverse;

use bytes::Bytes;
use serde_json::Value;
use toolgate_contract::{
    Caller, Content, Contents, Ctx, Held, Output, ResourceSpec, Shape, Text, ToolError, ToolId,
};

use super::{Results, Whole, id_of, piece};
use crate::listing::json_bytes;

/// How much of the beginning and of the end of a text is shown.
const HEAD: usize = 4 << 10;
const TAIL: usize = 2 << 10;
/// What is no longer than this is not cut.
const SHOWN: usize = HEAD + TAIL;

/// What stands for what is left out, in bytes: a link and how to read on.
const INSTEAD: usize = 512;
/// How many parts of an answer links stand for: of more they would be an answer that is too long.
const PARTS_MAX: usize = 64;
/// How much of a name that an upstream gave is said again.
const NAME_MAX: usize = 200;

const PLAIN: &str = "text/plain";
const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

/// How much of an answer is given at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// How many bytes of text; 0 for all.
    pub(crate) text_bytes: usize,
    /// How many bytes of what is no text; 0 for all.
    pub(crate) media_bytes: usize,
    /// Whether what is structured was promised, and so is given whole.
    pub(crate) promised: bool,
}

impl Budget {
    /// Whether `output` is to be cut.
    pub(crate) fn is_exceeded_by(self, output: &Output) -> bool {
        let media = output.content.iter().filter_map(media_of).map(|media| media.bytes.len());
        let has_media = self.media_bytes > 0 && media.sum::<usize>() > self.media_bytes;
        has_media || Plan::of(output, self).is_some()
    }
}

impl Results {
    /// `output` of `tool`, of which no more than `budget` is shown: the rest is kept.
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

/// An answer that is being cut.
struct Cut<'a> {
    results: &'a Results,
    whose: &'a Caller,
    tool: &'a ToolId,
    /// What is told of what was kept.
    notes: Vec<String>,
}

/// Which texts of an answer are cut.
struct Plan {
    cut: Vec<Part>,
    /// Whether what is embedded and short joins the texts, for there is too much of it: those are
    /// cut then.
    joins: bool,
    /// What the texts are, where they say all that the structured value does.
    said: Option<&'static str>,
}

/// What of an answer is text.
#[derive(PartialEq, Eq)]
enum Part {
    /// Its body and the texts beside it, which are one; with the structured value, where they say
    /// all of it.
    Texts,
    /// Its structured value, as JSON.
    Value,
    /// What is embedded as the block that stands there.
    Embedded(usize),
}

impl Plan {
    /// What is to be cut of `output`, if its texts are too long all together.
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
    /// `output` with its texts cut, if they are too long all together.
    fn texts(&mut self, output: Output, budget: Budget) -> Result<Output, ToolError> {
        let Some(plan) = Plan::of(&output, budget) else { return Ok(output) };
        let cuts_texts = plan.joins || plan.cuts(&Part::Texts);
        let Output { mut value, mut structured, text, content, meta, ending } = output;
        let Text { mut body, note } = text;
        let (mut others, mut links) = (Vec::new(), Vec::new());
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

    /// Keeps `text`, which is `what`, and gives back what is shown of it.
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

    /// Has links stand for the largest of what is no text in `content`, until no more than
    /// `bytes_max` of it are left.
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
            // What is no larger than what would stand for it stays, and so do all after it.
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
        // No media type is so long; what is one to nobody else is bytes.
        let media_type = if media_type.len() > NAME_MAX { OCTETS } else { media_type };
        let spec = ResourceSpec::new("", format!("result of {}", self.tool)).media_type(media_type);
        self.results.keep(self.whose, spec, whole)
    }
}

/// What is no text.
struct Media<'a> {
    media_type: &'a str,
    bytes: &'a Bytes,
    /// Its own URI, if it has one.
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

/// What the text of `output` is, where it says all that its value does: it is its JSON, or what the
/// value holds by one name, as many servers have it.
fn says_its_value(output: &Output) -> Option<&'static str> {
    if output.content.iter().any(|one| text_of(one).is_some()) {
        return None;
    }
    let (value, body) = (&output.value, &output.text.body);
    let held = value.as_object().filter(|fields| fields.len() == 1);
    let held = held.and_then(|fields| fields.values().next());
    if held.and_then(Value::as_str) == Some(body) {
        return Some(PLAIN);
    }
    let said: Value = serde_json::from_str(body).ok()?;
    (said == *value || Some(&said) == held).then_some(JSON)
}

/// As much of `said`, by which an upstream knows something, as is said again.
fn name(said: &str) -> &str {
    piece(said, 0, NAME_MAX)
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

/// Where `what` is, which is kept as `spec`, and how it is read from the byte `from` on.
fn how_to_read_on(what: &str, spec: &ResourceSpec, from: usize) -> String {
    let (bytes, uri, id) = (spec.bytes.unwrap_or_default(), &spec.uri, id_of(spec));
    format!(
        "{what} has {bytes} bytes and is at {uri} for an hour. Read on with results_read and the id \
         `{id}`: an `offset` from {from}, or what to `find`."
    )
}
