//! Built-in tools: each folder is a toolset, each file a tool.

mod confirmation;
mod counted;
mod input_defaults;
pub mod exec;
pub mod git;
pub mod ci;
pub mod commands;
mod text_encoding;
mod grep;
mod media;
mod uri_paths;
pub mod files;
mod front_matter;
pub mod grammars;
pub mod search;
pub mod docs;
pub mod icons;
mod workspace_scan;
pub mod prompts;
pub mod skills;
pub mod assets;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use uri_paths::check_folder;
