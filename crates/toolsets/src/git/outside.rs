//! The repository of a workspace that is a linked worktree, a submodule or a subfolder of that
//! repository.
//!
//! The `.git` folder of such a repository is outside the workspace. The setting `git.outside`
//! allows its use. The `.git` folder must belong to the workspace's owner, and the repository must
//! itself name the workspace as its worktree or submodule. A `.git` file in the workspace can
//! therefore not select an unrelated repository.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use toolgate_contract::{ToolContext, ToolError};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind, quoted_path};
use toolgate_world::sandbox::OutsideRepositoryPath;

use super::GitContext;
use super::command::{GitCommand, GitConfigScope};
use super::configuration::GitConfig;
use super::settings::OutsideRepositoryAccess;

/// The maximum number of bytes that are read of a `.git` file, which contains the path of a `.git`
/// folder.
pub(super) const LINK_BYTES_MAX: u64 = 8 << 10;
/// Entries of the shared `.git` folder that git cannot write in a linked worktree: settings that
/// can name programs, and the state of the other worktrees. Submodules and subfolders protect only
/// the first five.
const KEPT_ENTRIES: [&str; 8] =
    ["config", "config.worktree", "hooks", "info", "modules", "HEAD", "index", "worktrees"];
/// The names of files with git rules. Such files in the parent folders of a subfolder also apply to
/// the subfolder.
const RULE_FILES: [&str; 2] = [".gitignore", ".gitattributes"];

/// The relation of a workspace to the git repository outside the workspace to which it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkspaceRepositoryRelation {
    LinkedWorktree,
    Submodule,
    Subfolder,
}

/// A git repository whose `.git` folder is outside the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutsideRepository {
    pub(super) kind: WorkspaceRepositoryRelation,
    /// The absolute path of the top folder of the work tree, which is the workspace or a parent
    /// folder of the workspace.
    pub(super) work_tree: PathBuf,
    /// The absolute path of the repository's `.git` folder. For a linked worktree, this is the
    /// worktree's own folder inside the shared `.git` folder.
    pub(super) git_dir: PathBuf,
    /// The absolute path of the `.git` folder that all worktrees of the repository share.
    pub(super) common_dir: PathBuf,
    /// The path of the workspace relative to the top folder of the work tree, with a slash at its
    /// end. Empty if the workspace is the top folder.
    pub(super) prefix: String,
}

impl OutsideRepository {
    /// Finds the outside repository to which the workspace `root` belongs. Returns `None` if the
    /// workspace contains its own `.git` folder, is a bare repository, or belongs to no repository.
    pub(super) fn find(root: &Root) -> Option<Self> {
        if is_bare_repository(root, ".") {
            return None;
        }
        let workspace = root.path();
        let top = workspace.ancestors().find(|at| at.join(".git").symlink_metadata().is_ok())?;
        let link = top.join(".git");
        let is_folder = link.symlink_metadata().ok()?.is_dir();
        let git_dir = match (is_folder, top == workspace) {
            (true, true) => return None,
            (true, false) => link,
            (false, true) => {
                let link = root.open_file(".git").ok()?;
                let link = link.read(0, LINK_BYTES_MAX, &DiskWorkMonitor::default()).ok()?;
                linked_folder(workspace, &link)?
            }
            (false, false) => linked_folder(top, &read_link_above(&link)?)?,
        };
        if git_dir.starts_with(workspace) {
            return None;
        }
        let worktrees = git_dir.parent().filter(|parent| parent.ends_with("worktrees"));
        let common_dir = worktrees.and_then(Path::parent).unwrap_or(git_dir.as_path()).to_owned();
        let kind = match (top == workspace, worktrees) {
            (false, _) => WorkspaceRepositoryRelation::Subfolder,
            (true, Some(_)) => WorkspaceRepositoryRelation::LinkedWorktree,
            (true, None) => WorkspaceRepositoryRelation::Submodule,
        };
        let inside = workspace.strip_prefix(top).ok()?.to_str()?;
        let prefix = if inside.is_empty() { String::new() } else { format!("{inside}/") };
        Some(Self { kind, work_tree: top.to_owned(), git_dir, common_dir, prefix })
    }

    /// Returns the path by which results name the repository. For a submodule, this is the path of
    /// its work tree.
    pub(super) fn shown_path(&self) -> String {
        match self.kind {
            WorkspaceRepositoryRelation::Submodule => self.work_tree.to_string_lossy().into_owned(),
            WorkspaceRepositoryRelation::LinkedWorktree
            | WorkspaceRepositoryRelation::Subfolder => self.owner_path(),
        }
    }

