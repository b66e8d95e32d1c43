//! Holds the current gate (catalog, policy, limits and audit log of calls), which a reload of the
//! settings replaces while calls run.

use std::sync::{Arc, RwLock};

use toolgate_budget::InputMemoryBudget;
use toolgate_contract::{AnyTool, lock_read, lock_write};

use crate::catalog::RejectedTool;
use crate::library::ContentLibrary;
use crate::{Gate, Host};

/// Size in bytes of the default memory budget for the input of all callers.
const MESSAGE_BYTES: usize = 32 << 20;

/// The gate (checks, catalog and limits) that new calls pass. A reload of the settings replaces it.
pub(crate) struct ReloadableGate(RwLock<Arc<Gate>>);

impl ReloadableGate {
    pub(crate) fn new(gate: Gate) -> Self {
        Self(RwLock::new(Arc::new(gate)))
    }

    /// Returns the current gate, through which a call passes from its beginning to its end.
    pub(crate) fn current(&self) -> Arc<Gate> {
        lock_read(&self.0).clone()
    }

    /// Replaces the tools that `owner` offered before. Returns the current gate, whether its
    /// catalog changed, and the tools that became unavailable.
    pub(crate) fn offer_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (Arc<Gate>, bool, Vec<RejectedTool>) {
        // While the lock is held, the gate cannot be replaced before its catalog has the tools.
        let current = lock_read(&self.0);
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
        let mut current = lock_write(&self.0);
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
            input_memory: current.input_memory.clone(),
            ..next
        });
        (current.clone(), rejected)
    }
}

/// Returns the default memory budget for the input of all callers.
pub(crate) fn default_input_memory() -> InputMemoryBudget {
    InputMemoryBudget::new(MESSAGE_BYTES)
}

impl Gate {
    /// Sets the memory budget for the input of all callers. Only the budget of a host's first gate
    /// is used, because calls in flight hold memory from that budget.
    pub fn with_input_memory(self, input_memory: InputMemoryBudget) -> Self {
        Self { input_memory, ..self }
    }
}

impl Host {
    /// Returns the memory budget for the input of all callers, which the transports and the jobs
    /// share.
    pub fn input_memory(&self) -> InputMemoryBudget {
        self.live.current().input_memory.clone()
    }
}
