//! Paths in URIs and settings: what may stand there, and what a list continues after.

use std::path::{Component, Path};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use toolgate_contract::ResourceSpec;

/// What is written otherwise in a path than it is (RFC 3986: all but `pchar` and `/`).
const IN_PATHS: &AsciiSet = &NON_ALPHANUMERIC
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

/// `path` as it is written in a URI.
pub(crate) fn in_uri(path: impl AsRef<[u8]>) -> String {
    percent_encode(path.as_ref(), IN_PATHS).collect()
}

/// Refuses `folder`, which the setting `setting` names, where it is none of the workspace.
///
/// # Errors
/// When it is empty or leads out, in a sentence that names the setting.
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
    let wish = "name a folder inside the workspace by its path from there, e.g. `docs/it`";
    match folder {
        _ if folder.trim().is_empty() => Err(format!("`{setting}` names an empty path; {wish}")),
        _ if folder.contains('\0') => Err(format!("`{setting}` has a NUL character in it; {wish}")),
        _ if !is_inside => {
            let folder = folder.escape_debug();
            Err(format!("`{setting}` names `{folder}`, which is outside the workspace; {wish}"))
        }
        _ => Ok(()),
    }
}

/// Up to `at_most` of `specs`, which are in order of URI, after the one read by `after`.
pub(crate) fn page(
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
    fn a_folder_of_the_workspace_is_named_by_its_path_from_there() {
        for folder in ["skills", ".claude/skills/", "./a", ".", "a/../b", "a b"] {
            check_folder("prompts.folder", folder).unwrap();
        }
        for folder in ["", " ", "/", "/etc", "..", "../x", "a/../../x", "./..", "a\0"] {
            let wrong = check_folder("prompts.folder", folder).unwrap_err();
            assert!(wrong.starts_with("`prompts.folder` ") && wrong.contains("inside"), "{wrong}");
        }
    }
}
