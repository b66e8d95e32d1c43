//! Tests of Zyra's endpoints: paths with and without `/v1`, the setting that turns them off, their
//! port, a dedicated listener, and a client like the one in Zyra's documentation.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestServerProcess,
    initialize, path, wait_for, wait_long_for,
};

/// Starts a server with options that it must refuse. Returns the exit code and the log.
#[track_caller]
pub(crate) fn startup_failure(launch: ServerLaunchOptions) -> (Option<i32>, String) {
    let server = launch.serve_with_flags(&["--listen", "127.0.0.1:0"]);
    let code = server.wait_for_exit().code();
    (code, wait_for("it says why", || Some(server.log()).filter(|log| !log.is_empty())))
}

fn status_report(path: &str) -> TestHttpRequest {
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "statusReport" });
    TestHttpRequest::bytes(message.to_string().as_bytes()).to(path)
}

#[test]
fn s4_17_zyra_is_served_unless_it_is_switched_off() {
    let workspace = TempWorkspace::new();
    let endpoints = ["/v1/mcp", "/jobs/abc", "/v1/mcp/progress/abc", "/v1/ws/mcp", "/v1/health"];
    for (name, value) in [
        ("ZYRA_ENABLE_MCP", "0"),
        ("ZYRA_ENABLE_MCP", "false"),
        ("DATAVIZHUB_ENABLE_MCP", "0"),
        ("TOOLGATE_SERVER_DIALECTS", "mcp"),
    ] {
        let served = ServerLaunchOptions::over(&workspace).env(name, value).served();
        for endpoint in endpoints {
            assert_eq!(served.get(endpoint).status, 404, "{name}: {endpoint}");
        }
        assert_eq!(served.send(&status_report("/v1/mcp")).status, 404, "{name}");
        for socket in ["/v1/ws/mcp", "/ws/mcp", "/ws/jobs/abc"] {
            assert_eq!(served.refused_socket(socket), 404, "{name}: {socket}");
        }
        // Other dialects are still served.
        assert_eq!(
            served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18"))).status,
            200,
            "{name}"
        );
    }
    for value in ["", "1", "true"] {
        let served = ServerLaunchOptions::over(&workspace).env("ZYRA_ENABLE_MCP", value).served();
        assert_eq!(served.get("/v1/mcp").status, 200, "{value}");
        assert_eq!(served.send(&status_report("/v1/mcp")).status, 200, "{value}");
        served.socket("/v1/ws/mcp").close();
    }
    // The newer name takes precedence.
    let both = ServerLaunchOptions::over(&workspace).env("DATAVIZHUB_ENABLE_MCP", "0");
    assert_eq!(both.env("ZYRA_ENABLE_MCP", "1").served().get("/v1/mcp").status, 200);
}

#[test]
fn an_invalid_header_or_an_unknown_dialect_is_refused_by_name() {
    let workspace = TempWorkspace::new();
    for (launch, fragment) in [
        (
            ServerLaunchOptions::over(&workspace).set("server_dialects", "mcp,zyrra"),
            "no dialect is named `zyrra`",
        ),
        (ServerLaunchOptions::over(&workspace).env("API_KEY_HEADER", "not one"), "`not one`"),
    ] {
        let (code, err) = startup_failure(launch);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(fragment), "{err}");
    }
}

#[test]
fn an_invalid_variable_of_zyra_stops_only_the_endpoint_of_zyra() {
    let workspace = TempWorkspace::new();
    for (variable, value, advice) in [
        ("ZYRA_ENABLE_MCP", "maybe", "write 1 or 0"),
        ("ZYRA_MCP_MAX_BODY_BYTES", "many", "whole number"),
        ("DATAVIZHUB_MCP_MAX_BODY_BYTES", "-1", "whole number"),
    ] {
        let served = ServerLaunchOptions::over(&workspace).env(variable, value).served();
        assert_eq!(served.get("/v1/mcp").status, 404, "{variable}");
        let mcp = TestHttpRequest::mcp(&initialize(0, "2025-06-18"));
        assert_eq!(served.send(&mcp).status, 200, "{variable}");
        let log = served.log();
        let expected = format!("Zyra is not served over HTTP: in {variable}");
        assert!(log.contains(&expected) && log.contains(advice), "{log}");
    }
}

#[test]
fn a_listener_of_zyra_is_not_opened_if_zyra_is_switched_off_and_others_are() {
    let listen = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"zyra\"\n\
                  [[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"mira\"\n";
    let own = TempWorkspace::new().file("toolgate.toml", listen);
    let served = ServerLaunchOptions::over(&own).env("ZYRA_ENABLE_MCP", "no").served();
    assert_eq!(served.send(&TestHttpRequest::mcp(&initialize(0, "2025-06-18"))).status, 200);
    let log = served.log();
    assert!(log.contains("ZYRA_ENABLE_MCP turns zyra off"), "{log}");
    assert!(!log.contains("serving zyra alone") && log.contains("serving mira alone"), "{log}");
}

