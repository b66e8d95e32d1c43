//! Folders of one attempt: the workspace, a neighboring folder that nobody may read or change, and
//! a home.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Folders and secret marks of one attempt.
#[derive(Debug)]
pub(super) struct AttackFolders {
    /// Folder that contains all other folders of the attempt.
    pub(super) base: PathBuf,
    /// Parent folder of the workspace and of its neighbor.
    pub(super) parent: PathBuf,
    /// Workspace that the server serves. Cases call it `{WS}`.
    pub(super) ws: PathBuf,
    /// Neighboring folder that the server must not read or change. Cases call it `{EVIL}`.
    pub(super) evil: PathBuf,
    pub(super) home: PathBuf,
    /// Random text that only files outside the workspace contain.
    pub(super) canary: String,
    /// Random text that only the environment of the server contains.
    pub(super) env_canary: String,
}

/// Content and metadata of all files in a folder, by path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FolderSnapshot(BTreeMap<PathBuf, FolderEntryState>);

#[derive(Debug, PartialEq, Eq)]
struct FolderEntryState {
    mode: u32,
    links: u64,
    mtime: (i64, i64),
    owner: (u32, u32),
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl AttackFolders {
    pub(super) fn create(base: PathBuf) -> anyhow::Result<Self> {
        let parent = base.join("p");
        let folders = Self {
            ws: parent.join("ws"),
            evil: parent.join("ws_evil"),
            home: base.join("home"),
            canary: format!("canary-{}", random_hex(16)?),
            env_canary: format!("envcanary-{}", random_hex(16)?),
            parent,
            base,
        };
        fs::create_dir_all(&folders.ws)?;
        fs::create_dir_all(&folders.evil)?;
        fs::create_dir_all(folders.home.join("envelopes"))?;
        fs::write(folders.evil.join("secret"), &folders.canary)?;
        fs::write(folders.evil.join("victim"), "as it was\n")?;
        fs::write(folders.evil.join("s.py"), format!("canary = '{}'\n", folders.canary))?;
        fs::write(folders.ws.join("ok.txt"), "ok\n")?;
        Ok(folders)
    }

    /// Replaces the placeholders for folders, such as `{WS}`, in `text`.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{WS}", &self.ws.to_string_lossy())
            .replace("{EVIL}", &self.evil.to_string_lossy())
            .replace("{PARENT}", &self.parent.to_string_lossy())
            .replace("{CANARY}", &self.canary)
    }

    /// Returns the names of all files and folders in the parent folder of the workspace.
    pub(super) fn sibling_names(&self) -> anyhow::Result<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(&self.parent)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<anyhow::Result<_>>()?;
        names.sort();
        Ok(names)
    }
}

impl FolderSnapshot {
    pub(super) fn take(folder: &Path) -> anyhow::Result<Self> {
        let mut entries = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            let meta = fs::symlink_metadata(&next).with_context(|| next.display().to_string())?;
            let content = if meta.is_symlink() {
                fs::read_link(&next)?.into_os_string().into_encoded_bytes()
            } else if meta.is_file() {
                fs::read(&next)?
            } else {
                Vec::new()
            };
            if meta.is_dir() {
                for entry in fs::read_dir(&next)? {
                    folders.push(entry?.path());
                }
            }
            let entry = FolderEntryState {
                mode: meta.permissions().mode(),
                // A folder has one link more for each folder in it, and those are entries, too.
                links: if meta.is_dir() { 0 } else { meta.nlink() },
                mtime: (meta.mtime(), meta.mtime_nsec()),
                owner: (meta.uid(), meta.gid()),
                content,
                xattrs: xattrs(&next),
            };
            entries.insert(next, entry);
        }
        Ok(Self(entries))
    }

    /// Returns the snapshot without the number of hard links of `file`, because the attack adds a
    /// link.
    pub(super) fn ignoring_links_of(mut self, file: &Path) -> Self {
        if let Some(entry) = self.0.get_mut(file) {
            entry.links = 0;
        }
        self
    }

    /// Describes the differences between this snapshot and `after` in one line. Returns `None` if
    /// they are equal.
    pub(super) fn difference(&self, after: &Self) -> Option<String> {
        let mut changes = String::new();
        for (path, before) in &self.0 {
            let name = path.display();
            match after.0.get(path) {
                None => _ = write!(changes, "{name} is missing; "),
                Some(now) if now == before => {}
                Some(now) => {
                    let mut parts = Vec::new();
                    for (word, same) in [
                        ("content", now.content == before.content),
                        ("mode", now.mode == before.mode),
                        ("links", now.links == before.links),
                        ("mtime", now.mtime == before.mtime),
                        ("owner", now.owner == before.owner),
                        ("xattrs", now.xattrs == before.xattrs),
                    ] {
                        if !same {
                            parts.push(word);
                        }
                    }
                    _ = write!(changes, "{name} has a different {}; ", parts.join(", "));
                }
            }
        }
        for path in after.0.keys().filter(|path| !self.0.contains_key(*path)) {
            _ = write!(changes, "{} is new; ", path.display());
        }
        (!changes.is_empty()).then(|| changes.trim_end_matches("; ").to_owned())
    }
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0_u8; 4096];
    // A file system may not support them.
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else { return Vec::new() };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0_u8; 4096];
            let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap_or(0);
            value.truncate(length);
            (name.to_owned(), value)
        })
        .collect()
}

/// Returns `bytes` random bytes as hexadecimal digits.
pub(super) fn random_hex(bytes: usize) -> anyhow::Result<String> {
    let mut all = vec![0; bytes];
    fs::File::open("/dev/urandom")?.read_exact(&mut all)?;
    Ok(all.iter().map(|byte| format!("{byte:02x}")).collect())
}
