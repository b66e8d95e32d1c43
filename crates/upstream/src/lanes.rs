//! Connections of which each call of an upstream that asks has one for itself: over a pipe nothing
//! says which of several calls asks, and what a client can be asked is said once, at the start.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolgate_contract::{Askable, Caller, ToolError};

use crate::link::Link;
use crate::upstream::Upstream;

/// The connections of an upstream that nobody shares.
pub(crate) struct Lanes {
    places: Arc<Semaphore>,
    /// With whom they are of use to.
    idle: Mutex<VecDeque<(Fit, Arc<Link>)>>,
    most: usize,
}

/// Whom a connection is of use to.
#[derive(Clone, PartialEq, Eq)]
struct Fit {
    can: Askable,
    /// Whose folders it may have been told, by whoever called: a server remembers these.
    whose: Option<(Caller, Option<Arc<str>>)>,
}

/// One of them, while a call has it.
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

    /// A connection for one call of `caller` in `session`, who can be asked `can`. Where all are
    /// taken, a call that waits for its client gives way.
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

    /// One that nobody has, and that fits.
    fn idle(&self, fit: &Fit) -> Option<Arc<Link>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, link)| !link.wire.gone().is_cancelled());
        let at = idle.iter().rposition(|(of, _)| of == fit)?;
        idle.remove(at).map(|(_, link)| link)
    }

    /// Keeps one that nobody has, in place of the oldest if there are too many.
    fn keep(&self, fit: Fit, link: Arc<Link>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back((fit, link));
        if idle.len() > self.most {
            idle.pop_front();
        }
    }

    /// Lets go of `link`, if it is one that nobody has; whether it was.
    pub(crate) fn lets_go(&self, link: &Arc<Link>) -> bool {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let before = idle.len();
        idle.retain(|(_, one)| !Arc::ptr_eq(one, link));
        idle.len() < before
    }

    /// Lets go of those that nobody has, and of whoever waits for one.
    pub(crate) fn close(&self) {
        self.places.close();
        self.let_go();
    }

    /// Lets go of those that nobody has.
    pub(crate) fn let_go(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Lane {
    /// The call has its answer: another may have the connection. One that is broken off takes it
    /// along, for what it still asks is nobody else's.
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
