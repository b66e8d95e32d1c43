//! How much memory a parse takes: counted while it runs, given back once it is over.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ffi::c_void;
use std::process::abort;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tree_sitter::{Allocator, set_allocator};

/// What is longer is parsed one at a time.
const LONG_BYTES: usize = 256 << 10;
/// What was left by a parse that took more is given back to the system.
const LARGE_BYTES: usize = 16 << 20;
/// A block is preceded by its size, and begins where any C type may.
const HEADER: usize = 16;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// The memory of one parse, on this thread.
pub(crate) struct Memory {
    before: usize,
    most: Cell<usize>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Memory {
    /// For the parse of a text of `bytes`: it waits until no other long one is parsed.
    pub(crate) fn of(bytes: usize) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = || TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = (bytes > LONG_BYTES).then(turn);
        Self { before: HELD.get(), most: Cell::new(0), _turn: turn }
    }

    /// How many bytes the parse holds.
    pub(crate) fn held(&self) -> usize {
        let held = HELD.get().saturating_sub(self.before);
        self.most.set(self.most.get().max(held));
        held
    }

    /// How many it held at most when it was asked.
    #[cfg(test)]
    pub(crate) fn most(&self) -> usize {
        self.most.get()
    }
}

impl Drop for Memory {
    /// What was parsed is gone by now, but the pages it was in stay with the process unless it is
    /// told otherwise.
    fn drop(&mut self) {
        if self.most.get() > LARGE_BYTES {
            give_back();
        }
    }
}

#[allow(unsafe_code, reason = "the allocator is the C library's")]
fn give_back() {
    // SAFETY: it touches no memory but what is free.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the parser's memory counted. Comes before all else that is asked of the parser.
#[allow(unsafe_code, reason = "the parser takes its allocator once, for the whole process")]
pub(crate) fn count() {
    static COUNTED: Once = Once::new();
    // SAFETY: nothing was asked of the parser before, and nobody else sets its allocator. The four
    // belong together, never give null and align as `malloc` does.
    COUNTED.call_once(|| unsafe {
        set_allocator(Some(Allocator { malloc, calloc, realloc, free }));
    });
}

extern "C" fn malloc(size: usize) -> *mut c_void {
    block(size, false)
}

extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    block(number.checked_mul(size).unwrap_or_else(|| abort()), true)
}

#[allow(unsafe_code, reason = "the parser is C")]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        return block(size, false);
    }
    // SAFETY: `old` is a block of ours, whose size stands before it.
    unsafe {
        let start = old.cast::<u8>().sub(HEADER);
        let before = start.cast::<usize>().read();
        let new = std::alloc::realloc(start, layout(before), layout(size).size());
        if new.is_null() {
            handle_alloc_error(layout(size));
        }
        new.cast::<usize>().write(size);
        HELD.set(HELD.get().wrapping_sub(before).wrapping_add(size));
        new.add(HEADER).cast()
    }
}

#[allow(unsafe_code, reason = "the parser is C")]
unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: `block` is one of ours, whose size stands before it.
    unsafe {
        let start = block.cast::<u8>().sub(HEADER);
        let size = start.cast::<usize>().read();
        dealloc(start, layout(size));
        HELD.set(HELD.get().wrapping_sub(size));
    }
}

#[allow(unsafe_code, reason = "the parser is C")]
fn block(size: usize, zeroed: bool) -> *mut c_void {
    let layout = layout(size);
    // SAFETY: the layout has a size, and the header fits into it.
    unsafe {
        let start = if zeroed { alloc_zeroed(layout) } else { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        start.cast::<usize>().write(size);
        HELD.set(HELD.get().wrapping_add(size));
        start.add(HEADER).cast()
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size.saturating_add(HEADER), HEADER).unwrap_or_else(|_| abort())
}
