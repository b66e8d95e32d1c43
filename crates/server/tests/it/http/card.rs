//! Tests of the server card and the catalog, which clients read before they connect.

use serde_json::json;

use crate::support::{
    HttpServerProcess, MODERN, ServerLaunchOptions, TempWorkspace, TestHttpRequest,
};

const URL: &str = "https://tools.example/mcp";

fn published() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).set("server_url", URL).served()
}

#[test]
fn a_server_with_a_public_domain_serves_its_card() {
    let served = published();
    let response = served.send(&TestHttpRequest::bare("GET", "/mcp/server-card"));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/mcp-server-card+json"));
    let card: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(card["name"], "example.tools/toolgate");
    assert_eq!(card["remotes"][0]["url"], URL);
    assert_eq!(card["remotes"][0]["type"], "streamable-http");
    assert_eq!(card["remotes"][0]["supportedProtocolVersions"][0], MODERN);
    assert!(card.get("tools").is_none(), "{card}");

    let tag = response.header("etag").unwrap().to_owned();
    let again = TestHttpRequest::bare("GET", "/mcp/server-card").with("if-none-match", &tag);
    assert_eq!(served.send(&again).status, 304);
}

#[test]
fn the_catalog_has_the_url_of_the_card() {
    let response = published().send(&TestHttpRequest::bare("GET", "/.well-known/ai-catalog.json"));
    assert_eq!(response.header("content-type"), Some("application/ai-catalog+json"));
    let catalog: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    let entry = json!({
        "identifier": "urn:air:tools.example:mcp:toolgate",
        "type": "application/mcp-server-card+json",
        "url": "https://tools.example/mcp/server-card",
    });
    assert_eq!(catalog, json!({ "specVersion": "1.0", "entries": [entry] }));
}

#[test]
fn a_server_without_a_public_domain_serves_no_card() {
    let launch = || ServerLaunchOptions::over(&TempWorkspace::new());
    for launch in [
        launch(),
        launch().set("server_url", "http://localhost:8000/mcp"),
        launch().set("server_url", "https://192.0.2.1/mcp"),
        launch().set("server_url", "https://[2001:db8::1]/mcp"),
    ] {
        let served = launch.served();
        for target in ["/mcp/server-card", "/.well-known/ai-catalog.json"] {
            assert_eq!(served.send(&TestHttpRequest::bare("GET", target)).status, 404, "{target}");
        }
    }
}
