//! Describes the errors of an asset in the words of Python's `jsonschema` library, because existing
//! clients expect its messages.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::Location;
use serde_json::{Value, json};
use toolgate_budget::BoundedSchemaValidator;
use toolgate_contract::exact_json;

use super::outcome::AssetError;
use super::python::{PythonRepr, PythonStringRepr};
use super::validators::AssetSchemaDocuments;

/// The maximum number of errors reported for one asset.
const ERRORS_MAX: usize = 10_000;
/// The maximum number of bytes of all paths and messages in the errors of one asset.
const BYTES_MAX: usize = 4 << 20;

/// Describes the errors `found` in `asset`, unsorted. If there are too many, one last error says
/// that more exist. Calls `check` before each error, and returns the error of `check` if that
/// fails.
pub(super) fn collect_errors<'v, E>(
    found: impl Iterator<Item = ValidationError<'v>>,
    asset: &Value,
    documents: &Arc<AssetSchemaDocuments>,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<Vec<AssetError>, E> {
    let mut collector = AssetErrorCollector {
        asset,
        documents,
        reported: HashSet::new(),
        contains_validators: HashMap::new(),
        errors: Vec::new(),
        bytes: 0,
        is_full: false,
    };
    for error in found {
        check()?;
        collector.add_error(&error);
        if collector.is_full {
            let msg = format!(
                "there are more errors than listed here: the list ends at {ERRORS_MAX} errors, or \
                 at {BYTES_MAX} bytes; fix these and validate again"
            );
            collector.errors.push(AssetError { path: String::new(), msg });
            break;
        }
    }
    Ok(collector.errors)
}

/// Collector of the errors that validation finds in one asset.
struct AssetErrorCollector<'a> {
    asset: &'a Value,
    documents: &'a Arc<AssetSchemaDocuments>,
    /// Keyword location and value path of each reported error, so that an error which the validator
    /// finds several times is reported once.
    reported: HashSet<(String, String)>,
    /// Validators for the `contains` keyword, by the URI of the schema that has this keyword.
    /// `None` marks a `contains` schema that cannot be compiled.
    contains_validators: HashMap<String, Option<BoundedSchemaValidator>>,
    errors: Vec<AssetError>,
    /// The total bytes of the paths and messages in `errors`.
    bytes: usize,
    /// `true` if an error was dropped because a limit was reached.
    is_full: bool,
}

/// The schema keyword that a validation error concerns, with its value and its schema.
struct SchemaKeywordLocation<'a> {
    /// The keyword's value. `None` if the keyword was not found in the schemas.
    value: Option<&'a Value>,
    schema: Option<&'a Value>,
    /// The URI of the schema that has the keyword.
    schema_uri: String,
}

impl<'a> AssetErrorCollector<'a> {
    fn add_error(&mut self, error: &ValidationError<'_>) {
        let path = error.instance_path().as_str().to_owned();
        match error.kind() {
            Kind::Required { .. } if keyword(error) == Some("dependentRequired") => {
                self.add_dependent_required(error, &path);
            }
            Kind::FalseSchema => self.add_false_schema(error, path),
            Kind::Contains => {
                let msg = self.contains_message(error);
                self.push_error(path, msg);
            }
            Kind::PropertyNames { error: inner } => self.add_property_name(inner, path),
            Kind::AdditionalItems { .. }
            | Kind::AdditionalProperties { .. }
            | Kind::AnyOf { .. }
            | Kind::BacktrackLimitExceeded { .. }
            | Kind::RegexEngineFailure { .. }
            | Kind::Constant { .. }
            | Kind::ContentEncoding { .. }
            | Kind::ContentMediaType { .. }
            | Kind::Custom { .. }
            | Kind::Enum { .. }
            | Kind::ExclusiveMaximum { .. }
            | Kind::ExclusiveMinimum { .. }
            | Kind::Format { .. }
            | Kind::FromUtf8 { .. }
            | Kind::MaxItems { .. }
            | Kind::Maximum { .. }
            | Kind::MaxLength { .. }
            | Kind::MaxProperties { .. }
            | Kind::MinItems { .. }
            | Kind::Minimum { .. }
            | Kind::MinLength { .. }
            | Kind::MinProperties { .. }
            | Kind::MultipleOf { .. }
            | Kind::Not { .. }
            | Kind::OneOfMultipleValid { .. }
            | Kind::OneOfNotValid { .. }
            | Kind::Pattern { .. }
            | Kind::Required { .. }
            | Kind::Type { .. }
            | Kind::UnevaluatedItems { .. }
            | Kind::UnevaluatedProperties { .. }
            | Kind::UniqueItems
            | Kind::Referencing(_) => {
                let msg = self.message(error);
                self.push_error(path, msg);
            }
        }
    }

