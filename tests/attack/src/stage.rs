//! Where one attack happens: a folder to be served, its neighbour that nobody may see, and a home.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The folders of one attack.
#[derive(Debug)]
pub(super) struct Stage {
    /// All of it.
    pub(super) base: PathBuf,
    /// What holds the workspace and its neighbour.
    pub(super) parent: PathBuf,
    pub(super) ws: PathBuf,
    pub(super) evil: PathBuf,
    pub(super) home: PathBuf,
    /// What stands in files outside the workspace, and nowhere else.
    pub(super) canary: String,
    /// What stands in the server's environment, and nowhere else.
    pub(super) env_canary: String,
}

/// How a folder is, to the last bit that can be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tree(BTreeMap<PathBuf, Entry>);

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mode: u32,
    links: u64,
    mtime: (i64, i64),
    owner: (u32, u32),
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Stage {
    pub(super) fn set(base: PathBuf) -> anyhow::Result<Self> {
        let parent = base.join("p");
        let stage = Self {
            ws: parent.join("ws"),
            evil: parent.join("ws_evil"),
            home: base.join("home"),
            canary: format!("canary-{}", random(16)?),
            env_canary: format!("envcanary-{}", random(16)?),
            parent,
            base,
        };
        fs::create_dir_all(&stage.ws)?;
        fs::create_dir_all(&stage.evil)?;
        fs::create_dir_all(stage.home.join("envelopes"))?;
        fs::write(stage.evil.join("secret"), &stage.canary)?;
        fs::write(stage.evil.join("victim"), "as it was\n")?;
        fs::write(stage.evil.join("s.py"), format!("canary = '{}'\n", stage.canary))?;
        fs::write(stage.ws.join("ok.txt"), "ok\n")?;
        Ok(stage)
    }

    /// `text` with the names of this stage in it.
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{WS}", &self.ws.to_string_lossy())
            .replace("{EVIL}", &self.evil.to_string_lossy())
            .replace("{PARENT}", &self.parent.to_string_lossy())
            .replace("{CANARY}", &self.canary)
    }

    /// What lies beside the workspace and its neighbour.
    pub(super) fn names(&self) -> anyhow::Result<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(&self.parent)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<anyhow::Result<_>>()?;
        names.sort();
        Ok(names)
    }
}

impl Tree {
    pub(super) fn of(folder: &Path) -> anyhow::Result<Self> {
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
            let entry = Entry {
                mode: meta.permissions().mode(),
                // A folder's links are its folders, which are entries themselves.
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

    /// Does not look at how many links `file` has: one of them is the attack's own.
    pub(super) fn leaving_links_of(mut self, file: &Path) -> Self {
        if let Some(entry) = self.0.get_mut(file) {
            entry.links = 0;
        }
        self
    }

    /// What is otherwise in `after`, in a line; nothing if it is the same.
    pub(super) fn changed(&self, after: &Self) -> Option<String> {
        let mut changes = String::new();
        for (path, before) in &self.0 {
            let name = path.display();
            match after.0.get(path) {
                None => _ = write!(changes, "{name} is gone; "),
                Some(now) if now == before => {}
                Some(now) => {
                    let mut what = Vec::new();
                    for (word, same) in [
                        ("content", now.content == before.content),
                        ("mode", now.mode == before.mode),
                        ("links", now.links == before.links),
                        ("mtime", now.mtime == before.mtime),
                        ("owner", now.owner == before.owner),
                        ("xattrs", now.xattrs == before.xattrs),
                    ] {
                        if !same {
                            what.push(word);
                        }
                    }
                    _ = write!(changes, "{name} has another {}; ", what.join(", "));
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
    // A file system without them has none.
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

/// So many random bytes, in hexadecimal.
pub(super) fn random(bytes: usize) -> anyhow::Result<String> {
    let mut all = vec![0; bytes];
    fs::File::open("/dev/urandom")?.read_exact(&mut all)?;
    Ok(all.iter().map(|byte| format!("{byte:02x}")).collect())
}
