//! Counters of connections and streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter of connections and streams. Clones share the counts, also between listeners.
#[derive(Debug, Clone, Default)]
pub struct Occupancy(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    streams: AtomicUsize,
}

/// Counted connection or stream, until it is dropped.
pub(super) struct Counted {
    counts: Arc<Counts>,
    which: fn(&Counts) -> &AtomicUsize,
}

impl Occupancy {
    /// Returns the number of connections, WebSockets included.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of long-lived event streams and WebSockets.
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
