//! Declared commands: tools that run programs, each described by a table in a TOML file.
//!
//! A declaration names the program, and defines its arguments, artefacts and exit codes. No shell
//! is involved. Declarations are checked when they are loaded. The program itself is only looked up
//! when the tool is called.

mod settings;
mod table;
mod load;
mod declared_command;
mod resolve;
mod type_note;
mod argument;
mod template;
mod artefacts;
mod run;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests access the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::AnyTool;

use crate::exec::WorkspaceProgramRunner;

pub use declared_command::DeclaredCommand;
#[cfg(any(fuzzing, test))]
pub(crate) use load::check_fuzz_input as fuzz_packs;
pub use load::{CommandDeclarationSource, CommandLoadError, load_commands, pack_paths};
pub use settings::{CommandSettings, UnparsedCommandTables};

/// Returns one tool for each command in `declared`. The tools run their commands with `programs`.
pub fn tools(
    programs: &WorkspaceProgramRunner,
    declared: Vec<DeclaredCommand>,
) -> Vec<Arc<dyn AnyTool>> {
    let tool =
        |declared| Arc::new(run::DeclaredCommandTool::new(declared, programs)) as Arc<dyn AnyTool>;
    declared.into_iter().map(tool).collect()
}

/// Returns `; did you mean …?` if one of `names` is similar to `name`, or an empty text if not.
fn suggestion<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let rated =
        names.into_iter().map(|known| (strsim::normalized_damerau_levenshtein(name, known), known));
    let close = rated.filter(|(similarity, _)| *similarity > 0.55);
    let best = close.max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| format!("; did you mean `{known}`?")).unwrap_or_default()
}
