//! Paths in a workspace that programs may read but not change, even if they may write the rest.

use std::path::{Component, Path, PathBuf};

use super::SandboxPaths;
use super::plan::SandboxMount;
use crate::root::is_foreign_settings;

/// The name of the folder of a git repository. The configuration in this folder names programs that
/// git runs.
const GIT_FOLDER: &str = ".git";

/// Entries of a `.git` folder that name programs for git to run. Even the git tools may not change
/// these entries.
const GUARDED_IN_GIT: [&str; 5] = ["config", "config.worktree", "hooks", "info", "modules"];

/// The paths of a workspace that programs may not change.
#[derive(Debug, Clone)]
pub(super) struct GuardedPaths {
    /// The paths that programs may not change, relative to the workspace.
    names: Vec<String>,
    /// The paths of instruction files for agents. Git may write these files whenever it may also
    /// write the settings of editors and agents.
    instructions: Vec<String>,
    writes_git: bool,
}

impl GuardedPaths {
    /// Creates the list of the guarded paths and the instructions in `paths`. With `writes_git`,
    /// programs may write the workspace's `.git` folder.
    pub(super) fn new(paths: &SandboxPaths, writes_git: bool) -> Self {
        let plain = |paths: &[String]| -> Vec<String> {
            paths.iter().filter(|path| is_plain_path(path)).cloned().collect()
        };
        Self { names: plain(&paths.guarded), instructions: plain(&paths.instructions), writes_git }
    }

    /// Returns `true` if git may check out committed settings of editors and agents.
    ///
    /// With `is_plain`, git works with the `.git` folder of the workspace and runs no other
    /// program. Returns `false` if programs may write `.git`, because a program could have
    /// committed the settings.
    pub(super) fn allows_git_settings(&self, is_plain: bool) -> bool {
        is_plain && !self.writes_git
    }

    /// Returns mounts for the read-only paths in `workspace`, for a program that may write all
    /// other paths.
    ///
    /// Git may write the `.git` folder `repository`. If `brings` is set, git may also write
    /// instructions and the settings of other tools, but never toolgate's own files.
    pub(super) fn places(
        &self,
        workspace: &Path,
        repository: Option<&Path>,
        brings: bool,
    ) -> Vec<SandboxMount> {
        let top = repository_path(workspace);
        let is_written = |name: &str| match repository {
            Some(repository) => name == GIT_FOLDER && repository.starts_with(&top),
            None => name == GIT_FOLDER && self.writes_git,
        };
        let is_brought = |name: &str| brings && is_foreign_settings(name);
        let names = self.names.iter().filter(|name| !is_brought(name) && !is_written(name));
        let instructions = self.instructions.iter().filter(|_| !brings);
        let names = names.chain(instructions);
        let mut guarded: Vec<PathBuf> = names.map(|name| workspace.join(name)).collect();
        // The parts of a repository outside the workspace are listed one by one.
        let repository = repository.filter(|repository| repository.starts_with(workspace));
        let written = repository.map(
            |repository| {
                if repository.starts_with(&top) { &top } else { repository }
            },
        );
        for folder in written.into_iter().chain(repository) {
            guarded.extend(GUARDED_IN_GIT.map(|name| folder.join(name)));
        }
        guarded.sort_unstable();
        guarded.dedup();
        with_fixed_parents(workspace, &guarded, |at| SandboxMount::ReadOnlyEntry { at: at.into() })
    }

    /// Returns the names that no program may create in a workspace.
    ///
    /// Names without a leading dot are omitted, because their placeholders would be visible among
    /// the user's files. For `toolgate.toml` this is safe: the file has no effect before `toolgate
    /// trust`.
    pub(super) fn reserved_names(&self) -> impl Iterator<Item = &str> {
        let is_name = |name: &&str| name.starts_with('.') && !name.contains('/');
        let names = self.names.iter().chain(&self.instructions);
        let names = names.map(String::as_str).filter(is_name);
        names.filter(|name| !self.writes_git || *name != GIT_FOLDER)
    }
}

/// Returns the path of the `.git` entry in `workspace`.
pub(super) fn repository_path(workspace: &Path) -> PathBuf {
    workspace.join(GIT_FOLDER)
}

