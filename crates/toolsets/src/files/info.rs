//! `files.info`: returns metadata of one entry without its content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use crate::counted::counted;
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryDetails, EntryKind, Etag, quoted_path};

/// The maximum size of a file whose lines are counted, in bytes.
const COUNTED_BYTES_MAX: u64 = 1 << 20;
/// The number of bytes at the start of a file that are examined to detect if it is text.
const SNIFFED_BYTES: u64 = 8 << 10;

/// The `files.info` tool.
pub struct GetFileInfo {
    pub(super) root: Root,
}

/// Input of `files.info`: the entry to describe.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetFileInfoInput {
    /// File or directory.
    path: String,
    /// Return a file's etag, which usually means reading the file.
    #[serde(default = "crate::input_defaults::yes")]
    etag: bool,
}

/// Metadata of a file, a directory or another entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GetFileInfoOutput {
    /// Path of the entry, as given in the call.
    path: String,
    /// Kind of entry; symlinks are not followed.
    kind: EntryKind,
    /// Size in bytes.
    size: u64,
    /// Permission bits in octal, e.g. `0644`.
    mode: String,
    /// Last modification time (RFC 3339).
    mtime: String,
    /// Etag of a file, if requested.
    etag: Option<Etag>,
    /// True if a file looks like UTF-8 text.
    text: Option<bool>,
    /// Number of lines of a text, if small enough to count.
    lines: Option<u64>,
    /// Target of a symlink, as written.
    target: Option<String>,
    /// Kind of entry that a symlink leads to, if the entry is inside the workspace.
    leads_to: Option<EntryKind>,
}

impl Tool for GetFileInfo {
    const NAME: &'static str = "files.info";
    const TITLE: &'static str = "Get file info";
    const DESCRIPTION: &'static str = "Show the kind, size, permissions, time and etag of a path.";
    const EFFECTS: Effects = Effects::Reads;
    const RARE_ARGUMENTS: &'static [&'static str] = &["etag"];
    const IDEMPOTENT: bool = true;
    type Input = GetFileInfoInput;
    type Output = GetFileInfoOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        self.root.run_blocking(ctx, move |root, watch| info(root, input, watch)).await
    }

    fn result_text(output: &GetFileInfoOutput) -> ResultText {
        let GetFileInfoOutput { path, kind, size, mode, mtime, .. } = output;
        let kind = match kind {
            EntryKind::File => "file",
            EntryKind::Dir => "directory",
            EntryKind::Symlink => "symlink",
            EntryKind::Other => "special file",
        };
        let size = counted(*size, "byte", "bytes");
        let mut body =
            format!("{}: {kind}, {size}, mode {mode}, changed {mtime}", quoted_path(path));
        match (output.text, output.lines) {
            (Some(true), Some(lines)) => {
                body += &format!(", text of {}", counted(lines, "line", "lines"));
            }
            (Some(true), None) => body += ", text",
            (Some(false), _) => body += ", not text",
            (None, _) => {}
        }
        if let Some(target) = &output.target {
            body += &format!(", to {}", quoted_path(target));
        }
        let text = ResultText::from_body(body);
        match &output.etag {
            Some(etag) => text.with_note(format!("etag {etag}")),
            None => text,
        }
    }
}

fn info(
    root: &Root,
    input: GetFileInfoInput,
    watch: &DiskWorkMonitor,
) -> Result<GetFileInfoOutput, ToolError> {
    let EntryDetails { meta, target } = root.entry_details(&input.path)?;
    let leads_to = match meta.kind() {
        // The kind of an entry outside the workspace is not revealed.
        EntryKind::Symlink => {
            root.kind_at(&input.path).ok().flatten().filter(|&kind| kind != EntryKind::Symlink)
        }
        EntryKind::File | EntryKind::Dir | EntryKind::Other => None,
    };
    let mut output = GetFileInfoOutput {
        kind: meta.kind(),
        size: meta.size(),
        mode: format!("{:04o}", meta.mode()),
        mtime: meta.mtime().to_string(),
        path: input.path,
        etag: None,
        text: None,
        lines: None,
        target,
        leads_to,
    };
    if output.kind == EntryKind::File {
        let file = root.open_file(&output.path)?;
        let head = file.read(0, SNIFFED_BYTES, watch)?;
        let text = is_text(&head, head.len() as u64 == meta.size());
        output.text = Some(text);
        if text && meta.size() <= COUNTED_BYTES_MAX {
            let last = file.read(meta.size().saturating_sub(1), 1, watch)?;
            let open_line = last.first().is_some_and(|&last| last != b'\n');
            output.lines = Some(file.scan(watch)?.newlines + u64::from(open_line));
        }
        if input.etag {
            output.etag = Some(root.etag(&file, watch)?);
        }
    }
    Ok(output)
}

/// Returns true if a file that begins with the bytes `head` looks like text. `whole` is true if
/// `head` is the complete file.
fn is_text(head: &[u8], whole: bool) -> bool {
    let is_utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(err) => err.error_len().is_none() && !whole,
    };
    is_utf8 && !head.contains(&0)
}
