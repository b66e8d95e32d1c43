//! Lists the tools that a server offers in each dialect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use super::client::connect;
use super::dialects::{AttackDialect, AttackTransport, ROUTES};
use super::folders::AttackFolders;
use super::server::AttackServerLaunch;
use super::setup;
use super::variants::AttackCallVariant;

/// Names of the offered tools as clients see them, by dialect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OfferedToolNames(BTreeMap<AttackDialect, BTreeSet<String>>);

impl OfferedToolNames {
    /// Starts a server that speaks all dialects over HTTP, and lists its tools in each. A dialect
    /// offers the same tools over all of its transports.
    pub(super) fn list(binary: &Path, base: &Path) -> anyhow::Result<Self> {
        let folders = AttackFolders::create(base.join("list"))?;
        let schemas = folders.ws.join(setup::SCHEMAS);
        std::fs::create_dir_all(&schemas)?;
        std::fs::write(schemas.join("case.schema.json"), "{}")?;
        let mut server = AttackServerLaunch::new(binary, &folders).serve(&folders)?;
        let addr = server.addr.context("no address")?;
        let mut offered = BTreeMap::new();
        for route in ROUTES.into_iter().filter(|route| route.transport == AttackTransport::Http) {
            let tools = connect(addr, route)?.tools()?;
            let names =
                tools.iter().filter_map(|tool| tool["name"].as_str().or(tool["id"].as_str()));
            let mut names: BTreeSet<String> = names.map(str::to_owned).collect();
            match route.dialect {
                // It has no list.
                AttackDialect::Synesthetic => {
                    names.extend(["validate_asset", "diff_assets"].map(str::to_owned));
                }
                // Its list has a second name for this tool.
                AttackDialect::Mira => _ = names.insert("vector/search".to_owned()),
                _ => {}
            }
            offered.insert(route.dialect, names);
        }
        _ = server.stop();
        Ok(Self(offered))
    }

    /// Returns true if `dialect` can express the call of `variant`, and offers the tool that it
    /// calls.
    pub(super) fn has(&self, dialect: AttackDialect, variant: &AttackCallVariant) -> bool {
        let mut routes = ROUTES.into_iter();
        let codec = routes.find(|route| route.dialect == dialect).map(|route| route.codec());
        let wire_call = codec.and_then(|codec| codec.to_wire(&variant.tool, &variant.input));
        wire_call.is_some_and(|(name, _)| {
            self.0.get(&dialect).is_some_and(|names| names.contains(&name))
        })
    }
}