    fn push_error(&mut self, path: String, msg: String) {
        let bytes = self.bytes + path.len() + msg.len();
        self.is_full |= self.errors.len() == ERRORS_MAX || bytes > BYTES_MAX;
        if !self.is_full {
            self.bytes = bytes;
            self.errors.push(AssetError { path, msg });
        }
    }

    /// Records that an error about the value at `path` was reported for its schema keyword. Returns
    /// true if this is the first error about this keyword and value.
    fn mark_reported(&mut self, error: &ValidationError<'_>, path: &str) -> bool {
        self.reported.insert((error.evaluation_path().as_str().to_owned(), path.to_owned()))
    }

    /// Returns the message of one validation error, in the words of Python's `jsonschema`.
    fn message(&self, error: &ValidationError<'_>) -> String {
        let value = PythonRepr(error.instance());
        match error.kind() {
            Kind::AdditionalProperties { unexpected } => self.additional_message(error, unexpected),
            Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => {
                format!("{value} is not valid under any of the given schemas")
            }
            Kind::OneOfMultipleValid { context } => {
                let place = self.place(error);
                let given = place.value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let valid = given.iter().zip(context).filter(|(_, errors)| errors.is_empty());
                let mut valid: Vec<PythonRepr<'_>> =
                    valid.map(|(schema, _)| PythonRepr(schema)).collect();
                // Python lists the first valid schema last.
                let first = usize::from(!valid.is_empty());
                valid.rotate_left(first);
                format!("{value} is valid under each of {}", join_display(valid))
            }
            Kind::Constant { expected_value } => {
                format!("{} was expected", PythonRepr(expected_value))
            }
            Kind::Enum { options } => format!("{value} is not one of {}", PythonRepr(options)),
            Kind::ExclusiveMaximum { limit } => {
                format!("{value} is greater than or equal to the maximum of {}", PythonRepr(limit))
            }
            Kind::ExclusiveMinimum { limit } => {
                format!("{value} is less than or equal to the minimum of {}", PythonRepr(limit))
            }
            Kind::Maximum { limit } => {
                format!("{value} is greater than the maximum of {}", PythonRepr(limit))
            }
            Kind::Minimum { limit } => {
                format!("{value} is less than the minimum of {}", PythonRepr(limit))
            }
            Kind::MaxItems { limit: 0 }
            | Kind::MaxLength { limit: 0 }
            | Kind::MaxProperties { limit: 0 } => format!("{value} is expected to be empty"),
            Kind::MaxItems { .. } | Kind::MaxLength { .. } => format!("{value} is too long"),
            Kind::MaxProperties { .. } => format!("{value} has too many properties"),
            Kind::MinItems { limit: 1 }
            | Kind::MinLength { limit: 1 }
            | Kind::MinProperties { limit: 1 } => format!("{value} should be non-empty"),
            Kind::MinItems { .. } | Kind::MinLength { .. } => format!("{value} is too short"),
            Kind::MinProperties { .. } => format!("{value} does not have enough properties"),
            Kind::MultipleOf { multiple_of } => {
                let number = json!(multiple_of);
                let of = self.place(error).value.unwrap_or(&number);
                format!("{value} is not a multiple of {}", PythonRepr(of))
            }
            Kind::Not { schema } => {
                format!("{value} should not be valid under {}", PythonRepr(schema))
            }
            Kind::Pattern { pattern } => {
                format!("{value} does not match {}", PythonStringRepr(pattern))
            }
            // Patterns are matched by a keyword of our own.
            Kind::Custom { keyword, .. } if keyword == "pattern" => {
                let pattern = self.place(error).value.and_then(Value::as_str).unwrap_or_default();
                format!("{value} does not match {}", PythonStringRepr(pattern))
            }
            Kind::Required { property } => {
                format!("{} is a required property", PythonRepr(property))
            }
            Kind::Type { kind } => {
                let types = match self.place(error).value {
                    Some(Value::Array(types)) => join_display(types.iter().map(PythonRepr)),
                    Some(one) => PythonRepr(one).to_string(),
                    None => types(kind),
                };
                format!("{value} is not of type {types}")
            }
            Kind::UnevaluatedItems { unexpected } => {
                let items: Vec<Value> = unexpected
                    .iter()
                    .map(|item| exact_json::parse(item).unwrap_or_else(|_| json!(item)))
                    .collect();
                let list = join_display(items.iter().map(PythonRepr));
                format!(
                    "Unevaluated items are not allowed ({list} {} unexpected)",
                    was_or_were(&items)
                )
            }
            Kind::UnevaluatedProperties { unexpected } => {
                self.unevaluated_message(error, unexpected)
            }
            Kind::UniqueItems => format!("{value} has non-unique elements"),
            Kind::FalseSchema => format!("False schema does not allow {value}"),
            Kind::Contains => format!("{value} does not contain items matching the given schema"),
            Kind::AdditionalItems { .. }
            | Kind::BacktrackLimitExceeded { .. }
            | Kind::RegexEngineFailure { .. }
            | Kind::ContentEncoding { .. }
            | Kind::ContentMediaType { .. }
            | Kind::Custom { .. }
            | Kind::Format { .. }
            | Kind::FromUtf8 { .. }
            | Kind::PropertyNames { .. }
            | Kind::Referencing(_) => error.to_string(),
        }
    }

