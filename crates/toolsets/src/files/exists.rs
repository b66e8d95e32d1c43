//! `files.exists`: checks if a path exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Kind, shown};

/// The `files.exists` tool.
pub struct Exists {
    root: Root,
    /// Set if the check may run on the async thread, because the disk is local.
    is_local: bool,
}

/// Path to check.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The path, relative to the workspace root.
    path: String,
}

/// Result of the check.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The path, as the caller named it.
    path: String,
    /// True if something exists there.
    exists: bool,
    /// Kind of entry, symlinks followed; `symlink` if it leads nowhere.
    kind: Option<Kind>,
}

impl Exists {
    /// Creates the tool for paths beneath `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone(), is_local: root.is_local() }
    }
}

impl Tool for Exists {
    const NAME: &'static str = "files.exists";
    const TITLE: &'static str = "Check path";
    const ABOUT: &'static str =
        "Tells whether a path exists and whether it is a file or a directory.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let Input { path } = input;
        if self.is_local {
            return exists(&self.root, path);
        }
        self.root.work(ctx, move |root, _| exists(root, path)).await
    }

    fn text(output: &Output) -> Text {
        let path = shown(&output.path);
        Text::body(match output.kind {
            Some(Kind::File) => format!("{path} is a file"),
            Some(Kind::Dir) => format!("{path} is a directory"),
            Some(Kind::Symlink) => format!("{path} is a symlink to something that does not exist"),
            Some(Kind::Other) => format!("{path} is a pipe, a socket or a device"),
            None => format!("{path} does not exist"),
        })
    }
}

fn exists(root: &Root, path: String) -> Result<Output, ToolError> {
    let kind = root.exists(&path)?;
    Ok(Output { path, exists: kind.is_some(), kind })
}
