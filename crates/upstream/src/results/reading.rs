//! The tool that reads a stored result from any position, or searches it.

use std::collections::VecDeque;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};
use toolgate_net::spawn_blocking;

use super::picking::pick_fields;
use super::{StoredData, UpstreamResultStore, piece};

/// Default number of bytes of a stored result that one read returns.
const READ_BYTES: usize = 16 << 10;
/// Maximum number of bytes of a stored result that one read returns.
const READ_BYTES_MAX: usize = 256 << 10;
/// Maximum number of matches that a search in a stored result returns.
const MATCHES_MAX: usize = 50;
/// Maximum number of bytes of a match's line that a search shows.
pub(super) const LINE_BYTES: usize = 300;
/// Maximum number of bytes before the match that a search shows of its line.
const BEFORE_BYTES: usize = 100;

/// Tool that reads parts of stored results.
pub(super) struct ReadStoredResult(pub(super) UpstreamResultStore);

/// Part of a result to read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadStoredResultInput {
    /// The result's id or `result://` URI.
    pub(super) id: String,
    /// First byte to read.
    #[serde(default)]
    pub(super) offset: usize,
    /// Maximum bytes to read; 16384 by default.
    #[serde(default)]
    pub(super) bytes: Option<usize>,
    /// Text to find instead, ignoring case.
    #[serde(default)]
    pub(super) find: Option<String>,
    /// Fields to pick from JSON, such as `rows.name` for each of `rows`.
    #[serde(default)]
    pub(super) fields: Vec<String>,
}

/// Part of a stored result.
#[derive(Serialize, JsonSchema)]
pub(super) struct StoredResultPart {
    /// Size of the result or the picked fields, in bytes.
    pub(super) total: usize,
    /// The requested part of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    /// Offset of the next part, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<usize>,
    /// Matches; at most 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) found: Option<Vec<StoredResultMatch>>,
}

/// A match of a search in a result.
#[derive(Serialize, JsonSchema)]
pub(super) struct StoredResultMatch {
    /// Offset of the match.
    pub(super) offset: usize,
    /// Text around the match on its line.
    pub(super) line: String,
}

impl Tool for ReadStoredResult {
    const NAME: &'static str = "results.read";
    const TITLE: &'static str = "Read a long result";
    const DESCRIPTION: &'static str = "Read more of a result that was too long to return at once, \
         or find text or pick fields in it. The result's note has the id.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("query", "find"), ("text", "find"), ("pattern", "find"), ("max_bytes", "bytes")];
    type Input = ReadStoredResultInput;
    type Output = StoredResultPart;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let ReadStoredResultInput { id, offset, bytes, find, fields } = input;
        let text = match self.0.find(&ctx.caller, &id).await? {
            (_, StoredData::Text(text)) => text,
            (spec, StoredData::Bytes(_)) => {
                let media_type = spec.media_type.as_deref().unwrap_or("binary");
                let message =
                    format!("the result is {media_type}, not text; read the resource {}", spec.uri);
                return Err(ToolError::invalid("/id", message));
            }
        };
        let text = if fields.is_empty() { text } else { pick(text, fields).await? };
        let total = text.len();
        if let Some(find) = find.filter(|find| !find.is_empty()) {
            let searched = spawn_blocking(move || (find_matches(&text, offset, &find), text)).await;
            let (places, text) = searched.map_err(|err| {
                ToolError::with_cause("the search in the result was aborted", err)
            })?;
            let next = places.get(MATCHES_MAX - 1).map(|(_, end)| *end).filter(|end| *end < total);
            let found = places.into_iter();
            let found = found.map(|(at, _)| StoredResultMatch {
                offset: at,
                line: line_around(&text, at).to_owned(),
            });
            return Ok(StoredResultPart { total, text: None, next, found: Some(found.collect()) });
        }
        let part = piece(&text, offset, bytes.unwrap_or(READ_BYTES).clamp(4, READ_BYTES_MAX));
        let end = text.floor_char_boundary(offset.min(total)) + part.len();
        let next = (end < total).then_some(end);
        Ok(StoredResultPart { total, text: Some(part.to_owned()), next, found: None })
    }

    fn result_text(output: &StoredResultPart) -> ResultText {
        let StoredResultPart { total, text, next, found } = output;
        let body = match (text, found) {
            (Some(text), _) if text.is_empty() => format!("No more: the result has {total} bytes."),
            (None, Some(found)) if found.is_empty() => {
                format!("Not found from `offset` on; the result has {total} bytes.")
            }
            (Some(text), _) => text.clone(),
            (None, Some(found)) => {
                let lines = found.iter().map(|it| format!("{}: {}", it.offset, it.line));
                lines.collect::<Vec<_>>().join("\n")
            }
            (None, None) => String::new(),
        };
        match next {
            Some(next) => ResultText::from_body(body)
                .with_note(format!("Continue at `offset` {next} of {total}.")),
            None => ResultText::from_body(body),
        }
    }
}

