//! The `search` toolset: searches a workspace by meaning, by name and by text.
//!
//! The tools parse the input. The [`Service`] keeps indexes fresh and searches them, and an
//! [engine](engines) stores them.

mod semantic;
mod text;
mod names;
mod index_status;
mod upsert;
mod service;
pub mod engines;
pub mod embedders;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase};

pub use index_status::IndexStatus;
pub use names::Names;
pub use semantic::Semantic;
pub use service::{Folders, Indexed, Service, State};
pub(crate) use service::{Found, Hit, Wanted, distinct_tags};
pub use settings::Settings;
pub use text::InText;
pub use upsert::Upsert;

/// The namespace of the whole workspace.
const WORKSPACE: &str = "workspace";

/// Returns all tools of this toolset, which share `service`.
pub fn tools(service: &Arc<Service>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase(Semantic::new(service)),
        erase(InText::new(service)),
        erase(Names::new(service)),
        erase(IndexStatus::new(service)),
        erase(Upsert::new(service)),
    ]
}
