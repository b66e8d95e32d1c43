//! `files.read`: reads one file as text or base64, or a range of its lines or bytes.

mod content;
mod escaped_size;
mod picture;
mod several;

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use memchr::memchr;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::FileSettings;
use crate::counted::counted;
use crate::text_encoding::{ByteOrder, LineEndScanner, TextEncoding, seven_bit_name};
use content::OpenFileContent;
use escaped_size::fitting_prefix_len;
use picture::{PictureSize, ShownPicture};
use several::{AdditionalFileResult, FileReadResult, PATHS_MAX};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, Etag, WorkspaceFile, quoted_path};

/// The maximum size of a file that is read on the async thread, in bytes. Larger files are read on
/// a blocking thread.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// The `files.read` tool.
pub struct ReadFile {
    root: Root,
    settings: Arc<FileSettings>,
    /// True if the workspace is on a local disk, so that small files may be read on the async
    /// thread.
    is_local: bool,
}

/// Input of `files.read`: a file and the part of it to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadFileInput {
    /// The file.
    path: Option<String>,
    /// Several files.
    #[serde(default)]
    #[schemars(length(max = PATHS_MAX))]
    paths: Vec<String>,
    /// `base64` for files that are not text.
    encoding: Option<FileContentEncoding>,
    /// First byte to read, counted from 0.
    offset: Option<u64>,
    /// Number of bytes to read.
    #[schemars(range(min = 1))]
    length: Option<u64>,
    /// First line; -20 starts 20 lines before the end.
    start_line: Option<i64>,
    /// Last line.
    #[schemars(range(min = 1))]
    end_line: Option<i64>,
    /// Number of lines to read, instead of `end_line`.
    #[schemars(range(min = 1))]
    line_count: Option<u64>,
    /// Etag from an earlier read; if the file still has it, no content is returned.
    if_none_match: Option<String>,
    /// Maximum bytes to return. By default 102400, and at most 10485760.
    #[schemars(range(min = 1))]
    max_bytes: Option<u64>,
}

/// Encoding of the content in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
enum FileContentEncoding {
    /// UTF-8 text.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Content in base64.
    #[serde(rename = "base64")]
    Base64,
}

/// The file that was read, and further files if the call named several.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadFileOutput {
    /// The file, relative to the workspace root.
    path: String,
    /// Encoding of `content`.
    encoding: FileContentEncoding,
    /// Encoding of the file, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_encoding: Option<&'static str>,
    /// The content; null if it was not modified.
    content: Option<String>,
    /// Size of the file in bytes.
    size: u64,
    /// Version of the content. Pass it as `if_match` to change the file only if it still has this
    /// version.
    etag: Etag,
    /// Last modification time (RFC 3339).
    mtime: String,
    /// The bytes in `content`.
    bytes: Option<ByteRange>,
    /// The lines in `content`; null if bytes were requested.
    lines: Option<LineRange>,
    /// True if the size limit cut the answer.
    truncated: bool,
    /// Position after `content` to continue at; null at the end of the file.
    next: Option<NextReadPosition>,
    /// True if the file still has the etag in `if_none_match`.
    not_modified: bool,
    /// Media type of a picture, which is shown instead of `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<&'static str>,
    /// Further files of `paths`, with the same fields, or with `path` and `error`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    others: Vec<AdditionalFileResult>,
    /// Size of the picture before it was scaled down to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    scaled_from: Option<PictureSize>,
    /// The picture.
    #[serde(skip)]
    picture: Option<ShownPicture>,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct ByteRange {
    /// First byte.
    offset: u64,
    /// Number of bytes.
    length: u64,
}

/// A range of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct LineRange {
    /// First line; negative (from the end) if the file is too large to count.
    start: i64,
    /// Number of lines.
    count: u64,
    /// Number of lines in the file, if counted.
    total: Option<u64>,
}

/// Position to continue at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct NextReadPosition {
    /// Value for `offset`.
    offset: u64,
    /// Value for `start_line`; null in the middle of a line.
    start_line: Option<i64>,
}

