//! Reads the ignore rules above a root that is part of a larger repository.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, fstat, open, statat};

use super::{IgnoreRuleFiles, IgnoreRules};
use crate::root::meta::EntryKind;

impl IgnoreRules {
    /// Reads the rules in the directories above `root`, an absolute path without symlinks, up to
    /// the top directory of its repository.
    ///
    /// Returns `None` if `root` is the top directory, if there is no repository, if a directory
    /// above belongs to another user, or if the rules ignore `root` itself.
    pub(in crate::root) fn above_root(root: &Path) -> Option<Arc<Self>> {
        let dirs = repository_dirs(root)?;
        let (top, _) = dirs.last()?;
        let mut rules = None;
        for (path, dir) in dirs.iter().rev() {
            let here = path.strip_prefix(top).ok()?;
            let names = IgnoreRuleFiles { git: here.as_os_str().is_empty(), ignore: true };
            rules = Self::for_directory(dir, here, rules, names);
            let inner = root.strip_prefix(path).ok()?.iter().next()?;
            if rules.as_ref().is_some_and(|it| it.is_ignored(&here.join(inner), EntryKind::Dir)) {
                tracing::debug!(
                    "{} is ignored, so the rules above it do not apply",
                    root.display()
                );
                return None;
            }
        }
        let mut boundary = Self::empty(Path::new(""), Some(rules?));
        root.strip_prefix(top).ok()?.clone_into(&mut boundary.root_in_parent);
        Some(Arc::new(boundary))
    }
}

/// Opens the directories above `root` up to the top directory of its repository, which comes last.
/// Returns each with its path.
fn repository_dirs(root: &Path) -> Option<Vec<(PathBuf, OwnedFd)>> {
    let opened = open_dir(root)?;
    let owner = fstat(&opened).ok()?.st_uid;
    if has_git(&opened) {
        return None;
    }
    let mut dirs = Vec::new();
    for path in root.ancestors().skip(1) {
        let dir = open_dir(path)?;
        if fstat(&dir).ok()?.st_uid != owner {
            return None;
        }
        let is_top = has_git(&dir);
        dirs.push((path.to_owned(), dir));
        if is_top {
            return Some(dirs);
        }
    }
    None
}

fn open_dir(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).ok()
}

/// Returns true if `dir` contains an entry `.git`: a folder, or the file of a worktree or
/// submodule.
fn has_git(dir: &OwnedFd) -> bool {
    statat(dir.as_fd(), ".git", AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test creates the files")]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use crate::root::{DiskWorkMonitor, Root, TreeWalk, WalkFilter, WalkStartPoint};

    /// Creates a temporary folder that contains `files`, each a path and a content.
    fn space(files: &[(&str, &str)]) -> TempDir {
        let space = TempDir::new().unwrap();
        for (path, text) in files {
            let path = space.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        space
    }

    /// Returns the paths that a walk of the root `served` lists, beginning at its folder `start`.
    fn walked(space: &TempDir, served: &str, start: &str) -> Vec<String> {
        let root = Root::open(&space.path().join(served)).unwrap().with_ignore_rules_above();
        let WalkStartPoint::Folder(folder) = root.walk_start(start).unwrap() else {
            panic!("{start} is a folder")
        };
        let filter = WalkFilter { include_ignored: false, include_hidden: false };
        let watch = DiskWorkMonitor::default();
        let mut walk = TreeWalk::new(&root, folder, filter, None, &watch).unwrap();
        let mut paths = Vec::new();
        while let Some(entry) = walk.next_entry().unwrap() {
            paths.push(entry.path.to_str().unwrap().to_owned());
        }
        paths
    }

    #[test]
    fn rules_up_to_the_top_of_the_repository_apply() {
        let space = space(&[
            (".gitignore", "kept\n"),
            ("top/.git/info/exclude", "local\n"),
            ("top/.gitignore", "*.log\n/web/app/dist/\n/dist\n!local\n"),
            ("top/web/.gitignore", "!keep.log\n/app/*.tmp\n"),
            ("top/web/app/.gitignore", "!a.tmp\n"),
            ("top/web/app/a.log", ""),
            ("top/web/app/a.tmp", ""),
            ("top/web/app/b.tmp", ""),
            ("top/web/app/dist/x", ""),
            ("top/web/app/keep.log", ""),
            ("top/web/app/kept", ""),
            ("top/web/app/local", ""),
            ("top/web/app/src/b.log", ""),
            ("top/web/app/src/dist/x", ""),
        ]);
        let all = ["a.tmp", "keep.log", "kept", "local", "src", "src/dist", "src/dist/x"];
        assert_eq!(walked(&space, "top/web/app", "."), all);
        assert_eq!(walked(&space, "top/web/app", "src"), ["src/dist", "src/dist/x"]);
    }

    #[test]
    fn rules_above_do_not_apply_to_a_repository_or_outside_one_or_in_an_ignored_folder() {
        for marks in [&["top/sub/.git/HEAD"][..], &["top/.git/HEAD", "top/sub/.git"], &[]] {
            let mut files = vec![("top/.gitignore", "a\n"), ("top/sub/a", "")];
            files.extend(marks.iter().map(|mark| (*mark, "")));
            assert_eq!(walked(&space(&files), "top/sub", "."), ["a"], "{marks:?}");
        }
        for rule in ["/build/", "*", "build/out"] {
            let files = [(".git/HEAD", ""), (".gitignore", rule), ("build/out/a", "")];
            assert_eq!(walked(&space(&files), "build/out", "."), ["a"], "{rule}");
        }
    }
}
