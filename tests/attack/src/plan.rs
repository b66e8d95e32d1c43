//! Selects the attack cases and the attempts at each: every variant in every dialect that can
//! express it, over every transport.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::ensure;
use serde_json::Value;

use super::absent_tools;
use super::case::{self, AttackCase};
use super::dialects::{AttackDialect, AttackTransport, DialectOverTransport};
use super::offered_tools::OfferedToolNames;
use super::variants::{self, AttackCallVariant};

/// Planned attempt at an attack case: the variant of the call, and the dialect over a transport.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedAttackAttempt {
    /// Index of the variant in the result of [`variants`].
    pub(super) variant: usize,
    pub(super) route: DialectOverTransport,
}

/// Reads every attack case of both files.
pub(super) fn all_cases() -> anyhow::Result<Vec<AttackCase>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cases = case::load(&folder.join("attacks.jsonl"), false)?;
    cases.extend(case::load(&folder.join("extra.jsonl"), true)?);
    let mut ids = BTreeSet::new();
    for case in &cases {
        ensure!(ids.insert(&case.id), "there are two cases {}", case.id);
    }
    Ok(cases)
}

/// Returns the variants of the call of `case`. A case that calls no tool has one variant without a
/// tool.
pub(super) fn variants(case: &AttackCase) -> Vec<AttackCallVariant> {
    let variants = variants::variants(case);
    if variants.is_empty() {
        return vec![AttackCallVariant {
            tool: String::new(),
            input: Value::Null,
            label: String::new(),
        }];
    }
    variants
}

/// Returns every attempt at `case` over `routes`. Leaves out dialects that do not offer the tool of
/// a variant.
pub(super) fn attempts(
    case: &AttackCase,
    routes: &[DialectOverTransport],
    offered: &OfferedToolNames,
) -> Vec<PlannedAttackAttempt> {
    let mut attempts = Vec::new();
    for (at, variant) in variants(case).iter().enumerate() {
        for route in routes.iter().copied() {
            let applies = if variant.tool.is_empty() {
                applies_to(case, route)
            } else {
                let is_declared_by_case = variant.tool.starts_with("attack.");
                (is_declared_by_case || offered.has(route.dialect, variant))
                    && !is_covered_elsewhere(case, variant, route)
            };
            if applies {
                attempts.push(PlannedAttackAttempt { variant: at, route });
            }
        }
    }
    attempts
}

/// Returns true if attempts at `case` take long, so that they should start before those of other
/// cases.
pub(super) fn is_slow(case: &AttackCase) -> bool {
    matches!(
        case.id.as_str(),
        "R03"
            | "R12"
            | "G32"
            | "V05"
            | "J03"
            | "F23"
            | "F24"
            | "H16"
            | "R13"
            | "C02"
            | "X08"
            | "X55"
            | "E02"
    )
}

/// Returns true if `case`, which calls no tool, is attempted over `route`.
fn applies_to(case: &AttackCase, route: DialectOverTransport) -> bool {
    let DialectOverTransport { dialect, transport } = route;
    let is_mcp = matches!(dialect, AttackDialect::Mcp2026 | AttackDialect::Mcp2025);
    let is_http = transport == AttackTransport::Http;
    let is_stdio = transport == AttackTransport::Stdio;
    match case.id.as_str() {
        id if absent_tools::is_absent_tool_case(id) => true,
        "F29" | "F30" | "F31" | "I15" | "X46" => is_mcp,
        "F48" => dialect == AttackDialect::Mcp2025 && is_stdio,
        "X47" => dialect != AttackDialect::Synesthetic,
        "J01" => is_http && dialect != AttackDialect::Synesthetic,
        "J06" | "I10" | "T02" => is_stdio && dialect != AttackDialect::Synesthetic,
        "H01" | "H04" | "H15" | "H17" => is_http,
        "H09" | "H10" | "H12" => dialect == AttackDialect::Mcp2025 && is_http,
        "H22" => is_mcp && is_http,
        "H07" | "H16" | "H18" | "H20" | "H21" => dialect == AttackDialect::Mcp2026 && is_http,
        "I04" | "I05" => true,
        "I13" => is_stdio,
        _ => match case.input["kind"].as_str() {
            Some("fault") if case.id == "M69" => {
                !matches!(dialect, AttackDialect::Envelope | AttackDialect::Synesthetic)
            }
            Some("connections" | "resource" | "fault" | "console") => {
                dialect == AttackDialect::Mcp2026 && is_http
            }
            Some("tool_list") => is_stdio && dialect != AttackDialect::Synesthetic,
            _ => false,
        },
    }
}

/// Returns true if a variant of `case` is skipped over `route`: the dialect does not affect the
/// result and other routes test it, or answers over this route cannot show whether the attack
/// succeeded.
fn is_covered_elsewhere(
    case: &AttackCase,
    variant: &AttackCallVariant,
    route: DialectOverTransport,
) -> bool {
    let DialectOverTransport { dialect, transport } = route;
    let is_websocket = transport == AttackTransport::WebSocket;
    match case.id.as_str() {
        // They are about the server's memory and disk, which no dialect changes, and are slow.
        "R03" | "R12" | "G32" | "V05" => {
            !matches!(
                dialect,
                AttackDialect::Mcp2026 | AttackDialect::Mira | AttackDialect::Envelope
            ) || is_websocket
        }
        // Only there, a client chooses how long a job is kept.
        "J03" => dialect != AttackDialect::Mcp2025 || is_websocket,
        "M16" => transport != AttackTransport::Stdio,
        "M14" | "M15" => {
            !matches!(dialect, AttackDialect::Mcp2026 | AttackDialect::Mira) || is_websocket
        }
        // A counter needs the etag of each read, which this contract does not return.
        "E02" => dialect == AttackDialect::Workstation,
        // They are about what a program can do, which no dialect changes.
        _ => {
            matches!(variant.label.as_str(), "ci.run" | "declared" | "job")
                && !matches!(
                    (dialect, transport),
                    (AttackDialect::Mcp2026, AttackTransport::Stdio)
                        | (AttackDialect::Mira, AttackTransport::Http)
                )
        }
    }
}
