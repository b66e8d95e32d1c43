//! Reads several files in one call, and converts the read files to a result.

use serde::Serialize;
use serde_json::Value;
use toolgate_contract::printable::escape_line;
use toolgate_contract::{ContentBlock, LazySchema, ResultText, ToolError, TypedToolResult};
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

use super::{FileReadRange, ReadFileInput, ReadFileOutput, read_file};

/// The maximum number of files in one call of `files.read`.
pub(super) const PATHS_MAX: usize = 20;
/// The maximum number of bytes of all pictures in the result of one call. A single picture of the
/// maximum size always fits.
const PICTURES_BYTES_MAX: usize = 4 << 20;

/// The result for a file that a call of `files.read` names after the first file.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum AdditionalFileResult {
    /// The file was read.
    Read(Box<ReadFileOutput>),
    /// The file could not be read.
    Failed {
        /// The path of the file, as written in the call.
        path: String,
        /// The reason why the file could not be read.
        error: String,
    },
}

/// The result of `files.read`, with structured output, text and pictures.
pub struct FileReadResult(pub(super) ReadFileOutput);

impl TypedToolResult for FileReadResult {
    fn schema() -> Option<LazySchema> {
        Some(LazySchema::for_type::<ReadFileOutput>())
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(&self.0)
    }

    fn text(&self) -> ResultText {
        let first = self.0.text();
        if self.0.others.is_empty() {
            return first;
        }
        let mut body = file_section(&self.0.path, &first);
        for other in &self.0.others {
            body += &match other {
                AdditionalFileResult::Read(read) => {
                    file_section(&read.path, &ReadFileOutput::text(read))
                }
                AdditionalFileResult::Failed { path, error } => {
                    file_section(path, &ResultText::from_body(error))
                }
            };
        }
        ResultText::from_body(body)
    }

    fn content(self) -> Vec<ContentBlock> {
        let others = self.0.others.into_iter().filter_map(|other| match other {
            AdditionalFileResult::Read(read) => Some(*read),
            AdditionalFileResult::Failed { .. } => None,
        });
        let first = ReadFileOutput { others: Vec::new(), ..self.0 };
        let picture = |read: ReadFileOutput| {
            read.picture.map(|picture| ContentBlock::image(picture.media_type, picture.bytes))
        };
        [first].into_iter().chain(others).filter_map(picture).collect()
    }

    fn into_value_and_content(mut self) -> Result<(Value, Vec<ContentBlock>), serde_json::Error> {
        // The content may be long. Its place in the value stays the same.
        let content = self.0.content.take();
        let mut value = self.value()?;
        if let Some(content) = content {
            value["content"] = Value::String(content);
        }
        Ok((value, self.content()))
    }
}

/// Formats the text of one of several files, with the file's path as a heading.
fn file_section(path: &str, text: &ResultText) -> String {
    format!("==> {} <==\n{}\n", escape_line(path), text.joined().trim_end_matches('\n'))
}

/// Fails if `input` combines `paths` with arguments that concern a single file.
pub(super) fn check_paths(input: &ReadFileInput) -> Result<(), ToolError> {
    let refusal = if input.paths.len() > PATHS_MAX {
        format!("it has {} files; at most {PATHS_MAX} can be read at once", input.paths.len())
    } else if input.path.is_some() || input.if_none_match.is_some() {
        "it cannot be combined with path and if_none_match; give one file or several".to_owned()
    } else {
        return Ok(());
    };
    Err(ToolError::invalid("/paths", refusal))
}

/// Reads all files in `paths` of `input`, at most `limit` bytes in total. For a file that cannot be
/// read, the output contains an error, and the remaining files are still read.
pub(super) fn read_files(
    root: &Root,
    input: &ReadFileInput,
    range: &FileReadRange,
    limit: u64,
    watch: &DiskWorkMonitor,
) -> Result<ReadFileOutput, ToolError> {
    let mut first: Option<ReadFileOutput> = None;
    let mut failure = None;
    let mut others = Vec::new();
    let mut left = limit;
    let mut pictures_left = PICTURES_BYTES_MAX;
    for path in &input.paths {
        watch.check_cancelled()?;
        // Even the last file shows its beginning.
        let share = left.max(limit / PATHS_MAX as u64).max(1);
        let read = root
            .open_file(path)
            .and_then(|file| read_file(root, file, input, range, share, watch))
            .and_then(|read| read.with_small_picture(watch));
        match read {
            Ok(read) if read.picture_bytes() > pictures_left => {
                let error = "the pictures are too large to show together; read it alone".to_owned();
                others.push(AdditionalFileResult::Failed { path: path.clone(), error });
            }
            Ok(read) => {
                pictures_left -= read.picture_bytes();
                left = left.saturating_sub(read.bytes.map_or(0, |bytes| bytes.length));
                match first {
                    None => first = Some(read),
                    Some(_) => others.push(AdditionalFileResult::Read(Box::new(read))),
                }
            }
            Err(err) => {
                others.push(AdditionalFileResult::Failed {
                    path: path.clone(),
                    error: err.message.clone(),
                });
                failure = failure.or(Some(err));
            }
        }
    }
    match (first, failure) {
        (Some(first), _) => Ok(ReadFileOutput { others, ..first }),
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(ToolError::invalid("/paths", "it is empty; name at least one file")),
    }
}
