//! Holds all tools available now. A catalog is replaced whole and never edited.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use foldhash::HashMap;
use toolgate_contract::{AnyTool, BoxFuture, CallError, ToolId, ToolPage, ToolSpec, fold_name};

use crate::header_params;
use crate::header_params::HeaderParam;
use crate::schemas::{SchemaRegistry, SchemaSide, ToolIoValidators};

/// Most characters of an unknown name that are repeated, and longest name compared with known ones.
const NAME_CHARS_MAX: usize = 100;

/// Tools available now, in order of id, with their compiled schemas.
pub struct Catalog {
    entries: Vec<Arc<CatalogEntry>>,
    by_folded_name: HashMap<String, usize>,
    /// Offered tools that are not served, with their owners. Their schema is unusable or their name
    /// collides. They are served once that is resolved.
    unserved: Vec<(Arc<str>, Arc<dyn AnyTool>)>,
    pub(crate) schemas: Arc<SchemaRegistry>,
}

/// A tool that cannot be offered.
#[derive(Debug)]
pub struct RejectedTool {
    /// Owner that offers the tool.
    pub owner: Arc<str>,
    /// Id of the tool.
    pub tool: ToolId,
    /// Reason of the refusal.
    pub reason: CatalogError,
}

/// One tool with its compiled schemas.
pub(crate) struct CatalogEntry {
    tool: Arc<dyn AnyTool>,
    /// Owner of the tool, or `None` for this server itself.
    owner: Option<Arc<str>>,
    pub(crate) io: Arc<ToolIoValidators>,
    header_params: OnceLock<Result<Vec<HeaderParam>, String>>,
}

/// The catalog available now, which can be replaced while calls run.
pub(crate) struct LiveCatalog {
    current: RwLock<Arc<Catalog>>,
    /// Serializes replacements.
    replacing: Mutex<()>,
    readiness: OnceLock<Arc<dyn CatalogReadiness>>,
}

/// Reports when all owners have listed their tools.
pub trait CatalogReadiness: Send + Sync + 'static {
    /// Returns true if all owners have listed their tools. With `name`, only owners that may offer
    /// that tool count.
    fn is_complete(&self, name: Option<&str>) -> bool;
    /// Waits until the list is complete in that sense, for a bounded time.
    fn wait_until_complete<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()>;
    /// Starts to refresh lists that are known only from long ago. Does not wait for the result.
    fn refresh(&self);
}

impl LiveCatalog {
    pub(crate) fn new(catalog: Catalog) -> Self {
        let current = RwLock::new(Arc::new(catalog));
        Self { current, replacing: Mutex::new(()), readiness: OnceLock::new() }
    }

    /// Returns the catalog available now.
    pub(crate) fn snapshot(&self) -> Arc<Catalog> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the tools that `owner` offered before. Returns whether the catalog changed, and the
    /// tools that became unavailable.
    pub(crate) fn replace_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (bool, Vec<RejectedTool>) {
        let _one = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot();
        let (next, refused) = before.with_owner_tools(owner, tools);
        let is_same = |(a, b): (&Arc<CatalogEntry>, &Arc<CatalogEntry>)| Arc::ptr_eq(a, b);
        let differs = before.entries.len() != next.entries.len()
            || !before.entries.iter().zip(&next.entries).all(is_same);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        (differs, refused)
    }

    /// Makes tool lists wait for `listed`. The first value set is kept.
    pub(crate) fn set_readiness(&self, listed: Arc<dyn CatalogReadiness>) {
        let _ = self.readiness.set(listed);
    }

    /// Waits until the list is complete, for a bounded time. With `name`, only owners that may
    /// offer that tool count.
    pub(crate) async fn wait_for_listings(&self, name: Option<&str>) {
        let Some(listed) = self.readiness.get() else { return };
        if name.is_none() {
            listed.refresh();
        }
        if !listed.is_complete(name) {
            listed.wait_until_complete(name).await;
        }
    }

