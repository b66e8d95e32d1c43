//! Reads a workspace file that a prompt includes.

use std::os::unix::ffi::OsStrExt;

use toolgate_contract::{ResourceContents, ToolError, ToolErrorKind};

use crate::{media, uri_paths};
use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, WalkStartPoint, quoted_path};

/// The maximum size of a file that a prompt includes, in bytes. The file is sent to a model
/// completely.
const BYTES_MAX: u64 = 1 << 20;

/// Reads the file at `path`, which may be user input. Fails if the path leads out of the workspace.
pub(super) fn read_included(
    root: &Root,
    path: &str,
    watch: &DiskWorkMonitor,
) -> Result<ResourceContents, ToolError> {
    let unreadable = |err: ToolError| ToolError {
        message: format!("the prompt includes a file that cannot be read: {}", err.message),
        ..err.with_pointer("")
    };
    let at = match root.walk_start(path).map_err(unreadable)? {
        WalkStartPoint::File(found) => found.path,
        WalkStartPoint::Folder(_) => {
            let message = format!("{} is a directory, not a file", quoted_path(path));
            return Err(unreadable(ToolError::invalid("", message)));
        }
    };
    let file = root.open_walked(&at).map_err(unreadable)?;
    let size = file.meta().size();
    if size > BYTES_MAX {
        let message = format!(
            "{} has {size} bytes; a prompt can include files of at most {BYTES_MAX}",
            quoted_path(path)
        );
        return Err(ToolError::new(ToolErrorKind::TooLarge, message));
    }
    let bytes = file.read(0, size, watch).map_err(unreadable)?;
    let uri = format!(
        "file://{}",
        uri_paths::percent_encode_path(root.path().join(&at).as_os_str().as_bytes())
    );
    let name = at.file_name().unwrap_or_default().to_string_lossy();
    Ok(media::contents(uri, &name, bytes))
}
