//! Files that go through a filter on their way in: where filters do not run, such a file would be
//! kept as it is, which nobody wants.

use toolgate_contract::{Ctx, ToolError};

use super::repository::Repository;
use crate::world::root::shown;

impl Repository<'_> {
    /// Refuses to take in what of `paths` is changed or new and goes through a filter that does
    /// not run.
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
        // What is wrong with the paths is told by whoever takes them in.
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
