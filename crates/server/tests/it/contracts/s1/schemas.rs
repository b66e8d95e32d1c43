//! Tests of the published schemas, of the tool registry, and of files that add to both.

use serde_json::{Value, json};

use super::client;
use super::client::{
    call, call_ok, get, library, lines, python_errors, run, schema, stderr, stdout,
};
use crate::support::{ServerLaunchOptions, TempWorkspace};

const TOOLS: &str = "apps/mcp_server/schemas/tools";

#[test]
fn s1_02_03_13_14_schemas_are_written_to_the_contracts_paths_as_draft_2020_12() {
    let workspace = TempWorkspace::new();
    let written = run(workspace.root(), &["contract", "schemas", "--write", "."]);
    assert!(written.status.success(), "{}", stderr(&written));
    let mut requests = Vec::new();
    for (path, of) in [
        ("apps/mcp_server/schemas/envelope.schema.json", "envelope"),
        ("codex/specs/schemas/envelope.schema.json", "request_envelope"),
        ("codex/specs/schemas/tool_io.schema.json", "tool_io"),
    ] {
        let file: Value = serde_json::from_str(&workspace.read(path)).unwrap();
        assert_eq!(file["$schema"], "https://json-schema.org/draft/2020-12/schema", "{path}");
        assert_eq!(file, schema(of), "{path}");
        // The binary validates replies against the same schema.
        let printed = run(workspace.root(), &["contract", "schemas", of]);
        assert_eq!(serde_json::from_str::<Value>(&stdout(&printed)).unwrap(), file);
        requests.push(json!({ "schema": file }));
    }
    let tools = workspace.path(TOOLS);
    let tools: Vec<_> = std::fs::read_dir(tools).unwrap().map(|one| one.unwrap().path()).collect();
    assert!(tools.len() > 20, "{}", tools.len());
    for tool in &tools {
        let file: Value = serde_json::from_str(&std::fs::read_to_string(tool).unwrap()).unwrap();
        requests.push(json!({ "schema": file }));
    }
    assert!(workspace.path(&format!("{TOOLS}/docs.load.fetch.input.schema.json")).exists());
    let errors = python_errors(&requests);
    assert!(errors.iter().all(Vec::is_empty), "{errors:?}");
    // The written files are accepted and change nothing.
    let served = ServerLaunchOptions::over(&workspace).served();
    call_ok(&served, "mcp.tool:files.read", &json!({ "path": "README.md" }));
}

#[test]
fn s1_15_16_tool_io_requires_tool_and_input_and_allows_version_and_metadata() {
    let tool = "mcp.tool:docs.load.fetch";
    let valid = json!({ "tool": tool, "input": {} });
    let rows = [
        (valid, true),
        (json!({ "tool": tool, "input": {}, "version": { "major": 1 }, "metadata": {} }), true),
        (json!({}), false),
        (json!({ "tool": tool }), false),
        (json!({ "input": {} }), false),
        (json!({ "tool": "", "input": {} }), false),
        (json!({ "tool": "docs.load.fetch", "input": {} }), false),
        (json!({ "tool": tool, "input": [] }), false),
        (json!({ "tool": tool, "input": {}, "version": { "minor": 1 } }), false),
        (json!({ "tool": tool, "input": {}, "else": 1 }), false),
    ];
    let schema = schema("tool_io");
    let requests: Vec<_> =
        rows.iter().map(|(io, _)| json!({ "schema": schema, "instance": io })).collect();
    let errors = python_errors(&requests);
    let workspace = TempWorkspace::new();
    for ((io, valid), faults) in rows.iter().zip(errors) {
        assert_eq!(faults.is_empty(), *valid, "{io}: {faults:?}");
        workspace.put("io.json", io.to_string());
        let ours =
            run(workspace.root(), &["contract", "schemas", "tool_io", "--validate", "io.json"]);
        assert_eq!(ours.status.code(), Some(i32::from(!valid)), "{io}: {}", stdout(&ours));
    }
    // Our own requests satisfy the request envelope.
    let request = json!({ "id": 1, "jsonrpc": "2.0", "method": "mcp.discover", "params": {} });
    client::check_schema("request_envelope", &[request]);
}

