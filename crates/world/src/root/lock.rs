//! Locks a directory for one change at a time, both within this process and against other processes
//! that use `flock`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use toolgate_contract::{ToolError, ToolErrorKind};

use super::path::quoted_path;
use super::place::EntryLocation;
use super::work::DiskWorkMonitor;

/// The longest wait for another process that holds the lock on a directory.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The longest pause between two attempts to take the lock on a directory.
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// The number of mutexes in [`DirectoryLocks`].
const STRIPES: usize = 64;

/// The directory locks of this process. Several directories may share a mutex: changes in them then
/// wait for each other.
pub(super) struct DirectoryLocks([Mutex<()>; STRIPES]);

/// A lock on a directory, held from the check of a name to the change of its entry.
pub(super) struct DirectoryLock<'l> {
    dir: &'l OwnedFd,
    _stripe: MutexGuard<'l, ()>,
}

impl Default for DirectoryLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl DirectoryLocks {
    /// Waits at most 2 s for the lock on the directory of `place`.
    ///
    /// The lock is on the directory, because replacing a file creates a new file. No lock is held
    /// between tries, so that calls that wait for another process do not block each other.
    #[allow(clippy::disallowed_methods, reason = "a lock of another process wakes nobody here")]
    pub(super) fn lock<'l>(
        &'l self,
        place: &'l EntryLocation,
        watch: &DiskWorkMonitor,
    ) -> Result<DirectoryLock<'l>, ToolError> {
        let stripe = self.stripe(place);
        let since = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            let held = match stripe.try_lock() {
                Ok(held) => Some(held),
                Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
                // Its holder in this process is at work and will finish.
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(held) = held {
                match flock(&place.dir, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < WAIT_MAX => {}
                    Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(locked_error(place)),
                    // On a file system without locks, the lock of this process must do.
                    Ok(()) | Err(_) => return Ok(DirectoryLock { dir: &place.dir, _stripe: held }),
                }
            }
            watch.check_cancelled()?;
            sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn stripe(&self, place: &EntryLocation) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        if let Ok(stat) = fstat(place.dir.as_fd()) {
            (stat.st_dev, stat.st_ino).hash(&mut hasher);
        }
        let stripes = STRIPES as u64;
        &self.0[usize::try_from(hasher.finish() % stripes).unwrap_or(0)]
    }
}

fn locked_error(place: &EntryLocation) -> ToolError {
    let path = quoted_path(&place.path);
    let message = format!("another process has locked the directory of {path}; try again");
    ToolError::new(ToolErrorKind::Unavailable, message)
}

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.dir, FlockOperation::Unlock);
    }
}