    /// Returns the path of the repository to which the workspace belongs. For a submodule, this is
    /// the repository that contains the submodule.
    fn owner_path(&self) -> String {
        let shown = self.common_dir.to_string_lossy();
        match shown.split_once("/.git/") {
            Some((repository, _)) => repository.to_owned(),
            None => shown.strip_suffix("/.git").unwrap_or(&shown).to_owned(),
        }
    }

    /// Describes the relation of the workspace to the repository, such as "a submodule of the
    /// repository …".
    pub(super) fn describe(&self) -> String {
        let kind = match self.kind {
            WorkspaceRepositoryRelation::LinkedWorktree => "a linked worktree",
            WorkspaceRepositoryRelation::Submodule => "a submodule",
            WorkspaceRepositoryRelation::Subfolder => "a subfolder",
        };
        format!("{kind} of the repository {}", quoted_path(&self.owner_path()))
    }

    /// Returns the paths of the repository that git can see in its sandbox. If `writes` is true,
    /// git can write to most of them.
    pub(super) fn places(&self, writes: bool) -> Vec<OutsideRepositoryPath> {
        let place = |path: PathBuf, is_writable| OutsideRepositoryPath { path, is_writable };
        let mut places = vec![place(self.common_dir.clone(), writes)];
        if writes {
            let kept: &[&str] = match self.kind {
                WorkspaceRepositoryRelation::LinkedWorktree => &KEPT_ENTRIES,
                WorkspaceRepositoryRelation::Submodule | WorkspaceRepositoryRelation::Subfolder => {
                    &KEPT_ENTRIES[..5]
                }
            };
            places.extend(kept.iter().map(|name| place(self.common_dir.join(name), false)));
            if self.git_dir != self.common_dir {
                places.push(place(self.git_dir.clone(), true));
                places.push(place(self.git_dir.join("config.worktree"), false));
            }
        }
        // The workspace shows its own files.
        let mut above = self.work_tree.clone();
        for name in self.prefix.trim_end_matches('/').split('/').filter(|name| !name.is_empty()) {
            places.extend(RULE_FILES.map(|file| place(above.join(file), false)));
            above.push(name);
        }
        places
    }
}

/// Returns true if `folder` of the workspace is a bare repository. Such a folder does not belong to
/// the repository around it.
pub(super) fn is_bare_repository(root: &Root, folder: &str) -> bool {
    let has = |name: &str, expected: EntryKind| {
        let at = Path::new(folder).join(name);
        let kind = at.to_str().map(|at| root.kind_at(at));
        matches!(kind, Some(Ok(Some(kind))) if kind == expected)
    };
    has("HEAD", EntryKind::File) && has("objects", EntryKind::Dir) && has("refs", EntryKind::Dir)
}

/// Reads the `.git` file at `link`, which is in a parent folder of the workspace. Git itself also
/// follows this file. Returns `None` if there is no such file.
#[allow(clippy::disallowed_methods, reason = "the file is outside the root")]
fn read_link_above(link: &Path) -> Option<Vec<u8>> {
    // Opening a pipe would block.
    link.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    let file = std::fs::File::open(link).ok()?;
    let mut content = Vec::new();
    file.take(LINK_BYTES_MAX).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Returns the path of the folder that is named in `link`, the content of a `.git` file in
/// `folder`.
pub(super) fn linked_folder(folder: &Path, link: &[u8]) -> Option<PathBuf> {
    let link = String::from_utf8_lossy(link);
    let target = link.strip_prefix("gitdir:")?.trim();
    Some(without_parent_names(&folder.join(target)))
}

/// Removes `..` from an absolute path without following symlinks.
pub(super) fn without_parent_names(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else if part != Component::CurDir {
            plain.push(part);
        }
    }
    plain
}

