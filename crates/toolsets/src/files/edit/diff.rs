//! A change as a unified diff.

use std::time::Duration;

use similar::TextDiff;

/// Past this a diff is made quickly rather than short.
const THINKING_MAX: Duration = Duration::from_millis(500);

/// What makes `new` of `old`, in at most `limit` bytes, and whether that cut it.
pub(super) fn unified(old: &[u8], new: &[u8], path: &str, limit: u64) -> (String, bool) {
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let diff = TextDiff::configure().timeout(THINKING_MAX).diff_lines(&*old, &*new);
    let mut text = diff
        .unified_diff()
        .context_radius(3)
        .header(&format!("a/{path}"), &format!("b/{path}"))
        .to_string();
    let limit = text.floor_char_boundary(usize::try_from(limit).unwrap_or(usize::MAX));
    let cut = limit < text.len();
    text.truncate(limit);
    (text, cut)
}
