//! Finds entries in a directory that lead out of the workspace, such as symlinks. A program that
//! reads the directory without toolgate's checks would follow them.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::Root;
use super::beneath::{self, SymlinkPolicy};
use super::entries::each_entry;
use super::meta::{EntryKind, EntryMeta};
use super::path::quoted_path;
use super::refusal::refusal;
use super::work::DiskWorkMonitor;

/// The extent to which an entry is inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathCheckDepth {
    /// Skip the entry without looking at it.
    Skip,
    /// Check where the entry leads.
    Target,
    /// Check where the entry leads and, if it is a directory, check everything in it.
    Contents,
}

/// An entry that leads out of the root or is not a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathOutsideRoot {
    /// The entry's path, relative to the root.
    pub path: PathBuf,
    /// The reason why the entry is refused.
    pub reason: OutsideRootReason,
}

/// The reason why an entry of an inspected directory is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideRootReason {
    /// The entry leads out of the root.
    LeadsOut,
    /// The entry is a pipe, a socket or a device.
    NotRegular,
}

impl Root {
    /// Returns the first entry in the directory `top` that leads out of the root or is neither a
    /// file nor a directory.
    ///
    /// `heed` decides how far an entry is inspected, by its path relative to `top`. Symlinks within
    /// the root are followed, as a reader of the directory would follow them. Fails if there are
    /// more than `entries_max` entries.
    pub fn find_escaped_path(
        &self,
        top: &str,
        entries_max: usize,
        watch: &DiskWorkMonitor,
        heed: impl Fn(&Path) -> PathCheckDepth,
    ) -> Result<Option<PathOutsideRoot>, ToolError> {
        let top = Path::new(top);
        let mut seen = 0;
        let mut waiting = vec![PathBuf::new()];
        while let Some(at) = waiting.pop() {
            let folder = top.join(&at);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = match beneath::open(self.dir(), &folder, flags, SymlinkPolicy::Follow) {
                Ok(dir) => dir,
                Err(Errno::XDEV) => {
                    return Ok(Some(PathOutsideRoot {
                        path: folder,
                        reason: OutsideRootReason::LeadsOut,
                    }));
                }
                Err(err) if is_dead_end(err) => continue,
                Err(err) => return Err(refusal(&folder.to_string_lossy(), err)),
            };
            let mut found = None;
            let read = each_entry(dir.as_fd(), watch, |name, kind| {
                seen += 1;
                if seen > entries_max {
                    let message = format!(
                        "{} has more than {entries_max} entries, which are too many to check",
                        quoted_path(&top.to_string_lossy())
                    );
                    return Err(ToolError::new(ToolErrorKind::TooLarge, message).into());
                }
                if kind == EntryKind::File {
                    return Ok(());
                }
                let inner = at.join(name);
                let heed = heed(&inner);
                if found.is_some() || heed == PathCheckDepth::Skip {
                    return Ok(());
                }
                let path = folder.join(name);
                let kind = match kind {
                    EntryKind::Symlink => match self.kind_behind_symlink(&path)? {
                        Some(kind) => kind,
                        None => {
                            found =
                                Some(PathOutsideRoot { path, reason: OutsideRootReason::LeadsOut });
                            return Ok(());
                        }
                    },
                    EntryKind::File | EntryKind::Dir | EntryKind::Other => kind,
                };
                match kind {
                    EntryKind::Other => {
                        found =
                            Some(PathOutsideRoot { path, reason: OutsideRootReason::NotRegular });
                    }
                    EntryKind::Dir if heed == PathCheckDepth::Contents => waiting.push(inner),
                    EntryKind::Dir | EntryKind::File | EntryKind::Symlink => {}
                }
                Ok(())
            });
            read.map_err(|err| err.into_tool_error(&folder.to_string_lossy()))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the kind of the entry to which the symlink at `path` leads. Returns `Symlink` for a
    /// dangling symlink, and `None` if the symlink leads out of the root.
    fn kind_behind_symlink(&self, path: &Path) -> Result<Option<EntryKind>, Errno> {
        match beneath::open(self.dir(), path, OFlags::PATH, SymlinkPolicy::Follow) {
            Ok(fd) => Ok(Some(EntryMeta::from(fstat(&fd)?).kind())),
            Err(Errno::XDEV) => Ok(None),
            Err(err) if is_dead_end(err) => Ok(Some(EntryKind::Symlink)),
            Err(err) => Err(err),
        }
    }
}

/// Returns `true` if `err` means that a symlink has no usable target.
fn is_dead_end(err: Errno) -> bool {
    matches!(err, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test creates the files")]

    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Creates the folder `top` in a new root with `make`. Returns the first entry of the folder
    /// that leads out of the root.
    fn found(
        make: impl Fn(&Path),
        heed: impl Fn(&Path) -> PathCheckDepth,
    ) -> Result<Option<PathOutsideRoot>, ToolError> {
        let space = TempDir::new().unwrap();
        fs::create_dir_all(space.path().join("root/top/inner/deep")).unwrap();
        fs::write(space.path().join("root/file"), "").unwrap();
        make(&space.path().join("root/top"));
        let root = Root::open(&space.path().join("root")).unwrap();
        root.find_escaped_path("top", 100, &DiskWorkMonitor::default(), heed)
    }

    fn leads_out(path: &str) -> Option<PathOutsideRoot> {
        Some(PathOutsideRoot { path: path.into(), reason: OutsideRootReason::LeadsOut })
    }

    #[test]
    fn a_symlink_that_leads_out_is_found_at_any_depth_and_others_are_followed() {
        let all = |_: &Path| PathCheckDepth::Contents;
        for target in ["/etc/passwd", "/nowhere", "../../../../gone"] {
            let made = found(|top| symlink(target, top.join("inner/deep/link")).unwrap(), all);
            assert_eq!(made.unwrap(), leads_out("top/inner/deep/link"), "{target}");
        }
        for target in ["../file", "nowhere", "round", "inner"] {
            let made = found(|top| symlink(target, top.join("round")).unwrap(), all);
            assert_eq!(made.unwrap(), None, "{target}");
        }
        let made = found(
            |top| {
                fs::create_dir(top.join("../beside")).unwrap();
                symlink("/etc", top.join("../beside/out")).unwrap();
                symlink("../beside", top.join("by")).unwrap();
            },
            all,
        );
        assert_eq!(made.unwrap(), leads_out("top/by/out"));
    }

    #[test]
    fn only_selected_depths_are_inspected() {
        let out = |top: &Path| symlink("/etc", top.join("inner/out")).unwrap();
        let shallow = |_: &Path| PathCheckDepth::Target;
        assert_eq!(found(out, shallow).unwrap(), None);
        let but_it = |path: &Path| {
            if path.ends_with("out") { PathCheckDepth::Skip } else { PathCheckDepth::Contents }
        };
        assert_eq!(found(out, but_it).unwrap(), None);
        let all = |_: &Path| PathCheckDepth::Contents;
        assert_eq!(found(out, all).unwrap(), leads_out("top/inner/out"));
    }

    #[test]
    fn a_socket_is_found_and_too_many_entries_are_refused() {
        let all = |_: &Path| PathCheckDepth::Contents;
        let socket = |top: &Path| {
            std::os::unix::net::UnixListener::bind(top.join("inner/socket")).unwrap();
        };
        let why = found(socket, all).unwrap().map(|escaped| escaped.reason);
        assert_eq!(why, Some(OutsideRootReason::NotRegular));
        let many = |top: &Path| {
            for at in 0..100 {
                fs::write(top.join(at.to_string()), "").unwrap();
            }
        };
        assert_eq!(found(many, all).unwrap_err().fault, ToolErrorKind::TooLarge);
    }
}