/// The range of a file to read, in lines or bytes.
enum FileReadRange {
    Bytes { offset: u64, length: u64 },
    Lines { start: i64, count: u64 },
}

impl ReadFile {
    /// Creates the tool for files below `root`.
    pub fn new(root: &Root, settings: &Arc<FileSettings>) -> Self {
        Self { root: root.clone(), settings: settings.clone(), is_local: root.is_local() }
    }
}

impl Tool for ReadFile {
    const NAME: &'static str = "files.read";
    const TITLE: &'static str = "Read file";
    const DESCRIPTION: &'static str = "Read one or several files, or a range of lines. Pictures \
        are shown. The last line has the etag, and says how to continue if the file was cut.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = &[("limit", "line_count")];
    const RARE_ARGUMENTS: &'static [&'static str] =
        &["offset", "length", "line_count", "if_none_match", "max_bytes"];
    const IDEMPOTENT: bool = true;
    type Input = ReadFileInput;
    type Output = FileReadResult;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let range = requested_range(&input)?;
        let limit = match input.max_bytes {
            Some(bytes) => bytes.min(self.settings.limits.answer_bytes_max),
            None => self.settings.limits.answer_bytes,
        };
        if !input.paths.is_empty() {
            several::check_paths(&input)?;
            let work = move |root: &Root, watch: &DiskWorkMonitor| {
                several::read_files(root, &input, &range, limit, watch)
            };
            return self.root.run_blocking(ctx, work).await.map(FileReadResult);
        }
        let Some(path) = input.path.clone() else {
            return Err(ToolError::invalid("", "`path` is missing"));
        };
        if !self.is_local {
            let work = move |root: &Root, watch: &DiskWorkMonitor| {
                read_file(root, root.open_file(&path)?, &input, &range, limit, watch)?
                    .with_small_picture(watch)
            };
            return self.root.run_blocking(ctx, work).await.map(FileReadResult);
        }
        let file = self.root.open_file(&path)?;
        let read = if file.meta().size() <= INLINE_BYTES_MAX {
            let read =
                read_file(&self.root, file, &input, &range, limit, &DiskWorkMonitor::default())?;
            match read.picture.as_ref().is_some_and(ShownPicture::is_large) {
                true => {
                    self.root.run_blocking(ctx, |_, watch| read.with_small_picture(watch)).await
                }
                false => Ok(read),
            }
        } else {
            let work = move |root: &Root, watch: &DiskWorkMonitor| {
                read_file(root, file, &input, &range, limit, watch)?.with_small_picture(watch)
            };
            self.root.run_blocking(ctx, work).await
        };
        read.map(FileReadResult)
    }
}

impl ReadFileOutput {
    fn picture_bytes(&self) -> usize {
        self.picture.as_ref().map_or(0, |picture| picture.bytes.len())
    }

    /// Scales down the picture in this output if the picture is too large to show.
    fn with_small_picture(mut self, watch: &DiskWorkMonitor) -> Result<Self, ToolError> {
        if let Some(picture) = self.picture.take() {
            watch.check_cancelled()?;
            let fitting = picture::fit(picture, &self.path)?;
            self.show_picture(fitting);
        }
        Ok(self)
    }

    fn show_picture(&mut self, picture: ShownPicture) {
        self.media_type = Some(picture.media_type);
        self.scaled_from = picture.scaled_from;
        self.picture = Some(picture);
    }

