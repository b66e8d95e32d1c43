//! Gives back the pages of the program that only its start needed.

use std::fs;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Lets go of the program's code: what is needed again is mapped again, from memory as long as
/// nobody else needs that.
///
/// Most of the code runs once, to read settings and to make schemas, and is kept in memory for
/// nothing by a server that lives for days.
#[allow(unsafe_code, reason = "the kernel is told about mappings by address")]
pub fn let_go_of_start() {
    for Range { start, end } in code() {
        let start = std::ptr::without_provenance_mut::<std::ffi::c_void>(start);
        // SAFETY: the mapping is the program's own code, which nobody can have written to, so what
        // comes back is what was there.
        let told = unsafe { madvise(start, end - start.addr(), Advice::LinuxDontNeed) };
        if let Err(err) = told {
            tracing::debug!("code that is not needed any more stays in memory: {err}");
        }
    }
}

/// Where the program's own code is mapped: what can be run and not written, of its own file.
#[allow(clippy::disallowed_methods, reason = "the process's own mappings")]
fn code() -> Vec<Range<usize>> {
    let own = fs::read_link("/proc/self/exe").unwrap_or_default();
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let code = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (addresses, may) = (fields.next()?, fields.next()?);
        let file = fields.nth(3)?;
        if may != "r-xp" || own.as_os_str() != file {
            return None;
        }
        let (start, end) = addresses.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(address(start)?..address(end)?)
    });
    code.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_that_is_let_go_of_is_there_when_it_is_needed() {
        let here = code as *const () as usize;
        assert!(code().iter().any(|range| range.contains(&here)));
        let_go_of_start();
        assert!(code().iter().any(|range| range.contains(&here)));
    }
}
