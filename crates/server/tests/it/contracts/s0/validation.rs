//! Assets held against schemas.

use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::{Value, json};

use super::adapter::{Adapter, SCHEMAS, Start, fixture, folder, put};

pub(super) fn judge(adapter: &mut Adapter, schema: impl Into<Value>, asset: Value) -> Value {
    adapter.call("validate_asset", json!({ "asset": asset, "schema": schema.into() }))
}

/// An adapter with these schemas.
fn with(schemas: &[(&str, Value)]) -> (Adapter, tempfile::TempDir) {
    let at = folder();
    for (name, schema) in schemas {
        put(at.path(), &format!("{SCHEMAS}/{name}.schema.json"), &schema.to_string());
    }
    (Start::at(at.path()).ready(), at)
}

/// A listener that counts who calls.
struct Ear {
    listener: TcpListener,
    address: SocketAddr,
}

impl Ear {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { address: listener.local_addr().unwrap(), listener }
    }

    /// How many called since this was asked last: the kernel keeps them waiting until then.
    fn calls(&self) -> usize {
        std::iter::from_fn(|| self.listener.accept().ok()).count()
    }
}

#[test]
fn who_calls_is_counted() {
    let ear = Ear::open();
    let caller = TcpStream::connect(ear.address).unwrap();
    assert_eq!((ear.calls(), ear.calls()), (1, 0));
    drop(caller);
}

/// Path and message of each error, in the order they came; the shape of them is checked.
#[track_caller]
fn errors(result: &Value) -> Vec<(String, String)> {
    assert_eq!(result["ok"], false, "{result}");
    let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ok", "reason", "errors"], "{result}");
    assert_eq!(result["reason"], "validation_failed");
    let error = |error: &Value| {
        let keys: Vec<_> = error.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["path", "msg"], "{error}");
        let text = |key: &str| error[key].as_str().expect("a text").to_owned();
        (text("path"), text("msg"))
    };
    result["errors"].as_array().unwrap().iter().map(error).collect()
}

#[test]
fn s0_03_the_words_of_draft_2020_12_mean_what_they_mean_there() {
    let tree = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://x.example/tree", "$dynamicAnchor": "node", "type": "object",
        "properties": { "children": { "type": "array", "items": { "$dynamicRef": "#node" } } },
    });
    let strict = json!({
        "$id": "https://x.example/strict-tree", "$dynamicAnchor": "node",
        "$ref": "tree", "unevaluatedProperties": false,
    });
    let (mut adapter, _at) = with(&[
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
        // What the outer schema says holds for the inner nodes: the reference is dynamic.
        ("strict", json!({ "children": [{ "daat": 1 }] }), false),
        ("unevaluated", json!({ "a": 1 }), true),
        ("unevaluated", json!({ "a": 1, "b": 1 }), false),
        ("contains", json!([1, 2, "a"]), true),
        ("contains", json!([1, "a"]), false),
        ("contains", json!([1, 2, 3, 4]), false),
    ] {
        let told = judge(&mut adapter, schema, asset.clone());
        assert_eq!(told["ok"], valid, "{schema} {asset}: {told}");
    }
    // A list of schemas for items is of drafts before: here it is no schema.
    assert_eq!(judge(&mut adapter, "items", json!([]))["ok"], false);
}

