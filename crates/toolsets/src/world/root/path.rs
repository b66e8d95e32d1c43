//! What a caller's path may look like, before the kernel resolves it.

use std::path::Path;

use toolgate_contract::ToolError;

const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;

/// `path` relative to the root, which is at `root`; nothing else about it changes.
///
/// An absolute path that begins with the root's own is stripped of it, as text.
/// There is no `~`, no percent-decoding and no other folding.
pub(super) fn relative<'p>(path: &'p str, root: &Path) -> Result<&'p str, ToolError> {
    let invalid = |message: String| Err(ToolError::invalid("/path", message));
    if path.trim().is_empty() {
        return invalid("the path is empty; the root itself is `.`".into());
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
            shown(path)
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

/// The directory part of `path` and the name in it; `None` when it ends in no name.
///
/// `a/..`, `.` and `a/.` end in no name; slashes at the end are the caller's to refuse.
pub(super) fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_end_matches('/');
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = if dir.is_empty() { "." } else { dir };
    (!matches!(name, "" | "." | "..")).then_some((dir, name))
}

/// `path` in backquotes, with control characters escaped.
pub(crate) fn shown(path: &str) -> String {
    let mut text = String::with_capacity(path.len() + 2);
    text.push('`');
    for c in path.chars() {
        if c.is_control() {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text.push('`');
    text
}
