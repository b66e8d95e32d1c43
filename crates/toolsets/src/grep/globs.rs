//! Which files are meant, by their names or their paths.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use toolgate_contract::{ToolError, odd_glob};

/// A pattern of names, or with a `/` of paths; with a leading `!` what does not match is meant.
pub(crate) struct Glob {
    glob: GlobMatcher,
    /// The whole path is matched, not the name alone.
    whole: bool,
    /// What does not match is meant.
    pub(crate) not: bool,
}

impl Glob {
    /// `glob` in the workspace at `root`; a refusal is about `pointer`.
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

    /// Whether an entry at `path` is meant, by its name or its path from the root or from `start`.
    pub(crate) fn means(&self, path: &Path, start: &Path) -> bool {
        self.matches(path, start) != self.not
    }

    /// The same without a look at `!`.
    pub(crate) fn matches(&self, path: &Path, start: &Path) -> bool {
        if self.whole {
            let inner = path.strip_prefix(start).unwrap_or(path);
            self.glob.is_match(path) || self.glob.is_match(inner)
        } else {
            path.file_name().is_some_and(|name| self.glob.is_match(name))
        }
    }
}

/// `glob` without the path of the root before it, which leaves a slash at its start.
fn beneath<'g>(glob: &'g str, root: &str) -> &'g str {
    let rest = glob.strip_prefix(root.trim_end_matches('/'));
    rest.filter(|rest| rest.starts_with('/')).unwrap_or(glob)
}
