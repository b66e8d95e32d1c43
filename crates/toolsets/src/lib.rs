//! Built-in tools: each folder is a toolset, each file a tool.

pub mod exec;
pub mod git;
pub mod ci;
pub mod commands;
pub mod files;
pub mod search;
pub mod docs;
pub mod prompts;
pub mod skills;
pub mod assets;
pub mod icons;
mod confirmation;
mod front_matter;
mod grep;
mod workspace_scan;
mod media;
mod uri_paths;
mod printable;
pub mod world;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use uri_paths::check_folder;
