//! `files.move`: moves or renames a file, directory or symlink.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use toolgate_world::Root;
use toolgate_world::root::{DestinationConflict, EntryKind, MissingParentPolicy, quoted_path};

/// The `files.move` tool.
pub struct MoveEntry {
    pub(super) root: Root,
}

/// Input of `files.move`: the entry to move and its new path.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveEntryInput {
    /// File or directory.
    source: String,
    /// New path, with the name.
    destination: String,
    /// Replace an existing file.
    #[serde(default)]
    overwrite: bool,
    /// Create missing directories on the way to the destination.
    #[serde(default = "crate::input_defaults::yes")]
    mkdirs: bool,
}

/// The result of moving an entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MoveEntryOutput {
    /// Old path.
    source: String,
    /// New path.
    destination: String,
    /// Kind of entry.
    kind: EntryKind,
}

impl Tool for MoveEntry {
    const NAME: &'static str = "files.move";
    const TITLE: &'static str = "Move or rename";
    const DESCRIPTION: &'static str = "Move or rename a file, directory or symlink.";
    const EFFECTS: Effects = Effects::Changes;
    const RARE_ARGUMENTS: &'static [&'static str] = &["mkdirs"];
    type Input = MoveEntryInput;
    type Output = MoveEntryOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let conflict = if input.overwrite {
            DestinationConflict::Replace
        } else {
            DestinationConflict::Refuse
        };
        let parents =
            if input.mkdirs { MissingParentPolicy::Make } else { MissingParentPolicy::Require };
        self.root
            .run_blocking(ctx, move |root, watch| {
                let MoveEntryInput { source, destination, .. } = input;
                let kind = root.rename(&source, &destination, conflict, parents, watch)?;
                Ok(MoveEntryOutput { source, destination, kind })
            })
            .await
    }

    fn result_text(output: &MoveEntryOutput) -> ResultText {
        let MoveEntryOutput { source, destination, .. } = output;
        ResultText::from_body(format!(
            "moved {} to {}",
            quoted_path(source),
            quoted_path(destination)
        ))
    }
}
