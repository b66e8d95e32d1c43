//! Writes a Debian package: the binary, a systemd unit that the package does not start, and shell
//! completions.

use ar::{Builder, Header};

use crate::archive::{ArchiveFileTree, CompressionLevel, TarPathStyle, gzip};
use crate::release::{PlatformRelease, SUMMARY, VERSION};

/// Text of the systemd unit. It explains each exception from its hardening.
pub(crate) const SERVICE_UNIT: &str = include_str!("../files/toolgate.service");

/// Declaration of the user that runs the service, for systemd-sysusers.
pub(crate) const SERVICE_USER: &str = include_str!("../files/sysusers.conf");

/// Text of the service's settings file, which administrators edit.
pub(crate) const SERVICE_SETTINGS: &str = include_str!("../files/toolgate.toml");

/// Scripts of the package by name. dpkg runs one after installation, and one before removal.
const SCRIPTS: [(&str, &str); 2] =
    [("postinst", include_str!("../files/postinst")), ("prerm", include_str!("../files/prerm"))];

/// Returns the file name and the bytes of the Debian package.
pub(crate) fn pack(release: &PlatformRelease) -> anyhow::Result<(String, Vec<u8>)> {
    let data = installed_files(release)?;
    let installed_kib = data.files().map(|(_, bytes)| bytes.len().div_ceil(1024)).sum::<usize>();
    let mut control = ArchiveFileTree::default();
    control.file("control", control_file(release, installed_kib));
    control.file("conffiles", "/etc/toolgate/toolgate.toml\n");
    for (name, script) in SCRIPTS {
        control.program(name, script);
    }
    let compressed = |tree: &ArchiveFileTree| -> anyhow::Result<Vec<u8>> {
        gzip(&tree.tar(release.epoch, TarPathStyle::Dotted)?, release.level)
    };
    let mut builder = Builder::new(Vec::new());
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", compressed(&control)?),
        ("data.tar.gz", compressed(&data)?),
    ];
    for (name, bytes) in members {
        let mut header = Header::new(name.into(), bytes.len() as u64);
        header.set_mtime(release.epoch);
        header.set_mode(0o100_644);
        builder.append(&header, bytes.as_slice())?;
    }
    let name = format!("toolgate_{VERSION}_{}.deb", release.target.debian);
    Ok((name, builder.into_inner()?))
}

/// Returns the files that the Debian package installs.
fn installed_files(release: &PlatformRelease) -> anyhow::Result<ArchiveFileTree> {
    let mut tree = ArchiveFileTree::default();
    tree.program("usr/bin/toolgate", release.binary.as_slice());
    tree.file("usr/lib/systemd/system/toolgate.service", SERVICE_UNIT);
    tree.file("usr/lib/sysusers.d/toolgate.conf", SERVICE_USER);
    tree.file("etc/toolgate/toolgate.toml", SERVICE_SETTINGS);
    let completions = &release.completions;
    tree.file("usr/share/bash-completion/completions/toolgate", completions.bash.as_slice());
    tree.file("usr/share/zsh/vendor-completions/_toolgate", completions.zsh.as_slice());
    tree.file("usr/share/fish/vendor_completions.d/toolgate.fish", completions.fish.as_slice());
    let best = CompressionLevel(9);
    tree.file("usr/share/doc/toolgate/changelog.gz", gzip(&release.changelog, best)?);
    let others = gzip(release.other_licenses.as_bytes(), best)?;
    tree.file("usr/share/doc/toolgate/licenses-of-others.gz", others);
    let copyright = [
        "toolgate is licensed under the Apache License 2.0, which follows. licenses-of-others.gz has\n\
         the licenses of the crates that it contains.\n\n"
            .as_bytes(),
        &release.license,
    ];
    tree.file("usr/share/doc/toolgate/copyright", copyright.concat());
    Ok(tree)
}

/// Returns the text of the package's file `control`. Its dependencies follow from the libraries
/// that the binary needs.
fn control_file(release: &PlatformRelease, installed_kib: usize) -> String {
    let mut depends = format!("libc6 (>= {})", release.needs.glibc);
    if release.needs.libraries.iter().any(|name| name.starts_with("libgcc_s.so")) {
        depends += ", libgcc-s1";
    }
    let (architecture, homepage) = (release.target.debian, &release.source_url);
    format!(
        "Package: toolgate\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The toolgate contributors <toolgate@example.invalid>\n\
         Installed-Size: {installed_kib}\n\
         Depends: {depends}\n\
         Recommends: ca-certificates, git\n\
         Section: devel\n\
         Priority: optional\n\
         Homepage: {homepage}\n\
         Description: server that gives AI agents tools for a folder\n \
         {SUMMARY}\n \
         Agents connect over stdio or HTTP with the Model Context Protocol (MCP).\n"
    )
}
