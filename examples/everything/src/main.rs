//! Example of a server that offers one of everything: each kind of tool, prompt, resource and
//! skill.
//!
//! `example-everything ADDRESS` serves at `http://ADDRESS/mcp`. `example-everything stdio` serves
//! the process that started it. Its names and texts are those that MCP's own conformance suite
//! expects, so that `cargo xtask conformance` can test toolgate with it.

mod content;
mod notifications;
mod questions;
mod rounds;
mod tasks;
mod prompts;
mod resources;
mod skills;

use tokio::net::TcpListener;
use toolgate_contract::ChangeFeed;
use toolgate_service::config::Config;
use toolgate_service::serve::shutdown;
use toolgate_service::{ServerBuilder, serve_http, serve_stdio};

#[tokio::main]
#[allow(clippy::print_stderr, reason = "prints its address for the person who started it")]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let jobs = tempfile::tempdir()?;
    let changes = ChangeFeed::default();
    let builder = ServerBuilder::new("everything", env!("CARGO_PKG_VERSION"))
        .title("Everything")
        .about("Offers one of everything, to test clients and toolgate.")
        .instructions("Everything here is for tests: call any tool, read any resource.")
        .changes(changes.clone())
        .with_jobs_in(jobs.path().join("jobs"));
    let builder = content::add(builder);
    let builder = notifications::add(builder, &changes);
    let builder = questions::add(builder);
    let builder = rounds::add(builder);
    let builder = tasks::add(builder);
    let builder = prompts::add(builder);
    let builder = resources::add(builder);
    let builder = skills::add(builder);

    let mut config = Config::default();
    config.server.http_sse = true;
    let server = builder.open(&config)?;
    let stop = shutdown::on_signal()?;
    if address == "stdio" {
        return serve_stdio(&server, "mcp", &config, stop).await;
    }
    let listener = TcpListener::bind(address).await?;
    eprintln!("serving at http://{}/mcp", listener.local_addr()?);
    serve_http(&server, listener, &config, stop).await?;
    Ok(())
}
