//! Compiles schemas when first needed, and validates assets against them.
//!
//! A schema may refer to any other schema in its folder: by `$id`, by file, or by the URL at which
//! the project publishes it. References are never resolved elsewhere.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use jsonschema::{Draft, Retrieve, Uri, uri};
use serde_json::Value;
use toolgate_budget::{BoundedSchemaValidator, MemoryBudget, SchemaSize};

use super::outcome::AssetError;
use super::schema_names::resolve_alias;
use super::{error_messages, pointer};
use crate::uri_paths;

/// The base URL of the project's published schemas, followed by the version and the file name.
const PUBLISHED_BASE_URL: &str = "https://schemas.synesthetic.dev/";
/// The top-level key of an asset that names its schema. It is removed before validation, because no
/// schema allows it.
const SCHEMA_REFERENCE: &str = "$schemaRef";
/// The maximum memory of all compiled schemas, in bytes.
const SCHEMA_BYTES_MAX: u64 = 128 << 20;
/// The maximum estimated memory for the errors of all assets that are being validated, in bytes. An
/// asset whose errors need more memory gets a single error.
const ERRORS_BYTES_MAX: u64 = 80 << 20;

/// Validators for all schemas of a workspace, by schema name.
#[derive(Default)]
pub(super) struct AssetSchemaValidators {
    by_name: BTreeMap<String, LazyAssetValidator>,
    documents: Arc<AssetSchemaDocuments>,
}

/// A schema file that has not been compiled yet.
pub(super) struct AssetSchemaSource {
    pub(super) name: String,
    /// The absolute path of the schema's file.
    pub(super) file: PathBuf,
    /// The path of the schema's file in the folder of schemas.
    pub(super) relative_path: String,
    pub(super) document: Arc<Value>,
}

/// A schema with its validator, which is compiled when it is first needed.
struct LazyAssetValidator {
    base_uri: String,
    document: Arc<Value>,
    validator: OnceLock<Result<BoundedSchemaValidator, String>>,
}

/// All schemas by URI, for resolving references. Schema parts that have their own `$id` are also
/// listed.
#[derive(Clone)]
pub(super) struct AssetSchemaDocuments {
    parts: HashMap<String, SchemaDocumentPart>,
    /// Budget for the memory that compiled schemas use.
    memory: MemoryBudget,
    /// Budget for the estimated memory of validation errors until they are listed.
    errors_memory: MemoryBudget,
}

impl Default for AssetSchemaDocuments {
    fn default() -> Self {
        Self {
            parts: HashMap::new(),
            memory: MemoryBudget::new(SCHEMA_BYTES_MAX),
            errors_memory: MemoryBudget::new(ERRORS_BYTES_MAX),
        }
    }
}

/// A part of a schema document that has its own `$id`.
#[derive(Clone)]
struct SchemaDocumentPart {
    whole: Arc<Value>,
    /// The JSON Pointer to this part of a schema in the schema document.
    pointer: String,
}

impl AssetSchemaValidators {
    /// Creates validators for the schemas in `sources`, which are published under `version`. If two
    /// schemas have equal names, the one in a `.schema.json` file is used.
    pub(super) fn new(sources: Vec<AssetSchemaSource>, version: Option<&str>) -> Self {
        let documents = Arc::new(AssetSchemaDocuments::new(&sources, version));
        let mut by_name = BTreeMap::new();
        for source in sources {
            let is_marked = source.relative_path.ends_with(".schema.json");
            if is_marked || !by_name.contains_key(&source.name) {
                let base = source.base_uri();
                let AssetSchemaSource { name, document, .. } = source;
                by_name.insert(
                    name,
                    LazyAssetValidator { base_uri: base, document, validator: OnceLock::new() },
                );
            }
        }
        Self { by_name, documents }
    }

    /// Validates `asset` against the schema `name`, and returns the errors sorted by path and
    /// message. Calls `check` before each error, and returns the error of `check` if that fails.
    pub(super) fn validate<E>(
        &self,
        asset: &Value,
        name: &str,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<AssetError>, E> {
        let unusable = |why: &str| {
            vec![AssetError { path: String::new(), msg: format!("schema_load_failed: {why}") }]
        };
        let Some(schema) = self.by_name.get(resolve_alias(name)) else {
            return Ok(unusable(&format!("unknown schema `{name}`")));
        };
        let validator = schema
            .validator
            .get_or_init(|| self.documents.compile(&schema.document, &schema.base_uri));
        match validator {
            Err(why) => Ok(unusable(&format!("the schema `{name}` cannot be used: {why}"))),
            Ok(validator) => {
                let asset = without_reference(asset);
                let asset = asset.as_ref();
                let whole = |msg: String| vec![AssetError { path: String::new(), msg }];
                match validator.check(asset) {
                    Ok(true) => return Ok(Vec::new()),
                    Ok(false) => {}
                    Err(why) => return Ok(whole(why)),
                }
                let Some(found) = validator.errors(asset, &self.documents.errors_memory) else {
                    return Ok(whole(
                        "it does not match the schema, but is too large to list its errors; \
                         validate it in parts"
                            .to_owned(),
                    ));
                };
                let mut errors =
                    error_messages::collect_errors(found, asset, &self.documents, check)?;
                if errors.is_empty() {
                    return Ok(whole(
                        "a string in the value takes too long to match a pattern of the schema"
                            .to_owned(),
                    ));
                }
                errors.sort();
                Ok(errors)
            }
        }
    }
}

/// Returns `asset` without its top-level `$schemaRef`.
fn without_reference(asset: &Value) -> Cow<'_, Value> {
    match asset.as_object().filter(|fields| fields.contains_key(SCHEMA_REFERENCE)) {
        Some(fields) => {
            let rest = fields.iter().filter(|(key, _)| *key != SCHEMA_REFERENCE);
            let rest = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
            Cow::Owned(Value::Object(rest))
        }
        None => Cow::Borrowed(asset),
    }
}

