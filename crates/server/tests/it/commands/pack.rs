//! Tests that the pack of commands matches the program Zyra.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::{CommandPackTestBench, pack_path, program_path};
use crate::support::binary;

/// Commands of Zyra with two arguments of which each call must have exactly one.
const ONE_OF: [(&str, [&str; 2]); 4] = [
    ("acquire.s3", ["url", "bucket"]),
    ("decimate.s3", ["url", "bucket"]),
    ("transform.enrich_metadata", ["frames_meta", "read_frames_meta_stdin"]),
    ("transform.update_dataset_json", ["input_url", "input_file"]),
];

#[test]
fn the_shipped_pack_is_what_the_importer_writes() {
    let folder = TempDir::new().unwrap();
    let done = Command::new(binary())
        .args(["import", "zyra", "--from"])
        .arg(program_path("zyra"))
        .arg("--to")
        .arg(folder.path())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&done.stdout);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{out}{err}");
    assert!(
        out.starts_with(&format!("{}: 26 commands\n", folder.path().join("zyra.toml").display()))
    );
    assert!(err.contains("not imported: `search api`"), "{err}");
    let fresh = fs::read_to_string(folder.path().join("zyra.toml")).unwrap();
    let shipped = fs::read_to_string(pack_path()).unwrap();
    assert!(
        fresh == shipped,
        "packs/zyra is stale: `toolgate import zyra --from .tools/zyra/bin/zyra --to packs/zyra`"
    );
}

#[test]
fn the_importer_refuses_a_program_that_is_not_zyra() {
    let folder = TempDir::new().unwrap();
    let done = Command::new(binary())
        .args(["import", "zyra", "--from", "true", "--to"])
        .arg(folder.path())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2));
    assert!(err.contains("`zyra generate-manifest` wrote no listing"), "{err}");
}

/// Returns a sample value that `schema` accepts.
fn sample(schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        return choices.last().unwrap().clone();
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => json!(true),
        "integer" => json!(-3),
        "number" => json!(-1.5),
        "string" => json!("a b"),
        "array" => {
            let count = schema["minItems"].as_u64().unwrap_or(2);
            Value::from(vec![sample(&schema["items"]); usize::try_from(count).unwrap()])
        }
        other => panic!("unexpected type {other}"),
    }
}

/// Runs Zyra's own parser on `request`.
fn parse(request: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/commands/parser.py");
    let mut python = Command::new(program_path("python"))
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    let done = python.wait_with_output().unwrap();
    assert!(done.status.success());
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Returns true if Zyra's parser has read the value `given` as `read`. Numbers may have become
/// text, and text may have become numbers.
fn is_same(given: &Value, read: &Value) -> bool {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match (given, read) {
        (Value::Array(given), Value::Array(read)) => {
            given.len() == read.len()
                && given.iter().zip(read).all(|(one, other)| is_same(one, other))
        }
        (given, read) => given == read || plain(given) == plain(read),
    }
}

/// Checks that Zyra's own parser reads each argument unchanged. Each argument is passed alone, with
/// the required arguments of its command.
#[tokio::test]
async fn zyra_s_own_parser_reads_every_argument_as_given() {
    // Only the command lines matter, so nothing needs to run.
    let bench = CommandPackTestBench::with(Path::new("true"));
    let mut calls = Vec::new();
    let mut given_values = Vec::new();
    for tool in &bench.tools {
        let spec = tool.spec();
        let properties = spec.input_schema["properties"].as_object().unwrap();
        let required = spec.input_schema["required"].as_array().cloned().unwrap_or_default();
        let one_of = ONE_OF.iter().find(|(id, _)| *id == spec.id.as_str());
        for (name, schema) in properties {
            let mut input = Map::new();
            for name in required.iter().filter_map(Value::as_str) {
                input.insert(name.to_owned(), sample(&properties[name]));
            }
            if let Some((_, names)) = one_of.filter(|(_, names)| !names.contains(&name.as_str())) {
                input.insert(names[0].to_owned(), sample(&properties[names[0]]));
            }
            input.insert(name.clone(), sample(schema));
            let (output, _) = bench.call(spec.id.as_str(), Value::Object(input)).await;
            let argv: Vec<Value> =
                output.unwrap().value["argv"].as_array().unwrap().iter().skip(1).cloned().collect();
            calls.push(json!({"argv": argv, "name": name}));
            given_values.push((spec.id.clone(), name.clone(), sample(schema)));
        }
    }
    assert!(calls.len() > 300, "{}", calls.len());
    let parsed = parse(&json!({"calls": calls, "commands": []}));
    for ((id, name, given), read) in given_values.iter().zip(parsed["read"].as_array().unwrap()) {
        assert_eq!(read["refused"], Value::Null, "{id} {name}");
        let is_as_given = match given {
            // A flag may also set false.
            Value::Bool(_) => read["value"] != read["default"],
            given => is_same(given, &read["value"]),
        };
        assert!(is_as_given, "{id} {name}: {given} was read as {read}");
    }
}

#[test]
fn the_pack_has_every_argument_and_requires_what_zyra_requires() {
    let bench = CommandPackTestBench::with(Path::new("true"));
    let pack: toml::Table = fs::read_to_string(pack_path()).unwrap().parse().unwrap();
    let commands = pack["command"].as_table().unwrap();
    // The arguments of searches come from the API, not from the program.
    let ids: Vec<&String> = commands.keys().filter(|id| !id.starts_with("search.")).collect();
    let words = |id: &str| match id.split_once('.').unwrap() {
        (stage, name) if stage == name => stage.to_owned(),
        (stage, name) => format!("{stage} {name}"),
    };
    let names: Vec<String> = ids.iter().map(|id| words(id)).collect();
    let parsed = parse(&json!({"calls": [], "commands": names}));
    assert_eq!((ids.len(), bench.tools.len()), (24, 26));
    for id in ids {
        let tool = bench.tools.iter().find(|tool| tool.spec().id.as_str() == id.replace('-', "_"));
        let schema = &tool.unwrap().spec().input_schema;
        let mut names: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        names.sort();
        let mut required = schema["required"].as_array().cloned().unwrap_or_default();
        required.sort_by_key(|name| name.as_str().map(str::to_owned));
        let takes = &parsed["takes"][words(id)];
        assert_eq!(json!(names), takes["names"], "{id}");
        assert_eq!(json!(required), takes["required"], "{id}");
    }
}
