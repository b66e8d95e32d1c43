//! `exec.output`: reads the rest of a program's output that was cut in a result.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::encoding::{OutputTextEncoding, encode, whole_chars_len};
use super::output_store::ProgramOutputStore;

const BYTES_MAX: u32 = 1 << 20;

/// The `exec.output` tool.
pub(super) struct ReadProgramOutput {
    pub(super) store: Arc<ProgramOutputStore>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadProgramOutputInput {
    /// `output_id` of the result.
    output_id: String,
    /// Output stream.
    #[serde(default)]
    stream: OutputStreamChoice,
    /// First byte.
    #[serde(default)]
    offset: u64,
    /// Maximum bytes to read.
    #[serde(default = "default_max_bytes")]
    #[schemars(range(min = 4, max = BYTES_MAX))]
    max_bytes: u32,
}

fn default_max_bytes() -> u32 {
    32 << 10
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OutputStreamChoice {
    #[default]
    Stdout,
    Stderr,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadProgramOutputResult {
    /// The requested part of the output.
    text: String,
    /// Encoding of `text`.
    encoding: OutputTextEncoding,
    /// Offset of this part; larger than the requested offset if bytes were lost.
    offset: u64,
    /// Bytes in this part.
    bytes: u64,
    /// Offset of the next part; null at the end.
    next: Option<u64>,
    /// Bytes printed to this stream.
    total_bytes: u64,
}

impl Tool for ReadProgramOutput {
    const NAME: &'static str = "exec.output";
    const TITLE: &'static str = "Read program output";
    const DESCRIPTION: &'static str = "Read the rest of a program's output that was cut.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("cursor", "offset"), ("next", "offset"), ("after", "offset")];
    const RARE_ARGUMENTS: &'static [&'static str] = &["max_bytes"];
    const IDEMPOTENT: bool = true;
    type Input = ReadProgramOutputInput;
    type Output = ReadProgramOutputResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let ReadProgramOutputInput { output_id, stream, offset, max_bytes } = input;
        let streams = self.store.find(&ctx.caller, &output_id)?;
        let captured = match stream {
            OutputStreamChoice::Stdout => &streams.stdout,
            OutputStreamChoice::Stderr => &streams.stderr,
        };
        let total_bytes = captured.total_bytes;
        if offset > total_bytes {
            let message =
                format!("the offset {offset} is past the end of the stream, at {total_bytes}");
            return Err(ToolError::invalid("/offset", message));
        }
        let piece = captured.read_piece(offset, max_bytes.min(BYTES_MAX) as usize).await;
        let mut piece = piece
            .map_err(|err| ToolError::with_cause("the stored output could not be read", err))?;
        // Cut text between characters, but not before lost bytes: the rest of the character cannot
        // follow.
        let whole = whole_chars_len(&piece.bytes);
        let end = piece.offset + piece.bytes.len() as u64;
        let is_text = whole > 0 && std::str::from_utf8(&piece.bytes[..whole]).is_ok();
        if is_text && piece.next_offset == Some(end) {
            piece.bytes.truncate(whole);
            piece.next_offset = Some(piece.offset + whole as u64);
        }
        let bytes = piece.bytes.len() as u64;
        let (text, encoding) = encode(piece.bytes);
        Ok(ReadProgramOutputResult {
            text,
            encoding,
            offset: piece.offset,
            bytes,
            next: piece.next_offset,
            total_bytes,
        })
    }

    fn result_text(output: &ReadProgramOutputResult) -> ResultText {
        let ReadProgramOutputResult { text, encoding, offset, bytes, next, total_bytes } = output;
        let end = offset + bytes;
        let mut note = format!("bytes {offset} to {end} of {total_bytes}");
        match encoding {
            OutputTextEncoding::Utf8 => {}
            OutputTextEncoding::Base64 => note.push_str(", in base64 because they are not UTF-8"),
        }
        match next {
            Some(next) if *next > end => {
                note.push_str(&format!(
                    "; the bytes after it were lost; continue at offset {next}"
                ));
            }
            Some(next) => note.push_str(&format!("; continue at offset {next}")),
            None => {}
        }
        ResultText::from_body(text).with_note(note)
    }
}
