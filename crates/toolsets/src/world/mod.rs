//! The only code of this crate that touches disk, processes, the network and the clock.

pub mod processes;
pub mod sandbox;
pub mod root;
pub mod watch;
pub mod folder_signal;
pub mod fetch;
pub mod dial;

pub use fetch::HttpFetcher;
pub use processes::ProcessRunner;
pub use root::{Root, RootRules};
pub use sandbox::Sandbox;
pub use watch::FileWatcher;
