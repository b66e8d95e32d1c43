//! Snapshot of the schemas and examples of a workspace. Changes of the files after they were read
//! have no effect on the snapshot.
//!
//! The files are read when a tool first needs them, so that a server starts without reading them. A
//! server for Synesthetic reads them at start, as the Synesthetic contract demands.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use toolgate_budget::{BlockingWorkPool, WorkPoolError, run_until};
use toolgate_contract::{
    ToolContext, ToolError, ToolErrorKind, exact_json, has_json_values_at_most,
};

use super::AssetSettings;
use super::outcome::AssetError;
use super::pointer::check_pointers;
use super::read::{AssetReadBudget, read_files};
use super::settings::{EXAMPLES_FOLDER_DEFAULT, SCHEMAS_FOLDER_DEFAULT};
use super::validators::{AssetSchemaSource, AssetSchemaValidators};
use toolgate_world::Root;
use toolgate_world::root::DiskWorkMonitor;

/// The file that states the version of the schemas. It is in the parent of the folder of schemas.
const VERSION_FILE: &str = "version.json";
/// The maximum time for matching the texts of one untrusted asset against the regular expressions
/// in a schema.
const PATTERN_TIME_MAX: Duration = Duration::from_secs(10);
/// An input with more JSON values than this is processed as a large asset, by a separate thread
/// pool.
const LARGE_VALUES_MIN: u64 = 100_000;
/// The maximum time that a large asset waits for a free thread, and also the maximum time to
/// process it.
const LARGE_WORK_TIME_MAX: Duration = Duration::from_secs(20);

/// Snapshot of the schemas and examples of a workspace. Later changes of the files have no effect
/// on it.
pub struct AssetSnapshot {
    /// The workspace root, whose blocking threads process all assets that are not large.
    root: Root,
    folders: AssetFolders,
    content: OnceLock<AssetContent>,
    /// The thread pool that processes large assets.
    large_work: BlockingWorkPool,
}

/// The open folders of schemas and of examples. `None` if there is no folder.
struct AssetFolders {
    schemas: Option<AssetFolder>,
    examples: Option<AssetFolder>,
    /// True if schemas are offered as resources, even if their folder does not exist.
    offers_schemas: bool,
    /// True if examples are offered as resources, even if their folder does not exist.
    offers_examples: bool,
}

/// The schemas and examples that were read from their folders.
struct AssetContent {
    schemas: Vec<AssetSchema>,
    examples: Vec<AssetExample>,
    validators: AssetSchemaValidators,
    files: AssetFiles,
}

/// The text of all schema and example files, by their path in the folder of schemas or examples.
pub(super) struct AssetFiles {
    pub(super) schemas: BTreeMap<String, Arc<str>>,
    pub(super) examples: BTreeMap<String, Arc<str>>,
}

/// A schema that a workspace offers for validation.
pub(super) struct AssetSchema {
    /// The path of the schema's file in the folder of schemas, without `.schema.json` or `.json`.
    pub(super) name: String,
    /// The path that `assets.list_schemas` shows: the folder of schemas as it was configured, and
    /// the name with `.json`.
    pub(super) listed_path: String,
    /// The schema's file, parsed as JSON.
    pub(super) document: Arc<Value>,
}

/// An example asset of the workspace.
pub(super) struct AssetExample {
    /// The path of the example's file, relative to the folder of examples.
    relative_path: String,
    /// The path of the example's file, starting with the folder as it was configured.
    pub(super) listed_path: String,
    /// The absolute path of the example's file.
    absolute_path: PathBuf,
    text: Arc<str>,
}

/// The reason why assets cannot be served.
#[derive(Debug)]
pub struct AssetLoadError(String);

impl fmt::Display for AssetLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AssetLoadError {}

/// An open folder of schemas or examples.
struct AssetFolder {
    root: Root,
    /// The path of the folder, as written in the settings or the environment.
    configured_path: String,
    /// The parent of the folder, which contains the version file. `None` if the parent may not be
    /// read.
    parent: Option<Root>,
}

