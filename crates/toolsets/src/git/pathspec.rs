//! Validates the paths in a repository that callers name.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use toolgate_contract::{ToolContext, ToolError};

use super::repository::GitRepository;
use toolgate_world::Root;
use toolgate_world::root::quoted_path;

const PATHS_MAX: usize = 10_000;
/// The maximum number of paths whose existence is checked if git prints nothing about them.
const CHECKED_PATHS_MAX: usize = 20;

impl GitRepository<'_> {
    /// Returns `path` relative to the top folder of the work tree. The returned path names exactly
    /// one file or folder, without glob characters.
    ///
    /// # Errors
    /// Fails if `path` is empty, contains NUL or leads out of the repository. `pointer` is the JSON
    /// Pointer of `path` in the tool's input.
    pub(super) fn resolve_path(&self, path: &str, pointer: &str) -> Result<String, ToolError> {
        let invalid = |message: String| Err(ToolError::invalid(pointer, message));
        if path.trim().is_empty() {
            return invalid("the path is empty; `.` is the whole repository".to_owned());
        }
        if path.contains('\0') {
            return invalid("the path contains a NUL character".to_owned());
        }
        let top = self.top_path.to_str().unwrap_or_default();
        let inside = match path.strip_prefix(top) {
            Some(rest) if path.starts_with('/') && (rest.is_empty() || rest.starts_with('/')) => {
                rest.trim_start_matches('/')
            }
            Some(_) | None => path,
        };
        normalize_path(inside).ok_or_else(|| {
            ToolError::not_allowed(format!(
                "{} is outside the repository; paths are relative to its top folder, as in \
                 git_status",
                quoted_path(path)
            ))
        })
    }

    /// Validates each of `paths` like [`Self::resolve_path`], and returns them relative to the top
    /// folder of the work tree.
    pub(super) fn resolve_paths(
        &self,
        paths: &[String],
        pointer: &str,
    ) -> Result<Vec<String>, ToolError> {
        if paths.len() > PATHS_MAX {
            let message = format!(
                "{} paths are too many (limit {PATHS_MAX}); name folders \
                 instead",
                paths.len()
            );
            return Err(ToolError::invalid(pointer, message));
        }
        let at = paths.iter().enumerate();
        at.map(|(at, path)| self.resolve_path(path, &format!("{pointer}/{at}"))).collect()
    }

    /// Checks that each of `paths` exists in the work tree, the index or any commit, and belongs to
    /// this repository and not to a repository inside it.
    ///
    /// Git treats an unknown path as a file without changes. At most 20 paths are checked.
    pub(super) async fn refuse_unknown_paths(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<(), ToolError> {
        self.refuse_inner_paths_without_history(ctx, paths).await?;
        let root = &self.git.programs.root;
        let top = self.top_below_root();
        for path in paths.iter().take(CHECKED_PATHS_MAX).filter(|path| *path != ".") {
            let in_workspace = if top.is_empty() { path.clone() } else { format!("{top}/{path}") };
            // If the check fails, the path counts as existing.
            let kind =
                root.run_blocking(ctx, move |root, _| Ok(root.kind_at(&in_workspace))).await?;
            if !matches!(kind, Ok(None)) {
                continue;
            }
            if self.is_in_history(ctx, path).await? {
                continue;
            }
            let staged = self.read_command("ls-files").args(["-z", "--", path]).run(ctx).await?;
            if staged.total_bytes > 0 {
                continue;
            }
            let top = match &*top {
                "" => "the workspace".to_owned(),
                top => quoted_path(top),
            };
            return Err(ToolError::not_found(format!(
                "{} does not exist; paths are relative to the top folder of the repository, {top}",
                quoted_path(path)
            )));
        }
        Ok(())
    }
}

