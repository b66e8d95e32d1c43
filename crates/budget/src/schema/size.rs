//! Estimates the cost of validation against a schema before it is compiled.
//!
//! A few lines of `$defs` that refer to each other twice can expand to millions of subschemas.
//! Upstreams may send such schemas, and cloned folders may contain them.

use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::patterns::{PatternSizeCounter, PatternSizeTotals};

/// Maximum number of subschemas in a schema. A subschema counts once for each reference to it.
const SUBSCHEMAS_MAX: u64 = 200_000;
/// Maximum nesting depth of subschemas in a schema.
const DEPTH_MAX: usize = 256;
/// Maximum total number of lookups of a schema's reference targets.
const LOOKUPS_MAX: u64 = 1_000_000;
/// Maximum number of a schema's parts: subschemas, and entries of lists such as `required` and
/// `enum`.
const WEIGHT_MAX: u64 = 1_000_000;

/// Schema keywords whose value is one subschema.
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
/// Schema keywords whose value is several subschemas, as a list or by name.
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
/// Schema keywords that refer to another schema.
const REFERENCE_KEYWORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Schema keywords for which all subschemas about the same object are compiled once more.
const UNEVALUATED_KEYWORDS: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// Schema keywords whose error contains the errors of all their branches.
const CHOICE_KEYWORDS: [&str; 2] = ["anyOf", "oneOf"];
/// Schema keywords whose list is compared with a value entry by entry.
const LIST_KEYWORDS: [&str; 2] = ["required", "enum"];
/// Start of the ids of the JSON Schema standard's own schemas.
const STANDARD_IDS: [&str; 2] = ["http://json-schema.org/", "https://json-schema.org/"];

/// Size of a JSON schema, which bounds the cost of compiling it and of validation against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaSize {
    /// Number of subschemas that are compiled. A subschema with several references is compiled
    /// once.
    pub(super) compiled: u64,
    /// Number of subschemas of a schema, and of entries in their lists. A subschema counts once for
    /// each reference to it.
    pub(super) weight: u64,
    /// Number of references in the schema that lead back to an enclosing schema.
    pub(super) back_references: u64,
    /// True if a validation error may contain the errors of several branches.
    pub(super) has_choices: bool,
    pub(super) patterns: PatternSizeTotals,
}

/// Size of one subschema.
#[derive(Debug, Clone, Copy)]
struct SubschemaSize {
    subschemas: u64,
    /// Number of subschemas that an enclosing `unevaluatedProperties` compiles again.
    evaluated: u64,
    weight: u64,
    back_references: u64,
}

impl SchemaSize {
    /// Measures the JSON schema `schema`, whose references lead only to itself.
    ///
    /// # Errors
    /// The schema exceeds a limit, has an invalid pattern, or refers to another schema.
    pub fn measure(schema: &Value) -> Result<Self, String> {
        Self::measure_with(schema, [], true)
    }

    /// Measures the JSON schema `schema`, whose references may also lead to `documents`: other
    /// schemas and their URIs.
    ///
    /// # Errors
    /// The schema exceeds a limit or has an invalid pattern.
    pub fn measure_among<'s>(
        schema: &'s Value,
        documents: impl IntoIterator<Item = (&'s str, &'s Value)>,
    ) -> Result<Self, String> {
        Self::measure_with(schema, documents, false)
    }

    fn measure_with<'s>(
        schema: &'s Value,
        documents: impl IntoIterator<Item = (&'s str, &'s Value)>,
        is_complete: bool,
    ) -> Result<Self, String> {
        let mut names = SchemaReferenceTargets {
            resources: vec![("", schema)],
            is_complete,
            ..SchemaReferenceTargets::default()
        };
        names.collect(schema, schema);
        for (uri, document) in documents {
            names.resources.push((uri, document));
            names.collect(document, document);
        }
        let mut counter = SchemaSizeCounter {
            names,
            sizes: HashMap::new(),
            in_progress: HashSet::new(),
            lookups: 0,
            has_choices: false,
            compiles_again: false,
            patterns: PatternSizeCounter::default(),
        };
        let SubschemaSize { subschemas, weight, back_references, .. } =
            counter.measure(schema, 0)?;
        if subschemas > SUBSCHEMAS_MAX {
            return Err(format!(
                "the schema expands to more than {SUBSCHEMAS_MAX} subschemas, counted once per \
                 reference"
            ));
        }
        if weight > WEIGHT_MAX {
            return Err(format!(
                "the lists in the schema have more than {WEIGHT_MAX} entries in \
                 total"
            ));
        }
        let SchemaSizeCounter { sizes, has_choices, compiles_again, patterns, .. } = counter;
        let compiled = if compiles_again { subschemas } else { 1 + sizes.len() as u64 };
        let patterns = patterns.finish();
        Ok(Self { compiled, weight, back_references, has_choices, patterns })
    }
}

