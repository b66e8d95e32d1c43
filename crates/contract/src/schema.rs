//! JSON Schemas of tool inputs and outputs.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema as Generated};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A JSON Schema 2020-12. The schema of a Rust type is generated on first use, because most schemas
/// are never used.
#[derive(Clone)]
pub struct LazySchema(Arc<LazySchemaCell>);

/// Schema and the function that generates it on first use.
struct LazySchemaCell {
    value: OnceLock<Value>,
    generate: fn() -> Value,
}

impl LazySchema {
    /// Creates the JSON Schema of `T`. See [`schema_of`].
    pub fn for_type<T: JsonSchema>() -> Self {
        Self::lazy(schema_of::<T>)
    }

    /// Creates a JSON Schema that `make` generates on first use.
    pub fn lazy(make: fn() -> Value) -> Self {
        Self(Arc::new(LazySchemaCell { value: OnceLock::new(), generate: make }))
    }

    /// Returns true if the JSON Schema has been generated.
    pub fn is_generated(&self) -> bool {
        self.0.value.get().is_some()
    }
}

impl Deref for LazySchema {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.0.value.get_or_init(self.0.generate)
    }
}

impl From<Value> for LazySchema {
    fn from(schema: Value) -> Self {
        Self(Arc::new(LazySchemaCell { value: schema.into(), generate: || Value::Null }))
    }
}

impl fmt::Debug for LazySchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl Serialize for LazySchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::serialize(self, serializer)
    }
}

/// Removes formats that only Rust has, such as `uint64`, from the JSON Schema `schema`. Clients
/// warn about these formats.
fn remove_rust_formats(schema: &mut Generated) {
    let is_rusts = |format: &Value| {
        let format = format.as_str().unwrap_or_default();
        ["uint", "int", "float", "double"].iter().any(|kind| {
            format.strip_prefix(kind).is_some_and(|bits| bits.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    if schema.get("format").is_some_and(is_rusts) {
        schema.remove("format");
    }
}

/// Returns the JSON Schema of `T` as one object, without `$ref`, `$schema`, root title or Rust
/// formats.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
        s.transforms.push(Box::new(RecursiveTransform(remove_rust_formats)));
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description");
    }
    schema
}
