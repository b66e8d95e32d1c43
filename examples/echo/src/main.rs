//! Example of a server with one tool of its own. toolgate provides everything else: transports,
//! policy, limits and audit log.
//!
//! `example-echo stdio` serves the process that started it. `example-echo http [ADDRESS]` serves at
//! `http://ADDRESS/mcp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};
use toolgate_service::config::Config;
use toolgate_service::serve::shutdown;
use toolgate_service::{
    HttpListeners, PreparedServer, ServerBuilder, WorkerPool, serve_http, serve_stdio,
};

/// Example tool that returns its input text.
struct EchoExampleTool;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EchoExampleInput {
    /// Text to return.
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct EchoExampleOutput {
    /// The text of the input.
    text: String,
}

impl Tool for EchoExampleTool {
    const NAME: &'static str = "example.echo";
    const TITLE: &'static str = "Echo";
    const DESCRIPTION: &'static str = "Return the text.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = EchoExampleInput;
    type Output = EchoExampleOutput;

    async fn run(
        &self,
        _ctx: &ToolContext,
        input: EchoExampleInput,
    ) -> Result<EchoExampleOutput, ToolError> {
        Ok(EchoExampleOutput { text: input.text })
    }

    fn result_text(output: &EchoExampleOutput) -> ResultText {
        ResultText::from_body(&output.text)
    }
}

fn main() -> anyhow::Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // One thread is fastest for one client.
        ["stdio"] => Builder::new_current_thread().enable_all().build()?.block_on(stdio()),
        ["http"] => Builder::new_multi_thread().enable_all().build()?.block_on(http("127.0.0.1:0")),
        ["http", address] => {
            Builder::new_multi_thread().enable_all().build()?.block_on(http(address))
        }
        _ => anyhow::bail!("example-echo stdio | http [ADDRESS]"),
    }
}

async fn stdio() -> anyhow::Result<()> {
    let (config, server) = prepare()?;
    serve_stdio(&server, "mcp", &config, shutdown::on_signal()?).await
}

#[allow(clippy::print_stderr, reason = "prints its address for the person who started it")]
async fn http(address: &str) -> anyhow::Result<()> {
    let (config, server) = prepare()?;
    let listener = TcpListener::bind(address).await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    let listeners = HttpListeners { workers: Some(WorkerPool::start()?), ..listener.into() };
    Ok(serve_http(&server, listeners, &config, shutdown::on_signal()?).await?)
}

/// Prepares a server with the default settings and the example tool.
fn prepare() -> anyhow::Result<(Config, PreparedServer)> {
    let config = Config::default();
    let server = ServerBuilder::new("echo", env!("CARGO_PKG_VERSION"))
        .tool(EchoExampleTool)
        .open(&config)?;
    Ok((config, server))
}
