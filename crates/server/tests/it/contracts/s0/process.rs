//! Tests of the adapter process: its ready file, its log lines, and how it ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{at_once, wait_for, wait_until};

use super::adapter::{SynestheticAdapterOptions, fixture, folder, line, put};
use super::backend::AssetBackendProcess;

#[test]
fn s0_28_29_59_75_the_ready_file_has_the_pid_and_the_start_time() {
    let at = folder();
    let ready = at.path().join("deep/mcp.ready");
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    // The file exists by the time the log says ready.
    let text = fs::read_to_string(&ready).unwrap();
    let (pid, when) = text.strip_suffix('\n').unwrap().split_once(' ').unwrap();
    assert_eq!(pid, adapter.pid().to_string());
    let script = "import sys, datetime as d\n\
                  when = d.datetime.fromisoformat(sys.argv[1])\n\
                  assert abs((d.datetime.now(d.timezone.utc) - when).total_seconds()) < 60";
    let check = Command::new("python3").args(["-c", script, when]).output().unwrap();
    assert!(check.status.success(), "{text}: {}", String::from_utf8_lossy(&check.stderr));
    // It stays while the adapter serves.
    adapter.call("list_schemas", json!({}));
    assert_eq!(fs::read_to_string(&ready).unwrap(), text);
    adapter.close_input();
    adapter.wait_for_exit();
    assert!(!ready.exists());
    assert_eq!(fs::read_dir(ready.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn s0_28_59_the_ready_file_is_in_tmp_by_default() {
    let ready = Path::new("/tmp/mcp.ready");
    // Tests that run at the same time may use the same file, so this may take several attempts.
    wait_for("the ready file is ours", || {
        let mut adapter =
            SynestheticAdapterOptions::at(&fixture()).without("MCP_READY_FILE").ready();
        let text = fs::read_to_string(ready).unwrap_or_default();
        let ours = format!("{} ", adapter.pid());
        adapter.close_input();
        assert!(adapter.wait_for_exit().success());
        let left = fs::read_to_string(ready).unwrap_or_default();
        assert!(!left.starts_with(&ours), "the file was left behind: {left}");
        text.starts_with(&ours).then_some(())
    });
}

#[test]
fn s0_30_75_the_ready_file_is_removed_however_the_adapter_ends() {
    /// Event with which a test makes the adapter exit.
    #[derive(Debug, Clone, Copy)]
    enum AdapterStopCause {
        Input,
        Signal(Signal),
        Reader,
    }
    let ends = [
        AdapterStopCause::Input,
        AdapterStopCause::Signal(Signal::INT),
        AdapterStopCause::Signal(Signal::TERM),
        AdapterStopCause::Signal(Signal::HUP),
        AdapterStopCause::Reader,
    ];
    at_once(ends, |end| {
        let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
        let ready = adapter.ready_file.clone().unwrap();
        assert!(ready.exists());
        match end {
            AdapterStopCause::Input => adapter.close_input(),
            AdapterStopCause::Signal(signal) => adapter.signal(signal),
            AdapterStopCause::Reader => {
                adapter.stop_reading();
                // The adapter notices when it answers.
                adapter.send(&line(1, "list_schemas", json!({})));
            }
        }
        let status = adapter.wait_for_exit();
        assert!(status.success(), "{end:?}: {status}");
        assert!(!ready.exists(), "{end:?}");
    });
}

#[test]
fn s0_30_75_a_second_signal_stops_the_adapter_at_once_and_removes_the_ready_file() {
    let mut backend =
        AssetBackendProcess::with_behaviour(json!({ "status": 201, "body": "{}", "delay": 60 }));
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("SYN_BACKEND_URL", backend.url()).ready();
    let params = json!({ "asset": {}, "validate_first": false });
    adapter.send(&line(1, "populate_backend", params));
    wait_until("the request is in flight", || !backend.requests().is_empty());
    adapter.signal(Signal::TERM);
    wait_until("it logged the first signal", || {
        adapter.log().contains("another signal stops the server at once")
    });
    adapter.signal(Signal::TERM);
    assert_eq!(adapter.wait_for_exit().code(), Some(130));
    assert!(!adapter.ready_file.as_ref().unwrap().exists());
}

#[test]
fn s0_30_a_link_at_the_ready_file_is_not_followed_and_another_adapters_file_is_kept() {
    let at = folder();
    put(at.path(), "precious", "precious");
    let ready = at.path().join("mcp.ready");
    std::os::unix::fs::symlink(at.path().join("precious"), &ready).unwrap();
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    assert!(fs::read_to_string(&ready).unwrap().starts_with(&adapter.pid().to_string()));
    assert_eq!(fs::read_to_string(at.path().join("precious")).unwrap(), "precious");
    let mut other = SynestheticAdapterOptions::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    adapter.close_input();
    adapter.wait_for_exit();
    assert!(fs::read_to_string(&ready).unwrap().starts_with(&other.pid().to_string()));
    other.close_input();
    other.wait_for_exit();
    assert!(!ready.exists());
}

#[test]
fn s0_60_61_an_invalid_folder_is_reported_before_serving_starts() {
    let at = folder();
    put(at.path(), "file", "");
    for variable in ["SYN_SCHEMAS_DIR", "SYN_EXAMPLES_DIR"] {
        for name in ["nothing", "file"] {
            let path = at.path().join(name);
            let mut adapter =
                SynestheticAdapterOptions::at(&fixture()).env(variable, &path).start();
            assert_eq!(adapter.wait_for_exit().code(), Some(2), "{variable}={name}");
            wait_until("it says why", || adapter.log().contains('\n'));
            let log = adapter.log();
            assert!(log.starts_with("mcp:error reason=setup_failed detail="), "{log}");
            assert!(log.contains(path.to_str().unwrap()), "{log}");
            assert_eq!(adapter.read_rest(), [] as [&str; 0]);
            assert!(!adapter.ready_file.as_ref().unwrap().exists());
        }
    }
}

#[test]
fn s0_05_only_stdio_is_served_and_another_endpoint_is_refused_at_start() {
    for endpoint in ["", "stdio", "stdio://", " stdio "] {
        let mut adapter =
            SynestheticAdapterOptions::at(&fixture()).env("MCP_ENDPOINT", endpoint).ready();
        assert_eq!(adapter.call("list_schemas", json!({}))["ok"], true);
    }
    for endpoint in ["tcp", "http://127.0.0.1:7000", "stdio://x"] {
        let mut adapter =
            SynestheticAdapterOptions::at(&fixture()).env("MCP_ENDPOINT", endpoint).start();
        assert_eq!(adapter.wait_for_exit().code(), Some(2), "{endpoint}");
        wait_until("it says why", || adapter.log().contains('\n'));
        let log = adapter.log();
        assert!(log.contains("mcp:error reason=setup_failed"), "{log}");
        assert!(log.contains("Only STDIO transport is supported"), "{log}");
    }
}

#[test]
fn s0_73_nothing_is_written_before_the_first_line_and_the_adapter_ends_with_its_input() {
    let mut adapter = SynestheticAdapterOptions::at(&fixture()).ready();
    adapter.write(b"\n \n");
    adapter.write(br#"{"jsonrpc":"2.0","id":1,"#);
    adapter.write(b"\"method\":\"explode\"}\n");
    // Anything written before would come first.
    assert!(adapter.receive().starts_with(r#"{"jsonrpc":"2.0","id":1,"result":"#));
    adapter.close_input();
    assert_eq!(adapter.read_rest(), [] as [&str; 0]);
    assert_eq!(adapter.wait_for_exit().code(), Some(0));
}

#[test]
fn s0_74_the_log_starts_with_ready_and_ends_with_shutdown() {
    // Warnings come after it, such as those about unknown variables.
    let mut adapter =
        SynestheticAdapterOptions::at(&fixture()).env("TOOLGATE_NONSENSE", "1").ready();
    wait_until("it warns", || adapter.log().contains("TOOLGATE_NONSENSE"));
    adapter.close_input();
    assert!(adapter.wait_for_exit().success());
    wait_until("it logs the shutdown", || adapter.log().contains("mcp:shutdown"));
    let log = adapter.log();
    let lines: Vec<_> = log.lines().collect();
    let schemas = fs::canonicalize(fixture().join(super::adapter::SCHEMAS)).unwrap();
    let ready = format!("mcp:ready mode=stdio schemas_dir={}", schemas.display());
    assert_eq!(lines.first(), Some(&ready.as_str()));
    assert_eq!(lines.last(), Some(&"mcp:shutdown mode=stdio"));

    // Without schemas the log has the default path; with a configured folder it has that one.
    let at = folder();
    let real = fs::canonicalize(at.path()).unwrap();
    let adapter = SynestheticAdapterOptions::at(at.path()).ready();
    let wanted = format!("schemas_dir={}/libs/synesthetic-schemas/jsonschema\n", real.display());
    assert!(adapter.log().contains(&wanted), "{}", adapter.log());
    put(at.path(), "mine/a.schema.json", "{}");
    let adapter = SynestheticAdapterOptions::at(at.path()).env("SYN_SCHEMAS_DIR", "mine").ready();
    assert!(adapter.log().contains(&format!("schemas_dir={}/mine\n", real.display())));
}
