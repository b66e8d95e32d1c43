//! Handles workspace paths in URIs and settings, and pages of resource lists.

use std::path::{Component, Path};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use toolgate_contract::ResourceSpec;

/// The bytes to percent-encode in a URI path (RFC 3986: all but `pchar` and `/`).
const PATH_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

/// Percent-encodes `path` for a URI.
pub(crate) fn percent_encode_path(path: impl AsRef<[u8]>) -> String {
    percent_encode(path.as_ref(), PATH_ESCAPES).collect()
}

/// Checks that `folder`, the value of the setting `setting`, is inside the workspace.
///
/// # Errors
/// Fails if the folder is empty or leads out of the workspace. The message names the setting.
pub fn check_folder(setting: &str, folder: &str) -> Result<(), String> {
    let mut depth = 0_usize;
    let is_inside = Path::new(folder).components().all(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            true
        }
        Component::CurDir => true,
        Component::ParentDir => {
            let above = depth.checked_sub(1);
            depth = above.unwrap_or_default();
            above.is_some()
        }
        Component::RootDir | Component::Prefix(_) => false,
    });
    let advice = "give the relative path of a folder inside the workspace, e.g. `docs/prompts`";
    match folder {
        _ if folder.trim().is_empty() => Err(format!("`{setting}` is empty; {advice}")),
        _ if folder.contains('\0') => {
            Err(format!("`{setting}` contains a NUL character; {advice}"))
        }
        _ if !is_inside => {
            let folder = folder.escape_debug();
            Err(format!("`{setting}` is `{folder}`, which is outside the workspace; {advice}"))
        }
        _ => Ok(()),
    }
}

/// Returns at most `at_most` of the resources `specs`, starting after the URI `after`. `specs` must
/// be sorted by URI.
pub(crate) fn page_after(
    specs: impl Iterator<Item = ResourceSpec>,
    after: Option<&str>,
    at_most: usize,
) -> Vec<ResourceSpec> {
    specs.filter(|spec| after.is_none_or(|after| *spec.uri > *after)).take(at_most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_relative_path_inside_the_workspace_is_valid() {
        for folder in ["skills", ".claude/skills/", "./a", ".", "a/../b", "a b"] {
            check_folder("prompts.folder", folder).unwrap();
        }
        for folder in ["", " ", "/", "/etc", "..", "../x", "a/../../x", "./..", "a\0"] {
            let message = check_folder("prompts.folder", folder).unwrap_err();
            assert!(message.starts_with("`prompts.folder` "), "{message}");
            assert!(message.contains("inside"), "{message}");
        }
    }
}
