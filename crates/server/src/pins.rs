//! Approved upstream tools: reads and writes `toolgate.lock` in the workspace.
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

/// Name of the lock file in the workspace.
pub const FILE_NAME: &str = "toolgate.lock";
/// Largest lock file that is read: 64 MiB.
const BYTES_MAX: u64 = 64 << 20;

/// Reads the lock `file`. Returns `None` if it does not exist.
///
/// # Errors
/// A description, when the file cannot be read, is not a regular file, or is invalid.
pub fn read(file: &Path) -> Result<Option<Lock>, String> {
    if fs::symlink_metadata(file).is_err_and(|why| why.kind() == ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = trusted::text(file, Links::Refused, BYTES_MAX).map_err(|why| format!("{why:#}"))?;
    Lock::read(&text).map(Some)
}

/// Comparison between the approved tools of a workspace's upstreams and their current tools.
pub struct Compared {
    file: PathBuf,
    lock: Lock,
    /// Current tools and instructions of each upstream that answered.
    now: BTreeMap<String, Accepted>,
    /// Upstreams that did not answer, each with the reason.
    pub silent: Vec<(String, String)>,
    /// Duplicate tool names, each after its upstream. Such tools are neither served nor approved.
    pub twice: Vec<(String, String)>,
}

impl Compared {
    /// Lists the tools of the upstreams of `config` that are in `wanted`, or of all if it is empty.
    ///
    /// # Errors
    /// When a wanted upstream does not exist, or the lock file cannot be read.
    pub async fn of(root: &Path, config: &Config, wanted: &[String]) -> anyhow::Result<Self> {
        let file = root.join(FILE_NAME);
        let lock = read(&file).map_err(|why| anyhow!(why))?.unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut silent = Vec::new();
        let mut twice = Vec::new();
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

    /// Returns the changes of each upstream that differs from its approved state.
    pub fn changes(&self) -> impl Iterator<Item = (&str, Became)> {
        let none = Accepted::default();
        self.now.iter().filter_map(move |(name, now)| {
            let before = self.lock.upstreams.get(name).unwrap_or(&none);
            Some((name.as_str(), Became::of(before, now)?))
        })
    }

    /// Returns the upstreams for which nothing is approved yet.
    pub fn unpinned(&self) -> impl Iterator<Item = &str> {
        let names = self.now.keys().map(String::as_str);
        names.filter(|name| !self.lock.upstreams.contains_key(*name))
    }

    /// Approves the current tools of each upstream that answered. Returns the path of the lock
    /// file.
    ///
    /// # Errors
    /// When the lock file cannot be written.
    pub fn accept(&mut self) -> anyhow::Result<&Path> {
        let now = self.now.iter().map(|(name, now)| (name.clone(), now.clone()));
        self.lock.upstreams.extend(now);
        let write = || -> anyhow::Result<()> {
            let folder = self.file.parent().unwrap_or(Path::new("."));
            // A server may read the file at the same time, so it is replaced atomically.
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

/// Returns the approvable content of `listing` and its duplicate tool names. Tools with a duplicate
/// name are left out.
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
