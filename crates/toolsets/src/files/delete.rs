//! `files.delete`: deletes a file, a symlink or a directory.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{
    Effects, QuestionKind, ResultText, Tool, ToolContext, ToolError, ToolErrorKind,
};

use super::{FileSettings, FolderDeleteConfirmation};
use crate::confirmation::{ConfirmationRequest, ask_confirmation};
use toolgate_world::Root;
use toolgate_world::root::{
    DirectoryOperationScope, DiskWorkMonitor, EntryKind, TreeWalk, WalkFilter, WalkStartPoint,
    quoted_path,
};

/// The key of the question that asks a person to confirm that a folder is deleted.
const CONFIRMATION_KEY: &str = "files.delete";
/// The maximum number of entries that are counted for the text of this question.
const COUNTED_MAX: u64 = 100_000;

/// The `files.delete` tool.
pub struct DeleteEntry {
    root: Root,
    settings: Arc<FileSettings>,
}

/// Input of `files.delete`: the entry to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteEntryInput {
    /// File or directory.
    path: String,
    /// Delete everything in it.
    #[serde(default)]
    recursive: bool,
    /// Succeed even if nothing is there.
    #[serde(default)]
    missing_ok: bool,
}

/// The result of deleting an entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DeleteEntryOutput {
    /// Path of the entry, as given in the call.
    path: String,
    /// True if the entry existed.
    deleted: bool,
    /// Number of files and directories deleted.
    entries: u64,
}

impl DeleteEntry {
    /// Creates the tool for entries below `root`.
    pub fn new(root: &Root, settings: &Arc<FileSettings>) -> Self {
        Self { root: root.clone(), settings: settings.clone() }
    }

    /// Asks a person before a folder is deleted with its content, if the settings require a
    /// confirmation. Fails if the person declines.
    async fn confirm(&self, ctx: &ToolContext, input: &DeleteEntryInput) -> Result<(), ToolError> {
        let is_answered = || ctx.asker.answers().contains_key(CONFIRMATION_KEY);
        let must_ask = input.recursive
            && match self.settings.confirm_folders {
                FolderDeleteConfirmation::Always => true,
                FolderDeleteConfirmation::WhenAble => {
                    ctx.asker.supported().supports(QuestionKind::Form) || is_answered()
                }
                FolderDeleteConfirmation::Never => false,
            };
        if !must_ask {
            return Ok(());
        }
        let path = input.path.clone();
        let counted =
            self.root.run_blocking(ctx, move |root, watch| count_entries(root, &path, watch)).await;
        let Some(entries) = counted? else { return Ok(()) };
        let entries = match entries {
            0 => "It is empty".to_owned(),
            1 => "It contains 1 file or directory".to_owned(),
            entries if entries > COUNTED_MAX => {
                format!("It contains more than {COUNTED_MAX} files and directories")
            }
            entries => format!("It contains {entries} files and directories"),
        };
        let folder = quoted_path(&input.path);
        let request = ConfirmationRequest {
            key: CONFIRMATION_KEY,
            question: format!(
                "Delete the folder {folder} and everything in it? {entries}. There is no undo."
            ),
            action: &format!("deleting the folder {folder}"),
            setting: "files.confirm_folders",
        };
        ask_confirmation(ctx, request).await
    }
}

/// Returns the number of entries below the directory at `path`. Returns `None` if `path` is not a
/// directory.
fn count_entries(
    root: &Root,
    path: &str,
    watch: &DiskWorkMonitor,
) -> Result<Option<u64>, ToolError> {
    // Deleting a symlink never deletes its target.
    if !root.entry_details(path).is_ok_and(|look| look.meta.kind() == EntryKind::Dir) {
        return Ok(None);
    }
    let WalkStartPoint::Folder(folder) = root.walk_start(path)? else { return Ok(None) };
    let everything = WalkFilter { include_ignored: true, include_hidden: true };
    let mut walk = TreeWalk::new(root, folder, everything, None, watch)?;
    let mut entries = 0;
    while entries <= COUNTED_MAX && walk.next_entry()?.is_some() {
        entries += 1;
    }
    Ok(Some(entries))
}

impl Tool for DeleteEntry {
    const NAME: &'static str = "files.delete";
    const TITLE: &'static str = "Delete";
    const DESCRIPTION: &'static str =
        "Delete a file or an empty directory; with `recursive`, any directory. There is no undo.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["missing_ok"];
    const IDEMPOTENT: bool = true;
    const HAS_PREPARE: bool = true;
    type Input = DeleteEntryInput;
    type Output = DeleteEntryOutput;

    async fn prepare(&self, ctx: &ToolContext, input: &DeleteEntryInput) -> Result<(), ToolError> {
        self.confirm(ctx, input).await
    }

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        // The path may have become a folder since `prepare`. A person is still asked only once.
        self.confirm(ctx, &input).await?;
        let scope = if input.recursive {
            DirectoryOperationScope::Tree
        } else {
            DirectoryOperationScope::Entry
        };
        self.root
            .run_blocking(ctx, move |root, watch| {
                let entries = match root.remove(&input.path, scope, watch) {
                    Err(err) if input.missing_ok && err.fault == ToolErrorKind::NotFound => 0,
                    removed => removed?,
                };
                Ok(DeleteEntryOutput { path: input.path, deleted: entries > 0, entries })
            })
            .await
    }

    fn result_text(output: &DeleteEntryOutput) -> ResultText {
        let path = quoted_path(&output.path);
        ResultText::from_body(match output.entries {
            0 => format!("{path} did not exist"),
            1 => format!("deleted {path}"),
            entries => format!("deleted {path}: {entries} files and directories"),
        })
    }
}
