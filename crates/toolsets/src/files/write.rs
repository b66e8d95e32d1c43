//! `files.write`: creates or replaces one file in a single step.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, ToolErrorKind};

use super::FileSettings;
use crate::counted::counted;
use toolgate_world::Root;
use toolgate_world::root::{
    Etag, ExistingFilePolicy, FileWriteConditions, FileWriteOutcome, MissingFilePolicy,
    MissingParentPolicy, quoted_path,
};

/// The `files.write` tool.
pub struct WriteFile {
    pub(super) root: Root,
    pub(super) settings: Arc<FileSettings>,
}

/// Input of `files.write`: the content, and conditions for writing it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFileInput {
    /// The file.
    path: String,
    /// The new content.
    content: Option<String>,
    /// The content as base64.
    content_base64: Option<String>,
    /// Create the file if it does not exist.
    #[serde(default = "crate::input_defaults::yes")]
    create: bool,
    /// Replace an existing file.
    overwrite: Option<bool>,
    /// Create missing parent directories.
    #[serde(default = "crate::input_defaults::yes")]
    mkdirs: bool,
    /// Permission bits, octal as a string ("0755") or decimal as a number (493). Default: the bits
    /// of the replaced file.
    mode: Option<FilePermissionMode>,
    /// Etag that the file must have.
    if_match: Option<String>,
}

/// The permission bits of a file, as the caller wrote them: a number or a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum FilePermissionMode {
    Bits(u64),
    Octal(String),
}

/// The result of writing a file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WriteFileOutput {
    /// Path of the file, as given in the call.
    path: String,
    /// Size in bytes.
    size: u64,
    /// New etag.
    etag: Etag,
    /// Modification time (RFC 3339).
    mtime: String,
    /// True if the file is new.
    created: bool,
    /// True if the call replaced an existing file.
    overwritten: bool,
}

impl Tool for WriteFile {
    const NAME: &'static str = "files.write";
    const TITLE: &'static str = "Write file";
    const DESCRIPTION: &'static str = "Create or replace a whole file. To replace, set \
        `overwrite`, or `if_match` to the etag that you read. To change a part, use files_edit.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["content_base64", "create", "mkdirs", "mode"];
    const IDEMPOTENT: bool = true;
    type Input = WriteFileInput;
    type Output = WriteFileOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let conditions = write_conditions(&input)?;
        let WriteFileInput { path, content, content_base64, .. } = input;
        let content = self.content(content, content_base64)?;
        ctx.write_budget.reserve(content.len() as u64)?;
        self.root
            .run_blocking(ctx, move |root, watch| {
                let written = root.write(&path, &content, &conditions, watch)?;
                Ok(WriteFileOutput {
                    path,
                    size: written.meta.size(),
                    etag: written.etag,
                    mtime: written.meta.mtime().to_string(),
                    created: written.outcome == FileWriteOutcome::Created,
                    overwritten: written.outcome == FileWriteOutcome::Replaced,
                })
            })
            .await
    }

    fn result_text(output: &WriteFileOutput) -> ResultText {
        let WriteFileOutput { path, size, etag, created, .. } = output;
        let action = if *created { "created" } else { "replaced" };
        let size = counted(*size, "byte", "bytes");
        ResultText::from_body(format!("{action} {}", quoted_path(path)))
            .with_note(format!("etag {etag}; {size}"))
    }
}

impl WriteFile {
    fn content(&self, text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, ToolError> {
        let content = match (text, base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => BASE64_STANDARD.decode(base64).map_err(|err| {
                let why = err.to_string().to_lowercase();
                let why = why.trim_end_matches('.');
                let message = format!("it is not padded base64 of the standard alphabet: {why}");
                ToolError::invalid("/content_base64", message)
            })?,
            (Some(_), Some(_)) => {
                return Err(ToolError::invalid(
                    "",
                    "content and content_base64 are both given; give one",
                ));
            }
            (None, None) => {
                return Err(ToolError::invalid(
                    "",
                    "neither content nor content_base64 is given; give one",
                ));
            }
        };
        let size = content.len() as u64;
        let limit = self.settings.limits.write_bytes_max;
        if size > limit {
            let message = format!("the content has {size} bytes; at most {limit} can be written");
            return Err(ToolError::new(ToolErrorKind::TooLarge, message));
        }
        Ok(content)
    }
}

fn write_conditions(input: &WriteFileInput) -> Result<FileWriteConditions, ToolError> {
    let mode = input.mode.as_ref().map(FilePermissionMode::to_bits).transpose()?;
    Ok(FileWriteConditions {
        existing: match (&input.if_match, input.overwrite) {
            (_, Some(false)) | (None, None) => ExistingFilePolicy::Keep,
            (Some(etag), None | Some(true)) => ExistingFilePolicy::Match(etag.clone()),
            (None, Some(true)) => ExistingFilePolicy::Replace,
        },
        missing: if input.create { MissingFilePolicy::Create } else { MissingFilePolicy::Refuse },
        parents: if input.mkdirs && input.create {
            MissingParentPolicy::Make
        } else {
            MissingParentPolicy::Require
        },
        mode,
    })
}

impl FilePermissionMode {
    fn to_bits(&self) -> Result<u32, ToolError> {
        let message = match self {
            Self::Bits(bits) => match u32::try_from(*bits) {
                Ok(bits) if bits <= 0o777 => return Ok(bits),
                Ok(_) | Err(_) => format!(
                    "{bits} has more than the nine permission bits; numbers are decimal: for 0755 \
                     write 493 or \"0755\""
                ),
            },
            Self::Octal(octal) => {
                let digits = octal.strip_prefix("0o").unwrap_or(octal);
                match u32::from_str_radix(digits, 8) {
                    Ok(bits) if bits <= 0o777 && !digits.starts_with('+') => return Ok(bits),
                    Ok(bits) if bits <= 0o7777 => format!(
                        "{} has more than the nine permission bits, such as \"0755\"",
                        quoted_path(octal)
                    ),
                    Ok(_) | Err(_) => {
                        format!("{} is not an octal mode such as \"0755\"", quoted_path(octal))
                    }
                }
            }
        };
        Err(ToolError::invalid("/mode", message))
    }
}

impl JsonSchema for FilePermissionMode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // The tool refuses a number that is too large, with a better error than the schema's.
        json_schema!({ "type": ["integer", "string"], "minimum": 0 })
    }
}
