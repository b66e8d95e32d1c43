//! The `files` toolset: reads, finds and changes files in the workspace.
//!
//! The tools interpret a caller's input. [`crate::world::Root`] confines paths to the workspace and
//! replaces files.

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

#[cfg(any(fuzzing, test))]
pub(crate) use edit::fuzzing::edits as fuzz_edits;
#[cfg(any(fuzzing, test))]
pub(crate) use resources::fuzz_uris;

use std::sync::Arc;

use toolgate_contract::{AnyTool, Resources, erase};

use crate::world::Root;

pub use copy::Copy;
pub use delete::Delete;
pub use edit::Edit;
pub use exists::Exists;
pub use info::Info;
pub use list::List;
pub use mkdir::Mkdir;
pub use r#move::Move;
pub use read::Read;
pub use resources::Files;
pub(crate) use resources::reading;
pub use search::Search;
pub use settings::{ConfirmFolders, Settings};
pub use tree::Tree;
pub use write::Write;

/// Returns all tools of this toolset, for the files beneath `root`.
pub fn tools(root: &Root, settings: &Settings) -> Vec<Arc<dyn AnyTool>> {
    let root = &root.clone().with_rules(&settings.rules());
    let settings = &Arc::new(settings.clone());
    vec![
        erase(Read::new(root, settings)),
        erase(Write::new(root, settings)),
        erase(Edit::new(root, settings)),
        erase(List::new(root)),
        erase(Tree::new(root)),
        erase(Info::new(root)),
        erase(Exists::new(root)),
        erase(Search::new(root, settings)),
        erase(Move::new(root)),
        erase(Copy::new(root, settings)),
        erase(Delete::new(root, settings)),
        erase(Mkdir::new(root)),
    ]
}

/// Returns the resource source that reads and watches the files beneath `root` by URI.
pub fn resources(root: &Root, settings: &Settings) -> Arc<dyn Resources> {
    Arc::new(Files::new(&root.clone().with_rules(&settings.rules()), settings))
}
