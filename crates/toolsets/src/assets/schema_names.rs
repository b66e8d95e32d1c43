//! Finds the name of the schema for an example.

use std::path::Path;

use serde_json::Value;

/// Alternative name of the schema [`CANONICAL_SCHEMA`].
const SCHEMA_ALIAS: &str = "nested-synesthetic-asset";
/// The name of the schema for complete assets.
const CANONICAL_SCHEMA: &str = "synesthetic-asset";

/// Returns [`CANONICAL_SCHEMA`] if `name` is [`SCHEMA_ALIAS`]. Returns any other name unchanged.
pub(super) fn resolve_alias(name: &str) -> &str {
    if name == SCHEMA_ALIAS { CANONICAL_SCHEMA } else { name }
}

/// Returns the name of the schema for `example`, whose file is named `file`.
///
/// Uses the example's `schema`, then its `$schemaRef`, then the file name.
pub fn schema_of_example(example: &Value, file: &str) -> String {
    let text = |key: &str| example.get(key).and_then(Value::as_str).filter(|it| !it.is_empty());
    if let Some(schema) = text("schema") {
        return schema.to_owned();
    }
    if let Some(schema) = text("$schemaRef").and_then(schema_in_reference) {
        return schema.to_owned();
    }
    if file.starts_with("SynestheticAsset") {
        return SCHEMA_ALIAS.to_owned();
    }
    file.strip_suffix(".json").unwrap_or(file).to_owned()
}

/// Returns the name of the schema whose file is named in `reference`, a path or URL. Returns `None`
/// if `reference` does not end in `.json`.
fn schema_in_reference(reference: &str) -> Option<&str> {
    let file = Path::new(reference).file_name()?.to_str()?;
    file.strip_suffix(".schema.json").or_else(|| file.strip_suffix(".json"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_comes_from_the_example_or_else_from_its_file_name() {
        let schema = |example: Value, file: &str| schema_of_example(&example, file);
        assert_eq!(schema(json!({ "schema": "tone", "$schemaRef": "a.json" }), "b.json"), "tone");
        assert_eq!(schema(json!({ "$schemaRef": "jsonschema/a.schema.json" }), "b.json"), "a");
        assert_eq!(schema(json!({ "$schemaRef": "https://x/a.json" }), "b.json"), "a");
        assert_eq!(schema(json!({ "schema": 1, "$schemaRef": "nope://zz" }), "b.json"), "b");
        assert_eq!(schema(json!([]), "SynestheticAsset_Example1.json"), SCHEMA_ALIAS);
        assert_eq!(schema(json!({ "schema": "" }), "Haptic_Example.json"), "Haptic_Example");
    }

    #[test]
    fn the_alias_is_the_canonical_schema() {
        assert_eq!(resolve_alias(SCHEMA_ALIAS), CANONICAL_SCHEMA);
        assert_eq!(resolve_alias("tone"), "tone");
    }
}
