//! The process: how it says that it is ready, and how it ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{at_once, wait_for, wait_until};

use super::adapter::{Start, fixture, folder, line, put};
use super::backend::Backend;

#[test]
fn s0_28_29_59_75_the_ready_file_says_who_is_ready_since_when() {
    let at = folder();
    let ready = at.path().join("deep/mcp.ready");
    let mut adapter = Start::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    // There when the log says so, at the latest.
    let text = fs::read_to_string(&ready).unwrap();
    let (pid, when) = text.strip_suffix('\n').unwrap().split_once(' ').unwrap();
    assert_eq!(pid, adapter.pid().to_string());
    let script = "import sys, datetime as d\n\
                  when = d.datetime.fromisoformat(sys.argv[1])\n\
                  assert abs((d.datetime.now(d.timezone.utc) - when).total_seconds()) < 60";
    let judged = Command::new("python3").args(["-c", script, when]).output().unwrap();
    assert!(judged.status.success(), "{text}: {}", String::from_utf8_lossy(&judged.stderr));
    // And for as long as it serves.
    adapter.call("list_schemas", json!({}));
    assert_eq!(fs::read_to_string(&ready).unwrap(), text);
    adapter.close_input();
    adapter.ended();
    assert!(!ready.exists());
    assert_eq!(fs::read_dir(ready.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn s0_28_59_without_a_word_the_ready_file_is_where_everybody_looks() {
    let ready = Path::new("/tmp/mcp.ready");
    // Whoever else is tested beside this may be just as ready there; one of a few is seen.
    wait_for("the ready file is ours", || {
        let mut adapter = Start::at(&fixture()).without("MCP_READY_FILE").ready();
        let text = fs::read_to_string(ready).unwrap_or_default();
        let ours = format!("{} ", adapter.pid());
        adapter.close_input();
        assert!(adapter.ended().success());
        let left = fs::read_to_string(ready).unwrap_or_default();
        assert!(!left.starts_with(&ours), "it was left behind: {left}");
        text.starts_with(&ours).then_some(())
    });
}

#[test]
fn s0_30_75_the_ready_file_goes_however_the_adapter_ends() {
    #[derive(Debug, Clone, Copy)]
    enum End {
        Input,
        Signal(Signal),
        Reader,
    }
    let ends = [
        End::Input,
        End::Signal(Signal::INT),
        End::Signal(Signal::TERM),
        End::Signal(Signal::HUP),
        End::Reader,
    ];
    at_once(ends, |end| {
        let mut adapter = Start::at(&fixture()).ready();
        let ready = adapter.ready_file.clone().unwrap();
        assert!(ready.exists());
        match end {
            End::Input => adapter.close_input(),
            End::Signal(signal) => adapter.signal(signal),
            End::Reader => {
                adapter.stop_reading();
                // It learns of it when it answers.
                adapter.send(&line(1, "list_schemas", json!({})));
            }
        }
        let status = adapter.ended();
        assert!(status.success(), "{end:?}: {status}");
        assert!(!ready.exists(), "{end:?}");
    });
}

#[test]
fn s0_30_75_a_second_signal_waits_for_nobody_and_the_ready_file_goes_all_the_same() {
    let mut backend = Backend::that(json!({ "status": 201, "body": "{}", "delay": 60 }));
    let mut adapter = Start::at(&fixture()).env("SYN_BACKEND_URL", backend.url()).ready();
    let params = json!({ "asset": {}, "validate_first": false });
    adapter.send(&line(1, "populate_backend", params));
    wait_until("the request is under way", || !backend.came().is_empty());
    adapter.signal(Signal::TERM);
    wait_until("it heard the first", || adapter.log().contains("again to stop now"));
    adapter.signal(Signal::TERM);
    assert_eq!(adapter.ended().code(), Some(130));
    assert!(!adapter.ready_file.as_ref().unwrap().exists());
}

#[test]
fn s0_30_a_link_at_the_ready_file_is_not_followed_and_anothers_file_is_not_removed() {
    let at = folder();
    put(at.path(), "precious", "precious");
    let ready = at.path().join("mcp.ready");
    std::os::unix::fs::symlink(at.path().join("precious"), &ready).unwrap();
    let mut adapter = Start::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    assert!(fs::read_to_string(&ready).unwrap().starts_with(&adapter.pid().to_string()));
    assert_eq!(fs::read_to_string(at.path().join("precious")).unwrap(), "precious");
    let mut other = Start::at(&fixture()).env("MCP_READY_FILE", &ready).ready();
    adapter.close_input();
    adapter.ended();
    assert!(fs::read_to_string(&ready).unwrap().starts_with(&other.pid().to_string()));
    other.close_input();
    other.ended();
    assert!(!ready.exists());
}

#[test]
fn s0_60_61_a_folder_that_is_none_is_told_before_anything_is_served() {
    let at = folder();
    put(at.path(), "file", "");
    for variable in ["SYN_SCHEMAS_DIR", "SYN_EXAMPLES_DIR"] {
        for name in ["nothing", "file"] {
            let path = at.path().join(name);
            let mut adapter = Start::at(&fixture()).env(variable, &path).start();
            assert_eq!(adapter.ended().code(), Some(2), "{variable}={name}");
            wait_until("it says why", || adapter.log().contains('\n'));
            let log = adapter.log();
            assert!(log.starts_with("mcp:error reason=setup_failed detail="), "{log}");
            assert!(log.contains(path.to_str().unwrap()), "{log}");
            assert_eq!(adapter.rest(), [] as [&str; 0]);
            assert!(!adapter.ready_file.as_ref().unwrap().exists());
        }
    }
}

#[test]
fn s0_05_it_is_served_over_standard_streams_and_says_so_to_whoever_wants_another_transport() {
    for endpoint in ["", "stdio", "stdio://", " stdio "] {
        let mut adapter = Start::at(&fixture()).env("MCP_ENDPOINT", endpoint).ready();
        assert_eq!(adapter.call("list_schemas", json!({}))["ok"], true);
    }
    for endpoint in ["tcp", "http://127.0.0.1:7000", "stdio://x"] {
        let mut adapter = Start::at(&fixture()).env("MCP_ENDPOINT", endpoint).start();
        assert_eq!(adapter.ended().code(), Some(2), "{endpoint}");
        wait_until("it says why", || adapter.log().contains('\n'));
        let log = adapter.log();
        assert!(log.contains("mcp:error reason=setup_failed"), "{log}");
        assert!(log.contains("Only STDIO transport is supported"), "{log}");
    }
}

#[test]
fn s0_73_nothing_is_said_before_a_line_comes_and_it_ends_with_its_input() {
    let mut adapter = Start::at(&fixture()).ready();
    adapter.write(b"\n \n");
    adapter.write(br#"{"jsonrpc":"2.0","id":1,"#);
    adapter.write(b"\"method\":\"explode\"}\n");
    // What had been said before would come first.
    assert!(adapter.receive().starts_with(r#"{"jsonrpc":"2.0","id":1,"result":"#));
    adapter.close_input();
    assert_eq!(adapter.rest(), [] as [&str; 0]);
    assert_eq!(adapter.ended().code(), Some(0));
}

#[test]
fn s0_74_the_first_line_of_the_log_says_that_it_is_ready_and_the_last_that_it_is_over() {
    // Warnings come after it, of variables that mean nothing, say.
    let mut adapter = Start::at(&fixture()).env("TOOLGATE_NONSENSE", "1").ready();
    wait_until("it warns", || adapter.log().contains("TOOLGATE_NONSENSE"));
    adapter.close_input();
    assert!(adapter.ended().success());
    wait_until("it says so", || adapter.log().contains("mcp:shutdown"));
    let log = adapter.log();
    let lines: Vec<_> = log.lines().collect();
    let schemas = fs::canonicalize(fixture().join(super::adapter::SCHEMAS)).unwrap();
    let ready = format!("mcp:ready mode=stdio schemas_dir={}", schemas.display());
    assert_eq!(lines.first(), Some(&ready.as_str()));
    assert_eq!(lines.last(), Some(&"mcp:shutdown mode=stdio"));

    // Where there are none it says where they would be; a folder of one's own, as it is named.
    let at = folder();
    let real = fs::canonicalize(at.path()).unwrap();
    let adapter = Start::at(at.path()).ready();
    let wanted = format!("schemas_dir={}/libs/synesthetic-schemas/jsonschema\n", real.display());
    assert!(adapter.log().contains(&wanted), "{}", adapter.log());
    put(at.path(), "mine/a.schema.json", "{}");
    let adapter = Start::at(at.path()).env("SYN_SCHEMAS_DIR", "mine").ready();
    assert!(adapter.log().contains(&format!("schemas_dir={}/mine\n", real.display())));
}
