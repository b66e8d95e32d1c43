//! The catalog: all tools that are available now. A change creates a new catalog.

mod live_catalog;
mod tool_index;

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

use foldhash::HashMap;
use toolgate_contract::{AnyTool, CallError, ToolId, ToolPage, ToolSpec, fold_name};

use crate::header_params;
use crate::header_params::HeaderParam;
use crate::policy::ToolVisibility;
use crate::schemas::{SchemaRegistry, ToolIoValidators, ToolSchemaDirection};

pub(crate) use live_catalog::ReplaceableCatalog;
pub use live_catalog::{CatalogReadinessCheck, UnavailableTool};
pub use tool_index::estimate_tokens;
pub(crate) use tool_index::{CallerVisibilityKey, CatalogSearchIndex, ServerDescriptionMap};

/// Maximum number of characters of an unknown name that an error repeats, and longest name that is
/// compared with known names.
const NAME_CHARS_MAX: usize = 100;

/// Tools available now, in order of id, with their compiled schemas.
pub struct Catalog {
    entries: Vec<Arc<CatalogToolEntry>>,
    by_folded_name: HashMap<String, usize>,
    /// Offered tools that are not served, with their owners, because their schema is unusable or
    /// their name collides. They are served once the problem is resolved.
    unserved: Vec<(Arc<str>, Arc<dyn AnyTool>)>,
    pub(crate) schemas: Arc<SchemaRegistry>,
    /// Search index of the tools, built when it is first needed.
    index: OnceLock<CatalogSearchIndex>,
}

/// Tool that cannot be offered, and the reason.
#[derive(Debug)]
pub struct RejectedTool {
    /// Owner that offers the tool, such as an upstream.
    pub owner: Arc<str>,
    /// Id of the tool.
    pub tool: ToolId,
    /// Reason why the tool is rejected.
    pub reason: CatalogError,
}

/// One tool with its compiled schemas.
pub(crate) struct CatalogToolEntry {
    tool: Arc<dyn AnyTool>,
    /// Owner of the tool, such as an upstream. `None` for this server itself.
    owner: Option<Arc<str>>,
    pub(crate) io: Arc<ToolIoValidators>,
    header_params: OnceLock<Result<Vec<HeaderParam>, String>>,
    listed_tokens: OnceLock<usize>,
    job_lane: OnceLock<String>,
    search_hash: OnceLock<blake3::Hash>,
}

/// Reason why tools cannot be offered together.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The names of two tools are equal, apart from separators such as `.` and `_`.
    #[error("the tools `{first}` and `{second}` have the same name on the wire; rename one")]
    NameClash {
        /// Id of the first of the two tools.
        first: ToolId,
        /// Id of the second of the two tools.
        second: ToolId,
    },
    /// Several owners offer tools with the same name, apart from separators such as `.` and `_`.
    #[error(
        "the tool's name is also used by `{}`; give each upstream its own `prefix`, or leave out \
         all but \
         one with `!NAME` in `tools`",
        owners.join("`, `")
    )]
    Ambiguous {
        /// Other owners, such as upstreams, that offer a tool with this name.
        owners: Vec<String>,
    },
    /// The schema of a tool is invalid or refers to the network.
    #[error("the {which} schema of `{tool}` is not usable: {why}")]
    Schema {
        /// Id of the tool with the unusable schema.
        tool: ToolId,
        /// Name of the unusable schema: `input` or `output`.
        which: &'static str,
        /// Description of the problem with the schema.
        why: String,
    },
}

impl CatalogToolEntry {
    pub(crate) fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    pub(crate) fn tool(&self) -> &dyn AnyTool {
        self.tool.as_ref()
    }

