//! One change at a time in a directory, in this process and among those that cooperate.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    #[allow(clippy::disallowed_methods, reason = "a lock of another process wakes nobody here")]
    pub(super) fn lock<'l>(
        &'l self,
        place: &'l Place,
        watch: &Watch,
    ) -> Result<Lock<'l>, ToolError> {
        let stripe = self.stripe(place).lock().unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match flock(&place.dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < WAIT_MAX => {
                    watch.check()?;
                    sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let path = shown(&place.path);
                    let message =
                        format!("another process has locked the directory of {path}; try again");
                    return Err(ToolError::new(Fault::Unavailable, message));
                }
                // A file system without locks: the one in this process has to do.
                Err(_) => break,
            }
        }
        Ok(Lock { dir: &place.dir, _stripe: stripe })
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

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = flock(self.dir, FlockOperation::Unlock);
    }
}