/// Permit to parse a stored result. Results are parsed one at a time, so that many calls together
/// take no more memory than one.
static PARSING: Semaphore = Semaphore::const_new(1);

/// Returns the JSON in `text` with only the `fields`. Parses the JSON on a blocking thread.
async fn pick(text: Arc<str>, fields: Vec<String>) -> Result<Arc<str>, ToolError> {
    let permit = PARSING.acquire().await;
    let permit =
        permit.map_err(|err| ToolError::with_cause("the fields could not be picked", err))?;
    // The thread keeps the permit even if the call is cancelled.
    let picked = spawn_blocking(move || {
        let picked = pick_fields(&text, &fields);
        drop(permit);
        picked
    });
    let picked = picked.await;
    let picked =
        picked.map_err(|err| ToolError::with_cause("picking the fields was aborted", err))?;
    Ok(picked?.into())
}

/// Finds at most [`MATCHES_MAX`] matches of `pattern` in `text` from the byte `from` on, ignoring
/// case. Returns their byte ranges.
///
/// Runs in linear time (Knuth, Morris, Pratt).
pub(super) fn find_matches(text: &str, from: usize, pattern: &str) -> Vec<(usize, usize)> {
    let pattern: Vec<char> = pattern.chars().flat_map(char::to_lowercase).collect();
    // Failure table of Knuth, Morris and Pratt.
    let mut failure = vec![0; pattern.len()];
    let mut places = Vec::new();
    let mut starts = VecDeque::with_capacity(pattern.len());
    let step = |failure: &[usize], mut matched: usize, next: char| {
        while matched > 0 && pattern[matched] != next {
            matched = failure[matched - 1];
        }
        if pattern[matched] == next { matched + 1 } else { 0 }
    };
    for at in 1..pattern.len() {
        failure[at] = step(&failure, failure[at - 1], pattern[at]);
    }
    let from = text.floor_char_boundary(from.min(text.len()));
    let mut matched = 0;
    for (at, letter) in text[from..].char_indices() {
        let at = from + at;
        for small in letter.to_lowercase() {
            if starts.len() == pattern.len() {
                starts.pop_front();
            }
            starts.push_back(at);
            matched = step(&failure, matched, small);
            if matched == pattern.len() {
                places.push((starts[0], at + letter.len_utf8()));
                matched = 0;
                starts.clear();
                if places.len() == MATCHES_MAX {
                    return places;
                }
            }
        }
    }
    places
}

/// Returns the text around the byte `at` on its line.
fn line_around(text: &str, at: usize) -> &str {
    let start = text.ceil_char_boundary(at.saturating_sub(BEFORE_BYTES));
    let before = &text[start..at];
    let start = before.rfind('\n').map_or(start, |end| start + end + 1);
    let line = piece(text, start, LINE_BYTES);
    let end = line[at - start..].find('\n').map_or(line.len(), |end| at - start + end);
    line[..end].trim_end()
}
