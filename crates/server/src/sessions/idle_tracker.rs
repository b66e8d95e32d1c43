//! Releases memory that an idle server does not need: pages of the program's code, and freed heap
//! memory.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::mm::{Advice, madvise};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::heap::trim_heaps;

/// Time after the start of the server at which the memory of startup code is released, even if the
/// server is busy.
const STARTUP_DELAY: Duration = Duration::from_millis(500);
/// Time without requests after which the memory of program code is released.
const IDLE_DELAY: Duration = Duration::from_secs(5);

/// Tracks recent requests, and releases memory of the program's code while the server is idle.
#[derive(Debug, Default)]
pub(crate) struct IdleTracker {
    is_busy: AtomicBool,
    activity: Notify,
}

impl IdleTracker {
    /// Records that a request has just begun.
    pub(crate) fn note_activity(&self) {
        if !self.is_busy.load(Ordering::Relaxed) && !self.is_busy.swap(true, Ordering::Relaxed) {
            self.activity.notify_one();
        }
    }

    /// Releases the memory of program code once after startup. Each time the server becomes idle,
    /// releases this memory again, and also freed heap memory. Never returns.
    pub(crate) async fn release_when_idle(&self) {
        sleep(STARTUP_DELAY).await;
        // A blocking thread, because reading all mappings would delay current requests.
        let _ = tokio::task::spawn_blocking(release_code_pages).await;
        loop {
            self.activity.notified().await;
            while self.is_busy.swap(false, Ordering::Relaxed) {
                sleep(IDLE_DELAY).await;
            }
            release_code_pages();
            trim_heaps();
        }
    }
}

/// Releases the memory that holds the program's code and read-only data. The kernel reads them from
/// the program file again when they are needed.
///
/// Most code runs only once, to read settings and build schemas. A server that runs for days need
/// not keep this code in memory.
#[allow(unsafe_code, reason = "the kernel is told about mappings by address")]
fn release_code_pages() {
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

    #[tokio::test(start_paused = true)]
    async fn the_tracker_is_idle_after_a_while_without_requests() {
        let tracker = IdleTracker::default();
        let mut releasing = std::pin::pin!(tracker.release_when_idle());
        let mut waits = async |time| tokio::time::timeout(time, &mut releasing).await.is_err();
        assert!(waits(STARTUP_DELAY).await);
        // The first release runs in a thread, and paused time waits for it.
        assert!(waits(IDLE_DELAY).await);
        tracker.note_activity();
        assert!(waits(IDLE_DELAY / 2).await);
        assert!(!tracker.is_busy.load(Ordering::Relaxed), "it checks for more requests");
        tracker.note_activity();
        assert!(waits(IDLE_DELAY * 3).await);
        assert!(!tracker.is_busy.load(Ordering::Relaxed), "it waits for the next request");
    }
}
