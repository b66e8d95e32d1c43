//! Refuses files that need a filter that may not run, because they would be stored unfiltered.

use toolgate_contract::{ToolContext, ToolError};

use super::repository::GitRepository;
use toolgate_world::root::quoted_path;

impl GitRepository<'_> {
    /// Refuses `paths` if a changed or new file in them needs a filter that may not run.
    pub(super) async fn refuse_filtered(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<(), ToolError> {
        if self.disabled_filters.is_empty() {
            return Ok(());
        }
        let changed = self.read_command("ls-files");
        let changed = changed.args(["-z", "--modified", "--others", "--exclude-standard", "--"]);
        // The command that stages the paths reports errors in them.
        let changed = changed.args(paths).bytes_max(64 << 20).run_unchecked(ctx).await?.stdout;
        let told = self.read_command("check-attr").args(["-z", "--stdin", "filter"]).stdin(changed);
        let fields = told.bytes_max(128 << 20).run(ctx).await?.fields();
        let filtered = fields
            .chunks_exact(3)
            .find(|told| self.disabled_filters.iter().any(|it| *it == told[2]));
        match filtered {
            None => Ok(()),
            Some(told) => Err(ToolError::not_allowed(format!(
                "{} goes through the filter {}, a program that is not run here; leave the file \
                 out, or have whoever runs the server set `git.filters`",
                quoted_path(&told[0]),
                quoted_path(&told[2])
            ))),
        }
    }
}
