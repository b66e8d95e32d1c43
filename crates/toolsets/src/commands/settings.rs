//! Settings of declared commands.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::table::CommandDeclarationTable;

/// Files that declare commands, and the locations of their programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CommandSettings {
    /// Packs: files that declare commands, or folders of such files (`*.toml`). Relative paths
    /// start from the configuration file's folder.
    pub packs: Vec<PathBuf>,
    /// Locations of the programs that commands name, such as `zyra = "/opt/zyra/bin/zyra"`.
    /// toolgate looks up a plain name in PATH. A relative path starts from the configuration file's
    /// folder.
    pub programs: BTreeMap<String, String>,
}

/// The unparsed tables `[command."stage.name"]` of a configuration.
/// [`load_commands`](super::load_commands) parses them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnparsedCommandTables(toml::Table);

impl UnparsedCommandTables {
    /// Returns true if the configuration declares no commands.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl JsonSchema for UnparsedCommandTables {
    fn schema_name() -> Cow<'static, str> {
        "Commands".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, CommandDeclarationTable>::json_schema(generator)
    }
}
