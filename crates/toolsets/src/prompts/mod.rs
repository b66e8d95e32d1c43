//! Prompts, each a Markdown file: those of a folder of the workspace, and some that come along.
//!
//! A file `NAME.md` is the prompt `NAME`:
//!
//! ```text
//! ---
//! title: Explain a file
//! description: Says what a file is for and how it works.
//! arguments:
//!   - name: path
//!     description: The file.
//!     required: true
//!     kind: path            # or `text`, which is what it is else
//!   - name: depth
//!     values: [brief, thorough]   # offered, not enforced
//! ---
//! Explain this file to somebody new here.
//! Be {{depth}}.
//!
//! ![[{{path}}]]
//!
//! <!-- role: assistant -->
//! I have read it. It
//! ```
//!
//! - `{{name}}` is what was given for that argument, as it is; nothing in it means anything. A line
//!   that names an argument that was not given is left out. `\{{` stands for `{{`.
//! - A line `![[path]]` takes in the file of the workspace at that path; `\![[` stands for `![[`.
//! - A line `<!-- role: assistant -->` or `<!-- role: user -->` begins a message of that role;
//!   until the first it is the user who speaks.
//!
//! A file without front matter is all text. One that cannot be used is left out; the log says where
//! and why, and so is told whoever asks for it by name.

mod settings;
mod sheet;
mod template;
mod written;
mod taken;
mod paths;
mod folder;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

use std::sync::Arc;

use toolgate_contract::{AnyPrompt, Prompts};

use crate::world::Root;

pub use folder::Folder;
pub use settings::Settings;

use sheet::Sheet;
use written::Written;

/// The prompts that come along, by name.
const SHIPPED: [(&str, &str); 5] = [
    ("bootstrap", include_str!("shipped/bootstrap.md")),
    ("explain", include_str!("shipped/explain.md")),
    ("find-cause", include_str!("shipped/find-cause.md")),
    ("review", include_str!("shipped/review.md")),
    ("write-tests", include_str!("shipped/write-tests.md")),
];

/// The sources of prompts that `settings` ask for, over the workspace `root`. Of two prompts with
/// one name that of the first source counts.
pub fn sources(root: &Root, settings: &Settings) -> Vec<Arc<dyn Prompts>> {
    let mut sources: Vec<Arc<dyn Prompts>> = Vec::new();
    if settings.enabled {
        sources.push(Arc::new(Folder::new(root, &settings.folder)));
    }
    if settings.enabled && settings.shipped {
        sources.push(Arc::new(shipped(root)));
    }
    sources
}

/// The prompts that come along, over the workspace `root`.
pub fn shipped(root: &Root) -> Vec<Arc<dyn AnyPrompt>> {
    let prompt = |(name, text)| {
        // A test reads them all.
        let sheet = Sheet::read(name, text).unwrap_or_else(|wrong| panic!("{name}: {wrong:?}"));
        Arc::new(Written::new(root, &Arc::new(sheet))) as Arc<dyn AnyPrompt>
    };
    SHIPPED.into_iter().map(prompt).collect()
}