#[test]
fn s1_18_19_20_the_registry_lists_its_schemas_and_compiles_each_once() {
    let same = json!({ "type": "object", "maxProperties": 9 });
    let reordered = r#"{ "maxProperties": 9, "type": "object" }"#;
    let workspace = TempWorkspace::new()
        .file(&format!("{TOOLS}/files.read.input.schema.json"), same.to_string())
        .file(&format!("{TOOLS}/files_list.input.schema.json"), reordered);
    let listed = stdout(&run(workspace.root(), &["contract", "schemas"]));
    let fingerprints = |what: &str| -> Vec<String> {
        let lines = listed.lines().filter(|line| line.contains(what));
        lines.map(|line| line.split("  ").next().unwrap().to_owned()).collect()
    };
    let [read, list] =
        ["files.read.input.schema.json", "files_list.input.schema.json"].map(fingerprints);
    assert_eq!((read.len(), &read), (1, &list), "the fingerprints differ:\n{listed}");
    let counts = listed.lines().last().unwrap();
    let numbers: Vec<usize> =
        counts.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[1] < numbers[0], "{counts}");
    assert_eq!(fingerprints("  envelope  ").len(), 1);
    // An envelope in a file can be validated too.
    let served = ServerLaunchOptions::over(&workspace).served();
    let valid = call_ok(&served, "mcp.tool:files.read", &json!({ "path": "README.md" }));
    workspace.put("sound.json", valid.to_string());
    workspace.put("broken.json", json!({ "ok": true }).to_string());
    for (file, code) in [("sound.json", 0), ("broken.json", 1), ("nothing.json", 2)] {
        let output = run(workspace.root(), &["contract", "schemas", "--validate", file]);
        assert_eq!(output.status.code(), Some(code), "{file}: {output:?}");
    }
    let of_tool =
        run(workspace.root(), &["contract", "schemas", "mcp.tool:docs.load.fetch", "--output"]);
    let of_tool: Value = serde_json::from_str(&stdout(&of_tool)).unwrap();
    assert_eq!(of_tool["type"], "object");
    let none = run(workspace.root(), &["contract", "schemas", "docs.load.fetch"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("mcp.tool:files.read"), "{}", stderr(&none));
}

/// Returns a schema that limits paths to nine characters.
fn short_paths() -> String {
    json!({ "properties": { "path": { "maxLength": 9 } } }).to_string()
}

#[test]
fn s1_19_24_33_schema_files_at_the_default_roots_are_applied_and_read_once() {
    let workspace = library();
    let file = format!("{TOOLS}/files_read.input.schema.json");
    workspace.put(&file, short_paths());
    let long = json!({ "path": "docs/one.md" });
    let short = json!({ "path": "README.md" });
    let id = "mcp.tool:files.read";
    let served = ServerLaunchOptions::over(&workspace).served();
    let refused = call(&served, id, &long).json();
    assert_eq!(refused["error"]["code"], "INVALID_INPUT", "{refused}");
    assert_eq!(refused["error"]["details"]["problems"][0]["pointer"], "/path", "{refused}");
    call_ok(&served, id, &short);
    // Later edits have no effect until the server restarts.
    workspace.put(&file, "{}");
    assert_eq!(call(&served, id, &long).json()["error"], refused["error"]);
    let again = ServerLaunchOptions::over(&workspace).served();
    call_ok(&again, id, &long);
    // A file can only add restrictions to those of the tool.
    let lax = call(&again, id, &json!({ "unknown": 1 })).json();
    assert_eq!(lax["error"]["code"], "INVALID_INPUT");
    // A configured folder replaces the default ones.
    workspace.put(&file, short_paths());
    workspace.put("mine/files.list.input.schema.json", short_paths());
    let elsewhere = ServerLaunchOptions::over(&workspace).set("envelope_schemas", "mine").served();
    call_ok(&elsewhere, id, &long);
    let listed =
        call(&elsewhere, "mcp.tool:files.list", &json!({ "path": "docs/docs/docs" })).json();
    assert_eq!(listed["error"]["code"], "INVALID_INPUT", "{listed}");
    // The same over stdio.
    let mut stdio = lines(ServerLaunchOptions::over(&workspace));
    let params = json!({ "toolId": id, "arguments": long });
    let message = client::ask(&mut stdio, 1, "mcp.tool.invoke", &params);
    assert_eq!(message["error"]["code"], -32602, "{message}");
}

