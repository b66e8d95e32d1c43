//! The tools built in: a folder is a toolset, a file is a tool.

pub mod exec;
pub mod commands;
pub mod files;
pub mod prompts;
pub mod skills;
pub mod assets;
pub mod icons;
mod consent;
mod front_matter;
mod looked;
mod media;
mod places;
pub mod world;
