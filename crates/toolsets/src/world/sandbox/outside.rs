//! A thread from before the server confined itself: what one starts by itself is confined as the
//! server is, and could not be given a view of its own.

use std::io;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// Does one thing, once, and is over then.
pub(super) struct Outside(Mutex<Option<SyncSender<Work>>>);

impl Outside {
    /// Starts it.
    pub(super) fn start() -> io::Result<Self> {
        let (sender, work) = mpsc::sync_channel::<Work>(1);
        thread::Builder::new().name("toolgate-look".to_owned()).spawn(move || {
            // Nobody asks where no program is run.
            if let Ok(work) = work.recv() {
                work();
            }
        })?;
        Ok(Self(Mutex::new(Some(sender))))
    }

    /// What `work` comes to, which is done there. Blocks.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let over = || io::Error::other("the thread that looks at this system is over");
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (done, result) = mpsc::sync_channel(1);
        let work = Box::new(move || drop(done.send(work())));
        thread.ok_or_else(over)?.send(work).map_err(|_| over())?;
        result.recv().map_err(|_| over())
    }
}
