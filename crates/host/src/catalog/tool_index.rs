//! The search index of a catalog, and the indexed tools that each caller may see.

use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use toolgate_contract::{Caller, CallerKind, ToolSpec, fold_name, lock_mutex};
use toolgate_tool_search::{CallerVisibleTools, ToolSearchDocument, ToolSearchIndex};

use super::{Catalog, CatalogToolEntry};

/// Maximum number of callers for whom the search index remembers which tools they may see.
const VIEWS_MAX: usize = 64;

/// Description of each server's purpose, by the server's name.
pub(crate) type ServerDescriptionMap = HashMap<String, String>;

/// A search index of the tools, with the tools that each of the latest searching callers may see.
pub(crate) struct CatalogSearchIndex {
    index: ToolSearchIndex,
    /// Texts of the tools, for a model that compares the meaning of sentences.
    sentences: Vec<String>,
    views: Mutex<Vec<(CallerVisibilityKey, Arc<CallerVisibleTools>)>>,
}

/// The properties of a caller that decide which tools the caller sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CallerVisibilityKey {
    kind: CallerKind,
    name: Arc<str>,
    scopes: Arc<[Arc<str>]>,
    roles: Arc<[Arc<str>]>,
}

impl CallerVisibilityKey {
    pub(crate) fn new(caller: &Caller) -> Self {
        let Caller { kind, name, scopes, roles, bearer: _ } = caller.clone();
        Self { kind, name, scopes, roles }
    }
}

impl CatalogToolEntry {
    /// Returns the name of the server that offers the tool, or the toolset of one of this server's
    /// own tools.
    pub(crate) fn server(&self) -> &str {
        let upstream = self.owner.as_deref().filter(|owner| !owner.starts_with('.'));
        upstream.unwrap_or_else(|| self.spec().id.toolset())
    }

    /// Returns about how many tokens the tool costs in a list: name, description and arguments.
    pub(crate) fn listed_tokens(&self) -> usize {
        *self.listed_tokens.get_or_init(|| {
            let spec = self.spec();
            let schema = serde_json::to_string(&*spec.input_schema).unwrap_or_default();
            let parts = [spec.id.as_str(), &spec.description, &schema];
            estimate_tokens(parts.iter().map(|part| part.chars().count()).sum())
        })
    }

    /// Returns the name of the tool without its server.
    fn name_in_server(&self) -> &str {
        let id = self.spec().id.as_str();
        let rest = id.strip_prefix(self.server()).and_then(|rest| rest.strip_prefix('.'));
        rest.unwrap_or(id)
    }

    fn document(&self, descriptions: &ServerDescriptionMap) -> ToolSearchDocument {
        let ToolSpec { description, input_schema, .. } = self.spec();
        let server = self.server();
        let about = descriptions.get(server).map(String::as_str).unwrap_or_default();
        ToolSearchDocument::new(self.name_in_server(), server, about, description, input_schema)
    }
}

/// Estimates how many tokens of a model's context a tool definition of `chars` characters takes,
/// with 3.9 characters for each token.
pub fn estimate_tokens(chars: usize) -> usize {
    chars.saturating_mul(10).div_ceil(39)
}

impl Catalog {
    /// Returns the tools of the catalog in order of id. The search index refers to a tool by its
    /// position in this list.
    pub(crate) fn entries(&self) -> &[Arc<CatalogToolEntry>] {
        &self.entries
    }

    /// Returns the search index of the tools. The first call builds it, which takes tens of
    /// milliseconds for thousands of tools, with the `descriptions` of the servers.
    pub(crate) fn search_index(
        &self,
        descriptions: impl FnOnce() -> ServerDescriptionMap,
    ) -> &CatalogSearchIndex {
        self.index.get_or_init(|| {
            let descriptions = descriptions();
            let mut sentences = Vec::with_capacity(self.entries.len());
            let tools = self.entries.iter().map(|entry| {
                let document = entry.document(&descriptions);
                sentences.push(document.sentence());
                (entry.spec().id.as_str(), document)
            });
            CatalogSearchIndex {
                index: ToolSearchIndex::new(tools),
                sentences,
                views: Mutex::default(),
            }
        })
    }

    /// Returns the only visible tool whose name without its server is `name`, if there is exactly
    /// one.
    pub(crate) fn find_unprefixed(
        &self,
        name: &str,
        is_visible: impl Fn(&ToolSpec) -> bool,
    ) -> Option<Arc<CatalogToolEntry>> {
        let folded = fold_name(name);
        let mut found = self.entries.iter().filter(|entry| {
            entry.is_foreign()
                && fold_name(entry.name_in_server()) == folded
                && is_visible(entry.spec())
        });
        let first = found.next()?;
        found.next().is_none().then(|| first.clone())
    }
}

impl CatalogSearchIndex {
    pub(crate) fn index(&self) -> &ToolSearchIndex {
        &self.index
    }

    /// Returns the texts of the tools, for a model that compares the meaning of sentences.
    pub(crate) fn sentences(&self) -> &[String] {
        &self.sentences
    }

    /// Returns the tools in the search index that `caller` may see: all tools of `entries` that
    /// `is_visible` accepts. The answers of `is_visible` must depend on nothing but the caller and
    /// the tool.
    pub(crate) fn view(
        &self,
        entries: &[Arc<CatalogToolEntry>],
        caller: &Caller,
        is_visible: impl Fn(&ToolSpec) -> bool,
    ) -> Arc<CallerVisibleTools> {
        let key = CallerVisibilityKey::new(caller);
        let views = || lock_mutex(&self.views);
        if let Some((_, view)) = views().iter().find(|(known, _)| *known == key) {
            return view.clone();
        }
        let view = Arc::new(self.index.view(|at| is_visible(entries[at].spec())));
        let mut views = views();
        if views.len() >= VIEWS_MAX {
            views.remove(0);
        }
        views.push((key, view.clone()));
        view
    }
}
