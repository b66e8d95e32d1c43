//! `files.exists`: checks if a path exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use toolgate_world::Root;
use toolgate_world::root::{EntryKind, quoted_path};

/// The `files.exists` tool.
pub struct CheckPathExists {
    root: Root,
    /// True if the workspace is on a local disk, so that the check is fast enough for an async
    /// thread.
    is_local: bool,
}

/// Input of `files.exists`: the path to check.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckPathExistsInput {
    /// The path, relative to the workspace root.
    path: String,
}

/// The result of checking a path.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CheckPathExistsOutput {
    /// The path, as given in the call.
    path: String,
    /// True if something exists at the path.
    exists: bool,
    /// Kind of entry. A symlink counts as its target; `symlink` means a broken symlink.
    kind: Option<EntryKind>,
}

impl CheckPathExists {
    /// Creates the tool for paths below `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone(), is_local: root.is_local() }
    }
}

impl Tool for CheckPathExists {
    const NAME: &'static str = "files.exists";
    const TITLE: &'static str = "Check path";
    const DESCRIPTION: &'static str =
        "Check whether a path exists, and whether it is a file or a directory.";
    const EFFECTS: Effects = Effects::Reads;
    const LISTED: bool = false;
    const IDEMPOTENT: bool = true;
    type Input = CheckPathExistsInput;
    type Output = CheckPathExistsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let CheckPathExistsInput { path } = input;
        if self.is_local {
            return exists(&self.root, path);
        }
        self.root.run_blocking(ctx, move |root, _| exists(root, path)).await
    }

    fn result_text(output: &CheckPathExistsOutput) -> ResultText {
        let path = quoted_path(&output.path);
        ResultText::from_body(match output.kind {
            Some(EntryKind::File) => format!("{path} is a file"),
            Some(EntryKind::Dir) => format!("{path} is a directory"),
            Some(EntryKind::Symlink) => {
                format!("{path} is a symlink to something that does not exist")
            }
            Some(EntryKind::Other) => format!("{path} is a pipe, a socket or a device"),
            None => format!("{path} does not exist"),
        })
    }
}

fn exists(root: &Root, path: String) -> Result<CheckPathExistsOutput, ToolError> {
    let kind = root.kind_at(&path)?;
    Ok(CheckPathExistsOutput { path, exists: kind.is_some(), kind })
}
