//! Entries for commits in the results of the `git` tools.

use schemars::JsonSchema;
use serde::Serialize;

use toolgate_contract::printable;

/// The git option that prints the fields of a [`GitCommitEntry`], separated by NUL characters.
pub(super) const COMMIT_FORMAT: &str = "--format=%H%x00%h%x00%an%x00%ae%x00%aI%x00%P%x00%D%x00%s";
/// The number of fields that [`COMMIT_FORMAT`] prints for each commit.
pub(super) const COMMIT_FIELDS: usize = 8;

/// A commit of a git repository.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GitCommitEntry {
    /// Full hash.
    pub(super) commit: String,
    /// Abbreviated hash.
    pub(super) short: String,
    /// Author's name.
    pub(super) author: String,
    /// Author's email address.
    pub(super) email: String,
    /// Author date (RFC 3339).
    pub(super) date: String,
    /// Parent commits.
    pub(super) parents: Vec<String>,
    /// Branches and tags that point to the commit; `HEAD -> main` for the branch that is checked
    /// out.
    pub(super) refs: Vec<String>,
    /// First line of the message, at most 1,000 characters.
    pub(super) subject: String,
}

/// The maximum number of characters in a commit's subject, an author's name or an email address.
const TEXT_CHARS_MAX: usize = 1000;

impl GitCommitEntry {
    /// Parses the fields of one commit, as git prints them for [`COMMIT_FORMAT`].
    pub(super) fn parse(fields: &[String]) -> Option<Self> {
        let [commit, short, author, email, date, parents, refs, subject] = fields else {
            return None;
        };
        Some(Self {
            commit: commit.clone(),
            short: short.clone(),
            author: short_line(author),
            email: short_line(email),
            date: date.clone(),
            parents: parents.split_whitespace().map(str::to_owned).collect(),
            refs: refs.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            subject: short_line(subject),
        })
    }
}

/// Returns `text` on one line. Cuts a text of more than [`TEXT_CHARS_MAX`] characters, and ends it
/// with `…`.
fn short_line(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", printable::escape_line(&text[..end])),
        None => printable::escape_line(text).into_owned(),
    }
}
