//! Allocator of the parser, which counts the memory that a thread holds.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::process::abort;
use std::sync::Once;

use tree_sitter::{Allocator, set_allocator};

use super::BYTES_HELD;

/// Number of bytes that the allocator adds before each memory block. They contain the size of the
/// block, and keep the alignment of `malloc`.
const HEADER_BYTES: usize = 16;

/// Makes tree-sitter, the parser library, use the counting allocator. Must run before any other use
/// of the library.
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
