//! Compares two JSON schemas and classifies each difference as stricter or looser.

use std::collections::BTreeSet;

use serde_json::Value;

use super::differences::{PinDifference, PinDifferenceSeverity};
use toolgate_contract::printable;

/// Deepest level of a schema that is compared. A difference at a deeper level is reported at this
/// level.
const DEPTH_MAX: usize = 32;

/// Schema keywords that do not constrain values.
const ANNOTATION_KEYWORDS: [&str; 8] =
    ["title", "description", "examples", "$comment", "deprecated", "$schema", "$id", "format"];
/// Schema keywords for lower bounds. A higher value is stricter.
const LOWER_BOUND_KEYWORDS: [&str; 6] =
    ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"];
/// Schema keywords for upper bounds. A lower value is stricter.
const UPPER_BOUND_KEYWORDS: [&str; 6] =
    ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"];
/// Schema keywords whose value is a map of schemas by name.
const SCHEMA_MAP_KEYWORDS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Schema keywords whose value is one schema.
const SCHEMA_KEYWORDS: [&str; 2] = ["items", "propertyNames"];
/// Schema keywords whose value is an array of schemas.
const SCHEMA_LIST_KEYWORDS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// Tells whether a tool's schema describes the input or the output of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaDirection {
    /// The schema describes the tool's input. A stricter schema is a breaking change.
    Input,
    /// The schema describes the tool's output. A looser schema is a breaking change.
    Output,
}

/// Adds the differences between the schemas `before` and `now` to `all`.
pub(super) fn compare_schemas(
    side: SchemaDirection,
    before: &Value,
    now: &Value,
    all: &mut Vec<PinDifference>,
) {
    let at = match side {
        SchemaDirection::Input => "input_schema",
        SchemaDirection::Output => "output_schema",
    };
    SchemaComparison { side, differences: all }.compare_schemas(at, before, now, 0);
}

/// Comparison of a tool's pinned schema with its current schema.
struct SchemaComparison<'a> {
    side: SchemaDirection,
    differences: &'a mut Vec<PinDifference>,
}

