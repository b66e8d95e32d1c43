//! The world tools are handed: disk, processes, network and clock. Nothing else here touches them.

pub mod processes;
pub mod sandbox;
pub mod root;
pub mod watch;
pub mod stirring;
pub mod fetch;
pub mod dial;

pub use fetch::Fetch;
pub use processes::Processes;
pub use root::{Root, Rules};
pub use sandbox::Sandbox;
pub use watch::Watcher;
