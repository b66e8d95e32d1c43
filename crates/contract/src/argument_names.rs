//! The names of arguments: those that all built-in tools share, and other names that models guess
//! for them.

use serde_json::{Map, Value};

use crate::ToolSpec;

/// Names that models guess for an argument, in every tool of this server that has the argument.
/// Aliases of a single tool are in [`ToolSpec::aliases`].
const VOCABULARY: &[(&str, &[&str])] = &[
    ("limit", &["count", "max_results", "top_k", "topK", "n"]),
    ("cursor", &["next", "after", "skip"]),
    ("start_line", &["from_line"]),
    ("end_line", &["to_line"]),
    ("query", &["text", "q"]),
    ("path", &["file", "file_path", "path_prefix"]),
    ("paths", &["files"]),
    ("glob", &["globs"]),
    ("repo", &["folder", "project", "dir", "directory", "root", "cwd"]),
    ("cwd", &["folder", "project", "dir", "directory", "root", "path", "repo"]),
    ("source", &["src", "from"]),
    ("destination", &["dest", "to"]),
];

/// Separator in an alias between the name of a list and the name of a field of the list's items.
const ITEM_SEPARATOR: &str = "[].";

/// Arguments of a call, in which guessed names are replaced by the tool's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedArguments {
    /// Arguments of the call with the tool's own names.
    pub input: Value,
    /// Each argument that was renamed: the caller's name for it and the tool's name.
    pub renamed: Vec<(String, &'static str)>,
}

impl RenamedArguments {
    /// Replaces guessed names of arguments in `input`, the arguments of the tool `spec`. Returns
    /// `None` if no name has to be replaced.
    ///
    /// Does not replace a name that is already an argument of the tool, a name that could mean two
    /// arguments, or a name whose argument `input` also contains under its own name.
    pub fn new(spec: &ToolSpec, input: &Value) -> Option<Self> {
        if spec.group.is_some() {
            return None;
        }
        let schema = &*spec.input_schema;
        let known = schema.get("properties")?.as_object()?;
        let mut fields = input.as_object()?.clone();
        let find = |alias: &str| own_name(spec, known, alias);
        let renamed = rename_fields(&mut fields, known, find);
        let mut has_changed = !renamed.is_empty();
        for (alias, name) in spec.aliases {
            let Some((list, alias)) = alias.split_once(ITEM_SEPARATOR) else { continue };
            let items = fields.get_mut(list).and_then(Value::as_array_mut);
            let known = known.get(list).and_then(|list| list["items"]["properties"].as_object());
            let (Some(items), Some(known)) = (items, known) else { continue };
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                let find = |given: &str| (given == alias).then_some(*name);
                has_changed |= !rename_fields(item, known, find).is_empty();
            }
        }
        has_changed.then_some(Self { input: Value::Object(fields), renamed })
    }

    /// Converts a JSON `pointer` into the renamed arguments to a pointer into those of the caller.
    pub fn original_pointer(&self, pointer: &str) -> String {
        let Some(path) = pointer.strip_prefix('/') else { return pointer.to_owned() };
        let (first, rest) = path.split_once('/').map_or((path, None), |(a, b)| (a, Some(b)));
        let Some((alias, _)) = self.renamed.iter().find(|(_, name)| *name == first) else {
            return pointer.to_owned();
        };
        let rest = rest.map(|rest| format!("/{rest}")).unwrap_or_default();
        format!("/{alias}{rest}")
    }
}

/// Returns each name that the tool `spec` of this server accepts for one of its arguments, with
/// that argument.
pub fn accepted_names(spec: &ToolSpec) -> Vec<(&'static str, &'static str)> {
    let Some(known) = spec.input_schema.get("properties").and_then(Value::as_object) else {
        return Vec::new();
    };
    let guesses = VOCABULARY.iter().flat_map(|(_, guesses)| guesses.iter().copied());
    let own = spec.aliases.iter().map(|(alias, _)| *alias);
    let mut all: Vec<&'static str> = guesses.chain(own).collect();
    all.sort_unstable();
    all.dedup();
    let in_items = |alias: &str| {
        let (_, name) = spec.aliases.iter().find(|(own, _)| *own == alias)?;
        alias.contains(ITEM_SEPARATOR).then_some(*name)
    };
    let pairs = all.into_iter().filter_map(|alias| {
        let name = in_items(alias).or_else(|| own_name(spec, known, alias))?;
        Some((alias, name))
    });
    pairs.collect()
}

/// Returns the argument of the tool `spec` that `alias` means, unless `alias` is an argument itself
/// or could mean two.
fn own_name(spec: &ToolSpec, known: &Map<String, Value>, alias: &str) -> Option<&'static str> {
    if known.contains_key(alias) {
        return None;
    }
    if let Some((_, name)) = spec.aliases.iter().find(|(own, _)| *own == alias) {
        return Some(name);
    }
    let rows = VOCABULARY.iter().filter(|(name, guesses)| {
        let takes_numbers = || has_type(&known[*name], "integer");
        known.contains_key(*name)
            && guesses.contains(&alias)
            && (alias != "skip" || takes_numbers())
    });
    let mut names = rows.map(|(name, _)| *name);
    let name = names.next()?;
    names.next().is_none().then_some(name)
}

