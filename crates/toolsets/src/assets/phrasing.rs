//! Describes the errors of an asset as Python's `jsonschema` does, because contract clients know
//! its messages.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::paths::Location;
use jsonschema::{ValidationError, Validator};
use serde_json::{Value, json};

use super::outcome::Wrong;
use super::python::{Quoted, Repr};
use super::validators::Documents;

/// The most errors reported for one asset.
const ERRORS_MAX: usize = 10_000;
/// The most bytes of all reported paths and messages together.
const BYTES_MAX: usize = 4 << 20;

/// Returns all errors that `validator` finds in `asset`, unsorted. Beyond a limit, one last error
/// states that more exist. Calls `check` before each error, and stops if that fails.
pub(super) fn told<E>(
    validator: &Validator,
    asset: &Value,
    documents: &Arc<Documents>,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Wrong>, E> {
    let mut teller = Teller {
        asset,
        documents,
        told: HashSet::new(),
        contained: HashMap::new(),
        wrong: Vec::new(),
        bytes: 0,
        is_full: false,
    };
    for error in validator.iter_errors(asset) {
        check()?;
        teller.tell(&error);
        if teller.is_full {
            let msg = format!(
                "more is wrong than is told here: the errors end at {ERRORS_MAX}, or at \
                 {BYTES_MAX} bytes; mend these and validate again"
            );
            teller.wrong.push(Wrong { path: String::new(), msg });
            break;
        }
    }
    Ok(teller.wrong)
}

struct Teller<'a> {
    asset: &'a Value,
    documents: &'a Arc<Documents>,
    /// Errors already reported whole, by keyword location and value path. The validator reports
    /// them in parts.
    told: HashSet<(String, String)>,
    /// Validators for the items of each `contains`, by the URI of the schema around it.
    contained: HashMap<String, Option<Validator>>,
    wrong: Vec<Wrong>,
    /// The total bytes of the paths and messages in `wrong`.
    bytes: usize,
    /// Set if an error was dropped because a limit was reached.
    is_full: bool,
}

/// The location in the schemas of the keyword that an error is about.
struct Place<'a> {
    /// The keyword's value and the schema around it, if they are found.
    value: Option<&'a Value>,
    around: Option<&'a Value>,
    /// The URI of the schema around the keyword.
    around_at: String,
}