    /// Returns true if another server offers the tool. The tool's schemas may then be expensive to
    /// use.
    pub(crate) fn is_foreign(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| !owner.starts_with('.'))
    }

    pub(crate) fn shared_tool(&self) -> &Arc<dyn AnyTool> {
        &self.tool
    }

    /// Returns the name of the queue in which jobs of the tool wait in a shared job store: the
    /// tool's id and a digest of its effects, arguments and settings. So servers with different
    /// versions of a tool do not run each other's jobs.
    pub(crate) fn job_lane(&self) -> &str {
        self.job_lane.get_or_init(|| {
            let spec = self.spec();
            let mut hasher = blake3::Hasher::new();
            hasher.update(format!("{:?} {}\n", spec.effects, spec.idempotent).as_bytes());
            hasher.update((*spec.input_schema).to_string().as_bytes());
            hasher.update(self.tool.settings_fingerprint().as_bytes());
            let digest = hasher.finalize().to_hex();
            format!("{}@{}", spec.id, &digest[..16])
        })
    }

    /// Returns the cached hash of the tool's text in search answers. The first call calculates the
    /// hash with `compute`.
    pub(crate) fn search_hash(&self, compute: impl Fn(&ToolSpec) -> blake3::Hash) -> blake3::Hash {
        *self.search_hash.get_or_init(|| compute(self.spec()))
    }

    /// Returns the arguments of the tool that clients repeat in HTTP headers.
    ///
    /// # Errors
    /// The schema marks an argument that cannot be repeated in a header.
    pub(crate) fn header_params(&self) -> Result<&[HeaderParam], &str> {
        let mirrors = self
            .header_params
            .get_or_init(|| header_params::parse_header_params(&self.spec().input_schema));
        mirrors.as_deref().map_err(String::as_str)
    }
}

impl Catalog {
    /// Creates a catalog of `tools`.
    ///
    /// # Errors
    /// A schema does not compile, or two names are equal apart from separators.
    pub fn new(tools: Vec<Arc<dyn AnyTool>>) -> Result<Self, CatalogError> {
        Self::with_schemas(tools, Arc::default())?.check_schemas()
    }

    /// Checks that the schemas of all tools compile. Use this for tools that this server does not
    /// define itself.
    pub fn check_schemas(self) -> Result<Self, CatalogError> {
        let unusable = |tool, side: ToolSchemaDirection, why| CatalogError::Schema {
            tool,
            which: side.word(),
            why,
        };
        let checked = self.schemas.check_all();
        checked.map_err(|(tool, side, why)| unusable(tool, side, why.to_string()))?;
        for entry in &self.entries {
            let unusable = |why: &str| {
                unusable(entry.spec().id.clone(), ToolSchemaDirection::Input, why.into())
            };
            entry.header_params().map_err(unusable)?;
        }
        Ok(self)
    }

