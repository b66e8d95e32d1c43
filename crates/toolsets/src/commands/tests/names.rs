//! Tests of argument aliases, and of the tool specification of a declared command.

use serde_json::{Value, json};
use toolgate_contract::Effects;

use super::{CommandTestBench, argv_of, declaration, load, refusal};
use tempfile::TempDir;
use toolgate_world::Sandbox;
use toolgate_world::sandbox::{SandboxPaths, SandboxProfile, SandboxSettings};

const TWO: &str = "argv = [\"{file_or_url}\", \"{options}\"]\n[command.\"x.y\".args]\n\
    file_or_url = { type = \"path!\", about = \"What to read.\", aliases = [\"file\", \"src\"] }\n\
    tile-zoom = \"integer\"\n";

#[test]
fn aliases_and_other_spellings_become_the_name_of_the_argument() {
    let bench = CommandTestBench::script("echo", TWO);
    let check = |input: Value, expected: Value| {
        assert_eq!(bench.tool("x.y").normalize_input(input.clone()), expected, "{input}");
    };
    check(json!({"file": "f", "tile_zoom": 3}), json!({"file_or_url": "f", "tile-zoom": 3}));
    check(json!({"file-or-url": "f"}), json!({"file_or_url": "f"}));
    check(json!({"src": "f", "file_or_url": "f"}), json!({"file_or_url": "f"}));
    check(json!({"src": "f", "file_or_url": "g"}), json!({"file_or_url": "g", "src": "f"}));
    check(json!({"src": "f", "file": "g"}), json!({"file_or_url": "f", "file": "g"}));
    check(json!({"stranger": 1}), json!({"stranger": 1}));
    check(json!([1]), json!([1]));
}

#[tokio::test]
async fn a_duplicate_or_unknown_argument_is_refused_with_its_pointer() {
    let bench = CommandTestBench::script("echo", TWO);
    let (pointer, message) = refusal(bench.call(json!({"file_or_url": "g", "src": "f"})).await);
    assert_eq!(pointer, "/src");
    assert_eq!(
        message,
        "`src` is an alias of `file_or_url`, which is also set; set only one of the two"
    );
    let (pointer, message) = refusal(bench.call(json!({"file": "g", "tile_zom": 1})).await);
    assert_eq!(pointer, "/tile_zom");
    assert_eq!(message, "`tile_zom` is not an argument of `x.y`; did you mean `tile-zoom`?");
    assert_eq!(refusal(bench.call(json!({})).await).0, "/file_or_url");
    let output = bench.call(json!({"src": "f"})).await.unwrap();
    assert_eq!(argv_of(&output), ["f"]);
}

#[test]
fn the_fingerprint_of_a_command_differs_if_its_program_runs_otherwise() {
    let fingerprint = |rest: &str, profile: SandboxProfile| {
        let settings = SandboxSettings { profile, ..SandboxSettings::default() };
        let sandbox = Sandbox::new(&settings, SandboxPaths::default()).expect("it is valid");
        let declared = load(&declaration("sh", rest)).expect("it is valid");
        let workspace = TempDir::new().expect("a temporary directory");
        let bench = CommandTestBench::with_sandbox(workspace, declared, sandbox);
        bench.tool("x.y").settings_fingerprint()
    };
    let argv = "argv = [\"-c\", \"true\"]\n";
    let first = fingerprint(argv, SandboxProfile::Workspace);
    assert_eq!(fingerprint(argv, SandboxProfile::Workspace), first, "another machine");
    for other in [
        "argv = [\"-c\", \"false\"]\n".to_owned(),
        format!("{argv}env = {{ A = \"1\" }}\n"),
        format!("{argv}hosts = [\"example.org\"]\n"),
        format!("{argv}cwd = \"sub\"\n"),
    ] {
        assert_ne!(fingerprint(&other, SandboxProfile::Workspace), first, "{other}");
    }
    assert_ne!(fingerprint(argv, SandboxProfile::ReadOnly), first);
    let idle = format!("{argv}deadline_ms = 7000\n");
    assert_eq!(fingerprint(&idle, SandboxProfile::Workspace), first, "it runs the same");
}

#[test]
fn a_tool_has_the_specification_that_its_file_declares() {
    let bench = CommandTestBench::script(
        "echo",
        "argv = [\"{options}\"]\n\
        deadline_ms = 5000\nidempotent = true\neffects = \"reads\"\n\
        at_once = 2\n[command.\"x.y\".args]\n\
        input = \"string!\"\nlevels = { type = \"integer = 10\", about = \"How many.\" }\n\
        width = { type = \"integer\", assumed = 1024 }\nformat = \"png|svg\"\n\
        when = { schema = { type = \"string\", format = \"date\" }, required = true }\n",
    );
    let spec = bench.tool("x.y").spec();
    assert_eq!(
        *spec.input_schema,
        json!({
            "type": "object",
            "properties": {
                "input": {"type": "string"},
                "levels": {"type": "integer", "description": "How many.", "default": 10},
                "width": {"type": "integer", "default": 1024},
                "format": {"type": "string", "enum": ["png", "svg"]},
                "when": {"format": "date", "type": "string"},
            },
            "required": ["input", "when"],
            "additionalProperties": false,
        })
    );
    assert_eq!(spec.title, "X y");
    assert_eq!((spec.effects, spec.idempotent), (Effects::Reads, true));
    assert_eq!(spec.concurrency_max, Some(2));
    assert_eq!(spec.deadline.unwrap().as_secs(), 15);
    let output = spec.output_schema.as_ref().unwrap();
    let fields: Vec<&str> =
        output["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(["exit_code", "stdout_extent", "argv", "artefacts"].iter().all(|f| fields.contains(f)));
}
