//! `files.delete`: deletes a file, a symlink or a directory.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Ctx, Effects, Fault, Kind as Asked, Text, Tool, ToolError};

use super::{ConfirmFolders, Settings};
use crate::consent::{Deed, agreed};
use crate::world::Root;
use crate::world::root::{Extent, Kind, Sight, Start, Walk, Watch, shown};

/// Key of the confirmation in the call's answers.
const KEY: &str = "files.delete";
/// Most entries counted for the text of the confirmation.
const COUNTED_MAX: u64 = 100_000;

/// The `files.delete` tool.
pub struct Delete {
    root: Root,
    settings: Arc<Settings>,
}

/// Entry to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The file, symlink or directory, relative to the workspace root.
    path: String,
    /// Delete a directory with everything in it.
    #[serde(default)]
    recursive: bool,
    /// Succeed even if nothing exists there.
    #[serde(default)]
    missing_ok: bool,
}

/// Entry that was deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The entry, as the caller named it.
    path: String,
    /// True if it existed.
    deleted: bool,
    /// Number of files and directories deleted.
    entries: u64,
}

impl Delete {
    /// Creates the tool for entries beneath `root`.
    pub fn new(root: &Root, settings: &Arc<Settings>) -> Self {
        Self { root: root.clone(), settings: settings.clone() }
    }

    /// Asks for confirmation before a folder is deleted with everything in it, if settings require
    /// it.
    async fn confirmed(&self, ctx: &Ctx, input: &Input) -> Result<(), ToolError> {
        let is_answered = || ctx.asker.given().contains_key(KEY);
        let asks = input.recursive
            && match self.settings.confirm_folders {
                ConfirmFolders::Always => true,
                ConfirmFolders::WhenAble => ctx.asker.can().has(Asked::Form) || is_answered(),
                ConfirmFolders::Never => false,
            };
        if !asks {
            return Ok(());
        }
        let path = input.path.clone();
        let counted = self.root.work(ctx, move |root, watch| count(root, &path, watch)).await;
        let Some(entries) = counted? else { return Ok(()) };
        let entries = match entries {
            0 => "It is empty".to_owned(),
            1 => "One file or directory is in it".to_owned(),
            entries if entries > COUNTED_MAX => {
                format!("More than {COUNTED_MAX} files and directories are in it")
            }
            entries => format!("{entries} files and directories are in it"),
        };
        let folder = shown(&input.path);
        let deed = Deed {
            key: KEY,
            question: format!(
                "Delete the folder {folder} with all in it? {entries}. There is no undo."
            ),
            what: &format!("deleting the folder {folder}"),
            setting: "files.confirm_folders",
        };
        agreed(ctx, deed).await
    }
}

/// Counts the entries in the directory at `path`. Returns `None` if it is not a directory.
fn count(root: &Root, path: &str, watch: &Watch) -> Result<Option<u64>, ToolError> {
    // Deleting a symlink never deletes its target.
    if !root.look(path).is_ok_and(|look| look.meta.kind() == Kind::Dir) {
        return Ok(None);
    }
    let Start::Folder(folder) = root.start(path)? else { return Ok(None) };
    let everything = Sight { ignored: true, hidden: true };
    let mut walk = Walk::new(root, folder, everything, None, watch)?;
    let mut entries = 0;
    while entries <= COUNTED_MAX && walk.next()?.is_some() {
        entries += 1;
    }
    Ok(Some(entries))
}

impl Tool for Delete {
    const NAME: &'static str = "files.delete";
    const TITLE: &'static str = "Delete";
    const ABOUT: &'static str = "Deletes a file, a symlink (never what it leads to) or an empty \
        directory; with recursive: true a directory and all in it. There is no undo.";
    const EFFECTS: Effects = Effects::Changes;
    const IDEMPOTENT: bool = true;
    const LOOKS_BEFORE: bool = true;
    type Input = Input;
    type Output = Output;

    async fn before(&self, ctx: &Ctx, input: &Input) -> Result<(), ToolError> {
        self.confirmed(ctx, input).await
    }

    async fn run(&self, ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        // The path may have become a folder since `before`. A person is still asked only once.
        self.confirmed(ctx, &input).await?;
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
