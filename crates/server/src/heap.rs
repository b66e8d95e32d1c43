//! Returns freed memory to the operating system, which glibc's allocator would otherwise keep.
//!
//! By default, this allocator learns from each large block that was freed, and then takes blocks of
//! up to 32 MiB from heaps in which they leave holes. It also has eight heaps for each processor.
//! After many large requests, such holes take several times as much memory as the server uses.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use toolgate_budget::InputMemoryBudget;

/// Minimum size in bytes of a block that the allocator maps separately (`M_MMAP_THRESHOLD`). The
/// pages of such a block return to the system when the block is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES_MIN: libc::c_int = 4 << 20;
/// Size in bytes of the free memory at the end of a heap from which the allocator returns that
/// memory to the system (`M_TRIM_THRESHOLD`).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_BYTES_MIN: libc::c_int = 8 << 20;
/// Number of allocator heaps (arenas) for each processor. All threads share the heaps.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS_PER_PROCESSOR: usize = 2;
/// Shortest time between two searches for free pages in the allocator's heaps. A search blocks each
/// heap for some milliseconds.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);

/// Configures the C library's allocator for a server. Does nothing if the C library is not glibc.
///
/// Call this function before the program starts threads.
#[allow(unsafe_code, reason = "the allocator is the C library's")]
pub fn configure_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = i32::try_from(processors * HEAPS_PER_PROCESSOR).unwrap_or(i32::MAX);
        // SAFETY: `mallopt` only stores the numbers. If it refuses one, the default applies.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES_MIN);
            libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES_MIN);
            libc::mallopt(libc::M_ARENA_MAX, heaps);
        }
    }
}

/// Returns the free pages of all heaps of the C library's allocator to the system.
#[allow(unsafe_code, reason = "the allocator is the C library's")]
pub(crate) fn trim_heaps() {
    // SAFETY: `malloc_trim` touches only free memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits for large requests, which reserve `memory`, and returns free pages to the system after
/// their answers. Never returns.
pub(crate) async fn trim_after_large_requests(memory: &InputMemoryBudget) {
    loop {
        memory.wait_large_freed().await;
        // The values of the request are freed about now, and others may follow.
        sleep(TRIM_INTERVAL).await;
        let _ = spawn_blocking(trim_heaps).await;
    }
}