#[test]
fn s0_41_54_an_asset_is_held_against_the_schema_that_is_named_and_it_must_be() {
    let mut adapter = Start::at(&fixture()).ready();
    let tone = json!({ "name": "Low hum", "frequency": 110 });
    adapter.send(&super::adapter::line(
        1,
        "validate_asset",
        json!({ "asset": tone, "schema": "tone" }),
    ));
    assert_eq!(adapter.receive(), r#"{"jsonrpc":"2.0","id":1,"result":{"ok":true,"errors":[]}}"#);
    let told = errors(&judge(&mut adapter, "tone", json!({ "name": "" })));
    assert_eq!(told.len(), 2, "{told:?}");
    let frequency = ("".to_owned(), "'frequency' is a required property".to_owned());
    assert_eq!(told[0], frequency);
    assert_eq!(told[1].0, "/name");
    for schema in [json!(null), json!(""), json!("nothing"), json!("../tone"), json!(7), json!({})]
    {
        let told = errors(&judge(&mut adapter, schema.clone(), tone.clone()));
        assert!(
            told.iter().any(|(at, why)| at.contains("schema") || why.contains("schema")),
            "{schema}: {told:?}"
        );
    }
    let told = errors(&adapter.call("validate_asset", json!({ "asset": tone })));
    assert!(told.iter().any(|(_, why)| why.contains("schema")), "{told:?}");
    // An asset may be any value.
    for asset in [json!([]), json!("x"), json!(7), json!(null)] {
        assert_eq!(errors(&judge(&mut adapter, "tone", asset))[0].0, "");
    }
}

#[test]
fn s0_46_48_80_errors_are_pointers_into_the_asset_in_the_order_of_path_then_message() {
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
    let (mut adapter, _at) = with(&[("odd", schema)]);
    let asset = json!({
        "é": "1", "b": "1", "a0": "1", "a": {}, "a!": "1", "list": [5, "x", 1, "y", 2, "z", 0, 0, 0, 0, "k"],
        "": "1", "a/b~c": "1", "stranger": 1, "another": 2,
    });
    let told = errors(&judge(&mut adapter, "odd", asset.clone()));
    let mut sorted = told.clone();
    sorted.sort();
    assert_eq!(told, sorted, "in the order of code points");
    let paths: Vec<_> = told.iter().map(|(path, _)| path.as_str()).collect();
    for path in ["", "/", "/a!", "/a~1b~0c", "/list/1", "/list/10", "/a", "/é"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    for path in &paths {
        assert!(asset.pointer(path).is_some(), "{path} leads nowhere");
        assert!(path.is_empty() || path.starts_with('/'), "{path}");
    }
    assert!(told.len() >= 15, "{told:?}");
    assert_eq!(paths.iter().filter(|path| **path == "/b").count(), 2);
    // The order of the asset's own keys changes nothing.
    let mut shuffled: Vec<_> = asset.as_object().unwrap().clone().into_iter().collect();
    shuffled.reverse();
    let shuffled =
        errors(&judge(&mut adapter, "odd", Value::Object(shuffled.into_iter().collect())));
    let order = |errors: &[(String, String)]| {
        errors.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(order(&shuffled), order(&told));
}

#[test]
fn s0_65_a_schema_without_an_id_is_where_its_file_is_and_one_with_is_where_it_says() {
    let ear = Ear::open();
    let (mut adapter, at) = with(&[
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
        ("near", json!({ "$ref": format!("http://{}/nothing.json", ear.address) })),
        (
            "within",
            json!({ "properties": { "x": { "$ref": format!("http://{}/a.schema.json#/x", ear.address) } } }),
        ),
        (
            "here",
            json!({ "$id": format!("http://{}/x/here.schema.json", ear.address), "$ref": "/x/there.schema.json" }),
        ),
        (
            "there",
            json!({ "$id": format!("http://{}/x/there.schema.json", ear.address), "type": "boolean" }),
        ),
    ]);
    let mut valid = |schema: &str, asset: Value| judge(&mut adapter, schema, asset)["ok"] == true;
    assert!(valid("a", json!({ "b": "x", "n": 1 })));
    assert!(!valid("a", json!({ "b": 1 })));
    assert!(!valid("a", json!({ "n": "x" })));
    assert!(valid("c", json!({ "d": true })));
    assert!(!valid("c", json!({ "d": 1 })));
    // What is nowhere here is not looked for elsewhere.
    for schema in ["away", "near", "within"] {
        assert!(!valid(schema, json!({ "x": 1 })), "{schema}");
    }
    // What is here is found by the address that it gives itself, and nobody calls there.
    assert!(valid("here", json!(true)));
    assert!(!valid("here", json!(1)));
    assert_eq!(ear.calls(), 0, "somebody called");
    // Each file also stands for what is published under its name and version.
    put(at.path(), "libs/synesthetic-schemas/version.json", r#"{"schemaVersion":"0.7.3"}"#);
    let mut adapter = Start::at(at.path()).ready();
    assert_eq!(judge(&mut adapter, "e", json!({ "b": "x" }))["ok"], true);
    assert_eq!(errors(&judge(&mut adapter, "e", json!({ "b": 1 })))[0].0, "/b");
}

#[test]
fn s0_68_69_every_example_of_an_asset_is_valid_by_the_alias_as_by_the_schema_itself() {
    let mut adapter = Start::at(&fixture()).ready();
    for number in 1..=9 {
        let path = format!("SynestheticAsset_Example{number}.json");
        let example = adapter.call("get_example", json!({ "path": path }))["example"].clone();
        assert!(example.is_object(), "{path}");
        let alias = judge(&mut adapter, "nested-synesthetic-asset", example.clone());
        assert_eq!(alias.to_string(), r#"{"ok":true,"errors":[]}"#, "{path}");
        assert_eq!(judge(&mut adapter, "synesthetic-asset", example.clone()), alias);
        // And what is wrong with it is told alike.
        let mut broken = example;
        broken["tone"] = json!({ "name": "", "frequency": -1 });
        let alias = judge(&mut adapter, "nested-synesthetic-asset", broken.clone());
        assert_eq!(errors(&alias)[0].0, "/tone", "{alias}");
        assert_eq!(judge(&mut adapter, "synesthetic-asset", broken), alias);
    }
}

#[test]
fn s0_70_the_reference_at_the_top_of_an_asset_is_not_resolved_and_one_within_is_a_stranger() {
    let ear = Ear::open();
    let mut adapter = Start::at(&fixture()).ready();
    for reference in [
        json!("nope://zz"),
        json!("/etc/passwd"),
        json!(format!("http://{}/tone.schema.json", ear.address)),
        json!(format!("//{}/tone.schema.json", ear.address)),
        json!(7),
        json!(null),
    ] {
        for schema in ["nested-synesthetic-asset", "synesthetic-asset"] {
            let asset = json!({ "$schemaRef": reference, "name": "x" });
            assert_eq!(judge(&mut adapter, schema, asset)["ok"], true, "{reference}");
        }
    }
    let within =
        json!({ "name": "x", "modulations": [{ "$schemaRef": "x", "target": "a", "rate": 1 }] });
    let told = errors(&judge(&mut adapter, "nested-synesthetic-asset", within));
    assert_eq!(told[0].0, "/modulations/0");
    assert!(told[0].1.contains("$schemaRef"), "{told:?}");
    assert_eq!(ear.calls(), 0, "somebody called");
}
