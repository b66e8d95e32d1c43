//! Locks that stay usable after a panic in another thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex` even if it is poisoned. This is safe, because each guarded value is consistent at
/// every step.
pub(crate) fn lock_mutex<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
