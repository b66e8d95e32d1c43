//! A server with one tool, `echo`, by rmcp: `rmcp-echo stdio`, `rmcp-echo http` for HTTP without
//! sessions, or `rmcp-echo sessions` for HTTP with sessions.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{ServerCapabilities, ServerConfig};
use rmcp::transport::stdio;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt, tool, tool_handler, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

/// MCP server of the Rust SDK with one tool, which returns its input text.
#[derive(Clone)]
struct RmcpEchoServer {
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
struct RmcpEchoInput {
    text: String,
}

#[tool_router]
impl RmcpEchoServer {
    fn new() -> Self {
        Self { tool_router: Self::tool_router() }
    }

    #[tool(description = "Return the text.")]
    fn echo(&self, Parameters(RmcpEchoInput { text }): Parameters<RmcpEchoInput>) -> String {
        text
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for RmcpEchoServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("stdio") => {
            RmcpEchoServer::new().serve(stdio()).await?.waiting().await?;
            Ok(())
        }
        Some("http") => http(false).await,
        Some("sessions") => http(true).await,
        _ => anyhow::bail!("rmcp-echo stdio | http | sessions"),
    }
}

async fn http(sessions: bool) -> anyhow::Result<()> {
    let mut config = StreamableHttpServerConfig::default();
    config.legacy_session_mode = sessions;
    config.json_response = !sessions;
    let manager = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(RmcpEchoServer::new()), manager, config);
    let app = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
