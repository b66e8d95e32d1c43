//! Refuses to stage a repository that is inside another repository. Once such an inner repository
//! is staged, git reads it and obeys its configuration, for everyone who runs git in the outer one.

use toolgate_contract::{ToolContext, ToolError};

use super::repository::GitRepository;
use super::submodules::SUBMODULE_MODE;
use toolgate_world::root::quoted_path;

impl GitRepository<'_> {
    /// Refuses `paths` if they contain an inner repository that this repository does not track yet.
    pub(super) async fn refuse_nested(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<(), ToolError> {
        let new =
            self.read_command("ls-files").args(["-z", "--others", "--exclude-standard", "--"]);
        // The command that stages the paths reports errors in them.
        let new = new.args(paths).bytes_max(64 << 20).run_unchecked(ctx).await?.fields();
        // Git lists the files in an ordinary folder, but a repository as one entry with a trailing
        // `/`.
        match new.iter().find(|path| path.ends_with('/')) {
            None => Ok(()),
            Some(path) => Err(nested_error(path.trim_end_matches('/'))),
        }
    }

    /// Unstages every inner repository that the last commit does not contain, and fails if one was
    /// staged. Another program may have created it after [`Self::refuse_nested`] checked the paths.
    pub(super) async fn unstage_nested(&self, ctx: &ToolContext) -> Result<(), ToolError> {
        let staged = self.read_command("diff").args(["--cached", "--raw", "-z", "--no-renames"]);
        let staged = staged.args(["--no-ext-diff", "--ignore-submodules=none", "--"]);
        let staged = staged.bytes_max(64 << 20).run(ctx).await?.fields();
        let nested = staged.chunks_exact(2).filter(|change| {
            let mut modes = change[0].trim_start_matches(':').split(' ');
            modes.next() != Some(SUBMODULE_MODE) && modes.next() == Some(SUBMODULE_MODE)
        });
        let nested: Vec<&String> = nested.map(|change| &change[1]).collect();
        let Some(first) = nested.first() else { return Ok(()) };
        self.change_command("reset")
            .args(["--quiet", "--"])
            .args(nested.iter().copied())
            .run(ctx)
            .await?;
        Err(nested_error(first))
    }
}

fn nested_error(path: &str) -> ToolError {
    let path = quoted_path(path);
    ToolError::not_allowed(format!(
        "{path} is a repository and cannot be added to another one, because its configuration \
         could then run programs; name it in `repo` to stage its files, or leave it out"
    ))
}
