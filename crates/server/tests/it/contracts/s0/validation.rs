//! Tests of assets that are validated against schemas.

use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use super::adapter::{
    SCHEMAS, SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, folder, put,
};

pub(super) fn validate(
    adapter: &mut SynestheticAdapterProcess,
    schema: impl Into<Value>,
    asset: Value,
) -> Value {
    adapter.call("validate_asset", json!({ "asset": asset, "schema": schema.into() }))
}

/// Starts an adapter whose schema folder contains `schemas`.
fn adapter_with(schemas: &[(&str, Value)]) -> (SynestheticAdapterProcess, tempfile::TempDir) {
    let at = folder();
    for (name, schema) in schemas {
        put(at.path(), &format!("{SCHEMAS}/{name}.schema.json"), &schema.to_string());
    }
    (SynestheticAdapterOptions::at(at.path()).ready(), at)
}

/// Listener that counts incoming connections.
struct ConnectionCountingListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl ConnectionCountingListener {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { address: listener.local_addr().unwrap(), listener }
    }

    /// Returns the number of new connections since the last call. The kernel queues connections
    /// between calls.
    fn connections(&self) -> usize {
        std::iter::from_fn(|| self.listener.accept().ok()).count()
    }
}

#[test]
fn connections_to_the_counter_are_counted() {
    let counter = ConnectionCountingListener::open();
    let caller = TcpStream::connect(counter.address).unwrap();
    assert_eq!((counter.connections(), counter.connections()), (1, 0));
    drop(caller);
}

/// Returns the path and the message of each validation error, in order. Checks the structure of
/// each error.
#[track_caller]
fn errors(result: &Value) -> Vec<(String, String)> {
    assert_eq!(result["ok"], false, "{result}");
    let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ok", "reason", "errors"], "{result}");
    assert_eq!(result["reason"], "validation_failed");
    let error = |error: &Value| {
        let keys: Vec<_> = error.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["path", "msg"], "{error}");
        let text = |key: &str| error[key].as_str().expect("a string").to_owned();
        (text("path"), text("msg"))
    };
    result["errors"].as_array().unwrap().iter().map(error).collect()
}

#[test]
fn s0_03_keywords_of_draft_2020_12_are_applied() {
    let tree = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://x.example/tree", "$dynamicAnchor": "node", "type": "object",
        "properties": { "children": { "type": "array", "items": { "$dynamicRef": "#node" } } },
    });
    let strict = json!({
        "$id": "https://x.example/strict-tree", "$dynamicAnchor": "node",
        "$ref": "tree", "unevaluatedProperties": false,
    });
    let (mut adapter, _at) = adapter_with(&[
        (
            "prefix",
            json!({ "prefixItems": [{ "type": "string" }, { "type": "number" }], "items": false }),
        ),
        ("items", json!({ "type": "array", "items": [] })),
        ("dependent", json!({ "dependentRequired": { "a": ["b"] } })),
        ("tree", tree),
        ("strict", strict),
        (
            "unevaluated",
            json!({ "allOf": [{ "properties": { "a": true } }], "unevaluatedProperties": false }),
        ),
        (
            "contains",
            json!({ "contains": { "type": "number" }, "minContains": 2, "maxContains": 3 }),
        ),
    ]);
    for (schema, asset, valid) in [
        ("prefix", json!(["a", 1]), true),
        ("prefix", json!(["a"]), true),
        ("prefix", json!([1, 1]), false),
        ("prefix", json!(["a", 1, 2]), false),
        ("dependent", json!({ "a": 1, "b": 1 }), true),
        ("dependent", json!({ "b": 1 }), true),
        ("dependent", json!({ "a": 1 }), false),
        ("tree", json!({ "children": [{ "data": 1, "daat": 1 }] }), true),
        ("strict", json!({ "children": [{ "children": [] }] }), true),
        // The outer schema applies to the inner nodes: the reference is dynamic.
        ("strict", json!({ "children": [{ "daat": 1 }] }), false),
        ("unevaluated", json!({ "a": 1 }), true),
        ("unevaluated", json!({ "a": 1, "b": 1 }), false),
        ("contains", json!([1, 2, "a"]), true),
        ("contains", json!([1, "a"]), false),
        ("contains", json!([1, 2, 3, 4]), false),
    ] {
        let result = validate(&mut adapter, schema, asset.clone());
        assert_eq!(result["ok"], valid, "{schema} {asset}: {result}");
    }
    // An array of schemas for `items` is from earlier drafts and invalid here.
    assert_eq!(validate(&mut adapter, "items", json!([]))["ok"], false);
}

