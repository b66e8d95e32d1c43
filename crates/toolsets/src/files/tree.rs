//! `files.tree`: shows a directory and all entries below it as an indented tree.

use std::ffi::OsString;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError, ToolErrorKind};

use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, WalkFilter, WalkFolder, WalkStartPoint, quoted_path,
};

const LIMIT_MAX: usize = 10_000;
const DEPTH_MAX: u32 = 100;

/// The `files.tree` tool.
pub struct ShowDirectoryTree {
    pub(super) root: Root,
}

/// Input of `files.tree`: the directory to show.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowDirectoryTreeInput {
    /// The directory.
    #[serde(default = "crate::input_defaults::here")]
    path: String,
    /// Number of levels.
    #[serde(default = "depth")]
    #[schemars(range(min = 1, max = 100))]
    depth: u32,
    /// Maximum entries to show, shared among the directories.
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = 10_000))]
    limit: usize,
    /// Include ignored files.
    #[serde(default)]
    include_ignored: bool,
}

/// The entries beneath a directory, as a tree.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ShowDirectoryTreeOutput {
    /// The directory, relative to the workspace root.
    path: String,
    /// Entries of the tree. Each directory comes before its content.
    entries: Vec<DirectoryTreeEntry>,
    /// Number of entries left out at the top level.
    left_out: u64,
    /// Number of entries left out, in all directories that were read.
    left_out_total: u64,
    /// True if entries were left out, or were too deep to show.
    truncated: bool,
}

/// One entry of the tree.
#[derive(Debug, Serialize, JsonSchema)]
struct DirectoryTreeEntry {
    /// Path relative to the workspace root.
    path: String,
    /// Kind of entry; symlinks are not followed.
    kind: EntryKind,
    /// Depth, from 1.
    depth: u32,
    /// Number of a directory's entries left out; null if it was not read.
    left_out: Option<u64>,
}

impl Tool for ShowDirectoryTree {
    const NAME: &'static str = "files.tree";
    const TITLE: &'static str = "Show directory tree";
    const DESCRIPTION: &'static str =
        "Show a directory as an indented tree, without what .gitignore excludes.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = crate::files::FOLDER_ALIASES;
    const RARE_ARGUMENTS: &'static [&'static str] = &["limit"];
    const IDEMPOTENT: bool = true;
    type Input = ShowDirectoryTreeInput;
    type Output = ShowDirectoryTreeOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        if input.depth == 0 || input.depth > DEPTH_MAX {
            return Err(ToolError::invalid("/depth", format!("it must be from 1 to {DEPTH_MAX}")));
        }
        if input.limit == 0 || input.limit > LIMIT_MAX {
            return Err(ToolError::invalid("/limit", format!("it must be from 1 to {LIMIT_MAX}")));
        }
        self.root.run_blocking(ctx, move |root, watch| tree(root, &input, watch)).await
    }

    fn result_text(output: &ShowDirectoryTreeOutput) -> ResultText {
        let ShowDirectoryTreeOutput { path, entries, left_out, left_out_total, .. } = output;
        let mut body = format!("{}/\n", escape_line(path));
        // Open directories, each with the number of omitted entries to print when it closes.
        let mut open = vec![(0, *left_out)];
        for entry in entries {
            close_directories(&mut body, &mut open, entry.depth);
            let name = escape_line(entry.path.rsplit('/').next().unwrap_or_default());
            indent(&mut body, entry.depth);
            match (entry.kind, entry.left_out) {
                (EntryKind::Dir, Some(left_out)) => {
                    body += &format!("{name}/\n");
                    open.push((entry.depth, left_out));
                }
                (EntryKind::Dir, None) => body += &format!("{name}/ …\n"),
                (EntryKind::File, _) => body += &format!("{name}\n"),
                (EntryKind::Symlink, _) => body += &format!("{name} (symlink)\n"),
                (EntryKind::Other, _) => body += &format!("{name} (special)\n"),
            }
        }
        close_directories(&mut body, &mut open, 0);
        let mut note = match entries.len() {
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        if *left_out_total > 0 {
            note +=
                &format!(", {left_out_total} left out: raise limit, or list the directory itself");
        }
        if entries.iter().any(|entry| entry.kind == EntryKind::Dir && entry.left_out.is_none()) {
            note += "; … marks directories that were not opened: raise depth, or give their path";
        }
        ResultText::from_body(body).with_note(note)
    }
}