impl AssetSnapshot {
    /// Opens the folders of assets that `settings` name in the workspace `root`. Returns `None` if
    /// nothing is configured and the default folders do not exist.
    ///
    /// # Errors
    /// Fails if a folder from the owner's environment cannot be opened.
    pub fn open(
        root: &Root,
        settings: &AssetSettings,
    ) -> Result<Option<Arc<Self>>, AssetLoadError> {
        let owner = &settings.owner;
        let schemas = open_folder(
            root,
            "schemas",
            &owner.schemas,
            &settings.schemas,
            SCHEMAS_FOLDER_DEFAULT,
        )?;
        let examples = open_folder(
            root,
            "examples",
            &owner.examples,
            &settings.examples,
            EXAMPLES_FOLDER_DEFAULT,
        )?;
        let is_named = settings.schemas.is_some() || settings.examples.is_some();
        let nothing = schemas.is_none() && examples.is_none() && settings.backend().is_none();
        if nothing && !is_named && !owner.always_offered {
            return Ok(None);
        }
        // A configured folder that does not exist still has its resource template.
        let folders = AssetFolders {
            offers_schemas: schemas.is_some() || settings.schemas.is_some(),
            offers_examples: examples.is_some() || settings.examples.is_some(),
            schemas,
            examples,
        };
        let large_work = BlockingWorkPool::for_large_work(LARGE_WORK_TIME_MAX);
        let snapshot = Self { root: root.clone(), folders, content: OnceLock::new(), large_work };
        if owner.always_offered {
            snapshot.content();
        }
        Ok(Some(Arc::new(snapshot)))
    }

    /// Reads the assets on a blocking thread, unless they are already loaded.
    pub(super) async fn load(self: &Arc<Self>, ctx: &ToolContext) -> Result<(), ToolError> {
        if self.content.get().is_some() {
            return Ok(());
        }
        let this = self.clone();
        let read = move |_: &Root, _: &DiskWorkMonitor| {
            this.content();
            Ok(())
        };
        self.root.run_blocking(ctx, read).await
    }

    fn content(&self) -> &AssetContent {
        self.content.get_or_init(|| self.folders.read())
    }

    /// Returns true if schemas are offered as resources.
    pub(super) fn offers_schemas(&self) -> bool {
        self.folders.offers_schemas
    }

    /// Returns true if examples are offered as resources.
    pub(super) fn offers_examples(&self) -> bool {
        self.folders.offers_examples
    }

