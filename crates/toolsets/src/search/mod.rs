//! The `search` toolset: what a workspace holds, found by what it is about.
//!
//! The tools know what a caller may ask; how passages are found is the [`Engine`]'s, behind which
//! another index can stand.

mod semantic;
mod engine;
mod rank;
mod index;
mod vectors;
mod words;
mod chunks;
mod definitions;
mod language;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyTool, erase};

pub use engine::{Engine, Indexed};
pub(crate) use engine::{Found, Hit, Wanted, distinct_tags};
pub use semantic::Semantic;
pub use settings::Settings;

/// The namespace that is the whole folder.
const WORKSPACE: &str = "workspace";

/// All tools of this toolset, which ask `engine`.
pub fn tools(engine: &Arc<Engine>) -> Vec<Arc<dyn AnyTool>> {
    vec![erase(Semantic::new(engine))]
}
