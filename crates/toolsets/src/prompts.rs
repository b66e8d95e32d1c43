//! Prompts from Markdown files: those in a folder of the workspace, and built-in ones.
//!
//! A file `NAME.md` is the prompt `NAME`:
//!
//! ```text
//! ---
//! title: Explain a file
//! description: Explain what a file is for and how it works.
//! arguments:
//!   - name: path
//!     description: The file.
//!     required: true
//!     kind: path            # or `text` (the default)
//!   - name: depth
//!     values: [brief, thorough]   # offered, not enforced
//! ---
//! Explain this file to a newcomer.
//! Be {{depth}}.
//!
//! ![[{{path}}]]
//!
//! <!-- role: assistant -->
//! I have read it. It
//! ```
//!
//! - `{{name}}` inserts the value of that argument unchanged. Markup in the value has no effect. A
//!   line that names an argument without a value is left out. `\{{` stands for `{{`.
//! - A line `![[path]]` includes the workspace file at that path. `\![[` stands for `![[`.
//! - A line `<!-- role: assistant -->` or `<!-- role: user -->` starts a message of that role. The
//!   text before the first such line belongs to the user.
//!
//! A file without front matter is all text. An unusable file is skipped: the log names the file and
//! the reason. Requesting the prompt returns the same reason.

mod settings;
mod prompt_file;
mod template;
mod file_prompt;
mod included_file;
mod path_completion;
mod folder;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests change the workspace from outside")]
mod tests;

use std::sync::{Arc, LazyLock};

use toolgate_contract::{AnyPrompt, PromptSource};

use toolgate_world::Root;

pub use folder::PromptFolder;
pub use settings::PromptSettings;

use file_prompt::FileBackedPrompt;
use prompt_file::PromptFile;

/// The built-in prompts, by name.
const SHIPPED: [(&str, &str); 5] = [
    ("bootstrap", include_str!("prompts/shipped/bootstrap.md")),
    ("explain", include_str!("prompts/shipped/explain.md")),
    ("find-cause", include_str!("prompts/shipped/find-cause.md")),
    ("review", include_str!("prompts/shipped/review.md")),
    ("write-tests", include_str!("prompts/shipped/write-tests.md")),
];

/// Returns the sources of prompts that `settings` enable, for the workspace `root`. If two prompts
/// have equal names, the prompt of the first source is used.
pub fn sources(root: &Root, settings: &PromptSettings) -> Vec<Arc<dyn PromptSource>> {
    let Some(folder) = settings.folder() else { return Vec::new() };
    let shipped_root = root.clone();
    let shipped = LazyLock::new(move || shipped(&shipped_root));
    vec![Arc::new(PromptFolder::new(root, folder)), Arc::new(shipped)]
}

/// Returns the built-in prompts, for the workspace `root`.
pub fn shipped(root: &Root) -> Vec<Arc<dyn AnyPrompt>> {
    let prompt = |(name, text)| {
        // A test parses all of them.
        let file =
            PromptFile::parse(name, text).unwrap_or_else(|problem| panic!("{name}: {problem:?}"));
        Arc::new(FileBackedPrompt::new(root, &Arc::new(file))) as Arc<dyn AnyPrompt>
    };
    SHIPPED.into_iter().map(prompt).collect()
}