impl SchemaComparison<'_> {
    fn add(&mut self, class: PinDifferenceSeverity, at: &str, what: impl Into<String>) {
        let at = printable::escape_hidden(at);
        let what = printable::escape_hidden(&what.into());
        self.differences.push(PinDifference { class, location: at, description: what });
    }

    /// Adds a difference at the JSON pointer `at` that makes the schema stricter.
    fn add_stricter(&mut self, at: &str, what: impl Into<String>) {
        let class = if self.side == SchemaDirection::Input {
            PinDifferenceSeverity::Breaking
        } else {
            PinDifferenceSeverity::Widening
        };
        self.add(class, at, what);
    }

    /// Adds a difference at the JSON pointer `at` that makes the schema looser.
    fn add_looser(&mut self, at: &str, what: impl Into<String>) {
        let class = if self.side == SchemaDirection::Input {
            PinDifferenceSeverity::Widening
        } else {
            PinDifferenceSeverity::Breaking
        };
        self.add(class, at, what);
    }

    fn compare_schemas(&mut self, at: &str, before: &Value, now: &Value, depth: usize) {
        if before == now {
            return;
        }
        let (Value::Object(before), Value::Object(now)) = (before, now) else {
            return match (accepts_any(before), accepts_any(now)) {
                (true, _) => self.add_stricter(at, "accepted any value"),
                (_, true) => self.add_looser(at, "accepts any value now"),
                _ => self.add(PinDifferenceSeverity::Breaking, at, "changed"),
            };
        };
        if depth >= DEPTH_MAX {
            return self.add(PinDifferenceSeverity::Breaking, at, "changed");
        }
        let keywords: BTreeSet<_> = before.keys().chain(now.keys()).collect();
        for keyword in keywords {
            let was = before.get(keyword);
            let is = now.get(keyword);
            if was != is {
                self.compare_keyword(
                    &format!("{at}/{}", escaped(keyword)),
                    keyword,
                    [was, is],
                    depth,
                );
            }
        }
    }

    fn compare_keyword(
        &mut self,
        at: &str,
        keyword: &str,
        [was, is]: [Option<&Value>; 2],
        depth: usize,
    ) {
        match keyword {
            _ if ANNOTATION_KEYWORDS.contains(&keyword) => {
                self.add(PinDifferenceSeverity::Cosmetic, at, "changed");
            }
            _ if SCHEMA_MAP_KEYWORDS.contains(&keyword) => {
                self.compare_named(at, keyword, was, is, depth);
            }
            "required" => self.compare_required(at, was, is),
            "type" => self.compare_choices(at, allowed_types(was), allowed_types(is)),
            "enum" | "const" => {
                self.compare_choices(at, allowed_values(keyword, was), allowed_values(keyword, is));
            }
            "additionalProperties" | "unevaluatedProperties" => {
                self.compare_additional(at, was, is, depth);
            }
            _ if LOWER_BOUND_KEYWORDS.contains(&keyword) => {
                self.compare_bound(at, was, is, |was, is| is > was);
            }
            _ if UPPER_BOUND_KEYWORDS.contains(&keyword) => {
                self.compare_bound(at, was, is, |was, is| is < was);
            }
            _ => match (was, is) {
                (Some(was), Some(is)) if SCHEMA_KEYWORDS.contains(&keyword) => {
                    self.compare_schemas(at, was, is, depth + 1);
                }
                (Some(Value::Array(was)), Some(Value::Array(is)))
                    if SCHEMA_LIST_KEYWORDS.contains(&keyword) && was.len() == is.len() =>
                {
                    for (index, (was, is)) in was.iter().zip(is).enumerate() {
                        self.compare_schemas(&format!("{at}/{index}"), was, is, depth + 1);
                    }
                }
                (None, _) if keyword != "default" => self.add_stricter(at, "was added"),
                (_, None) if keyword != "default" => self.add_looser(at, "was removed"),
                _ => self.add(PinDifferenceSeverity::Breaking, at, "changed"),
            },
        }
    }

    fn compare_named(
        &mut self,
        at: &str,
        keyword: &str,
        was: Option<&Value>,
        is: Option<&Value>,
        depth: usize,
    ) {
        let all: BTreeSet<_> = member_names(was).chain(member_names(is)).collect();
        for name in all {
            let at = format!("{at}/{}", escaped(&name));
            match (was.and_then(|was| was.get(&name)), is.and_then(|is| is.get(&name))) {
                (Some(was), Some(is)) => self.compare_schemas(&at, was, is, depth + 1),
                // `required` reports whether the property is mandatory.
                (None, Some(_)) if keyword == "properties" => {
                    self.add(PinDifferenceSeverity::Widening, &at, "is new");
                }
                (Some(_), None) if keyword == "properties" => {
                    self.add(PinDifferenceSeverity::Breaking, &at, "was removed");
                }
                // The references to the definition differ, too.
                _ => self.add(PinDifferenceSeverity::Widening, &at, "was added or removed"),
            }
        }
    }

    fn compare_required(&mut self, at: &str, was: Option<&Value>, is: Option<&Value>) {
        let was = allowed_values("enum", was);
        let is = allowed_values("enum", is);
        let was = was.unwrap_or_default();
        let is = is.unwrap_or_default();
        for name in is.difference(&was) {
            self.add_stricter(at, format!("{name} is required now"));
        }
        for name in was.difference(&is) {
            self.add_looser(at, format!("{name} is no longer required"));
        }
    }

    /// Compares the sets of values that two schemas allow. `None` allows any value.
    fn compare_choices(
        &mut self,
        at: &str,
        was: Option<BTreeSet<String>>,
        is: Option<BTreeSet<String>>,
    ) {
        match (was, is) {
            (None, _) => self.add_stricter(at, "was added"),
            (_, None) => self.add_looser(at, "was removed"),
            (Some(was), Some(is)) => {
                let list = |all: Vec<&String>| {
                    all.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                };
                let less = was.difference(&is).collect::<Vec<_>>();
                let more = is.difference(&was).collect::<Vec<_>>();
                if !less.is_empty() {
                    self.add_stricter(at, format!("no longer allows {}", list(less)));
                }
                if !more.is_empty() {
                    self.add_looser(at, format!("now also allows {}", list(more)));
                }
            }
        }
    }

    /// Compares the rules of two schemas for properties that they do not name.
    fn compare_additional(
        &mut self,
        at: &str,
        was: Option<&Value>,
        is: Option<&Value>,
        depth: usize,
    ) {
        let any = Value::Bool(true);
        let was = was.unwrap_or(&any);
        let is = is.unwrap_or(&any);
        match (was, is) {
            (Value::Bool(false), _) => self.add_looser(at, "other properties are allowed now"),
            (_, Value::Bool(false)) => {
                self.add_stricter(at, "other properties are no longer allowed");
            }
            _ => self.compare_schemas(at, was, is, depth + 1),
        }
    }

    fn compare_bound(
        &mut self,
        at: &str,
        was: Option<&Value>,
        is: Option<&Value>,
        tighter: fn(f64, f64) -> bool,
    ) {
        let number = |value: Option<&Value>| value.and_then(Value::as_f64);
        match (was, number(was), is, number(is)) {
            (_, Some(before), _, Some(now)) => {
                let what = format!("changed from {before} to {now}");
                match tighter(before, now) {
                    true => self.add_stricter(at, what),
                    false => self.add_looser(at, what),
                }
            }
            (None, ..) => self.add_stricter(at, "was added"),
            (_, _, None, _) => self.add_looser(at, "was removed"),
            _ => self.add(PinDifferenceSeverity::Breaking, at, "changed"),
        }
    }
}

/// Returns the names of the members of the JSON object `of`.
fn member_names(of: Option<&Value>) -> impl Iterator<Item = String> {
    of.and_then(Value::as_object).into_iter().flat_map(|all| all.keys().cloned())
}

fn accepts_any(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Returns the types that the keyword `type` with the value `of` allows, or `None` if any type is
/// allowed. `number` includes `integer`.
fn allowed_types(of: Option<&Value>) -> Option<BTreeSet<String>> {
    let mut types = match of? {
        Value::String(one) => BTreeSet::from([one.clone()]),
        Value::Array(several) => {
            several.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect()
        }
        _ => return None,
    };
    if types.contains("number") {
        types.insert("integer".to_owned());
    }
    Some(types)
}

fn allowed_values(keyword: &str, of: Option<&Value>) -> Option<BTreeSet<String>> {
    match (keyword, of?) {
        ("const", one) => Some(BTreeSet::from([one.to_string()])),
        (_, Value::Array(several)) => Some(several.iter().map(Value::to_string).collect()),
        _ => None,
    }
}

/// Escapes `name` for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
