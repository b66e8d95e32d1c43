//! Tests of requirements that MCP has for servers and that the official suite does not check.
//!
//! The name of a test begins with its row of the checklist. These rows are tested elsewhere, with
//! their subject:
//!
//! - `bad_input::bytes`: B1 (invalid JSON), B2 (ids in flight, ids of any JSON type are returned),
//!   T1.
//! - `concurrency::answers`: B9. `concurrency::cancelling`: C2 (races), H9, L10, L19, T5.
//! - `gate::bounds`: C3, TL10 (too many calls at once). `gate::schemas`: TL7.
//! - `http::sessions`: L13, L14, H20 (no session). `http::streams`: H8, P1. `http::statuses`: H15.
//! - `toolgate_host::mirrored`: H18, and H19 for authors of tools.
//! - `jobs::tasks`: L22. `revisions`: L1, L15, L23, T7 (a probe before the handshake).
//! - `shutdown`: T2, T6.
//!
//! These rows do not apply. B19, L2: not visible from outside. H3: the listen address is tested
//! with the command line (`cli::starts`). H21, TL5, CA4: requirements for gateways. H22: nothing is
//! mandated. T8: there is no other socket. V7: old revisions are supported too. P2, LG3: rates and
//! secrets are tested in `gate`. E1, E5 to E7, L21, SA1: no tool of this server asks for secrets,
//! opens pages or gives tools to models. MR5 (single use): no request must take effect only once.
//! L24: sessions open nothing.

mod schemas;
mod base;
mod http;
mod stdio;
mod eras;
mod lists;
mod model_text;
mod library;
pub(crate) mod asking;
mod replicas;
mod subscriptions;
mod streams;
mod waiting;
mod tasks;
mod everything;

use serde_json::{Value, json};

use crate::support::{
    HttpServerProcess, MODERN, REVISIONS, ServerLaunchOptions, TempWorkspace, TestMcpClient,
};

/// Returns the MCP revisions that have sessions.
fn sessions() -> impl Iterator<Item = &'static str> {
    REVISIONS.into_iter().filter(|revision| *revision != MODERN)
}

/// Runs `check` in each of `revisions` over both transports.
fn in_each(
    revisions: impl IntoIterator<Item = &'static str>,
    workspace: &TempWorkspace,
    check: impl Fn(&mut TestMcpClient),
) {
    for revision in revisions {
        eprintln!("{revision} over stdio:");
        check(&mut TestMcpClient::stdio(ServerLaunchOptions::over(workspace), revision));
        eprintln!("{revision} over HTTP:");
        check(&mut TestMcpClient::http(ServerLaunchOptions::over(workspace), revision));
    }
}

fn served() -> HttpServerProcess {
    ServerLaunchOptions::over(&TempWorkspace::new()).served()
}

/// Returns the URI of a file of `workspace`.
pub(crate) fn uri(workspace: &TempWorkspace, path: &str) -> String {
    format!("file://{}/{path}", workspace.root().canonicalize().unwrap().display())
}

/// Returns the `_meta` key that MCP defines under the name `name`.
fn mcp_key(name: &str) -> String {
    format!("io.modelcontextprotocol/{name}")
}

/// Returns the `_meta` of a request by a client with these capabilities.
fn meta_with_capabilities(capabilities: Value) -> Value {
    json!({ mcp_key("clientCapabilities"): capabilities })
}

#[track_caller]
fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("not an error: {answer}"))
}
