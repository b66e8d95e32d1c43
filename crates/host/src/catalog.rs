//! All tools on offer now. Replaced whole, never edited.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use foldhash::HashMap;
use toolgate_contract::{AnyTool, BoxFuture, CallError, ToolId, ToolPage, ToolSpec, fold};

use crate::mirrored;
use crate::mirrored::Mirror;
use crate::schemas::{SchemaRegistry, Side, ToolIoValidators};

/// How much of an unknown name is repeated, and looked at for what was meant.
const NAME_CHARS_MAX: usize = 100;

/// The tools on offer, in order of id, their schemas compiled.
pub struct Catalog {
    entries: Vec<Arc<Entry>>,
    by_folded_name: HashMap<String, usize>,
    /// What others offer, with who does, that is spelled like what this server itself has or
    /// another offers, too, or is unusable: it is served once nothing is in its way.
    unserved: Vec<(Arc<str>, Arc<dyn AnyTool>)>,
    pub(crate) schemas: Arc<SchemaRegistry>,
}

/// A tool that cannot be offered.
#[derive(Debug)]
pub struct NotOffered {
    /// Who offers it.
    pub owner: Arc<str>,
    /// The tool.
    pub tool: ToolId,
    /// Why not.
    pub why: CatalogError,
}

/// One tool with its compiled schemas.
pub(crate) struct Entry {
    tool: Arc<dyn AnyTool>,
    /// Who offers it, where that is not this server itself.
    owner: Option<Arc<str>>,
    pub(crate) io: Arc<ToolIoValidators>,
    mirrors: OnceLock<Result<Vec<Mirror>, String>>,
}

/// The catalog that is on offer now, which another may take the place of.
pub(crate) struct Current {
    now: RwLock<Arc<Catalog>>,
    /// One after the other is replaced.
    changing: Mutex<()>,
    listed: OnceLock<Arc<dyn Listed>>,
}

/// Knows when all who offer tools have said which.
pub trait Listed: Send + Sync + 'static {
    /// Whether they have, as far as they may offer what is called `name`.
    fn is_whole(&self, name: Option<&str>) -> bool;
    /// Waits until they have, for a bounded time.
    fn wait<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, ()>;
    /// Has those asked again of whom it is known from long ago alone. Nobody waits for that.
    fn renew(&self);
}

impl Current {
    pub(crate) fn of(catalog: Catalog) -> Self {
        let now = RwLock::new(Arc::new(catalog));
        Self { now, changing: Mutex::new(()), listed: OnceLock::new() }
    }

    /// What is on offer now.
    pub(crate) fn now(&self) -> Arc<Catalog> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Offers `tools` in place of those that `owner` offered before; whether that made a
    /// difference, and what cannot be offered any more.
    pub(crate) fn offer(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (bool, Vec<NotOffered>) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.now();
        let (next, refused) = before.with(owner, tools);
        let is_same = |(a, b): (&Arc<Entry>, &Arc<Entry>)| Arc::ptr_eq(a, b);
        let differs = before.entries.len() != next.entries.len()
            || !before.entries.iter().zip(&next.entries).all(is_same);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        (differs, refused)
    }

    /// Has lists wait for `listed`; the first who is set stays.
    pub(crate) fn lists_after(&self, listed: Arc<dyn Listed>) {
        let _ = self.listed.set(listed);
    }

    /// Waits until a list is whole, for a bounded time; with a name, as far as that may be in it.
    pub(crate) async fn listed(&self, name: Option<&str>) {
        let Some(listed) = self.listed.get() else { return };
        if name.is_none() {
            listed.renew();
        }
        if !listed.is_whole(name) {
            listed.wait(name).await;
        }
    }

    /// Whether there is a tool that `name` spells, or it is known that there is none.
    pub(crate) fn knows(&self, name: &str) -> bool {
        // Nobody is asked for what most calls know.
        let Some(listed) = self.listed.get().filter(|listed| !listed.is_whole(None)) else {
            return true;
        };
        self.now().by_folded_name.contains_key(&*fold(name)) || listed.is_whole(Some(name))
    }
}

