//! The only code of this crate that touches disk, processes, the network and the clock.

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
