//! Tests of where the adapter finds schemas and examples, and of when it reads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::adapter::{EXAMPLES, SCHEMAS, SynestheticAdapterOptions, fixture, folder, line, put};
use super::backend::AssetBackendProcess;

/// Returns every file beneath `folder` with its content, and every folder.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(snapshot(&path));
            all.insert(path, None);
        } else {
            let content = fs::read(&path).unwrap();
            all.insert(path, Some(content));
        }
    }
    all
}

fn copy(from: &Path, to: &Path) {
    for (path, content) in snapshot(from) {
        let path = to.join(path.strip_prefix(from).unwrap());
        match content {
            None => fs::create_dir_all(path).unwrap(),
            Some(content) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
        }
    }
}

#[track_caller]
fn names(result: &Value, list: &str, name: &str) -> Vec<String> {
    assert_eq!(result["ok"], true, "{result}");
    let items = result[list].as_array().unwrap();
    items.iter().map(|item| item[name].as_str().unwrap().to_owned()).collect()
}

/// Returns the paths of the schemas and examples that an adapter started with `start` lists.
#[track_caller]
fn list_paths(start: SynestheticAdapterOptions) -> (Vec<String>, Vec<String>) {
    let mut adapter = start.ready();
    let schemas = names(&adapter.call("list_schemas", json!({})), "schemas", "path");
    let examples = names(&adapter.call("list_examples", json!({})), "examples", "path");
    (schemas, examples)
}

