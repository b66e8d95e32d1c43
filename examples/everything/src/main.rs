//! A server that offers one of everything: each kind of tool, prompt, resource and skill that there is.
//!
//! `example-everything ADDRESS` serves it at `http://ADDRESS/mcp`; `example-everything stdio` serves
//! whoever started it. What it offers has the names and the words that MCP's own conformance suite
//! asks for, so `cargo xtask conformance` can hold toolgate against it.

mod content;
mod telling;
mod asking;
mod rounds;
mod tasks;
mod prompts;
mod resources;
mod skills;

use tokio::net::TcpListener;
use toolgate::config::Config;
use toolgate::serve::shutdown;
use toolgate::{ServerBuilder, serve_http, serve_stdio};
use toolgate_contract::ChangeFeed;

#[tokio::main]
#[allow(clippy::print_stderr, reason = "it tells the person who started it where it listens")]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let jobs = tempfile::tempdir()?;
    let changes = ChangeFeed::default();
    let offer = ServerBuilder::new("everything", env!("CARGO_PKG_VERSION"))
        .title("Everything")
        .about("Offers one of everything, to try clients and toolgate itself with.")
        .instructions("Everything here is for trying: call any tool, read any resource.")
        .changes(changes.clone())
        .with_jobs_in(jobs.path().join("jobs"));
    let offer = content::add(offer);
    let offer = telling::add(offer, &changes);
    let offer = asking::add(offer);
    let offer = rounds::add(offer);
    let offer = tasks::add(offer);
    let offer = prompts::add(offer);
    let offer = resources::add(offer);
    let offer = skills::add(offer);

    let mut config = Config::default();
    config.server.http_sse = true;
    let served = offer.open(&config)?;
    let stop = shutdown::on_signal()?;
    if address == "stdio" {
        return serve_stdio(&served, "mcp", &config, stop).await;
    }
    let listener = TcpListener::bind(address).await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    serve_http(&served, listener, &config, stop).await?;
    Ok(())
}
