//! Downloads the sources of the packages of the evaluation set, by name and version.
//!
//! The registries' own clients download them. Each package is checked against the checksum in the
//! list.

pub mod draw;
mod archives;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::set::{PackageLanguage, PackageSplit};

/// Entry of the list of packages to download: name, version, registry and checksum.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PackageSource {
    pub name: String,
    pub version: String,
    pub kind: RegistryPackageKind,
    /// Checksum of the package in its registry.
    pub sha256: String,
}

/// Kind of a package, which determines its registry and its language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegistryPackageKind {
    Crate,
    Wheel,
    Sdist,
    /// Debian package that contains a Rust crate.
    RustDeb,
    /// Debian package that contains JavaScript sources.
    NodeDeb,
    /// Debian package that contains Go sources.
    GoDeb,
    /// Debian package that contains Ruby sources.
    RubyDeb,
}

impl PackageSource {
    /// Returns the programming language of the package.
    pub fn lang(&self) -> PackageLanguage {
        match self.kind {
            RegistryPackageKind::Crate | RegistryPackageKind::RustDeb => PackageLanguage::Rust,
            RegistryPackageKind::Wheel | RegistryPackageKind::Sdist => PackageLanguage::Python,
            RegistryPackageKind::NodeDeb => PackageLanguage::JavaScript,
            RegistryPackageKind::GoDeb => PackageLanguage::Go,
            RegistryPackageKind::RubyDeb => PackageLanguage::Ruby,
        }
    }

    /// Returns the folder below `folder` into which the package was downloaded.
    pub fn folder(&self, folder: &Path) -> PathBuf {
        let name = self.name.replace('/', "+");
        folder.join(format!("{name}-{}", self.version.replace([':', '/'], "_")))
    }
}

/// Returns the folder for downloaded packages and for all data computed from them.
pub fn folder() -> PathBuf {
    checkout().join("target/eval")
}

/// Returns the root folder of the checkout.
pub fn checkout() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// Reads the list of packages of `split`.
pub fn list_packages(split: PackageSplit) -> anyhow::Result<Vec<PackageSource>> {
    let path = checkout().join(match split {
        PackageSplit::Fresh => draw::FRESH_FILE,
        PackageSplit::Report | PackageSplit::Tune | PackageSplit::Train => {
            "tests/search-eval/packages.toml"
        }
    });
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut lists: BTreeMap<String, Vec<PackageSource>> =
        toml::from_str(&text).with_context(|| path.display().to_string())?;
    lists
        .remove(split.name())
        .with_context(|| format!("{} has no `{}`", path.display(), split.name()))
}

/// Downloads the missing packages of `list`. Returns the folder that has a subfolder for each
/// package.
pub fn fetch(split: PackageSplit, list: &[PackageSource]) -> anyhow::Result<PathBuf> {
    fetch_into(split.name(), list)
}

/// Downloads the missing packages of `list` into the subfolder `name`, and returns the path of that
/// subfolder.
pub fn fetch_into(name: &str, list: &[PackageSource]) -> anyhow::Result<PathBuf> {
    let sources = folder().join("sources").join(name);
    std::fs::create_dir_all(&sources)?;
    let missing = |kind: RegistryPackageKind| {
        let of_kind = list.iter().filter(|it| it.kind == kind);
        of_kind.filter(|it| !it.folder(&sources).is_dir()).collect::<Vec<_>>()
    };
    fetch_crates(&missing(RegistryPackageKind::Crate), &sources)?;
    fetch_wheels(&missing(RegistryPackageKind::Wheel), &sources)?;
    for source in missing(RegistryPackageKind::Sdist) {
        fetch_sdist(source, &sources)?;
    }
    for kind in archives::DEBIAN_KINDS {
        for source in missing(kind) {
            archives::fetch(source, &sources)?;
        }
    }
    Ok(sources)
}

