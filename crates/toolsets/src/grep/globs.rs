//! Selects files by a glob pattern on their names or paths.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use toolgate_contract::{ToolError, glob_problem};

/// A glob pattern on file names, or on paths if it contains a `/`. A leading `!` negates it.
pub(crate) struct FileGlob {
    glob: GlobMatcher,
    /// True if the glob pattern matches complete paths. False if it matches only file names.
    matches_path: bool,
    /// True if the glob pattern is negated, and thus selects files that do not match.
    pub(crate) negated: bool,
}

impl FileGlob {
    /// Parses `glob` for the workspace at `root`. Errors refer to `pointer`, the JSON Pointer of
    /// the glob in the tool's input.
    pub(crate) fn parse(glob: &str, root: &Path, pointer: &str) -> Result<Self, ToolError> {
        let (negated, glob) = glob.strip_prefix('!').map_or((false, glob), |glob| (true, glob));
        let matches_path = glob.contains('/');
        let glob = root.to_str().map_or(glob, |root| strip_root(glob, root));
        let glob = glob.strip_prefix("./").unwrap_or(glob);
        let glob = glob.strip_prefix('/').unwrap_or(glob);
        if let Some(why) = glob_problem(glob) {
            return Err(ToolError::invalid(pointer, format!("it is not a glob: {why}")));
        }
        let glob = GlobBuilder::new(glob).literal_separator(true).build().map_err(|err| {
            ToolError::invalid(pointer, format!("it is not a glob: {}", err.kind()))
        })?;
        Ok(Self { glob: glob.compile_matcher(), matches_path, negated })
    }

    /// Returns true if this glob pattern, including a leading `!`, selects the entry at `path`.
    /// Compares the pattern with the name, or with the path relative to the workspace root or to
    /// `start`.
    pub(crate) fn selects(&self, path: &Path, start: &Path) -> bool {
        self.matches(path, start) != self.negated
    }

    /// Returns true if the glob pattern, without a leading `!`, matches the entry at `path`.
    /// Compares the pattern with the name, or with the path relative to the workspace root or to
    /// `start`.
    pub(crate) fn matches(&self, path: &Path, start: &Path) -> bool {
        if self.matches_path {
            let inner = path.strip_prefix(start).unwrap_or(path);
            self.glob.is_match(path) || self.glob.is_match(inner)
        } else {
            path.file_name().is_some_and(|name| self.glob.is_match(name))
        }
    }
}

/// Removes the path of the workspace root, `root`, from the start of `glob`, so that the result
/// begins with a slash. Returns `glob` unchanged if it does not start with this path.
fn strip_root<'g>(glob: &'g str, root: &str) -> &'g str {
    let rest = glob.strip_prefix(root.trim_end_matches('/'));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(glob)
}
