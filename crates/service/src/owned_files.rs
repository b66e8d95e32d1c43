//! Reads owner-controlled files, such as keys and certificates, only if no other user could have
//! written them.
#![allow(
    clippy::disallowed_methods,
    reason = "the owner's own files, named in the configuration, outside the workspace"
)]

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{OFlags, fstat, stat};
use toolgate_world::root::{EntryFingerprint, EntryMeta};

/// Largest key file, certificate or similar file that is read: 1 MiB.
const BYTES_MAX: u64 = 1 << 20;

/// Treatment of symbolic links when toolgate reads a file that no other user may be able to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnedFileSymlinkPolicy {
    /// Follows symbolic links, as for secrets that are mounted into a container.
    Followed,
    /// Refuses symbolic links.
    Refused,
}

/// Reads the file at `path`, which only this user or root may be able to write. Returns the
/// content, and the fingerprint by which a later change is recognized.
///
/// All checks use the open file, so that the checked file is the one that is read.
///
/// # Errors
/// The file cannot be read, or other users could have written it.
pub(crate) fn read_owned(
    path: &Path,
    links: OwnedFileSymlinkPolicy,
) -> anyhow::Result<(Vec<u8>, EntryFingerprint)> {
    let file = open_file(path, links)?;
    let stamp = check_owner(&file, path)?;
    Ok((read_bounded(&file, path, BYTES_MAX)?, stamp))
}

/// Reads the text file at `path`, without checking who owns the file. The file may have at most
/// `bytes_max` bytes.
///
/// # Errors
/// The file cannot be read, is not a regular file, is too large, or is not UTF-8.
pub(crate) fn read_text(
    path: &Path,
    links: OwnedFileSymlinkPolicy,
    bytes_max: u64,
) -> anyhow::Result<String> {
    let file = open_file(path, links)?;
    let shown = path.display();
    if !file.metadata().with_context(|| format!("cannot examine {shown}"))?.is_file() {
        bail!("{shown} is not a regular file");
    }
    let bytes = read_bounded(&file, path, bytes_max)?;
    String::from_utf8(bytes).with_context(|| format!("{shown} is not UTF-8"))
}

/// Opens the file at `path` without blocking on a named pipe. Fails if the file cannot be opened,
/// or if it is a symbolic link that `links` refuses.
fn open_file(path: &Path, links: OwnedFileSymlinkPolicy) -> anyhow::Result<File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == OwnedFileSymlinkPolicy::Refused {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|err| {
        let is_link = err.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        let why = if is_link { ", because it is a link; name the file itself" } else { "" };
        anyhow::Error::from(err).context(format!("cannot read {}{why}", path.display()))
    })
}

fn read_bounded(file: &File, path: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
    let read = read.with_context(|| format!("cannot read {shown}"))?;
    if read as u64 > bytes_max {
        bail!("{shown} is larger than {bytes_max} bytes");
    }
    Ok(bytes)
}

/// Checks that no other user can write `file`. Returns the fingerprint of the file, by which a
/// later change is recognized. `path` is for error messages.
///
/// # Errors
/// Other users can write the file, or its owner is neither this user nor root.
fn check_owner(file: &File, path: &Path) -> anyhow::Result<EntryFingerprint> {
    let shown = path.display();
    let metadata = file.metadata().with_context(|| format!("cannot examine {shown}"))?;
    if !metadata.is_file() {
        bail!("{shown} is not a regular file");
    }
    let owner = metadata.uid();
    let user = rustix::process::geteuid().as_raw();
    if owner != user && owner != 0 {
        bail!("{shown} belongs to another user ({owner}); it must belong to you or root");
    }
    if metadata.mode() & 0o022 != 0 {
        bail!("{shown} can be written by others; run `chmod go-w {shown}`");
    }
    let stat = fstat(file).with_context(|| format!("cannot examine {shown}"))?;
    Ok(EntryMeta::from(stat).stamp())
}

/// Returns true if every user can read the file at `path`.
pub(crate) fn is_world_readable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o004 != 0)
}

/// Returns true if the file's group or every user can read the file at `path`.
pub(crate) fn is_readable_by_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o044 != 0)
}

/// Returns the current fingerprint of the file at `path`, by which a change is recognized, or
/// `None` if the file cannot be examined.
pub(crate) fn stamp_of(path: &Path) -> Option<EntryFingerprint> {
    Some(EntryMeta::from(stat(path).ok()?).stamp())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_that_others_can_write_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let link = folder.path().join("link");
        std::fs::write(&file, "ours").unwrap();
        symlink(&file, &link).unwrap();
        let set = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (mode, good) in [(0o600, true), (0o644, true), (0o660, false), (0o602, false)] {
            set(mode);
            assert_eq!(
                read_owned(&file, OwnedFileSymlinkPolicy::Refused).is_ok(),
                good,
                "{mode:o}"
            );
            assert_eq!(
                read_owned(&link, OwnedFileSymlinkPolicy::Followed).is_ok(),
                good,
                "{mode:o}"
            );
        }
        set(0o600);
        let refused =
            format!("{:#}", read_owned(&link, OwnedFileSymlinkPolicy::Refused).unwrap_err());
        assert!(refused.contains("is a link"), "{refused}");
        let refused = format!(
            "{:#}",
            read_owned(folder.path(), OwnedFileSymlinkPolicy::Refused).unwrap_err()
        );
        assert!(refused.contains("is not a regular file"), "{refused}");
    }

    #[test]
    fn a_replaced_file_has_a_different_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let next = folder.path().join("next");
        std::fs::write(&file, "a").unwrap();
        let (_, stamp) = read_owned(&file, OwnedFileSymlinkPolicy::Refused).unwrap();
        assert_eq!(stamp_of(&file), Some(stamp));
        std::fs::write(&next, "b").unwrap();
        std::fs::rename(&next, &file).unwrap();
        assert_ne!(stamp_of(&file), Some(stamp));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(stamp_of(&file), None);
    }
}
