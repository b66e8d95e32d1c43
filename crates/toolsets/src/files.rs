//! The `files` toolset: reads, finds and changes files in the workspace.
//!
//! The tools interpret a caller's input. [`toolgate_world::Root`] keeps paths inside the workspace
//! and replaces files.

mod read;
mod write;
mod edit;
mod list;
mod tree;
mod info;
mod exists;
mod search;
mod r#move;
mod copy;
mod delete;
mod mkdir;
mod resources;
pub(crate) mod cursor;
mod settings;
#[cfg(test)]
mod tests;

#[cfg(any(fuzzing, test))]
pub(crate) use edit::fuzzing::check_edit as fuzz_edits;
#[cfg(any(fuzzing, test))]
pub(crate) use resources::fuzz_uris;

use std::sync::Arc;

use toolgate_contract::{AnyTool, ResourceSource, erase_tool};

use toolgate_world::Root;

pub use copy::CopyEntry;
pub use delete::DeleteEntry;
pub use edit::EditFile;
pub use exists::CheckPathExists;
pub use info::GetFileInfo;
pub use list::ListDirectory;
pub use mkdir::MakeDirectory;
pub use r#move::MoveEntry;
pub use read::ReadFile;
pub use resources::FileResourceSource;
pub(crate) use resources::read_file_spec;
pub use search::SearchFiles;
pub use settings::{FileSettings, FileToolLimits, FolderDeleteConfirmation, RELEASE};
pub use tree::ShowDirectoryTree;
pub use write::WriteFile;

/// Names that language models wrongly use for the input field of a folder, with that field's name.
pub(crate) const FOLDER_ALIASES: &[(&str, &str)] =
    &[("dir", "path"), ("directory", "path"), ("folder", "path")];

/// Returns all `files` tools, for the files below `root`.
pub fn tools(root: &Root, settings: &FileSettings) -> Vec<Arc<dyn AnyTool>> {
    let root = &root.clone().with_rules(&settings.rules());
    let settings = &Arc::new(settings.clone());
    vec![
        erase_tool(ReadFile::new(root, settings)),
        erase_tool(WriteFile { root: root.clone(), settings: settings.clone() }),
        erase_tool(EditFile { root: root.clone(), settings: settings.clone() }),
        erase_tool(ListDirectory { root: root.clone() }),
        erase_tool(ShowDirectoryTree { root: root.clone() }),
        erase_tool(GetFileInfo { root: root.clone() }),
        erase_tool(CheckPathExists::new(root)),
        erase_tool(SearchFiles { root: root.clone(), settings: settings.clone() }),
        erase_tool(MoveEntry { root: root.clone() }),
        erase_tool(CopyEntry { root: root.clone(), settings: settings.clone() }),
        erase_tool(DeleteEntry::new(root, settings)),
        erase_tool(MakeDirectory { root: root.clone() }),
    ]
}

/// Returns the resource source that reads and watches the files below `root` by `file:` URI.
pub fn resources(root: &Root, settings: &FileSettings) -> Arc<dyn ResourceSource> {
    Arc::new(FileResourceSource::new(&root.clone().with_rules(&settings.rules()), settings))
}
