//! Reads all files in a folder of assets, within limits on bytes, values and directory entries.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::IgnoredAny;
use toolgate_contract::{ToolError, count_json_values, strip_byte_order_mark};

use toolgate_world::Root;
use toolgate_world::root::{DiskWorkMonitor, EntryKind, TreeWalk, WalkFilter, WalkStartPoint};

/// The maximum number of bytes of all schemas and examples that are read, together.
const BYTES_MAX: u64 = 32 << 20;
/// The maximum number of JSON values in all assets together, with arrays and objects counted twice.
/// A value takes many times the memory of its text.
const VALUES_MAX: usize = 2_000_000;
/// The maximum number of entries in the folders of assets together, subfolders included.
const ENTRIES_MAX: usize = 10_000;
/// The filter of the search for asset files: everything except hidden files.
const ASSET_FILTER: WalkFilter = WalkFilter { include_ignored: true, include_hidden: false };

/// The bytes, values and directory entries that may still be read to load assets.
pub(super) struct AssetReadBudget {
    bytes: u64,
    values: usize,
    entries: usize,
}

impl Default for AssetReadBudget {
    fn default() -> Self {
        Self { bytes: BYTES_MAX, values: VALUES_MAX, entries: ENTRIES_MAX }
    }
}

/// Returns the text of every `*.json` file below `root`, by its path relative to `root`. Skips
/// files that are unreadable, not UTF-8 or larger than `room` allows, and logs a warning for each.
/// Also logs a warning for files that are not JSON. `shown` is the folder's name in these warnings.
///
/// The error is a phrase that continues a sentence after the folder's name.
pub(super) fn read_files(
    root: &Root,
    shown: &str,
    room: &mut AssetReadBudget,
) -> Result<BTreeMap<String, Arc<str>>, String> {
    let mut found = BTreeMap::new();
    let unreadable = |err: ToolError| format!("cannot be read: {}", err.message);
    let top = match root.walk_start(".").map_err(unreadable)? {
        WalkStartPoint::Folder(top) => top,
        WalkStartPoint::File(_) => return Ok(found),
    };
    let watch = DiskWorkMonitor::default();
    let mut walk = TreeWalk::new(root, top, ASSET_FILTER, None, &watch).map_err(unreadable)?;
    let mut skipped = 0_u64;
    while let Some(entry) = walk.next_entry().map_err(unreadable)? {
        let Some(entries) = room.entries.checked_sub(1) else {
            tracing::warn!(
                "the assets in `{shown}` have more than {ENTRIES_MAX} entries, and the rest is \
                 skipped; set a folder that contains only assets"
            );
            break;
        };
        room.entries = entries;
        match entry.kind {
            // A symlink counts if it leads to a file in the same folder. Opening checks that.
            EntryKind::File | EntryKind::Symlink => {}
            EntryKind::Dir | EntryKind::Other => continue,
        }
        let Some(inner) = entry.path.to_str().filter(|inner| is_asset(inner)) else { continue };
        match read_text(root, inner, room) {
            Ok(Some(text)) => {
                if let Err(why) = serde_json::from_str::<IgnoredAny>(&text) {
                    tracing::warn!("the asset `{inner}` is not JSON: {why}");
                }
                found.insert(inner.to_owned(), text);
            }
            Ok(None) => skipped += 1,
            Err(err) => tracing::warn!("the asset `{inner}` is skipped: {}", err.message),
        }
    }
    if skipped > 0 {
        tracing::warn!(
            "the assets in `{shown}` have more than {BYTES_MAX} bytes or {VALUES_MAX} values in \
             total, so {skipped} files are skipped; set a folder that contains only assets"
        );
    }
    Ok(found)
}

/// Returns the text of the file at the path `inner` without a byte order mark. Returns `None` if
/// the text exceeds the bytes or values left in `room`.
pub(super) fn read_text(
    root: &Root,
    inner: &str,
    room: &mut AssetReadBudget,
) -> Result<Option<Arc<str>>, ToolError> {
    let file = root.open_file(inner)?;
    let size = file.meta().size();
    let Some(left) = room.bytes.checked_sub(size) else { return Ok(None) };
    let bytes = file.read(0, size, &DiskWorkMonitor::default())?;
    let text = String::from_utf8(bytes).map_err(|_| ToolError::failed("it is not UTF-8"))?;
    let values = count_json_values(text.as_bytes());
    let Some(values_left) = room.values.checked_sub(values) else { return Ok(None) };
    (room.bytes, room.values) = (left, values_left);
    Ok(Some(strip_byte_order_mark(&text).into()))
}

/// Returns true if the path `inner` has the name of an asset file: `*.json`.
fn is_asset(inner: &str) -> bool {
    let name = inner.rsplit('/').next().unwrap_or_default();
    name.strip_suffix(".json").is_some_and(|stem| !stem.is_empty())
}
