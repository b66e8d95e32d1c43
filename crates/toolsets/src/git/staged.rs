//! Lists the staged files for the tools that stage.

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{Ctx, Text, ToolError};

use super::repository::Repository;
use crate::world::root::shown;

const FILES_MAX: usize = 500;

/// Changes that a commit would include.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Staged {
    /// Staged files, at most 500.
    staged: Vec<File>,
    /// True if there are more.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct File {
    /// Path from the repository's top folder.
    path: String,
    /// A for new, M for changed, D for deleted, T for a changed type.
    status: char,
}

impl Repository<'_> {
    /// Lists the staged files, at most 500.
    pub(super) async fn staged(&self, ctx: &Ctx) -> Result<Staged, ToolError> {
        let listed = self.read("diff").args(["--cached", "--name-status", "-z", "--no-renames"]);
        let listed = listed.args(["--no-ext-diff", "--no-color", "--"]).run(ctx).await?;
        let fields = listed.fields();
        let files = fields.chunks_exact(2).filter_map(|pair| {
            // Conflicting files are not staged.
            let status = pair[0].chars().next().filter(|status| *status != 'U')?;
            Some(File { path: pair[1].clone(), status })
        });
        let mut staged: Vec<File> = files.collect();
        let truncated = listed.is_cut() || staged.len() > FILES_MAX;
        staged.truncate(FILES_MAX);
        Ok(Staged { staged, truncated })
    }
}

impl Staged {
    /// Formats the list as text for the caller.
    pub(super) fn text(&self) -> Text {
        let line = |File { path, status }: &File| format!("{status} {}\n", shown(path));
        let text = Text::body(self.staged.iter().map(line).collect::<String>());
        match (self.staged.len(), self.truncated) {
            (0, _) => text.with_note("nothing is staged"),
            (_, true) => text.with_note("staged; there are more"),
            (count, false) => text.with_note(format!("{count} staged")),
        }
    }
}
