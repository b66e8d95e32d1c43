//! Releases the memory of the program's code, which the kernel can read from the file again.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise};

#[allow(unsafe_code, reason = "the linker defines these symbols")]
unsafe extern "C" {
    /// First byte of the program in memory. Read-only data follows, and then code.
    #[link_name = "__executable_start"]
    static START: u8;
    /// Byte after the program's code. Only data that is written or relocated follows, and with GNU's
    /// linker also read-only data, which stays in memory.
    #[link_name = "etext"]
    static CODE_END: u8;
}

/// Releases the memory that holds the program's code and read-only data. The kernel reads them from
/// the program file again when they are needed.
///
/// Most code runs only once, to read settings and build schemas. A server that runs for days need
/// not keep this code in memory.
#[allow(unsafe_code, reason = "the kernel is told about the program by address")]
pub fn release_code_pages() {
    let (start, end) = (&raw const START, &raw const CODE_END);
    // SAFETY: the program's own file is mapped there, without write access, and nothing is
    // relocated there. Reading it again yields the same bytes, without a debugger's breakpoints.
    let result = unsafe {
        madvise(start.cast_mut().cast::<c_void>(), end.addr() - start.addr(), Advice::LinuxDontNeed)
    };
    if let Err(error) = result {
        tracing::debug!("cannot release unused code from memory: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Static data that the loader relocates at the start of the program, and that nothing writes
    /// after that.
    static RELOCATED: [fn(); 1] = [release_code_pages];

    #[test]
    fn released_code_is_read_again_and_relocated_data_kept() {
        let released = (&raw const START).addr()..(&raw const CODE_END).addr();
        let [release] = RELOCATED;
        assert!(released.contains(&(release as *const () as usize)));
        assert!(!released.contains(&RELOCATED.as_ptr().addr()));
        release();
        assert_eq!(RELOCATED[0] as *const (), release_code_pages as *const ());
    }
}
