//! Measures the memory and the open files of a gateway process.

use std::fs;

use anyhow::Context;

/// Memory and number of open files of a process at one moment.
#[derive(Clone, Copy)]
pub(super) struct ServerResourceUse {
    /// Resident memory that maps no file, in MiB.
    pub(super) memory_mib: f64,
    pub(super) open_files: usize,
}

impl ServerResourceUse {
    /// Measures the current memory and open files of the process `pid`.
    pub(super) fn measure(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = kib.and_then(|line| line.trim().strip_suffix("kB")).context("no RssAnon")?;
        let kib: u32 = kib.trim().parse()?;
        let open_files = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok(Self { memory_mib: f64::from(kib) / 1024.0, open_files })
    }

    /// Returns the greater of both values, for memory and for open files separately.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            memory_mib: self.memory_mib.max(other.memory_mib),
            open_files: self.open_files.max(other.open_files),
        }
    }
}