    /// Creates a catalog of `tools` whose validators of inputs and outputs are kept in `schemas`.
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
        let index = OnceLock::new();
        Self { entries, by_folded_name: HashMap::default(), unserved, schemas, index }
    }

    /// Returns a catalog with `tools` in place of those that `owner` offered before, and the tools
    /// that became unavailable.
    ///
    /// If names are equal apart from separators, this server's own tool is served. If several other
    /// owners offer the name, no tool is served, because a caller could reach the wrong one.
    fn with_owner_tools(
        &self,
        owner: &str,
        tools: Vec<Arc<dyn AnyTool>>,
    ) -> (Self, Vec<RejectedTool>) {
        let mut offered = self.offers();
        offered.retain(|(other, _)| **other != *owner);
        let owner: Arc<str> = owner.into();
        offered.extend(tools.into_iter().map(|tool| (owner.clone(), tool)));
        self.with_offers(offered, self)
    }

    /// Returns the tools that owners other than this server offer, served or not, with their
    /// owners.
    fn offers(&self) -> Vec<(Arc<str>, Arc<dyn AnyTool>)> {
        let served = self.entries.iter().filter_map(|entry| {
            entry.owner.as_ref().map(|owner| (owner.clone(), entry.tool.clone()))
        });
        self.unserved.iter().cloned().chain(served).collect()
    }

    /// Returns a catalog with this server's own tools and those `offered` by other owners, and the
    /// tools that became unavailable since the catalog `before`.
    fn with_offers(
        &self,
        mut offered: Vec<(Arc<str>, Arc<dyn AnyTool>)>,
        before: &Self,
    ) -> (Self, Vec<RejectedTool>) {
        let mut catalog = Self::empty(self.schemas.clone());
        let own = self.entries.iter().filter(|entry| entry.owner.is_none());
        own.for_each(|entry| catalog.insert(entry.clone()));
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
            let same = before.entry(&id).filter(|it| Arc::ptr_eq(&it.tool, &tool));
            let same = same.filter(|_| !unusable.contains(&folded));
            let put = match same {
                _ if !alike.is_empty() => Err(CatalogError::Ambiguous { owners: alike }),
                Some(entry) => catalog.check_name_free(&id).map(|()| catalog.insert(entry)),
                None => catalog.add(tool.clone(), Some(owner.clone())),
            };
            let Err(why) = put else { continue };
            let known = before.unserved.iter().any(|(_, it)| Arc::ptr_eq(it, &tool));
            catalog.unserved.push((owner.clone(), tool));
            if matches!(why, CatalogError::Schema { .. }) {
                unusable.insert(folded);
            }
            if known {
                continue;
            }
            refused.push(RejectedTool { owner, tool: id, reason: why });
        }
        let gone = before.entries.iter().map(|entry| &entry.spec().id);
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

    /// Returns the ids of all tools in the catalog, in order.
    pub fn ids(&self) -> Vec<ToolId> {
        self.entries.iter().map(|entry| entry.spec().id.clone()).collect()
    }

    /// Returns true if one of this server's own tools is in `toolset`.
    pub(crate) fn owns_toolset(&self, toolset: &str) -> bool {
        let mut own = self.entries.iter().filter(|entry| entry.owner.is_none());
        own.any(|entry| entry.spec().id.toolset() == toolset)
    }

    /// Returns the tool with the id `id`, if it is available.
    pub(crate) fn entry(&self, id: &ToolId) -> Option<Arc<CatalogToolEntry>> {
        let at = self.entries.binary_search_by(|entry| entry.spec().id.cmp(id)).ok()?;
        Some(self.entries[at].clone())
    }

    /// Returns the specs of all tools in the catalog.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.entries.iter().map(|entry| entry.spec())
    }

    /// Returns each tool's spec, with the name of the queue in which the tool's jobs wait in a
    /// shared job store.
    pub(crate) fn job_lanes(&self) -> impl Iterator<Item = (&ToolSpec, &str)> {
        self.entries.iter().map(|entry| (entry.spec(), entry.job_lane()))
    }

    /// Returns the specs of the tools that this server itself offers.
    pub(crate) fn own_specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.entries.iter().filter(|entry| entry.owner.is_none()).map(|entry| entry.spec())
    }

    /// Returns the specs of the tools that `owner` offers.
    pub(crate) fn specs_of(&self, owner: &str) -> impl Iterator<Item = &ToolSpec> {
        let owned = self.entries.iter().filter(move |entry| entry.owner.as_deref() == Some(owner));
        owned.map(|entry| entry.spec())
    }

    /// Checks that no tool has the name `id`, apart from separators such as `.` and `_`.
    ///
    /// # Errors
    /// A tool has this name.
    fn check_name_free(&self, id: &ToolId) -> Result<(), CatalogError> {
        match self.by_folded_name.get(&*fold_name(id.as_str())) {
            None => Ok(()),
            Some(&at) => {
                let first = self.entries[at].spec().id.clone();
                Err(CatalogError::NameClash { first, second: id.clone() })
            }
        }
    }

    fn insert(&mut self, entry: Arc<CatalogToolEntry>) {
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
        let entry = CatalogToolEntry {
            tool,
            owner,
            io,
            header_params: OnceLock::new(),
            listed_tokens: OnceLock::new(),
            job_lane: OnceLock::new(),
            search_hash: OnceLock::new(),
        };
        // An invalid schema of an upstream must fail here. It is compiled at the first call,
        // because that may take long.
        if entry.owner.is_some() {
            let checked = SchemaRegistry::check_tool(&entry.io);
            checked.map_err(|(side, why)| unusable(side.word(), why))?;
        }
        // Schemas derived from Rust types are built lazily and checked when first used.
        if entry.spec().input_schema.is_generated() {
            entry
                .header_params()
                .map_err(|why| unusable(ToolSchemaDirection::Input.word(), why.to_owned()))?;
        }
        self.insert(Arc::new(entry));
        Ok(())
    }

    /// Returns the tool whose name in any spelling is `name`, if the filter `shown` accepts it.
    /// Otherwise, returns the error for an unknown tool.
    pub(crate) fn find(
        &self,
        name: &str,
        shown: impl Fn(&ToolSpec) -> bool,
    ) -> Result<Arc<CatalogToolEntry>, CallError> {
        self.find_visible(name, |spec| {
            if shown(spec) { ToolVisibility::Shown } else { ToolVisibility::Hidden }
        })
    }

    /// Returns true if there is a tool with the name `name` in any spelling that the filter `shown`
    /// accepts.
    pub(crate) fn has_visible(&self, name: &str, shown: impl Fn(&ToolSpec) -> bool) -> bool {
        self.find_named(name).is_some_and(|entry| shown(entry.spec()))
    }

    /// Returns the tool with the name `name` in any spelling, even if it is hidden from some
    /// callers.
    pub(crate) fn find_named(&self, name: &str) -> Option<&Arc<CatalogToolEntry>> {
        self.by_folded_name.get(&*fold_name(name)).map(|&at| &self.entries[at])
    }

    /// Returns the tool whose name in any spelling is `name`, if the caller may see it. A hidden
    /// tool counts as unknown.
    pub(crate) fn find_visible(
        &self,
        name: &str,
        visibility: impl Fn(&ToolSpec) -> ToolVisibility,
    ) -> Result<Arc<CatalogToolEntry>, CallError> {
        let found = self.find_named(name).map(|entry| (entry, visibility(entry.spec())));
        let unavailable = match found {
            Some((entry, ToolVisibility::Shown)) => return Ok(entry.clone()),
            Some((_, ToolVisibility::Unavailable(why))) => Some(why),
            Some((_, ToolVisibility::Hidden)) | None => None,
        };
        let nearest = match unavailable {
            Some(_) => None,
            None => self.nearest_name(name, visibility),
        };
        let name = name.chars().take(NAME_CHARS_MAX).collect();
        Err(CallError::UnknownTool { name, nearest, unavailable })
    }

    /// Returns up to `size` tools that follow the id `after` and that the filter `shown` accepts.
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
        ToolPage { tools, next, unchanged_for: None }
    }

    /// Returns the id of the visible tool that the unknown `name` probably means.
    fn nearest_name(
        &self,
        name: &str,
        visibility: impl Fn(&ToolSpec) -> ToolVisibility,
    ) -> Option<String> {
        // Comparing takes time in proportion to the name's length, which the client chooses.
        if name.len() > NAME_CHARS_MAX {
            return None;
        }
        let close = self.specs().map(|spec| (name_similarity(name, &spec.id), spec));
        let close = close.filter(|(similarity, _)| *similarity >= 0.6);
        let known = close.filter_map(|(similarity, spec)| match visibility(spec) {
            ToolVisibility::Shown => Some((similarity, Some(&spec.id))),
            // If an unavailable tool was meant, no other tool does the same job.
            ToolVisibility::Unavailable(_) => Some((similarity, None)),
            ToolVisibility::Hidden => None,
        });
        known.max_by(|a, b| a.0.total_cmp(&b.0))?.1.map(ToString::to_string)
    }
}

