//! A timer that is late by microseconds: tokio's are by a millisecond, in which all that fall due
//! come at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Tells somebody when it is time, again and again, from a thread of its own.
pub(crate) struct Timer(Arc<Notify>);

impl Timer {
    /// As many as there are `firsts`: each tells first then, and each `apart` after that, until
    /// `end` and once more.
    pub(crate) fn start(firsts: &[Instant], apart: Duration, end: Instant) -> Vec<Self> {
        let tell: Vec<_> = firsts.iter().map(|&first| (first, Arc::new(Notify::new()))).collect();
        let timers = tell.iter().map(|(_, told)| Self(told.clone())).collect();
        std::thread::spawn(move || {
            let mut tell = tell;
            loop {
                for (due, told) in &mut tell {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    told.notify_one();
                    *due += apart;
                }
                // Whoever waits beyond the end waits for the next time after it.
                if tell.iter().all(|(due, _)| *due > end + apart) {
                    return;
                }
            }
        });
        timers
    }

    /// Waits until it is `due`, which is a time that is told.
    pub(crate) async fn wait_until(&self, due: Instant) {
        // It may have been told before while nobody waited.
        while Instant::now() < due {
            self.0.notified().await;
        }
    }
}
