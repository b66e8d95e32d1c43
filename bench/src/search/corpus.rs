//! Creates a folder of files to search, from the sources of the crates that this repository depends
//! on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

/// File name extensions of the files to copy into the corpus.
const EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "c", "h", "py"];
/// Largest size of a file to copy, in bytes. Most larger files are generated.
const BYTES_MAX: u64 = 256 << 10;

/// Number of copied files, and the total number of their lines and bytes.
pub(super) struct CorpusSize {
    pub(super) files: usize,
    pub(super) lines: u64,
    pub(super) bytes: u64,
}

impl CorpusSize {
    /// Copies the first `files` files below `sources` to `to`. Copies the sources repeatedly, into
    /// new folders, if they have fewer files.
    pub(super) fn with_files(to: &Path, sources: &[PathBuf], files: usize) -> anyhow::Result<Self> {
        Self::copy(to, sources, |corpus| corpus.files < files)
    }

    /// Copies the first files below `sources` to `to` until the copies have `lines` lines together.
    /// Copies the sources repeatedly, into new folders, if they have fewer lines.
    pub(super) fn with_lines(to: &Path, sources: &[PathBuf], lines: u64) -> anyhow::Result<Self> {
        Self::copy(to, sources, |corpus| corpus.lines < lines)
    }

    /// Copies files below `sources` to `to` while `more` returns true for the sizes copied so far.
    /// If the sources are used up, copies them again into new folders.
    fn copy(to: &Path, sources: &[PathBuf], more: impl Fn(&Self) -> bool) -> anyhow::Result<Self> {
        let mut corpus = Self { files: 0, lines: 0, bytes: 0 };
        for round in 0.. {
            let before = corpus.files;
            for folder in sources {
                let name = folder.file_name().context("a folder without a name")?;
                let into = match round {
                    0 => to.join(name),
                    round => to.join(format!("again-{round}")).join(name),
                };
                for file in files(folder)? {
                    if !more(&corpus) {
                        return Ok(corpus);
                    }
                    let Ok(text) = std::fs::read_to_string(&file) else { continue };
                    let into = into.join(file.strip_prefix(folder)?);
                    std::fs::create_dir_all(into.parent().context("no folder")?)?;
                    std::fs::write(&into, &text)?;
                    corpus.files += 1;
                    corpus.lines += text.lines().count() as u64;
                    corpus.bytes += text.len() as u64;
                }
            }
            ensure!(corpus.files > before, "no crate sources found to search");
        }
        Ok(corpus)
    }
}

/// Returns the source folders of the crates that this repository depends on, sorted.
pub(super) fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let args = ["metadata", "--locked", "--format-version", "1", "--manifest-path", target];
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo).args(args).args(["--filter-platform", &host]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let external = packages.iter().filter(|package| package["source"].is_string());
    let manifests = external.filter_map(|package| package["manifest_path"].as_str());
    let mut folders: Vec<PathBuf> =
        manifests.filter_map(|path| Some(Path::new(path).parent()?.to_owned())).collect();
    folders.sort();
    Ok(folders)
}

/// Returns the paths of the files in `folder` to copy, sorted.
pub(super) fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut unread = vec![folder.to_owned()];
    while let Some(folder) = unread.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            let has_extension =
                path.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known));
            if kind.is_dir() {
                unread.push(path);
            } else if kind.is_file() && has_extension && entry.metadata()?.len() <= BYTES_MAX {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
