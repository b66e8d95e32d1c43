//! The page of the reference that says what comes of each pair of edges.

use std::fmt::Write as _;

use anyhow::Context;

use super::Tally;
use super::through::{Client, Edge, Way};
use crate::shell::checkout;

/// Where it is kept.
const PAGE: &str = "docs/reference/gateway-pairs.md";

/// What came of one pair.
pub(super) struct Pair {
    pub(super) client: Client,
    pub(super) edge: Edge,
    pub(super) tally: Tally,
    /// How many scenarios the upstream's revision has no words for.
    pub(super) beyond: usize,
}

/// Writes the page.
pub(super) fn write(pairs: &[Pair]) -> anyhow::Result<()> {
    let path = checkout().join(PAGE);
    std::fs::write(&path, page(pairs)).with_context(|| path.display().to_string())
}

fn page(pairs: &[Pair]) -> String {
    let mut page = String::from(
        "# The gateway, pair by pair\n\n\
         <!-- Written by `cargo xtask conformance --through`. -->\n\n\
         MCP's own conformance suite is the client, [a server that offers everything]\
         (../../examples/everything/src/main.rs) the upstream, and toolgate stands between them. There \
         is a table for each transport of clients. A column is the revision that the client speaks; \
         a row is the one that the upstream is spoken to in, and over what. Each cell says how many of the suite's checks \
         passed and failed, and how many scenarios were left out, since the upstream's revision has \
         no words for what they are about: sounds before 2025-03-26, forms before 2025-06-18, \
         several choices in a form and tools that are called as tasks alone before 2025-11-25, skills \
         before 2026-07-28. Over a WebSocket, which no revision knows, messages are as over stdio.\n\n\
         The suite speaks Streamable HTTP. Where the client's transport is another, a toolgate of \
         its own is that client: the suite's requests pass through it in the column's revision.\n\n\
         The suite's client asks for 2025-11-25 or speaks 2026-07-28. For the older columns its \
         requests are made to say the older revision on their way, and it is held to those of its \
         scenarios that 2025-06-18 has and the client's own revision has words for.\n\n",
    );
    for way in [Way::Http, Way::Stdio, Way::Events] {
        let _ = writeln!(page, "## Clients over {way}\n");
        table(&mut page, way, pairs);
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}

/// What came of the clients that come by `way`.
fn table(page: &mut String, way: Way, pairs: &[Pair]) {
    let clients: Vec<_> = Client::all().filter(|client| client.way == way).collect();
    let mut head = String::from("| the upstream is spoken to in |");
    let mut rule = String::from("|---|");
    for client in &clients {
        let _ = write!(head, " {} |", client.revision);
        rule.push_str("---|");
    }
    let _ = writeln!(page, "{head}\n{rule}");
    for edge in Edge::all() {
        let _ = write!(page, "| {edge} |");
        for client in &clients {
            let is_it = |pair: &&Pair| pair.client == *client && pair.edge == edge;
            match pairs.iter().find(is_it) {
                Some(Pair { tally, beyond, .. }) => {
                    let _ = write!(page, " {} passed, {} failed", tally.passed, tally.failed);
                    if *beyond > 0 {
                        let _ = write!(page, ", {beyond} left out");
                    }
                    page.push_str(" |");
                }
                None => page.push_str(" – |"),
            }
        }
        page.push('\n');
    }
}
