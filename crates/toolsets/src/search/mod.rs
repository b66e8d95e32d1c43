//! The `search` toolset: what a workspace holds, found by what it is about.
//!
//! The tools know what a caller may ask; how an index is kept fresh and asked is the
//! [`Service`]'s; where it lies is an [engine's](engines).

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

/// The namespace that is the whole folder.
const WORKSPACE: &str = "workspace";

/// All tools of this toolset, which ask `service`.
pub fn tools(service: &Arc<Service>) -> Vec<Arc<dyn AnyTool>> {
    vec![
        erase(Semantic::new(service)),
        erase(InText::new(service)),
        erase(Names::new(service)),
        erase(IndexStatus::new(service)),
        erase(Upsert::new(service)),
    ]
}
