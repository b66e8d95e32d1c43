//! Lists the staged files, for the results of the tools that stage and unstage files.

use schemars::JsonSchema;
use serde::Serialize;
use toolgate_contract::{ResultText, ToolContext, ToolError};

use super::repository::GitRepository;
use crate::counted::counted;
use toolgate_world::root::quoted_path;

const FILES_MAX: usize = 500;

/// Changes that a commit would include.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StagedFiles {
    /// Top folder of the repository, in the workspace.
    repository: String,
    /// Staged files, at most 500.
    staged: Vec<StagedFile>,
    /// True if there are more staged files.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StagedFile {
    /// Path from the repository's top folder.
    path: String,
    /// Kind of change: A (new), M (changed), D (deleted) or T (changed type).
    status: char,
}

impl GitRepository<'_> {
    /// Returns the staged files of the repository, at most 500.
    pub(super) async fn list_staged(&self, ctx: &ToolContext) -> Result<StagedFiles, ToolError> {
        let listed =
            self.read_command("diff").args(["--cached", "--name-status", "-z", "--no-renames"]);
        let listed = listed.args(["--no-ext-diff", "--no-color", "--"]).run(ctx).await?;
        let fields = listed.fields();
        let files = fields.chunks_exact(2).filter_map(|pair| {
            // Conflicting files are not staged.
            let status = pair[0].chars().next().filter(|status| *status != 'U')?;
            Some(StagedFile { path: pair[1].clone(), status })
        });
        let mut staged: Vec<StagedFile> = files.collect();
        let truncated = listed.is_truncated() || staged.len() > FILES_MAX;
        staged.truncate(FILES_MAX);
        Ok(StagedFiles { repository: self.top_in_workspace(), staged, truncated })
    }
}

impl StagedFiles {
    /// Formats the list of staged files as text for the caller.
    pub(super) fn text(&self) -> ResultText {
        let line =
            |StagedFile { path, status }: &StagedFile| format!("{status} {}\n", quoted_path(path));
        let text = ResultText::from_body(self.staged.iter().map(line).collect::<String>());
        let within = match &*self.repository {
            "." => String::new(),
            repository => format!(" in {}", quoted_path(repository)),
        };
        match (self.staged.len(), self.truncated) {
            (0, _) => text.with_note(format!("nothing is staged{within}")),
            (count, truncated) => {
                let count = counted(count as u64, "file", "files");
                let more = if truncated { "; there are more" } else { "" };
                text.with_note(format!("{count} staged{within}{more}"))
            }
        }
    }
}
