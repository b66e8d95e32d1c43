//! Selects the dialect for an HTTP request: a dialect that claims the request, or the dialect at
//! the request's path.

use std::collections::HashMap;
use std::sync::Arc;

use toolgate_contract::FrameMetadata;
use toolgate_dialects::Dialect;

/// Longest requested path, in bytes, for which an error suggests a similar served path.
const COMPARED_BYTES_MAX: usize = 100;
/// Lowest similarity (0 to 1) at which an error suggests a served path for a requested one.
const LIKENESS_MIN: f64 = 0.7;

/// Table of HTTP paths and the dialects that are served there.
pub(crate) struct DialectRoutes {
    dialects: Vec<Arc<dyn Dialect>>,
    /// Exact paths, each with an index into `dialects`.
    exact: HashMap<&'static str, usize>,
    /// Path prefixes that end in `/`, each with an index into `dialects`.
    prefixes: Vec<(&'static str, usize)>,
}

impl DialectRoutes {
    /// Creates a table with each dialect at its standard paths.
    pub(crate) fn new(dialects: Vec<Arc<dyn Dialect>>) -> Self {
        Self::with_paths(dialects, |dialect| dialect.paths())
    }

    /// Creates a table with each dialect at the paths that `paths` returns for it.
    pub(crate) fn with_paths(
        dialects: Vec<Arc<dyn Dialect>>,
        paths: impl Fn(&dyn Dialect) -> &'static [&'static str],
    ) -> Self {
        let mut exact = HashMap::new();
        let mut prefixes = Vec::new();
        for (at, dialect) in dialects.iter().enumerate() {
            for path in paths(dialect.as_ref()) {
                if path.ends_with('/') {
                    prefixes.push((*path, at));
                } else {
                    // If two dialects share a path, the first one gets it.
                    exact.entry(*path).or_insert(at);
                }
            }
        }
        Self { dialects, exact, prefixes }
    }

    /// Returns the dialect that serves `path`, or `None` if no dialect does.
    pub(crate) fn for_path(&self, path: &str) -> Option<&Arc<dyn Dialect>> {
        let by_prefix = || {
            let mut prefixes = self.prefixes.iter();
            prefixes.find(|(prefix, _)| path.starts_with(prefix)).map(|(_, at)| *at)
        };
        let at = self.exact.get(path).copied().or_else(by_prefix)?;
        self.dialects.get(at)
    }

    /// Returns the dialect for the request `head`: the first dialect that claims the request, or
    /// else the dialect at the request's path. Returns `None` if there is neither.
    pub(crate) fn for_request(&self, head: &FrameMetadata) -> Option<&Arc<dyn Dialect>> {
        self.dialects
            .iter()
            .find(|dialect| dialect.claims(head))
            .or_else(|| self.for_path(head.path()))
    }

    /// Returns the served path that is most similar to the requested `path`, if one is similar
    /// enough.
    pub(crate) fn nearest_path(&self, path: &str) -> Option<&str> {
        if path.len() > COMPARED_BYTES_MAX {
            return None;
        }
        let likeness = |known: &str| strsim::normalized_damerau_levenshtein(known, path);
        // A path that ends in `/` also has a form without it.
        let paths = self.paths().into_iter().filter(|known| !known.ends_with('/'));
        let rated = paths.map(|known| (likeness(known), known));
        // Most clients mean MCP: `/mpc` resembles `/rpc` as much as `/mcp`.
        let is_mcp = |path: &str| path == "/mcp";
        let best =
            rated.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| is_mcp(a.1).cmp(&is_mcp(b.1))));
        best.filter(|(likeness, _)| *likeness >= LIKENESS_MIN).map(|(_, known)| known)
    }

    /// Returns all served paths in alphabetical order.
    pub(crate) fn paths(&self) -> Vec<&str> {
        let prefixes = self.prefixes.iter().map(|(path, _)| *path);
        let mut paths: Vec<_> = self.exact.keys().copied().chain(prefixes).collect();
        paths.sort_unstable();
        // Several dialects may serve the same prefix.
        paths.dedup();
        paths
    }
}

#[cfg(test)]
mod tests {
    use toolgate_dialects::envelope::EnvelopeDialect;

    use super::*;

    #[test]
    fn an_unknown_path_is_compared_with_the_served_ones() {
        let routes = DialectRoutes::new(vec![Arc::new(EnvelopeDialect)]);
        for (path, nearest) in [
            ("/mcp/discovery", Some("/mcp/discover")),
            ("/mcp/tools", Some("/mcp/tool")),
            ("/x", None),
            (&*"/mcp/discover".repeat(20), None),
        ] {
            assert_eq!(routes.nearest_path(path), nearest, "{path}");
        }
    }

    #[test]
    fn a_path_of_several_dialects_is_listed_once() {
        let routes = DialectRoutes::new(vec![Arc::new(EnvelopeDialect), Arc::new(EnvelopeDialect)]);
        let mut paths = routes.paths();
        paths.dedup();
        assert_eq!(routes.paths(), paths);
        assert!(paths.contains(&"/mcp/tool/"), "{paths:?}");
    }
}
