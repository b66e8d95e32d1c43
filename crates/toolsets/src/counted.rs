//! Formats a count with its noun, such as `2 files`.

/// Returns `count` with the noun `one` for 1, or `many` for other counts: `1 file`, `2 files`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
