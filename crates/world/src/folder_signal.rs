//! Waits for any change in a set of folders (inotify), without details of the change.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A watch on a set of folders. It reports when an entry appears, disappears, is written or gets
/// other permissions.
pub struct FolderChangeSignal(AsyncFd<OwnedFd>);

impl FolderChangeSignal {
    /// Starts to watch `folders`. Folders that cannot be watched are skipped, except the first.
    ///
    /// # Errors
    /// The first folder cannot be watched.
    pub fn new(folders: &[&Path]) -> io::Result<Self> {
        let queue = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let kinds = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ATTRIB;
        for (at, folder) in folders.iter().enumerate() {
            match add_watch(&queue, *folder, kinds) {
                Err(err) if at == 0 => return Err(err.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Self(queue_reader(queue)?))
    }

    /// Waits for a change in a watched folder. Returns at once if something changed since the last
    /// call.
    ///
    /// # Errors
    /// The inotify queue cannot be read.
    pub async fn wait(&self) -> io::Result<()> {
        self.0.async_io(Interest::READABLE, drain_events).await
    }
}

#[allow(unsafe_code, reason = "tokio needs the promise that the descriptor stays open")]
fn queue_reader(queue: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the returned `AsyncFd` owns the descriptor and closes it when dropped.
    Ok(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }?)
}

/// Reads and discards all events in the inotify queue. Fails with `EAGAIN` if there are none.
fn drain_events(queue: &OwnedFd) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(queue, &mut room);
    reader.next()?;
    while !reader.is_buffer_empty() {
        reader.next()?;
    }
    Ok(())
}