    /// Formats the output as text: the content of the file and a note about it.
    fn text(&self) -> ResultText {
        let Self { content, size, etag, bytes, lines, next, file_encoding, .. } = self;
        let size_text = counted(*size, "byte", "bytes");
        if let Some(media_type) = self.media_type {
            let scaled = self.scaled_from.map(|PictureSize { width, height }| {
                format!("scaled down from {width} × {height} pixels; ")
            });
            let scaled = scaled.unwrap_or_default();
            let note = format!("{media_type}; {scaled}etag {etag}; {size_text}");
            return ResultText::default().with_note(note);
        }
        let Some(content) = content else {
            return ResultText::default()
                .with_note(format!("not modified; etag {etag}; {size_text}"));
        };
        let mut note = format!("etag {etag}; {size_text}");
        note += &file_encoding.map(|encoding| format!(" in {encoding}")).unwrap_or_default();
        match (lines, bytes) {
            (Some(LineRange { start, count, total }), _) if next.is_some() || *start != 1 => {
                note += &match count {
                    0 => "; no such lines".to_owned(),
                    count => {
                        format!("; lines {start} to {}", start.saturating_add_unsigned(count - 1))
                    }
                };
                note += &total.map(|total| format!(" of {total}")).unwrap_or_default();
            }
            (None, Some(ByteRange { offset, length })) if length < size => {
                note += &format!("; bytes {offset} to {}", offset.saturating_add(*length));
            }
            (Some(_) | None, Some(_) | None) => {}
        }
        match next {
            Some(NextReadPosition { start_line: Some(line), .. }) => {
                note += &format!("; continue with start_line: {line}");
            }
            Some(NextReadPosition { offset, .. }) => {
                note += &format!("; continue with offset: {offset}");
            }
            None => {}
        }
        ResultText::from_body(content.clone()).with_note(note)
    }
}

/// Returns the range of bytes or lines that `input` requests.
fn requested_range(input: &ReadFileInput) -> Result<FileReadRange, ToolError> {
    let ReadFileInput { offset, length, start_line, end_line, line_count, .. } = *input;
    for (pointer, value) in
        [("/length", length), ("/line_count", line_count), ("/max_bytes", input.max_bytes)]
    {
        if value == Some(0) {
            return Err(ToolError::invalid(pointer, "it must be at least 1"));
        }
    }
    let bytes = offset.is_some() || length.is_some();
    if bytes && (start_line.is_some() || end_line.is_some() || line_count.is_some()) {
        let message =
            "offset and length cannot be combined with a range of lines; give bytes or lines";
        return Err(ToolError::invalid("", message));
    }
    if start_line == Some(0) {
        let message = "line numbers start at 1, or at -1 from the end";
        return Err(ToolError::invalid("/start_line", message));
    }
    let start = start_line.unwrap_or(1);
    Ok(match end_line {
        _ if bytes => {
            FileReadRange::Bytes { offset: offset.unwrap_or(0), length: length.unwrap_or(u64::MAX) }
        }
        Some(end) => FileReadRange::Lines { start, count: lines_until(start, end, line_count)? },
        None => FileReadRange::Lines { start, count: line_count.unwrap_or(u64::MAX) },
    })
}

/// Returns the number of lines from `start` to `end`, both included. Fails if `line_count` is also
/// set, because it could contradict `end`.
fn lines_until(start: i64, end: i64, line_count: Option<u64>) -> Result<u64, ToolError> {
    let invalid = |message: &str| Err(ToolError::invalid("/end_line", message));
    if line_count.is_some() {
        return invalid("it cannot be combined with line_count; give one of them");
    }
    if start < 0 {
        return invalid("with a negative start_line, give line_count instead");
    }
    if end < start {
        return invalid("it is before start_line");
    }
    Ok(end.abs_diff(start) + 1)
}

fn read_file(
    root: &Root,
    file: WorkspaceFile,
    input: &ReadFileInput,
    range: &FileReadRange,
    limit: u64,
    watch: &DiskWorkMonitor,
) -> Result<ReadFileOutput, ToolError> {
    let wanted_max = match range {
        FileReadRange::Lines { start: 1, count: u64::MAX } => limit,
        FileReadRange::Bytes { offset: 0, length } => limit.min(*length),
        FileReadRange::Lines { .. } | FileReadRange::Bytes { .. } => 0,
    };
    let mut content = OpenFileContent::open(root, file, wanted_max, watch)?;
    let not_modified =
        input.if_none_match.as_ref().is_some_and(|given| content.etag.matches(given));
    let mut output = ReadFileOutput {
        path: content.file.path().to_owned(),
        encoding: input.encoding.unwrap_or_default(),
        file_encoding: None,
        content: None,
        size: content.size(),
        etag: content.etag.clone(),
        mtime: content.file.meta().mtime().to_string(),
        bytes: None,
        lines: None,
        truncated: false,
        next: None,
        not_modified,
        media_type: None,
        others: Vec::new(),
        scaled_from: None,
        picture: None,
    };
    if not_modified {
        return Ok(output);
    }
    let is_whole = matches!(range, FileReadRange::Lines { start: 1, count: u64::MAX });
    match picture::read_picture(&content, is_whole && input.encoding.is_none())? {
        Some(picture) => {
            output.show_picture(picture);
            output.encoding = FileContentEncoding::Base64;
        }
        None => fill_output(&mut content, range, limit, &mut output)?,
    }
    Ok(output)
}

