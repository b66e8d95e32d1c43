//! Estimates the cost of validation against a schema before it is compiled.
//!
//! A few lines of `$defs` that refer to each other twice can expand to millions of subschemas.
//! Upstreams may send such schemas.

use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

/// Largest number of subschemas. A subschema counts once for each reference to it.
const SUBSCHEMAS_MAX: u64 = 200_000;
/// Largest nesting depth of subschemas.
const DEPTH_MAX: usize = 256;
/// Largest total number of lookups of reference targets.
const LOOKUPS_MAX: u64 = 1_000_000;
/// Largest number of paths that are searched for the location of an error.
const SEARCH_PATHS_MAX: u64 = 100_000;

/// Keywords whose value is one subschema.
const SINGLE_KEYWORDS: [&str; 12] = [
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
/// Keywords whose value is several subschemas, as a list or by name.
const MULTI_KEYWORDS: [&str; 9] = [
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
const REFERENCE_KEYWORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Size of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SchemaSize {
    /// Number of subschemas. A subschema counts once for each reference to it.
    subschemas: u64,
    /// Number of places that refer back to an enclosing schema.
    back_references: u64,
}

impl SchemaSize {
    /// Measures `schema`.
    ///
    /// # Errors
    /// The schema exceeds a limit.
    pub(super) fn measure(schema: &Value) -> Result<Self, String> {
        let mut names =
            ReferenceTargets { resources: vec![("", schema)], ..ReferenceTargets::default() };
        names.collect(schema, schema);
        let known = HashMap::new();
        let open = HashSet::new();
        let mut sum = SizeCounter { names, sizes: known, in_progress: open, lookups: 0 };
        let size = sum.measure(schema, 0)?;
        if size.subschemas > SUBSCHEMAS_MAX {
            return Err(format!(
                "it expands to more than {SUBSCHEMAS_MAX} subschemas, counted once per reference"
            ));
        }
        Ok(size)
    }

    /// Returns true if the errors in `value` can be located in acceptable time. The search repeats
    /// for each path through the recursive references.
    pub(super) fn can_locate_errors(self, value: &Value) -> bool {
        self.back_references
            .checked_pow(value_depth(value))
            .is_some_and(|ways| ways <= SEARCH_PATHS_MAX)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            subschemas: self.subschemas.saturating_add(other.subschemas),
            back_references: self.back_references.saturating_add(other.back_references),
        }
    }
}

/// Returns the nesting depth of `value`, which the JSON parser has limited.
fn value_depth(value: &Value) -> u32 {
    let below = match value {
        Value::Array(items) => items.iter().map(value_depth).max(),
        Value::Object(fields) => fields.values().map(value_depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + below.unwrap_or_default()
}

/// Possible targets of references.
#[derive(Default)]
struct ReferenceTargets<'s> {
    /// The root schema and all schemas with an id, by id.
    resources: Vec<(&'s str, &'s Value)>,
    /// Schemas with an anchor, by anchor.
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// Schemas that contain a reference, with the schema resource to which they belong.
    reference_resources: HashMap<*const Value, &'s Value>,
}

impl<'s> ReferenceTargets<'s> {
    /// Collects ids, anchors and references below `value`, which is part of `resource`.
    fn collect(&mut self, value: &'s Value, mut resource: &'s Value) {
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
                if REFERENCE_KEYWORDS.iter().any(|name| fields.contains_key(*name)) {
                    self.reference_resources.insert(std::ptr::from_ref(value), resource);
                }
                fields.values().for_each(|field| self.collect(field, resource));
            }
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, resource)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Returns the schema resources that `name` may mean within the schema `at`. Base URIs are not
    /// resolved, so the result may contain too many, which only overestimates the cost.
    fn find_resources(&self, name: &str, at: &Value) -> Vec<&'s Value> {
        let root = self.resources[0].1;
        if name.is_empty() {
            let within = self.reference_resources.get(&std::ptr::from_ref(at)).copied();
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
struct SizeCounter<'s> {
    names: ReferenceTargets<'s>,
    /// Sizes already counted, by the address of the schema.
    sizes: HashMap<*const Value, SchemaSize>,
    /// Schemas that are being counted. A reference to one of them is recursive.
    in_progress: HashSet<*const Value>,
    /// Number of lookups of reference targets.
    lookups: u64,
}

impl<'s> SizeCounter<'s> {
    fn measure(&mut self, schema: &'s Value, depth: usize) -> Result<SchemaSize, String> {
        let one = SchemaSize { subschemas: 1, back_references: 0 };
        let Value::Object(fields) = schema else { return Ok(one) };
        let at = std::ptr::from_ref(schema);
        if let Some(known) = self.sizes.get(&at) {
            return Ok(*known);
        }
        if depth > DEPTH_MAX {
            return Err(format!("its subschemas are nested more than {DEPTH_MAX} levels deep"));
        }
        if !self.in_progress.insert(at) {
            return Ok(SchemaSize { back_references: 1, ..one });
        }
        let mut sum = one;
        for part in self.subschemas(schema, fields)? {
            sum = sum.plus(self.measure(part, depth + 1)?);
        }
        self.in_progress.remove(&at);
        self.sizes.insert(at, sum);
        Ok(sum)
    }

    /// Returns the subschemas of a schema with these `fields`.
    fn subschemas(
        &mut self,
        at: &Value,
        fields: &'s Map<String, Value>,
    ) -> Result<Vec<&'s Value>, String> {
        let one =
            SINGLE_KEYWORDS.iter().filter_map(|name| fields.get(*name)).filter(|it| it.is_object());
        let several = MULTI_KEYWORDS.iter().filter_map(|name| fields.get(*name));
        let several = several.flat_map(|all| match all {
            Value::Array(all) => all.iter().collect(),
            Value::Object(all) => all.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        });
        let mut parts: Vec<_> = one.chain(several).collect();
        for reference in REFERENCE_KEYWORDS.iter().filter_map(|name| fields.get(*name)?.as_str()) {
            let referred = self.reference_targets(reference, at);
            self.lookups += referred.len() as u64 + self.names.resources.len() as u64;
            parts.extend(referred);
        }
        if self.lookups > LOOKUPS_MAX {
            return Err("its references have too many possible targets".to_owned());
        }
        Ok(parts)
    }

    /// Returns all possible targets of `reference` within the schema `at`.
    fn reference_targets(&self, reference: &str, at: &Value) -> Vec<&'s Value> {
        let (resource, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let Ok(fragment) = percent_decode_str(fragment).decode_utf8() else { return Vec::new() };
        if fragment.is_empty() || fragment.starts_with('/') {
            let resources = self.names.find_resources(resource, at).into_iter();
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

    /// Returns a schema with `length` definitions. `link` builds each from a reference to the next
    /// one.
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
    fn a_chain_of_double_references_is_refused() {
        let all_of = |next: Value| json!({ "allOf": [next, next] });
        let below =
            |next: Value| json!({ "anyOf": [{ "properties": { "a": next } }, { "items": next }] });
        for (length, is_fine) in [(10, true), (40, false)] {
            assert_eq!(SchemaSize::measure(&chain(length, all_of)).is_ok(), is_fine);
            assert_eq!(SchemaSize::measure(&chain(length, below)).is_ok(), is_fine);
        }
    }

    #[test]
    fn a_chain_that_is_too_long_is_refused() {
        let long = chain(100_000, |next| next);
        assert!(SchemaSize::measure(&long).expect_err("it is too long").contains("256"));
    }

    #[test]
    fn a_recursive_schema_is_accepted() {
        let tree = json!({
            "$id": "https://example.com/tree",
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": { "children": { "items": { "$dynamicRef": "#node" } }, "up": { "$ref": "#" } },
        });
        let back = |schema: &Value| SchemaSize::measure(schema).map(|size| size.back_references);
        assert_eq!(back(&tree), Ok(2));
        assert_eq!(back(&json!({ "allOf": [{ "$ref": "#" }] })), Ok(1));
        assert_eq!(back(&json!({ "allOf": [{ "type": "object" }] })), Ok(0));
    }

    #[test]
    fn references_by_anchor_and_encoded_pointer_are_counted() {
        let by = |reference: fn(usize) -> String| {
            let defs = (0..40).map(|at| {
                let next = json!({ "$ref": reference(at + 1) });
                (format!("d {at}"), json!({ "$anchor": format!("a{at}"), "allOf": [next, next] }))
            });
            json!({ "$ref": reference(0), "$defs": defs.collect::<Map<_, _>>() })
        };
        assert!(SchemaSize::measure(&by(|at| format!("#/$defs/d%20{at}"))).is_err());
        assert!(SchemaSize::measure(&by(|at| format!("#a{at}"))).is_err());
    }

    #[test]
    fn an_embedded_schema_is_counted_by_any_of_its_names() {
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
            assert!(
                SchemaSize::measure(&within(reference, id, keyword)).is_err(),
                "{reference} {id}"
            );
        }
    }

    #[test]
    fn embedded_schemas_that_refer_to_each_other_are_counted_once_each() {
        let defs = (0..30).map(|at| {
            let next = |by: usize| json!({ "$ref": format!("s{}", at + by) });
            let schema = json!({ "$id": format!("https://x/s{at}"), "$defs": { "a": { "type": "object" } },
                                 "properties": { "a": { "$ref": "#/$defs/a" }, "b": next(1) } });
            (format!("s{at}"), schema)
        });
        let all = json!({ "$ref": "https://x/s0", "$defs": defs.collect::<Map<_, _>>() });
        assert!(SchemaSize::measure(&all).is_ok_and(|size| size.subschemas < 1000));
    }

    #[test]
    fn the_search_for_reference_targets_is_bounded() {
        let ids = |at: usize| (format!("i{at}"), json!({ "$id": format!("https://x/{at}") }));
        let refs = |at: usize| (format!("r{at}"), json!({ "$ref": format!("#/nowhere{at}") }));
        let all: Map<_, _> = (0..2000).flat_map(|at| [ids(at), refs(at)]).collect();
        let too_many = json!({ "properties": all });
        assert!(
            SchemaSize::measure(&too_many).expect_err("they are too many").contains("too many")
        );
    }
}
