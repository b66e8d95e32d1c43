//! Configures glibc's allocator: large blocks use huge pages, and freed memory returns to the system.
//!
//! By default, this allocator learns from each large block that was freed, and then takes blocks of
//! up to 32 MiB from heaps in which they leave holes. It also has eight heaps for each processor.
//! After many large requests, such holes take several times as much memory as the server uses.

use std::alloc::{GlobalAlloc, Layout, System};
use std::time::Duration;

use tokio::time::sleep;
use toolgate_budget::InputMemoryBudget;
use toolgate_net::spawn_blocking;

/// Minimum size in bytes of a block that the allocator maps separately (`M_MMAP_THRESHOLD`). The
/// pages of such a block return to the system when the block is freed.
const OWN_PAGES_BYTES_MIN: usize = 4 << 20;
/// Size in bytes of the free memory at the end of a heap from which the allocator returns that
/// memory to the system (`M_TRIM_THRESHOLD`). With half of this size, each write to the search index
/// would return its memory and take it again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const TRIM_BYTES_MIN: libc::c_int = 16 << 20;
/// Number of allocator heaps (arenas) for each processor. All threads share the heaps.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS_PER_PROCESSOR: usize = 2;
/// Shortest time between two searches for free pages in the allocator's heaps. A search blocks each
/// heap for some milliseconds.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);

/// Allocator that asks the system for huge pages for large blocks. Otherwise the same as [`System`].
///
/// The text of a large file passes through several blocks. With pages of 4 KiB, a third of the time
/// of such a call would be spent on page faults.
pub struct HugePageAllocator;

impl HugePageAllocator {
    /// Asks for huge pages for the block of `size` bytes at `block`, if it has its own mapping.
    #[allow(unsafe_code, reason = "the system is told about a block by its address")]
    fn advise(block: *mut u8, size: usize) {
        const PAGE_BYTES: usize = 4096;
        if size < OWN_PAGES_BYTES_MIN || block.is_null() {
            return;
        }
        let before = block.addr() % PAGE_BYTES;
        // SAFETY: the range contains pages of this block only. The advice does not change their
        // content. If the system refuses it, its pages are small.
        unsafe {
            let start = block.add(PAGE_BYTES - before);
            let length = (size - (PAGE_BYTES - before)) / PAGE_BYTES * PAGE_BYTES;
            libc::madvise(start.cast(), length, libc::MADV_HUGEPAGE);
        }
    }
}

// SAFETY: all blocks come from `System`, and advice does not change them.
#[allow(unsafe_code, reason = "only unsafe code can be an allocator")]
unsafe impl GlobalAlloc for HugePageAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of this function, which are those of `System`.
        let block = unsafe { System.alloc(layout) };
        Self::advise(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { System.alloc_zeroed(layout) };
        Self::advise(block, layout.size());
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { System.realloc(block, layout, size) };
        Self::advise(block, size);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Configures the C library's allocator for a server. Does nothing if the C library is not glibc.
///
/// Call this function before the program starts threads.
#[allow(unsafe_code, reason = "the allocator is the C library's")]
pub fn configure_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let own_pages = i32::try_from(OWN_PAGES_BYTES_MIN).unwrap_or(i32::MAX);
        let heaps = i32::try_from(processors * HEAPS_PER_PROCESSOR).unwrap_or(i32::MAX);
        // SAFETY: `mallopt` only stores the numbers. If it refuses one, the default applies.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, own_pages);
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