/// Returns the mount that `place` creates for each of `paths`. Also returns a mount for each folder
/// between that path and `workspace`, so that the folder cannot be moved. A moved folder would take
/// its mounts along.
pub(super) fn with_fixed_parents(
    workspace: &Path,
    paths: &[PathBuf],
    place: impl Fn(&Path) -> SandboxMount,
) -> Vec<SandboxMount> {
    let mut places = Vec::new();
    for path in paths {
        let around = path.ancestors().skip(1).take_while(|it| *it != workspace);
        places.extend(around.map(|at| SandboxMount::FixedFolder { at: at.into() }));
    }
    places.extend(paths.iter().map(|path| place(path)));
    places
}

/// Returns `true` if `path` is relative and consists of names only, without `.` and `..`.
fn is_plain_path(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|it| matches!(it, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "/w";

    fn guards(names: &[&str], instructions: &[&str], writes_git: bool) -> GuardedPaths {
        let owned = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
        let paths = SandboxPaths {
            guarded: owned(names),
            instructions: owned(instructions),
            ..SandboxPaths::default()
        };
        GuardedPaths::new(&paths, writes_git)
    }

    fn places(names: &[&str], writes_git: bool, repository: Option<&str>) -> Vec<String> {
        let guards = guards(names, &[], writes_git);
        let places = guards.places(Path::new(WORKSPACE), repository.map(Path::new), false);
        let texts = places.iter().map(|place| match place {
            SandboxMount::ReadOnlyEntry { at } => format!("read {}", at.path().display()),
            SandboxMount::FixedFolder { at } => format!("held {}", at.path().display()),
            other => panic!("{other:?}"),
        });
        let mut texts: Vec<_> = texts.collect();
        texts.sort_unstable();
        texts.dedup();
        texts
    }

    #[test]
    fn git_may_bring_editor_settings_if_no_program_writes_the_repository() {
        let names = [".vscode", ".mcp.json", ".git", "toolgate.toml", ".env", "infra"];
        let guarded = |brings: bool| {
            let guards = guards(&names, &["skills"], false);
            let repository = Some(Path::new("/w/.git"));
            let places = guards.places(Path::new(WORKSPACE), repository, brings);
            let ats = places.iter().filter_map(|place| match place {
                SandboxMount::ReadOnlyEntry { at } => Some(at.path().display().to_string()),
                _ => None,
            });
            ats.collect::<Vec<_>>()
        };
        let ours = ["/w/toolgate.toml", "/w/.env", "/w/infra"].map(str::to_owned);
        let own = GUARDED_IN_GIT.map(|name| format!("/w/.git/{name}"));
        let theirs = ["/w/.vscode", "/w/.mcp.json", "/w/skills"].map(str::to_owned);
        for brings in [true, false] {
            let ats = guarded(brings);
            assert!(ours.iter().chain(&own).all(|at| ats.contains(at)), "{ats:?}");
            assert!(theirs.iter().all(|at| ats.contains(at) != brings), "{ats:?}");
        }
        assert!(guards(&names, &[], false).allows_git_settings(true));
        assert!(!guards(&names, &[], false).allows_git_settings(false));
        assert!(
            !guards(&names, &[], true).allows_git_settings(true),
            "programs write the repository"
        );
    }

    #[test]
    fn the_folders_above_a_guarded_path_cannot_be_moved() {
        let guarded = places(&["a/b/c.toml", ".git"], false, None);
        assert_eq!(guarded, ["held /w/a", "held /w/a/b", "read /w/.git", "read /w/a/b/c.toml"]);
    }

    #[test]
    fn git_writes_its_repository_except_program_settings_and_no_other_guarded_path() {
        let parts = |folder: &str| {
            ["config", "config.worktree", "hooks", "info", "modules"]
                .map(|part| format!("read {folder}/{part}"))
        };
        let served = places(&[".git", ".mcp.json"], false, Some("/w/.git"));
        let mut expected = vec!["held /w/.git".to_owned(), "read /w/.mcp.json".to_owned()];
        expected.extend(parts("/w/.git"));
        expected.sort_unstable();
        assert_eq!(served, expected);

        let nested = places(&[".git", ".mcp.json"], true, Some("/w/r/.git"));
        let mut expected = vec!["read /w/.git".to_owned(), "read /w/.mcp.json".to_owned()];
        expected.extend(["held /w/r", "held /w/r/.git"].map(str::to_owned));
        expected.extend(parts("/w/r/.git"));
        expected.sort_unstable();
        assert_eq!(nested, expected);
    }
}
