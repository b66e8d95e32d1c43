//! Refuses files that need a filter that may not run, because they would be stored unfiltered.

use toolgate_contract::{Ctx, ToolError};

use super::repository::Repository;
use crate::world::root::shown;

impl Repository<'_> {
    /// Refuses `paths` if a changed or new file in them needs a filter that may not run.
    pub(super) async fn refuse_filtered(
        &self,
        ctx: &Ctx,
        paths: &[String],
    ) -> Result<(), ToolError> {
        if self.idle_filters.is_empty() {
            return Ok(());
        }
        let changed = self.read("ls-files");
        let changed = changed.args(["-z", "--modified", "--others", "--exclude-standard", "--"]);
        // The command that stages the paths reports errors in them.
        let changed = changed.args(paths).bytes_max(64 << 20).attempt(ctx).await?.stdout;
        let told = self.read("check-attr").args(["-z", "--stdin", "filter"]).stdin(changed);
        let fields = told.bytes_max(128 << 20).run(ctx).await?.fields();
        let filtered =
            fields.chunks_exact(3).find(|told| self.idle_filters.iter().any(|it| *it == told[2]));
        match filtered {
            None => Ok(()),
            Some(told) => Err(ToolError::not_allowed(format!(
                "{} goes through the filter {}, a program that is not run here; leave the file \
                 out, or have whoever runs the server set `git.filters`",
                shown(&told[0]),
                shown(&told[2])
            ))),
        }
    }
}