/// A directory of the tree, while its entries are collected. Nodes refer to each other by index.
struct DirectoryTreeNode {
    folder: WalkFolder,
    /// The entries to show. An entry that is a directory also has the index of its node.
    shown: Vec<(OsString, EntryKind, Option<usize>)>,
    left_out: Option<u64>,
}

fn tree(
    root: &Root,
    input: &ShowDirectoryTreeInput,
    watch: &DiskWorkMonitor,
) -> Result<ShowDirectoryTreeOutput, ToolError> {
    let folder = match root.walk_start(&input.path)? {
        WalkStartPoint::Folder(folder) => folder,
        WalkStartPoint::File(_) => {
            let message = format!("{} is a file, not a directory", quoted_path(&input.path));
            return Err(ToolError::invalid("/path", message));
        }
    };
    let filter = WalkFilter { include_ignored: input.include_ignored, include_hidden: true };
    let mut nodes = vec![DirectoryTreeNode { folder, shown: Vec::new(), left_out: None }];
    let mut room = input.limit;
    let mut level = 0..1;
    for _ in 0..input.depth {
        for at in level.clone() {
            if room == 0 {
                break;
            }
            let share = (room / (level.end - at)).max(1);
            let entries = match nodes[at].folder.list(root, filter, watch) {
                Ok(entries) => entries,
                // A directory that vanished or cannot be read is shown closed, unless it is the top
                // one.
                Err(err) if at == 0 || err.fault == ToolErrorKind::Canceled => return Err(err),
                Err(_) => continue,
            };
            nodes[at].left_out = Some(entries.len().saturating_sub(share) as u64);
            for (name, kind) in entries.into_iter().take(share) {
                room -= 1;
                let inner = (kind == EntryKind::Dir).then(|| {
                    let folder = nodes[at].folder.child(&name);
                    nodes.push(DirectoryTreeNode { folder, shown: Vec::new(), left_out: None });
                    nodes.len() - 1
                });
                nodes[at].shown.push((name, kind, inner));
            }
        }
        level = level.end..nodes.len();
    }
    Ok(output(&nodes))
}

/// Converts `nodes`, whose first element is the top directory, to a list of entries in the order of
/// the tree.
fn output(nodes: &[DirectoryTreeNode]) -> ShowDirectoryTreeOutput {
    let mut entries = Vec::new();
    let mut waiting: Vec<(usize, usize)> = vec![(0, 0)];
    while let Some((node, at)) = waiting.pop() {
        let Some((name, kind, inner)) = nodes[node].shown.get(at) else { continue };
        waiting.push((node, at + 1));
        entries.push(DirectoryTreeEntry {
            path: nodes[node].folder.path.join(name).to_string_lossy().into_owned(),
            kind: *kind,
            depth: u32::try_from(waiting.len()).unwrap_or(u32::MAX),
            left_out: inner.and_then(|inner| nodes[inner].left_out),
        });
        if let Some(inner) = inner {
            waiting.push((*inner, 0));
        }
    }
    let top = nodes[0].folder.path.to_string_lossy();
    ShowDirectoryTreeOutput {
        path: if top.is_empty() { ".".to_owned() } else { top.into_owned() },
        entries,
        left_out: nodes[0].left_out.unwrap_or(0),
        left_out_total: nodes.iter().filter_map(|node| node.left_out).sum(),
        truncated: nodes.iter().any(|node| node.left_out != Some(0)),
    }
}

/// Closes the directories in `open` that do not contain an entry at the tree level `depth`: removes
/// them, and writes the number of omitted entries of each to `body`.
fn close_directories(body: &mut String, open: &mut Vec<(u32, u64)>, depth: u32) {
    while let Some((at, left_out)) = open.pop_if(|(at, _)| depth == 0 || *at >= depth) {
        if left_out > 0 {
            indent(body, at + 1);
            *body += &format!("… {left_out} more\n");
        }
    }
}

fn indent(body: &mut String, depth: u32) {
    for _ in 0..depth {
        *body += "  ";
    }
}

fn depth() -> u32 {
    3
}

fn limit() -> usize {
    500
}
