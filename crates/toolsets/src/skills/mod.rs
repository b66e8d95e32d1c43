//! Skills: folders of the workspace with a `SKILL.md` that tell an agent how to do something well,
//! and one that comes along. Their files are resources at `skill://`.
//!
//! A skill in `skills/acme/refunds/` is `skill://acme/refunds/SKILL.md`, and `refunds` is its name
//! in the front matter, too. One that cannot be offered as it should be is left out; the log says
//! where and why, and so is told whoever asks for it by its URI.

mod settings;
mod entry;
mod gather;
mod offer;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests see to the workspace from outside")]
mod tests;

pub use entry::front_matter;
pub use offer::Shelf;
pub use settings::Settings;

/// What the URI of every file of a skill begins with.
const SCHEME: &str = "skill://";
/// The file that makes a folder a skill.
const SKILL_FILE: &str = "SKILL.md";
/// How large that may be: it is kept in memory, and goes to a model whole.
const SKILL_FILE_BYTES_MAX: u64 = 1 << 20;
/// How many files a skill has at most.
const FILES_MAX: usize = 512;
/// How large they may be together.
const BYTES_MAX: u64 = 16 << 20;

/// The skill that comes along: its path, and its files.
const SHIPPED: (&str, [(&str, &str); 3]) = (
    "toolgate",
    [
        (SKILL_FILE, include_str!("shipped/toolgate/SKILL.md")),
        ("references/editing.md", include_str!("shipped/toolgate/references/editing.md")),
        ("references/jobs.md", include_str!("shipped/toolgate/references/jobs.md")),
    ],
);
