//! Decodes the text of a file for editing, and restricts the edits if the file is not UTF-8.
//!
//! UTF-16 is converted to UTF-8 and back. Other encodings are only guessed, so their bytes stay
//! unchanged, and an edit may only replace and insert ASCII.

use std::borrow::Cow;

use memchr::memrchr;
use toolgate_contract::ToolError;

use super::plan::{EditPlan, PlannedTextChange, all_by_text};
use crate::text_encoding::TextEncoding;
use toolgate_world::root::quoted_path;

/// The smallest byte that can end a character of a multibyte encoding that is not UTF-8.
const TRAIL_BYTE_MIN: u8 = 0x30;

/// The text of a file, decoded for editing. The edited text can be converted back to the bytes of
/// the file.
pub(super) struct DecodedFileText<'f> {
    /// The text of the file, in UTF-8 or in an encoding that contains ASCII.
    pub(super) bytes: Cow<'f, [u8]>,
    encoding: TextEncoding,
    path: &'f str,
}

impl<'f> DecodedFileText<'f> {
    /// Decodes the file at `path` with the content `bytes`.
    ///
    /// # Errors
    /// Fails if `changes` cannot be made in the file's encoding.
    pub(super) fn decode(
        bytes: &'f [u8],
        changes: &[PlannedTextChange<'_>],
        path: &'f str,
    ) -> Result<Self, ToolError> {
        let encoding = TextEncoding::detect(bytes);
        let refuse = |why: String| {
            let path = quoted_path(path);
            Err(ToolError::invalid("/path", format!("{path} {why}")))
        };
        let bytes = match encoding {
            TextEncoding::Utf8 | TextEncoding::Legacy(_) => Cow::Borrowed(bytes),
            // Even in a file with NUL bytes, exact text identifies the place of a change.
            TextEncoding::Binary if all_by_text(changes) && is_utf8(bytes) => Cow::Borrowed(bytes),
            TextEncoding::Binary => {
                return refuse(
                    "is binary, so it cannot be edited; write the whole file".to_owned(),
                );
            }
            TextEncoding::Utf16(order) => match order.decode(bytes) {
                Ok(text) => Cow::Owned(text.into_bytes()),
                Err(at) => {
                    return refuse(format!(
                        "begins like {encoding}, but is not valid at byte {at}; write the whole file"
                    ));
                }
            },
            TextEncoding::Utf32(_) => {
                return refuse(format!(
                    "is {encoding}, which cannot be edited; convert it to UTF-8 first"
                ));
            }
        };
        let text = Self { bytes, encoding, path };
        text.check_ascii(changes)?;
        Ok(text)
    }

    /// Checks that no text that `plan` replaces begins inside a multibyte character. `changes` are
    /// the changes of the plan.
    pub(super) fn check_plan(
        &self,
        changes: &[PlannedTextChange<'_>],
        plan: &EditPlan<'_>,
    ) -> Result<(), ToolError> {
        let TextEncoding::Legacy(_) = self.encoding else { return Ok(()) };
        for span in &plan.spans {
            let is_by_text = matches!(changes[span.edit], PlannedTextChange::Text { .. });
            if is_by_text && self.may_begin_inside_char(span.from, span.to) {
                return Err(self.refuse_text(span.edit, "old", "it may begin inside a character"));
            }
        }
        Ok(())
    }

    /// Returns the maximum size of the decoded text after the edit, in bytes. `file_bytes_max` is
    /// the maximum size of the file.
    pub(super) fn bytes_max(&self, file_bytes_max: u64) -> u64 {
        match self.encoding {
            // Two bytes of UTF-16 are up to three bytes of UTF-8.
            TextEncoding::Utf16(_) => file_bytes_max.saturating_mul(3) / 2,
            TextEncoding::Utf8
            | TextEncoding::Utf32(_)
            | TextEncoding::Legacy(_)
            | TextEncoding::Binary => file_bytes_max,
        }
    }

    /// Converts the edited text to bytes in the file's encoding.
    pub(super) fn encode<'e>(&self, edited: &'e [u8]) -> Cow<'e, [u8]> {
        match self.encoding {
            TextEncoding::Utf16(order) => order.encode(&String::from_utf8_lossy(edited)).into(),
            TextEncoding::Utf8
            | TextEncoding::Utf32(_)
            | TextEncoding::Legacy(_)
            | TextEncoding::Binary => edited.into(),
        }
    }

    /// Fails if `changes` contain text that is not ASCII and the file's encoding is only guessed.
    fn check_ascii(&self, changes: &[PlannedTextChange<'_>]) -> Result<(), ToolError> {
        let TextEncoding::Legacy(_) = self.encoding else { return Ok(()) };
        for (edit, change) in changes.iter().enumerate() {
            let (old, new) = match change {
                PlannedTextChange::Text { old, new, .. } => (*old, *new),
                PlannedTextChange::Lines { new, .. } => ("", *new),
            };
            for (field, text) in [("old", old), ("new", new)] {
                if !text.is_ascii() {
                    return Err(self.refuse_text(edit, field, "it is not ASCII"));
                }
            }
        }
        Ok(())
    }

    /// Returns true if the ASCII text from offset `from` to `to` may begin with the last byte of a
    /// multibyte character, or may contain characters that only look like ASCII.
    fn may_begin_inside_char(&self, from: usize, to: usize) -> bool {
        let follows_char_byte = from > 0 && !self.bytes[from - 1].is_ascii();
        let line_start = memrchr(b'\n', &self.bytes[..from]).map_or(0, |newline| newline + 1);
        (follows_char_byte && self.bytes[from] >= TRAIL_BYTE_MIN)
            || self.bytes[line_start..to].contains(&b'\x1b')
    }

    fn refuse_text(&self, edit: usize, field: &str, why: &str) -> ToolError {
        let path = quoted_path(self.path);
        let message = format!(
            "{why}, and {path} is not UTF-8 ({}); use line numbers and insert only ASCII, or \
             convert the file to UTF-8 first",
            self.encoding
        );
        ToolError::invalid(format!("/edits/{edit}/{field}"), message)
    }
}

fn is_utf8(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_ok()
}
