//! What the gateway takes of this machine.

use std::fs;

use anyhow::Context;

/// What it takes at a moment.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// Memory that is its own and of no file.
    pub(super) mib: f64,
    pub(super) files: usize,
}

impl Load {
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = kib.and_then(|line| line.trim().strip_suffix("kB")).context("no RssAnon")?;
        let kib: u32 = kib.trim().parse()?;
        let files = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(Self { mib: f64::from(kib) / 1024.0, files })
    }

    /// The most of either.
    pub(super) fn most(self, other: Self) -> Self {
        Self { mib: self.mib.max(other.mib), files: self.files.max(other.files) }
    }
}
