//! Assets as read at start. Later changes of the files are not seen.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use toolgate_contract::ToolError;

use super::Settings;
use super::outcome::Wrong;
use super::pointer::check_pointers;
use super::read::{Room, files};
use super::validators::{Source, Validators};
use crate::world::Root;
use crate::world::root::Watch;

/// The default folder of schemas, used if it exists.
const SCHEMAS: &str = "libs/synesthetic-schemas/jsonschema";
/// The default folder of examples, used if it exists.
const EXAMPLES: &str = "libs/synesthetic-schemas/examples";
/// The file that states the version of the schemas, in the parent of their folder.
const VERSION: &str = "version.json";

/// The schemas and examples of a workspace, as they were at start.
pub struct Assets {
    /// The workspace. Long work on assets runs on its worker threads.
    root: Root,
    schemas: Vec<Schema>,
    examples: Vec<Example>,
    validators: Validators,
    /// The files to serve as resources.
    pub(super) shelves: Shelves,
}

/// The text of the files of each kind, by their path in its folder. `None` if there is no folder.
#[derive(Default)]
pub(super) struct Shelves {
    pub(super) schemas: Option<BTreeMap<String, Arc<str>>>,
    pub(super) examples: Option<BTreeMap<String, Arc<str>>>,
}

/// A schema of the workspace.
pub(super) struct Schema {
    /// The path of its file in the folder of schemas, without `.schema.json` or `.json`.
    pub(super) name: String,
    /// The folder of schemas as it was configured, and the name with `.json`.
    pub(super) listed: String,
    /// The parsed schema.
    pub(super) document: Arc<Value>,
}

/// An example asset of the workspace.
pub(super) struct Example {
    /// The path of its file in the folder of examples.
    inner: String,
    /// The path of its file, starting with the folder as it was configured.
    pub(super) listed: String,
    /// The absolute path of its file.
    absolute: PathBuf,
    text: Arc<str>,
}

/// The reason why assets cannot be served.
#[derive(Debug)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// An open folder of assets.
struct Folder {
    root: Root,
    /// The path as it was configured.
    shown: String,
    /// The parent of the folder, if it may be read.
    beside: Option<Root>,
}