impl GitContext {
    /// Returns the outside repository to which `folder` of the workspace belongs. Returns `None` if
    /// there is none, or if the settings do not allow its use.
    ///
    /// # Errors
    /// Fails if the tool would change the repository and the settings do not allow that.
    pub(super) async fn outside_of(
        &self,
        ctx: &ToolContext,
        folder: &str,
    ) -> Result<Option<Arc<OutsideRepository>>, ToolError> {
        let Some(outside) = self.outside.as_ref().filter(|_| self.uses_outside()) else {
            return Ok(None);
        };
        let folder = folder.to_owned();
        let root = &self.programs.root;
        if root.run_blocking(ctx, move |root, _| Ok(has_own_repository(root, &folder))).await? {
            return Ok(None);
        }
        let reason = match (self.changes, outside.kind, self.settings.outside) {
            (true, WorkspaceRepositoryRelation::Subfolder, _) => {
                "it could change files outside the workspace; have the server's operator serve \
                 the top folder"
            }
            (true, _, OutsideRepositoryAccess::Read | OutsideRepositoryAccess::None) => {
                "the server's operator must set `git.outside = \"write\"`"
            }
            (true, _, OutsideRepositoryAccess::Write) if !self.settings.programs.is_empty() => {
                "hooks and filters could change the repository, too; the server's operator must \
                 remove `git.programs`"
            }
            (true, _, OutsideRepositoryAccess::Write) | (false, ..) => {
                return Ok(Some(outside.clone()));
            }
        };
        Err(ToolError::not_allowed(format!(
            "the workspace is {}, which the git tools only read: {reason}",
            outside.describe()
        )))
    }

    /// Returns true if the workspace belongs to a repository outside the workspace, and the
    /// settings allow its use.
    pub(super) fn uses_outside(&self) -> bool {
        self.outside.is_some() && self.settings.outside != OutsideRepositoryAccess::None
    }

    /// Checks that the repository `outside` names the workspace as its worktree or submodule, and
    /// that the repository belongs to the workspace's owner.
    ///
    /// `list` creates the command `git worktree`, which lists the worktrees.
    ///
    /// # Errors
    /// Fails if one of these conditions is not met.
    pub(super) async fn check_outside<'c>(
        &self,
        ctx: &ToolContext,
        outside: &OutsideRepository,
        configuration: &GitConfig,
        list: impl FnOnce() -> GitCommand<'c>,
    ) -> Result<(), ToolError> {
        let refused = |why: &str| {
            let named = quoted_path(&outside.git_dir.to_string_lossy());
            Err(ToolError::not_allowed(format!("the repository {named} is not used: it {why}")))
        };
        let workspace = self.programs.root.path();
        let owner = |path: &Path| path.symlink_metadata().map(|meta| meta.uid()).ok();
        if owner(&outside.common_dir) != owner(workspace) {
            return refused("belongs to another user than the workspace");
        }
        let top = outside.work_tree.as_path();
        // A `.git` folder belongs to the folder that contains it.
        if outside.git_dir == top.join(".git") {
            return Ok(());
        }
        if outside.git_dir != outside.common_dir {
            let listed = list().args(["list", "--porcelain"]).run(ctx).await?.text();
            let mut names = listed.lines().filter_map(|line| line.strip_prefix("worktree "));
            if !names.any(|named| Path::new(named) == top) {
                return refused(
                    "does not list the workspace as a worktree; run `git worktree repair`",
                );
            }
            return Ok(());
        }
        let named = configuration.repository_value("core.worktree");
        let named = named.map(|at| without_parent_names(&outside.git_dir.join(at)));
        if named.as_deref() != Some(top) {
            return refused("does not name the workspace in its `core.worktree`");
        }
        Ok(())
    }

    /// Creates the command `git VERB` for `outside`, a repository outside the workspace. Git starts
    /// in `cwd`, with the settings `overrides`.
    pub(super) fn outside_command<'g>(
        &'g self,
        outside: &'g OutsideRepository,
        cwd: &'g OwnedFd,
        overrides: &'g [(OsString, OsString)],
        scope: GitConfigScope,
        verb: &str,
    ) -> GitCommand<'g> {
        GitCommand::new(self, cwd, overrides, scope, verb)
            .in_outside(outside)
            .env("GIT_DIR", &outside.git_dir)
            .env("GIT_WORK_TREE", &outside.work_tree)
    }
}

/// Returns true if `folder` belongs to a repository whose top folder is a subfolder of the
/// workspace.
fn has_own_repository(root: &Root, folder: &str) -> bool {
    let inside = Path::new(folder);
    let inside = inside.strip_prefix(root.path()).unwrap_or(inside);
    let below =
        inside.ancestors().filter(|at| !at.as_os_str().is_empty() && *at != OsStr::new("."));
    below
        .map(|at| at.join(".git"))
        .any(|git| git.to_str().is_some_and(|git| !matches!(root.kind_at(git), Ok(None))))
}
