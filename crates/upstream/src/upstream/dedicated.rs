//! Dedicated connections, each used by one call at a time.
//!
//! A pipe does not show which of several calls asks a question. The client's capabilities are sent
//! only once, in the handshake. Therefore calls with questions need their own connections.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolgate_contract::{Caller, QuestionSupport, ToolError, lock_mutex};

use crate::connection::UpstreamConnection;
use crate::upstream::Upstream;

/// The dedicated connections of an upstream, each of which one call uses at a time.
pub(crate) struct PerCallConnectionPool {
    permits: Arc<Semaphore>,
    /// Idle dedicated connections, each with the callers for which it can be used.
    idle: Mutex<VecDeque<(DedicatedConnectionScope, Arc<UpstreamConnection>)>>,
    connections_max: usize,
}

/// The callers for which a dedicated connection can be used.
#[derive(Clone, PartialEq, Eq)]
struct DedicatedConnectionScope {
    capabilities: QuestionSupport,
    /// The caller and session whose folders the server may know from an earlier call. Only calls of
    /// this caller and session may use the connection.
    owner: Option<(Caller, Option<Arc<str>>)>,
}

/// A connection to an upstream that one call uses exclusively.
pub(crate) struct DedicatedConnection {
    pub(crate) connection: Arc<UpstreamConnection>,
    fit: DedicatedConnectionScope,
    upstream: Weak<Upstream>,
    is_done: bool,
    _permit: OwnedSemaphorePermit,
}

impl PerCallConnectionPool {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(connections_max)),
            idle: Mutex::default(),
            connections_max,
        }
    }

    /// Returns a dedicated connection for one call of `caller` in `session`, with `capabilities`.
    ///
    /// If all connections are in use, drops a suspended call to free one.
    pub(crate) async fn take(
        &self,
        upstream: &Arc<Upstream>,
        (caller, session): (&Caller, Option<Arc<str>>),
        capabilities: QuestionSupport,
    ) -> Result<DedicatedConnection, ToolError> {
        let sends_folders = capabilities.roots && upstream.folders().is_none();
        let fit = DedicatedConnectionScope {
            capabilities,
            owner: sends_folders.then(|| (caller.clone(), session)),
        };
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                upstream.lasting.suspended.evict_one(caller, upstream.is_shared());
                let permit = self.permits.clone().acquire_owned().await;
                permit.map_err(|_| ToolError::canceled())?
            }
        };
        let link = match self.idle(&fit) {
            Some(link) => link,
            None => upstream.connect_dedicated(capabilities).await?,
        };
        let upstream = Arc::downgrade(upstream);
        Ok(DedicatedConnection { connection: link, fit, upstream, is_done: false, _permit: permit })
    }

    /// Removes an idle connection for the callers `fit` from the pool, and returns it. Returns
    /// `None` if there is none.
    fn idle(&self, fit: &DedicatedConnectionScope) -> Option<Arc<UpstreamConnection>> {
        let mut idle = lock_mutex(&self.idle);
        idle.retain(|(_, link)| !link.transport.closed().is_cancelled());
        let at = idle.iter().rposition(|(of, _)| of == fit)?;
        idle.remove(at).map(|(_, link)| link)
    }

    /// Puts a connection into the pool for reuse by the callers `fit`. Drops the oldest idle
    /// connection if there are too many.
    fn keep(&self, fit: DedicatedConnectionScope, link: Arc<UpstreamConnection>) {
        let mut idle = lock_mutex(&self.idle);
        idle.push_back((fit, link));
        if idle.len() > self.connections_max {
            idle.pop_front();
        }
    }

    /// Removes the connection `link` if it is idle. Returns true if `link` was removed.
    pub(crate) fn remove_idle(&self, link: &Arc<UpstreamConnection>) -> bool {
        let mut idle = lock_mutex(&self.idle);
        let before = idle.len();
        idle.retain(|(_, one)| !Arc::ptr_eq(one, link));
        idle.len() < before
    }

    /// Drops the idle connections and fails the calls that wait for a connection.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.drop_idle();
    }

    /// Drops the idle dedicated connections.
    pub(crate) fn drop_idle(&self) {
        lock_mutex(&self.idle).clear();
    }
}

impl DedicatedConnection {
    /// Returns the connection to the pool for reuse. Call this when the call has its answer.
    ///
    /// The connection of an interrupted call is dropped instead, because the upstream may still ask
    /// questions of that call over the connection.
    pub(crate) fn finish(mut self) {
        self.is_done = true;
    }
}

impl Drop for DedicatedConnection {
    fn drop(&mut self) {
        let Some(upstream) = self.upstream.upgrade().filter(|_| self.is_done) else { return };
        upstream.dedicated.keep(self.fit.clone(), self.connection.clone());
    }
}
