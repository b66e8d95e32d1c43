//! What whoever runs the server decides about assets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::places;

/// Where JSON assets are. Without folders there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The folder of the workspace whose `*.json` are schemas, read at `asset://schemas/NAME`.
    pub schemas: Option<String>,
    /// The folder of the workspace whose `*.json` are examples, read at `asset://examples/NAME`.
    pub examples: Option<String>,
}

impl Settings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let folders = [("assets.schemas", &self.schemas), ("assets.examples", &self.examples)];
        let mut named = folders.into_iter().filter_map(|(it, folder)| Some((it, folder.as_ref()?)));
        named.try_for_each(|(setting, folder)| places::check_folder(setting, folder))
    }
}
