//! Runs blocking disk work on separate threads, not on the threads that serve calls.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::fstatfs;
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallEvent, CallEventSink, ToolContext, ToolError};

use super::Root;

/// The maximum number of disk operations that run in a workspace at once. Each operation keeps a
/// few files open.
pub(super) const CONCURRENT_WORK_MAX: usize = 16;
/// The shortest time between two progress messages, in milliseconds.
const PROGRESS_INTERVAL_MS: u64 = 200;

/// The magic numbers of file systems that are remote or served by a program (FUSE).
const REMOTE_FILE_SYSTEMS: [u32; 12] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x6573_5546, // FUSE
    0x0102_1997, // 9p
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x6b41_4653, // kAFS
    0x7375_7245, // Coda
    0x0bd0_0bd0, // Lustre
    0x0116_1970, // GFS2
];

impl Root {
    /// Returns `true` if the root is on a local file system, where small requests are fast.
    ///
    /// Cache the result, because this query waits for the disk.
    pub fn is_local(&self) -> bool {
        let Ok(stat) = fstatfs(self.dir()) else { return false };
        !REMOTE_FILE_SYSTEMS.iter().any(|&magic| stat.f_type == i64::from(magic))
    }

    /// Runs `work` on a blocking thread, as soon as fewer than 16 other disk operations run in this
    /// workspace.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        ctx: &ToolContext,
        work: impl FnOnce(&Self, &DiskWorkMonitor) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let watch = DiskWorkMonitor::new(ctx.cancel.clone(), ctx.events.clone());
        let room = ctx.run_unless_canceled(self.handle.work_slots.clone().acquire_owned()).await?;
        let root = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _room = room;
            work(&root, &watch)
        });
        match done.await {
            Ok(outcome) => outcome,
            Err(err) if err.is_panic() => resume_unwind(err.into_panic()),
            Err(_) => Err(ToolError::canceled()),
        }
    }
}

/// The cancellation token of a disk operation, and the channel to which the operation reports
/// progress.
pub struct DiskWorkMonitor {
    cancel: CancellationToken,
    events: CallEventSink,
    since: Instant,
    /// The time of the last progress message, in milliseconds after the start of the work.
    reported_ms: AtomicU64,
}

impl DiskWorkMonitor {
    fn new(cancel: CancellationToken, events: CallEventSink) -> Self {
        Self { cancel, events, since: Instant::now(), reported_ms: AtomicU64::new(0) }
    }

    /// Creates a monitor that `cancel` cancels and that reports no progress.
    pub fn silent(cancel: CancellationToken) -> Self {
        Self::new(cancel, CallEventSink::none())
    }

    /// Fails if the disk work has been cancelled.
    pub fn check_cancelled(&self) -> Result<(), ToolError> {
        if self.cancel.is_cancelled() { Err(ToolError::canceled()) } else { Ok(()) }
    }

    /// Sends the progress `done` of `total` in the unit `unit`, unless the last progress event was
    /// sent less than 200 ms ago.
    pub fn report_progress(&self, done: u64, total: Option<u64>, unit: &str) {
        if !self.events.has_receiver() {
            return;
        }
        let now_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now_ms < self.reported_ms.load(Ordering::Relaxed) + PROGRESS_INTERVAL_MS {
            return;
        }
        self.reported_ms.store(now_ms, Ordering::Relaxed);
        #[allow(clippy::cast_precision_loss, reason = "progress may be approximate")]
        let part = done as f64;
        let whole = total.map(|total| total as f64);
        let message = Some(format!("{done} {unit}"));
        self.events.send(CallEvent::Progress { done: part, total: whole, message });
    }
}

/// Creates a monitor for short work, which is never cancelled and reports no progress.
impl Default for DiskWorkMonitor {
    fn default() -> Self {
        Self::new(CancellationToken::new(), CallEventSink::none())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_folder_of_this_machine_is_local() {
        for path in ["/proc", "/dev/shm"] {
            assert!(Root::open(Path::new(path)).unwrap().is_local(), "{path}");
        }
    }
}