    fn additional_message(&self, error: &ValidationError<'_>, unexpected: &[String]) -> String {
        let mut unexpected: Vec<&str> = unexpected.iter().map(String::as_str).collect();
        unexpected.sort_unstable();
        let list = join_display(unexpected.iter().map(|name| PythonStringRepr(name)));
        let patterns = self.place(error).schema.and_then(|schema| schema.get("patternProperties"));
        let Some(patterns) = patterns.and_then(Value::as_object) else {
            let were = was_or_were(&unexpected);
            return format!("Additional properties are not allowed ({list} {were} unexpected)");
        };
        let mut patterns: Vec<&str> = patterns.keys().map(String::as_str).collect();
        patterns.sort_unstable();
        let verb = if unexpected.len() == 1 { "does" } else { "do" };
        let patterns = join_display(patterns.into_iter().map(PythonStringRepr));
        format!("{list} {verb} not match any of the regexes: {patterns}")
    }

    fn unevaluated_message(&self, error: &ValidationError<'_>, unexpected: &[String]) -> String {
        let mut names: Vec<&str> = unexpected.iter().map(String::as_str).collect();
        let were = was_or_were(&names);
        if self.place(error).value.is_none_or(|schema| *schema == Value::Bool(false)) {
            names.sort_unstable();
            let list = join_display(names.into_iter().map(PythonStringRepr));
            return format!("Unevaluated properties are not allowed ({list} {were} unexpected)");
        }
        let list = join_display(names.into_iter().map(PythonStringRepr));
        format!(
            "Unevaluated properties are not valid under the given schema \
             ({list} {were} unevaluated and invalid)"
        )
    }

    /// Adds one error for each missing property that `dependentRequired` requires. Does nothing if
    /// such errors were already added for this schema keyword and object.
    fn add_dependent_required(&mut self, error: &ValidationError<'_>, path: &str) {
        if !self.mark_reported(error, path) {
            return;
        }
        let needed = self.place(error).value.and_then(Value::as_object);
        let Some((needed, asset)) = needed.zip(error.instance().as_object()) else { return };
        let mut missing = Vec::new();
        for (property, names) in needed.iter().filter(|(name, _)| asset.contains_key(*name)) {
            let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
            for name in names.filter(|name| !asset.contains_key(*name)) {
                missing.push(format!(
                    "{} is a dependency of {}",
                    PythonStringRepr(name),
                    PythonStringRepr(property)
                ));
            }
        }
        for msg in missing {
            self.push_error(path.to_owned(), msg);
        }
    }

    /// Adds an error of a `false` schema, which no value matches. If the schema limits items or
    /// properties, the error is about the array or object that contains them.
    fn add_false_schema(&mut self, error: &ValidationError<'_>, path: String) {
        match keyword(error) {
            Some("items") => {
                let above = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
                if !self.mark_reported(error, &above) {
                    return;
                }
                let place = self.place(error);
                let prefix = place.schema.and_then(|schema| schema.get("prefixItems"));
                let prefix = prefix.and_then(Value::as_array).map_or(0, Vec::len);
                let items = self.asset.pointer(&above).and_then(Value::as_array);
                let rest = items.and_then(|items| items.get(prefix..)).unwrap_or_default();
                let rest = match rest {
                    [one] => (1, PythonRepr(one).to_string()),
                    more => (more.len(), PythonRepr(&json!(more)).to_string()),
                };
                let item = if prefix == 1 { "item" } else { "items" };
                let (extra, rest) = rest;
                let msg =
                    format!("Expected at most {prefix} {item} but found {extra} extra: {rest}");
                self.push_error(above, msg);
            }
            Some("additionalProperties") => {
                let names = self.property_names(&path);
                let msg = self.additional_message(error, &names);
                self.push_error(path, msg);
            }
            Some("propertyNames") => {
                for name in self.property_names(&path) {
                    if self.is_full {
                        return;
                    }
                    self.push_error(
                        path.clone(),
                        format!("False schema does not allow {}", PythonStringRepr(&name)),
                    );
                }
            }
            Some(_) | None => {
                let msg = self.message(error);
                self.push_error(path, msg);
            }
        }
    }