#[test]
fn s0_41_54_an_asset_is_validated_against_the_named_schema_which_is_required() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let tone = json!({ "name": "Low hum", "frequency": 110 });
    adapter.send(&super::adapter::line(
        1,
        "validate_asset",
        json!({ "asset": tone, "schema": "tone" }),
    ));
    assert_eq!(adapter.receive(), r#"{"jsonrpc":"2.0","id":1,"result":{"ok":true,"errors":[]}}"#);
    let found = errors(&validate(&mut adapter, "tone", json!({ "name": "" })));
    assert_eq!(found.len(), 2, "{found:?}");
    let frequency = ("".to_owned(), "'frequency' is a required property".to_owned());
    assert_eq!(found[0], frequency);
    assert_eq!(found[1].0, "/name");
    for schema in [json!(null), json!(""), json!("nothing"), json!("../tone"), json!(7), json!({})]
    {
        let found = errors(&validate(&mut adapter, schema.clone(), tone.clone()));
        assert!(
            found.iter().any(|(at, why)| at.contains("schema") || why.contains("schema")),
            "{schema}: {found:?}"
        );
    }
    let found = errors(&adapter.call("validate_asset", json!({ "asset": tone })));
    assert!(found.iter().any(|(_, why)| why.contains("schema")), "{found:?}");
    // An asset may be any value.
    for asset in [json!([]), json!("x"), json!(7), json!(null)] {
        assert_eq!(errors(&validate(&mut adapter, "tone", asset))[0].0, "");
    }
}

