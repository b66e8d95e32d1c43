//! Scans a workspace for items such as prompts or skills. Each request for the items scans again.

mod file_cache;
mod shared_task;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as Turn;
use toolgate_contract::{Caller, KeepActiveGuard, ToolContext, ToolError, lock_mutex};

use crate::front_matter::SkippedFile;
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

pub(crate) use file_cache::FileValueCache;
use shared_task::SharedBackgroundTask;

/// The minimum pause between two scans while a client subscribes to changes.
const SCAN_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The pause after a scan of the workspace, as a multiple of the scan's duration.
const SCAN_PAUSE_FACTOR: u32 = 20;
/// The time limit of a background scan of the workspace.
const SCAN_TIMEOUT: Duration = Duration::from_secs(30);

/// Scanner of a workspace, with the function that scans and the latest result. Stores a value of
/// type `T` for each file.
pub(crate) struct WorkspaceScanner<T, F> {
    root: Root,
    scan_fn: Box<WorkspaceScanFn<T, F>>,
    memory: Arc<Turn<WorkspaceScanState<T>>>,
    latest: Mutex<Option<Arc<F>>>,
    /// The items that the latest scan of the workspace skipped.
    left_out: Mutex<Arc<[SkippedFile]>>,
    poll_task: SharedBackgroundTask,
}

/// A function that scans a workspace.
type WorkspaceScanFn<T, F> = dyn Fn(&Root, &mut WorkspaceScanState<T>, &DiskWorkMonitor) -> Result<F, ToolError>
    + Send
    + Sync;

/// State that persists from one scan of a workspace to the next.
pub(crate) struct WorkspaceScanState<T> {
    pub(crate) files: FileValueCache<T>,
    left_out: Arc<[SkippedFile]>,
}

impl<T> Default for WorkspaceScanState<T> {
    fn default() -> Self {
        Self { files: FileValueCache::default(), left_out: Arc::default() }
    }
}

impl<T> WorkspaceScanState<T> {
    /// Logs each item that this scan skipped and the previous scan did not.
    pub(crate) fn log_left_out(&mut self, left_out: Vec<SkippedFile>) {
        for one in left_out.iter().filter(|one| !self.left_out.contains(one)) {
            tracing::warn!("{one}");
        }
        self.left_out = left_out.into();
    }
}

impl<T, F> WorkspaceScanner<T, F>
where
    T: Send + 'static,
    F: PartialEq + Send + Sync + 'static,
{
    pub(crate) fn new(
        root: &Root,
        scan_fn: impl Fn(&Root, &mut WorkspaceScanState<T>, &DiskWorkMonitor) -> Result<F, ToolError>
        + Send
        + Sync
        + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            root: root.clone(),
            scan_fn: Box::new(scan_fn),
            memory: Arc::default(),
            latest: Mutex::new(None),
            left_out: Mutex::default(),
            poll_task: SharedBackgroundTask::default(),
        })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the result of the latest scan, or `None` before the first one.
    pub(crate) fn latest(&self) -> Option<Arc<F>> {
        lock_mutex(&self.latest).clone()
    }

    /// Returns the reason why the latest scan skipped the item for which `is_meant` returns true.
    /// `None` if the scan skipped no such item.
    pub(crate) fn left_out_reason(
        &self,
        is_meant: impl Fn(&SkippedFile) -> bool,
    ) -> Option<String> {
        let left_out = lock_mutex(&self.left_out).clone();
        left_out.iter().find(|one| is_meant(one)).map(SkippedFile::error_message)
    }

    /// Scans the workspace and returns the result.
    ///
    /// # Errors
    ///
    /// Fails if the scan fails or the call is canceled.
    pub(crate) async fn scan(self: &Arc<Self>, ctx: &ToolContext) -> Result<Arc<F>, ToolError> {
        // Only one scan runs at a time, so the next one profits from what it remembered.
        let mut memory = ctx.run_unless_canceled(self.memory.clone().lock_owned()).await?;
        let this = self.clone();
        let scan = move |root: &Root, watch: &DiskWorkMonitor| {
            let found = (this.scan_fn)(root, &mut memory, watch)?;
            *lock_mutex(&this.left_out) = memory.left_out.clone();
            Ok(this.store_latest(found))
        };
        self.root.run_blocking(ctx, scan).await
    }

    /// Scans without a calling client. Returns `None` if the scan fails or takes longer than
    /// [`SCAN_TIMEOUT`].
    pub(crate) async fn scan_in_background(self: &Arc<Self>) -> Option<Arc<F>> {
        let ctx = ToolContext::detached(Caller::local(), Instant::now() + SCAN_TIMEOUT);
        let _cancel_on_drop = ctx.cancel.clone().drop_guard();
        let found = tokio::time::timeout(SCAN_TIMEOUT, self.scan(&ctx)).await.ok()?;
        found.ok()
    }

    /// Scans repeatedly while the returned [`KeepActiveGuard`] exists. After each change, calls
    /// `notify` with the old and the new result. Only the `notify` function of the first subscriber
    /// is used.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        notify: impl Fn(&F, &F) + Send + Sync + 'static,
    ) -> KeepActiveGuard {
        self.poll_task.join_or_start(|| self.clone().poll_changes(notify))
    }

    async fn poll_changes(self: Arc<Self>, notify: impl Fn(&F, &F) + Send + Sync + 'static) {
        let mut known = self.latest();
        loop {
            let begun = Instant::now();
            if let Some(found) = self.scan_in_background().await {
                if let Some(known) = known.filter(|known| *known != found) {
                    notify(&known, &found);
                }
                known = Some(found);
            }
            tokio::time::sleep(SCAN_PAUSE_MIN.max(begun.elapsed() * SCAN_PAUSE_FACTOR)).await;
        }
    }

    fn store_latest(&self, found: F) -> Arc<F> {
        let mut last = lock_mutex(&self.latest);
        match &*last {
            Some(last) if **last == found => last.clone(),
            Some(_) | None => last.insert(Arc::new(found)).clone(),
        }
    }
}
