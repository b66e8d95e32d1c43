//! Compares validation and patches with other implementations, which are written in Python.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::adapter::{EXAMPLES, SCHEMAS, SynestheticAdapterOptions, fixture};
use super::diff::{SeededTestRng, difficult_pairs, patch, sort_key};
use super::validation::validate;

#[test]
fn s0_04_49_52_53_a_patch_has_sorted_operations_of_three_kinds_and_gives_the_new_asset() {
    let mut generator = SeededTestRng(20_250_901);
    let mut pairs = difficult_pairs();
    for _ in 0..2_500 {
        let base = generator.value(4);
        let new = generator.change(&base, 4);
        pairs.push((base, new));
    }
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let mut requests = String::new();
    let mut operations = 0;
    for (base, new) in &pairs {
        let patch = patch(&mut adapter, base, new);
        operations += patch.len();
        let sort_keys: Vec<_> = patch.iter().map(sort_key).collect();
        assert!(sort_keys.is_sorted(), "{base} {new}: {sort_keys:?}");
        requests += &format!("{}\n", json!({ "base": base, "patch": patch }));
    }
    assert!(operations > 1_500, "{operations} operations");
    // Another implementation of RFC 6902 applies them and must get the second of each pair.
    let patched = run_judge("patch", &requests);
    assert_eq!(patched.len(), pairs.len());
    for ((base, new), patched) in pairs.iter().zip(patched) {
        assert!(is_equal(&patched, new), "{base} became {patched}, not {new}");
    }
}

/// Returns true if two values are equal. Numbers are compared by value. No number equals a boolean.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.as_f64() == other.as_f64() && (one.is_f64() || other.is_f64()))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, one)| other.get(key).is_some_and(|other| is_equal(one, other)))
        }
        (one, other) => one == other,
    }
}

#[test]
fn s0_03_41_46_errors_of_valid_and_broken_examples_match_pythons_validator() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    let listed = adapter.call("list_examples", json!({}))["examples"].clone();
    let mut requests = String::new();
    let mut cases = Vec::new();
    for item in listed.as_array().unwrap() {
        let path = item["path"].as_str().unwrap();
        let schema = adapter.call("get_example", json!({ "path": path }))["schema"].clone();
        let schema = schema.as_str().unwrap().replace("nested-", "");
        if !fixture().join(SCHEMAS).join(format!("{schema}.schema.json")).exists() {
            assert!(path.starts_with(EXAMPLES) && path.contains("ShaderLib"), "{path}");
            continue;
        }
        let mut example = adapter.call("get_example", json!({ "path": path }))["example"].clone();
        example.as_object_mut().unwrap().remove("$schemaRef");
        for asset in variants_of(&example) {
            let result = validate(&mut adapter, schema.as_str(), asset.clone());
            let empty = Vec::new();
            let errors = result["errors"].as_array().unwrap_or(&empty);
            let mut errors: Vec<_> = errors
                .iter()
                .map(|it| (it["path"].clone().to_string(), it["msg"].to_string()))
                .collect();
            errors.sort();
            cases.push((schema.clone(), asset.clone(), errors));
            writeln!(requests, "{}", json!({ "schema": schema, "asset": asset })).unwrap();
        }
    }
    assert!(cases.len() > 200, "{} cases", cases.len());
    let expected = run_judge("validate", &requests);
    assert_eq!(expected.len(), cases.len());
    for ((schema, asset, errors), expected) in cases.iter().zip(expected) {
        let expected = expected.as_array().unwrap().iter();
        let mut expected: Vec<_> =
            expected.map(|it| (it[0].to_string(), it[1].to_string())).collect();
        expected.sort();
        assert_eq!(errors, &expected, "{schema}: {asset}");
    }
}

/// Returns `asset`, and variants with each value replaced, removed, or given an unknown property.
fn variants_of(asset: &Value) -> Vec<Value> {
    let mut pointers = Vec::new();
    pointers_of(asset, String::new(), &mut pointers);
    let mut all = vec![asset.clone()];
    for pointer in pointers {
        for other in [json!(-1), json!(""), json!([1, 1]), json!({ "stranger": true }), json!(null)]
        {
            let mut broken = asset.clone();
            *broken.pointer_mut(&pointer).unwrap() = other;
            all.push(broken);
        }
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut broken = asset.clone();
        if let Some(object) = broken.pointer_mut(parent).unwrap().as_object_mut() {
            object.shift_remove(key);
            all.push(broken);
        }
    }
    all
}

fn pointers_of(value: &Value, at: String, pointers: &mut Vec<String>) {
    let inner: Vec<_> = match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(n, it)| (n.to_string(), it)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    for (key, value) in inner {
        let at = format!("{at}/{key}");
        pointers.push(at.clone());
        pointers_of(value, at, pointers);
    }
}

/// Runs the script `judge.py` with `operation`, and returns its answer to each line of `requests`.
fn run_judge(operation: &str, requests: &str) -> Vec<Value> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/contracts/s0/judge.py");
    let schemas = fixture().join(SCHEMAS);
    let mut command = Command::new(python());
    command.arg(program).arg(operation).arg(schemas).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let requests = requests.to_owned();
    let writing =
        std::thread::spawn(move || std::io::Write::write_all(&mut input, requests.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(output.status.success(), "judge.py failed");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the path of the Python interpreter in whose environment the other implementations are
/// installed.
fn python() -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).unwrap();
    let python = checkout.join(".tools/judges/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask setup`", python.display());
    python
}
