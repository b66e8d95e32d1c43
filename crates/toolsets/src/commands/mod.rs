//! Declared commands: tools that a file describes, a table each, and that run programs.
//!
//! A file says which program, how arguments become its words, what it leaves and how
//! it ends; no shell is ever involved. What it says is checked when it is read, but for
//! whether the program is there: that is seen when it is called.

mod settings;
mod table;
mod load;
mod declared;
mod resolve;
mod note;
mod argument;
mod template;
mod artefacts;
mod run;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::AnyTool;

use crate::exec::Programs;

pub use declared::Declared;
#[cfg(any(fuzzing, test))]
pub(crate) use load::check as fuzz_packs;
pub use load::{LoadError, Source, declared, packs};
pub use settings::{Settings, Tables};

/// The tools that `declared` describe, run as `programs` are.
pub fn tools(programs: &Programs, declared: Vec<Declared>) -> Vec<Arc<dyn AnyTool>> {
    let tool = |declared| Arc::new(run::Command::new(declared, programs)) as Arc<dyn AnyTool>;
    declared.into_iter().map(tool).collect()
}

/// `, did you mean …?` where one of `names` is near `name`.
fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let near =
        names.into_iter().map(|known| (strsim::normalized_damerau_levenshtein(name, known), known));
    let best = near.filter(|(near, _)| *near > 0.55).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| format!(", did you mean `{known}`?")).unwrap_or_default()
}