    /// Returns true if `name` is a known tool, or is known to be missing.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        // A known name needs no query of the owners.
        let Some(listed) = self.readiness.get().filter(|listed| !listed.is_complete(None)) else {
            return true;
        };
        self.snapshot().by_folded_name.contains_key(&*fold_name(name))
            || listed.is_complete(Some(name))
    }
}

/// Reasons why tools cannot be offered together.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Two tool names would look alike in some dialect.
    #[error("the tools `{first}` and `{second}` cannot be told apart on the wire; rename one")]
    NameClash {
        /// The first tool.
        first: ToolId,
        /// The second tool.
        second: ToolId,
    },
    /// Several owners offer tools whose names look alike on the wire.
    #[error(
        "so is one of `{}`, and nothing says which is meant; give each another `prefix`, or leave \
         all but one out by `without`",
        owners.join("`, `")
    )]
    Ambiguous {
        /// The other owners.
        owners: Vec<String>,
    },
    /// A tool's schema is invalid, or refers to the network.
    #[error("the {which} schema of `{tool}` is not usable: {why}")]
    Schema {
        /// Id of the tool.
        tool: ToolId,
        /// `input` or `output`.
        which: &'static str,
        /// Description of the problem.
        why: String,
    },
}

impl CatalogEntry {
    pub(crate) fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    pub(crate) fn tool(&self) -> &dyn AnyTool {
        self.tool.as_ref()
    }

    /// Returns the arguments that clients repeat in headers.
    ///
    /// # Errors
    /// If the schema marks an argument that cannot be repeated.
    pub(crate) fn header_params(&self) -> Result<&[HeaderParam], &str> {
        let mirrors = self
            .header_params
            .get_or_init(|| header_params::parse_header_params(&self.spec().input_schema));
        mirrors.as_deref().map_err(String::as_str)
    }
}

impl Catalog {
    /// Creates a catalog of `tools`, after their schemas compile and their names differ.
    pub fn new(tools: Vec<Arc<dyn AnyTool>>) -> Result<Self, CatalogError> {
        Self::with_schemas(tools, Arc::default())?.check_schemas()
    }

    /// Checks that every tool schema compiles; meant for tools made elsewhere.
    pub fn check_schemas(self) -> Result<Self, CatalogError> {
        let unusable =
            |tool, side: SchemaSide, why| CatalogError::Schema { tool, which: side.word(), why };
        let checked = self.schemas.check_all();
        checked.map_err(|(tool, side, why)| unusable(tool, side, why.to_string()))?;
        for entry in &self.entries {
            let unusable =
                |why: &str| unusable(entry.spec().id.clone(), SchemaSide::Input, why.into());
            entry.header_params().map_err(unusable)?;
        }
        Ok(self)
    }

    /// Creates a catalog of `tools` whose schemas come from `schemas`.
    pub fn with_schemas(
        mut tools: Vec<Arc<dyn AnyTool>>,
        schemas: Arc<SchemaRegistry>,
    ) -> Result<Self, CatalogError> {
        tools.sort_by(|a, b| a.spec().id.cmp(&b.spec().id));
        let mut catalog = Self::empty(schemas);
        for tool in tools {
            catalog.add(tool, None)?;
        }
        Ok(catalog)
    }

    fn empty(schemas: Arc<SchemaRegistry>) -> Self {
        let entries = Vec::new();
        let unserved = Vec::new();
        Self { entries, by_folded_name: HashMap::default(), unserved, schemas }
    }

