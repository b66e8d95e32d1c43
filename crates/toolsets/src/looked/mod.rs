//! Scans a workspace for items, and scans it again on each use.

mod remembered;
mod patrol;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as Turn;
use toolgate_contract::{Caller, Ctx, Hold, ToolError};

use crate::front_matter::LeftOut;
use crate::world::Root;
use crate::world::root::Watch;

use patrol::Patrol;
pub(crate) use remembered::Remembered;

/// The shortest pause between two scans while somebody subscribes to changes.
const EVERY: Duration = Duration::from_secs(1);
/// The pause after a scan, as a multiple of the scan's duration.
const RESTS: u32 = 20;
/// The time limit of a background scan.
const PATIENCE: Duration = Duration::from_secs(30);

/// The latest result of a scan, and the function that scans. Remembers a `T` for each file.
pub(crate) struct Looked<T, F> {
    root: Root,
    look: Box<Look<T, F>>,
    memory: Arc<Turn<Memory<T>>>,
    last: Mutex<Option<Arc<F>>>,
    /// The items that the latest scan left out.
    left_out: Mutex<Arc<[LeftOut]>>,
    patrol: Patrol,
}

/// A function that scans a workspace.
type Look<T, F> = dyn Fn(&Root, &mut Memory<T>, &Watch) -> Result<F, ToolError> + Send + Sync;

/// State that is kept from one scan to the next.
pub(crate) struct Memory<T> {
    pub(crate) files: Remembered<T>,
    left_out: Arc<[LeftOut]>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { files: Remembered::default(), left_out: Arc::default() }
    }
}

impl<T> Memory<T> {
    /// Logs each item that is left out now and was not before.
    pub(crate) fn tell(&mut self, left_out: Vec<LeftOut>) {
        for one in left_out.iter().filter(|one| !self.left_out.contains(one)) {
            tracing::warn!("{one}");
        }
        self.left_out = left_out.into();
    }
}

impl<T, F> Looked<T, F>
where
    T: Send + 'static,
    F: PartialEq + Send + Sync + 'static,
{
    pub(crate) fn new(
        root: &Root,
        look: impl Fn(&Root, &mut Memory<T>, &Watch) -> Result<F, ToolError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            root: root.clone(),
            look: Box::new(look),
            memory: Arc::default(),
            last: Mutex::new(None),
            left_out: Mutex::default(),
            patrol: Patrol::default(),
        })
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the latest result, or `None` before the first scan.
    pub(crate) fn last(&self) -> Option<Arc<F>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns why the latest scan left out the item that `is_meant` selects.
    pub(crate) fn trouble(&self, is_meant: impl Fn(&LeftOut) -> bool) -> Option<String> {
        let left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner).clone();
        left_out.iter().find(|one| is_meant(one)).map(LeftOut::trouble)
    }

    /// Scans the workspace and returns the result.
    ///
    /// # Errors
    ///
    /// If the scan fails or the call is canceled.
    pub(crate) async fn now(self: &Arc<Self>, ctx: &Ctx) -> Result<Arc<F>, ToolError> {
        // Only one scan runs at a time, so the next one profits from what it remembered.
        let mut memory = tokio::select! {
            memory = self.memory.clone().lock_owned() => memory,
            () = ctx.cancel.cancelled() => return Err(ToolError::canceled()),
        };
        let looked = self.clone();
        let look = move |root: &Root, watch: &Watch| {
            let found = (looked.look)(root, &mut memory, watch)?;
            *looked.left_out.lock().unwrap_or_else(PoisonError::into_inner) =
                memory.left_out.clone();
            Ok(looked.took(found))
        };
        self.root.work(ctx, look).await
    }

    /// Scans without a caller. Returns `None` if the scan fails or takes longer than [`PATIENCE`].
    pub(crate) async fn now_alone(self: &Arc<Self>) -> Option<Arc<F>> {
        let ctx = Ctx::alone(Caller::local(), Instant::now() + PATIENCE);
        let _stops = ctx.cancel.clone().drop_guard();
        let found = tokio::time::timeout(PATIENCE, self.now(&ctx)).await.ok()?;
        found.ok()
    }

    /// Scans repeatedly while the returned [`Hold`] lives, and calls `tell` with the old and the
    /// new result after each change. Only the `tell` of the first subscriber is used.
    pub(crate) fn keep_looking(
        self: &Arc<Self>,
        tell: impl Fn(&F, &F) + Send + Sync + 'static,
    ) -> Hold {
        self.patrol.keep(|| self.clone().look_again(tell))
    }

    async fn look_again(self: Arc<Self>, tell: impl Fn(&F, &F) + Send + Sync + 'static) {
        let mut known = self.last();
        loop {
            let begun = Instant::now();
            if let Some(found) = self.now_alone().await {
                if let Some(known) = known.filter(|known| *known != found) {
                    tell(&known, &found);
                }
                known = Some(found);
            }
            tokio::time::sleep(EVERY.max(begun.elapsed() * RESTS)).await;
        }
    }

    fn took(&self, found: F) -> Arc<F> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if **last == found => last.clone(),
            Some(_) | None => last.insert(Arc::new(found)).clone(),
        }
    }
}
