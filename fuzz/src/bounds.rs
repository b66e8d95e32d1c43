//! Limits the processor time and the memory of one input.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Largest processor time of one input. A busy machine does not exceed it, because inputs are
/// small.
const CPU_MAX: Duration = Duration::from_secs(1);
/// Largest amount of memory that one input may allocate.
const BYTES_MAX: usize = 64 << 20;

/// Runs `work`, and ends the process if it exceeds a limit.
pub(super) fn run_within_limits(work: impl FnOnce()) {
    let started = cpu_time();
    let allocated = ALLOCATED.load(Ordering::Relaxed);
    ALLOCATED_MAX.store(allocated + BYTES_MAX, Ordering::Relaxed);
    work();
    ALLOCATED_MAX.store(usize::MAX, Ordering::Relaxed);
    let taken = cpu_time().saturating_sub(started);
    assert!(taken < CPU_MAX, "the input took {taken:?} of processor time");
}

/// Returns the processor time of this thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("time is not negative")
}

/// Number of bytes that are allocated now.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Largest number of allocated bytes.
static ALLOCATED_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Flag that is set once the limit was exceeded.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// The system's allocator, with a counter. libFuzzer only checks once a second, for the whole
/// process.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counts an allocation, and ends the process if there are too many bytes.
fn count_allocation(bytes: usize) {
    let allocated = ALLOCATED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // Printing allocates memory, too.
    if allocated > ALLOCATED_MAX.load(Ordering::Relaxed)
        && !IS_REPORTED.swap(true, Ordering::Relaxed)
    {
        eprintln!("the input needs more than {BYTES_MAX} bytes");
        std::process::abort();
    }
}

/// Subtracts released bytes from the count.
fn count_release(bytes: usize) {
    ALLOCATED.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: the system allocator does the work. Counting only allocates if it then ends the process.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size);
        count_release(layout.size());
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        count_release(layout.size());
        unsafe { System.dealloc(old, layout) }
    }
}