    /// Returns a catalog with `tools` in place of those that `owner` offered before, and the tools
    /// that became unavailable.
    ///
    /// If names look alike, this server's own tools win. If several other owners offer such a name,
    /// none of their tools is served, since a caller could reach the wrong one.
    fn with_owner_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (Self, Vec<RejectedTool>) {
        let mut catalog = Self::empty(self.schemas.clone());
        let mut offered: Vec<(Arc<str>, Arc<dyn AnyTool>)> = self.unserved.clone();
        for entry in &self.entries {
            match &entry.owner {
                None => catalog.insert(entry.clone()),
                Some(owner) => offered.push((owner.clone(), entry.tool.clone())),
            }
        }
        offered.retain(|(whose, _)| **whose != *owner);
        let owner: Arc<str> = owner.into();
        offered.extend(tools.into_iter().map(|tool| (owner.clone(), tool)));
        offered.sort_by(|(a, x), (b, y)| (a, &x.spec().id).cmp(&(b, &y.spec().id)));
        let mut owners = HashMap::<_, BTreeSet<_>>::default();
        // An owner whose name begins with a dot is this server itself and wins over others.
        for (owner, tool) in offered.iter().filter(|(owner, _)| !owner.starts_with('.')) {
            let folded = fold_name(tool.spec().id.as_str()).into_owned();
            owners.entry(folded).or_default().insert(owner.clone());
        }
        let mut refused = Vec::new();
        let mut unusable = HashSet::new();
        for (owner, tool) in offered {
            let id = tool.spec().id.clone();
            let folded = fold_name(id.as_str()).into_owned();
            let alike = owners.get(&folded).filter(|_| !owner.starts_with('.'));
            let alike = alike.into_iter().flatten().filter(|it| **it != owner);
            let alike: Vec<_> = alike.map(|it| it.to_string()).collect();
            // Calls are validated against the schema that was registered last.
            let same = self.entry(&id).filter(|it| Arc::ptr_eq(&it.tool, &tool));
            let same = same.filter(|_| !unusable.contains(&folded));
            let put = match same {
                _ if !alike.is_empty() => Err(CatalogError::Ambiguous { owners: alike }),
                Some(entry) => catalog.check_name_free(&id).map(|()| catalog.insert(entry)),
                None => catalog.add(tool.clone(), Some(owner.clone())),
            };
            let Err(why) = put else { continue };
            let known = self.unserved.iter().any(|(_, it)| Arc::ptr_eq(it, &tool));
            catalog.unserved.push((owner.clone(), tool));
            if matches!(why, CatalogError::Schema { .. }) {
                unusable.insert(folded);
            }
            if known {
                continue;
            }
            refused.push(RejectedTool { owner, tool: id, reason: why });
        }
        let gone = self.entries.iter().map(|entry| &entry.spec().id);
        for id in gone.chain(refused.iter().map(|it| &it.tool)) {
            if catalog.check_name_free(id).is_ok() {
                catalog.schemas.unregister(id);
            }
        }
        catalog.entries.sort_by(|a, b| a.spec().id.cmp(&b.spec().id));
        let places = catalog.entries.iter().enumerate();
        catalog.by_folded_name = places
            .map(|(at, entry)| (fold_name(entry.spec().id.as_str()).into_owned(), at))
            .collect();
        (catalog, refused)
    }

    /// Returns the ids of all tools, in order.
    pub fn ids(&self) -> Vec<ToolId> {
        self.entries.iter().map(|entry| entry.spec().id.clone()).collect()
    }

    /// Returns true if one of this server's own tools is in `toolset`.
    pub(crate) fn owns_toolset(&self, toolset: &str) -> bool {
        let mut own = self.entries.iter().filter(|entry| entry.owner.is_none());
        own.any(|entry| entry.spec().id.toolset() == toolset)
    }

    /// Returns the tool `id`, if it is available.
    pub(crate) fn entry(&self, id: &ToolId) -> Option<Arc<CatalogEntry>> {
        let at = self.entries.binary_search_by(|entry| entry.spec().id.cmp(id)).ok()?;
        Some(self.entries[at].clone())
    }

