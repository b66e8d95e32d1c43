//! Finds the files that git could not write, by parsing git's error messages.

use toolgate_contract::printable;
use toolgate_world::root::quoted_path;

use super::repository::GitRepository;

/// Error texts that git prints for a file that the sandbox protects. Other failures, such as a full
/// disk, have other error texts.
const PROTECTED_CAUSES: [&str; 3] =
    ["Device or resource busy", "Read-only file system", "Permission denied"];
/// The maximum number of protected files that a message about failed writes names.
const SHOWN_MAX: usize = 10;

/// The files that a git command could not write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GitWriteFailures {
    /// The files that the sandbox protects, relative to the top folder of the repository. Git did
    /// not change them.
    pub(super) protected: Vec<String>,
    /// Git's message about the first failed file that the sandbox does not protect, with control
    /// characters removed.
    pub(super) other: Option<String>,
}

impl GitWriteFailures {
    /// Finds failed writes to files of `repository` in `stderr`, git's error output.
    pub(super) fn parse(repository: &GitRepository<'_>, stderr: &str) -> Self {
        let folder = match repository.outside {
            Some(_) => ".".to_owned(),
            None => repository.top_in_workspace(),
        };
        let root = &repository.git.programs.root;
        Self::parse_with(stderr, |path| root.is_protected(&format!("{folder}/{path}")))
    }

    fn parse_with(stderr: &str, is_protected: impl Fn(&str) -> bool) -> Self {
        let mut failures = Self::default();
        for line in stderr.lines().filter(|line| is_write_failure(line)) {
            match failed_path(line).filter(|path| is_protected(path)) {
                Some(path) if failures.protected.iter().any(|known| known == path) => {}
                Some(path) => failures.protected.push(path.to_owned()),
                None => {
                    failures.other.get_or_insert_with(|| printable::escape_line(line).into_owned());
                }
            }
        }
        failures
    }

    /// Returns a sentence about the files that the sandbox protects. Returns `None` if there are
    /// none.
    pub(super) fn protected_note(&self) -> Option<String> {
        let count = self.protected.len();
        let mut shown: Vec<String> =
            self.protected.iter().take(SHOWN_MAX).map(|path| quoted_path(path)).collect();
        if count > SHOWN_MAX {
            shown.push(format!("{} more", count - SHOWN_MAX));
        }
        let shown = shown.join(", ");
        match count {
            0 => None,
            1 => Some(format!(
                "{shown} is protected and stays as it is; the server's operator can update it with \
                 git outside of toolgate"
            )),
            _ => Some(format!(
                "these files are protected and stay as they are: {shown}; the server's operator can \
                 update them with git outside of toolgate"
            )),
        }
    }
}

/// Returns true if `line`, a message of git, reports that git could not create or remove a file or
/// folder of the work tree.
fn is_write_failure(line: &str) -> bool {
    ["error: unable to ", "warning: unable to "].iter().any(|begins| line.starts_with(begins))
}

/// Returns the path in git's message `line`, if the sandbox may have caused the failure. The
/// message is `error: unable to create file PATH: WHY` or `error: unable to unlink old 'PATH':
/// WHY`.
fn failed_path(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(": unable to ")?;
    let (named, why) = rest.rsplit_once(": ")?;
    if !PROTECTED_CAUSES.contains(&why) {
        return None;
    }
    if let Some(path) = named.strip_prefix("create file ") {
        return Some(path);
    }
    let (_, path) = named.split_once('\'')?;
    path.strip_suffix('\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(stderr: &str) -> GitWriteFailures {
        GitWriteFailures::parse_with(stderr, |path| path.ends_with(".toml") || path == ".mcp.json")
    }

    #[test]
    fn protected_files_are_named_once_and_other_failures_keep_git_s_message() {
        let failures = parse(
            "error: unable to unlink old 'toolgate.toml': Device or resource busy\n\
             warning: unable to unlink 'toolgate.toml': Device or resource busy\n\
             error: unable to create file .mcp.json: Read-only file system\n\
             error: unable to create file other.toml: No space left on device\n\
             Switched to branch 'main'\n",
        );
        assert_eq!(failures.protected, ["toolgate.toml", ".mcp.json"]);
        let other = "error: unable to create file other.toml: No space left on device";
        assert_eq!(failures.other.as_deref(), Some(other));
        let note = failures.protected_note().expect("there are protected files");
        assert!(note.contains("stay as they are: `toolgate.toml`, `.mcp.json`;"), "{note}");
    }

    #[test]
    fn messages_without_a_failure_are_no_failures() {
        assert_eq!(parse("Switched to branch 'toolgate.toml'\n"), GitWriteFailures::default());
        assert_eq!(parse("").protected_note(), None);
    }
}
