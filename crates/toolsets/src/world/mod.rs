//! The world tools are handed: disk, processes and clock. Nothing else here touches them.

pub mod processes;
pub mod root;
pub mod watch;

pub use processes::Processes;
pub use root::{Root, Rules};
pub use watch::Watcher;
