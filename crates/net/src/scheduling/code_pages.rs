//! Releases the memory of code, which the kernel can read from the files again.

#![allow(unsafe_code, reason = "only the loader knows where the program and its libraries are")]

use std::ptr::{null_mut, with_exposed_provenance_mut};

use libc::{MADV_DONTNEED, PF_W, PT_LOAD, c_int, c_void, dl_phdr_info, madvise};
use rustix::param::page_size;

/// Releases the memory that holds code and read-only data of the program and its libraries. The
/// kernel reads them from the files again when they are needed.
///
/// Most code runs only once, to read settings and build schemas. A server that runs for days need
/// not keep this code in memory.
pub fn release_code_pages() {
    // SAFETY: the function only reads what the loader passes to it.
    unsafe { libc::dl_iterate_phdr(Some(release_object), null_mut()) };
}

/// Releases the memory of the program or library that `object` describes. Returns 0, so that the
/// loader continues with the next library.
unsafe extern "C" fn release_object(object: *mut dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let (object, vdso) = unsafe { (&*object, libc::getauxval(libc::AT_SYSINFO_EHDR)) };
    for index in 0..object.dlpi_phnum.into() {
        // SAFETY: the object has this number of segments.
        let segment = unsafe { &*object.dlpi_phdr.add(index) };
        // The vDSO is code of the kernel, which is in no file.
        if segment.p_type == PT_LOAD && segment.p_flags & PF_W == 0 && object.dlpi_addr != vdso {
            let address = object.dlpi_addr.wrapping_add(segment.p_vaddr);
            let address = usize::try_from(address).unwrap_or_default();
            let start = address / page_size() * page_size();
            let end = address + usize::try_from(segment.p_memsz).unwrap_or_default();
            // The last page may also hold the start of a writable segment.
            let size = end / page_size() * page_size() - start;
            // SAFETY: a file is mapped there, without write access. Linkers relocate no code, so
            // reading the file again yields the same bytes, without a debugger's breakpoints. If
            // the kernel refuses, the memory stays as it is.
            unsafe { madvise(with_exposed_provenance_mut(start), size, MADV_DONTNEED) };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Static data that the loader relocates at the start of the program, and that nothing writes
    /// after that.
    static RELOCATED: [fn(); 1] = [release_code_pages];

    /// Returns the resident memory in KiB of the code of the program and of its libraries.
    #[allow(clippy::disallowed_methods, reason = "the file is not in a workspace")]
    fn resident_code_kib() -> [u64; 2] {
        let program = std::env::current_exe().expect("a program");
        let program = program.to_str().expect("text");
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the file is there");
        let mut resident = [0, 0];
        let mut mapped = None;
        for line in maps.lines() {
            if let Some((_, permissions)) = line.split_once(" r") {
                let is_program = line.ends_with(program);
                let is_code = permissions.starts_with("-xp");
                mapped = (is_code && (is_program || line.contains(".so")))
                    .then_some(usize::from(!is_program));
            } else if let (Some(mapped), Some(size)) = (mapped, line.strip_prefix("Rss:")) {
                let kib = size.trim().strip_suffix(" kB").expect("a size");
                resident[mapped] += kib.parse::<u64>().expect("a number");
            }
        }
        resident
    }

    #[test]
    fn released_code_is_read_again_and_relocated_data_kept() {
        let before = resident_code_kib();
        let [release] = RELOCATED;
        release();
        let after = resident_code_kib();
        for (before, after) in before.into_iter().zip(after) {
            // A static program has no libraries.
            assert!(after < before || before == 0, "{before} KiB of code became {after} KiB");
        }
        let [relocated] = *std::hint::black_box(&RELOCATED);
        assert_eq!(relocated as *const (), release_code_pages as *const ());
    }
}