/// Returns how similar `name` is to the name of a tool, from 0 to 1.
///
/// The function compares letters, and words in any order, so that `read_file` is similar to
/// `files.read`. A tool with a different verb does a different job, so `files_write` is not similar
/// to `files.tree`.
fn name_similarity(name: &str, id: &ToolId) -> f64 {
    let name = fold_name(name).to_lowercase();
    let id = fold_name(id.as_str());
    let words = |text: &str| -> Vec<String> {
        text.split('_').map(|word| word.trim_end_matches('s').to_owned()).collect()
    };
    let asked = words(&name);
    let known = words(&id);
    let letters = strsim::normalized_damerau_levenshtein(&name, &id);
    if asked.iter().all(|word| known.contains(word)) {
        return letters.max(0.7);
    }
    let is_misspelled = |word: &String| known.iter().any(|other| is_misspelling(word, other));
    // A single word may be the whole name without its separators.
    if asked.len() == 1 || asked.iter().all(is_misspelled) { letters } else { 0.0 }
}

/// Returns true if `word` is probably a misspelling of `known`.
fn is_misspelling(word: &str, known: &str) -> bool {
    strsim::damerau_levenshtein(word, known) <= 1
        || strsim::normalized_damerau_levenshtein(word, known) >= 0.65
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use toolgate_contract::{Caller, Effects, ToolContext, ToolError, ToolFuture, ToolOutput};

    use super::*;
    use crate::policy::{PolicyEffect, PolicyRule, ToolPolicy};

    /// A tool that only appears in lists and cannot be called.
    struct ListOnlyTool(ToolSpec);

    impl AnyTool for ListOnlyTool {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }

        fn run<'a>(&'a self, _: &'a ToolContext, _: Value) -> ToolFuture<'a, ToolOutput> {
            Box::pin(async { Err(ToolError::failed("it is only listed")) })
        }
    }

    fn catalog() -> Catalog {
        let tool = |(id, effects): (&str, Effects)| -> Arc<dyn AnyTool> {
            let id = ToolId::new(id).expect("an id");
            Arc::new(ListOnlyTool(ToolSpec::new(id, "title", "about", effects)))
        };
        let tools = [
            ("exec.run", Effects::Runs),
            ("files.edit", Effects::Changes),
            ("files.exists", Effects::Reads),
            ("files.read", Effects::Reads),
            ("files.tree", Effects::Reads),
            ("files.write", Effects::Changes),
        ];
        Catalog::new(tools.map(tool).to_vec()).expect("a catalog")
    }

    fn policy(deny: &[&str], effects_max: Effects, rules: &[PolicyRule]) -> ToolPolicy {
        let deny: Vec<_> = deny.iter().map(|pattern| (*pattern).to_owned()).collect();
        let policy = ToolPolicy::new(&["*".to_owned()], &deny, effects_max).expect("patterns");
        policy.with_rules(rules, PolicyEffect::Allow).expect("rules")
    }

    fn deny_rule(tool: &str, message: Option<&str>) -> PolicyRule {
        PolicyRule {
            name: "r".to_owned(),
            effect: PolicyEffect::Deny,
            callers: vec!["ada".to_owned()],
            roles: Vec::new(),
            tools: vec![tool.to_owned()],
            effects: Vec::new(),
            when: None,
            message: message.map(str::to_owned),
        }
    }

    /// Checks the error that the caller `ada` receives under `policy` for each tool name.
    /// `expected` has pairs of name and error.
    #[track_caller]
    fn check(policy: &ToolPolicy, expected: &[(&str, &str)]) {
        let caller = Caller::with_key("ada");
        for (name, expected) in expected {
            let found = catalog().find_visible(name, |spec| policy.visibility(&caller, spec));
            let why = found.map(|entry| entry.spec().id.to_string()).expect_err(name);
            assert_eq!(why.to_string(), *expected);
        }
    }

    #[test]
    fn a_tool_that_the_settings_switch_off_is_unavailable_with_the_reason() {
        let expected = [
            ("files_write", "`files_write` is not available: this server is read-only"),
            ("exec/run", "`exec/run` is not available: this server is read-only"),
        ];
        check(&policy(&[], Effects::Reads, &[]), &expected);
        let expected = "`exec_run` is not available: it needs the effect `runs`, but `tools.effects` is `changes`";
        check(&policy(&[], Effects::Changes, &[]), &[("exec_run", expected)]);
        let expected = "`exec_run` is not available: the rule `tools.deny: exec.*` denies the tool";
        check(&policy(&["exec.*"], Effects::Runs, &[]), &[("exec_run", expected)]);
        let allow = ["files.*".to_owned()];
        let policy = ToolPolicy::new(&allow, &[], Effects::Runs).expect("patterns");
        let expected = "`exec_run` is not available: `tools.allow` does not include the tool";
        check(&policy, &[("exec_run", expected)]);
    }

    #[test]
    fn a_tool_that_a_policy_rule_hides_is_unknown_unless_the_rule_has_a_message() {
        let unknown = ("exec_run", "no tool is named `exec_run`");
        let rules = [deny_rule("exec.*", None)];
        check(&policy(&[], Effects::Runs, &rules), &[unknown]);
        // The reason would reveal that the hidden tool exists.
        check(&policy(&[], Effects::Reads, &rules), &[unknown]);
        let rules = [deny_rule("exec.*", Some("ask the operators"))];
        let expected = "`exec_run` is not available: ask the operators";
        check(&policy(&[], Effects::Runs, &rules), &[("exec_run", expected)]);
    }

    #[test]
    fn a_suggestion_does_the_same_job_as_the_misspelled_tool() {
        let expected = [
            ("files_raed", "no tool is named `files_raed`; did you mean `files.read`?"),
            ("read_file", "no tool is named `read_file`; did you mean `files.read`?"),
            ("files_wrote", "no tool is named `files_wrote`; did you mean `files.write`?"),
            ("files_chown", "no tool is named `files_chown`"),
        ];
        check(&policy(&[], Effects::Runs, &[]), &expected);
        // Only reading tools are left, and none of them does the same job.
        let unavailable = [
            ("files_wrtie", "no tool is named `files_wrtie`"),
            ("exec_rum", "no tool is named `exec_rum`"),
        ];
        check(&policy(&[], Effects::Reads, &[]), &unavailable);
        let hidden = [
            ("files_write", "no tool is named `files_write`"),
            ("files_edit", "no tool is named `files_edit`"),
        ];
        let rules = [deny_rule("files.[ew][dr]i*", None)];
        check(&policy(&[], Effects::Runs, &rules), &hidden);
    }
}
