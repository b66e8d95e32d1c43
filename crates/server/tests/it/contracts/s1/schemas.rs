//! The schemas, the registry, and the files that add to it.

use serde_json::{Value, json};

use super::client;
use super::client::{call, called, get, judged, library, lines, run, schema, stderr, stdout};
use crate::support::{Launch, Workspace};

const TOOLS: &str = "apps/mcp_server/schemas/tools";

#[test]
fn s1_02_03_13_14_the_schemas_are_written_at_the_contracts_paths_and_are_draft_2020_12() {
    let workspace = Workspace::new();
    let written = run(workspace.root(), &["contract", "schemas", "--write", "."]);
    assert!(written.status.success(), "{}", stderr(&written));
    let mut asked = Vec::new();
    for (path, of) in [
        ("apps/mcp_server/schemas/envelope.schema.json", "envelope"),
        ("codex/specs/schemas/envelope.schema.json", "request_envelope"),
        ("codex/specs/schemas/tool_io.schema.json", "tool_io"),
    ] {
        let file: Value = serde_json::from_str(&workspace.read(path)).unwrap();
        assert_eq!(file["$schema"], "https://json-schema.org/draft/2020-12/schema", "{path}");
        assert_eq!(file, schema(of), "{path}");
        // What the binary holds replies against is the same.
        let printed = run(workspace.root(), &["contract", "schemas", of]);
        assert_eq!(serde_json::from_str::<Value>(&stdout(&printed)).unwrap(), file);
        asked.push(json!({ "schema": file }));
    }
    let tools = workspace.path(TOOLS);
    let tools: Vec<_> = std::fs::read_dir(tools).unwrap().map(|one| one.unwrap().path()).collect();
    assert!(tools.len() > 20, "{}", tools.len());
    for tool in &tools {
        let file: Value = serde_json::from_str(&std::fs::read_to_string(tool).unwrap()).unwrap();
        asked.push(json!({ "schema": file }));
    }
    assert!(workspace.path(&format!("{TOOLS}/docs.load.fetch.input.schema.json")).exists());
    let verdicts = judged(&asked);
    assert!(verdicts.iter().all(Vec::is_empty), "{verdicts:?}");
    // What was written is taken again, and changes nothing.
    let served = Launch::over(&workspace).served();
    called(&served, "mcp.tool:files.read", &json!({ "path": "README.md" }));
}

