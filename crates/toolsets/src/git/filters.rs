//! Refuses files that need a git filter which may not run, because git would store such files
//! unfiltered.

use toolgate_contract::{ToolContext, ToolError};

use super::repository::GitRepository;
use toolgate_world::root::quoted_path;

impl GitRepository<'_> {
    /// Refuses `paths` if they contain a changed or new file that needs a git filter which the
    /// settings do not allow to run.
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
        let list = self.read_command("check-attr").args(["-z", "--stdin", "filter"]).stdin(changed);
        let fields = list.bytes_max(128 << 20).run(ctx).await?.fields();
        let filtered = fields
            .chunks_exact(3)
            .find(|entry| self.disabled_filters.iter().any(|filter| *filter == entry[2]));
        match filtered {
            None => Ok(()),
            Some(entry) => Err(ToolError::not_allowed(format!(
                "{} needs the filter {}, a program that this server does not run; leave the file \
                 out, or have the server's operator add `filters` to `git.programs`",
                quoted_path(&entry[0]),
                quoted_path(&entry[2])
            ))),
        }
    }
}
