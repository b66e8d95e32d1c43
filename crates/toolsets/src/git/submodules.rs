//! Finds the submodules of a repository, and determines which of them have changes.
//!
//! If git itself read a submodule, git would obey the submodule's configuration. So toolgate opens
//! and checks each submodule like a repository that a caller names.

use std::path::{Component, Path, PathBuf};
use std::pin::Pin;

use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};

use super::repository::GitRepository;
use toolgate_world::root::quoted_path;

/// The mode that git stores for a submodule in the index.
pub(super) const SUBMODULE_MODE: &str = "160000";
/// The maximum number of submodules of one repository that are checked for changes.
const CHECKED_MAX: usize = 50;

/// The submodules of a repository that have changes or could not be checked.
#[derive(Debug, Default)]
pub(super) struct SubmoduleStates {
    /// The paths of submodules that have changed or untracked files.
    pub(super) changed: Vec<String>,
    /// The paths of submodules that could not be checked.
    pub(super) unchecked: Vec<String>,
}

/// A boxed future that checks the submodules of a repository. Boxed because it also checks nested
/// submodules.
type SubmoduleCheck<'c> =
    Pin<Box<dyn Future<Output = Result<SubmoduleStates, ToolError>> + Send + 'c>>;

/// The result of checking one submodule for changes.
enum SubmoduleState {
    Clean,
    Changed,
    Unchecked,
}

impl GitRepository<'_> {
    /// Checks every submodule that is checked out for changes, at most 50. Untracked files count as
    /// changes if `untracked` is true.
    pub(super) fn check_submodules<'c>(
        &'c self,
        ctx: &'c ToolContext,
        untracked: bool,
    ) -> SubmoduleCheck<'c> {
        Box::pin(async move {
            let mut states = SubmoduleStates::default();
            let mut listed = self.list_submodules(ctx).await?;
            // A submodule that is not checked out has no files.
            listed.retain(|path| self.top_path.join(path).join(".git").symlink_metadata().is_ok());
            for (at, path) in listed.into_iter().enumerate() {
                let state = if at < CHECKED_MAX {
                    self.check_submodule(ctx, &path, untracked).await?
                } else {
                    SubmoduleState::Unchecked
                };
                match state {
                    SubmoduleState::Clean => {}
                    SubmoduleState::Changed => states.changed.push(path),
                    SubmoduleState::Unchecked => states.unchecked.push(path),
                }
            }
            Ok(states)
        })
    }

    /// Refuses a folder inside a submodule that is not checked out, because git would treat the
    /// folder as belonging to this repository. `prefix` is the folder's path relative to the top
    /// folder of the work tree.
    pub(super) async fn refuse_absent_submodule(
        &self,
        ctx: &ToolContext,
        prefix: &str,
    ) -> Result<(), ToolError> {
        let prefix = prefix.trim_end_matches('/');
        let ends = prefix.match_indices('/').map(|(at, _)| at).chain([prefix.len()]);
        let mut folders: Vec<&str> = ends.map(|end| &prefix[..end]).collect();
        folders.retain(|folder| !folder.is_empty());
        for path in folders {
            let listed = self.read_command("ls-files").args(["--stage", "-z", "--", path]);
            let entries = listed.bytes_max(64 << 10).run(ctx).await?.fields();
            if entries.first().and_then(|entry| submodule_path(entry)) == Some(path) {
                return Err(absent_submodule_error(path));
            }
        }
        Ok(())
    }

    /// Refuses `folder` of the workspace if it is inside a submodule that is not checked out. Used
    /// for a repository outside the workspace.
    pub(super) async fn refuse_absent_outside_submodule(
        &self,
        ctx: &ToolContext,
        folder: &str,
    ) -> Result<(), ToolError> {
        let inside = Path::new(folder);
        let inside = inside.strip_prefix(self.git.programs.root.path()).unwrap_or(inside);
        let whole = Path::new(self.workspace_prefix()).join(inside);
        let plain: PathBuf = whole.components().filter(|it| *it != Component::CurDir).collect();
        for at in plain.ancestors().filter(|at| !at.as_os_str().is_empty()) {
            // A folder is in the index only if it is a submodule.
            let named = format!(":{}", at.display());
            let find = self.read_command("rev-parse").args(["--verify", "--quiet", named.as_str()]);
            if find.run_unchecked(ctx).await?.code == 0 {
                return Err(absent_submodule_error(&at.to_string_lossy()));
            }
        }
        Ok(())
    }

    async fn list_submodules(&self, ctx: &ToolContext) -> Result<Vec<String>, ToolError> {
        let listed = self.read_command("ls-files").args(["--stage", "-z"]);
        let entries = listed.bytes_max(64 << 20).run(ctx).await?.fields();
        let mut paths: Vec<String> =
            entries.iter().filter_map(|entry| submodule_path(entry)).map(str::to_owned).collect();
        // In a conflict, the index has several entries for one path.
        paths.dedup();
        Ok(paths)
    }

    async fn check_submodule(
        &self,
        ctx: &ToolContext,
        path: &str,
        untracked: bool,
    ) -> Result<SubmoduleState, ToolError> {
        let folder = self.top_path.join(path);
        let Some(named) = folder.to_str() else { return Ok(SubmoduleState::Unchecked) };
        let opened = match self.git.open_folder(ctx, named).await {
            Ok(opened) if opened.top_path == folder => opened,
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Ok(_) | Err(_) => return Ok(SubmoduleState::Unchecked),
        };
        let untracked_files = if untracked { "normal" } else { "no" };
        let status = opened
            .read_command("status")
            .args(["--porcelain", "-z", "--ignore-submodules=dirty"])
            .arg(format!("--untracked-files={untracked_files}"));
        match status.run(ctx).await {
            Ok(printed) if printed.total_bytes > 0 => return Ok(SubmoduleState::Changed),
            Ok(_) => {}
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            Err(_) => return Ok(SubmoduleState::Unchecked),
        }
        let inner = opened.check_submodules(ctx, untracked).await?;
        Ok(match (inner.changed.is_empty(), inner.unchecked.is_empty()) {
            (false, _) => SubmoduleState::Changed,
            (true, false) => SubmoduleState::Unchecked,
            (true, true) => SubmoduleState::Clean,
        })
    }
}

fn absent_submodule_error(path: &str) -> ToolError {
    ToolError::not_allowed(format!(
        "{} is a submodule that is not checked out, so there is no repository in it; check it out \
         with `git submodule update --init`, which the git tools cannot do",
        quoted_path(path)
    ))
}

/// Returns the path in `entry`, a line of `git ls-files --stage` with mode, hash, stage and path.
/// Returns `None` if the entry is not a submodule.
fn submodule_path(entry: &str) -> Option<&str> {
    let (fields, path) = entry.split_once('\t')?;
    (fields.split(' ').next() == Some(SUBMODULE_MODE)).then_some(path)
}