/// Reads `range` of `content`, at most `limit` bytes, and stores the text or base64 in `output`.
fn fill_output(
    content: &mut OpenFileContent<'_>,
    range: &FileReadRange,
    limit: u64,
    output: &mut ReadFileOutput,
) -> Result<(), ToolError> {
    let size = content.size();
    let (offset, first_line) = match *range {
        FileReadRange::Bytes { offset, .. } => (offset.min(size), None),
        FileReadRange::Lines { start, .. } => {
            let (offset, line) = content.line_start(start)?;
            (offset, Some(line))
        }
    };
    let remaining = size - offset;
    let requested = match *range {
        FileReadRange::Bytes { length, .. } => remaining.min(length),
        FileReadRange::Lines { .. } => remaining,
    };
    let ends = content.line_ends();
    let utf16 = content.utf16.filter(|_| output.encoding == FileContentEncoding::Utf8);
    let limit = utf16.map_or(limit, |_| whole_units(limit));
    let mut bytes = content.take(offset, requested.min(limit))?;
    let mut whole = bytes.len() as u64 >= requested;
    if let FileReadRange::Lines { count, .. } = *range
        && count < u64::MAX
        && let Some(end) = end_of_line(&bytes, count, ends)
    {
        bytes.truncate(end);
        whole = true;
    }
    if utf16.is_none() && output.encoding == FileContentEncoding::Utf8 {
        let fitting = fitting_prefix_len(&bytes);
        if fitting < bytes.len() {
            bytes.truncate(fitting);
            whole = false;
        }
    }
    if !whole && output.encoding == FileContentEncoding::Utf8 {
        truncate_at_line(&mut bytes, utf16);
    }
    let end = offset + bytes.len() as u64;
    let open_line = u64::from(!ends.is_at_line_start(&bytes));
    let newlines = match content.lines {
        // The lines of the whole file are counted already.
        Some(lines) if offset == 0 && end == size => lines.saturating_sub(open_line),
        Some(_) | None => ends.count(&bytes),
    };
    output.truncated = !whole;
    output.bytes = Some(ByteRange { offset, length: bytes.len() as u64 });
    output.lines = first_line
        .filter(|_| output.encoding == FileContentEncoding::Utf8)
        .map(|start| LineRange { start, count: newlines + open_line, total: content.lines });
    output.next = (end < size).then(|| NextReadPosition {
        offset: end,
        start_line: first_line
            .filter(|_| open_line == 0)
            .map(|line| line.saturating_add_unsigned(newlines))
            .filter(|&line| line != 0),
    });
    output.file_encoding = match utf16 {
        Some(order) => Some(order.utf16_name()),
        None => seven_bit_name(&bytes).filter(|_| output.encoding == FileContentEncoding::Utf8),
    };
    let part = EncodingErrorLocation { offset, at_end: end == size, path: &output.path };
    output.content = Some(match (output.encoding, utf16) {
        (FileContentEncoding::Base64, _) => BASE64_STANDARD.encode(&bytes),
        (FileContentEncoding::Utf8, Some(order)) => part.decode_utf16(&bytes, order)?,
        (FileContentEncoding::Utf8, None) => part.into_utf8(bytes, content.whole())?,
    });
    Ok(())
}

/// Rounds `limit` down to a multiple of two bytes, the size of a UTF-16 unit, but not below two.
fn whole_units(limit: u64) -> u64 {
    (limit - limit % 2).max(2)
}

/// Returns the byte offset after the end of line number `count` in `bytes`. Returns `None` if
/// `bytes` has fewer line ends.
fn end_of_line(bytes: &[u8], count: u64, ends: LineEndScanner) -> Option<usize> {
    ends.nth(bytes, usize::try_from(count - 1).ok()?)
}

