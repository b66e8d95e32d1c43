//! Completes workspace paths in prompt arguments.

use std::collections::VecDeque;

use toolgate_contract::{Fault, ToolError};

use crate::world::Root;
use crate::world::root::{Kind, Sight, Start, Watch};

/// The most paths to suggest. Those nearest to the top come first.
const PATHS_MAX: usize = 5_000;

/// Returns the paths below the folder in `so_far`. Folders end in `/`.
pub(super) fn near(root: &Root, so_far: &str, watch: &Watch) -> Result<Vec<String>, ToolError> {
    let typed = so_far.rsplit_once('/').map(|(folder, _)| folder).filter(|it| !it.is_empty());
    // A path that does not exist or leads out of the workspace has no completions.
    let Ok(Start::Folder(top)) = root.start(typed.unwrap_or(".")) else { return Ok(Vec::new()) };
    let sight = Sight { ignored: false, hidden: true };
    let mut waiting = VecDeque::from([top]);
    let mut found = Vec::new();
    while let Some(mut folder) = waiting.pop_front() {
        let entries = match folder.look(root, sight, watch) {
            Ok(entries) => entries,
            Err(err) if err.fault == Fault::Canceled => return Err(err),
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
                Kind::Dir => {
                    found.push(format!("{path}/"));
                    waiting.push_back(folder.enter(&name));
                }
                Kind::File | Kind::Symlink => found.push(path.to_owned()),
                Kind::Other => {}
            }
        }
    }
    Ok(found)
}