    /// Returns the asset files to serve as resources.
    pub(super) fn files(&self) -> &AssetFiles {
        &self.content().files
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &AssetSchema> {
        self.content().schemas.iter()
    }

    pub(super) fn schema(&self, name: &str) -> Option<&AssetSchema> {
        self.content().schemas.iter().find(|schema| schema.name == name)
    }

    pub(super) fn examples(&self) -> impl Iterator<Item = &AssetExample> {
        self.content().examples.iter()
    }

    /// Finds the example at `path`: as listed, relative to the folder of examples, or absolute.
    pub(super) fn example(&self, path: &str) -> Option<&AssetExample> {
        let inner = normalize_path(path);
        self.content().examples.iter().find(|example| {
            example.listed_path == path
                || inner.as_deref() == Some(&*example.relative_path)
                || inner.is_some() && inner == normalize_path(&example.listed_path)
                || Path::new(path) == example.absolute_path
        })
    }

    /// Validates `asset` against the schema `name`. Returns the errors sorted by path and message.
    pub fn validate(&self, asset: &Value, name: &str) -> Vec<AssetError> {
        let Ok(errors) =
            self.content().validators.validate(asset, name, || Ok::<(), Infallible>(()));
        errors
    }

    /// Validates an untrusted `asset` against the schema `name`. Returns the errors sorted by path
    /// and message.
    ///
    /// Refuses an asset if the JSON Pointers to its values are too long in total, and stops when
    /// `watch` reports that the call has ended. If matching texts with patterns takes more than 10
    /// s, the remaining texts count as not matching.
    pub(super) fn validate_untrusted(
        &self,
        asset: &Value,
        name: &str,
        watch: &DiskWorkMonitor,
    ) -> Result<Vec<AssetError>, ToolError> {
        check_pointers(asset)?;
        watch.check_cancelled()?;
        let validators = &self.content().validators;
        run_until(Instant::now() + PATTERN_TIME_MAX, || {
            validators.validate(asset, name, || watch.check_cancelled())
        })
    }

    /// Runs `work` on the assets `values` in a blocking thread. If the assets are large in total,
    /// `work` waits for a free thread of the low-priority pool for large assets.
    pub(super) async fn run_work<V: AsRef<[Value]> + Send + 'static, T: Send + 'static>(
        &self,
        ctx: &ToolContext,
        values: V,
        work: impl FnOnce(V, &DiskWorkMonitor) -> Result<T, ToolError> + Send + 'static,
    ) -> Result<T, ToolError> {
        if !are_large(values.as_ref()) {
            return self.root.run_blocking(ctx, move |_, watch| work(values, watch)).await;
        }
        let watch = DiskWorkMonitor::silent(ctx.cancel.clone());
        let done =
            ctx.run_unless_canceled(self.large_work.run(move || work(values, &watch))).await?;
        done.unwrap_or_else(|refusal| Err(large_work_refusal(refusal)))
    }

    /// Returns the workspace root, on whose blocking threads assets are processed.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }
}

/// Returns true if `values` contain more than [`LARGE_VALUES_MIN`] JSON values in total.
fn are_large(values: &[Value]) -> bool {
    let left = &mut { LARGE_VALUES_MIN };
    !values.iter().all(|value| has_json_values_at_most(value, left))
}

/// Converts an error of the thread pool for large assets to an error for the caller.
fn large_work_refusal(refusal: WorkPoolError) -> ToolError {
    match refusal {
        WorkPoolError::Busy => ToolError::new(
            ToolErrorKind::Unavailable,
            "too many other large assets are being processed; try again later",
        ),
        WorkPoolError::TimedOut => {
            let seconds = LARGE_WORK_TIME_MAX.as_secs();
            let message =
                format!("the asset takes more than {seconds} s to process; send it in parts");
            ToolError::new(ToolErrorKind::TooLarge, message)
        }
    }
}

impl AssetFolders {
    /// Reads all schemas and examples. A folder that cannot be read counts as empty.
    fn read(&self) -> AssetContent {
        let mut room = AssetReadBudget::default();
        let mut read = |folder: &Option<AssetFolder>| {
            let Some(folder) = folder else { return BTreeMap::new() };
            let shown = &folder.configured_path;
            read_files(&folder.root, shown, &mut room).unwrap_or_else(|why| {
                tracing::error!("the assets in `{shown}` {why}");
                BTreeMap::new()
            })
        };
        let files = AssetFiles { schemas: read(&self.schemas), examples: read(&self.examples) };
        let (schemas, validators) = parse_schemas(self.schemas.as_ref(), &files.schemas);
        let examples = parse_examples(self.examples.as_ref(), &files.examples);
        AssetContent { schemas, examples, validators, files }
    }
}

impl AssetSchema {
    /// Returns the `version` field of the schema as text, or an empty text if there is none.
    pub(super) fn read_version(&self) -> String {
        match self.document.get("version") {
            Some(Value::String(version)) => version.clone(),
            None | Some(Value::Null) => String::new(),
            Some(version) => version.to_string(),
        }
    }

