//! Holds the current catalog, which can be replaced, and waits until all owners have listed their
//! tools.

use std::sync::{Arc, Mutex, OnceLock, RwLock};

use toolgate_contract::{
    AnyTool, BoxFuture, ToolSpec, fold_name, lock_mutex, lock_read, lock_write,
};

use super::{Catalog, CatalogToolEntry, RejectedTool};

/// Current catalog of tools, which can be replaced while calls run.
pub(crate) struct ReplaceableCatalog {
    current: RwLock<Arc<Catalog>>,
    /// A lock that lets only one replacement of the catalog run at a time.
    replacing: Mutex<()>,
    readiness: OnceLock<Arc<dyn CatalogReadinessCheck>>,
}

/// Readiness of the catalog: reports when all owners, such as upstreams, have listed their tools.
pub trait CatalogReadinessCheck: Send + Sync + 'static {
    /// Returns true if all owners, such as upstreams, have listed their tools. With `name`, only
    /// owners that may offer that tool count.
    fn is_complete(&self, name: Option<&str>) -> bool;
    /// Waits until [`is_complete`](Self::is_complete) returns true, for a bounded time.
    fn wait_until_complete<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()>;
    /// Starts to refresh outdated tool lists of the owners. Does not wait for the result.
    fn refresh(&self);
    /// Returns a stand-in for the missing tool `name`, if the tool may belong to an owner (such as
    /// an upstream) that cannot be reached and has not listed its tools.
    fn missing_tool(&self, name: &str) -> Option<UnavailableTool>;
}

/// Tool that may belong to an owner, such as an upstream, that cannot be reached.
pub struct UnavailableTool {
    /// Stand-in for the missing tool's spec, by which policy decides if a caller may know the
    /// reason.
    pub spec: ToolSpec,
    /// Reason why the tool is missing, for its caller.
    pub reason: String,
}

impl ReplaceableCatalog {
    pub(crate) fn new(catalog: Catalog) -> Self {
        let current = RwLock::new(Arc::new(catalog));
        Self { current, replacing: Mutex::new(()), readiness: OnceLock::new() }
    }

    /// Returns the current catalog. Later replacements do not change the returned catalog.
    pub(crate) fn snapshot(&self) -> Arc<Catalog> {
        lock_read(&self.current).clone()
    }

    /// Replaces the tools that `owner` offered before. Returns true if the catalog changed, and the
    /// tools that became unavailable.
    pub(crate) fn replace_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (bool, Vec<RejectedTool>) {
        let _one = lock_mutex(&self.replacing);
        let before = self.snapshot();
        let (next, refused) = before.with_owner_tools(owner, tools);
        let is_same = |(a, b): (&Arc<CatalogToolEntry>, &Arc<CatalogToolEntry>)| Arc::ptr_eq(a, b);
        let differs = before.entries.len() != next.entries.len()
            || !before.entries.iter().zip(&next.entries).all(is_same);
        *lock_write(&self.current) = Arc::new(next);
        (differs, refused)
    }

    /// Copies the tools of other owners (such as upstreams) from the catalog `before`, and the
    /// readiness of these owners. Returns the tools that became unavailable.
    pub(crate) fn take_over_offers(&self, before: &Self) -> Vec<RejectedTool> {
        if let Some(readiness) = before.readiness.get() {
            self.set_readiness(readiness.clone());
        }
        let before = before.snapshot();
        let (next, refused) = self.snapshot().with_offers(before.offers(), &before);
        *lock_write(&self.current) = Arc::new(next);
        refused
    }

    /// Returns true if the server's own tools have the same limits as in the catalog `other`.
    pub(crate) fn has_limits_of(&self, other: &Self) -> bool {
        let limits = |catalog: &Catalog| -> Vec<_> {
            let own = catalog.entries.iter().filter(|entry| entry.owner.is_none());
            own.map(|entry| (entry.spec().id.clone(), entry.spec().concurrency_max)).collect()
        };
        limits(&self.snapshot()) == limits(&other.snapshot())
    }

    /// Makes tool lists wait until `listed` reports that all owners have listed their tools. Only
    /// the first call has an effect.
    pub(crate) fn set_readiness(&self, listed: Arc<dyn CatalogReadinessCheck>) {
        let _ = self.readiness.set(listed);
    }

    /// Waits until all owners, such as upstreams, have listed their tools, for a bounded time. With
    /// `name`, only owners that may offer that tool count.
    pub(crate) async fn wait_for_listings(&self, name: Option<&str>) {
        let Some(listed) = self.readiness.get() else { return };
        if name.is_none() {
            listed.refresh();
        }
        if !listed.is_complete(name) {
            listed.wait_until_complete(name).await;
        }
    }

    /// Returns a stand-in for the missing tool `name`, if the tool may belong to an owner (such as
    /// an upstream) that cannot be reached and has not listed its tools.
    pub(crate) fn missing_tool(&self, name: &str) -> Option<UnavailableTool> {
        self.readiness.get()?.missing_tool(name)
    }

    /// Returns true if all owners, such as upstreams, have listed their tools.
    pub(crate) fn is_complete(&self) -> bool {
        self.readiness.get().is_none_or(|listed| listed.is_complete(None))
    }

    /// Returns true if a tool named `name` is known, or if all owners that may offer a tool of this
    /// name have listed their tools.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        // A known name needs no query of the owners.
        let Some(listed) = self.readiness.get().filter(|listed| !listed.is_complete(None)) else {
            return true;
        };
        self.snapshot().by_folded_name.contains_key(&*fold_name(name))
            || listed.is_complete(Some(name))
    }
}