    /// Returns the property names of the object at `path`.
    fn property_names(&self, path: &str) -> Vec<String> {
        let object = self.asset.pointer(path).and_then(Value::as_object);
        object.into_iter().flat_map(|fields| fields.keys().cloned()).collect()
    }

    /// Adds an error about an invalid property name of the object at `path`.
    fn add_property_name(&mut self, error: &ValidationError<'_>, path: String) {
        let msg = match error.kind() {
            Kind::Contains => self.contains_message(error),
            _ => self.message(error),
        };
        self.push_error(path, msg);
    }

    /// Returns the message for an array that fails the keyword `contains`. If the schema has
    /// `minContains` or `maxContains`, the message states the number of matching items.
    fn contains_message(&mut self, error: &ValidationError<'_>) -> String {
        let place = self.place(error);
        let around = place.schema.and_then(Value::as_object);
        let (Some(around), Some(items)) = (around, error.instance().as_array()) else {
            return self.message(error);
        };
        let bound = |name: &str| around.get(name).filter(|bound| bound.is_number());
        let least = bound("minContains");
        let most = bound("maxContains");
        if least.is_none() && most.is_none() {
            return self.message(error);
        }
        let documents = self.documents;
        let one =
            self.contains_validators.entry(place.schema_uri).or_insert_with_key(|around_at| {
                let schema = json!({ "$ref": format!("{around_at}/contains") });
                documents.compile(&schema, "toolgate:contains").ok()
            });
        let Some(one) = one else { return self.message(error) };
        let matches = items.iter().filter(|item| one.check(item) == Ok(true)).count();
        if let Some(most) = most.filter(|most| {
            most.as_number().is_some_and(|most| matches as f64 > exact_json::nearest_float(most))
        }) {
            let most = PythonRepr(most);
            return format!("Too many items match the given schema (expected at most {most})");
        }
        match least.filter(|_| matches > 0) {
            Some(least) => format!(
                "Too few items match the given schema (expected at least {} but only {matches} \
                 matched)",
                PythonRepr(least)
            ),
            None => self.message(error),
        }
    }

    /// Finds the schema keyword that `error` concerns, with its value and the URI of its schema.
    fn place(&self, error: &ValidationError<'_>) -> SchemaKeywordLocation<'a> {
        let uri = error.absolute_keyword_location().map_or("", |uri| uri.as_str());
        let uri = uri.split('#').next().unwrap_or_default();
        let at = error.schema_path().as_str();
        let above = at.rsplit_once('/').map_or("", |(above, _)| above);
        SchemaKeywordLocation {
            value: self.documents.part(uri, at),
            schema: self.documents.part(uri, above),
            schema_uri: format!("{uri}#{}", crate::uri_paths::percent_encode_path(above)),
        }
    }
}

/// Returns the schema keyword that `error` concerns. Returns `None` if the error's location in the
/// schema ends with a property name or an index, as in `properties/size`.
fn keyword<'e>(error: &'e ValidationError<'_>) -> Option<&'e str> {
    let path: &'e Location = error.evaluation_path();
    let mut steps = path.as_str().split('/').skip(1);
    let mut keyword = None;
    while let Some(step) = steps.next() {
        keyword = Some(step);
        let is_many = matches!(
            step,
            "properties"
                | "patternProperties"
                | "dependentSchemas"
                | "$defs"
                | "definitions"
                | "allOf"
                | "anyOf"
                | "oneOf"
                | "prefixItems"
        );
        if is_many && steps.next().is_some() {
            keyword = None;
        }
    }
    keyword
}

/// Returns the JSON types that `kind` expects, quoted and separated by commas.
fn types(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => format!("'{one}'"),
        TypeKind::Multiple(many) => join_display(many.iter().map(|one| format!("'{one}'"))),
    }
}

fn join_display(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

fn was_or_were<T>(items: &[T]) -> &'static str {
    if items.len() == 1 { "was" } else { "were" }
}
