//! Counts the memory that a parse uses while it runs, and returns free memory to the system
//! afterwards.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use counting_allocator::install_allocator;

mod counting_allocator;

/// Longest text that is parsed at the same time as other texts, in bytes. Longer texts are parsed
/// one at a time.
const PARALLEL_BYTES_MAX: usize = 256 << 10;
/// Peak memory use above which a parse returns free memory to the system, in bytes.
const TRIM_BYTES_MIN: usize = 16 << 20;

thread_local! {
    static BYTES_HELD: Cell<usize> = const { Cell::new(0) };
}

/// Counter of the memory that the parse of one text uses on the current thread.
pub(crate) struct ParseMemoryCounter {
    bytes_before: usize,
    peak_bytes: Cell<usize>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl ParseMemoryCounter {
    /// Starts counting the memory of a parse of a text with `bytes` bytes. If the text is long,
    /// blocks while another long text is parsed.
    pub(crate) fn start(bytes: usize) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = || TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = (bytes > PARALLEL_BYTES_MAX).then(turn);
        Self { bytes_before: BYTES_HELD.get(), peak_bytes: Cell::new(0), _turn: turn }
    }

    /// Returns the number of bytes of memory that the parse holds now.
    pub(crate) fn bytes_held(&self) -> usize {
        let held = BYTES_HELD.get().saturating_sub(self.bytes_before);
        self.peak_bytes.set(self.peak_bytes.get().max(held));
        held
    }

    /// Returns the largest number of bytes that [`Self::bytes_held`] has returned.
    #[cfg(test)]
    pub(crate) fn peak_bytes(&self) -> usize {
        self.peak_bytes.get()
    }
}

impl Drop for ParseMemoryCounter {
    /// Returns freed pages to the system if the parse used much memory, because `malloc` would keep
    /// them.
    fn drop(&mut self) {
        if self.peak_bytes.get() > TRIM_BYTES_MIN {
            trim_heap();
        }
    }
}

#[allow(unsafe_code, reason = "the allocator is the C library's")]
fn trim_heap() {
    // SAFETY: `malloc_trim` touches only free memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}
