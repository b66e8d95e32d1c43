//! Selects the start and end of a program's output that the result shows.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use super::encoding::{OutputTextEncoding, continuation_len, decode, encode, whole_chars_len};
use crate::counted::counted;
use toolgate_world::processes::CapturedOutput;

/// Length and encoding of an output stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OutputStreamInfo {
    /// Bytes printed.
    pub(super) total_bytes: u64,
    /// Encoding.
    pub(super) encoding: OutputTextEncoding,
    /// Bytes left out in the middle; null if the output is complete.
    pub(super) cut: Option<OmittedOutput>,
    /// True if the output was read to its end; false if another process still held it open.
    pub(super) ended: bool,
}

/// Bytes left out of a result.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct OmittedOutput {
    /// Position of the first byte left out, for `offset` of exec_output.
    pub(super) from: u64,
    /// Position of the first byte after the gap.
    pub(super) to: u64,
    /// Number of left-out bytes that were not stored and are lost.
    pub(super) lost_bytes: u64,
}

impl OmittedOutput {
    /// Joins `head` and `tail`, with a line between them that states the number of omitted bytes.
    fn join_parts(&self, head: &str, tail: &str) -> String {
        let end = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
        let count = counted(self.to - self.from, "byte", "bytes");
        format!("{head}{end}[{count} left out]\n{tail}")
    }
}

/// Returns the text of `captured` that a result shows, and information about the output. The text
/// of a cut output contains a line that states the number of omitted bytes.
pub(super) fn shown_part(captured: &CapturedOutput) -> (String, OutputStreamInfo) {
    let CapturedOutput { head, tail, total_bytes, is_complete: ended, .. } = captured;
    let lost_bytes = captured.lost_range().map_or(0, |lost| lost.end - lost.start);
    let join = |head: &[u8], tail: &[u8]| {
        let from = head.len() as u64;
        let to = total_bytes - tail.len() as u64;
        let cut = captured.cut_range().map(|_| OmittedOutput { from, to, lost_bytes });
        let texts = (str::from_utf8(head), str::from_utf8(tail));
        let (text, encoding) = match (&cut, texts) {
            // Separate the parts, so that the tail does not look like the continuation of the head.
            (Some(cut), (Ok(head), Ok(tail))) => {
                (cut.join_parts(head, tail), OutputTextEncoding::Utf8)
            }
            _ => encode([head, tail].concat()),
        };
        (text, OutputStreamInfo { total_bytes: *total_bytes, encoding, cut, ended: *ended })
    };
    if captured.cut_range().is_some() {
        // Cut text between characters.
        let head = &head[..whole_chars_len(head)];
        let tail = &tail[continuation_len(tail)..];
        if std::str::from_utf8(head).is_ok() && std::str::from_utf8(tail).is_ok() {
            return join(head, tail);
        }
    }
    join(head, tail)
}

impl OutputStreamInfo {
    /// Formats `shown`, the encoded text in a result, for reading, even if the output is not UTF-8.
    /// A line states the number of omitted bytes.
    pub(super) fn show<'s>(&self, shown: &'s str) -> Cow<'s, str> {
        if self.encoding == OutputTextEncoding::Utf8 {
            return Cow::Borrowed(shown);
        }
        let bytes = decode(shown, self.encoding);
        let Some(cut) = &self.cut else { return decode_lossy(bytes) };
        let middle = usize::try_from(cut.from).unwrap_or(usize::MAX).min(bytes.len());
        let (head, tail) = bytes.split_at(middle);
        cut.join_parts(&String::from_utf8_lossy(head), &String::from_utf8_lossy(tail)).into()
    }

    /// Returns a note about the output stream `name` if it is not UTF-8, was not read to its end,
    /// or is cut. `id` is the id with which `exec_output` reads the rest.
    pub(super) fn note(&self, name: &str, id: Option<&str>) -> Option<String> {
        let mut note = String::new();
        match self.encoding {
            OutputTextEncoding::Utf8 => {}
            OutputTextEncoding::Base64 => note.push_str(&format!(
                "; {name} is not all UTF-8: \u{fffd} replaces invalid bytes, and the structured \
                 result has all bytes in base64"
            )),
        }
        if !self.ended {
            note.push_str(&format!(
                "; {name} was not read to its end: another process still holds it open"
            ));
        }
        if let Some(OmittedOutput { from, to, lost_bytes }) = self.cut {
            let total = self.total_bytes;
            note.push_str(&format!("; bytes {from} to {to} of {total} of {name} are left out"));
            if lost_bytes > 0 {
                note.push_str(&format!(", {lost_bytes} of them lost"));
            }
            if let Some(id) = id {
                note.push_str(&format!(
                    "; read on with exec_output: output_id `{id}`, stream `{name}`, offset {from}"
                ));
            }
        }
        (!note.is_empty()).then_some(note)
    }
}

fn decode_lossy(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
        Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
    }
}
