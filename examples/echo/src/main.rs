//! A server with one tool of its own. Everything else (the wire, the gate, the audit log) is toolgate's.
//!
//! `example-echo stdio` serves it to whoever started it; `example-echo http [ADDRESS]` at
//! `http://ADDRESS/mcp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use toolgate::config::Config;
use toolgate::serve::shutdown;
use toolgate::{HttpListeners, PreparedServer, ServerBuilder, WorkerPool, serve_http, serve_stdio};
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

/// Returns its input text.
struct Echo;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// What to say back.
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct Output {
    /// What was said.
    text: String,
}

impl Tool for Echo {
    const NAME: &'static str = "example.echo";
    const TITLE: &'static str = "Echo";
    const DESCRIPTION: &'static str = "Return the text.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, _ctx: &ToolContext, input: Input) -> Result<Output, ToolError> {
        Ok(Output { text: input.text })
    }

    fn decode_utf8(output: &Output) -> ResultText {
        ResultText::from_body(&output.text)
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // One client is served best by one thread.
        ["stdio"] => Builder::new_current_thread().enable_all().build()?.block_on(stdio()),
        ["http"] => Builder::new_multi_thread().enable_all().build()?.block_on(http("127.0.0.1:0")),
        ["http", at] => Builder::new_multi_thread().enable_all().build()?.block_on(http(at)),
        _ => anyhow::bail!("example-echo stdio | http [ADDRESS]"),
    }
}

async fn stdio() -> anyhow::Result<()> {
    let (config, served) = served()?;
    serve_stdio(&served, "mcp", &config, shutdown::on_signal()?).await
}

#[allow(clippy::print_stderr, reason = "it tells the person who started it where it listens")]
async fn http(address: &str) -> anyhow::Result<()> {
    let (config, served) = served()?;
    let listener = TcpListener::bind(address).await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    let listeners = HttpListeners { workers: Some(WorkerPool::start()?), ..listener.into() };
    Ok(serve_http(&served, listeners, &config, shutdown::on_signal()?).await?)
}

fn served() -> anyhow::Result<(Config, PreparedServer)> {
    let config = Config::default();
    let served = ServerBuilder::new("echo", env!("CARGO_PKG_VERSION")).tool(Echo).open(&config)?;
    Ok((config, served))
}
