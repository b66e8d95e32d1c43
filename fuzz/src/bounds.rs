//! How much time and memory one input may take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Of the processor, so that a busy machine finds nothing. Inputs are a few kilobytes.
const CPU_MAX: Duration = Duration::from_secs(1);
/// Beyond what there was before.
const BYTES_MAX: usize = 64 << 20;

/// Runs `work`, and ends the process where it takes more than it may.
pub(super) fn within(work: impl FnOnce()) {
    let begun = cpu();
    let held = HELD.load(Ordering::Relaxed);
    MOST.store(held + BYTES_MAX, Ordering::Relaxed);
    work();
    MOST.store(usize::MAX, Ordering::Relaxed);
    let spent = cpu().saturating_sub(begun);
    assert!(spent < CPU_MAX, "the input took {spent:?} of processor time");
}

fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("time is not negative")
}

/// How much is held, and how much may be.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
static TOLD: AtomicBool = AtomicBool::new(false);

/// The system's allocator, counted: libFuzzer looks only once a second, and at the whole process.
struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

fn take(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // Telling of it takes memory, too.
    if held > MOST.load(Ordering::Relaxed) && !TOLD.swap(true, Ordering::Relaxed) {
        eprintln!("the input needs more than {BYTES_MAX} bytes");
        std::process::abort();
    }
}

fn give(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: all is the system allocator's; counting allocates nothing unless it ends the process.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        give(layout.size());
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        give(layout.size());
        unsafe { System.dealloc(old, layout) }
    }
}
