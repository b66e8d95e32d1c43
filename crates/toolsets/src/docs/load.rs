//! `docs.load.fetch`: loads one document with its metadata.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolgate_contract::{
    Effects, ResultText, Tool, ToolContext, ToolError, ToolErrorKind, exact_json,
    strip_byte_order_mark,
};

use super::sha256;
use crate::counted::counted;
use crate::front_matter;
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, quoted_path};

/// The maximum size of a document or metadata file, in bytes. A larger file would fill an agent's
/// context. `files.read` can read parts of such a file.
const BYTES_MAX: u64 = 1 << 20;

/// The tool `docs.load.fetch`.
pub struct LoadDocument {
    pub(super) root: Root,
}

/// Input of `docs.load.fetch`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadDocumentInput {
    /// The document.
    path: String,
    /// JSON or YAML file with the metadata; default: the front matter.
    metadata_path: Option<String>,
    /// Text encoding: `utf-8`, `ascii`, `latin-1` or `utf-16`.
    #[serde(default = "utf_8")]
    encoding: String,
}

/// Output of `docs.load.fetch`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LoadDocumentOutput {
    document: LoadedDocument,
    /// The metadata, empty if there is none.
    metadata: Map<String, Value>,
    stats: DocumentStats,
}

/// A document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct LoadedDocument {
    /// The path of the document, as given in the call.
    path: String,
    /// The complete text, with its front matter.
    content: String,
    /// The SHA-256 of the document's bytes.
    #[schemars(regex(pattern = "^[a-f0-9]{64}$"))]
    sha256: String,
}

/// Measurements of the document.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct DocumentStats {
    /// The size of the document in bytes.
    bytes: u64,
}

/// The text encoding of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DocumentEncoding {
    Utf8,
    Ascii,
    Latin1,
    Utf16,
}

impl Tool for LoadDocument {
    const NAME: &'static str = "docs.load.fetch";
    const TITLE: &'static str = "Load document";
    const DESCRIPTION: &'static str = "Load one document with its SHA-256 and metadata.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["metadataPath", "encoding"];
    const IDEMPOTENT: bool = true;
    const PATHS: &'static [&'static str] = &["path", "metadataPath"];
    type Input = LoadDocumentInput;
    type Output = LoadDocumentOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        self.root.run_blocking(ctx, move |root, watch| load(root, input, watch)).await
    }

    fn result_text(output: &LoadDocumentOutput) -> ResultText {
        let LoadDocumentOutput { document, metadata, stats } = output;
        let metadata = match metadata.len() {
            0 => String::new(),
            _ => format!("; metadata {}", Value::Object(metadata.clone())),
        };
        let bytes = counted(stats.bytes, "byte", "bytes");
        let note = format!("{bytes}, sha256 {}{metadata}", document.sha256);
        ResultText::from_body(document.content.clone()).with_note(note)
    }
}

fn load(
    root: &Root,
    input: LoadDocumentInput,
    watch: &DiskWorkMonitor,
) -> Result<LoadDocumentOutput, ToolError> {
    let LoadDocumentInput { path, metadata_path, encoding } = input;
    let encoding = DocumentEncoding::parse(&encoding)?;
    let bytes = read(root, &path, watch)?;
    let content = encoding.decode(&bytes).ok_or_else(|| {
        let message =
            format!("{} is not {encoding}; pass the encoding of the file", quoted_path(&path));
        ToolError::invalid("/encoding", message)
    })?;
    let metadata = match metadata_path {
        Some(metadata_path) => read_metadata(root, &metadata_path, watch)
            .map_err(|err| err.with_pointer("/metadataPath"))?,
        None => parse_front_matter(&content).map_err(|why| {
            ToolError::invalid(
                "/path",
                format!("the front matter of {}: {why}", quoted_path(&path)),
            )
        })?,
    };
    let stats = DocumentStats { bytes: bytes.len() as u64 };
    let sha256 = sha256(&bytes);
    Ok(LoadDocumentOutput { document: LoadedDocument { path, content, sha256 }, metadata, stats })
}

