//! The tools built in: a folder is a toolset, a file is a tool.

pub mod exec;
pub mod commands;
pub mod files;
pub mod world;
