//! Validates a caller's path before the kernel resolves it.

use std::borrow::Cow;
use std::path::Path;

use toolgate_contract::ToolError;

use toolgate_contract::printable;

const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;

/// Returns `path` relative to the directory `root`, without further normalization.
///
/// An absolute path that starts with the root's own path loses that prefix. `~` and percent signs
/// have no special meaning.
pub(super) fn relative_to_root<'p>(path: &'p str, root: &Path) -> Result<&'p str, ToolError> {
    let invalid = |message: String| Err(ToolError::invalid("/path", message));
    if path.trim().is_empty() {
        return invalid("the path is empty; the workspace itself is `.`".into());
    }
    if path.len() > PATH_BYTES_MAX {
        return invalid(format!(
            "the path has {} bytes; at most {PATH_BYTES_MAX} are allowed",
            path.len()
        ));
    }
    if path.contains('\0') {
        return invalid("the path contains a NUL character".into());
    }
    if let Some(name) = path.split('/').find(|name| name.len() > NAME_BYTES_MAX) {
        let long = name.len();
        return invalid(format!(
            "a name in the path has {long} bytes; at most {NAME_BYTES_MAX} are allowed"
        ));
    }
    if !path.starts_with('/') {
        return Ok(path);
    }
    strip_root(path, root).ok_or_else(|| {
        ToolError::not_allowed(format!(
            "{} is an absolute path outside the workspace; use a path relative to its root",
            quoted_path(path)
        ))
    })
}

fn strip_root<'p>(path: &'p str, root: &Path) -> Option<&'p str> {
    let root = root.to_str()?.trim_end_matches('/');
    let rest = path.strip_prefix(root)?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    match rest.trim_start_matches('/') {
        "" => Some("."),
        rest => Some(rest),
    }
}

/// Splits `path` into its directory and its last name. Returns `None` if `path` does not end in a
/// name.
///
/// `a/..`, `.` and `a/.` do not end in a name. Trailing slashes are ignored: a caller that does not
/// accept them must check first.
pub(super) fn split_name(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_end_matches('/');
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = if dir.is_empty() { "." } else { dir };
    (!matches!(name, "" | "." | "..")).then_some((dir, name))
}

/// Returns `path` as text, and replaces invalid UTF-8. Like [`Path::to_string_lossy`], but faster if
/// the path is valid.
pub fn path_text(path: &Path) -> Cow<'_, str> {
    path.to_str().map_or_else(|| path.to_string_lossy(), Cow::Borrowed)
}

/// Returns `path` in backquotes on one line, with control characters escaped.
pub fn quoted_path(path: &str) -> String {
    format!("`{}`", printable::escape_line(path))
}

/// Checks with fuzzed bytes that an accepted path is relative and has no NUL.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let root = Path::new("/ws/a");
    for path in [text, &format!("/ws/a/{text}"), &format!("/ws/a{text}")] {
        let Ok(taken) = relative_to_root(path, root) else { continue };
        assert!(!taken.starts_with('/') && !taken.contains('\0') && !taken.is_empty());
        assert!(path.ends_with(taken) || taken == ".");
        assert!(taken.split('/').all(|name| name.len() <= NAME_BYTES_MAX));
        if let Some((folder, name)) = split_name(taken) {
            assert!(!name.contains('/') && !matches!(name, "" | "." | ".."));
            assert!(taken.starts_with(folder) || folder == ".");
        }
        assert!(!quoted_path(taken).contains(['\n', '\u{1b}']));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(path: &str, root: &str) -> Option<String> {
        relative_to_root(path, Path::new(root)).ok().map(str::to_owned)
    }

    #[test]
    fn only_the_prefix_of_the_root_is_stripped() {
        assert_eq!(check("/ws/ok.txt", "/ws").as_deref(), Some("ok.txt"));
        assert_eq!(check("/ws//etc/passwd", "/ws").as_deref(), Some("etc/passwd"));
        assert_eq!(check("/ws", "/ws").as_deref(), Some("."));
        assert_eq!(check("/ws/", "/ws").as_deref(), Some("."));
        assert_eq!(check("/etc", "/").as_deref(), Some("etc"));
        for path in ["/ws_evil/x", "/w", "/", "//ws/x", "/etc/passwd"] {
            assert_eq!(check(path, "/ws"), None, "{path}");
        }
    }

    #[test]
    fn a_path_is_split_at_its_last_name() {
        assert_eq!(split_name("a"), Some((".", "a")));
        assert_eq!(split_name("a/b//"), Some(("a", "b")));
        assert_eq!(split_name("a/../b"), Some(("a/..", "b")));
        for path in [".", "..", "a/..", "a/.", "/"] {
            assert_eq!(split_name(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_path_is_relative_and_within_limits(path in "[a./~%\\\\\u{0}é ]{0,40}") {
            if let Some(path) = check(&path, "/ws/a") {
                prop_assert!(!path.starts_with('/') && !path.contains('\0') && !path.trim().is_empty());
                if let Some((dir, name)) = split_name(&path) {
                    prop_assert!(!name.contains('/') && !matches!(name, "" | "." | ".."));
                    prop_assert!(path.starts_with(dir) || dir == ".");
                }
            }
        }

        #[test]
        fn an_absolute_path_equals_its_relative_form(path in "[a-z][a-z./]{0,20}") {
            prop_assert_eq!(check(&format!("/ws/{path}"), "/ws"), check(&path, "/ws"));
        }

        #[test]
        fn a_sibling_with_the_same_prefix_is_never_inside(rest in "[^/\\x00]{1,10}") {
            prop_assert_eq!(check(&format!("/ws{rest}/x"), "/ws"), None);
        }
    }
}
