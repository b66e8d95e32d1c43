//! Whose a request over HTTP is: the dialect at its path, or the one that claims it.

use std::collections::HashMap;
use std::sync::Arc;

use toolgate_contract::Head;
use toolgate_dialects::Dialect;

/// Which dialect is spoken where.
pub(crate) struct Routes {
    dialects: Vec<Arc<dyn Dialect>>,
    /// By path, into `dialects`.
    exact: HashMap<&'static str, usize>,
    /// Paths that end in `/` and stand for all below them.
    below: Vec<(&'static str, usize)>,
}

impl Routes {
    /// Each dialect at its paths.
    pub(crate) fn new(dialects: Vec<Arc<dyn Dialect>>) -> Self {
        Self::at_paths(dialects, |dialect| dialect.paths())
    }

    /// Each where `paths` says.
    pub(crate) fn at_paths(
        dialects: Vec<Arc<dyn Dialect>>,
        paths: impl Fn(&dyn Dialect) -> &'static [&'static str],
    ) -> Self {
        let (mut exact, mut below) = (HashMap::new(), Vec::new());
        for (at, dialect) in dialects.iter().enumerate() {
            for path in paths(dialect.as_ref()) {
                if path.ends_with('/') {
                    below.push((*path, at));
                } else {
                    // Where two have the same path, it is the first one's.
                    exact.entry(*path).or_insert(at);
                }
            }
        }
        Self { dialects, exact, below }
    }

    /// Whose `path` is.
    pub(crate) fn at(&self, path: &str) -> Option<&Arc<dyn Dialect>> {
        let below = || {
            let mut below = self.below.iter();
            below.find(|(above, _)| path.starts_with(above)).map(|(_, at)| *at)
        };
        let at = self.exact.get(path).copied().or_else(below)?;
        self.dialects.get(at)
    }

    /// Whose a request is: what a dialect claims is its own, whatever its path.
    pub(crate) fn of(&self, head: &Head) -> Option<&Arc<dyn Dialect>> {
        self.dialects.iter().find(|dialect| dialect.claims(head)).or_else(|| self.at(head.path()))
    }

    /// Where anything is spoken, in order.
    pub(crate) fn paths(&self) -> Vec<&str> {
        let below = self.below.iter().map(|(path, _)| *path);
        let mut paths: Vec<_> = self.exact.keys().copied().chain(below).collect();
        paths.sort_unstable();
        paths
    }
}
