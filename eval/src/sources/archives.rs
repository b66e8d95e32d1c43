//! Fetches packages that come as one archive: those of npm and Debian.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use sha2::{Digest, Sha256};

use super::{PackageKind, PackageSource, create_empty, run};

/// Fetches `source` into the folder `sources`, and verifies its checksum.
pub(super) fn fetch(source: &PackageSource, sources: &Path) -> anyhow::Result<()> {
    let fetched = fetch_version(source.kind, &source.name, Some(&source.version), sources)?;
    if fetched.sha256 != source.sha256 {
        std::fs::remove_dir_all(fetched.folder(sources))?;
        bail!("`{}` has the wrong checksum {}", source.name, fetched.sha256);
    }
    Ok(())
}

/// Fetches a version of the package `name`, by default the newest. Returns it with its checksum.
pub(super) fn fetch_version(
    kind: PackageKind,
    name: &str,
    version: Option<&str>,
    sources: &Path,
) -> anyhow::Result<PackageSource> {
    eprintln!("fetching {name}");
    let work = create_empty(&sources.join(".archive"))?;
    let unpacked = create_empty(&work.join("unpacked"))?;
    let at = |separator: &str| match version {
        Some(version) => format!("{name}{separator}{version}"),
        None => name.to_owned(),
    };
    let (archive, version) = match kind {
        PackageKind::Npm => {
            run(Command::new("npm").args(["pack", "--silent", &at("@")]).current_dir(&work))?;
            let archive = file_with_extension(&work, "tgz")?;
            let tar = ["--strip-components=1", "-C", "unpacked", "-xzf"];
            run(Command::new("tar").args(tar).arg(&archive).current_dir(&work))?;
            let manifest = std::fs::read_to_string(unpacked.join("package.json"))?;
            let manifest: serde_json::Value = serde_json::from_str(&manifest)?;
            (archive, manifest["version"].as_str().unwrap_or_default().to_owned())
        }
        PackageKind::GoDeb | PackageKind::RubyDeb => {
            run(Command::new("apt-get").args(["download", &at("=")]).current_dir(&work))?;
            let archive = file_with_extension(&work, "deb")?;
            run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
            let output =
                Command::new("dpkg-deb").arg("-f").arg(&archive).arg("Version").output()?;
            ensure!(output.status.success(), "`{}` has no version", archive.display());
            (archive, String::from_utf8(output.stdout)?.trim().to_owned())
        }
        PackageKind::Crate | PackageKind::Wheel | PackageKind::Sdist => {
            bail!("`{name}` is not an archive of npm or Debian")
        }
    };
    let sha256 = file_sha256(&archive)?;
    let source = PackageSource { name: name.to_owned(), version, kind, sha256 };
    let folder = create_empty(&source.folder(sources))?;
    std::fs::rename(&unpacked, folder)?;
    std::fs::remove_dir_all(&work)?;
    Ok(source)
}

/// Returns the only file in `folder` with this extension.
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