impl Assets {
    /// Reads the assets that `settings` name in the workspace `root`. Returns `None` if nothing is
    /// configured and the default folders do not exist.
    ///
    /// # Errors
    /// Fails if a folder from the owner's environment cannot be opened, or if a folder exceeds the
    /// limits.
    pub fn open(root: &Root, settings: &Settings) -> Result<Option<Arc<Self>>, Unusable> {
        let owner = &settings.owner;
        let schemas = folder(root, "schemas", &owner.schemas, &settings.schemas, SCHEMAS)?;
        let examples = folder(root, "examples", &owner.examples, &settings.examples, EXAMPLES)?;
        let is_named = settings.schemas.is_some() || settings.examples.is_some();
        let nothing = schemas.is_none() && examples.is_none() && settings.backend().is_none();
        if nothing && !is_named && !owner.always {
            return Ok(None);
        }
        let mut room = Room::default();
        let mut read = |folder: &Option<Folder>| match folder {
            Some(folder) => files(&folder.root, &mut room)
                .map(Some)
                .map_err(|why| Unusable(format!("the assets in `{}` {why}", folder.shown))),
            None => Ok(None),
        };
        let mut shelves = Shelves { schemas: read(&schemas)?, examples: read(&examples)? };
        // A configured folder that does not exist still has its resource template.
        if settings.schemas.is_some() {
            shelves.schemas.get_or_insert_default();
        }
        if settings.examples.is_some() {
            shelves.examples.get_or_insert_default();
        }
        let (schemas, validators) = schemas_of(schemas.as_ref(), shelves.schemas.as_ref());
        let examples = examples_of(examples.as_ref(), shelves.examples.as_ref());
        Ok(Some(Arc::new(Self { root: root.clone(), schemas, examples, validators, shelves })))
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &Schema> {
        self.schemas.iter()
    }

    pub(super) fn schema(&self, name: &str) -> Option<&Schema> {
        self.schemas.iter().find(|schema| schema.name == name)
    }

    pub(super) fn examples(&self) -> impl Iterator<Item = &Example> {
        self.examples.iter()
    }

    /// Finds the example at `path`: as listed, relative to the folder of examples, or absolute.
    pub(super) fn example(&self, path: &str) -> Option<&Example> {
        let inner = plain(path);
        self.examples.iter().find(|example| {
            example.listed == path
                || inner.as_deref() == Some(&*example.inner)
                || inner.is_some() && inner == plain(&example.listed)
                || Path::new(path) == example.absolute
        })
    }

    /// Validates `asset` against the schema `name`. Returns its errors in order of path and
    /// message.
    pub fn validate(&self, asset: &Value, name: &str) -> Vec<Wrong> {
        let Ok(wrong) = self.validators.validate(asset, name, || Ok::<(), Infallible>(()));
        wrong
    }

    /// Validates an untrusted `asset` against the schema `name`.
    ///
    /// Refuses an asset with too long pointers, and stops when `watch` ends.
    pub(super) fn judge(
        &self,
        asset: &Value,
        name: &str,
        watch: &Watch,
    ) -> Result<Vec<Wrong>, ToolError> {
        check_pointers(asset)?;
        watch.check()?;
        self.validators.validate(asset, name, || watch.check())
    }

    /// Returns the workspace root, on whose worker threads work on assets runs.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }
}

impl Schema {
    /// Returns the schema's `version` as text, or an empty text if it has none.
    pub(super) fn version(&self) -> String {
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

impl Example {
    /// Returns the file name.
    pub(super) fn file_name(&self) -> &str {
        self.inner.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the file name up to its first dot.
    pub(super) fn component(&self) -> &str {
        self.file_name().split('.').next().unwrap_or_default()
    }

    /// Parses the example.
    pub(super) fn document(&self) -> Result<Value, ToolError> {
        serde_json::from_str(&self.text)
            .map_err(|err| ToolError::because(format!("`{}` is not JSON", self.listed), err))
    }
}

/// Opens the folder of assets of one `kind`. Uses `owners` if set, then `named` from the settings,
/// then `by_default`. Logs a warning if the folder `named` cannot be opened.
fn folder(
    root: &Root,
    kind: &str,
    owners: &Option<String>,
    named: &Option<String>,
    by_default: &str,
) -> Result<Option<Folder>, Unusable> {
    if let Some(shown) = owners {
        let path = Path::new(shown);
        let root = Root::open(path)
            .map_err(|err| Unusable(format!("the folder of {kind} `{shown}`: {err}")))?;
        let beside = Root::open(&path.join("..")).ok();
        return Ok(Some(Folder { root, shown: shown.clone(), beside }));
    }
    let shown = named.as_deref().unwrap_or(by_default);
    match root.within(shown) {
        Ok(inner) => {
            let beside = root.within(&format!("{shown}/..")).ok();
            Ok(Some(Folder { root: inner, shown: shown.to_owned(), beside }))
        }
        Err(err) => {
            if named.is_some() {
                tracing::warn!("there are no assets in `{shown}`: {}", err.message);
            }
            Ok(None)
        }
    }
}

/// Parses `files` of `folder` as schemas, and prepares their validators. If two have the same name,
/// the one called `.schema.json` wins.
fn schemas_of(
    folder: Option<&Folder>,
    files: Option<&BTreeMap<String, Arc<str>>>,
) -> (Vec<Schema>, Validators) {
    let (Some(folder), Some(files)) = (folder, files) else {
        return (Vec::new(), Validators::default());
    };
    let version = folder.beside.as_ref().and_then(version);
    let mut schemas = BTreeMap::new();
    let mut sources = Vec::new();
    for (inner, text) in files {
        let Some(document @ Value::Object(_)) = serde_json::from_str(text).ok() else { continue };
        let document = Arc::new(document);
        let name = schema_name(inner);
        sources.push(Source {
            name: name.to_owned(),
            file: folder.root.path().join(inner),
            inner: inner.clone(),
            document: document.clone(),
        });
        let listed = format!("{}/{name}.json", folder.shown.trim_end_matches('/'));
        let schema = Schema { name: name.to_owned(), listed, document };
        let is_marked = inner.ends_with(".schema.json");
        if is_marked || !schemas.contains_key(name) {
            schemas.insert(name.to_owned(), schema);
        }
    }
    let validators = Validators::new(sources, version.as_deref());
    (schemas.into_values().collect(), validators)
}

/// Returns the name of the schema in the file `inner`.
pub(super) fn schema_name(inner: &str) -> &str {
    inner.strip_suffix(".schema.json").or_else(|| inner.strip_suffix(".json")).unwrap_or(inner)
}

fn examples_of(
    folder: Option<&Folder>,
    files: Option<&BTreeMap<String, Arc<str>>>,
) -> Vec<Example> {
    let (Some(folder), Some(files)) = (folder, files) else { return Vec::new() };
    let sound = files.iter().filter(|(_, text)| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let example = |(inner, text): (&String, &Arc<str>)| Example {
        inner: inner.clone(),
        listed: format!("{}/{inner}", folder.shown.trim_end_matches('/')),
        absolute: folder.root.path().join(inner),
        text: text.clone(),
    };
    sound.map(example).collect()
}

/// Returns the schema version from the version file in the folder `beside`.
fn version(beside: &Root) -> Option<String> {
    let text = super::read::text(beside, VERSION, &mut Room::default()).ok()??;
    let said: Value = serde_json::from_str(&text).ok()?;
    Some(said.get("schemaVersion")?.as_str()?.to_owned())
}

/// Returns `path` without `.` and doubled separators. `None` if it is absolute or contains `..`.
fn plain(path: &str) -> Option<String> {
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