    pub(super) fn fields(&self) -> Map<String, Value> {
        self.document.as_object().cloned().unwrap_or_default()
    }
}

impl AssetExample {
    /// Returns the example's file name.
    pub(super) fn file_name(&self) -> &str {
        self.relative_path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the example's file name up to its first dot.
    pub(super) fn component(&self) -> &str {
        self.file_name().split('.').next().unwrap_or_default()
    }

    /// Parses the text of the example.
    pub(super) fn document(&self) -> Result<Value, ToolError> {
        exact_json::parse(&self.text).map_err(|err| {
            ToolError::with_cause(format!("`{}` is not JSON", self.listed_path), err)
        })
    }
}

/// Opens the folder of assets of one `kind`. Uses `owners` from the owner's environment if set,
/// then `named` from the settings, then `by_default`. Logs a warning if the folder `named` cannot
/// be opened.
fn open_folder(
    root: &Root,
    kind: &str,
    owners: &Option<String>,
    named: &Option<String>,
    by_default: &str,
) -> Result<Option<AssetFolder>, AssetLoadError> {
    if let Some(shown) = owners {
        let path = Path::new(shown);
        let root = Root::open(path)
            .map_err(|err| AssetLoadError(format!("the folder of {kind} `{shown}`: {err}")))?;
        let parent = Root::open(&path.join("..")).ok();
        return Ok(Some(AssetFolder { root, configured_path: shown.clone(), parent }));
    }
    let shown = named.as_deref().unwrap_or(by_default);
    match root.open_sub_root(shown) {
        Ok(inner) => {
            let parent = root.open_sub_root(&format!("{shown}/..")).ok();
            Ok(Some(AssetFolder { root: inner, configured_path: shown.to_owned(), parent }))
        }
        Err(err) => {
            if named.is_some() {
                tracing::warn!("the folder of {kind} `{shown}` cannot be opened: {}", err.message);
            }
            Ok(None)
        }
    }
}

/// Parses `files` of `folder` as schemas, and prepares their validators. If two files define
/// schemas of equal names, the file that ends in `.schema.json` is used.
fn parse_schemas(
    folder: Option<&AssetFolder>,
    files: &BTreeMap<String, Arc<str>>,
) -> (Vec<AssetSchema>, AssetSchemaValidators) {
    let Some(folder) = folder else { return (Vec::new(), AssetSchemaValidators::default()) };
    let version = folder.parent.as_ref().and_then(version);
    let mut schemas = BTreeMap::new();
    let mut sources = Vec::new();
    for (inner, text) in files {
        let Some(document @ Value::Object(_)) = exact_json::parse(text).ok() else { continue };
        let document = Arc::new(document);
        let name = schema_name(inner);
        sources.push(AssetSchemaSource {
            name: name.to_owned(),
            file: folder.root.path().join(inner),
            relative_path: inner.clone(),
            document: document.clone(),
        });
        let listed = format!("{}/{name}.json", folder.configured_path.trim_end_matches('/'));
        let schema = AssetSchema { name: name.to_owned(), listed_path: listed, document };
        let is_marked = inner.ends_with(".schema.json");
        if is_marked || !schemas.contains_key(name) {
            schemas.insert(name.to_owned(), schema);
        }
    }
    let validators = AssetSchemaValidators::new(sources, version.as_deref());
    (schemas.into_values().collect(), validators)
}

/// Returns the name of the schema in the file at the path `inner`: the path without `.schema.json`
/// or `.json`.
pub(super) fn schema_name(inner: &str) -> &str {
    inner.strip_suffix(".schema.json").or_else(|| inner.strip_suffix(".json")).unwrap_or(inner)
}

fn parse_examples(
    folder: Option<&AssetFolder>,
    files: &BTreeMap<String, Arc<str>>,
) -> Vec<AssetExample> {
    let Some(folder) = folder else { return Vec::new() };
    let valid = files.iter().filter(|(_, text)| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let example = |(inner, text): (&String, &Arc<str>)| AssetExample {
        relative_path: inner.clone(),
        listed_path: format!("{}/{inner}", folder.configured_path.trim_end_matches('/')),
        absolute_path: folder.root.path().join(inner),
        text: text.clone(),
    };
    valid.map(example).collect()
}

/// Returns the version of the schemas from the file `version.json` in the folder `parent`.
fn version(parent: &Root) -> Option<String> {
    let text =
        super::read::read_text(parent, VERSION_FILE, &mut AssetReadBudget::default()).ok()??;
    let content: Value = serde_json::from_str(&text).ok()?;
    Some(content.get("schemaVersion")?.as_str()?.to_owned())
}

/// Returns `path` without `.` components and doubled separators. Returns `None` if `path` is
/// absolute or contains `..`.
fn normalize_path(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}
