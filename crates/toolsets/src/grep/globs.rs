//! Matches files by glob on their names or paths.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use toolgate_contract::{ToolError, odd_glob};

/// A glob on file names, or on paths if it contains a `/`. A leading `!` negates it.
pub(crate) struct Glob {
    glob: GlobMatcher,
    /// True if the glob matches the whole path, not the name alone.
    whole: bool,
    /// True if the glob is negated: files that do not match are selected.
    pub(crate) not: bool,
}

impl Glob {
    /// Parses `glob` for the workspace at `root`. An error points at `pointer` in the input.
    pub(crate) fn of(glob: &str, root: &Path, pointer: &str) -> Result<Self, ToolError> {
        let (not, glob) = glob.strip_prefix('!').map_or((false, glob), |glob| (true, glob));
        let whole = glob.contains('/');
        let glob = root.to_str().map_or(glob, |root| beneath(glob, root));
        let glob = glob.strip_prefix("./").unwrap_or(glob);
        let glob = glob.strip_prefix('/').unwrap_or(glob);
        if let Some(why) = odd_glob(glob) {
            return Err(ToolError::invalid(pointer, format!("it is not a glob: {why}")));
        }
        let glob = GlobBuilder::new(glob).literal_separator(true).build().map_err(|err| {
            ToolError::invalid(pointer, format!("it is not a glob: {}", err.kind()))
        })?;
        Ok(Self { glob: glob.compile_matcher(), whole, not })
    }

    /// Returns true if this glob selects the entry at `path`. It is matched by name, or by its path
    /// from the root or from `start`.
    pub(crate) fn means(&self, path: &Path, start: &Path) -> bool {
        self.matches(path, start) != self.not
    }

    /// Returns true if the pattern matches, ignoring a leading `!`.
    pub(crate) fn matches(&self, path: &Path, start: &Path) -> bool {
        if self.whole {
            let inner = path.strip_prefix(start).unwrap_or(path);
            self.glob.is_match(path) || self.glob.is_match(inner)
        } else {
            path.file_name().is_some_and(|name| self.glob.is_match(name))
        }
    }
}

/// Strips the path of the root from `glob`. The result begins with a slash.
fn beneath<'g>(glob: &'g str, root: &str) -> &'g str {
    let rest = glob.strip_prefix(root.trim_end_matches('/'));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(glob)
}
