//! Finds the repository that contains a folder, and checks that all of the repository is inside the
//! workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use toolgate_contract::{ToolContext, ToolError, ToolErrorKind};

use schemars::JsonSchema;

use super::command::{GitCommand, GitConfigScope, OUTPUT_BYTES_MAX};
use super::configuration::{AllowedGitPrograms, GitConfig};
use super::outside::{LINK_BYTES_MAX, OutsideRepository, is_bare_repository, linked_folder};
use super::repository::GitRepository;
use super::{GitContext, GitProgram};
use toolgate_world::Root;
use toolgate_world::root::{
    DiskWorkMonitor, EntryKind, OutsideRootReason, PathCheckDepth, PathOutsideRoot, quoted_path,
};

/// The maximum number of bytes that are read of a repository's list of alternate object stores.
const ALTERNATES_BYTES_MAX: u64 = 64 << 10;
/// The maximum number of object stores that a repository may have.
const STORES_MAX: usize = 64;
/// The maximum number of entries that are checked in a repository's `.git` folder.
const ENTRIES_MAX: usize = 500_000;
/// The folders in the `.git` folder whose entries are checked, because git reads files in them.
const CHECKED_FOLDERS: [&str; 8] =
    ["info", "refs", "logs", "reftable", "worktrees", "sequencer", "rebase-merge", "rebase-apply"];
/// Entries of the `.git` folder that are not checked. Hooks do not run unless settings allow them,
/// and `fsmonitor--daemon.ipc` is a socket of git.
const UNCHECKED_ENTRIES: [&str; 2] = ["hooks", "fsmonitor--daemon.ipc"];

/// A folder of the repository.
#[derive(Debug, Default, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct RepositoryFolder(Option<String>);

