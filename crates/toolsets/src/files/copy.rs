//! `files.copy`: copies a file or directory.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::FileSettings;
use crate::counted::counted;
use toolgate_world::Root;
use toolgate_world::root::{
    DestinationConflict, DirectoryOperationScope, EntryCopyOptions, EntryCopyTotals,
    MissingParentPolicy, quoted_path,
};

/// The `files.copy` tool.
pub struct CopyEntry {
    pub(super) root: Root,
    pub(super) settings: Arc<FileSettings>,
}

/// Input of `files.copy`: the entry to copy and the path of the copy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyEntryInput {
    /// File or directory.
    source: String,
    /// Path of the copy, with its name.
    destination: String,
    /// Copy a directory.
    #[serde(default)]
    recursive: bool,
    /// Replace an existing file.
    #[serde(default)]
    overwrite: bool,
    /// Create missing directories on the way to the destination.
    #[serde(default = "crate::input_defaults::yes")]
    mkdirs: bool,
}

/// The result of copying an entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CopyEntryOutput {
    /// Path of the original.
    source: String,
    /// Path of the copy.
    destination: String,
    /// Number of files and directories copied.
    entries: u64,
    /// Number of bytes in the copied files.
    bytes: u64,
    /// Number of pipes, sockets and devices left out.
    skipped: u64,
}

impl Tool for CopyEntry {
    const NAME: &'static str = "files.copy";
    const TITLE: &'static str = "Copy";
    const DESCRIPTION: &'static str = "Copy a file, or with `recursive` a directory.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["mkdirs"];
    type Input = CopyEntryInput;
    type Output = CopyEntryOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let options = EntryCopyOptions {
            scope: if input.recursive {
                DirectoryOperationScope::Tree
            } else {
                DirectoryOperationScope::Entry
            },
            conflict: if input.overwrite {
                DestinationConflict::Replace
            } else {
                DestinationConflict::Refuse
            },
            parents: if input.mkdirs {
                MissingParentPolicy::Make
            } else {
                MissingParentPolicy::Require
            },
            bytes_max: self.settings.limits.copy_bytes_max,
        };
        // The size is known only after the copy, so this only checks that some budget is left.
        ctx.write_budget.reserve(0)?;
        let spent = ctx.write_budget.clone();
        self.root
            .run_blocking(ctx, move |root, watch| {
                let CopyEntryInput { source, destination, .. } = input;
                let EntryCopyTotals { entries, bytes, skipped } =
                    root.copy(&source, &destination, options, watch)?;
                spent.charge(bytes);
                Ok(CopyEntryOutput { source, destination, entries, bytes, skipped })
            })
            .await
    }

    fn result_text(output: &CopyEntryOutput) -> ResultText {
        let CopyEntryOutput { source, destination, entries, bytes, skipped } = output;
        let text = ResultText::from_body(format!(
            "copied {} to {}",
            quoted_path(source),
            quoted_path(destination)
        ));
        let left_out = match skipped {
            0 => String::new(),
            skipped => {
                let skipped =
                    counted(*skipped, "pipe, socket or device", "pipes, sockets or devices");
                format!("; {skipped} left out")
            }
        };
        let entries = counted(*entries, "file or directory", "files and directories");
        let bytes = counted(*bytes, "byte", "bytes");
        text.with_note(format!("{entries}, {bytes}{left_out}"))
    }
}
