//! `files.list`: lists the entries of one directory, one page at a time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::cursor;
use crate::counted::counted;
use toolgate_world::Root;
use toolgate_world::root::{DirectoryPage, EntryKind};

const LIMIT_MAX: u64 = 10_000;

/// The `files.list` tool.
pub struct ListDirectory {
    pub(super) root: Root,
}

/// Input of `files.list`: the directory to list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListDirectoryInput {
    /// The directory.
    #[serde(default = "crate::input_defaults::here")]
    path: String,
    /// Maximum entries.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 10_000))]
    limit: u64,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// A page of the entries of a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListDirectoryOutput {
    /// Path of the directory, as given in the call.
    path: String,
    /// Entries in order of name.
    entries: Vec<DirectoryEntry>,
    /// Number of entries after this page.
    left: u64,
    /// Cursor for the next page; null on the last page.
    cursor: Option<String>,
}

/// One entry of a directory.
#[derive(Debug, Serialize, JsonSchema)]
struct DirectoryEntry {
    /// Name of the entry; bytes that are not UTF-8 are shown as U+FFFD.
    name: String,
    /// Kind of entry; symlinks are not followed.
    kind: EntryKind,
    /// Size in bytes.
    size: u64,
    /// Last modification time (RFC 3339).
    mtime: String,
}

impl Tool for ListDirectory {
    const NAME: &'static str = "files.list";
    const TITLE: &'static str = "List directory";
    const DESCRIPTION: &'static str = "List the entries of one directory, ordered by name.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = crate::files::FOLDER_ALIASES;
    const IDEMPOTENT: bool = true;
    type Input = ListDirectoryInput;
    type Output = ListDirectoryOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        if input.limit == 0 || input.limit > LIMIT_MAX {
            return Err(ToolError::invalid("/limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        let question = format!("list {}", input.path);
        let after = cursor::given_cursor(input.cursor.as_deref())
            .map(|given| cursor::decode_cursor(&question, given))
            .transpose()?;
        self.root
            .run_blocking(ctx, move |root, watch| {
                let limit = usize::try_from(input.limit).unwrap_or(usize::MAX);
                let after = after.as_deref().map(OsStr::from_bytes);
                let page = root.list_page(&input.path, after, limit, watch)?;
                Ok(output(input.path, &question, &page))
            })
            .await
    }

    fn result_text(output: &ListDirectoryOutput) -> ResultText {
        let mut body = String::new();
        for DirectoryEntry { name, kind, size, .. } in &output.entries {
            let name = escape_line(name);
            match kind {
                EntryKind::File => body += &format!("{name}  {size}\n"),
                EntryKind::Dir => body += &format!("{name}/\n"),
                EntryKind::Symlink => body += &format!("{name} (symlink)\n"),
                EntryKind::Other => body += &format!("{name} (special)\n"),
            }
        }
        let shown = counted(output.entries.len() as u64, "entry", "entries");
        ResultText::from_body(body).with_note(match &output.cursor {
            Some(cursor) => {
                format!("{shown}, {} more; continue with cursor: {cursor}", output.left)
            }
            None => shown,
        })
    }
}

fn output(path: String, question: &str, page: &DirectoryPage) -> ListDirectoryOutput {
    let last = page.entries.last().filter(|_| page.remaining > 0);
    let cursor = last.map(|(name, _)| cursor::encode_cursor(question, name.as_bytes()));
    let entries = page.entries.iter().map(|(name, meta)| DirectoryEntry {
        name: name.to_string_lossy().into_owned(),
        kind: meta.kind(),
        size: meta.size(),
        mtime: meta.mtime().to_string(),
    });
    ListDirectoryOutput { path, entries: entries.collect(), left: page.remaining, cursor }
}

fn limit() -> u64 {
    500
}
