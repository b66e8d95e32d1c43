//! Tests of the folders of schema files: which files are accepted, and that tools cannot change
//! them.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::client::{call, call_ok, library, run_with, stderr, stdout};
use crate::support::{ServerLaunchOptions, TempWorkspace};

const TOOLS: &str = "apps/mcp_server/schemas/tools";

/// Files in a schema folder that are not valid schemas, and the reason that is logged for each.
const INVALID_SCHEMAS: [(&str, &str); 10] = [
    ("files.read.input.schema.json", "is not JSON"),
    ("files.read.output.schema.json", "is not usable"),
    ("nothing.here.input.schema.json", "is not usable"),
    ("envelope.schema.json", "describes no envelope"),
    ("files.list.input.schema.json", "is not usable"),
    ("files.info.input.schema.json", "larger than 1048576 bytes"),
    ("files.tree.input.schema.json", "leads out of the workspace"),
    ("files.find.input.schema.json", "regular file"),
    ("files.hash.input.schema.json", "a directory, not a file"),
    ("files.stat.input.schema.json", "leads out of the workspace"),
];

/// Returns a workspace with all invalid schemas in `folder`.
fn workspace_with_invalid_schemas(folder: &str) -> TempWorkspace {
    let workspace = library();
    let at = |nth: usize| format!("{folder}/{}", INVALID_SCHEMAS[nth].0);
    workspace.put(&at(0), "{");
    workspace.put(&at(1), r#"{"type":1}"#);
    workspace.put(&at(2), r#"{"type":"objekt"}"#);
    workspace.put(&at(3), r#"{"type":"object"}"#);
    workspace.put(&at(4), r#"{"$ref":"http://example.com/a"}"#);
    workspace.put(&at(5), format!("{{}}{}", " ".repeat(1 << 20)));
    symlink("/dev/zero", workspace.path(&at(6))).unwrap();
    let made = Command::new("mkfifo").arg(workspace.path(&at(7))).status();
    assert!(made.unwrap().success());
    std::fs::create_dir(workspace.path(&at(8))).unwrap();
    symlink("/etc/passwd", workspace.path(&at(9))).unwrap();
    workspace
}

#[test]
fn s1_24_an_invalid_schema_in_a_default_folder_is_skipped_and_logged() {
    let served = ServerLaunchOptions::over(&workspace_with_invalid_schemas(TOOLS)).served();
    call_ok(&served, "mcp.tool:files.read", &json!({ "path": "docs/one.md" }));
    call_ok(&served, "mcp.tool:files.list", &json!({ "path": "docs" }));
    let log = served.log();
    for (name, reason) in INVALID_SCHEMAS {
        let line = log.lines().find(|line| line.contains(&format!("{TOOLS}/{name}")));
        let line = line.unwrap_or_else(|| panic!("{name} is not named: {log}"));
        assert!(line.contains(reason) && line.contains("ignored"), "{reason}: {line}");
    }
    // A link to a folder outside is not followed.
    let elsewhere = tempfile::TempDir::new().unwrap();
    let file = elsewhere.path().join("files.read.input.schema.json");
    std::fs::write(file, json!({ "properties": { "path": { "maxLength": 1 } } }).to_string())
        .unwrap();
    let workspace = library().file("apps/mcp_server/README.md", "");
    symlink(elsewhere.path(), workspace.path("apps/mcp_server/schemas")).unwrap();
    let served = ServerLaunchOptions::over(&workspace).served();
    call_ok(&served, "mcp.tool:files.read", &json!({ "path": "docs/one.md" }));
    assert!(served.log().contains("the schemas in apps/mcp_server/schemas are ignored"));
}

#[test]
fn schemas_in_a_default_folder_apply_only_once_they_are_trusted() {
    let workspace = library();
    let schema = json!({ "properties": { "path": { "maxLength": 4 } } });
    workspace.put(&format!("{TOOLS}/files.read.input.schema.json"), schema.to_string());
    let read = json!({ "path": "docs/one.md" });
    // The trust is in the home of the server, and so is not found in another state folder.
    let state = tempfile::TempDir::new().unwrap();
    let untrusted = ServerLaunchOptions::over(&workspace).with_state(&state).served();
    call_ok(&untrusted, "mcp.tool:files.read", &read);
    let log = untrusted.log();
    assert!(log.contains("schemas in apps/mcp_server/schemas/tools are ignored"), "{log}");
    assert!(log.contains("toolgate trust"), "{log}");
    let trusted = ServerLaunchOptions::over(&workspace).served();
    let refused = call(&trusted, "mcp.tool:files.read", &read).json();
    assert_eq!(refused["error"]["code"], "INVALID_INPUT", "{refused}");
}

#[test]
fn s1_24_an_invalid_schema_in_a_configured_folder_stops_the_server_at_start() {
    let workspace = workspace_with_invalid_schemas("all");
    for (nth, (name, reason)) in INVALID_SCHEMAS.into_iter().enumerate() {
        let folder = format!("mine{nth}");
        std::fs::create_dir(workspace.path(&folder)).unwrap();
        let from = format!("all/{name}");
        let to = format!("{folder}/{name}");
        std::fs::rename(workspace.path(&from), workspace.path(&to)).unwrap();
        let env = [("TOOLGATE_ENVELOPE_SCHEMAS", folder.as_str())];
        let output = run_with(workspace.root(), &["check-config"], &env);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stdout(&output));
        let error = stderr(&output);
        assert!(error.contains(&to) && error.contains(reason), "{reason}: {error}");
    }
    for folder in ["..", "/etc", "a/../../b"] {
        let env = [("TOOLGATE_ENVELOPE_SCHEMAS", folder)];
        let output = run_with(workspace.root(), &["check-config"], &env);
        assert_eq!(output.status.code(), Some(2), "{folder}: {}", stdout(&output));
        let error = stderr(&output);
        assert!(error.contains("`envelope.schemas` is") && error.contains(folder), "{error}");
    }
}

#[test]
fn s1_24_tools_cannot_change_the_schema_folders() {
    let workspace = library().file("mine/README.md", "");
    workspace.put(&format!("{TOOLS}/files.list.input.schema.json"), "{}");
    let refused = |schemas: Option<&str>, tool: &str, input: &Value| {
        let launch = ServerLaunchOptions::over(&workspace);
        let served = match schemas {
            Some(folder) => launch.set("envelope_schemas", folder).served(),
            None => launch.served(),
        };
        let envelope = call(&served, tool, input).json();
        assert_eq!(envelope["error"]["code"], "UNAUTHORIZED", "{input}: {envelope}");
    };
    let write = |path: &str| json!({ "path": path, "content": "false" });
    let id = "mcp.tool:files.write";
    refused(None, id, &write(&format!("{TOOLS}/files.read.input.schema.json")));
    refused(None, id, &write("codex/specs/schemas/tool_io.schema.json"));
    refused(None, "mcp.tool:files.delete", &json!({ "path": "apps", "recursive": true }));
    refused(Some("./docs/../mine"), id, &write("mine/files.read.input.schema.json"));
}
