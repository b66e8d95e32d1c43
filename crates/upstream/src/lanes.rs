//! Dedicated connections, each used by one call at a time.
//!
//! A pipe does not show which of several calls asks a question, and the client's capabilities are
//! sent only once, in the handshake.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolgate_contract::{Askable, Caller, ToolError};

use crate::link::Link;
use crate::upstream::Upstream;

/// The dedicated connections of an upstream.
pub(crate) struct Lanes {
    places: Arc<Semaphore>,
    /// Idle connections, each with the callers that it fits.
    idle: Mutex<VecDeque<(Fit, Arc<Link>)>>,
    most: usize,
}

/// The callers that a connection can be used for.
#[derive(Clone, PartialEq, Eq)]
struct Fit {
    can: Askable,
    /// The caller and session whose folders the server may know. A server remembers folders.
    whose: Option<(Caller, Option<Arc<str>>)>,
}

/// A dedicated connection while a call uses it.
pub(crate) struct Lane {
    pub(crate) link: Arc<Link>,
    fit: Fit,
    upstream: Weak<Upstream>,
    is_done: bool,
    _place: OwnedSemaphorePermit,
}

impl Lanes {
    pub(crate) fn new(most: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(most)), idle: Mutex::default(), most }
    }

    /// Returns a connection for one call of `caller` in `session`, with the capabilities `can`.
    ///
    /// If all are in use, a suspended call is dropped to free one.
    pub(crate) async fn take(
        &self,
        upstream: &Arc<Upstream>,
        (caller, session): (&Caller, Option<Arc<str>>),
        can: Askable,
    ) -> Result<Lane, ToolError> {
        let tells_folders = can.roots && upstream.folders().is_none();
        let fit = Fit { can, whose: tells_folders.then(|| (caller.clone(), session)) };
        let place = match self.places.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                upstream.lasting.parking.give_one_up(caller, upstream.is_shared());
                let place = self.places.clone().acquire_owned().await;
                place.map_err(|_| ToolError::canceled())?
            }
        };
        let link = match self.idle(&fit) {
            Some(link) => link,
            None => upstream.another(can).await?,
        };
        let upstream = Arc::downgrade(upstream);
        Ok(Lane { link, fit, upstream, is_done: false, _place: place })
    }

    /// Takes an idle connection that fits.
    fn idle(&self, fit: &Fit) -> Option<Arc<Link>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, link)| !link.wire.gone().is_cancelled());
        let at = idle.iter().rposition(|(of, _)| of == fit)?;
        idle.remove(at).map(|(_, link)| link)
    }

    /// Keeps a connection for reuse and drops the oldest if there are too many.
    fn keep(&self, fit: Fit, link: Arc<Link>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back((fit, link));
        if idle.len() > self.most {
            idle.pop_front();
        }
    }

    /// Removes `link` if it is idle. Returns true if it was.
    pub(crate) fn lets_go(&self, link: &Arc<Link>) -> bool {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let before = idle.len();
        idle.retain(|(_, one)| !Arc::ptr_eq(one, link));
        idle.len() < before
    }

    /// Drops the idle connections and fails the calls that wait for one.
    pub(crate) fn close(&self) {
        self.places.close();
        self.let_go();
    }

    /// Drops the idle connections.
    pub(crate) fn let_go(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Lane {
    /// Returns the connection for reuse once the call has its answer.
    ///
    /// A call that is broken off drops its connection, because the upstream may still ask questions
    /// of that call over it.
    pub(crate) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Some(upstream) = self.upstream.upgrade().filter(|_| self.is_done) else { return };
        upstream.lanes.keep(self.fit.clone(), self.link.clone());
    }
}
