//! Files that whoever runs the server vouches for: keys, certificates. Read only where nobody else
//! can have written them.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own files, named in the configuration, outside what is served"
)]

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::OFlags;

/// How large such a file may be.
const BYTES_MAX: u64 = 1 << 20;

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    /// When its content was written, in seconds and nanoseconds.
    written: (i64, i64),
    /// When it or its permissions were changed.
    changed: (i64, i64),
}

/// Whether a file may be named by a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// It may: secrets that are mounted into a container are.
    Followed,
    /// It may not.
    Refused,
}

/// What is in the file at `path`, and its stamp.
///
/// All is asked of the open file: what was looked at is what is read.
///
/// # Errors
/// When it cannot be read, or others than its owner could have written it.
pub(crate) fn read(path: &Path, links: Links) -> anyhow::Result<(Vec<u8>, Stamp)> {
    let file = open(path, links)?;
    let stamp = vouched(&file, path)?;
    Ok((whole(&file, path, BYTES_MAX)?, stamp))
}

/// The text of the file at `path`, whoever wrote it, which has no more than `bytes_max`.
///
/// # Errors
/// When it cannot be read, or is none.
pub(crate) fn text(path: &Path, links: Links, bytes_max: u64) -> anyhow::Result<String> {
    let (file, shown) = (open(path, links)?, path.display());
    if !file.metadata().with_context(|| format!("{shown} cannot be looked at"))?.is_file() {
        bail!("{shown} is no file");
    }
    let bytes = whole(&file, path, bytes_max)?;
    String::from_utf8(bytes).with_context(|| format!("{shown} is not UTF-8"))
}

/// Whoever has put a pipe there is not waited for.
fn open(path: &Path, links: Links) -> anyhow::Result<File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|err| {
        let is_link = err.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        let why = if is_link { ", since it is a link; name the file itself" } else { "" };
        anyhow::Error::from(err).context(format!("{} cannot be read{why}", path.display()))
    })
}

fn whole(file: &File, path: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let (shown, mut bytes) = (path.display(), Vec::new());
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
    let read = read.with_context(|| format!("{shown} cannot be read"))?;
    if read as u64 > bytes_max {
        bail!("{shown} is larger than {bytes_max} bytes");
    }
    Ok(bytes)
}

/// The stamp of `file`, if it is one that only its owner, and that us or root, can write.
fn vouched(file: &File, path: &Path) -> anyhow::Result<Stamp> {
    let shown = path.display();
    let found = file.metadata().with_context(|| format!("{shown} cannot be looked at"))?;
    if !found.is_file() {
        bail!("{shown} is no file");
    }
    let (owner, us) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != us && owner != 0 {
        bail!("{shown} belongs to another user ({owner}); it must be yours or root's");
    }
    if found.mode() & 0o022 != 0 {
        bail!("{shown} can be written by others; `chmod go-w {shown}` mends that");
    }
    Ok(stamp(&found))
}

/// Whether others than the owner and the group of the file at `path` can read it.
pub(crate) fn is_open_to_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o004 != 0)
}

/// The stamp of what is at `path` now; `None` where nothing is that can be looked at.
pub(crate) fn stamp_of(path: &Path) -> Option<Stamp> {
    Some(stamp(&std::fs::metadata(path).ok()?))
}

fn stamp(found: &std::fs::Metadata) -> Stamp {
    Stamp {
        inode: (found.dev(), found.ino()),
        bytes: found.size(),
        written: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_others_could_have_written_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("keys"), folder.path().join("link"));
        std::fs::write(&file, "ours").unwrap();
        symlink(&file, &link).unwrap();
        let set = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (mode, good) in [(0o600, true), (0o644, true), (0o660, false), (0o602, false)] {
            set(mode);
            assert_eq!(read(&file, Links::Refused).is_ok(), good, "{mode:o}");
            assert_eq!(read(&link, Links::Followed).is_ok(), good, "{mode:o}");
        }
        set(0o600);
        let refused = format!("{:#}", read(&link, Links::Refused).unwrap_err());
        assert!(refused.contains("is a link"), "{refused}");
        let refused = format!("{:#}", read(folder.path(), Links::Refused).unwrap_err());
        assert!(refused.contains("is no file"), "{refused}");
    }

    #[test]
    fn a_file_that_another_took_the_place_of_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let (file, next) = (folder.path().join("keys"), folder.path().join("next"));
        std::fs::write(&file, "a").unwrap();
        let (_, stamp) = read(&file, Links::Refused).unwrap();
        assert_eq!(stamp_of(&file), Some(stamp));
        std::fs::write(&next, "b").unwrap();
        std::fs::rename(&next, &file).unwrap();
        assert_ne!(stamp_of(&file), Some(stamp));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(stamp_of(&file), None);
    }
}
