//! What it may cost to hold a value against a schema, told before it is compiled.
//!
//! A few lines of `$defs` that each refer twice to the next come to millions of subschemas, and who
//! offers tools from elsewhere decides which schemas there are.

use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// How many subschemas one may come to, each counted as often as it is referred to.
const SUBSCHEMAS_MAX: u64 = 200_000;
/// How far one may lead into another.
const DEPTH_MAX: usize = 256;
/// By how many ways what is wrong may be looked for.
const WAYS_MAX: u64 = 100_000;

/// Where a subschema stands.
const ONE: [&str; 11] = [
    "not",
    "if",
    "then",
    "else",
    "items",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Where several do, in order or by name.
const SEVERAL: [&str; 8] = [
    "allOf",
    "anyOf",
    "oneOf",
    "prefixItems",
    "items",
    "properties",
    "patternProperties",
    "dependentSchemas",
];
/// What says where else to look.
const REFERENCES: [&str; 2] = ["$ref", "$dynamicRef"];

/// How much a schema comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// How many subschemas, each counted as often as it is referred to.
    subschemas: u64,
    /// In how many places it leads back to what leads there.
    back: u64,
}

impl Size {
    /// The size of `schema`.
    ///
    /// # Errors
    /// When it comes to more than is held against, or leads on too far.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut named = HashMap::new();
        gather(schema, &mut named);
        let mut sum = Sum { root: schema, named, known: HashMap::new(), open: HashSet::new() };
        let size = sum.of(schema, 0)?;
        if size.subschemas > SUBSCHEMAS_MAX {
            return Err(format!(
                "it comes to more than {SUBSCHEMAS_MAX} subschemas, each counted as often as it \
                 is referred to"
            ));
        }
        Ok(size)
    }

    /// Whether it can be told what in `value` is wrong. That something is is known at once; where
    /// is looked for in each part once for each way that leads there.
    pub(super) fn is_told_of(self, value: &Value) -> bool {
        self.back.checked_pow(depth(value)).is_some_and(|ways| ways <= WAYS_MAX)
    }

    fn and(self, other: Self) -> Self {
        Self {
            subschemas: self.subschemas.saturating_add(other.subschemas),
            back: self.back.saturating_add(other.back),
        }
    }
}

/// How deep the lists and objects in `value` are nested, which is bounded where it was read.
fn depth(value: &Value) -> u32 {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + below.unwrap_or_default()
}

/// Every subschema below `value` that has a name, by it.
fn gather<'s>(value: &'s Value, named: &mut HashMap<&'s str, &'s Value>) {
    match value {
        Value::Object(fields) => {
            for name in ["$id", "$anchor", "$dynamicAnchor"] {
                if let Some(name) = fields.get(name).and_then(Value::as_str) {
                    named.entry(name).or_insert(value);
                }
            }
            fields.values().for_each(|field| gather(field, named));
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, named)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Counts subschemas.
struct Sum<'s> {
    root: &'s Value,
    named: HashMap<&'s str, &'s Value>,
    /// What was counted, by where it is.
    known: HashMap<*const Value, Size>,
    /// What is being counted: what leads back to it is held against once a value.
    open: HashSet<*const Value>,
}

impl<'s> Sum<'s> {
    fn of(&mut self, schema: &'s Value, depth: usize) -> Result<Size, String> {
        let one = Size { subschemas: 1, back: 0 };
        let Value::Object(fields) = schema else { return Ok(one) };
        let at = std::ptr::from_ref(schema);
        if let Some(known) = self.known.get(&at) {
            return Ok(*known);
        }
        if depth > DEPTH_MAX {
            return Err(format!("one leads into another more than {DEPTH_MAX} times"));
        }
        if !self.open.insert(at) {
            return Ok(Size { back: 1, ..one });
        }
        let mut sum = one;
        for part in self.parts(fields) {
            sum = sum.and(self.of(part, depth + 1)?);
        }
        self.open.remove(&at);
        self.known.insert(at, sum);
        Ok(sum)
    }

    /// What a value is held against with a schema that has these `fields`.
    fn parts(&self, fields: &'s Map<String, Value>) -> Vec<&'s Value> {
        let one = ONE.iter().filter_map(|name| fields.get(*name)).filter(|it| it.is_object());
        let several = SEVERAL.iter().filter_map(|name| fields.get(*name));
        let several = several.flat_map(|all| match all {
            Value::Array(all) => all.iter().collect(),
            Value::Object(all) => all.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        });
        let referred = REFERENCES.iter().filter_map(|name| fields.get(*name)?.as_str());
        let referred = referred.filter_map(|reference| self.referred(reference));
        one.chain(several).chain(referred).collect()
    }

    /// What `reference` refers to, if it is in here.
    fn referred(&self, reference: &str) -> Option<&'s Value> {
        let (resource, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match resource {
            "" => self.root,
            name => self.named.get(name)?,
        };
        let fragment = percent_decode_str(fragment).decode_utf8().ok()?;
        match &*fragment {
            pointer if pointer.is_empty() || pointer.starts_with('/') => resource.pointer(pointer),
            anchor => self.named.get(anchor).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema whose `$defs` each are made by `link` of the next.
    fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
        let defs = (0..length).map(|at| {
            let next = json!({ "$ref": format!("#/$defs/d{}", at + 1) });
            (format!("d{at}"), link(next))
        });
        let mut defs: Map<_, _> = defs.collect();
        defs.insert(format!("d{length}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/d0", "$defs": defs })
    }

    #[test]
    fn what_refers_twice_to_the_next_is_refused_wherever_it_does() {
        let all_of = |next: Value| json!({ "allOf": [next, next] });
        let below =
            |next: Value| json!({ "anyOf": [{ "properties": { "a": next } }, { "items": next }] });
        for (length, is_fine) in [(10, true), (40, false)] {
            assert_eq!(Size::of(&chain(length, all_of)).is_ok(), is_fine);
            assert_eq!(Size::of(&chain(length, below)).is_ok(), is_fine);
        }
    }

    #[test]
    fn what_leads_on_for_ever_is_refused_before_it_is_followed() {
        let long = chain(100_000, |next| next);
        assert!(Size::of(&long).expect_err("it is too long").contains("256"));
    }

    #[test]
    fn what_leads_back_to_itself_is_fine() {
        let tree = json!({
            "$id": "https://example.com/tree",
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": { "children": { "items": { "$dynamicRef": "#node" } }, "up": { "$ref": "#" } },
        });
        let back = |schema: &Value| Size::of(schema).map(|size| size.back);
        assert_eq!(back(&tree), Ok(2));
        assert_eq!(back(&json!({ "allOf": [{ "$ref": "#" }] })), Ok(1));
        assert_eq!(back(&json!({ "allOf": [{ "type": "object" }] })), Ok(0));
    }

    #[test]
    fn names_are_followed_as_pointers_are() {
        let by = |reference: fn(usize) -> String| {
            let defs = (0..40).map(|at| {
                let next = json!({ "$ref": reference(at + 1) });
                (format!("d {at}"), json!({ "$anchor": format!("a{at}"), "allOf": [next, next] }))
            });
            json!({ "$ref": reference(0), "$defs": defs.collect::<Map<_, _>>() })
        };
        assert!(Size::of(&by(|at| format!("#/$defs/d%20{at}"))).is_err());
        assert!(Size::of(&by(|at| format!("#a{at}"))).is_err());
    }
}
