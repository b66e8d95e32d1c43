//! One change at a time in a directory, in this process and among those that cooperate.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use toolgate_contract::{Fault, ToolError};

use super::path::shown;
use super::place::Place;
use super::work::Watch;

/// How long another process is waited for.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the pause between two tries grows.
const PAUSE_MAX: Duration = Duration::from_millis(5);
const STRIPES: usize = 64;

/// The locks of this process; directories that fall on the same one only wait longer.
pub(super) struct Locks([Mutex<()>; STRIPES]);

/// The right to look at a name in a directory and then change it.
pub(super) struct Lock<'l> {
    dir: &'l OwnedFd,
    _stripe: MutexGuard<'l, ()>,
}

impl Default for Locks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Locks {
    /// Waits for the lock on the directory of `place`.
    ///
    /// The directory and not the file is locked: the file is another after each replacement.
    /// Nothing is held between tries, so those who wait for another process do not wait for
    /// each other: each gives up when its own time is over.
    #[allow(clippy::disallowed_methods, reason = "a lock of another process wakes nobody here")]
    pub(super) fn lock<'l>(
        &'l self,
        place: &'l Place,
        watch: &Watch,
    ) -> Result<Lock<'l>, ToolError> {
        let stripe = self.stripe(place);
        let since = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            let held = match stripe.try_lock() {
                Ok(held) => Some(held),
                Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
                // Whoever has it in this process is at work, and comes to an end.
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(held) = held {
                match flock(&place.dir, FlockOperation::NonBlockingLockExclusive) {
                    Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < WAIT_MAX => {}
                    Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(locked(place)),
                    // A file system without locks: the one in this process has to do.
                    Ok(()) | Err(_) => return Ok(Lock { dir: &place.dir, _stripe: held }),
                }
            }
            watch.check()?;
            sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn stripe(&self, place: &Place) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        if let Ok(stat) = fstat(place.dir.as_fd()) {
            (stat.st_dev, stat.st_ino).hash(&mut hasher);
        }
        let stripes = STRIPES as u64;
        &self.0[usize::try_from(hasher.finish() % stripes).unwrap_or(0)]
    }
}

fn locked(place: &Place) -> ToolError {
    let path = shown(&place.path);
    let message = format!("another process has locked the directory of {path}; try again");
    ToolError::new(Fault::Unavailable, message)
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.dir, FlockOperation::Unlock);
    }
}
