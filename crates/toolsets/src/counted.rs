//! Joins a count with its noun, such as `2 files`.

/// Returns `count` with the noun `one` or `many`, such as `1 file` or `2 files`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