fn read(root: &Root, path: &str, watch: &DiskWorkMonitor) -> Result<Vec<u8>, ToolError> {
    let file = root.open_file(path)?;
    let size = file.meta().size();
    if size > BYTES_MAX {
        let message = format!(
            "{} has {size} bytes, and at most {BYTES_MAX} can be loaded; read a part with \
             files_read",
            quoted_path(path)
        );
        return Err(ToolError::new(ToolErrorKind::TooLarge, message));
    }
    file.read(0, size, watch)
}

/// Reads a document's metadata from the JSON or YAML file at `path`.
fn read_metadata(
    root: &Root,
    path: &str,
    watch: &DiskWorkMonitor,
) -> Result<Map<String, Value>, ToolError> {
    let invalid =
        |why: String| ToolError::invalid("/metadataPath", format!("{} {why}", quoted_path(path)));
    let bytes = read(root, path, watch)?;
    let text =
        DocumentEncoding::Utf8.decode(&bytes).ok_or_else(|| invalid("is not utf-8".to_owned()))?;
    let text = strip_byte_order_mark(&text);
    let is_json = path.to_lowercase().ends_with(".json");
    let value = if is_json {
        exact_json::parse(text).map_err(|err| invalid(format!("is not JSON: {err}")))?
    } else {
        front_matter::parse(text, &[]).map_err(|problem| {
            // The parser counts an opening line `---`, which this file does not have.
            invalid(format!("is not YAML: line {}: {}", problem.line.max(2) - 1, problem.message))
        })?
    };
    match value {
        Value::Object(metadata) => Ok(metadata),
        Value::Null if text.trim().is_empty() => Ok(Map::new()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(invalid("does not contain an object at its top level".to_owned()))
        }
    }
}

/// Returns the fields in the front matter of a document, or an empty map if there is none. A `---`
/// line without a closing `---` line does not start front matter.
fn parse_front_matter(content: &str) -> Result<Map<String, Value>, String> {
    let Ok(parts) = front_matter::split_if_any(content) else { return Ok(Map::new()) };
    if parts.head.trim().is_empty() {
        return Ok(Map::new());
    }
    let value = front_matter::parse(parts.head, &[])
        .map_err(|problem| format!("line {}: {}", problem.line, problem.message))?;
    Ok(match value {
        Value::Object(metadata) => metadata,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    })
}

impl DocumentEncoding {
    fn parse(name: &str) -> Result<Self, ToolError> {
        match name.trim().to_lowercase().replace('_', "-").as_str() {
            "utf-8" | "utf8" => Ok(Self::Utf8),
            "ascii" | "us-ascii" => Ok(Self::Ascii),
            "latin-1" | "latin1" | "iso-8859-1" => Ok(Self::Latin1),
            "utf-16" | "utf16" => Ok(Self::Utf16),
            _ => Err(ToolError::invalid(
                "/encoding",
                format!("unknown encoding `{name}`; use utf-8, ascii, latin-1 or utf-16"),
            )),
        }
    }

    /// Decodes `bytes` from this encoding. Returns `None` if they are not valid in this encoding.
    fn decode(self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Utf8 => String::from_utf8(bytes.to_owned()).ok(),
            Self::Ascii => {
                bytes.is_ascii().then(|| bytes.iter().copied().map(char::from).collect())
            }
            Self::Latin1 => Some(bytes.iter().copied().map(char::from).collect()),
            Self::Utf16 => decode_utf_16(bytes),
        }
    }
}

impl std::fmt::Display for DocumentEncoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Utf8 => "utf-8",
            Self::Ascii => "ascii",
            Self::Latin1 => "latin-1",
            Self::Utf16 => "utf-16",
        })
    }
}

/// Decodes UTF-16, which is little-endian unless a byte order mark says otherwise. Returns `None`
/// if `bytes` are invalid.
fn decode_utf_16(bytes: &[u8]) -> Option<String> {
    let (bytes, is_big) = match bytes {
        [0xfe, 0xff, rest @ ..] => (rest, true),
        [0xff, 0xfe, rest @ ..] => (rest, false),
        _ => (bytes, false),
    };
    let (pairs, rest) = bytes.as_chunks::<2>();
    let unit = |pair: &[u8; 2]| {
        if is_big { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) }
    };
    let units = pairs.iter().map(unit);
    let text = char::decode_utf16(units).collect::<Result<String, _>>().ok();
    text.filter(|_| rest.is_empty())
}

fn utf_8() -> String {
    "utf-8".to_owned()
}
