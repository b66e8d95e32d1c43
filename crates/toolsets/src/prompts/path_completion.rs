//! Completes workspace paths in prompt arguments.

use std::collections::VecDeque;

use toolgate_contract::{ToolError, ToolErrorKind};

use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind, WalkFilter, WalkStartPoint};

/// The maximum number of paths that are suggested as completions. Paths in fewer folders come
/// first.
const PATHS_MAX: usize = 5_000;

/// Returns the paths of entries in the folder part of `prefix` and below it. Paths of folders end
/// in `/`. Fails if the call is canceled.
pub(super) fn complete_paths(
    root: &Root,
    prefix: &str,
    watch: &DiskWorkMonitor,
) -> Result<Vec<String>, ToolError> {
    let typed = prefix.rsplit_once('/').map(|(folder, _)| folder).filter(|it| !it.is_empty());
    // A path that does not exist or leads out of the workspace has no completions.
    let Ok(WalkStartPoint::Folder(top)) = root.walk_start(typed.unwrap_or(".")) else {
        return Ok(Vec::new());
    };
    let filter = WalkFilter { include_ignored: false, include_hidden: true };
    let mut waiting = VecDeque::from([top]);
    let mut found = Vec::new();
    while let Some(mut folder) = waiting.pop_front() {
        let entries = match folder.list(root, filter, watch) {
            Ok(entries) => entries,
            Err(err) if err.fault == ToolErrorKind::Canceled => return Err(err),
            // The folder has vanished or is unreadable.
            Err(_) => continue,
        };
        for (name, kind) in entries {
            if found.len() == PATHS_MAX {
                return Ok(found);
            }
            let path = folder.path.join(&name);
            let Some(path) = path.to_str() else { continue };
            match kind {
                EntryKind::Dir => {
                    found.push(format!("{path}/"));
                    waiting.push_back(folder.child(&name));
                }
                EntryKind::File | EntryKind::Symlink => found.push(path.to_owned()),
                EntryKind::Other => {}
            }
        }
    }
    Ok(found)
}
