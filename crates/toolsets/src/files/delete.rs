//! `files.delete`: a file, a symlink or a directory removed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Fault, Text, Tool, ToolError};

use crate::world::Root;
use crate::world::root::{Extent, shown};

/// Deletes one entry.
pub struct Delete {
    root: Root,
}

/// What to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The file, symlink or directory, relative to the workspace root.
    path: String,
    /// Delete a directory with all in it.
    #[serde(default)]
    recursive: bool,
    /// Take it as done if nothing is there.
    #[serde(default)]
    missing_ok: bool,
}

/// What was deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// What was named.
    path: String,
    /// Whether it was there.
    deleted: bool,
    /// How many files and directories are gone.
    entries: u64,
}

impl Delete {
    /// The tool for entries beneath `root`.
    pub fn new(root: &Root) -> Self {
        Self { root: root.clone() }
    }
}

impl Tool for Delete {
    const NAME: &'static str = "files.delete";
    const TITLE: &'static str = "Delete";
    const ABOUT: &'static str = "Deletes a file, a symlink (never what it leads to) or an empty \
        directory; with recursive: true a directory and all in it. There is no undo.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        let extent = if input.recursive { Extent::Tree } else { Extent::Entry };
        self.root
            .work(ctx, move |root, watch| {
                let entries = match root.remove(&input.path, extent, watch) {
                    Err(err) if input.missing_ok && err.fault == Fault::NotFound => 0,
                    removed => removed?,
                };
                Ok(Output { path: input.path, deleted: entries > 0, entries })
            })
            .await
    }

    fn text(output: &Output) -> Text {
        let path = shown(&output.path);
        Text::body(match output.entries {
            0 => format!("{path} was not there"),
            1 => format!("deleted {path}"),
            entries => format!("deleted {path}: {entries} files and directories"),
        })
    }
}
