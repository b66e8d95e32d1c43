//! Tests of the adapter's command line: validation of one asset file, version and help.

use std::path::Path;

use serde_json::{Value, json};

use super::adapter::{EXAMPLES, SynestheticAdapterOptions, fixture, folder, put};

/// Runs toolgate with `args` in `folder`. Returns its report as JSON and its exit code.
#[track_caller]
fn validate(folder: &Path, args: &[&str]) -> (Value, i32) {
    let output = SynestheticAdapterOptions::at(folder).command(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_str(&text).unwrap(), output.status.code().expect("no signal"))
}

#[test]
fn s0_71_72_an_asset_file_is_valid_invalid_or_unreadable() {
    let at = folder();
    put(at.path(), "bad.json", r#"{"$schemaRef":"x/tone.schema.json","name":""}"#);
    put(at.path(), "SynestheticAsset_Mine.json", r#"{"name":"mine"}"#);
    put(at.path(), "list.json", "[1,2]");
    put(at.path(), "tone.json", r#"{"name":"a","frequency":1}"#);
    put(at.path(), "cut.json", "{");
    put(at.path(), "words.json", "{\n \"a\": nope}");
    put(at.path(), "empty.json", "");
    put(at.path(), "folder/in.json", "{}");
    std::fs::write(at.path().join("latin.json"), b"{\"name\":\"\xe9\"}").unwrap();
    let path = |name: &str| at.path().join(name).to_str().unwrap().to_owned();

    let good = fixture().join(EXAMPLES).join("Haptic_Example.json");
    let (report, code) = validate(&fixture(), &["contract", "validate", good.to_str().unwrap()]);
    assert_eq!(report.to_string(), r#"{"ok":true,"errors":[],"schema":"haptic"}"#);
    assert_eq!(code, 0);

    let (report, code) = validate(&fixture(), &["contract", "validate", &path("bad.json")]);
    let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["ok", "reason", "errors", "schema"]);
    assert_eq!(
        (&report["ok"], &report["reason"], &report["schema"]),
        (&json!(false), &json!("validation_failed"), &json!("tone"))
    );
    assert_eq!(
        report["errors"][0],
        json!({ "path": "", "msg": "'frequency' is a required property" })
    );
    assert_eq!(code, 1);

    for (file, schema, wanted) in [
        ("SynestheticAsset_Mine.json", "nested-synesthetic-asset", 0),
        ("tone.json", "tone", 0),
        // A list names no schema and is invalid against any.
        ("list.json", "list", 1),
    ] {
        let (report, code) = validate(&fixture(), &["contract", "validate", &path(file)]);
        assert_eq!((report["schema"].as_str(), code), (Some(schema), wanted), "{file}: {report}");
    }
    let (report, code) =
        validate(&fixture(), &["contract", "validate", &path("list.json"), "--schema", "tone"]);
    assert_eq!((&report["errors"][0]["path"], code), (&json!(""), 1), "{report}");

    for (file, reason, message) in [
        ("nothing.json", "io_error", "file_not_found: "),
        ("folder", "io_error", "read_failed: "),
        ("latin.json", "io_error", "read_failed: "),
        ("cut.json", "parse_error", "json_decode_error: line 1 column 2"),
        ("words.json", "parse_error", "json_decode_error: line 2 column "),
        ("empty.json", "parse_error", "json_decode_error: line 1 column 1"),
    ] {
        let (report, code) = validate(&fixture(), &["contract", "validate", &path(file)]);
        assert_eq!(code, 2, "{file}: {report}");
        assert_eq!((&report["ok"], &report["reason"]), (&json!(false), &json!(reason)), "{file}");
        let actual = report["errors"][0]["msg"].as_str().unwrap();
        assert!(actual.starts_with(message), "{file}: {actual}");
        assert_eq!(report["errors"][0]["path"], "");
    }
}

#[test]
fn s0_71_72_the_contracts_validate_flag_is_accepted_too() {
    let good = fixture().join(EXAMPLES).join("Tone_Example.json");
    let good = good.to_str().unwrap();
    let joined = format!("--validate={good}");
    for args in [&["--validate", good][..], &[&joined], &["contract", "validate", good]] {
        let (report, code) = validate(&fixture(), args);
        assert_eq!(report.to_string(), r#"{"ok":true,"errors":[],"schema":"tone"}"#, "{args:?}");
        assert_eq!(code, 0);
    }
    let (_, code) = validate(&fixture(), &["--validate", "nothing.json"]);
    assert_eq!(code, 2);
    // The schemas are those of a server with the same environment.
    let at = folder();
    put(at.path(), "s/tone.schema.json", r#"{"required":["pitch"]}"#);
    let start =
        SynestheticAdapterOptions::at(&fixture()).env("SYN_SCHEMAS_DIR", at.path().join("s"));
    let output = start.command(&["--validate", good]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("'pitch' is a required property"));
}

#[test]
fn s0_77_78_the_binary_runs_alone_and_prints_its_version() {
    let at = folder();
    let output = SynestheticAdapterOptions::at(at.path()).command(&["--version"]).output().unwrap();
    assert!(output.status.success());
    let version = format!("toolgate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), version);
    let output = SynestheticAdapterOptions::at(at.path()).command(&["--help"]).output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty());
}