impl SubschemaSize {
    const ONE: Self = Self { subschemas: 1, evaluated: 1, weight: 1, back_references: 0 };

    fn add(&mut self, part: Self) {
        self.subschemas = self.subschemas.saturating_add(part.subschemas);
        self.weight = self.weight.saturating_add(part.weight);
        self.back_references = self.back_references.saturating_add(part.back_references);
        // The part itself is compiled again, and so is everything that it evaluates.
        let again = part.subschemas.saturating_add(part.evaluated);
        self.evaluated = self.evaluated.saturating_add(again);
    }
}

/// Possible targets of a schema's references.
#[derive(Default)]
struct SchemaReferenceTargets<'s> {
    /// The root schema and all schemas with an id, each with the id.
    resources: Vec<(&'s str, &'s Value)>,
    /// Schemas with an anchor, by the anchor's name.
    anchors: HashMap<&'s str, Vec<&'s Value>>,
    /// Schemas that contain a reference, with the schema resource to which they belong.
    reference_resources: HashMap<*const Value, &'s Value>,
    /// True if all schemas are known. A reference to any other schema is then an error.
    is_complete: bool,
}

impl<'s> SchemaReferenceTargets<'s> {
    /// Adds the ids, anchors and references in the schema below `value`, which is part of
    /// `resource`, to these targets.
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

    /// Returns true if `name` is a URL that none of the known schema resources has.
    fn is_remote(&self, name: &str) -> bool {
        let last = name.rsplit('/').next().unwrap_or_default();
        name.contains("://")
            && !self.resources.iter().any(|(id, _)| id.ends_with(last) && !id.is_empty())
    }

    /// Returns the schema resources that the URI `name` may mean within the schema `at`. Base URIs
    /// are not resolved, so the result may contain too many resources, which only overestimates the
    /// cost.
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

/// Recursive counter of a schema's subschemas.
struct SchemaSizeCounter<'s> {
    names: SchemaReferenceTargets<'s>,
    /// Sizes of the schemas that were counted already, by the address of the schema.
    sizes: HashMap<*const Value, SubschemaSize>,
    /// Schemas that are being counted now. A reference to one of them is recursive.
    in_progress: HashSet<*const Value>,
    /// Number of lookups of reference targets so far.
    lookups: u64,
    has_choices: bool,
    /// True if a keyword of the schema, such as `unevaluatedItems`, compiles subschemas a second
    /// time.
    compiles_again: bool,
    patterns: PatternSizeCounter<'s>,
}

impl<'s> SchemaSizeCounter<'s> {
    fn measure(&mut self, schema: &'s Value, depth: usize) -> Result<SubschemaSize, String> {
        let Value::Object(fields) = schema else { return Ok(SubschemaSize::ONE) };
        let at = std::ptr::from_ref(schema);
        if let Some(known) = self.sizes.get(&at) {
            return Ok(*known);
        }
        if depth > DEPTH_MAX {
            return Err(format!("the subschemas are nested more than {DEPTH_MAX} levels deep"));
        }
        if !self.in_progress.insert(at) {
            return Ok(SubschemaSize { back_references: 1, ..SubschemaSize::ONE });
        }
        self.count_keywords(fields)?;
        let mut sum = SubschemaSize::ONE;
        let lists = LIST_KEYWORDS.iter().filter_map(|name| fields.get(*name)?.as_array());
        sum.weight += lists.map(|list| list.len() as u64).sum::<u64>();
        for part in self.subschemas(schema, fields)? {
            sum.add(self.measure(part, depth + 1)?);
        }
        for _ in UNEVALUATED_KEYWORDS.iter().filter(|name| fields.contains_key(**name)) {
            self.compiles_again = true;
            sum.subschemas = sum.subschemas.saturating_add(sum.evaluated);
            sum.weight = sum.weight.saturating_add(sum.evaluated);
        }
        self.in_progress.remove(&at);
        self.sizes.insert(at, sum);
        Ok(sum)
    }

