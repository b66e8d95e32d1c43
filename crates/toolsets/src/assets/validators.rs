//! Schemas compiled, each when it is first needed, and assets judged by them.
//!
//! A schema may refer to any other of its folder: by its `$id`, by its file, or by where the
//! project that these schemas come from publishes it. Nothing is ever looked up elsewhere.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use jsonschema::{Draft, Retrieve, Uri, Validator, uri};
use serde_json::Value;

use super::named::canonical;
use super::outcome::Wrong;
use super::{phrasing, pointer};
use crate::places;

/// Where the project's schemas are published, before their version and the file's name.
const PUBLISHED: &str = "https://schemas.synesthetic.dev/";
/// What an asset may say of its schema at its top; no schema knows it.
const REFERENCE: &str = "$schemaRef";

/// Everything that assets are validated against.
#[derive(Default)]
pub(super) struct Validators {
    by_name: BTreeMap<String, Compiled>,
    documents: Arc<Documents>,
}

/// A schema to validate against.
pub(super) struct Source {
    pub(super) name: String,
    /// Its file.
    pub(super) file: PathBuf,
    /// Its file's path in the folder of schemas.
    pub(super) inner: String,
    pub(super) document: Arc<Value>,
}

struct Compiled {
    base: String,
    document: Arc<Value>,
    validator: OnceLock<Result<Validator, String>>,
}

/// Schemas, and parts of them that have an `$id`, by their URIs.
#[derive(Clone, Default)]
pub(super) struct Documents(HashMap<String, Document>);

#[derive(Clone)]
struct Document {
    whole: Arc<Value>,
    /// Where in it the part is.
    pointer: String,
}

impl Validators {
    /// What validates against `sources`, which are published as `version`. Of two with one name the
    /// one in a `.schema.json` counts.
    pub(super) fn new(sources: Vec<Source>, version: Option<&str>) -> Self {
        let documents = Arc::new(Documents::new(&sources, version));
        let mut by_name = BTreeMap::new();
        for source in sources {
            let is_marked = source.inner.ends_with(".schema.json");
            if is_marked || !by_name.contains_key(&source.name) {
                let base = source.base();
                let Source { name, document, .. } = source;
                by_name.insert(name, Compiled { base, document, validator: OnceLock::new() });
            }
        }
        Self { by_name, documents }
    }

    /// What is wrong with `asset` by the schema `name`, in order of path and message. Before each
    /// error that is told `check` says whether to go on.
    pub(super) fn validate<E>(
        &self,
        asset: &Value,
        name: &str,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<Wrong>, E> {
        let unusable = |why: &str| {
            vec![Wrong { path: String::new(), msg: format!("schema_load_failed: {why}") }]
        };
        let Some(schema) = self.by_name.get(canonical(name)) else {
            return Ok(unusable(&format!("no schema is named `{name}`")));
        };
        let validator =
            schema.validator.get_or_init(|| self.documents.compile(&schema.document, &schema.base));
        match validator {
            Err(why) => Ok(unusable(&format!("the schema `{name}` cannot be used: {why}"))),
            Ok(validator) => {
                let asset = without_reference(asset);
                let asset = asset.as_ref();
                let mut errors = phrasing::told(validator, asset, &self.documents, check)?;
                errors.sort();
                Ok(errors)
            }
        }
    }
}

/// `asset` as it is validated.
fn without_reference(asset: &Value) -> Cow<'_, Value> {
    match asset.as_object().filter(|fields| fields.contains_key(REFERENCE)) {
        Some(fields) => {
            let rest = fields.iter().filter(|(key, _)| *key != REFERENCE);
            let rest = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
            Cow::Owned(Value::Object(rest))
        }
        None => Cow::Borrowed(asset),
    }
}

impl Source {
    /// What references in it are relative to where it has no `$id`.
    fn base(&self) -> String {
        format!("file://{}", places::in_uri(self.file.as_os_str().as_encoded_bytes()))
    }
}

impl Documents {
    fn new(sources: &[Source], version: Option<&str>) -> Self {
        let mut documents = Self::default();
        for source in sources {
            let whole = Document { whole: source.document.clone(), pointer: String::new() };
            if let Some(id) = identified(&source.document, &source.base()) {
                documents.0.entry(id).or_insert(whole);
            }
        }
        for source in sources {
            let whole = Document { whole: source.document.clone(), pointer: String::new() };
            let published = version
                .map(|version| format!("{PUBLISHED}{version}/{}", places::in_uri(&source.inner)));
            for uri in [Some(source.base()), published].into_iter().flatten() {
                documents.0.entry(uri).or_insert_with(|| whole.clone());
            }
            documents.parts(&source.document, &source.document, &mut String::new(), source.base());
        }
        documents
    }

    /// Adds the parts of `whole`, from `value` at `at` on, that have an `$id`.
    fn parts(&mut self, whole: &Arc<Value>, value: &Value, at: &mut String, base: String) {
        let base = identified(value, &base).unwrap_or(base);
        let above = at.len();
        if above > 0 && value.get("$id").is_some() {
            let part = Document { whole: whole.clone(), pointer: at.clone() };
            self.0.entry(base.clone()).or_insert(part);
        }
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    pointer::push(at, key);
                    self.parts(whole, value, at, base.clone());
                    at.truncate(above);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    pointer::push(at, &index.to_string());
                    self.parts(whole, value, at, base.clone());
                    at.truncate(above);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// What validates against `schema`, whose references are relative to `base`.
    pub(super) fn compile(
        self: &Arc<Self>,
        schema: &Value,
        base: &str,
    ) -> Result<Validator, String> {
        jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_base_uri(base)
            .with_retriever(Shelf(self.clone()))
            .should_validate_formats(false)
            .build(&in_this_draft(schema))
            .map_err(|err| err.to_string())
    }

    /// The part at `pointer` of the document known by `uri`.
    pub(super) fn part(&self, uri: &str, pointer: &str) -> Option<&Value> {
        let Document { whole, pointer: at } = self.0.get(uri)?;
        whole.pointer(at)?.pointer(pointer)
    }
}

/// Finds what a schema refers to among those that were read.
struct Shelf(Arc<Documents>);

impl Retrieve for Shelf {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn Error + Send + Sync>> {
        let found = self.0.part(uri.as_str(), "").ok_or("no schema here is known by that URI")?;
        Ok(in_this_draft(found))
    }
}

/// `schema`, to be read as 2020-12 whatever it says of itself: that is what assets are judged by.
fn in_this_draft(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.shift_remove("$schema");
    }
    schema
}

/// The URI that the `$id` of `schema` gives it, relative to `base`.
fn identified(schema: &Value, base: &str) -> Option<String> {
    let id = schema.get("$id")?.as_str()?;
    let base = Uri::parse(base).ok()?;
    let found = uri::resolve_against(&base, id).ok()?;
    Some(found.as_str().trim_end_matches('#').to_owned())
}
