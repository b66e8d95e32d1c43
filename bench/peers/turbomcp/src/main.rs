//! A server with one tool, `echo`, by turbomcp: `turbomcp-echo stdio`, or `turbomcp-echo http` for
//! HTTP with sessions. turbomcp has no HTTP without sessions.

use std::net::TcpListener;

use turbomcp::prelude::*;

/// MCP server of turbomcp with one tool, which returns its input text.
#[derive(Clone)]
struct TurbomcpEchoServer;

#[turbomcp::server(name = "turbomcp-echo", version = "0.0.0")]
impl TurbomcpEchoServer {
    #[tool(description = "Return the text.")]
    async fn echo(&self, text: String) -> String {
        text
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("stdio") => Ok(TurbomcpEchoServer.run_stdio().await?),
        Some("http") => {
            // `run_http` does not tell which port it got for port 0.
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
            eprintln!("serving at http://{address}/mcp");
            Ok(TurbomcpEchoServer.run_http(&address).await?)
        }
        _ => anyhow::bail!("turbomcp-echo stdio | http"),
    }
}
