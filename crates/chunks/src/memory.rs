//! Counts the memory of a parse while it runs, and returns it to the system afterwards.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ffi::c_void;
use std::process::abort;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tree_sitter::{Allocator, set_allocator};

/// Longest text that is parsed in parallel with others, in bytes. Longer texts are parsed one at a
/// time.
const PARALLEL_BYTES_MAX: usize = 256 << 10;
/// Peak memory use above which a parse returns free memory to the system, in bytes.
const TRIM_BYTES_MIN: usize = 16 << 20;
/// Number of bytes that the allocator adds before each memory block. They contain the size of the
/// block, and keep the alignment of `malloc`.
const HEADER_BYTES: usize = 16;

thread_local! {
    static BYTES_HELD: Cell<usize> = const { Cell::new(0) };
}

/// Memory that the parse of one text uses, on this thread.
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
    /// Returns freed pages to the system, which `malloc` would otherwise keep.
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

/// Installs the counting allocator in the parser. Must run before any other use of the parser.
#[allow(unsafe_code, reason = "the parser takes its allocator once, for the whole process")]
pub(crate) fn install_allocator() {
    static COUNTED: Once = Once::new();
    // SAFETY: the parser has not allocated yet, and nothing else sets its allocator. The four
    // functions belong together, never return null and align like `malloc`.
    COUNTED.call_once(|| unsafe {
        set_allocator(Some(Allocator { malloc, calloc, realloc, free }));
    });
}

extern "C" fn malloc(size: usize) -> *mut c_void {
    allocate(size, false)
}

extern "C" fn calloc(number: usize, size: usize) -> *mut c_void {
    allocate(number.checked_mul(size).unwrap_or_else(|| abort()), true)
}

#[allow(unsafe_code, reason = "the parser is C")]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        return allocate(size, false);
    }
    // SAFETY: `old` is a block of this allocator, preceded by its size.
    unsafe {
        let start = old.cast::<u8>().sub(HEADER_BYTES);
        let before = start.cast::<usize>().read();
        let new = std::alloc::realloc(start, layout(before), layout(size).size());
        if new.is_null() {
            handle_alloc_error(layout(size));
        }
        new.cast::<usize>().write(size);
        BYTES_HELD.set(BYTES_HELD.get().wrapping_sub(before).wrapping_add(size));
        new.add(HEADER_BYTES).cast()
    }
}

#[allow(unsafe_code, reason = "the parser is C")]
unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: `block` is a block of this allocator, preceded by its size.
    unsafe {
        let start = block.cast::<u8>().sub(HEADER_BYTES);
        let size = start.cast::<usize>().read();
        dealloc(start, layout(size));
        BYTES_HELD.set(BYTES_HELD.get().wrapping_sub(size));
    }
}

#[allow(unsafe_code, reason = "the parser is C")]
fn allocate(size: usize, zeroed: bool) -> *mut c_void {
    let layout = layout(size);
    // SAFETY: the layout is not empty, and the header fits into it.
    unsafe {
        let start = if zeroed { alloc_zeroed(layout) } else { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        start.cast::<usize>().write(size);
        BYTES_HELD.set(BYTES_HELD.get().wrapping_add(size));
        start.add(HEADER_BYTES).cast()
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size.saturating_add(HEADER_BYTES), HEADER_BYTES)
        .unwrap_or_else(|_| abort())
}
