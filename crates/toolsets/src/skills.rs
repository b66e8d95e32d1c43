//! Skills: folders with a `SKILL.md` that teach an agent a task. The files of skills are resources
//! at `skill://`.
//!
//! Skills come from folders of the workspace, and one is built in. A skill in
//! `skills/acme/refunds/` is `skill://acme/refunds/SKILL.md`, and the name in its front matter must
//! be `refunds`. An invalid skill is skipped: the log names the file and the reason. Requesting the
//! URI of the skill returns this reason, too.

mod settings;
mod entry;
mod search;
mod library;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests change the workspace from outside")]
mod tests;

pub use entry::front_matter;
pub use library::SkillLibrary;
pub use settings::SkillSettings;

/// The prefix of the URI of every skill file.
const SCHEME: &str = "skill://";
/// The name of the file that makes a folder a skill.
const SKILL_FILE: &str = "SKILL.md";
/// The maximum size of a `SKILL.md`, in bytes. The file is stored in memory and sent to a model
/// completely.
const SKILL_FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of files of one skill.
const FILES_MAX: usize = 512;
/// The maximum size of all files of one skill, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// The path and files of the built-in skill.
const SHIPPED: (&str, [(&str, &str); 3]) = (
    "toolgate",
    [
        (SKILL_FILE, include_str!("skills/shipped/toolgate/SKILL.md")),
        ("references/editing.md", include_str!("skills/shipped/toolgate/references/editing.md")),
        ("references/jobs.md", include_str!("skills/shipped/toolgate/references/jobs.md")),
    ],
);
