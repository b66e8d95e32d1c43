//! Downloads Debian packages. Their versions are those of Debian 12 on amd64.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use sha2::{Digest, Sha256};

use super::{PackageSource, RegistryPackageKind, create_empty, run};

/// Kinds of packages that are downloaded from Debian.
pub(super) const DEBIAN_KINDS: [RegistryPackageKind; 4] = [
    RegistryPackageKind::RustDeb,
    RegistryPackageKind::NodeDeb,
    RegistryPackageKind::GoDeb,
    RegistryPackageKind::RubyDeb,
];

/// Downloads `source` into the folder `sources`, and fails if its checksum differs.
pub(super) fn fetch(source: &PackageSource, sources: &Path) -> anyhow::Result<()> {
    let fetched = fetch_version(source.kind, &source.name, Some(&source.version), sources)?;
    if fetched.sha256 != source.sha256 {
        std::fs::remove_dir_all(fetched.folder(sources))?;
        bail!("`{}` has the wrong checksum {}", source.name, fetched.sha256);
    }
    Ok(())
}

/// Downloads the package `name` into the folder `sources`, in the newest version if `version` is
/// `None`. Returns the package with its checksum.
pub(super) fn fetch_version(
    kind: RegistryPackageKind,
    name: &str,
    version: Option<&str>,
    sources: &Path,
) -> anyhow::Result<PackageSource> {
    eprintln!("fetching {name}");
    let work = create_empty(&sources.join(".archive"))?;
    let unpacked = create_empty(&work.join("unpacked"))?;
    let requested = version.map_or(name.to_owned(), |it| format!("{name}={it}"));
    run(Command::new("apt-get").args(["download", &requested]).current_dir(&work)).with_context(
        || format!("cannot download `{requested}`; run `apt-get update` on Debian 12, amd64"),
    )?;
    let archive = file_with_extension(&work, "deb")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    let output = Command::new("dpkg-deb").arg("-f").arg(&archive).arg("Version").output()?;
    ensure!(output.status.success(), "`{}` has no version", archive.display());
    let version = String::from_utf8(output.stdout)?.trim().to_owned();
    let sha256 = file_sha256(&archive)?;
    let source = PackageSource { name: name.to_owned(), version, kind, sha256 };
    let folder = create_empty(&source.folder(sources))?;
    std::fs::rename(&unpacked, folder)?;
    std::fs::remove_dir_all(&work)?;
    Ok(source)
}

/// Returns the only file in `folder` that has the extension `extension`.
pub(super) fn file_with_extension(folder: &Path, extension: &str) -> anyhow::Result<PathBuf> {
    let files = std::fs::read_dir(folder)?.filter_map(Result::ok).map(|entry| entry.path());
    let mut found = files.filter(|path| path.extension().is_some_and(|it| it == extension));
    found.next().with_context(|| format!("no .{extension} file in {}", folder.display()))
}

/// Returns the SHA-256 of a file in hexadecimal digits.
pub(super) fn file_sha256(path: &Path) -> anyhow::Result<String> {
    let hash = Sha256::digest(std::fs::read(path)?);
    Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}