#[test]
fn s1_24_each_default_schema_root_is_read_unless_a_setting_names_others() {
    let workspace = library();
    let specs = "codex/specs/schemas";
    let tools = TOOLS;
    workspace.put(&format!("{specs}/files.list.input.schema.json"), short_paths());
    workspace.put(&format!("{tools}/files.read.input.schema.json"), short_paths());
    let list = "mcp.tool:files.list";
    let read = "mcp.tool:files.read";
    let deep = json!({ "path": "docs/docs/docs" });
    let long = json!({ "path": "docs/one.md" });
    // Without any setting, the default folders of the workspace are read.
    let served = ServerLaunchOptions::over(&workspace).served();
    for (id, input) in [(list, &deep), (read, &long)] {
        let refused = call(&served, id, input).json();
        assert_eq!(refused["error"]["code"], "INVALID_INPUT", "{id}: {refused}");
        assert_eq!(refused["error"]["details"]["problems"][0]["pointer"], "/path", "{refused}");
    }
    call_ok(&served, list, &json!({ "path": "docs" }));
    call_ok(&served, read, &json!({ "path": "README.md" }));
    let registered = stdout(&run(workspace.root(), &["contract", "schemas"]));
    for file in [
        format!("{specs}/files.list.input.schema.json"),
        format!("{tools}/files.read.input.schema.json"),
    ] {
        assert!(registered.contains(&file), "{file}:\n{registered}");
    }
    // With a setting, only the named folder is read.
    let only = ServerLaunchOptions::over(&workspace).set("envelope_schemas", specs).served();
    call_ok(&only, read, &long);
    assert_eq!(call(&only, list, &deep).json()["error"]["code"], "INVALID_INPUT");
}

/// Returns a workspace with an envelope schema that no envelope satisfies.
fn impossible_schema() -> TempWorkspace {
    let schema = json!({ "type": "object", "required": ["ok", "never"] });
    library().file("apps/mcp_server/schemas/envelope.schema.json", schema.to_string())
}

#[test]
fn s1_38_an_invalid_envelope_is_logged_and_refused_only_in_enforce_mode() {
    let workspace = impossible_schema();
    for (mode, ok, logs) in
        [("", true, true), ("off", true, false), ("shadow", true, true), ("enforce", false, true)]
    {
        let launch =
            ServerLaunchOptions::over(&workspace).arg("--log-dir").arg(workspace.path("runs"));
        let served = launch.env("RAGX_MCP_ENVELOPE_VALIDATION", mode).served();
        let response = get(&served, "/mcp/discover");
        let envelope = response.json();
        assert_eq!(envelope["ok"], ok, "{mode}: {envelope}");
        assert_eq!(response.status, if ok { 200 } else { 502 });
        if !ok {
            assert_eq!(envelope["error"]["code"], "INVALID_OUTPUT");
        }
        let line = crate::support::wait_for("the envelope is logged", || {
            client::read_log(&workspace.path("runs")).pop()
        });
        let code = if logs { json!("INVALID_OUTPUT") } else { Value::Null };
        assert_eq!(line["error"]["code"], code, "{mode}: {line}");
        assert_eq!(line["requestId"], envelope["meta"]["requestId"]);
        assert_eq!(
            served.log().contains("an envelope does not match its schema"),
            logs,
            "{}",
            served.log()
        );
    }
    let wrong = client::run_with(
        workspace.root(),
        &["check-config"],
        &[("RAGX_MCP_ENVELOPE_VALIDATION", "strict")],
    );
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("off, shadow or enforce"), "{}", stderr(&wrong));
}
