//! Runs the examples of Zyra's documentation unchanged, with the real Zyra.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, check_command, path, zyra,
};

/// Python script that creates the sample data of the examples, and the map that Zyra would
/// otherwise download.
const PREPARE: &str = "
import sys, pathlib, numpy, shapefile
root, home = map(pathlib.Path, sys.argv[1:])
(root / 'samples').mkdir()
numpy.save(root / 'samples/demo.npy', numpy.linspace(0, 1, 18 * 36).reshape(18, 36))
maps = home / '.local/share/cartopy/shapefiles/natural_earth'
for name in ['physical/ne_110m_coastline', 'cultural/ne_110m_admin_0_boundary_lines_land']:
    with shapefile.Writer(str(maps / name), shapeType=shapefile.POLYLINE) as lines:
        lines.field('name', 'C'); lines.line([[[-90, -45], [90, 45]]]); lines.record('line')
    (maps / (name + '.prj')).write_text('')
";

/// Starts a server with the pack of Zyra's commands, in a workspace with the sample data. If `key`
/// is set, the server requires this API key.
fn served(workspace: &TempWorkspace, key: Option<&str>) -> HttpServerProcess {
    let pack = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packs/zyra");
    let pack = pack.canonicalize().unwrap();
    let config = format!("[commands]\npacks = [{pack:?}]\nprograms = {{ zyra = {:?} }}\n", zyra());
    // The documentation's examples draw into /tmp, with maps that Zyra keeps at home.
    let sandbox = "[sandbox]\nread = [\"~/.local/share/cartopy\"]\nwrite = [\"/tmp\"]\n";
    let config = config + sandbox;
    workspace.put("toolgate.toml", config);
    let launch = ServerLaunchOptions::over(workspace);
    let served =
        key.into_iter().fold(launch, |launch, key| launch.env("ZYRA_API_KEY", key)).served();
    let mut python = Command::new(zyra().with_file_name("python"));
    python.args(["-c", PREPARE]).arg(workspace.root()).arg(served.home());
    assert!(python.status().unwrap().success());
    served
}

/// Definition of a Zyra pipeline with one stage, in YAML.
const PIPELINE: &str = r#"
stages:
  - stage: transform
    command: metadata
    args:
      frames_dir: frames
      datetime_format: "%Y%m%d%H%M%S"
      period_seconds: 3600
      output: frames.json
"#;