    /// Adds the patterns in a schema's keywords `fields` to this counter, and notes keywords such
    /// as `anyOf`. Fails if the patterns exceed a limit.
    fn count_keywords(&mut self, fields: &'s Map<String, Value>) -> Result<(), String> {
        self.has_choices |= CHOICE_KEYWORDS.iter().any(|name| fields.contains_key(*name));
        if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
            self.patterns.add(pattern)?;
        }
        let names = fields.get("patternProperties").and_then(Value::as_object);
        names.into_iter().flat_map(Map::keys).try_for_each(|name| self.patterns.add_name(name))
    }

    /// Returns the subschemas of the schema `at`, whose keywords are `fields`, and all possible
    /// targets of its references. Fails if the schema refers outside itself or has too many
    /// possible targets.
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
            let referred = self.reference_targets(reference, at)?;
            self.lookups += referred.len() as u64 + self.names.resources.len() as u64;
            parts.extend(referred);
        }
        if self.lookups > LOOKUPS_MAX {
            return Err("the references in the schema have too many possible targets".to_owned());
        }
        Ok(parts)
    }

    /// Returns all possible targets of `reference` within the schema `at`, each once.
    fn reference_targets(&self, reference: &str, at: &Value) -> Result<Vec<&'s Value>, String> {
        if STANDARD_IDS.iter().any(|start| reference.starts_with(start)) {
            return Ok(Vec::new());
        }
        let (resource, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        if self.names.is_complete && self.names.is_remote(resource) {
            return Err(format!(
                "the schema refers to `{resource}`, which it does not contain; references are \
                 never fetched"
            ));
        }
        let Ok(fragment) = percent_decode_str(fragment).decode_utf8() else {
            return Ok(Vec::new());
        };
        let targets: Vec<_> = if fragment.is_empty() || fragment.starts_with('/') {
            let resources = self.names.find_resources(resource, at).into_iter();
            resources.filter_map(|resource| resource.pointer(&fragment)).collect()
        } else {
            self.names.anchors.get(&*fragment).cloned().unwrap_or_default()
        };
        if self.names.is_complete && targets.is_empty() {
            return Err(format!("the schema refers to `{reference}`, which does not exist"));
        }
        // One document may have several URIs.
        let mut seen = HashSet::new();
        Ok(targets.into_iter().filter(|it| seen.insert(std::ptr::from_ref::<Value>(it))).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a schema with `length` definitions. `link` builds each definition from a reference
    /// to the next definition.
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
        assert!(SchemaSize::measure(&all).is_ok_and(|size| size.weight < 1000));
    }

    #[test]
    fn unevaluated_properties_count_all_that_they_compile_again() {
        let nested = |depth: usize| {
            (0..depth).fold(
                json!({ "type": "string" }),
                |inner, _| json!({ "properties": { "a": inner }, "unevaluatedProperties": false }),
            )
        };
        assert!(SchemaSize::measure(&nested(6)).is_ok_and(|size| size.weight < 2000));
        assert!(SchemaSize::measure(&nested(40)).expect_err("it is too large").contains("expands"));
    }

    #[test]
    fn a_schema_among_others_counts_each_document_once() {
        let unit = json!({ "$id": "https://x/unit.json", "allOf": [{}, {}, {}] });
        let whole = json!({ "$ref": "unit.json" });
        let uris = ["https://x/unit.json", "file:///a/unit.json", "https://y/1/unit.json"];
        let size = SchemaSize::measure_among(&whole, uris.map(|uri| (uri, &unit)));
        assert!(size.is_ok_and(|size| size.weight == 5));
        let missing = json!({ "$ref": "https://elsewhere.invalid/a" });
        assert!(SchemaSize::measure(&missing).is_err_and(|why| why.contains("never fetched")));
        let standard = json!({ "$ref": "https://json-schema.org/draft/2020-12/schema" });
        assert!(SchemaSize::measure(&standard).is_ok());
    }

    #[test]
    fn the_search_for_reference_targets_is_bounded() {
        let ids = |at: usize| (format!("i{at}"), json!({ "$id": format!("https://x/{at}") }));
        let refs = |at: usize| (format!("r{at}"), json!({ "$ref": format!("#/nowhere{at}") }));
        let all: Map<_, _> = (0..2000).flat_map(|at| [ids(at), refs(at)]).collect();
        let too_many = json!({ "properties": all });
        let measured = SchemaSize::measure_among(&too_many, []);
        assert!(measured.expect_err("they are too many").contains("too many"));
        let why = SchemaSize::measure(&too_many).expect_err("they do not exist");
        assert!(why.contains("does not exist"), "{why}");
    }
}
