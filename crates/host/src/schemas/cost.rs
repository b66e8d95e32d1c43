//! Estimates the cost of validation against a schema before it is compiled.
//!
//! A few lines of `$defs` that refer to each other twice can expand to millions of subschemas.
//! Upstreams send us such schemas.

use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// Largest number of subschemas, counted once per reference.
const SUBSCHEMAS_MAX: u64 = 200_000;
/// Largest nesting depth of subschemas.
const DEPTH_MAX: usize = 256;
/// Largest total number of lookups of reference targets.
const LOOKS_MAX: u64 = 1_000_000;
/// Largest number of paths that are searched for the location of an error.
const WAYS_MAX: u64 = 100_000;

/// Keywords that hold one subschema.
const ONE: [&str; 12] = [
    "not",
    "if",
    "then",
    "else",
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords that hold several subschemas, as a list or by name.
const SEVERAL: [&str; 9] = [
    "allOf",
    "anyOf",
    "oneOf",
    "prefixItems",
    "items",
    "properties",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
];
/// Keywords that refer to another schema.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Size of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// Number of subschemas, counted once per reference.
    subschemas: u64,
    /// Number of places that refer back to an enclosing schema.
    back: u64,
}

impl Size {
    /// Measures `schema`.
    ///
    /// # Errors
    /// If it exceeds a limit.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let mut names = Names { resources: vec![("", schema)], ..Names::default() };
        names.gather(schema, schema);
        let known = HashMap::new();
        let open = HashSet::new();
        let mut sum = Sum { names, known, open, looks: 0 };
        let size = sum.of(schema, 0)?;
        if size.subschemas > SUBSCHEMAS_MAX {
            return Err(format!(
                "it comes to more than {SUBSCHEMAS_MAX} subschemas, each counted as often as it \
                 is referred to"
            ));
        }
        Ok(size)
    }

    /// Returns true if locating the errors in `value` is affordable. The search repeats for each
    /// path through the recursive references.
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

/// Returns the nesting depth of `value`, which the JSON reader has bounded.
fn depth(value: &Value) -> u32 {
    let below = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + below.unwrap_or_default()
}

/// Possible targets of references.
#[derive(Default)]
struct Names<'s> {
    /// The root and all schemas with an id, each with that id.
    resources: Vec<(&'s str, &'s Value)>,
    /// Schemas by their anchor.
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// Schemas that contain a reference, with their resource.
    within: HashMap<*const Value, &'s Value>,
}

impl<'s> Names<'s> {
    /// Collects ids, anchors and references below `value`, which is part of `resource`.
    fn gather(&mut self, value: &'s Value, mut resource: &'s Value) {
        match value {
            Value::Object(fields) => {
                let of = |name: &str| fields.get(name).and_then(Value::as_str);
                // Draft 4 writes `id`, and drafts before 2019-09 put anchors into ids.
                for id in ["$id", "id"].into_iter().filter_map(of) {
                    let (id, anchor) = id.split_once('#').unwrap_or((id, ""));
                    if !id.is_empty() {
                        self.resources.push((id, value));
                        resource = value;
                    }
                    self.anchors.entry(anchor).or_default().push(value);
                }
                for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(of) {
                    self.anchors.entry(name).or_default().push(value);
                }
                if REFERENCES.iter().any(|name| fields.contains_key(*name)) {
                    self.within.insert(std::ptr::from_ref(value), resource);
                }
                fields.values().for_each(|field| self.gather(field, resource));
            }
            Value::Array(items) => items.iter().for_each(|item| self.gather(item, resource)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Returns the resources that `name` may mean within the schema `at`. Base URIs are not
    /// resolved, so it may return too many, which only overestimates the cost.
    fn resources(&self, name: &str, at: &Value) -> Vec<&'s Value> {
        let root = self.resources[0].1;
        if name.is_empty() {
            let within = self.within.get(&std::ptr::from_ref(at)).copied();
            let within = within.filter(|within| !std::ptr::eq(*within, root));
            return within.into_iter().chain([root]).collect();
        }
        let last = name.rsplit('/').next().unwrap_or_default();
        let is_like = |id: &str| matches!(last, "." | "..") || id.ends_with(last);
        let named = self.resources.iter().filter(|(id, _)| is_like(id));
        let named: Vec<_> = named.map(|(_, resource)| *resource).collect();
        match named.is_empty() {
            true => self.resources.iter().map(|(_, resource)| *resource).collect(),
            false => named,
        }
    }
}

/// Recursive count of subschemas.
struct Sum<'s> {
    names: Names<'s>,
    /// Sizes already counted, by the address of the schema.
    known: HashMap<*const Value, Size>,
    /// Schemas that are being counted; a reference to one of them is recursive.
    open: HashSet<*const Value>,
    /// Number of lookups of reference targets.
    looks: u64,
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
        for part in self.parts(schema, fields)? {
            sum = sum.and(self.of(part, depth + 1)?);
        }
        self.open.remove(&at);
        self.known.insert(at, sum);
        Ok(sum)
    }

