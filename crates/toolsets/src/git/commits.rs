//! A commit as results tell it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::printable;

/// What `--format` asks for: fields that end with a NUL character each, with `-z`.
pub(super) const FORMAT: &str = "--format=%H%x00%h%x00%an%x00%ae%x00%aI%x00%P%x00%D%x00%s";
/// How many fields that is.
pub(super) const FIELDS: usize = 8;

/// A commit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entry {
    /// Its full name.
    pub(super) commit: String,
    /// Its short name.
    pub(super) short: String,
    /// Who wrote it.
    pub(super) author: String,
    /// Their address.
    pub(super) email: String,
    /// When, in RFC 3339.
    pub(super) date: String,
    /// The commits it follows.
    pub(super) parents: Vec<String>,
    /// The branches and tags that stand at it, `HEAD -> main` for the one checked out.
    pub(super) refs: Vec<String>,
    /// The first line of its message.
    pub(super) subject: String,
}

impl Entry {
    /// Reads the fields of one commit.
    pub(super) fn read(fields: &[String]) -> Option<Self> {
        let [commit, short, author, email, date, parents, refs, subject] = fields else {
            return None;
        };
        Some(Self {
            commit: commit.clone(),
            short: short.clone(),
            author: printable::line(author).into_owned(),
            email: printable::line(email).into_owned(),
            date: date.clone(),
            parents: parents.split_whitespace().map(str::to_owned).collect(),
            refs: refs.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            subject: printable::line(subject).into_owned(),
        })
    }
}