impl GitContext {
    /// Opens the repository that contains the folder `repo`. The default folder is the workspace.
    ///
    /// # Errors
    /// Fails if there is no repository, if some of its files are outside the workspace, or if its
    /// configuration cannot be read completely.
    pub(super) async fn open(
        &self,
        ctx: &ToolContext,
        repo: &RepositoryFolder,
    ) -> Result<GitRepository<'_>, ToolError> {
        let folder = repo.0.as_deref().unwrap_or(".");
        match self.open_folder(ctx, folder).await {
            Err(err) if self.uses_outside() => Err(err),
            Err(err) => Err(self.explain_refusal(ctx, folder, err).await),
            opened => opened,
        }
    }

    /// Opens the repository that contains `folder`, a path relative to the workspace. Fails like
    /// [`Self::open`].
    pub(super) async fn open_folder(
        &self,
        ctx: &ToolContext,
        folder: &str,
    ) -> Result<GitRepository<'_>, ToolError> {
        let folder = folder.to_owned();
        let path = folder.clone();
        let root = &self.programs.root;
        let cwd = root.run_blocking(ctx, move |root, _| root.open_dir(&path)).await;
        let cwd = cwd.map_err(|err| err.with_pointer("/repo"))?;

        if let Some(outside) = self.outside_of(ctx, &folder).await? {
            return self.open_outside(ctx, outside, &folder).await;
        }
        let list = GitCommand::new(self, &cwd, &[], GitConfigScope::UserAndSystem, "config");
        let configuration = read_configuration(ctx, list, &folder).await?;
        let allowed = self.allowed_programs();
        let overrides = configuration.overrides(allowed);

        let find = GitCommand::new(self, &cwd, &overrides, GitConfigScope::Repository, "rev-parse")
            .args(["--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"])
            .arg("--show-prefix");
        let found = find.run_unchecked(ctx).await?;
        if found.code != 0 {
            return Err(no_repository_error(&folder, found.to_error()));
        }
        let lines: Vec<&[u8]> = found.stdout.split(|byte| *byte == b'\n').collect();
        let [top, git_dir, common_dir, prefix, []] = lines[..] else {
            return Err(ToolError::failed(format!(
                "the path of the repository in {} contains a line break; rename the folder",
                quoted_path(&folder)
            )));
        };
        let prefix = String::from_utf8_lossy(prefix).into_owned();
        let [top, git_dir, common_dir] =
            [top, git_dir, common_dir].map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let paths = (top.clone(), git_dir.clone(), common_dir.clone(), folder);
        let top_fd = root
            .run_blocking(ctx, move |root, watch| {
                let (top, git_dir, common_dir, folder) = paths;
                let top = relative_to_root(root, &top, &folder)?;
                let common_dir = relative_to_root(root, &common_dir, &folder)?;
                let git_dir = relative_to_root(root, &git_dir, &folder)?;
                root.open_dir(&git_dir)?;
                check_all_inside(root, &common_dir, &folder, watch, git_entry_check)?;
                if !Path::new(&git_dir).starts_with(&common_dir) {
                    check_all_inside(root, &git_dir, &folder, watch, git_entry_check)?;
                }
                check_stores_inside(root, &common_dir, &folder, watch)?;
                root.open_dir(&top)
            })
            .await?;
        let disabled_filters =
            if allowed.filters { Vec::new() } else { configuration.filter_names() };
        let repository = GitRepository {
            git: self,
            top: top_fd,
            top_path: top,
            git_dir,
            common_dir,
            outside: None,
            overrides,
            disabled_filters,
        };
        repository.refuse_absent_submodule(ctx, &prefix).await?;
        Ok(repository)
    }

    /// Opens `outside`, a repository whose `.git` folder is outside the workspace, for `folder` in
    /// the workspace.
    async fn open_outside(
        &self,
        ctx: &ToolContext,
        outside: Arc<OutsideRepository>,
        folder: &str,
    ) -> Result<GitRepository<'_>, ToolError> {
        let root = &self.programs.root;
        let top = root.run_blocking(ctx, |root, _| root.open_dir(".")).await?;
        let list =
            self.outside_command(&outside, &top, &[], GitConfigScope::UserAndSystem, "config");
        let configuration = read_configuration(ctx, list, folder).await?;
        let allowed = self.allowed_programs();
        let mut overrides = configuration.overrides(allowed);
        let scope = GitConfigScope::Repository;
        let worktrees = || self.outside_command(&outside, &top, &overrides, scope, "worktree");
        self.check_outside(ctx, &outside, &configuration, worktrees).await?;
        if !outside.prefix.is_empty() {
            overrides.push(("diff.relative".into(), "true".into()));
        }
        let disabled_filters =
            if allowed.filters { Vec::new() } else { configuration.filter_names() };
        let repository = GitRepository {
            git: self,
            top,
            top_path: root.path().to_owned(),
            git_dir: outside.git_dir.clone(),
            common_dir: outside.common_dir.clone(),
            outside: Some(outside),
            overrides,
            disabled_filters,
        };
        repository.refuse_absent_outside_submodule(ctx, folder).await?;
        Ok(repository)
    }

    fn allowed_programs(&self) -> AllowedGitPrograms {
        AllowedGitPrograms {
            hooks: self.settings.allows(GitProgram::Hooks),
            filters: self.settings.allows(GitProgram::Filters),
        }
    }

    /// Returns an error that explains the cause if `folder` belongs to a repository outside the
    /// workspace. Otherwise returns `err` unchanged.
    async fn explain_refusal(&self, ctx: &ToolContext, folder: &str, err: ToolError) -> ToolError {
        if !matches!(
            err.fault,
            ToolErrorKind::NotFound | ToolErrorKind::NotAllowed | ToolErrorKind::Failed
        ) {
            return err;
        }
        let named = folder.to_owned();
        let explained = self.programs.root.run_blocking(ctx, move |root, watch| {
            Ok(outside_repository_error(root, &named, watch))
        });
        explained.await.ok().flatten().unwrap_or(err)
    }
}