/// Shortens `bytes` to the end of the last complete line. If there is no complete line, shortens
/// `bytes` to the end of the last complete character.
fn truncate_at_line(bytes: &mut Vec<u8>, utf16: Option<ByteOrder>) {
    if let Some(end) = LineEndScanner(utf16).last(bytes) {
        return bytes.truncate(end);
    }
    let whole_chars = match utf16 {
        Some(order) => order.whole_chars_len(bytes),
        None => match str::from_utf8(bytes) {
            Err(err) if err.error_len().is_none() => err.valid_up_to(),
            Ok(_) | Err(_) => bytes.len(),
        },
    };
    if whole_chars > 0 {
        bytes.truncate(whole_chars);
    }
}

/// The location in a file of bytes to decode, for errors about their encoding.
struct EncodingErrorLocation<'p> {
    offset: u64,
    /// True if the bytes end at the end of the file.
    at_end: bool,
    path: &'p str,
}

impl EncodingErrorLocation<'_> {
    /// Converts `bytes` from UTF-8 to text. The error states the encoding of the file, detected
    /// from `whole`, its complete content, if that is known.
    fn into_utf8(self, bytes: Vec<u8>, whole: Option<&[u8]>) -> Result<String, ToolError> {
        // ASCII in UTF-32 is also UTF-8, with NUL characters.
        if let Some(at) = memchr(0, &bytes)
            && let encoding @ TextEncoding::Utf32(_) = TextEncoding::detect(whole.unwrap_or(&bytes))
        {
            let valid = str::from_utf8(&bytes).map_or_else(|err| err.valid_up_to(), str::len);
            return Err(self.invalid("UTF-8", at.min(valid), &format!(" ({encoding})")));
        }
        String::from_utf8(bytes).map_err(|err| {
            let bytes = err.as_bytes();
            let err = err.utf8_error();
            let at = err.valid_up_to();
            let continues = bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
            match err.error_len() {
                None if !self.at_end => self.cut_at_end(at),
                Some(_) if self.offset > 0 && at == 0 && continues => self.cut_at_start(),
                None | Some(_) => {
                    let encoding = match TextEncoding::detect(whole.unwrap_or(bytes)) {
                        TextEncoding::Utf8 | TextEncoding::Binary => String::new(),
                        other => format!(" ({other})"),
                    };
                    self.invalid("UTF-8", at, &encoding)
                }
            }
        })
    }

    /// Converts `bytes` from UTF-16 to text. Fails if `bytes` do not begin and end at complete
    /// characters.
    fn decode_utf16(self, bytes: &[u8], order: ByteOrder) -> Result<String, ToolError> {
        if self.offset % 2 == 1 || (self.offset > 0 && order.begins_inside_char(bytes)) {
            return Err(self.cut_at_start());
        }
        if !self.at_end && order.whole_chars_len(bytes) < bytes.len() {
            return Err(self.cut_at_end(order.whole_chars_len(bytes)));
        }
        order.decode(bytes).map_err(|at| self.invalid(order.utf16_name(), at, ""))
    }

    fn cut_at_start(&self) -> ToolError {
        let path = quoted_path(self.path);
        ToolError::invalid(
            "/encoding",
            format!(
                "the range begins inside a character, at byte {} of {path}; start it elsewhere, or use encoding base64",
                self.offset
            ),
        )
    }

    fn cut_at_end(&self, at: usize) -> ToolError {
        let at = self.offset + at as u64;
        let path = quoted_path(self.path);
        ToolError::invalid(
            "/encoding",
            format!(
                "the range ends inside the character at byte {at} of {path}; end it earlier, or use encoding base64"
            ),
        )
    }

    fn invalid(&self, expected: &str, at: usize, encoding: &str) -> ToolError {
        let at = self.offset + at as u64;
        let path = quoted_path(self.path);
        ToolError::invalid(
            "/encoding",
            format!("{path} is not {expected} at byte {at}{encoding}; use encoding base64"),
        )
    }
}
