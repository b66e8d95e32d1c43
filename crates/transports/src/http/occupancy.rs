//! How many are connected, for whoever wants to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are connected. Clones are one, and listeners that share one are counted together.
#[derive(Debug, Clone, Default)]
pub struct Occupancy(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    streams: AtomicUsize,
}

/// What is counted until it is dropped.
pub(super) struct Counted {
    counts: Arc<Counts>,
    which: fn(&Counts) -> &AtomicUsize,
}

impl Occupancy {
    /// How many connections there are, WebSockets among them.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// How many of them are event streams and WebSockets that clients keep open.
    pub fn streams(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    pub(super) fn connection(&self) -> Counted {
        self.one_more(|counts| &counts.connections)
    }

    pub(super) fn stream(&self) -> Counted {
        self.one_more(|counts| &counts.streams)
    }

    fn one_more(&self, which: fn(&Counts) -> &AtomicUsize) -> Counted {
        which(&self.0).fetch_add(1, Ordering::Relaxed);
        Counted { counts: self.0.clone(), which }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.which)(&self.counts).fetch_sub(1, Ordering::Relaxed);
    }
}
