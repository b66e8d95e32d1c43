//! A server with one tool of its own. Everything else (the wire, the gate, the audit log) is toolgate's.
//!
//! `example-echo ADDRESS` serves it at `http://ADDRESS/mcp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use toolgate::config::Config;
use toolgate::{Offer, serve_http, shutdown};
use toolgate_contract::{Ctx, Effects, Text, Tool, ToolError};

/// Says back what it is told.
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
    const ABOUT: &'static str = "Says back what it is told.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = Input;
    type Output = Output;

    async fn run(&self, _ctx: &Ctx, input: Input) -> Result<Output, ToolError> {
        Ok(Output { text: input.text })
    }

    fn text(output: &Output) -> Text {
        Text::body(&output.text)
    }
}

#[tokio::main]
#[allow(clippy::print_stderr, reason = "it tells the person who started it where it listens")]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let config = Config::default();
    let served = Offer::new("echo", env!("CARGO_PKG_VERSION")).tool(Echo).open(&config)?;
    let listener = TcpListener::bind(address).await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    serve_http(&served, listener, &config, shutdown::on_signal()?).await?;
    Ok(())
}