/// Reads the complete git configuration with `list`, a `git config` command. `folder` is named in
/// errors.
async fn read_configuration(
    ctx: &ToolContext,
    list: GitCommand<'_>,
    folder: &str,
) -> Result<GitConfig, ToolError> {
    let list = list.args(["--list", "--show-scope", "-z", "--includes"]).run(ctx).await?;
    // Settings in the part that is not read could not be disarmed.
    if list.is_truncated() {
        return Err(ToolError::not_allowed(format!(
            "the configuration of the repository in {} has more than {OUTPUT_BYTES_MAX} bytes",
            quoted_path(folder)
        )));
    }
    let configuration = GitConfig::parse(&list.fields());
    match configuration.first_invalid_key() {
        Some(key) => Err(ToolError::not_allowed(format!(
            "the configuration of the repository in {} has a key that is not UTF-8: {}",
            quoted_path(folder),
            quoted_path(key)
        ))),
        None => Ok(configuration),
    }
}

/// Returns the error for a folder whose repository is outside the workspace because the folder is a
/// linked worktree, a submodule, or a subfolder of a repository. Returns `None` for any other
/// folder.
fn outside_repository_error(
    root: &Root,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Option<ToolError> {
    let is_dir = matches!(root.kind_at(folder), Ok(Some(EntryKind::Dir)));
    if !is_dir || is_bare_repository(root, folder) {
        return None;
    }
    let inside = Path::new(folder);
    let inside = inside.strip_prefix(root.path()).unwrap_or(inside);
    for at in inside.ancestors() {
        let git = at.join(".git").to_str()?.to_owned();
        match root.kind_at(&git) {
            Ok(None) => {}
            Ok(Some(EntryKind::File)) => {
                let link = root.open_file(&git).ok()?.read(0, LINK_BYTES_MAX, watch).ok()?;
                let target = linked_folder(&root.path().join(at), &link)?;
                let is_workspace = at.as_os_str().is_empty() || at == Path::new(".");
                return linked_repository_error(root, folder, &target, is_workspace);
            }
            Ok(Some(_)) | Err(_) => return None,
        }
    }
    let mut above = root.path().ancestors().skip(1);
    let above = above.find(|at| at.join(".git").symlink_metadata().is_ok())?;
    Some(ToolError::not_found(format!(
        "there is no git repository in {} of the workspace: the repository around the workspace \
         begins above it, in {}; have the server's operator serve that folder, or set \
         `git.outside = \"read\"`",
        quoted_path(folder),
        quoted_path(&above.to_string_lossy())
    )))
}

/// Returns the error for `folder`, whose `.git` file names the folder `target` outside the
/// workspace. Returns `None` if `target` is inside the workspace.
fn linked_repository_error(
    root: &Root,
    folder: &str,
    target: &Path,
    is_workspace: bool,
) -> Option<ToolError> {
    if target.starts_with(root.path()) {
        return None;
    }
    let worktrees = target.parent().filter(|parent| parent.ends_with("worktrees"));
    let repository = worktrees.and_then(Path::parent).map(Path::to_string_lossy);
    let shown = target.to_string_lossy();
    let (kind, repository) = match (repository, shown.split_once("/.git/")) {
        (Some(repository), _) => ("a linked worktree of the repository", repository),
        (None, Some((repository, _))) => ("a submodule of the repository", repository.into()),
        (None, None) => ("the repository", target.to_string_lossy()),
    };
    let setting = match is_workspace {
        true => ", or set `git.outside` to `read` or `write`",
        false => "",
    };
    Some(ToolError::not_allowed(format!(
        "{} belongs to {kind} {}, which is outside the workspace; have the server's operator \
         serve a folder that contains both{setting}",
        quoted_path(folder),
        quoted_path(repository.trim_end_matches("/.git"))
    )))
}

/// Converts `err` to the error for `folder`, which belongs to no git repository.
fn no_repository_error(folder: &str, err: ToolError) -> ToolError {
    match err.fault {
        ToolErrorKind::NotFound => ToolError::not_found(format!(
            "there is no git repository in {} of the workspace (the git tools do not use a \
             repository that contains the workspace); name the folder of a repository in `repo`, \
             or have the \
             server's operator run \
             `git init`, which programs may not do",
            quoted_path(folder)
        )),
        _ => err,
    }
}

/// Returns the absolute path `path` relative to the workspace root. Fails if `path` is outside the
/// root.
fn relative_to_root(root: &Root, path: &Path, folder: &str) -> Result<String, ToolError> {
    let inside = path.strip_prefix(root.path()).ok().and_then(Path::to_str);
    let inside = inside.ok_or_else(|| outside_error(folder, path))?;
    Ok(if inside.is_empty() { ".".to_owned() } else { inside.to_owned() })
}

fn outside_error(folder: &str, path: &Path) -> ToolError {
    ToolError::not_allowed(format!(
        "a part of the repository in {} is outside the workspace, at {}; use a workspace that \
         contains all parts of the repository",
        quoted_path(folder),
        quoted_path(&path.to_string_lossy())
    ))
}

/// Returns how thoroughly the entry `at` of a `.git` folder is checked for symlinks that lead out
/// of the workspace.
fn git_entry_check(at: &Path) -> PathCheckDepth {
    let mut names = at.iter().filter_map(OsStr::to_str);
    match (names.next(), names.next()) {
        (Some(name), None) if UNCHECKED_ENTRIES.contains(&name) => PathCheckDepth::Skip,
        (Some(name), _) if CHECKED_FOLDERS.contains(&name) => PathCheckDepth::Contents,
        (Some(_) | None, _) => PathCheckDepth::Target,
    }
}

/// Returns how thoroughly an entry of an object store is checked for symlinks that lead out of the
/// workspace.
fn store_entry_check(_: &Path) -> PathCheckDepth {
    PathCheckDepth::Contents
}

/// Checks that no symlink in the repository folder `dir` leads out of the workspace root.
///
/// Git follows symlinks, and quotes lines of files that it cannot parse. `depth_of` returns how
/// thoroughly an entry is checked.
fn check_all_inside(
    root: &Root,
    dir: &str,
    folder: &str,
    watch: &DiskWorkMonitor,
    depth_of: fn(&Path) -> PathCheckDepth,
) -> Result<(), ToolError> {
    let escaped =
        root.find_escaped_path(dir, ENTRIES_MAX, watch, depth_of).map_err(|err| match err.fault {
            ToolErrorKind::TooLarge => {
                ToolError { message: format!("{}; run `git gc` there", err.message), ..err }
            }
            _ => err,
        });
    match escaped? {
        None => Ok(()),
        Some(PathOutsideRoot { path, reason: OutsideRootReason::LeadsOut }) => {
            Err(outside_error(folder, &root.path().join(path)))
        }
        Some(PathOutsideRoot { path, reason: OutsideRootReason::NotRegular }) => {
            Err(ToolError::not_allowed(format!(
                "the repository in {} has an entry that is not a file, at {}; remove it",
                quoted_path(folder),
                quoted_path(&path.to_string_lossy())
            )))
        }
    }
}

/// Checks that every object store of the repository with the `.git` folder `dir` is inside the
/// workspace root. Symlinks and lists of alternate object stores could lead outside.
fn check_stores_inside(
    root: &Root,
    dir: &str,
    folder: &str,
    watch: &DiskWorkMonitor,
) -> Result<(), ToolError> {
    let mut stores = vec![format!("{dir}/objects")];
    let mut at = 0;
    while let Some(store) = stores.get(at).cloned() {
        at += 1;
        if at > STORES_MAX {
            let message = format!(
                "the repository in {} has more than {STORES_MAX} object stores",
                quoted_path(folder)
            );
            return Err(ToolError::not_allowed(message));
        }
        match root.open_dir(&store) {
            Err(err) if err.fault == ToolErrorKind::NotAllowed => {
                return Err(outside_error(folder, &root.path().join(store)));
            }
            // Git itself reports a missing store.
            Err(_) => continue,
            Ok(_) => check_all_inside(root, &store, folder, watch, store_entry_check)?,
        }
        let list = match root.open_file(&format!("{store}/info/alternates")) {
            Ok(list) => list.read(0, ALTERNATES_BYTES_MAX, watch)?,
            Err(err) if err.fault == ToolErrorKind::NotFound => continue,
            Err(_) => return Err(outside_error(folder, &root.path().join(store))),
        };
        for line in list.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let other = Path::new(line.as_ref());
            let other = if other.is_absolute() {
                relative_to_root(root, other, folder)?
            } else {
                format!("{store}/{line}")
            };
            stores.push(other);
        }
    }
    Ok(())
}
