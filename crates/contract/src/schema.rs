//! JSON Schemas of what tools take and give back.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema as Generated};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A JSON Schema 2020-12. One that is read off a type is made when it is first looked at: those of
/// most tools of most servers never are.
#[derive(Clone)]
pub struct Schema(Arc<Later>);

struct Later {
    made: OnceLock<Value>,
    make: fn() -> Value,
}

impl Schema {
    /// The schema of `T`, as [`schema_of`] has it.
    pub fn of<T: JsonSchema>() -> Self {
        Self::later(schema_of::<T>)
    }

    /// What `make` makes, once it is looked at.
    pub fn later(make: fn() -> Value) -> Self {
        Self(Arc::new(Later { made: OnceLock::new(), make }))
    }

    /// Whether it has been made.
    pub fn is_made(&self) -> bool {
        self.0.made.get().is_some()
    }
}

impl Deref for Schema {
    type Target = Value;

    fn deref(&self) -> &Value {
        self.0.made.get_or_init(self.0.make)
    }
}

impl From<Value> for Schema {
    fn from(schema: Value) -> Self {
        Self(Arc::new(Later { made: schema.into(), make: || Value::Null }))
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::serialize(self, serializer)
    }
}

/// Drops the formats that only Rust has, such as `uint64`: clients complain of each.
fn without_rusts_formats(schema: &mut Generated) {
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

/// The schema of `T`, whole in one object: no `$ref`, no `$schema`, no names and formats of Rust's.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
        s.transforms.push(Box::new(RecursiveTransform(without_rusts_formats)));
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description");
    }
    schema
}