#[test]
fn s4_49_every_endpoint_is_served_without_a_version_too() {
    let workspace = TempWorkspace::with_commands();
    let served = ServerLaunchOptions::over(&workspace).served();
    let discovery = served.get("/v1/mcp").body;
    for accept in [None, Some("application/json"), Some("*/*")] {
        for method in ["GET", "OPTIONS"] {
            let probe = TestHttpRequest::bare(method, "/mcp");
            let probe = accept.map_or(probe.clone(), |accept| probe.with("accept", accept));
            let got = served.send(&probe);
            assert_eq!((got.status, &got.body), (200, &discovery), "{method} {accept:?}");
        }
    }
    let mut socket = served.socket("/ws/mcp");
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "statusReport" });
    assert_eq!(socket.ask(&message)["result"]["status"], "ok");
    socket.close();
    let id = served.start_job("draw-one", json!({}));
    served.job_in("succeeded", &id);
    for what in [format!("/jobs/{id}"), format!("/jobs/{id}/manifest"), "/health".to_owned()] {
        let bare = served.get(&what);
        let versioned = served.get(&format!("/v1{what}"));
        assert_eq!((bare.status, bare.json()), (200, versioned.json()), "{what}");
    }
    assert_eq!(served.get(&format!("/jobs/{id}/download")).body, b"drawn");
    let (messages, _) = served.socket(&format!("/ws/jobs/{id}")).read_rest();
    assert_eq!(messages.last().unwrap()["status"], "succeeded");
    let events = served.get(&format!("/mcp/progress/{id}")).events();
    assert_eq!(events.last().unwrap()["status"], "succeeded");
}

/// Returns the address that `server` prints in its log.
#[track_caller]
fn address(server: &TestServerProcess) -> String {
    wait_for("the server logs its address", || {
        let log = server.log();
        let (_, rest) = log.split_once(" at http://")?;
        Some(rest.split_once("/mcp\n")?.0.to_owned())
    })
}

#[test]
fn s4_50_the_server_listens_on_port_8000_by_default() {
    let workspace = TempWorkspace::new();
    // Another program may have the port for a while; the server then says so.
    let server = wait_long_for(Duration::from_secs(25), "port 8000 is free", || {
        let server = ServerLaunchOptions::over(&workspace).serve_with_flags(&[]);
        let log = wait_for("the server starts or says why not", || {
            Some(server.log()).filter(|log| log.contains(" at http://") || log.contains("in use"))
        });
        if log.contains(" at http://") {
            return Some(server);
        }
        assert!(log.contains("the address 127.0.0.1:8000 is in use"), "{log}");
        assert_eq!(server.wait_for_exit().code(), Some(2));
        None
    });
    assert_eq!(address(&server), "127.0.0.1:8000");
    let served = HttpServerProcess { addr: ([127, 0, 0, 1], 8000).into(), server };
    assert_eq!(served.result("statusReport", json!({}))["status"], "ok");
}

#[test]
fn s4_29_the_listen_address_is_set_by_a_flag_a_variable_or_the_file() {
    let workspace = TempWorkspace::new();
    let at = |launch: ServerLaunchOptions, flags: &[&str]| {
        let server = launch.serve_with_flags(flags);
        let addr = address(&server).parse().unwrap();
        let served = HttpServerProcess { addr, server };
        assert_eq!(served.result("statusReport", json!({}))["status"], "ok");
        addr.ip().to_string()
    };
    let over = || ServerLaunchOptions::over(&workspace);
    assert_eq!(at(over(), &["--listen", "localhost:0"]), "127.0.0.1");
    assert_eq!(at(over().set("server_listen", "127.0.0.1:0"), &[]), "127.0.0.1");
    workspace.put("toolgate.toml", "[server]\nlisten = \"[::1]:0\"\n");
    assert_eq!(at(over(), &[]), "::1");
    // A public address needs a credential.
    let server = over().serve_with_flags(&["--listen", "0.0.0.0:8000"]);
    assert_eq!(server.wait_for_exit().code(), Some(2));
    wait_for("it says why", || server.log().contains("no credential is").then_some(()));
}

/// Runs the example client of the Zyra contract and returns the JSON that it prints.
#[track_caller]
fn client(args: &[&str], variables: &[(&str, &str)]) -> Value {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/contracts/s4/example_client.py");
    let mut python = Command::new("python3");
    python.arg(script).args(args).env_clear().env("PATH", path()).envs(variables.iter().copied());
    let done = python.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Checks the requests of Zyra's example client. Zyra's package does not contain this client, so
/// the test runs a program that sends the same requests.
#[test]
fn s4_54_an_example_client_lists_tools_reads_the_status_and_calls() {
    let workspace = TempWorkspace::with_commands();
    let config = workspace.read("toolgate.toml");
    let listen = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"zyra\"\n";
    workspace.put("toolgate.toml", format!("{listen}{config}"));
    let launch = ServerLaunchOptions::over(&workspace).env("ZYRA_API_KEY", "devkey");
    let served = launch.env("API_KEY_HEADER", "X-Zyra").served();
    let own = wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once("zyra alone at ")?;
        Some(rest.split_once("/\n")?.0.to_owned())
    });
    // On the shared listener `/mcp` is MCP's and `/v1/mcp` is Zyra's.
    for base in [own, format!("http://{}/v1", served.addr)] {
        let variables =
            [("ZYRA_API_BASE", &*base), ("ZYRA_API_KEY", "devkey"), ("API_KEY_HEADER", "X-Zyra")];
        let run = |args: &[&str]| client(args, &variables)["result"].take();
        let tools = run(&["list"]);
        let tools = tools["tools"].as_array().unwrap();
        assert!(tools.iter().any(|tool| tool["name"] == "draw-one"), "{tools:?}");
        assert_eq!(run(&["status"])["status"], "ok", "{base}");
        let drawn = run(&["call", "draw", "one", "{}"]);
        assert_eq!((&drawn["status"], &drawn["exit_code"]), (&json!("ok"), &json!(0)));
        let accepted = run(&["call", "draw", "one", "{}", "async"]);
        assert_eq!(accepted["status"], "accepted", "{base}: {accepted}");
    }
}
