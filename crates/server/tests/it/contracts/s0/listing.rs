//! Tests of lists and lookups of assets: their JSON structure, their order, and errors for missing
//! items.

use serde_json::{Value, json};

use super::adapter::{
    EXAMPLES, SCHEMAS, SynestheticAdapterOptions, SynestheticAdapterProcess, fixture, folder, put,
};

fn missing() -> Value {
    json!({ "ok": false, "reason": "not_found" })
}

/// Returns the values of `keys` of each item in `list`. Checks that all values are strings, and
/// that items have no other keys.
#[track_caller]
fn rows<const N: usize>(result: &Value, list: &str, keys: [&str; N]) -> Vec<[String; N]> {
    let fields: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["ok", list], "{result}");
    assert_eq!(result["ok"], true);
    let row = |item: &Value| {
        let has: Vec<_> = item.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(has, keys, "{item}");
        keys.map(|key| item[key].as_str().expect("a string").to_owned())
    };
    result[list].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn s0_37_44_47_schemas_are_listed_sorted_by_name_version_and_path() {
    let at = folder();
    // In byte order: upper case before lower case, `-` before `.`, `é` last.
    let names = ["b", "a", "B", "a-b", "a.b", "a_b", "aa", "é", "ab", "A0", "a0"];
    for name in names {
        put(at.path(), &format!("{SCHEMAS}/{name}.schema.json"), r#"{"type":"object"}"#);
    }
    for (name, schema) in [
        ("said", r#"{"version":"0.7.0"}"#),
        ("elsewhere", r#"{"x-schema-version":"0.7.3"}"#),
        ("null", r#"{"version":null}"#),
        ("number", r#"{"version":7}"#),
    ] {
        put(at.path(), &format!("{SCHEMAS}/{name}.schema.json"), schema);
    }
    // Files that are not schemas or cannot be read are not listed.
    put(at.path(), &format!("{SCHEMAS}/README.md"), "");
    put(at.path(), &format!("{SCHEMAS}/broken.schema.json"), "{");
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    let rows =
        rows(&adapter.call("list_schemas", json!({})), "schemas", ["name", "version", "path"]);
    let mut sorted = rows.clone();
    sorted.sort();
    assert_eq!(rows, sorted);
    assert_eq!(rows.len(), names.len() + 4, "{rows:?}");
    for [name, version, path] in &rows {
        assert_eq!(path, &format!("{SCHEMAS}/{name}.json"));
        let wanted = match name.as_str() {
            "said" => "0.7.0",
            "number" => "7",
            _ => "",
        };
        assert_eq!(version, wanted, "{name}");
        assert!(!path.contains('\\'));
    }
}

#[test]
fn s0_38_a_schema_is_found_by_its_exact_name_only() {
    let at = folder();
    put(at.path(), &format!("{SCHEMAS}/said.schema.json"), r#"{"version":"0.7.0","b":1,"a":1.0}"#);
    put(at.path(), "libs/synesthetic-schemas/secret.schema.json", "{}");
    put(at.path(), "secret.schema.json", "{}");
    let outside = at.path().join("secret.schema.json");
    std::os::unix::fs::symlink(&outside, at.path().join(SCHEMAS).join("linked.schema.json"))
        .unwrap();
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    adapter.send(&super::adapter::line(1, "get_schema", json!({ "name": "said" })));
    let wanted = r#"{"jsonrpc":"2.0","id":1,"result":{"ok":true,"schema":{"version":"0.7.0","b":1,"a":1.0},"version":"0.7.0"}}"#;
    assert_eq!(adapter.receive(), wanted);
    for name in [
        json!("nothing"),
        json!(""),
        json!("../secret"),
        json!("../../../secret"),
        json!("./said/../said"),
        json!(outside.to_str().unwrap()),
        json!("linked"),
        json!("said\0"),
        json!("nested-synesthetic-asset"),
        json!(null),
        json!(7),
        json!(["said"]),
        json!({}),
    ] {
        let result = adapter.call("get_schema", json!({ "name": name }));
        assert_eq!(result, missing(), "{name}");
    }
    assert_eq!(adapter.call("get_schema", json!({})), missing());
}

#[test]
fn s0_39_45_47_examples_are_listed_sorted_by_component_and_path() {
    let at = folder();
    for file in [
        "b/Tone.json",
        "a/Tone.json",
        "Tone.two.json",
        "Tone.json",
        "Haptic_Example.json",
        "_skip/deep/Lib.x.json",
        "a-b/Tone.json",
        "é/Tone.json",
        "Z.json",
    ] {
        put(at.path(), &format!("{EXAMPLES}/{file}"), "{}");
    }
    put(at.path(), &format!("{EXAMPLES}/README.md"), "");
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    let list = |adapter: &mut SynestheticAdapterProcess, params: Value| {
        rows(&adapter.call("list_examples", params), "examples", ["component", "path"])
    };
    let all = list(&mut adapter, json!({ "component": "all" }));
    assert_eq!(all.len(), 9, "{all:?}");
    let mut sorted = all.clone();
    sorted.sort();
    assert_eq!(all, sorted);
    assert!(
        all.iter()
            .all(|[_, path]| path.starts_with(&format!("{EXAMPLES}/")) && !path.contains('\\'))
    );
    for params in [
        json!({}),
        json!({ "component": "*" }),
        json!({ "component": "" }),
        json!({ "component": null }),
        json!({ "component": " all " }),
    ] {
        assert_eq!(list(&mut adapter, params.clone()), all, "{params}");
    }
    let tones = list(&mut adapter, json!({ "component": "Tone" }));
    let wanted: Vec<_> = all.iter().filter(|[component, _]| component == "Tone").cloned().collect();
    assert_eq!(tones.len(), 6);
    assert_eq!(tones, wanted);
    assert_eq!(list(&mut adapter, json!({ "component": "Lib" })).len(), 1);
    // Only a whole component matches.
    for component in ["Nothing", "tone", "Ton", "Tone.two", "_skip"] {
        assert_eq!(list(&mut adapter, json!({ "component": component })).len(), 0, "{component}");
    }
}

#[test]
fn s0_40_an_example_is_returned_with_its_schema_and_current_validity() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let listed = adapter.call("list_examples", json!({}));
    for [_, path] in rows(&listed, "examples", ["component", "path"]) {
        let result = adapter.call("get_example", json!({ "path": path }));
        let keys: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["ok", "example", "schema", "validated"], "{path}");
        // The file as it is on disk.
        let on_disk = std::fs::read_to_string(fixture().join(&path)).unwrap();
        let on_disk: Value = serde_json::from_str(&on_disk).unwrap();
        assert_eq!(result["example"].to_string(), on_disk.to_string());
        // A path relative to the folder of examples and an absolute one give the same.
        let inner = path.strip_prefix(&format!("{EXAMPLES}/")).unwrap();
        let absolute = fixture().join(&path);
        for path in [inner, absolute.to_str().unwrap()] {
            assert_eq!(adapter.call("get_example", json!({ "path": path })), result, "{path}");
        }
        let asset = json!({ "asset": result["example"], "schema": result["schema"] });
        let validation = adapter.call("validate_asset", asset);
        assert_eq!(validation["ok"], result["validated"], "{path}: {validation}");
        assert_eq!(result["validated"], !path.contains("ShaderLib"), "{path}: {validation}");
    }
    for path in [
        json!("nothing.json"),
        json!(""),
        json!("../version.json"),
        json!("../../../Cargo.toml"),
        json!("."),
        json!("/etc/passwd"),
        json!(fixture().join("libs/synesthetic-schemas/version.json").to_str()),
        json!("Tone_Example.json\0"),
        json!(null),
        json!(7),
        json!({}),
    ] {
        assert_eq!(adapter.call("get_example", json!({ "path": path })), missing(), "{path}");
    }
    assert_eq!(adapter.call("get_example", json!({})), missing());
}

#[test]
fn s0_40_a_schema_named_in_an_example_takes_precedence_over_its_file_name() {
    let at = folder();
    for (file, text) in [
        ("said.json", r#"{"schema":"tone","$schemaRef":"jsonschema/haptic.schema.json"}"#),
        ("Ref.json", r#"{"$schemaRef":"jsonschema/haptic.schema.json","name":1}"#),
        ("SynestheticAsset_Odd.json", r#"{"name":"x"}"#),
        ("tone.json", r#"{"name":"x","frequency":2}"#),
        ("List.json", "[1]"),
    ] {
        put(at.path(), file, text);
    }
    let schemas = fixture().join(SCHEMAS);
    let start = SynestheticAdapterOptions::at(at.path())
        .env("SYN_EXAMPLES_DIR", at.path())
        .env("SYN_SCHEMAS_DIR", schemas);
    let mut adapter = start.ready();
    for (file, schema, validated) in [
        ("said.json", "tone", false),
        ("Ref.json", "haptic", false),
        ("SynestheticAsset_Odd.json", "nested-synesthetic-asset", true),
        ("tone.json", "tone", true),
        ("List.json", "List", false),
    ] {
        let result = adapter.call("get_example", json!({ "path": file }));
        assert_eq!(
            (&result["schema"], &result["validated"]),
            (&json!(schema), &json!(validated)),
            "{file}"
        );
    }
}
