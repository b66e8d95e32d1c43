//! A thread that starts before the server confines itself. Its child processes can therefore set up
//! a sandbox with a separate file tree.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use toolgate_contract::lock_mutex;

/// A closure that runs on the unconfined thread.
type BoxedThreadWork = Box<dyn FnOnce() + Send>;

/// A thread outside the server's sandbox. It runs closures, one after another.
pub(super) struct UnconfinedThread(Mutex<SyncSender<BoxedThreadWork>>);

impl UnconfinedThread {
    /// Starts the thread outside the server's sandbox.
    pub(super) fn start() -> io::Result<Self> {
        let (sender, work) = mpsc::sync_channel::<BoxedThreadWork>(1);
        thread::Builder::new().name("toolgate-look".to_owned()).spawn(move || {
            // If no program is ever run, no work arrives.
            while let Ok(work) = work.recv() {
                work();
            }
        })?;
        Ok(Self(Mutex::new(sender)))
    }

    /// Runs `work` on the thread outside the sandbox and returns its result. Blocks.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let over = || io::Error::other("the thread that tests this system has ended");
        let thread = lock_mutex(&self.0).clone();
        let (done, result) = mpsc::sync_channel(1);
        let work = Box::new(move || drop(done.send(work())));
        thread.send(work).map_err(|_| over())?;
        result.recv().map_err(|_| over())
    }
}