/// Runs a documented example in the workspace and returns its output. Changes only the port,
/// because other tests use the documented one at the same time.
#[track_caller]
fn run_example(served: &HttpServerProcess, example: &str, job: &str) -> String {
    assert_eq!(example.matches("127.0.0.1:8000").count(), 1, "{example}");
    let example = example.replace("127.0.0.1:8000", &served.addr.to_string());
    let root = served.root();
    let mut shell = Command::new("sh");
    shell.args(["-c", &example]).current_dir(root).env_clear().env("PATH", path());
    let done = shell.env("ZYRA_API_KEY", "devkey").env("JOB_ID", job).output().unwrap();
    assert!(done.status.success(), "{example}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[track_caller]
fn result(served: &HttpServerProcess, example: &str) -> Value {
    let answer: Value = serde_json::from_str(&run_example(served, example, "")).unwrap();
    assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

/// Reads the PNG file at `path`, deletes it, and returns its content.
#[track_caller]
fn take_png(path: &Path) -> Vec<u8> {
    let png = std::fs::read(path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
    assert_eq!(png[png.len() - 8..png.len() - 4], *b"IEND");
    png
}

const STATUS: &str = r#"curl -sS -H 'Content-Type: application/json' -H 'X-API-Key: $ZYRA_API_KEY' \
    -d '{"jsonrpc":"2.0","method":"statusReport","id":1}' \
    http://127.0.0.1:8000/v1/mcp"#;
const INITIALIZE: &str = r#"curl -sS -H 'Content-Type: application/json' -H 'X-API-Key: $ZYRA_API_KEY' \
    -d '{"jsonrpc":"2.0","method":"initialize","id":2}' \
    http://127.0.0.1:8000/v1/mcp"#;
const LIST: &str = r#"curl -sS -H 'Content-Type: application/json' -H 'X-API-Key: $ZYRA_API_KEY' \
    -d '{"jsonrpc":"2.0","method":"tools/list","id":3}' \
    http://127.0.0.1:8000/v1/mcp"#;
const DISCOVER: &str = r#"curl -sS -H "X-API-Key: $ZYRA_API_KEY" http://127.0.0.1:8000/v1/mcp"#;
const DISCOVER_BY_OPTIONS: &str =
    r#"curl -sS -X OPTIONS -H "X-API-Key: $ZYRA_API_KEY" http://127.0.0.1:8000/v1/mcp"#;
const DISCOVER_WITH_KEY: &str =
    r#"curl -sS -H "X-API-Key: $ZYRA_API_KEY" http://127.0.0.1:8000/v1/mcp | jq ."#;
const DISCOVER_BY_OPTIONS_WITH_KEY: &str =
    r#"curl -sS -X OPTIONS -H "X-API-Key: $ZYRA_API_KEY" http://127.0.0.1:8000/v1/mcp | jq ."#;
const CALL_TOOL: &str = r#"curl -sS -H 'Content-Type: application/json' -H 'X-API-Key: $ZYRA_API_KEY' \
    -d '{"jsonrpc":"2.0","method":"callTool","params":{"stage":"visualize","command":"heatmap","args":{"input":"samples/demo.npy","output":"/tmp/heatmap.png"},"mode":"sync"},"id":3}' \
  http://127.0.0.1:8000/v1/mcp"#;
const TOOLS_CALL: &str = r#"curl -sS -H 'Content-Type: application/json' -H "X-API-Key: $ZYRA_API_KEY" \
    -d '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"visualize-heatmap","arguments":{"input":"samples/demo.npy","output":"/tmp/heatmap.png"},"mode":"sync"},"id":4}' \
    http://127.0.0.1:8000/v1/mcp"#;
const PROGRESS: &str = r#"curl -N -H "X-API-Key: $ZYRA_API_KEY" \
    "http://127.0.0.1:8000/v1/mcp/progress/$JOB_ID?interval_ms=200""#;

const STATUS_WITH_KEY: &str = r#"curl -sS -H 'Content-Type: application/json' -H "X-API-Key: $ZYRA_API_KEY" \
    -d '{"jsonrpc":"2.0","method":"statusReport","id":1}' \
    http://127.0.0.1:8000/v1/mcp | jq ."#;
const INITIALIZE_WITH_KEY: &str = r#"curl -sS -H 'Content-Type: application/json' -H "X-API-Key: $ZYRA_API_KEY" \
    -d '{"jsonrpc":"2.0","method":"initialize","id":2}' \
    http://127.0.0.1:8000/v1/mcp | jq ."#;
const LIST_WITH_KEY: &str = r#"curl -sS -H 'Content-Type: application/json' -H "X-API-Key: $ZYRA_API_KEY" \
    -d '{"jsonrpc":"2.0","method":"tools/list","id":3}' \
    http://127.0.0.1:8000/v1/mcp | jq ."#;

#[test]
fn s4_04_05_08_19_20_52_the_requests_in_zyra_s_documentation_are_answered() {
    let served = served(&TempWorkspace::new(), None);
    let status = result(&served, STATUS);
    assert_eq!((&status["status"], status["version"].is_string()), (&json!("ok"), true));
    let initialized = result(&served, INITIALIZE);
    assert_eq!(initialized["protocolVersion"], "2025-06-18", "{initialized}");
    assert_eq!(initialized["serverInfo"]["name"], "zyra", "{initialized}");
    assert!(initialized["capabilities"]["tools"].is_object(), "{initialized}");
    let listed = result(&served, LIST);
    let discovered = run_example(&served, DISCOVER, "");
    assert_eq!(run_example(&served, DISCOVER_BY_OPTIONS, ""), discovered);
    let discovered: Value = serde_json::from_str(&discovered).unwrap();
    assert_eq!((&discovered["mcp_version"], &discovered["name"]), (&json!("0.1"), &json!("zyra")));
    let about = "Zyra MCP server for domain-specific data visualization";
    assert_eq!(discovered["description"], about);
    let commands = discovered["capabilities"]["commands"].as_array().unwrap();
    commands.iter().for_each(check_command);
    let names = |items: &Value| -> Vec<String> {
        let items = items.as_array().unwrap().iter();
        items.map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    let tools = names(&listed["tools"]);
    assert_eq!(names(&discovered["capabilities"]["commands"]), tools);
    let stages = ["acquire", "decimate", "process", "run", "search", "transform", "visualize"];
    let zyra_commands: Vec<_> = commands
        .iter()
        .filter(|it| stages.contains(&it["name"].as_str().unwrap().split('-').next().unwrap()))
        .collect();
    assert_eq!(zyra_commands.len(), 30, "{tools:?}");
    let grib = zyra_commands.iter().find(|it| it["name"] == "process-decode-grib2").unwrap();
    assert_eq!(grib["parameters"]["properties"]["file_or_url"]["type"], "string", "{grib}");
}

#[test]
fn s4_30_31_with_a_key_only_the_examples_that_send_it_are_answered() {
    let served = served(&TempWorkspace::new(), Some("devkey"));
    let discovered = run_example(&served, DISCOVER_WITH_KEY, "");
    assert_eq!(run_example(&served, DISCOVER_BY_OPTIONS_WITH_KEY, ""), discovered);
    let discovered: Value = serde_json::from_str(&discovered).unwrap();
    assert_eq!(discovered["mcp_version"], "0.1");
    assert_eq!(result(&served, STATUS_WITH_KEY)["status"], "ok");
    assert_eq!(result(&served, INITIALIZE_WITH_KEY)["serverInfo"]["name"], "zyra");
    assert!(result(&served, LIST_WITH_KEY)["tools"].is_array());
    // In single quotes, the shell sends the name of the variable instead of the key.
    let refused: Value = serde_json::from_str(&run_example(&served, STATUS, "")).unwrap();
    assert_eq!(refused, json!({ "detail": "Unauthorized: invalid API key" }));
}

#[test]
fn s4_09_10_11_21_27_32_45_48_the_documented_heatmap_is_drawn_in_either_spelling_and_as_a_job() {
    let served = served(&TempWorkspace::new(), None);
    let output = Path::new("/tmp/heatmap.png");
    let mut images = Vec::new();
    for example in [CALL_TOOL, TOOLS_CALL] {
        let result = result(&served, example);
        assert_eq!(
            (&result["status"], &result["exit_code"]),
            (&json!("ok"), &json!(0)),
            "{result}"
        );
        images.push(take_png(output));
    }
    let example = TOOLS_CALL.replace("sync", "async").replace("/tmp/heatmap.png", "heatmap.png");
    let accepted = result(&served, &example);
    assert_eq!(accepted["status"], "accepted", "{accepted}");
    let id = accepted["job_id"].as_str().unwrap();
    let events = run_example(&served, PROGRESS, id);
    let events: Vec<Value> = events
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let file = json!(format!("/v1/jobs/{id}/download"));
    let expected =
        json!({ "job_id": id, "status": "succeeded", "exit_code": 0, "output_file": file });
    assert_eq!(*events.last().unwrap(), expected, "{}", served.job(id));
    images.push(take_png(&served.root().join("heatmap.png")));
    let download = served.get(file.as_str().unwrap());
    assert_eq!(download.header("content-type"), Some("image/png"));
    assert_eq!(Some(&download.body), images.last());
    // Each request draws the same picture.
    images.windows(2).for_each(|pair| assert!(pair[0] == pair[1], "the pictures differ"));
}

#[test]
fn s4_23_an_error_of_zyra_is_returned_with_its_exit_code_and_output() {
    let served = served(&TempWorkspace::new(), None);
    let params = json!({
        "stage": "visualize",
        "command": "heatmap",
        "args": { "input": "samples/none.npy", "output": "heatmap.png" },
    });
    let error = served.rpc("callTool", params).json()["error"].clone();
    assert_eq!(error["code"], -32000, "{error}");
    let data = &error["data"];
    assert_ne!((&data["exit_code"], data["exit_code"].is_i64()), (&json!(0), true), "{error}");
    assert_eq!((&data["stage"], &data["command"]), (&json!("visualize"), &json!("heatmap")));
    assert!(data["stderr"].as_str().unwrap().contains("none.npy"), "{error}");
}

#[test]
fn s4_09_a_zyra_pipeline_is_run() {
    let workspace = TempWorkspace::new().file("pipeline.yaml", PIPELINE);
    for hour in ["00", "01"] {
        workspace.put(&format!("frames/frame_20240101{hour}0000.png"), "");
    }
    let served = served(&workspace, None);
    let params = json!({ "name": "run-run", "arguments": { "config": "pipeline.yaml" } });
    let result = served.result("tools/call", params);
    assert_eq!((&result["status"], &result["exit_code"]), (&json!("ok"), &json!(0)), "{result}");
    let frames: Value = serde_json::from_str(&workspace.read("frames.json")).unwrap();
    assert_eq!(frames["frame_count_actual"], 2, "{frames}");
}

#[test]
fn s4_22_53_a_grib2_file_is_decoded_with_any_alias_of_its_argument() {
    let workspace = TempWorkspace::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/commands/demo.grib2");
    workspace.put("tests/testdata/demo.grib2", std::fs::read(sample).unwrap());
    let served = served(&workspace, None);
    for (name, argument) in [
        ("process-decode-grib2", "file_or_url"),
        ("process.decode-grib2", "file"),
        ("process decode-grib2", "input"),
        ("process:decode_grib2", "src"),
    ] {
        let arguments = json!({ argument: "tests/testdata/demo.grib2" });
        let result = served.result("tools/call", json!({ "name": name, "arguments": arguments }));
        assert_eq!(
            (&result["status"], &result["exit_code"]),
            (&json!("ok"), &json!(0)),
            "{result}"
        );
        let printed = format!("{}{}", result["stdout"], result["stderr"]);
        assert!(printed.contains("t2m"), "{argument}: {result}");
    }
    let missing = json!({ "name": "process-decode-grib2", "arguments": {} });
    let unknown = json!({ "file": "a.grib2", "fiel": "b" });
    let unknown = json!({ "name": "process-decode-grib2", "arguments": unknown });
    for (params, part) in [(missing, "file_or_url"), (unknown, "fiel")] {
        let error = served.rpc("tools/call", params).json()["error"].clone();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
}
