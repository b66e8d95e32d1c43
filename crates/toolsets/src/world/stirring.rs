//! That something has happened in some folders, for who looks for himself what it was.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Tells that a file in a folder came, went, was written or had its permissions changed.
pub struct Stirring(AsyncFd<OwnedFd>);

impl Stirring {
    /// In any of `folders` from now on: in the first, and in those of the others that are there.
    ///
    /// # Errors
    /// When the first cannot be watched.
    pub fn of(folders: &[&Path]) -> io::Result<Self> {
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
        Ok(Self(readable(queue)?))
    }

    /// Waits until something has happened since it was last waited for.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub async fn next(&self) -> io::Result<()> {
        self.0.async_io(Interest::READABLE, drain).await
    }
}

#[allow(unsafe_code, reason = "tokio watches descriptors it is promised stay open")]
fn readable(queue: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it is owned by what waits for it, and closed when that is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) }?)
}

/// Reads what there is of news, of which counts that there is some.
fn drain(queue: &OwnedFd) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(queue, &mut room);
    reader.next()?;
    while !reader.is_buffer_empty() {
        reader.next()?;
    }
    Ok(())
}
