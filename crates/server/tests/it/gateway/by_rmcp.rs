//! Tests of an upstream built with rmcp, the Rust SDK, over HTTP with and without sessions.

use std::sync::Arc;
use std::thread;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{ServerCapabilities, ServerConfig};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::{stdio, text};
use crate::support::TempWorkspace;

/// MCP server of the Rust SDK with a tool that adds two numbers.
#[derive(Clone)]
struct SumMcpServer {
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
struct SumToolInput {
    a: i64,
    b: i64,
}

#[tool_router]
impl SumMcpServer {
    #[tool(description = "Adds two numbers.")]
    fn add(&self, Parameters(SumToolInput { a, b }): Parameters<SumToolInput>) -> String {
        (a + b).to_string()
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for SumMcpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

/// Running MCP server of the Rust SDK. Dropping this value stops the server.
struct RmcpServerProcess {
    url: String,
    _end: oneshot::Sender<()>,
}

/// Starts a server with sessions (before 2026-07-28) or without.
fn serve(sessions: bool) -> RmcpServerProcess {
    let (sender, address) = std::sync::mpsc::channel();
    let (end, ended) = oneshot::channel::<()>();
    let serving = async move {
        let mut config = StreamableHttpServerConfig::default();
        config.legacy_session_mode = sessions;
        config.json_response = !sessions;
        let manager = Arc::new(LocalSessionManager::default());
        let sums = || Ok(SumMcpServer { tool_router: SumMcpServer::tool_router() });
        let service = StreamableHttpService::new(sums, manager, config);
        let app = axum::Router::new().nest_service("/mcp", service);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sender.send(listener.local_addr().unwrap()).unwrap();
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served.unwrap(),
            _ = ended => {}
        }
    };
    thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(serving);
    });
    RmcpServerProcess { url: format!("http://{}/mcp", address.recv().unwrap()), _end: end }
}

#[test]
fn an_rmcp_server_works_with_sessions_and_without() {
    for (sessions, revision) in [(true, "2025-06-18"), (true, "2025-11-25"), (false, "2026-07-28")]
    {
        let served = serve(sessions);
        let settings =
            format!("[upstream.sums]\nurl = {:?}\nrevision = {revision:?}\n", served.url);
        let workspace = TempWorkspace::new().file("toolgate.toml", settings);
        let mut client = stdio(&workspace);
        let sum = client.call("sums_add", json!({ "a": 2, "b": 40 }));
        assert_eq!(text(&sum), "42", "{revision}");
        let refused = client.call("sums_add", json!({ "a": 2 }));
        assert!(refused.to_string().contains("`b`"), "{revision}: {refused}");
    }
}