/// Why tools cannot be offered together.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Two tools would be spelled alike in some dialect.
    #[error("the tools `{first}` and `{second}` cannot be told apart on the wire; rename one")]
    Alike {
        /// The one.
        first: ToolId,
        /// The other.
        second: ToolId,
    },
    /// Several offer a tool that is spelled so.
    #[error(
        "so is one of `{}`, and nothing says which is meant; give each another `prefix`, or leave \
         all but one out by `without`",
        owners.join("`, `")
    )]
    Ambiguous {
        /// Who else does.
        owners: Vec<String>,
    },
    /// A tool's schema is no JSON Schema, or refers to the network.
    #[error("the {which} schema of `{tool}` is not usable: {why}")]
    Schema {
        /// The tool.
        tool: ToolId,
        /// `input` or `output`.
        which: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl Entry {
    pub(crate) fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    pub(crate) fn tool(&self) -> &dyn AnyTool {
        self.tool.as_ref()
    }

    /// The arguments that a wire says twice.
    ///
    /// # Errors
    /// When the schema marks some that cannot be.
    pub(crate) fn mirrors(&self) -> Result<&[Mirror], &str> {
        let mirrors = self.mirrors.get_or_init(|| mirrored::of(&self.spec().input_schema));
        mirrors.as_deref().map_err(String::as_str)
    }
}

impl Catalog {
    /// Offers `tools`, once their schemas compile and their names differ.
    pub fn new(tools: Vec<Arc<dyn AnyTool>>) -> Result<Self, CatalogError> {
        Self::with_schemas(tools, Arc::default())?.checked()
    }

    /// The same, once every schema of a tool has compiled: for tools that were not made here.
    pub fn checked(self) -> Result<Self, CatalogError> {
        let unusable =
            |tool, side: Side, why| CatalogError::Schema { tool, which: side.word(), why };
        let checked = self.schemas.check();
        checked.map_err(|(tool, side, why)| unusable(tool, side, why.to_string()))?;
        for entry in &self.entries {
            let unusable = |why: &str| unusable(entry.spec().id.clone(), Side::Input, why.into());
            entry.mirrors().map_err(unusable)?;
        }
        Ok(self)
    }

    /// The same, with schemas from `schemas`.
    pub fn with_schemas(
        mut tools: Vec<Arc<dyn AnyTool>>,
        schemas: Arc<SchemaRegistry>,
    ) -> Result<Self, CatalogError> {
        tools.sort_by(|a, b| a.spec().id.cmp(&b.spec().id));
        let mut catalog = Self::without_tools(schemas);
        for tool in tools {
            catalog.offer(tool, None)?;
        }
        Ok(catalog)
    }

    fn without_tools(schemas: Arc<SchemaRegistry>) -> Self {
        let (entries, unserved) = (Vec::new(), Vec::new());
        Self { entries, by_folded_name: HashMap::default(), unserved, schemas }
    }

    /// The same with `tools` in place of those that `owner` offered before, and what cannot be
    /// offered any more.
    ///
    /// Of what is spelled alike, what this server itself has goes before what others offer, and
    /// of what several others offer none is served: whoever meant the one would call the other.
    fn with(&self, owner: &str, tools: Vec<Arc<dyn AnyTool>>) -> (Self, Vec<NotOffered>) {
        let mut catalog = Self::without_tools(self.schemas.clone());
        let mut offered: Vec<(Arc<str>, Arc<dyn AnyTool>)> = self.unserved.clone();
        for entry in &self.entries {
            match &entry.owner {
                None => catalog.put(entry.clone()),
                Some(owner) => offered.push((owner.clone(), entry.tool.clone())),
            }
        }
        offered.retain(|(whose, _)| **whose != *owner);
        let owner: Arc<str> = owner.into();
        offered.extend(tools.into_iter().map(|tool| (owner.clone(), tool)));
        offered.sort_by(|(a, x), (b, y)| (a, &x.spec().id).cmp(&(b, &y.spec().id)));
        let mut owners = HashMap::<_, BTreeSet<_>>::default();
        // An owner whose name begins with a dot is this server itself, and goes before others.
        for (owner, tool) in offered.iter().filter(|(owner, _)| !owner.starts_with('.')) {
            let folded = fold(tool.spec().id.as_str()).into_owned();
            owners.entry(folded).or_default().insert(owner.clone());
        }
        let (mut refused, mut unusable) = (Vec::new(), HashSet::new());
        for (owner, tool) in offered {
            let id = tool.spec().id.clone();
            let folded = fold(id.as_str()).into_owned();
            let alike = owners.get(&folded).filter(|_| !owner.starts_with('.'));
            let alike = alike.into_iter().flatten().filter(|it| **it != owner);
            let alike: Vec<_> = alike.map(|it| it.to_string()).collect();
            // Calls are held against what was registered last.
            let same = self.entry(&id).filter(|it| Arc::ptr_eq(&it.tool, &tool));
            let same = same.filter(|_| !unusable.contains(&folded));
            let put = match same {
                _ if !alike.is_empty() => Err(CatalogError::Ambiguous { owners: alike }),
                Some(entry) => catalog.room(&id).map(|()| catalog.put(entry)),
                None => catalog.offer(tool.clone(), Some(owner.clone())),
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
            refused.push(NotOffered { owner, tool: id, why });
        }
        let gone = self.entries.iter().map(|entry| &entry.spec().id);
        for id in gone.chain(refused.iter().map(|it| &it.tool)) {
            if catalog.room(id).is_ok() {
                catalog.schemas.forget(id);
            }
        }
        catalog.entries.sort_by(|a, b| a.spec().id.cmp(&b.spec().id));
        let places = catalog.entries.iter().enumerate();
        catalog.by_folded_name =
            places.map(|(at, entry)| (fold(entry.spec().id.as_str()).into_owned(), at)).collect();
        (catalog, refused)
    }

    /// The ids of all tools, in order.
    pub fn ids(&self) -> Vec<ToolId> {
        self.entries.iter().map(|entry| entry.spec().id.clone()).collect()
    }

    /// Whether one of the tools that are this server's own is of `toolset`.
    pub(crate) fn has_own(&self, toolset: &str) -> bool {
        let mut own = self.entries.iter().filter(|entry| entry.owner.is_none());
        own.any(|entry| entry.spec().id.toolset() == toolset)
    }

    /// The tool `id`, if it is on offer.
    pub(crate) fn entry(&self, id: &ToolId) -> Option<Arc<Entry>> {
        let at = self.entries.binary_search_by(|entry| entry.spec().id.cmp(id)).ok()?;
        Some(self.entries[at].clone())
    }

    /// What is known of all tools.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.entries.iter().map(|entry| entry.spec())
    }

    /// The same of those that `owner` offers.
    pub(crate) fn specs_of(&self, owner: &str) -> impl Iterator<Item = &ToolSpec> {
        let owned = self.entries.iter().filter(move |entry| entry.owner.as_deref() == Some(owner));
        owned.map(|entry| entry.spec())
    }

    /// Whether there is no tool yet that is spelled as `id` is.
    fn room(&self, id: &ToolId) -> Result<(), CatalogError> {
        match self.by_folded_name.get(&*fold(id.as_str())) {
            None => Ok(()),
            Some(&at) => {
                let first = self.entries[at].spec().id.clone();
                Err(CatalogError::Alike { first, second: id.clone() })
            }
        }
    }

    fn put(&mut self, entry: Arc<Entry>) {
        let folded = fold(entry.spec().id.as_str()).into_owned();
        self.by_folded_name.insert(folded, self.entries.len());
        self.entries.push(entry);
    }

    fn offer(
        &mut self,
        tool: Arc<dyn AnyTool>,
        owner: Option<Arc<str>>,
    ) -> Result<(), CatalogError> {
        let id = tool.spec().id.clone();
        self.room(&id)?;
        let unusable = |which, why| CatalogError::Schema { tool: id.clone(), which, why };
        let io = self.schemas.register(tool.spec());
        let io = io.map_err(|(side, why)| unusable(side.word(), why.to_string()))?;
        let entry = Entry { tool, owner, io, mirrors: OnceLock::new() };
        // What others wrote must not fail with the first call.
        if entry.owner.is_some() {
            let checked = SchemaRegistry::check_one(&entry.io);
            checked.map_err(|(side, why)| unusable(side.word(), why))?;
        }
        // What is read off a type is made when it is first looked at.
        if entry.spec().input_schema.is_made() {
            entry.mirrors().map_err(|why| unusable(Side::Input.word(), why.to_owned()))?;
        }
        self.put(Arc::new(entry));
        Ok(())
    }

    /// The tool that `name` spells, if `shown`; what one may not see is unknown.
    pub(crate) fn find(
        &self,
        name: &str,
        shown: impl Fn(&ToolSpec) -> bool,
    ) -> Result<Arc<Entry>, CallError> {
        let found = self.by_folded_name.get(&*fold(name)).map(|&at| &self.entries[at]);
        found.filter(|entry| shown(entry.spec())).cloned().ok_or_else(|| CallError::UnknownTool {
            name: name.chars().take(NAME_CHARS_MAX).collect(),
            nearest: self.nearest(name, shown),
        })
    }

    /// Up to `size` tools after `after`, of those `shown`.
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

    fn nearest(&self, name: &str, shown: impl Fn(&ToolSpec) -> bool) -> Option<String> {
        // Comparing takes time by the length of the name, which is whatever a client sends.
        if name.len() > NAME_CHARS_MAX {
            return None;
        }
        let shown = self.specs().filter(|spec| shown(spec));
        let close = shown.map(|spec| (likeness(name, &spec.id), &spec.id));
        let best = close.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (best.0 >= 0.6).then(|| best.1.to_string())
    }
}

/// How much `name` is like the name of a tool, 0 to 1: in its letters, or in its words in any
/// order, so that `read_file` is like `files.read`.
fn likeness(name: &str, id: &ToolId) -> f64 {
    let (name, id) = (fold(name).to_lowercase(), fold(id.as_str()));
    let words = |text: &str| -> Vec<String> {
        text.split('_').map(|word| word.trim_end_matches('s').to_owned()).collect()
    };
    let (asked, known) = (words(&name), words(&id));
    let letters = strsim::normalized_damerau_levenshtein(&name, &id);
    if asked.iter().all(|word| known.contains(word)) { letters.max(0.7) } else { letters }
}
