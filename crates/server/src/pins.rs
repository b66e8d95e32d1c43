//! Upstreams as someone agreed to them: `toolgate.lock`, in the folder that is served.
#![allow(clippy::disallowed_methods, reason = "the owner's file, which tools may not change")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use toolgate_upstream::Listing;
use toolgate_upstream::pins::{Accepted, Became, Definition, Lock};

use crate::asked;
use crate::config::Config;
use crate::trusted::{self, Links};

/// The file's name, in the folder that is served.
pub const FILE_NAME: &str = "toolgate.lock";
/// How much of such a file is read.
const BYTES_MAX: u64 = 64 << 20;

/// What `file` holds; nothing if there is none.
///
/// # Errors
/// When it cannot be read or believed, with why.
pub fn read(file: &Path) -> Result<Option<Lock>, String> {
    if fs::symlink_metadata(file).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = trusted::text(file, Links::Refused, BYTES_MAX).map_err(|why| format!("{why:#}"))?;
    Lock::read(&text).map(Some)
}

/// What was agreed to of the upstreams of a folder, and what they have now.
pub struct Compared {
    file: PathBuf,
    lock: Lock,
    /// What each upstream has that answered.
    now: BTreeMap<String, Accepted>,
    /// The upstreams that did not, and why.
    pub silent: Vec<(String, String)>,
    /// The tools that an upstream lists twice, so that neither is served or agreed to.
    pub twice: Vec<(String, String)>,
}

impl Compared {
    /// Asks the upstreams of `config` that are in `wanted`, all if that is empty.
    ///
    /// # Errors
    /// When one is wanted that there is not, or what was agreed to cannot be read.
    pub async fn of(root: &Path, config: &Config, wanted: &[String]) -> anyhow::Result<Self> {
        let file = root.join(FILE_NAME);
        let lock = read(&file).map_err(|why| anyhow!(why))?.unwrap_or_default();
        let (mut now, mut silent, mut twice) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (name, listing) in asked::ask(root, config, wanted).await? {
            match listing {
                Ok(listing) => {
                    let (has, doubles) = all(listing);
                    twice.extend(doubles.into_iter().map(|tool| (name.clone(), tool)));
                    now.insert(name, has);
                }
                Err(why) => silent.push((name, why)),
            }
        }
        Ok(Self { file, lock, now, silent, twice })
    }

    /// What became of each upstream, of those of which anything did.
    pub fn changes(&self) -> impl Iterator<Item = (&str, Became)> {
        let none = Accepted::default();
        self.now.iter().filter_map(move |(name, now)| {
            let before = self.lock.upstreams.get(name).unwrap_or(&none);
            Some((name.as_str(), Became::of(before, now)?))
        })
    }

    /// The upstreams that nobody agreed to anything of.
    pub fn unpinned(&self) -> impl Iterator<Item = &str> {
        let names = self.now.keys().map(String::as_str);
        names.filter(|name| !self.lock.upstreams.contains_key(*name))
    }

    /// Writes down that what each has now is agreed to; gives back the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn accept(&mut self) -> anyhow::Result<&Path> {
        let now = self.now.iter().map(|(name, now)| (name.clone(), now.clone()));
        self.lock.upstreams.extend(now);
        let write = || -> anyhow::Result<()> {
            let folder = self.file.parent().unwrap_or(Path::new("."));
            // A server may read it meanwhile.
            let mut beside = tempfile::NamedTempFile::new_in(folder)?;
            beside.write_all(self.lock.write().as_bytes())?;
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            beside.as_file().set_permissions(readable)?;
            beside.persist(&self.file)?;
            Ok(())
        };
        write().with_context(|| format!("{} cannot be written", self.file.display()))?;
        Ok(&self.file)
    }
}

/// What there is to agree to of `listing`, and the names that more than one tool has, so that none
/// of these is.
fn all(listing: Listing) -> (Accepted, Vec<String>) {
    let mut tools = BTreeMap::new();
    let mut doubles = Vec::new();
    for tool in listing.tools.iter().filter_map(Definition::of) {
        let name = tool.name.clone();
        if tools.insert(name.clone(), tool).is_some() && !doubles.contains(&name) {
            doubles.push(name);
        }
    }
    tools.retain(|name, _| !doubles.contains(name));
    (Accepted { instructions: listing.instructions, tools }, doubles)
}