impl GitRepository<'_> {
    /// Refuses paths in a repository inside this repository, such as a submodule, unless this
    /// repository tracks these paths. Git would report no files for them.
    ///
    /// At most 20 such paths are checked.
    pub(super) async fn refuse_inner_paths(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<(), ToolError> {
        let inner = self.untracked_inner_paths(ctx, paths).await?;
        inner.first().map_or(Ok(()), |path| Err(path.to_error()))
    }

    /// Refuses paths in a repository inside this repository, unless this repository tracks the
    /// paths or has a commit that changes them. Such a commit is older than the inner repository.
    ///
    /// At most 20 such paths are checked.
    pub(super) async fn refuse_inner_paths_without_history(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<(), ToolError> {
        for inner in self.untracked_inner_paths(ctx, paths).await? {
            if !self.is_in_history(ctx, &inner.path).await? {
                return Err(inner.to_error());
            }
        }
        Ok(())
    }

    /// Returns those of `paths` that are in a repository inside this repository and that this
    /// repository does not track, at most 20.
    async fn untracked_inner_paths(
        &self,
        ctx: &ToolContext,
        paths: &[String],
    ) -> Result<Vec<NestedRepositoryPath>, ToolError> {
        let (top, named) = (self.top_below_root(), paths.to_vec());
        let root = &self.git.programs.root;
        let inner =
            root.run_blocking(ctx, move |root, _| Ok(find_inner_paths(root, &top, &named))).await?;
        let mut untracked = Vec::new();
        for inner in inner {
            let tracked = self.read_command("ls-files").args(["-z", "--", inner.path.as_str()]);
            let tracked = tracked.run_unchecked(ctx).await?;
            if tracked.code != 0 || tracked.total_bytes == 0 {
                untracked.push(inner);
            }
        }
        Ok(untracked)
    }

    /// Returns true if a commit that is reachable from a branch or tag changes `path`.
    async fn is_in_history(&self, ctx: &ToolContext, path: &str) -> Result<bool, ToolError> {
        let changing = self.read_command("rev-list").args(["--max-count=1", "--all", "--", path]);
        Ok(changing.run(ctx).await?.total_bytes > 0)
    }

    /// Returns the path of the top folder of the work tree, relative to the workspace. Returns an
    /// empty path for the workspace itself.
    fn top_below_root(&self) -> String {
        let root = self.git.programs.root.path();
        let top = self.top_path.strip_prefix(root).unwrap_or(Path::new(""));
        top.to_string_lossy().into_owned()
    }
}

/// A path in an inner repository, which is inside the repository that the caller named.
struct NestedRepositoryPath {
    /// The path relative to the top folder of the repository that the caller named.
    path: String,
    /// The folder of the inner repository, relative to the workspace.
    repository: String,
    /// The path relative to the folder of the inner repository.
    rest: String,
}

impl NestedRepositoryPath {
    fn to_error(&self) -> ToolError {
        ToolError::not_found(format!(
            "{} is in another repository; name {} in `repo`, and the path {}",
            quoted_path(&self.path),
            quoted_path(&self.repository),
            quoted_path(&self.rest)
        ))
    }
}

/// Returns those of `paths` that are in an inner repository, at most 20. The paths are relative to
/// `top`, a folder of the workspace.
fn find_inner_paths(root: &Root, top: &str, paths: &[String]) -> Vec<NestedRepositoryPath> {
    let mut known: BTreeMap<&Path, bool> = BTreeMap::new();
    let mut found = Vec::new();
    for path in paths {
        let mut above = Path::new(path).ancestors().skip(1).filter(|at| !at.as_os_str().is_empty());
        let repository = above.find(|folder| {
            *known.entry(*folder).or_insert_with(|| {
                let git = Path::new(top).join(folder).join(".git");
                git.to_str().is_some_and(|git| matches!(root.kind_at(git), Ok(Some(_))))
            })
        });
        let Some(folder) = repository else { continue };
        let rest = Path::new(path).strip_prefix(folder).unwrap_or(Path::new(""));
        found.push(NestedRepositoryPath {
            path: path.clone(),
            repository: Path::new(top).join(folder).to_string_lossy().into_owned(),
            rest: rest.to_string_lossy().into_owned(),
        });
        if found.len() == CHECKED_PATHS_MAX {
            break;
        }
    }
    found
}

/// Resolves `.` and `..` in the relative path `path`. Returns `None` if `path` is absolute or leads
/// above its start.
fn normalize_path(path: &str) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => names.push(name.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => drop(names.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(if names.is_empty() { ".".to_owned() } else { names.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_out_of_the_repository_is_refused() {
        let check = |path| normalize_path(path);
        assert_eq!(check("a/./b/../c").as_deref(), Some("a/c"));
        assert_eq!(check("").as_deref(), Some("."));
        assert_eq!(check("a/..").as_deref(), Some("."));
        assert_eq!(check("--force").as_deref(), Some("--force"));
        assert_eq!(check(":(top)*").as_deref(), Some(":(top)*"));
        for path in ["..", "a/../../b", "/etc/passwd", "./../x"] {
            assert_eq!(check(path), None, "{path}");
        }
    }
}
