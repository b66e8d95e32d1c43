//! The only crate that accesses the workspace, starts programs and opens connections to servers.
//!
//! Tools, upstreams and the server receive the types of this crate: a [`Root`] for files, a
//! [`ProcessRunner`] for programs, an [`HttpFetcher`] for requests.

pub mod root;
pub mod programs;
pub mod dial;
pub mod forwarder;
pub mod sandbox;
pub mod processes;
pub mod watch;
pub mod folder_signal;
pub mod fetch;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;

pub use fetch::HttpFetcher;
pub use processes::ProcessRunner;
pub use root::{Root, WorkspaceOwnerSettings};
pub use sandbox::Sandbox;
pub use watch::FileWatcher;
