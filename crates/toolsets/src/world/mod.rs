//! The world tools are handed: disk, processes and clock. Nothing else here touches them.

mod processes;
mod root;
