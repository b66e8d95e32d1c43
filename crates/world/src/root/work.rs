//! Runs blocking disk work on separate threads, not on the threads that serve calls.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::available_parallelism;
use std::time::Instant;

use rustix::fs::fstatfs;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use toolgate_contract::{CallEvent, CallEventSink, ToolContext, ToolError, lock_mutex};
use toolgate_net::spawn_blocking;

use super::Root;

/// The maximum number of disk operations that run in a workspace at once. Each operation keeps a
/// few files open.
const CONCURRENT_WORK_MAX: usize = 16;
/// The range of the maximum number of disk operations that run at once for one caller: one for each
/// processor. The rest is for other callers, who would otherwise wait for slots and processors.
const CALLER_WORK_MAX: RangeInclusive<usize> = 4..=CONCURRENT_WORK_MAX / 2;
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
    /// workspace, and fewer than 4 to 8 for the same caller, depending on the processors.
    pub async fn run_blocking<T: Send + 'static>(
        &self,
        ctx: &ToolContext,
        work: impl FnOnce(&Self, &DiskWorkMonitor) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        let watch = DiskWorkMonitor::new(ctx.cancel.clone(), ctx.events.clone());
        let slot = self.handle.work_slots.acquire(&ctx.caller.name);
        let slot = ctx.run_unless_canceled(slot).await?;
        let root = self.clone();
        let done = spawn_blocking(move || {
            let _slot = slot;
            work(&root, &watch)
        });
        match done.await {
            Ok(outcome) => outcome,
            Err(err) if err.is_panic() => resume_unwind(err.into_panic()),
            Err(_) => Err(ToolError::canceled()),
        }
    }
}

/// The slots for disk operations in a workspace: a number for all callers together, and a smaller
/// one for each caller.
pub(super) struct DiskWorkSlots {
    total: Arc<Semaphore>,
    /// The number of slots of one caller.
    caller_max: usize,
    /// The slots of each caller that has disk operations, by the caller's name.
    by_caller: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

impl DiskWorkSlots {
    /// Waits for a slot for a disk operation of `caller`. The slot is free again when both permits
    /// are dropped.
    async fn acquire(&self, caller: &Arc<str>) -> [OwnedSemaphorePermit; 2] {
        let own = self.slots_of(caller).acquire_owned().await;
        let total = self.total.clone().acquire_owned().await;
        [own, total].map(|permit| permit.expect("the semaphore is never closed"))
    }

    fn slots_of(&self, caller: &Arc<str>) -> Arc<Semaphore> {
        let mut by_caller = lock_mutex(&self.by_caller);
        if let Some(slots) = by_caller.get(caller).and_then(Weak::upgrade) {
            return slots;
        }
        by_caller.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(Semaphore::new(self.caller_max));
        by_caller.insert(caller.clone(), Arc::downgrade(&slots));
        slots
    }
}

impl Default for DiskWorkSlots {
    fn default() -> Self {
        let total = Arc::new(Semaphore::new(CONCURRENT_WORK_MAX));
        let processors = available_parallelism().map_or(1, usize::from);
        let caller_max = processors.clamp(*CALLER_WORK_MAX.start(), *CALLER_WORK_MAX.end());
        Self { total, caller_max, by_caller: Mutex::default() }
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
    use std::future::Future;
    use std::path::Path;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns a slot for `caller` if one is free.
    fn try_acquire(slots: &DiskWorkSlots, caller: &str) -> Option<[OwnedSemaphorePermit; 2]> {
        let caller = Arc::from(caller);
        match pin!(slots.acquire(&caller)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => Some(slot),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_caller_with_much_disk_work_leaves_slots_for_other_callers() {
        let slots = DiskWorkSlots::default();
        let acquire_all =
            |caller: &str| std::iter::from_fn(|| try_acquire(&slots, caller)).collect::<Vec<_>>();
        let first = acquire_all("first");
        assert!(CALLER_WORK_MAX.contains(&first.len()), "{} slots", first.len());
        assert_eq!(acquire_all("second").len(), first.len());
        drop(first);
        assert!(try_acquire(&slots, "first").is_some());
        assert_eq!(slots.by_caller.lock().unwrap().len(), 1, "idle callers are forgotten");
    }

    #[test]
    fn a_folder_of_this_machine_is_local() {
        for path in ["/proc", "/dev/shm"] {
            assert!(Root::open(Path::new(path)).unwrap().is_local(), "{path}");
        }
    }
}