impl<'a> Teller<'a> {
    fn tell(&mut self, error: &ValidationError<'_>) {
        let path = error.instance_path().as_str().to_owned();
        match error.kind() {
            Kind::Required { .. } if keyword(error) == Some("dependentRequired") => {
                self.dependent_required(error, &path);
            }
            Kind::FalseSchema => self.false_schema(error, path),
            Kind::Contains => {
                let msg = self.contains(error);
                self.say(path, msg);
            }
            Kind::PropertyNames { error: inner } => self.property_name(inner, path),
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
                self.say(path, msg);
            }
        }
    }

    fn say(&mut self, path: String, msg: String) {
        let bytes = self.bytes + path.len() + msg.len();
        self.is_full |= self.wrong.len() == ERRORS_MAX || bytes > BYTES_MAX;
        if !self.is_full {
            self.bytes = bytes;
            self.wrong.push(Wrong { path, msg });
        }
    }

    /// Records `error` by its keyword and the value at `path`. Returns `true` if it is the first of
    /// these.
    fn is_first(&mut self, error: &ValidationError<'_>, path: &str) -> bool {
        self.told.insert((error.evaluation_path().as_str().to_owned(), path.to_owned()))
    }

    /// Returns the message of a single error.
    fn message(&self, error: &ValidationError<'_>) -> String {
        let value = Repr(error.instance());
        match error.kind() {
            Kind::AdditionalProperties { unexpected } => self.additional(error, unexpected),
            Kind::AnyOf { .. } | Kind::OneOfNotValid { .. } => {
                format!("{value} is not valid under any of the given schemas")
            }
            Kind::OneOfMultipleValid { context } => {
                let place = self.place(error);
                let given = place.value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let valid = given.iter().zip(context).filter(|(_, wrong)| wrong.is_empty());
                let mut valid: Vec<Repr<'_>> = valid.map(|(schema, _)| Repr(schema)).collect();
                // Python lists the first valid schema last.
                let first = usize::from(!valid.is_empty());
                valid.rotate_left(first);
                format!("{value} is valid under each of {}", joined(valid))
            }
            Kind::Constant { expected_value } => format!("{} was expected", Repr(expected_value)),
            Kind::Enum { options } => format!("{value} is not one of {}", Repr(options)),
            Kind::ExclusiveMaximum { limit } => {
                format!("{value} is greater than or equal to the maximum of {}", Repr(limit))
            }
            Kind::ExclusiveMinimum { limit } => {
                format!("{value} is less than or equal to the minimum of {}", Repr(limit))
            }
            Kind::Maximum { limit } => {
                format!("{value} is greater than the maximum of {}", Repr(limit))
            }
            Kind::Minimum { limit } => {
                format!("{value} is less than the minimum of {}", Repr(limit))
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
                format!("{value} is not a multiple of {}", Repr(of))
            }
            Kind::Not { schema } => format!("{value} should not be valid under {}", Repr(schema)),
            Kind::Pattern { pattern } => {
                format!("{value} does not match {}", Quoted(pattern))
            }
            Kind::Required { property } => format!("{} is a required property", Repr(property)),
            Kind::Type { kind } => {
                let types = match self.place(error).value {
                    Some(Value::Array(types)) => joined(types.iter().map(Repr)),
                    Some(one) => Repr(one).to_string(),
                    None => types(kind),
                };
                format!("{value} is not of type {types}")
            }
            Kind::UnevaluatedItems { unexpected } => {
                let items: Vec<Value> = unexpected
                    .iter()
                    .map(|item| serde_json::from_str(item).unwrap_or_else(|_| json!(item)))
                    .collect();
                let list = joined(items.iter().map(Repr));
                format!("Unevaluated items are not allowed ({list} {} unexpected)", were(&items))
            }
            Kind::UnevaluatedProperties { unexpected } => self.unevaluated(error, unexpected),
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

    fn additional(&self, error: &ValidationError<'_>, unexpected: &[String]) -> String {
        let mut unexpected: Vec<&str> = unexpected.iter().map(String::as_str).collect();
        unexpected.sort_unstable();
        let list = joined(unexpected.iter().map(|name| Quoted(name)));
        let patterns = self.place(error).around.and_then(|schema| schema.get("patternProperties"));
        let Some(patterns) = patterns.and_then(Value::as_object) else {
            let were = were(&unexpected);
            return format!("Additional properties are not allowed ({list} {were} unexpected)");
        };
        let mut patterns: Vec<&str> = patterns.keys().map(String::as_str).collect();
        patterns.sort_unstable();
        let verb = if unexpected.len() == 1 { "does" } else { "do" };
        let patterns = joined(patterns.into_iter().map(Quoted));
        format!("{list} {verb} not match any of the regexes: {patterns}")
    }

    fn unevaluated(&self, error: &ValidationError<'_>, unexpected: &[String]) -> String {
        let mut names: Vec<&str> = unexpected.iter().map(String::as_str).collect();
        let were = were(&names);
        if self.place(error).value.is_none_or(|schema| *schema == Value::Bool(false)) {
            names.sort_unstable();
            let list = joined(names.into_iter().map(Quoted));
            return format!("Unevaluated properties are not allowed ({list} {were} unexpected)");
        }
        let list = joined(names.into_iter().map(Quoted));
        format!(
            "Unevaluated properties are not valid under the given schema \
             ({list} {were} unevaluated and invalid)"
        )
    }

    /// Reports everything that `dependentRequired` misses, once, at its first error.
    fn dependent_required(&mut self, error: &ValidationError<'_>, path: &str) {
        if !self.is_first(error, path) {
            return;
        }
        let needed = self.place(error).value.and_then(Value::as_object);
        let Some((needed, asset)) = needed.zip(error.instance().as_object()) else { return };
        let mut missing = Vec::new();
        for (property, names) in needed.iter().filter(|(name, _)| asset.contains_key(*name)) {
            let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
            for name in names.filter(|name| !asset.contains_key(*name)) {
                missing.push(format!("{} is a dependency of {}", Quoted(name), Quoted(property)));
            }
        }
        for msg in missing {
            self.say(path.to_owned(), msg);
        }
    }

    /// Reports an error of a schema that is `false`. If the keyword limits items or properties, the
    /// error is about the array or object that contains them.
    fn false_schema(&mut self, error: &ValidationError<'_>, path: String) {
        match keyword(error) {
            Some("items") => {
                let above = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
                if !self.is_first(error, &above) {
                    return;
                }
                let place = self.place(error);
                let prefix = place.around.and_then(|schema| schema.get("prefixItems"));
                let prefix = prefix.and_then(Value::as_array).map_or(0, Vec::len);
                let items = self.asset.pointer(&above).and_then(Value::as_array);
                let rest = items.and_then(|items| items.get(prefix..)).unwrap_or_default();
                let rest = match rest {
                    [one] => (1, Repr(one).to_string()),
                    more => (more.len(), Repr(&json!(more)).to_string()),
                };
                let item = if prefix == 1 { "item" } else { "items" };
                let (extra, rest) = rest;
                let msg =
                    format!("Expected at most {prefix} {item} but found {extra} extra: {rest}");
                self.say(above, msg);
            }
            Some("additionalProperties") => {
                let names = self.names(&path);
                let msg = self.additional(error, &names);
                self.say(path, msg);
            }
            Some("propertyNames") => {
                for name in self.names(&path) {
                    if self.is_full {
                        return;
                    }
                    self.say(
                        path.clone(),
                        format!("False schema does not allow {}", Quoted(&name)),
                    );
                }
            }
            Some(_) | None => {
                let msg = self.message(error);
                self.say(path, msg);
            }
        }
    }

    /// Returns the property names of the object at `path`.
    fn names(&self, path: &str) -> Vec<String> {
        let object = self.asset.pointer(path).and_then(Value::as_object);
        object.into_iter().flat_map(|fields| fields.keys().cloned()).collect()
    }

    /// Reports an invalid property name of the object at `path`.
    fn property_name(&mut self, error: &ValidationError<'_>, path: String) {
        let msg = match error.kind() {
            Kind::Contains => self.contains(error),
            _ => self.message(error),
        };
        self.say(path, msg);
    }

    /// Describes a failed `contains`, with the number of matches if the schema limits it.
    fn contains(&mut self, error: &ValidationError<'_>) -> String {
        let place = self.place(error);
        let around = place.around.and_then(Value::as_object);
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
        let one = self.contained.entry(place.around_at).or_insert_with_key(|around_at| {
            let schema = json!({ "$ref": format!("{around_at}/contains") });
            documents.compile(&schema, "toolgate:contains").ok()
        });
        let Some(one) = one else { return self.message(error) };
        let matches = items.iter().filter(|item| one.is_valid(item)).count();
        if let Some(most) =
            most.filter(|most| most.as_f64().is_some_and(|most| matches as f64 > most))
        {
            let most = Repr(most);
            return format!("Too many items match the given schema (expected at most {most})");
        }
        match least.filter(|_| matches > 0) {
            Some(least) => format!(
                "Too few items match the given schema (expected at least {} but only {matches} \
                 matched)",
                Repr(least)
            ),
            None => self.message(error),
        }
    }

    /// Finds the keyword of `error` in the schemas.
    fn place(&self, error: &ValidationError<'_>) -> Place<'a> {
        let uri = error.absolute_keyword_location().map_or("", |uri| uri.as_str());
        let uri = uri.split('#').next().unwrap_or_default();
        let at = error.schema_path().as_str();
        let above = at.rsplit_once('/').map_or("", |(above, _)| above);
        Place {
            value: self.documents.part(uri, at),
            around: self.documents.part(uri, above),
            around_at: format!("{uri}#{}", crate::places::in_uri(above)),
        }
    }
}

/// Returns the keyword that `error` is about. `None` if its schema is listed under a name or index,
/// as in `properties`.
///
/// An evaluation path goes only through schemas, so each keyword in it can be recognized.
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

/// Returns the types in `kind`, for a schema whose text is not found.
fn types(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => format!("'{one}'"),
        TypeKind::Multiple(many) => joined(many.iter().map(|one| format!("'{one}'"))),
    }
}

fn joined(items: impl IntoIterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

fn were<T>(items: &[T]) -> &'static str {
    if items.len() == 1 { "was" } else { "were" }
}
