//! Tests of Synesthetic frames over HTTP, which get the same answers as over standard streams.

use std::net::SocketAddr;

use serde_json::json;

use crate::support::{
    HttpServerProcess, ServerLaunchOptions, TempWorkspace, TestHttpRequest, TestHttpResponse,
    wait_for,
};

use super::adapter::{SCHEMAS, line};

/// Posts `body` to `target` of a listener and returns the response.
fn post(
    addr: SocketAddr,
    served: &HttpServerProcess,
    target: &str,
    body: &str,
) -> TestHttpResponse {
    let mut connection = served.connect();
    if addr != served.addr {
        connection = crate::support::TestHttpConnection::to(addr);
    }
    connection.post(&TestHttpRequest::bytes(body.as_bytes()).to(target));
    connection.response()
}

#[test]
fn s0_24_33_34_frames_are_served_over_http_at_a_path_and_on_a_dedicated_listener() {
    let listen = "[[listen]]\naddr = \"127.0.0.1:0\"\ndialect = \"synesthetic\"\n";
    let workspace = TempWorkspace::new()
        .file("toolgate.toml", listen)
        .file(&format!("{SCHEMAS}/tone.schema.json"), r#"{"version":"1"}"#);
    let served = ServerLaunchOptions::over(&workspace).served();
    let own: SocketAddr = wait_for("the server logs the address of the dedicated listener", || {
        let log = served.log();
        let (_, rest) = log.split_once("serving synesthetic alone at http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    });
    let request = r#"{"jsonrpc":"2.0","id":1.0,"method":"list_schemas","params":{}}"#;
    let wanted = r#"{"jsonrpc":"2.0","id":1.0,"result":{"ok":true,"schemas":[{"name":"tone","version":"1","path":"libs/synesthetic-schemas/jsonschema/tone.json"}]}}"#;
    for (addr, target) in [(served.addr, "/synesthetic"), (own, "/"), (own, "/any/other")] {
        let response = post(addr, &served, target, request);
        assert_eq!((response.status, &*response.body), (200, wanted.as_bytes()), "{target}");
        let unsupported = post(addr, &served, target, &line("a", "files.read", json!({})));
        assert_eq!(unsupported.message()["result"]["reason"], "unsupported");
        let note = r#"{"jsonrpc":"2.0","method":"list_schemas"}"#;
        let response = post(addr, &served, target, note);
        assert_eq!((response.status, response.body.len()), (204, 0), "{target}");
        let response = post(addr, &served, target, &"[".repeat((1 << 20) + 1));
        assert_eq!(response.status, 413);
        assert_eq!(response.message()["result"]["errors"][0]["msg"], "payload_too_large");
    }
    // The dedicated listener serves nothing else.
    let other = post(own, &served, "/rpc", &line(1, "exec/run", json!({})));
    assert_eq!(other.message()["result"]["reason"], "unsupported");
}
