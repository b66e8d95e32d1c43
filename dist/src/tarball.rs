//! Writes a tarball with the binary, shell completions, the service unit and licenses.

use crate::archive::{ArchiveFileTree, TarPathStyle, gzip};
use crate::deb::{SERVICE_SETTINGS, SERVICE_UNIT, SERVICE_USER};
use crate::release::PlatformRelease;

/// Returns the file name and the bytes of the tarball.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let stem = release.stem();
    let mut tree = ArchiveFileTree::default();
    tree.program(format!("{stem}/toolgate"), release.binary.as_slice());
    tree.file(format!("{stem}/CHANGELOG.md"), release.changelog.as_slice());
    tree.file(format!("{stem}/systemd/toolgate.service"), SERVICE_UNIT);
    tree.file(format!("{stem}/systemd/sysusers.conf"), SERVICE_USER);
    tree.file(format!("{stem}/systemd/toolgate.toml"), SERVICE_SETTINGS);
    tree.file(format!("{stem}/completions/toolgate.bash"), release.completions.bash.as_slice());
    tree.file(format!("{stem}/completions/_toolgate"), release.completions.zsh.as_slice());
    tree.file(format!("{stem}/completions/toolgate.fish"), release.completions.fish.as_slice());
    release.add_licenses(&mut tree, &stem);
    let tar = tree.tar(release.epoch, TarPathStyle::Plain)?;
    Ok((format!("{stem}.tar.gz"), gzip(&tar, release.level)?))
}
