//! The folders that schemas are read from: what may lie there, and who may put it there.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::client::{call, called, library, run_with, stderr, stdout};
use crate::support::{Launch, Workspace};

const TOOLS: &str = "apps/mcp_server/schemas/tools";

/// What can lie in a folder of schemas and is none, and what is said of it.
const USELESS: [(&str, &str); 10] = [
    ("files.read.input.schema.json", "is not JSON"),
    ("files.read.output.schema.json", "is not usable"),
    ("nothing.here.input.schema.json", "is not usable"),
    ("envelope.schema.json", "is of neither envelope"),
    ("files.list.input.schema.json", "is not usable"),
    ("files.info.input.schema.json", "more than 1048576 bytes"),
    ("files.tree.input.schema.json", "leads out of the workspace"),
    ("files.find.input.schema.json", "regular file"),
    ("files.hash.input.schema.json", "a directory, not a file"),
    ("files.stat.input.schema.json", "leads out of the workspace"),
];

/// A workspace with all of that in `folder`.
fn useless(folder: &str) -> Workspace {
    let workspace = library();
    let at = |nth: usize| format!("{folder}/{}", USELESS[nth].0);
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
fn s1_24_what_is_no_schema_in_the_default_folders_is_left_out_and_named() {
    let served = Launch::over(&useless(TOOLS)).served();
    called(&served, "mcp.tool:files.read", &json!({ "path": "docs/one.md" }));
    called(&served, "mcp.tool:files.list", &json!({ "path": "docs" }));
    let log = served.log();
    for (name, told) in USELESS {
        let line = log.lines().find(|line| line.contains(&format!("{TOOLS}/{name}")));
        let line = line.unwrap_or_else(|| panic!("{name} is not named: {log}"));
        assert!(line.contains(told) && line.contains("left out"), "{told}: {line}");
    }
    // Nor is a folder followed that lies elsewhere.
    let elsewhere = tempfile::TempDir::new().unwrap();
    let file = elsewhere.path().join("files.read.input.schema.json");
    std::fs::write(file, json!({ "properties": { "path": { "maxLength": 1 } } }).to_string())
        .unwrap();
    let workspace = library().file("apps/mcp_server/README.md", "");
    symlink(elsewhere.path(), workspace.path("apps/mcp_server/schemas")).unwrap();
    let served = Launch::over(&workspace).served();
    called(&served, "mcp.tool:files.read", &json!({ "path": "docs/one.md" }));
    assert!(served.log().contains("the schemas in apps/mcp_server/schemas are left out"));
}

#[test]
fn s1_24_what_is_no_schema_in_a_folder_that_was_named_keeps_the_server_from_starting() {
    let workspace = useless("all");
    for (nth, (name, told)) in USELESS.into_iter().enumerate() {
        let folder = format!("mine{nth}");
        std::fs::create_dir(workspace.path(&folder)).unwrap();
        let from = format!("all/{name}");
        let to = format!("{folder}/{name}");
        std::fs::rename(workspace.path(&from), workspace.path(&to)).unwrap();
        let env = [("TOOLGATE_ENVELOPE_SCHEMAS", folder.as_str())];
        let output = run_with(workspace.root(), &["check-config"], &env);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stdout(&output));
        let said = stderr(&output);
        assert!(said.contains(&to) && said.contains(told), "{told}: {said}");
    }
    for folder in ["..", "/etc", "a/../../b"] {
        let env = [("TOOLGATE_ENVELOPE_SCHEMAS", folder)];
        let output = run_with(workspace.root(), &["check-config"], &env);
        assert_eq!(output.status.code(), Some(2), "{folder}: {}", stdout(&output));
        let said = stderr(&output);
        assert!(said.contains("`envelope.schemas` names") && said.contains(folder), "{said}");
    }
}

#[test]
fn s1_24_the_folders_of_schemas_are_kept_from_being_changed_by_tools() {
    let workspace = library().file("mine/README.md", "");
    workspace.put(&format!("{TOOLS}/files.list.input.schema.json"), "{}");
    let refused = |schemas: Option<&str>, tool: &str, input: &Value| {
        let launch = Launch::over(&workspace);
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
