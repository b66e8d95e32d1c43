//! Releases the memory of the program's code, which the kernel can read from the file again.

use std::fs;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Releases the memory that holds the program's code and read-only data. The kernel reads them from
/// the program file again when they are needed. Reads all mappings of the process, which takes
/// about a millisecond.
///
/// Most code runs only once, to read settings and build schemas. A server that runs for days need
/// not keep this code in memory.
#[allow(unsafe_code, reason = "the kernel is told about mappings by address")]
pub fn release_code_pages() {
    for Range { start, end } in unmodified_mappings() {
        let start = std::ptr::without_provenance_mut::<std::ffi::c_void>(start);
        // SAFETY: the mapping belongs to the program's own file, is not writable, and has no
        // modified page. Reading it again yields the same bytes.
        let result = unsafe { madvise(start, end - start.addr(), Advice::LinuxDontNeed) };
        if let Err(error) = result {
            tracing::debug!("cannot release unused code from memory: {error}");
        }
    }
}

/// Returns the address ranges of read-only mappings of the program's own file whose pages are
/// unmodified.
///
/// Relocated data is excluded, because its pages differ from the file.
#[allow(clippy::disallowed_methods, reason = "the process's own mappings")]
fn unmodified_mappings() -> Vec<Range<usize>> {
    let own = fs::read_link("/proc/self/exe").unwrap_or_default();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut unchanged = Vec::new();
    let mut own_mapping = None;
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let Some(first) = fields.next() else { continue };
        if let Some((start, end)) = first.split_once('-') {
            let permissions = fields.next().unwrap_or_default();
            let is_own = fields.nth(3).is_some_and(|file| own.as_os_str() == file);
            let address = |text| usize::from_str_radix(text, 16).ok();
            let range = address(start).zip(address(end)).map(|(start, end)| start..end);
            own_mapping = range.filter(|_| is_own && matches!(permissions, "r-xp" | "r--p"));
        } else if first == "Anonymous:" && fields.next() == Some("0") {
            unchanged.extend(own_mapping.take());
        }
    }
    unchanged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Static data that the loader relocates at the start of the program, and that nothing writes
    /// after that.
    static RELOCATED: [fn() -> Vec<Range<usize>>; 1] = [unmodified_mappings];

    #[test]
    fn released_code_pages_are_mapped_again_and_modified_ones_kept() {
        let [read] = RELOCATED;
        let code = read as *const () as usize;
        let relocated = RELOCATED.as_ptr().addr();
        let is_releasable = |address: usize| read().iter().any(|range| range.contains(&address));
        assert!(is_releasable(code) && !is_releasable(relocated));
        release_code_pages();
        assert!(is_releasable(code) && !is_releasable(relocated));
    }
}