#[test]
fn s0_02_10_60_61_folders_in_environment_variables_take_precedence_over_the_checkout() {
    let at = folder();
    put(at.path(), &format!("{SCHEMAS}/tone.schema.json"), "{}");
    put(at.path(), &format!("{EXAMPLES}/Tone.json"), "{}");
    let elsewhere = folder();
    put(elsewhere.path(), "s/foo.schema.json", r#"{"version":"3"}"#);
    put(elsewhere.path(), "e/Foo.json", "{}");
    let place = |name: &str| elsewhere.path().join(name);
    let shown = |name: &str| place(name).to_str().unwrap().to_owned();

    let checkout = vec!["libs/synesthetic-schemas/jsonschema/tone.json".to_owned()];
    let examples = vec!["libs/synesthetic-schemas/examples/Tone.json".to_owned()];
    assert_eq!(
        list_paths(SynestheticAdapterOptions::at(at.path())),
        (checkout.clone(), examples.clone())
    );
    let both = SynestheticAdapterOptions::at(at.path())
        .env("SYN_SCHEMAS_DIR", place("s"))
        .env("SYN_EXAMPLES_DIR", place("e"));
    assert_eq!(list_paths(both), (vec![shown("s/foo.json")], vec![shown("e/Foo.json")]));
    // Each variable works alone; an empty one counts as unset.
    let one = SynestheticAdapterOptions::at(at.path())
        .env("SYN_SCHEMAS_DIR", place("s"))
        .env("SYN_EXAMPLES_DIR", "");
    assert_eq!(list_paths(one), (vec![shown("s/foo.json")], examples));
    let other = SynestheticAdapterOptions::at(at.path()).env("SYN_EXAMPLES_DIR", place("e"));
    assert_eq!(list_paths(other), (checkout, vec![shown("e/Foo.json")]));
    // A relative path is relative to the working folder, and listed as given.
    let relative = SynestheticAdapterOptions::at(elsewhere.path()).env("SYN_SCHEMAS_DIR", "s");
    assert_eq!(list_paths(relative), (vec!["s/foo.json".to_owned()], Vec::new()));
}

#[test]
fn s0_02_11_14_schemas_and_examples_of_the_checkout_are_listed_by_default() {
    let (schemas, examples) = list_paths(SynestheticAdapterOptions::at(&fixture()));
    assert_eq!(schemas.len(), 9);
    assert!(schemas.iter().all(|path| path.starts_with(&format!("{SCHEMAS}/"))), "{schemas:?}");
    assert_eq!(examples.len(), 15);
    assert!(examples.iter().all(|path| path.starts_with(&format!("{EXAMPLES}/"))), "{examples:?}");
}

#[test]
fn s0_12_13_lists_are_empty_and_lookups_fail_without_asset_folders() {
    let at = folder();
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    let mut answer = |method: &str, params: Value| {
        adapter.send(&line(1, method, params));
        adapter.receive()
    };
    let result = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
    assert_eq!(answer("list_schemas", json!({})), result(r#"{"ok":true,"schemas":[]}"#));
    assert_eq!(answer("list_examples", json!({})), result(r#"{"ok":true,"examples":[]}"#));
    let missing = result(r#"{"ok":false,"reason":"not_found"}"#);
    assert_eq!(answer("get_schema", json!({ "name": "synesthetic-asset" })), missing);
    assert_eq!(answer("get_example", json!({ "path": "SynestheticAsset_Example1.json" })), missing);
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
}

#[test]
fn s0_09_only_schemas_and_examples_on_disk_are_listed() {
    let at = folder();
    copy(&fixture(), at.path());
    assert_eq!(list_paths(SynestheticAdapterOptions::at(at.path())).0.len(), 9);
    fs::remove_dir_all(at.path().join("libs")).unwrap();
    assert_eq!(list_paths(SynestheticAdapterOptions::at(at.path())), (Vec::new(), Vec::new()));
}

#[test]
fn s0_15_files_are_read_once_when_the_adapter_starts() {
    let at = folder();
    copy(&fixture(), at.path());
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    let lines = [
        line(1, "list_schemas", json!({})),
        line(2, "list_examples", json!({})),
        line(3, "get_schema", json!({ "name": "tone" })),
        line(4, "get_schema", json!({ "name": "haptic" })),
        line(5, "get_example", json!({ "path": "Tone_Example.json" })),
        line(6, "get_example", json!({ "path": "Haptic_Example.json" })),
        line(
            7,
            "validate_asset",
            json!({ "asset": { "name": "x", "frequency": 1 }, "schema": "tone" }),
        ),
    ];
    let mut before = Vec::new();
    // Whenever the schemas are compiled, the files at the start count.
    fs::write(at.path().join(SCHEMAS).join("control.schema.json"), "false").unwrap();
    for line in &lines {
        adapter.send(line);
        before.push(adapter.receive());
    }
    put(at.path(), &format!("{SCHEMAS}/new.schema.json"), "{}");
    put(at.path(), &format!("{SCHEMAS}/tone.schema.json"), r#"{"version":"9","not":{}}"#);
    fs::remove_file(at.path().join(SCHEMAS).join("haptic.schema.json")).unwrap();
    put(at.path(), &format!("{EXAMPLES}/New.json"), "{}");
    put(at.path(), &format!("{EXAMPLES}/Tone_Example.json"), r#"{"name":"changed"}"#);
    fs::remove_file(at.path().join(EXAMPLES).join("Haptic_Example.json")).unwrap();
    for (line, before) in lines.iter().zip(&before) {
        adapter.send(line);
        assert_eq!(&adapter.receive(), before);
    }
    let control = json!({ "asset": { "parameter": "a.b" }, "schema": "control" });
    assert_eq!(adapter.call("validate_asset", control)["ok"], true);
    // Another process reads the files again.
    let mut adapter = SynestheticAdapterOptions::at(at.path()).ready();
    for (at, (line, before)) in lines.iter().zip(&before).enumerate() {
        adapter.send(line);
        assert_ne!(&adapter.receive(), before, "line {at}");
    }
}

#[test]
fn s0_07_08_a_session_writes_no_files_and_returns_schemas_unchanged() {
    let at = folder();
    copy(&fixture(), at.path());
    put(at.path(), &format!("{SCHEMAS}/plain.schema.json"), r#"{"type":"object","title":"é"}"#);
    let before = snapshot(at.path());
    let backend = AssetBackendProcess::start();
    let mut adapter =
        SynestheticAdapterOptions::at(at.path()).env("SYN_BACKEND_URL", backend.url()).ready();
    let plain = adapter.call("get_schema", json!({ "name": "plain" }));
    // Neither an `$id` nor anything else is added to it.
    assert_eq!(plain["schema"].to_string(), r#"{"type":"object","title":"é"}"#);
    let examples = names(&adapter.call("list_examples", json!({})), "examples", "path");
    for path in examples {
        let example = adapter.call("get_example", json!({ "path": path }));
        let asset = json!({ "asset": example["example"], "schema": example["schema"] });
        adapter.call("validate_asset", asset.clone());
        adapter.call("populate_backend", asset);
        adapter.call("diff_assets", json!({ "base": example["example"], "new": {} }));
    }
    for name in names(&adapter.call("list_schemas", json!({})), "schemas", "name") {
        let get = json!({ "name": name });
        let result = adapter.call("get_schema", get.clone());
        let file = at.path().join(SCHEMAS).join(format!("{name}.schema.json"));
        let on_disk: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(result["schema"].to_string(), on_disk.to_string(), "{name}");
        assert_eq!(result, adapter.call("get_schema", get));
    }
    assert_eq!(adapter.call("get_schema", json!({ "name": "plain" })), plain);
    adapter.close_input();
    assert!(adapter.wait_for_exit().success());
    assert_eq!(snapshot(at.path()), before);
}
