//! Limits the processor time and the memory that one fuzzing input may take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Largest processor time of one input. Inputs are so small that none takes this long on a busy
/// machine.
const CPU_MAX: Duration = Duration::from_secs(1);
/// Largest number of bytes that one input may allocate.
const BYTES_MAX: usize = 64 << 20;

/// Runs `work`. Aborts the process if `work` allocates more than [`BYTES_MAX`] bytes, and panics if
/// it takes more than [`CPU_MAX`] of processor time.
pub(super) fn run_within_limits(work: impl FnOnce()) {
    let started = cpu_time();
    let allocated = ALLOCATED.load(Ordering::Relaxed);
    ALLOCATED_MAX.store(allocated + BYTES_MAX, Ordering::Relaxed);
    work();
    ALLOCATED_MAX.store(usize::MAX, Ordering::Relaxed);
    let taken = cpu_time().saturating_sub(started);
    assert!(taken < CPU_MAX, "the input took {taken:?} of processor time");
}

/// Returns the processor time of the current thread.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("time is not negative")
}

/// Number of bytes that this process has allocated and not released.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// Number of allocated bytes above which the process is aborted.
static ALLOCATED_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
/// True once the process has reported that an input exceeds the memory limit.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Allocator of the system that also counts allocated bytes. libFuzzer checks memory only once a
/// second, for the process and not for one input.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Adds `bytes` to the count, and aborts the process if the count exceeds the limit.
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

/// Subtracts `bytes`, which were released, from the count.
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
