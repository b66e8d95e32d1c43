//! The assets, read once: what is changed after the start is not seen.

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

/// Where schemas are, unless the settings say otherwise, if it is there.
const SCHEMAS: &str = "libs/synesthetic-schemas/jsonschema";
/// Where examples are, likewise.
const EXAMPLES: &str = "libs/synesthetic-schemas/examples";
/// What says the version of the schemas in the folder beside it.
const VERSION: &str = "version.json";

/// The schemas and examples of a workspace as they were when they were read.
pub struct Assets {
    /// The workspace; work on the assets is done where it waits for the disk.
    root: Root,
    schemas: Vec<Schema>,
    examples: Vec<Example>,
    validators: Validators,
    /// What is to be read of each kind, by its name there; `None` where no folder is named.
    pub(super) shelves: Shelves,
}

/// The files of each folder by their path in it, as text.
#[derive(Default)]
pub(super) struct Shelves {
    pub(super) schemas: Option<BTreeMap<String, Arc<str>>>,
    pub(super) examples: Option<BTreeMap<String, Arc<str>>>,
}

/// A schema.
pub(super) struct Schema {
    /// Its file's path in the folder of schemas, without `.schema.json` or `.json`.
    pub(super) name: String,
    /// The folder of schemas as it was configured, and the name with `.json`.
    pub(super) listed: String,
    /// What it says.
    pub(super) document: Arc<Value>,
}

/// An example.
pub(super) struct Example {
    /// Its path in the folder of examples.
    inner: String,
    /// The same after the folder as it was configured.
    pub(super) listed: String,
    /// The same after where the folder is.
    absolute: PathBuf,
    text: Arc<str>,
}

/// Why assets cannot be served.
#[derive(Debug)]
pub struct Unusable(String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// A folder of assets, held open.
struct Folder {
    root: Root,
    /// As it was configured.
    shown: String,
    /// What is beside it, if that may be read.
    beside: Option<Root>,
}

impl Assets {
    /// Reads what `settings` name, beneath the workspace `root`; `None` where they name nothing,
    /// and nothing stands where assets are by default.
    ///
    /// # Errors
    /// When a folder that the owner's environment names is none, or there is too much in one.
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
        // A folder that is named and not there still has its place among what can be read.
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

    /// The example at `path`: as it is listed, from the folder of examples, or absolute.
    pub(super) fn example(&self, path: &str) -> Option<&Example> {
        let inner = plain(path);
        self.examples.iter().find(|example| {
            example.listed == path
                || inner.as_deref() == Some(&*example.inner)
                || inner.is_some() && inner == plain(&example.listed)
                || Path::new(path) == example.absolute
        })
    }

    /// What is wrong with `asset` by the schema `name`, in order of path and message.
    pub fn validate(&self, asset: &Value, name: &str) -> Vec<Wrong> {
        let Ok(wrong) = self.validators.validate(asset, name, || Ok::<(), Infallible>(()));
        wrong
    }

    /// The same of an asset that anybody may have sent, for as long as `watch` lasts.
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

    /// What work on the assets is done by.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }
}

impl Schema {
    /// Its own `version`, as text.
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
    /// Its file's name.
    pub(super) fn file_name(&self) -> &str {
        self.inner.rsplit('/').next().unwrap_or_default()
    }

    /// Its file's name up to the first dot.
    pub(super) fn component(&self) -> &str {
        self.file_name().split('.').next().unwrap_or_default()
    }

    /// What it says.
    pub(super) fn document(&self) -> Result<Value, ToolError> {
        serde_json::from_str(&self.text)
            .map_err(|err| ToolError::because(format!("`{}` is not JSON", self.listed), err))
    }
}

/// The folder of assets of one `kind`: the owner's, else the one `named` in the settings, else the
/// one where they are `by_default`. The log is told of one that is named and cannot be opened.
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

/// The schemas in `folder`, whose files are `files`, and what validates against them. Of two with
/// one name the one called `.schema.json` counts.
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

/// What a schema in the file `inner` is called.
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

/// The version of the schemas in a folder that `VERSION` stands beside.
fn version(beside: &Root) -> Option<String> {
    let text = super::read::text(beside, VERSION, &mut Room::default()).ok()??;
    let said: Value = serde_json::from_str(&text).ok()?;
    Some(said.get("schemaVersion")?.as_str()?.to_owned())
}

/// `path` without `.` and doubled separators; `None` if it goes up or begins at the root.
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