#[test]
fn s0_46_48_80_errors_are_pointers_into_the_asset_sorted_by_path_then_message() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a/b~c": { "type": "number" }, "": { "type": "number" }, "list": { "items": { "type": "number", "minimum": 3 } },
            "b": { "type": "string", "minLength": 3, "pattern": "^x" }, "a!": { "type": "number" }, "a": { "required": ["z", "y"] },
            "a0": { "type": "number" }, "é": { "type": "number" },
        },
        "required": ["there"],
        "additionalProperties": false,
    });
    let (mut adapter, _at) = adapter_with(&[("odd", schema)]);
    let asset = json!({
        "é": "1", "b": "1", "a0": "1", "a": {}, "a!": "1", "list": [5, "x", 1, "y", 2, "z", 0, 0, 0, 0, "k"],
        "": "1", "a/b~c": "1", "stranger": 1, "another": 2,
    });
    let found = errors(&validate(&mut adapter, "odd", asset.clone()));
    let mut sorted = found.clone();
    sorted.sort();
    assert_eq!(found, sorted, "in the order of code points");
    let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
    for path in ["", "/", "/a!", "/a~1b~0c", "/list/1", "/list/10", "/a", "/é"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    for path in &paths {
        assert!(asset.pointer(path).is_some(), "{path} points to nothing");
        assert!(path.is_empty() || path.starts_with('/'), "{path}");
    }
    assert!(found.len() >= 15, "{found:?}");
    assert_eq!(paths.iter().filter(|path| **path == "/b").count(), 2);
    // The order of the asset's keys does not matter.
    let mut shuffled: Vec<_> = asset.as_object().unwrap().clone().into_iter().collect();
    shuffled.reverse();
    let shuffled =
        errors(&validate(&mut adapter, "odd", Value::Object(shuffled.into_iter().collect())));
    let order = |errors: &[(String, String)]| {
        errors.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(order(&shuffled), order(&found));
}

#[test]
fn s0_65_schema_references_resolve_by_file_name_or_by_id() {
    let counter = ConnectionCountingListener::open();
    let (mut adapter, at) = adapter_with(&[
        (
            "a",
            json!({ "properties": { "b": { "$ref": "b.schema.json" }, "n": { "$ref": "b.schema.json#/$defs/n" } } }),
        ),
        ("b", json!({ "type": "string", "$defs": { "n": { "type": "number" } } })),
        (
            "c",
            json!({ "$id": "https://nowhere.invalid/x/c.schema.json", "properties": { "d": { "$ref": "https://nowhere.invalid/y/d.schema.json" } } }),
        ),
        ("d", json!({ "$id": "https://nowhere.invalid/y/d.schema.json", "type": "boolean" })),
        (
            "e",
            json!({ "properties": { "b": { "$ref": "https://schemas.synesthetic.dev/0.7.3/b.schema.json" } } }),
        ),
        ("away", json!({ "$ref": "https://nowhere.invalid/nothing.json" })),
        ("near", json!({ "$ref": format!("http://{}/nothing.json", counter.address) })),
        (
            "within",
            json!({ "properties": { "x": { "$ref": format!("http://{}/a.schema.json#/x", counter.address) } } }),
        ),
        (
            "here",
            json!({ "$id": format!("http://{}/x/here.schema.json", counter.address), "$ref": "/x/there.schema.json" }),
        ),
        (
            "there",
            json!({ "$id": format!("http://{}/x/there.schema.json", counter.address), "type": "boolean" }),
        ),
    ]);
    let mut valid =
        |schema: &str, asset: Value| validate(&mut adapter, schema, asset)["ok"] == true;
    assert!(valid("a", json!({ "b": "x", "n": 1 })));
    assert!(!valid("a", json!({ "b": 1 })));
    assert!(!valid("a", json!({ "n": "x" })));
    assert!(valid("c", json!({ "d": true })));
    assert!(!valid("c", json!({ "d": 1 })));
    // Unknown references are not fetched.
    for schema in ["away", "near", "within"] {
        assert!(!valid(schema, json!({ "x": 1 })), "{schema}");
    }
    // A local schema is found by its `$id`, without a request to that address.
    assert!(valid("here", json!(true)));
    assert!(!valid("here", json!(1)));
    assert_eq!(counter.connections(), 0, "a schema was fetched");
    // Each file is also found by the URL of its published name and version.
    put(at.path(), "libs/synesthetic-schemas/version.json", r#"{"schemaVersion":"0.7.3"}"#);
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    assert_eq!(validate(&mut adapter, "e", json!({ "b": "x" }))["ok"], true);
    assert_eq!(errors(&validate(&mut adapter, "e", json!({ "b": 1 })))[0].0, "/b");
}

#[test]
fn s0_68_69_asset_examples_are_valid_by_the_alias_and_by_the_schema_itself() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    for number in 1..=9 {
        let path = format!("SynestheticAsset_Example{number}.json");
        let example = adapter.call("get_example", json!({ "path": path }))["example"].clone();
        assert!(example.is_object(), "{path}");
        let alias = validate(&mut adapter, "nested-synesthetic-asset", example.clone());
        assert_eq!(alias.to_string(), r#"{"ok":true,"errors":[]}"#, "{path}");
        assert_eq!(validate(&mut adapter, "synesthetic-asset", example.clone()), alias);
        // Both report the same errors.
        let mut broken = example;
        broken["tone"] = json!({ "name": "", "frequency": -1 });
        let alias = validate(&mut adapter, "nested-synesthetic-asset", broken.clone());
        assert_eq!(errors(&alias)[0].0, "/tone", "{alias}");
        assert_eq!(validate(&mut adapter, "synesthetic-asset", broken), alias);
    }
}

#[test]
fn s0_70_a_top_level_schema_ref_is_ignored_and_a_nested_one_is_an_unknown_property() {
    let counter = ConnectionCountingListener::open();
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    for reference in [
        json!("nope://zz"),
        json!("/etc/passwd"),
        json!(format!("http://{}/tone.schema.json", counter.address)),
        json!(format!("//{}/tone.schema.json", counter.address)),
        json!(7),
        json!(null),
    ] {
        for schema in ["nested-synesthetic-asset", "synesthetic-asset"] {
            let asset = json!({ "$schemaRef": reference, "name": "x" });
            assert_eq!(validate(&mut adapter, schema, asset)["ok"], true, "{reference}");
        }
    }
    let within =
        json!({ "name": "x", "modulations": [{ "$schemaRef": "x", "target": "a", "rate": 1 }] });
    let found = errors(&validate(&mut adapter, "nested-synesthetic-asset", within));
    assert_eq!(found[0].0, "/modulations/0");
    assert!(found[0].1.contains("$schemaRef"), "{found:?}");
    assert_eq!(counter.connections(), 0, "a schema was fetched");
}
