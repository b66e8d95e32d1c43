//! What the owner of the server decides about declared commands.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::table::Table;

/// Where commands are declared besides the configuration, and where their programs are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Packs: files that declare commands, or folders of such files (`*.toml`), relative to the
    /// configuration.
    pub packs: Vec<PathBuf>,
    /// Where programs are that commands name: `zyra = "/opt/zyra/bin/zyra"`. A name is sought in
    /// PATH, a path is relative to the configuration.
    pub programs: BTreeMap<String, String>,
}

/// The tables `[command."stage.name"]` of a configuration as they were written;
/// [`declared`](super::declared) says what they mean.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tables(toml::Table);

impl Tables {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl JsonSchema for Tables {
    fn schema_name() -> Cow<'static, str> {
        "Commands".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, Table>::json_schema(generator)
    }
}
