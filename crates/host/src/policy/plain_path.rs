//! Normalizes paths, so that rules compare all spellings of a path in the same way.

use std::borrow::Cow;

/// Removes `.`, `..`, and repeated and trailing slashes from `path`. Also removes the prefix
/// `root`, the path of the workspace, as tools do.
///
/// A leading `..` remains, because the path then leads out of the workspace, and no tool follows
/// it. Symbolic links are not resolved.
pub(super) fn normalize_path<'p>(path: &'p str, root: Option<&str>) -> Cow<'p, str> {
    let path = root.and_then(|root| strip_root(path, root)).unwrap_or(path);
    if is_plain(path) {
        return path.into();
    }
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.last().is_some_and(|last| *last != "..") => drop(names.pop()),
            name => names.push(name),
        }
    }
    let names = names.join("/");
    match (path.starts_with('/'), names.is_empty()) {
        (true, _) => format!("/{names}").into(),
        (false, true) => ".".into(),
        (false, false) => names.into(),
    }
}

/// Returns true if `path` equals, is inside, or contains `folder`, in any spelling. In these cases
/// an action on `path` can affect `folder`.
pub(super) fn touches(path: &str, folder: &str, root: Option<&str>) -> bool {
    under(path, folder, root) || under(folder, path, root)
}

/// Returns true if `path` equals or is inside `folder`, in any spelling.
pub(super) fn under(path: &str, folder: &str, root: Option<&str>) -> bool {
    let path = normalize_path(path, root);
    let folder = normalize_path(folder, root);
    let leads_out = |path: &str| path == ".." || path.starts_with("../") || path.starts_with('/');
    match &*folder {
        "." => !leads_out(&path),
        folder => {
            let rest = path.strip_prefix(folder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || folder == "/")
        }
    }
}

/// Returns `path` without the prefix `root`, the path of the workspace. Compares the two as text,
/// as tools do.
fn strip_root<'p>(path: &'p str, root: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(root)?;
    (path.starts_with('/') && (rest.is_empty() || rest.starts_with('/')))
        .then(|| rest.trim_start_matches('/'))
}

fn is_plain(path: &str) -> bool {
    path == "." || !path.is_empty() && path.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_normalized_to_one() {
        for path in [
            "a/b",
            "./a/b",
            "a//b",
            "a/./b/",
            "x/../a/b",
            "/ws/a/b",
            "/ws//a/b",
            "a/b/c/..",
            "/ws/./a/b",
        ] {
            assert_eq!(normalize_path(path, Some("/ws")), "a/b", "{path}");
        }
        for path in [".", "", "./", "a/..", "/ws", "/ws/", "/ws/."] {
            assert_eq!(normalize_path(path, Some("/ws")), ".", "{path}");
        }
        for (path, expected) in [
            ("../a", "../a"),
            ("a/../../b", "../b"),
            ("/ws_evil/a", "/ws_evil/a"),
            ("/etc//passwd", "/etc/passwd"),
            ("/ws/../etc", "../etc"),
        ] {
            assert_eq!(normalize_path(path, Some("/ws")), expected, "{path}");
        }
    }

    #[test]
    fn a_path_is_under_a_folder_by_components_and_not_by_prefix() {
        for path in ["infra", "infra/", "./infra/a", "x/../infra/a/b", "infra//a", "/ws/infra/a"] {
            assert!(under(path, "infra/", Some("/ws")), "{path}");
            assert!(under(path, ".", Some("/ws")), "{path}");
        }
        for path in ["infrared", "x/infra", "infra/../x", "../infra", "/infra"] {
            assert!(!under(path, "infra", Some("/ws")), "{path}");
        }
        assert!(!under("../x", ".", None) && !under("/etc", ".", None) && under("/etc", "/", None));
    }

    #[test]
    fn a_folder_is_touched_by_its_parents() {
        for path in ["infra/x", "infra/x/y", "infra", ".", "a/..", "/ws", "/ws/infra/"] {
            assert!(touches(path, "infra/x", Some("/ws")), "{path}");
        }
        for path in ["infra/xy", "infra/y", "inf", "infra/x/../y", "/ws/other"] {
            assert!(!touches(path, "infra/x", Some("/ws")), "{path}");
        }
    }

    proptest! {
        #[test]
        fn normalizing_a_normalized_path_changes_nothing(path in "[ab./]{0,12}") {
            let once = normalize_path(&path, Some("/a")).into_owned();
            prop_assert_eq!(normalize_path(&once, None), once.as_str(), "{}", path);
        }
    }
}
