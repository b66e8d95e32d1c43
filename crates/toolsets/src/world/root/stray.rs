//! Finds entries of a directory that would lead a reader without our checks out of the root.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::entries::each_of_all;
use super::meta::{Kind, Meta};
use super::path::shown;
use super::refusal::refusal;
use super::work::Watch;

/// The depth of the inspection of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heed {
    /// Skip it.
    Not,
    /// Check where it leads.
    Itself,
    /// Check where it leads and, if it is a directory, everything in it.
    Within,
}

/// An entry that is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stray {
    /// The path relative to the root.
    pub(crate) path: PathBuf,
    pub(crate) why: Why,
}

/// The reason why an entry is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It leads out of the root.
    LeadsOut,
    /// It is a pipe, a socket or a device.
    NoFile,
}

impl Root {
    /// Returns the first entry in the directory `top` that leads out of the root or is neither a
    /// file nor a directory.
    ///
    /// `heed` selects the depth for a path relative to `top`. Symlinks that stay inside are
    /// followed, as a reader of the directory would. Fails above `entries_max` entries.
    pub(crate) fn stray(
        &self,
        top: &str,
        entries_max: usize,
        watch: &Watch,
        heed: impl Fn(&Path) -> Heed,
    ) -> Result<Option<Stray>, ToolError> {
        let top = Path::new(top);
        let mut seen = 0;
        let mut waiting = vec![PathBuf::new()];
        while let Some(at) = waiting.pop() {
            let folder = top.join(&at);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = match beneath::open(self.dir(), &folder, flags, Symlinks::Follow) {
                Ok(dir) => dir,
                Err(Errno::XDEV) => {
                    return Ok(Some(Stray { path: folder, why: Why::LeadsOut }));
                }
                Err(err) if leads_nowhere(err) => continue,
                Err(err) => return Err(refusal(&folder.to_string_lossy(), err)),
            };
            let mut found = None;
            let read = each_of_all(dir.as_fd(), watch, |name, kind| {
                seen += 1;
                if seen > entries_max {
                    let message = format!(
                        "{} has more than {entries_max} entries, which are too many to look through",
                        shown(&top.to_string_lossy())
                    );
                    return Err(ToolError::new(Fault::TooLarge, message).into());
                }
                if kind == Kind::File {
                    return Ok(());
                }
                let inner = at.join(name);
                let heed = heed(&inner);
                if found.is_some() || heed == Heed::Not {
                    return Ok(());
                }
                let path = folder.join(name);
                let kind = match kind {
                    Kind::Symlink => match self.behind(&path)? {
                        Some(kind) => kind,
                        None => {
                            found = Some(Stray { path, why: Why::LeadsOut });
                            return Ok(());
                        }
                    },
                    Kind::File | Kind::Dir | Kind::Other => kind,
                };
                match kind {
                    Kind::Other => found = Some(Stray { path, why: Why::NoFile }),
                    Kind::Dir if heed == Heed::Within => waiting.push(inner),
                    Kind::Dir | Kind::File | Kind::Symlink => {}
                }
                Ok(())
            });
            read.map_err(|err| err.at(&folder.to_string_lossy()))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the kind of the target of the symlink at `path`, or of a dangling symlink itself.
    /// `None` if it leads out.
    fn behind(&self, path: &Path) -> Result<Option<Kind>, Errno> {
        match beneath::open(self.dir(), path, OFlags::PATH, Symlinks::Follow) {
            Ok(fd) => Ok(Some(Meta::from(fstat(&fd)?).kind())),
            Err(Errno::XDEV) => Ok(None),
            Err(err) if leads_nowhere(err) => Ok(Some(Kind::Symlink)),
            Err(err) => Err(err),
        }
    }
}

/// Returns `true` if following the link yields nothing.
fn leads_nowhere(err: Errno) -> bool {
    matches!(err, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test makes what is looked through")]

    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A folder `top` in a root, and what is found in it.
    fn found(
        make: impl Fn(&Path),
        heed: impl Fn(&Path) -> Heed,
    ) -> Result<Option<Stray>, ToolError> {
        let space = TempDir::new().unwrap();
        fs::create_dir_all(space.path().join("root/top/inner/deep")).unwrap();
        fs::write(space.path().join("root/file"), "").unwrap();
        make(&space.path().join("root/top"));
        let root = Root::open(&space.path().join("root")).unwrap();
        root.stray("top", 100, &Watch::default(), heed)
    }

    fn leads_out(path: &str) -> Option<Stray> {
        Some(Stray { path: path.into(), why: Why::LeadsOut })
    }

    #[test]
    fn a_symlink_out_is_found_however_deep_and_one_that_stays_is_followed() {
        let all = |_: &Path| Heed::Within;
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
    fn only_what_is_heeded_is_looked_at() {
        let out = |top: &Path| symlink("/etc", top.join("inner/out")).unwrap();
        let shallow = |_: &Path| Heed::Itself;
        assert_eq!(found(out, shallow).unwrap(), None);
        let but_it = |path: &Path| if path.ends_with("out") { Heed::Not } else { Heed::Within };
        assert_eq!(found(out, but_it).unwrap(), None);
        let all = |_: &Path| Heed::Within;
        assert_eq!(found(out, all).unwrap(), leads_out("top/inner/out"));
    }

    #[test]
    fn what_is_no_file_is_found_and_too_much_is_refused() {
        let all = |_: &Path| Heed::Within;
        let socket = |top: &Path| {
            std::os::unix::net::UnixListener::bind(top.join("inner/socket")).unwrap();
        };
        let why = found(socket, all).unwrap().map(|stray| stray.why);
        assert_eq!(why, Some(Why::NoFile));
        let many = |top: &Path| {
            for at in 0..100 {
                fs::write(top.join(at.to_string()), "").unwrap();
            }
        };
        assert_eq!(found(many, all).unwrap_err().fault, Fault::TooLarge);
    }
}