    /// Returns the subschemas that apply to a value of a schema with these `fields`.
    fn parts(
        &mut self,
        at: &Value,
        fields: &'s Map<String, Value>,
    ) -> Result<Vec<&'s Value>, String> {
        let one = ONE.iter().filter_map(|name| fields.get(*name)).filter(|it| it.is_object());
        let several = SEVERAL.iter().filter_map(|name| fields.get(*name));
        let several = several.flat_map(|all| match all {
            Value::Array(all) => all.iter().collect(),
            Value::Object(all) => all.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        });
        let mut parts: Vec<_> = one.chain(several).collect();
        for reference in REFERENCES.iter().filter_map(|name| fields.get(*name)?.as_str()) {
            let referred = self.referred(reference, at);
            self.looks += referred.len() as u64 + self.names.resources.len() as u64;
            parts.extend(referred);
        }
        if self.looks > LOOKS_MAX {
            return Err("it refers too often to what may be in too many places".to_owned());
        }
        Ok(parts)
    }

    /// Returns all possible targets of `reference` within the schema `at`.
    fn referred(&self, reference: &str, at: &Value) -> Vec<&'s Value> {
        let (resource, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let Ok(fragment) = percent_decode_str(fragment).decode_utf8() else { return Vec::new() };
        if fragment.is_empty() || fragment.starts_with('/') {
            let resources = self.names.resources(resource, at).into_iter();
            resources.filter_map(|resource| resource.pointer(&fragment)).collect()
        } else {
            self.names.anchors.get(&*fragment).cloned().unwrap_or_default()
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

    #[test]
    fn what_refers_to_a_schema_within_by_any_name_of_it_is_counted() {
        let within = |reference: &str, id: &str, keyword: &str| {
            let many = chain(40, |next| json!({ "allOf": [next, next] }));
            let mut many = many.as_object().expect("an object").clone();
            many.insert(keyword.to_owned(), json!(id));
            json!({
                "examples": [{ "$id": id, "id": id }],
                "$ref": reference,
                "$defs": { "many": many },
            })
        };
        for (reference, id, keyword) in [
            ("#/$defs/many", "https://example.com/a/b", "$id"),
            ("b", "https://example.com/a/b", "$id"),
            ("./b#/$defs/d0", "https://example.com/a/b", "$id"),
            ("#/$defs/many", "https://example.com/a/b", "id"),
        ] {
            assert!(Size::of(&within(reference, id, keyword)).is_err(), "{reference} {id}");
        }
    }

    #[test]
    fn schemas_within_that_refer_to_each_other_by_their_ids_are_counted_once_each() {
        let defs = (0..30).map(|at| {
            let next = |by: usize| json!({ "$ref": format!("s{}", at + by) });
            let schema = json!({ "$id": format!("https://x/s{at}"), "$defs": { "a": { "type": "object" } },
                                 "properties": { "a": { "$ref": "#/$defs/a" }, "b": next(1) } });
            (format!("s{at}"), schema)
        });
        let all = json!({ "$ref": "https://x/s0", "$defs": defs.collect::<Map<_, _>>() });
        assert!(Size::of(&all).is_ok_and(|size| size.subschemas < 1000));
    }

    #[test]
    fn where_references_may_lead_is_not_looked_for_without_end() {
        let ids = |at: usize| (format!("i{at}"), json!({ "$id": format!("https://x/{at}") }));
        let refs = |at: usize| (format!("r{at}"), json!({ "$ref": format!("#/nowhere{at}") }));
        let all: Map<_, _> = (0..2000).flat_map(|at| [ids(at), refs(at)]).collect();
        let too_many = json!({ "properties": all });
        assert!(Size::of(&too_many).expect_err("they are too many").contains("too often"));
    }
}