impl AssetSchemaSource {
    /// Returns the base URI for references in this schema, which applies if the schema has no
    /// `$id`.
    fn base_uri(&self) -> String {
        format!(
            "file://{}",
            uri_paths::percent_encode_path(self.file.as_os_str().as_encoded_bytes())
        )
    }
}

impl AssetSchemaDocuments {
    fn new(sources: &[AssetSchemaSource], version: Option<&str>) -> Self {
        let mut documents = Self::default();
        for source in sources {
            let whole =
                SchemaDocumentPart { whole: source.document.clone(), pointer: String::new() };
            if let Some(id) = resolve_id(&source.document, &source.base_uri()) {
                documents.parts.entry(id).or_insert(whole);
            }
        }
        for source in sources {
            let whole =
                SchemaDocumentPart { whole: source.document.clone(), pointer: String::new() };
            let published = version.map(|version| {
                format!(
                    "{PUBLISHED_BASE_URL}{version}/{}",
                    uri_paths::percent_encode_path(&source.relative_path)
                )
            });
            for uri in [Some(source.base_uri()), published].into_iter().flatten() {
                documents.parts.entry(uri).or_insert_with(|| whole.clone());
            }
            documents.add_parts(
                &source.document,
                &source.document,
                &mut String::new(),
                source.base_uri(),
            );
        }
        documents
    }

    /// Adds `value`, and the values inside `value`, that have an `$id`. `whole` is the document
    /// that contains them, `at` is the JSON Pointer of `value`, and `base` is its base URI.
    fn add_parts(&mut self, whole: &Arc<Value>, value: &Value, at: &mut String, base: String) {
        let base = resolve_id(value, &base).unwrap_or(base);
        let above = at.len();
        if above > 0 && value.get("$id").is_some() {
            let part = SchemaDocumentPart { whole: whole.clone(), pointer: at.clone() };
            self.parts.entry(base.clone()).or_insert(part);
        }
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    pointer::push_step(at, key);
                    self.add_parts(whole, value, at, base.clone());
                    at.truncate(above);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    pointer::push_step(at, &index.to_string());
                    self.add_parts(whole, value, at, base.clone());
                    at.truncate(above);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Compiles `schema`. References in `schema` are resolved relative to `base`.
    ///
    /// # Errors
    /// Fails if the schema is invalid, or takes too much time or memory.
    pub(super) fn compile(
        self: &Arc<Self>,
        schema: &Value,
        base: &str,
    ) -> Result<BoundedSchemaValidator, String> {
        let schema = without_draft(schema);
        let documents = self
            .parts
            .iter()
            .filter_map(|(uri, part)| Some((uri.as_str(), part.whole.pointer(&part.pointer)?)));
        let size = SchemaSize::measure_among(&schema, documents)?;
        let options = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_base_uri(base)
            .with_retriever(AssetSchemaRetriever(self.clone()))
            .should_validate_formats(false);
        BoundedSchemaValidator::compile(&schema, &size, options, &self.memory)
    }

    /// Returns the value at the JSON Pointer `pointer` in the document with the URI `uri`.
    pub(super) fn part(&self, uri: &str, pointer: &str) -> Option<&Value> {
        let SchemaDocumentPart { whole, pointer: at } = self.parts.get(uri)?;
        whole.pointer(at)?.pointer(pointer)
    }
}

/// A resolver of schema references that knows only the schemas of the workspace.
struct AssetSchemaRetriever(Arc<AssetSchemaDocuments>);

impl Retrieve for AssetSchemaRetriever {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let found = self.0.part(uri.as_str(), "").ok_or("no schema of this folder has that URI")?;
        Ok(without_draft(found))
    }
}

/// Returns `schema` without `$schema`, because assets are always validated by draft 2020-12.
fn without_draft(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.shift_remove("$schema");
    }
    schema
}

/// Returns the URI from the `$id` of `schema`, resolved against `base`.
fn resolve_id(schema: &Value, base: &str) -> Option<String> {
    let id = schema.get("$id")?.as_str()?;
    let base = Uri::parse(base).ok()?;
    let found = uri::resolve_against(&base, id).ok()?;
    Some(found.as_str().trim_end_matches('#').to_owned())
}
