//! Compiles a schema, and checks before that whether the schema is valid.

use jsonschema::Draft;
use serde_json::Value;
use toolgate_budget::{BoundedSchemaValidator, MemoryBudget, SchemaSize};

use crate::schema_errors;

/// Checks that `schema` is valid in the JSON Schema draft that it declares, without compiling the
/// schema.
///
/// # Errors
/// Describes the first invalid part.
pub(super) fn check_form(schema: &Value) -> Result<(), String> {
    use jsonschema::{draft4, draft6, draft7, draft201909, draft202012};
    let checked = match Draft::Unknown.detect(schema) {
        Draft::Draft4 => draft4::meta::validate(schema),
        Draft::Draft6 => draft6::meta::validate(schema),
        Draft::Draft7 => draft7::meta::validate(schema),
        Draft::Draft201909 => draft201909::meta::validate(schema),
        // Older servers often omit the draft and mean draft 7.
        Draft::Unknown => draft202012::meta::validate(schema)
            .or_else(|why| draft7::meta::validate(schema).map_err(|_| why)),
        _ => draft202012::meta::validate(schema),
    };
    checked.map_err(|why| schema_errors::shorten_middle(&why.to_string()))
}

/// Compiles `schema` according to the JSON Schema draft that it declares, or to 2020-12. Reserves
/// the memory of the compiled schema from `account`.
///
/// # Errors
/// The schema is invalid, refers to another schema, or would take too much time or memory.
pub(super) fn compile(
    schema: &Value,
    account: &MemoryBudget,
) -> Result<BoundedSchemaValidator, String> {
    let size = SchemaSize::measure(schema)?;
    let compile_as = |draft| {
        let options = jsonschema::options().with_draft(draft).offline();
        BoundedSchemaValidator::compile(schema, &size, options, account)
    };
    match Draft::Unknown.detect(schema) {
        // Older servers often omit the draft and mean draft 7.
        Draft::Unknown => {
            compile_as(Draft::Draft202012).or_else(|why| compile_as(Draft::Draft7).map_err(|_| why))
        }
        draft => compile_as(draft),
    }
}