    /// Returns the specs of all tools.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.entries.iter().map(|entry| entry.spec())
    }

    /// Returns the specs of the tools that `owner` offers.
    pub(crate) fn specs_of(&self, owner: &str) -> impl Iterator<Item = &ToolSpec> {
        let owned = self.entries.iter().filter(move |entry| entry.owner.as_deref() == Some(owner));
        owned.map(|entry| entry.spec())
    }

    /// Checks that no tool has a name that looks like `id`.
    fn check_name_free(&self, id: &ToolId) -> Result<(), CatalogError> {
        match self.by_folded_name.get(&*fold_name(id.as_str())) {
            None => Ok(()),
            Some(&at) => {
                let first = self.entries[at].spec().id.clone();
                Err(CatalogError::NameClash { first, second: id.clone() })
            }
        }
    }

    fn insert(&mut self, entry: Arc<CatalogEntry>) {
        let folded = fold_name(entry.spec().id.as_str()).into_owned();
        self.by_folded_name.insert(folded, self.entries.len());
        self.entries.push(entry);
    }

    fn add(&mut self, tool: Arc<dyn AnyTool>, owner: Option<Arc<str>>) -> Result<(), CatalogError> {
        let id = tool.spec().id.clone();
        self.check_name_free(&id)?;
        let unusable = |which, why| CatalogError::Schema { tool: id.clone(), which, why };
        let io = self.schemas.register(tool.spec());
        let io = io.map_err(|(side, why)| unusable(side.word(), why.to_string()))?;
        let entry = CatalogEntry { tool, owner, io, header_params: OnceLock::new() };
        // An invalid schema of an upstream must fail here, not in the first call.
        if entry.owner.is_some() {
            let checked = SchemaRegistry::check_tool(&entry.io);
            checked.map_err(|(side, why)| unusable(side.word(), why))?;
        }
        // Schemas derived from Rust types are built lazily and checked when first used.
        if entry.spec().input_schema.is_generated() {
            entry
                .header_params()
                .map_err(|why| unusable(SchemaSide::Input.word(), why.to_owned()))?;
        }
        self.insert(Arc::new(entry));
        Ok(())
    }

    /// Returns the tool that `name` spells, if `shown` allows it. A hidden tool counts as unknown.
    pub(crate) fn find(
        &self,
        name: &str,
        shown: impl Fn(&ToolSpec) -> bool,
    ) -> Result<Arc<CatalogEntry>, CallError> {
        let found = self.by_folded_name.get(&*fold_name(name)).map(|&at| &self.entries[at]);
        found.filter(|entry| shown(entry.spec())).cloned().ok_or_else(|| CallError::UnknownTool {
            name: name.chars().take(NAME_CHARS_MAX).collect(),
            nearest: self.nearest_name(name, shown),
        })
    }

    /// Returns up to `size` tools after `after` that `shown` allows.
    pub(crate) fn page(
        &self,
        after: Option<&ToolId>,
        size: usize,
        shown: impl Fn(&ToolSpec) -> bool,
    ) -> ToolPage {
        let start = after.map_or(0, |id| self.entries.partition_point(|e| e.spec().id <= *id));
        let mut rest = self.entries[start..].iter().filter(|entry| shown(entry.spec()));
        let tools: Vec<_> = rest.by_ref().take(size).map(|entry| entry.tool.clone()).collect();
        let next =
            tools.last().filter(|_| rest.next().is_some()).map(|last| last.spec().id.clone());
        ToolPage { tools, next }
    }

    fn nearest_name(&self, name: &str, shown: impl Fn(&ToolSpec) -> bool) -> Option<String> {
        // Comparing takes time in proportion to the name's length, which the client chooses.
        if name.len() > NAME_CHARS_MAX {
            return None;
        }
        let shown = self.specs().filter(|spec| shown(spec));
        let close = shown.map(|spec| (name_similarity(name, &spec.id), &spec.id));
        let best = close.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= 0.6).then(|| best.1.to_string())
    }
}

/// Returns how similar `name` is to the name of a tool, from 0 to 1.
///
/// It compares letters, and words in any order, so that `read_file` is similar to `files.read`.
fn name_similarity(name: &str, id: &ToolId) -> f64 {
    let name = fold_name(name).to_lowercase();
    let id = fold_name(id.as_str());
    let words = |text: &str| -> Vec<String> {
        text.split('_').map(|word| word.trim_end_matches('s').to_owned()).collect()
    };
    let asked = words(&name);
    let known = words(&id);
    let letters = strsim::normalized_damerau_levenshtein(&name, &id);
    if asked.iter().all(|word| known.contains(word)) { letters.max(0.7) } else { letters }
}