/// Downloads crates with `cargo vendor`, as dependencies of a temporary package. If crates are
/// incompatible with each other, downloads each half of the list separately.
fn fetch_crates(missing: &[&PackageSource], sources: &Path) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("fetching {} crates", missing.len());
    let work = create_empty(&sources.join(".crates"))?;
    std::fs::create_dir(work.join("src"))?;
    std::fs::write(work.join("src/lib.rs"), "")?;
    let mut manifest = "[workspace]\n[package]\nname = \"sources\"\nedition = \"2024\"\n\
         [dependencies]\n"
        .to_owned();
    for PackageSource { name, version, .. } in missing {
        let line = format!("{name} = {{ version = \"={version}\", default-features = false }}\n");
        manifest.push_str(&line);
    }
    std::fs::write(work.join("Cargo.toml"), manifest)?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let vendor = ["vendor", "--quiet", "--versioned-dirs"];
    let vendored = run(Command::new(cargo).args(vendor).current_dir(&work));
    match missing {
        [] | [_] => vendored?,
        _ if vendored.is_err() => {
            let (one, other) = missing.split_at(missing.len() / 2);
            fetch_crates(one, sources)?;
            return fetch_crates(other, sources);
        }
        _ => {}
    }
    for source in missing {
        let vendored = source.folder(&work.join("vendor"));
        let sums = std::fs::read_to_string(vendored.join(".cargo-checksum.json"))?;
        let sums: serde_json::Value = serde_json::from_str(&sums)?;
        let found = sums["package"].as_str().unwrap_or_default();
        ensure!(found == source.sha256, "`{}` has the wrong checksum {found}", source.name);
        std::fs::rename(&vendored, source.folder(sources))?;
    }
    Ok(std::fs::remove_dir_all(&work)?)
}

/// Downloads Python wheels with `pip download`, for the same platform on every machine.
fn fetch_wheels(missing: &[&PackageSource], sources: &Path) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("fetching {} wheels", missing.len());
    let work = create_empty(&sources.join(".wheels"))?;
    let line =
        |it: &&PackageSource| format!("{}=={} --hash=sha256:{}\n", it.name, it.version, it.sha256);
    let requirements: String = missing.iter().map(line).collect();
    std::fs::write(work.join("requirements.txt"), requirements)?;
    let mut pip = Command::new("python3");
    add_wheel_options(&mut pip);
    run(pip.args(["--require-hashes", "-r", "requirements.txt"]).current_dir(&work))?;
    let normalize = |name: &str| name.to_lowercase().replace(['-', '.'], "_");
    for entry in std::fs::read_dir(&work)? {
        let file = entry?.file_name().into_string().unwrap_or_default();
        let Some(wheel) = file.strip_suffix(".whl") else { continue };
        let name = normalize(wheel.split('-').next().unwrap_or_default());
        let source = missing.iter().find(|it| normalize(&it.name) == name);
        let Some(source) = source else { bail!("`{file}` was not requested") };
        let unpacked = work.join("unpacked");
        run(Command::new("python3")
            .args(["-m", "zipfile", "-e", &file, "unpacked"])
            .current_dir(&work))?;
        std::fs::rename(unpacked, source.folder(sources))?;
    }
    Ok(std::fs::remove_dir_all(&work)?)
}

/// Adds options to a `pip download` that select wheels for the same platform on every machine.
fn add_wheel_options(pip: &mut Command) -> &mut Command {
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    pip.args(["--python-version", "3.12", "--implementation", "cp"]);
    for platform in ["manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"] {
        pip.args(["--platform", platform]);
    }
    pip.args(["--platform", "any", "--abi", "cp312", "--abi", "abi3", "--abi", "none"])
}

/// Downloads the source archive of a Python package with `pip download`, and unpacks it.
fn fetch_sdist(source: &PackageSource, sources: &Path) -> anyhow::Result<()> {
    let PackageSource { name, version, sha256, .. } = source;
    eprintln!("fetching the sources of {name}; this takes some minutes");
    let work = create_empty(&sources.join(".sdist"))?;
    let line = format!("{name}=={version} --hash=sha256:{sha256}\n");
    std::fs::write(work.join("requirements.txt"), line)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]);
    run(pip.args(["--require-hashes", "-r", "requirements.txt"]).current_dir(&work))?;
    let mut files = std::fs::read_dir(&work)?.filter_map(Result::ok).map(|entry| entry.path());
    let archive = files.find(|path| path.extension().is_some_and(|it| it == "gz"));
    let archive = archive.with_context(|| format!("`{name}` has no archive of its sources"))?;
    let unpacked = create_empty(&work.join("unpacked"))?;
    run(Command::new("tar")
        .arg("xzf")
        .arg(&archive)
        .arg("--strip-components=1")
        .arg("-C")
        .arg(&unpacked))?;
    std::fs::rename(unpacked, source.folder(sources))?;
    Ok(std::fs::remove_dir_all(&work)?)
}

/// Deletes `folder`, creates it again, and returns its path.
fn create_empty(folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}
