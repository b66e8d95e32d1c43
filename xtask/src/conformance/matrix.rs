//! Writes the reference page about each pair of a client and an upstream.

use std::fmt::Write as _;

use anyhow::Context;

use super::ScenarioCheckCounts;
use super::through::{ConformanceClient, ConformanceTransport, ExampleServerConnection};
use crate::shell::checkout;

/// Path of the page relative to the checkout.
const PAGE: &str = "docs/reference/gateway-pairs.md";

/// Outcome of the scenarios for one pair of a client and an upstream.
pub(super) struct GatewayPairOutcome {
    pub(super) client: ConformanceClient,
    pub(super) edge: ExampleServerConnection,
    pub(super) tally: ScenarioCheckCounts,
    /// Number of scenarios that were left out, because the upstream's revision lacks messages that
    /// they need.
    pub(super) left_out: usize,
}

/// Writes the reference page with the outcomes of all pairs.
pub(super) fn write(pairs: &[GatewayPairOutcome]) -> anyhow::Result<()> {
    let path = checkout().join(PAGE);
    std::fs::write(&path, page(pairs)).with_context(|| path.display().to_string())
}

fn page(pairs: &[GatewayPairOutcome]) -> String {
    let mut page = String::from(
        "# The gateway, pair by pair\n\n\
         <!-- Written by `cargo xtask conformance --through`. -->\n\n\
         The client is MCP's own conformance suite. The upstream is \
         [a server that offers everything](../../examples/everything/src/main.rs). toolgate is between \
         the suite and this server. There is one table for each transport of the client. A column \
         is the client's revision. A row is the upstream's revision and transport. A cell counts \
         the checks that passed and failed. A cell also counts the scenarios that were left out, \
         because the upstream's revision has no messages for them. The left-out scenarios are audio \
         before 2025-03-26, forms before 2025-06-18, multiple choices in a form and task-only tools \
         before 2025-11-25, and skills before 2026-07-28. No revision defines WebSockets. Over \
         WebSockets, toolgate sends the same messages as over stdio.\n\n\
         The suite speaks Streamable HTTP. If the client uses another transport, a second toolgate \
         acts as the client. This second toolgate forwards the suite's requests in the \
         revision of the column.\n\n\
         The suite's client requests 2025-11-25, or speaks 2026-07-28. For older columns, a relay \
         replaces the revision in the suite's requests. The columns of older revisions \
         include the scenarios that exist in 2025-06-18 and that the client's own revision supports.\n\n",
    );
    for transport in
        [ConformanceTransport::Http, ConformanceTransport::Stdio, ConformanceTransport::HttpSse]
    {
        let _ = writeln!(page, "## Clients over {transport}\n");
        table(&mut page, transport, pairs);
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}

/// Appends to `page` the table of the clients that use `transport`.
fn table(page: &mut String, transport: ConformanceTransport, pairs: &[GatewayPairOutcome]) {
    let clients: Vec<_> =
        ConformanceClient::all().filter(|client| client.transport == transport).collect();
    let mut head = String::from("| upstream |");
    let mut rule = String::from("|---|");
    for client in &clients {
        let _ = write!(head, " {} |", client.revision);
        rule.push_str("---|");
    }
    let _ = writeln!(page, "{head}\n{rule}");
    for edge in ExampleServerConnection::all() {
        let _ = write!(page, "| {edge} |");
        for client in &clients {
            let is_this_pair =
                |pair: &&GatewayPairOutcome| pair.client == *client && pair.edge == edge;
            match pairs.iter().find(is_this_pair) {
                Some(GatewayPairOutcome { tally, left_out, .. }) => {
                    let _ = write!(page, " {} passed, {} failed", tally.passed, tally.failed);
                    if *left_out > 0 {
                        let _ = write!(page, ", {left_out} left out");
                    }
                    page.push_str(" |");
                }
                None => page.push_str(" – |"),
            }
        }
        page.push('\n');
    }
}