/// Renames the arguments in `fields` for which `find` knows the name in `known`. Returns each old
/// name with the new one.
fn rename_fields(
    fields: &mut Map<String, Value>,
    known: &Map<String, Value>,
    find: impl Fn(&str) -> Option<&'static str>,
) -> Vec<(String, &'static str)> {
    let guessed: Vec<(String, &'static str)> = fields
        .keys()
        .filter(|given| !known.contains_key(*given))
        .filter_map(|given| Some((given.clone(), find(given)?)))
        .collect();
    let is_free = |name: &str| {
        let is_absent = fields.get(name).is_none_or(Value::is_null);
        is_absent && guessed.iter().filter(|(_, other)| *other == name).count() == 1
    };
    let renamed: Vec<_> = guessed.iter().filter(|(_, name)| is_free(name)).cloned().collect();
    for (alias, name) in &renamed {
        if let Some(value) = fields.remove(alias) {
            fields.insert((*name).to_owned(), in_form_of(known.get(*name), value));
        }
    }
    renamed
}

/// Returns the argument `value` with the type that `schema` demands: a list of one item becomes
/// this item.
fn in_form_of(schema: Option<&Value>, value: Value) -> Value {
    match value {
        Value::Array(mut items)
            if items.len() == 1 && schema.is_some_and(|schema| !has_type(schema, "array")) =>
        {
            items.remove(0)
        }
        value => value,
    }
}

/// Returns true if the JSON Schema `schema` allows values of the type `name`.
fn has_type(schema: &Value, name: &str) -> bool {
    match &schema["type"] {
        Value::String(only) => only == name,
        Value::Array(names) => names.iter().any(|one| one == name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Effects, ToolId};

    fn spec(aliases: &'static [(&'static str, &'static str)]) -> ToolSpec {
        let id = ToolId::new("files.sample").expect("an id");
        let properties = json!({
            "limit": { "type": "integer" },
            "cursor": { "type": ["string", "null"] },
            "path": { "type": "string" },
            "repo": { "type": "string" },
            "edits": { "type": "array", "items": { "properties": { "old": {} } } },
        });
        ToolSpec {
            input_schema: json!({ "type": "object", "properties": properties }).into(),
            aliases,
            ..ToolSpec::new(id, "Sample", "Sample.", Effects::Reads)
        }
    }

    #[track_caller]
    fn check(input: &Value, expected: Option<&Value>) {
        let spec = spec(&[("edits[].old_string", "old"), ("where", "path")]);
        let renamed = RenamedArguments::new(&spec, input).map(|renamed| renamed.input);
        assert_eq!(renamed.as_ref(), expected, "{input}");
    }

    #[test]
    fn a_guessed_name_is_replaced_by_the_tools_own() {
        check(&json!({ "count": 3 }), Some(&json!({ "limit": 3 })));
        check(&json!({ "file": "a", "limit": 3 }), Some(&json!({ "path": "a", "limit": 3 })));
        check(&json!({ "file": ["a"] }), Some(&json!({ "path": "a" })));
        check(&json!({ "where": "a" }), Some(&json!({ "path": "a" })));
        check(&json!({ "count": 3, "limit": null }), Some(&json!({ "limit": 3 })));
        let edits = json!({ "edits": [{ "old_string": "a" }, { "old": "b" }] });
        check(&edits, Some(&json!({ "edits": [{ "old": "a" }, { "old": "b" }] })));
    }

    #[test]
    fn a_name_with_two_meanings_or_none_is_kept() {
        for kept in [
            json!({ "limit": 3 }),
            json!({ "count": 3, "limit": 3 }),
            json!({ "count": 3, "n": 3 }),
            json!({ "skip": 3 }),
            json!({ "zebra": 3 }),
            json!({ "query": "a" }),
            json!([1]),
        ] {
            check(&kept, None);
        }
    }

    #[test]
    fn a_pointer_leads_back_to_the_name_that_the_caller_wrote() {
        let renamed = RenamedArguments::new(&spec(&[]), &json!({ "count": "x", "file": ["a"] }));
        let renamed = renamed.expect("a guessed name");
        assert_eq!(renamed.original_pointer("/limit"), "/count");
        assert_eq!(renamed.original_pointer("/path/0"), "/file/0");
        assert_eq!(renamed.original_pointer("/repo"), "/repo");
        assert_eq!(renamed.original_pointer(""), "");
    }

    #[test]
    fn accepted_names_list_the_vocabulary_and_the_tools_own() {
        let names = accepted_names(&spec(&[("edits[].old_string", "old")]));
        assert!(names.contains(&("count", "limit")), "{names:?}");
        assert!(names.contains(&("edits[].old_string", "old")), "{names:?}");
        assert!(!names.iter().any(|(alias, _)| *alias == "skip"), "{names:?}");
    }
}