#[test]
fn s1_15_16_tool_io_asks_for_a_tool_and_an_input_and_knows_two_things_more() {
    let tool = "mcp.tool:docs.load.fetch";
    let sound = json!({ "tool": tool, "input": {} });
    let rows = [
        (sound, true),
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
    let asked: Vec<_> =
        rows.iter().map(|(io, _)| json!({ "schema": schema, "instance": io })).collect();
    let verdicts = judged(&asked);
    let workspace = Workspace::new();
    for ((io, sound), wrong) in rows.iter().zip(verdicts) {
        assert_eq!(wrong.is_empty(), *sound, "{io}: {wrong:?}");
        workspace.put("io.json", io.to_string());
        let ours =
            run(workspace.root(), &["contract", "schemas", "tool_io", "--validate", "io.json"]);
        assert_eq!(ours.status.code(), Some(i32::from(!sound)), "{io}: {}", stdout(&ours));
    }
    // The request envelope is what our own requests are.
    let request = json!({ "id": 1, "jsonrpc": "2.0", "method": "mcp.discover", "params": {} });
    client::all_satisfy("request_envelope", &[request]);
}

#[test]
fn s1_18_19_20_the_registry_shows_what_it_has_and_compiles_each_schema_once() {
    let same = json!({ "type": "object", "maxProperties": 9 });
    let reordered = r#"{ "maxProperties": 9, "type": "object" }"#;
    let workspace = Workspace::new()
        .file(&format!("{TOOLS}/files.read.input.schema.json"), same.to_string())
        .file(&format!("{TOOLS}/files_list.input.schema.json"), reordered);
    let listed = stdout(&run(workspace.root(), &["contract", "schemas"]));
    let of = |what: &str| -> Vec<String> {
        let lines = listed.lines().filter(|line| line.contains(what));
        lines.map(|line| line.split("  ").next().unwrap().to_owned()).collect()
    };
    let [read, list] = ["files.read.input.schema.json", "files_list.input.schema.json"].map(of);
    assert_eq!((read.len(), &read), (1, &list), "one fingerprint:\n{listed}");
    let counts = listed.lines().last().unwrap();
    let numbers: Vec<usize> =
        counts.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    assert!(numbers[1] < numbers[0], "{counts}");
    assert_eq!(of("  envelope  ").len(), 1);
    // An envelope is held against it from a file, too.
    let served = Launch::over(&workspace).served();
    let sound = called(&served, "mcp.tool:files.read", &json!({ "path": "README.md" }));
    workspace.put("sound.json", sound.to_string());
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

/// A schema that wants paths to be short.
fn short_paths() -> String {
    json!({ "properties": { "path": { "maxLength": 9 } } }).to_string()
}

#[test]
fn s1_19_24_33_files_at_the_default_roots_are_asked_for_and_read_once() {
    let workspace = library();
    let file = format!("{TOOLS}/files_read.input.schema.json");
    workspace.put(&file, short_paths());
    let long = json!({ "path": "docs/one.md" });
    let short = json!({ "path": "README.md" });
    let id = "mcp.tool:files.read";
    let served = Launch::over(&workspace).served();
    let refused = call(&served, id, &long).json();
    assert_eq!(refused["error"]["code"], "INVALID_INPUT", "{refused}");
    assert_eq!(refused["error"]["details"]["problems"][0]["pointer"], "/path", "{refused}");
    called(&served, id, &short);
    // What is edited meanwhile changes nothing until the server starts again.
    workspace.put(&file, "{}");
    assert_eq!(call(&served, id, &long).json()["error"], refused["error"]);
    let again = Launch::over(&workspace).served();
    called(&again, id, &long);
    // A file asks for more than the tool does, and never for less.
    let lax = call(&again, id, &json!({ "unknown": 1 })).json();
    assert_eq!(lax["error"]["code"], "INVALID_INPUT");
    // Other folders, instead of those.
    workspace.put(&file, short_paths());
    workspace.put("mine/files.list.input.schema.json", short_paths());
    let elsewhere = Launch::over(&workspace).set("envelope_schemas", "mine").served();
    called(&elsewhere, id, &long);
    let listed =
        call(&elsewhere, "mcp.tool:files.list", &json!({ "path": "docs/docs/docs" })).json();
    assert_eq!(listed["error"]["code"], "INVALID_INPUT", "{listed}");
    // The same over lines.
    let mut stdio = lines(Launch::over(&workspace));
    let params = json!({ "toolId": id, "arguments": long });
    let message = client::ask(&mut stdio, 1, "mcp.tool.invoke", &params);
    assert_eq!(message["error"]["code"], -32602, "{message}");
}

#[test]
fn s1_24_each_default_root_of_the_folder_that_one_is_in_is_read_and_a_setting_names_others() {
    let workspace = library();
    let specs = "codex/specs/schemas";
    let tools = TOOLS;
    workspace.put(&format!("{specs}/files.list.input.schema.json"), short_paths());
    workspace.put(&format!("{tools}/files.read.input.schema.json"), short_paths());
    let list = "mcp.tool:files.list";
    let read = "mcp.tool:files.read";
    let deep = json!({ "path": "docs/docs/docs" });
    let long = json!({ "path": "docs/one.md" });
    // Started there, and by nothing but the folder.
    let served = Launch::over(&workspace).served();
    for (id, input) in [(list, &deep), (read, &long)] {
        let refused = call(&served, id, input).json();
        assert_eq!(refused["error"]["code"], "INVALID_INPUT", "{id}: {refused}");
        assert_eq!(refused["error"]["details"]["problems"][0]["pointer"], "/path", "{refused}");
    }
    called(&served, list, &json!({ "path": "docs" }));
    called(&served, read, &json!({ "path": "README.md" }));
    let registered = stdout(&run(workspace.root(), &["contract", "schemas"]));
    for file in [
        format!("{specs}/files.list.input.schema.json"),
        format!("{tools}/files.read.input.schema.json"),
    ] {
        assert!(registered.contains(&file), "{file}:\n{registered}");
    }
    // Only the one that is named.
    let only = Launch::over(&workspace).set("envelope_schemas", specs).served();
    called(&only, read, &long);
    assert_eq!(call(&only, list, &deep).json()["error"]["code"], "INVALID_INPUT");
}

/// A workspace whose envelopes cannot satisfy their schema.
fn impossible() -> Workspace {
    let schema = json!({ "type": "object", "required": ["ok", "never"] });
    library().file("apps/mcp_server/schemas/envelope.schema.json", schema.to_string())
}

#[test]
fn s1_38_an_envelope_that_breaks_its_schema_is_served_and_logged_unless_it_is_to_be_refused() {
    let workspace = impossible();
    for (mode, ok, logs) in
        [("", true, true), ("off", true, false), ("shadow", true, true), ("enforce", false, true)]
    {
        let launch =
            Launch::over(&workspace).set("envelope_log_dir", workspace.path("runs").display());
        let served = launch.env("RAGX_MCP_ENVELOPE_VALIDATION", mode).served();
        let response = get(&served, "/mcp/discover");
        let envelope = response.json();
        assert_eq!(envelope["ok"], ok, "{mode}: {envelope}");
        assert_eq!(response.status, if ok { 200 } else { 502 });
        if !ok {
            assert_eq!(envelope["error"]["code"], "INVALID_OUTPUT");
        }
        let said = crate::support::wait_for("the envelope is logged", || {
            client::logged(&workspace.path("runs")).pop()
        });
        let code = if logs { json!("INVALID_OUTPUT") } else { Value::Null };
        assert_eq!(said["error"]["code"], code, "{mode}: {said}");
        assert_eq!(said["requestId"], envelope["meta"]["requestId"]);
        let mode = if mode.is_empty() { "shadow" } else { mode };
        assert_eq!(said["metadata"]["validation"], mode);
        assert_eq!(
            served.log().contains("an envelope breaks its schema"),
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
    assert!(stderr(&wrong).contains("`envelope.validation`"), "{}", stderr(&wrong));
}
