//! The tools that a server offers in each dialect over each transport.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use super::names::Form;
use super::spoken::{Dialect, Way};
use super::{client, server, setups, stage};

/// The names of the tools on the wire, by dialect and transport.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offers(BTreeMap<String, BTreeSet<String>>);

impl Offers {
    pub(super) fn has(&self, way: Way, form: &Form) -> bool {
        let Some((name, _)) = way.spoken().spell(&form.tool, &form.input) else { return false };
        self.0.get(&way.name()).is_some_and(|names| names.contains(&name))
    }
}

/// Asks a server for its list by each of `ways`.
pub(super) fn ask_servers(binary: &Path, base: &Path, ways: &[Way]) -> anyhow::Result<Offers> {
    let mut all = BTreeMap::new();
    for way in ways.iter().copied() {
        let stage = stage::Stage::set(base.join(format!("list-{}", way.name().replace(' ', "-"))))?;
        let schemas = stage.ws.join(setups::SCHEMAS);
        std::fs::create_dir_all(&schemas)?;
        std::fs::write(schemas.join("case.schema.json"), "{}")?;
        let launch = server::Launch::of(binary, &stage);
        let (mut server, mut client) = client::open(&launch, &stage, way)
            .with_context(|| format!("no server to be attacked, {}", way.name()))?;
        let mut names: BTreeSet<String> = client
            .tools()?
            .iter()
            .filter_map(|tool| tool["name"].as_str().or_else(|| tool["id"].as_str()))
            .map(str::to_owned)
            .collect();
        if way.dialect == Dialect::Synesthetic {
            names = ["validate_asset", "diff_assets"].map(str::to_owned).into();
        }
        if way.dialect == Dialect::Mira {
            // Two have the contract's name in its list, and the rest have theirs.
            names.insert("vector/search".to_owned());
        }
        client.close();
        _ = server.stop();
        all.insert(way.name(), names);
    }
    Ok(Offers(all))
}
