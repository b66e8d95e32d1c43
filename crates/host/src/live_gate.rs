//! The gate in force, which a reload of the settings replaces while calls run.

use std::sync::{Arc, PoisonError, RwLock};

use toolgate_contract::AnyTool;

use crate::Gate;
use crate::catalog::RejectedTool;
use crate::library::ContentLibrary;

/// The gate that new calls pass. A reload of the settings replaces it.
pub(crate) struct LiveGate(RwLock<Arc<Gate>>);

impl LiveGate {
    pub(crate) fn new(gate: Gate) -> Self {
        Self(RwLock::new(Arc::new(gate)))
    }

    /// Returns the gate that is in force. A call uses the same gate from its beginning to its end.
    pub(crate) fn current(&self) -> Arc<Gate> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the tools that `owner` offered before. Returns the gate, whether its catalog
    /// changed, and the tools that became unavailable.
    pub(crate) fn offer_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (Arc<Gate>, bool, Vec<RejectedTool>) {
        // While the lock is held, the gate cannot be replaced before its catalog has the tools.
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (changed, rejected) = current.catalog.replace_tools(owner, tools);
        (current.clone(), changed, rejected)
    }

    /// Replaces the gate by `next`. Returns the new gate, and the tools of other owners that became
    /// unavailable.
    pub(crate) fn replace(
        &self,
        next: Gate,
        resets_limits: bool,
    ) -> (Arc<Gate>, Vec<RejectedTool>) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let rejected = next.catalog.take_over_offers(&current.catalog);
        let keeps_limits = !resets_limits && next.catalog.has_limits_of(&current.catalog);
        let limits = if keeps_limits { current.limits.clone() } else { next.limits };
        limits.keep_shared_rates(&current.limits);
        let library = ContentLibrary {
            dynamic_sources: current.library.dynamic_sources.clone(),
            changes: current.library.changes.clone(),
            ..next.library
        };
        *current = Arc::new(Gate {
            limits,
            library,
            audit: current.audit.clone(),
            change_sender: current.change_sender.clone(),
            state_sealer: current.state_sealer.clone(),
            observer: current.observer.clone(),
            ..next
        });
        (current.clone(), rejected)
    }
}
