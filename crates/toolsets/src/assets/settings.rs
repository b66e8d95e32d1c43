//! What whoever runs the server decides about assets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::places;
use crate::world::fetch::Target;

/// Where assets are sent unless the settings say otherwise.
const ASSETS_PATH: &str = "/synesthetic-assets/";

/// Where JSON assets are, and where they are sent.
///
/// Without folders there are those of `libs/synesthetic-schemas`, if the workspace has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The folder of the workspace whose `*.json` are schemas; `libs/synesthetic-schemas/jsonschema`
    /// by default, if it is there.
    pub schemas: Option<String>,
    /// The folder of the workspace whose `*.json` are examples; `libs/synesthetic-schemas/examples`
    /// by default, if it is there.
    pub examples: Option<String>,
    /// Where the backend is that takes assets, such as `https://assets.example`. Without it there
    /// is none.
    pub backend_url: Option<String>,
    /// The path at the backend that assets are posted to; `/synesthetic-assets/` by default.
    pub backend_assets_path: Option<String>,
    /// What the owner's environment says, beyond what a file may.
    #[serde(skip)]
    pub owner: Owner,
}

/// What the owner of a server says about assets elsewhere than in its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// A folder of schemas, anywhere, absolute or from where the server was started. It comes
    /// before `schemas`, and must be there.
    pub schemas: Option<String>,
    /// A folder of examples, likewise.
    pub examples: Option<String>,
    /// Whether the tools are offered where there are no assets, too.
    pub always: bool,
}

impl Settings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let folders = [("assets.schemas", &self.schemas), ("assets.examples", &self.examples)];
        let mut named = folders.into_iter().filter_map(|(it, folder)| Some((it, folder.as_ref()?)));
        named.try_for_each(|(setting, folder)| places::check_folder(setting, folder))?;
        let Some(url) = self.backend() else { return Ok(()) };
        let target = Target::new(url, &self.assets_path());
        target.map(|_| ()).map_err(|why| {
            let url = url.escape_debug();
            format!("`assets.backend_url` is `{url}`, which {why}; give a URL such as `https://assets.example`")
        })
    }

    /// The URL of the backend, if there is one.
    pub(super) fn backend(&self) -> Option<&str> {
        self.backend_url.as_deref().filter(|url| !url.trim().is_empty())
    }

    /// The path that assets are posted to.
    pub(super) fn assets_path(&self) -> String {
        match self.backend_assets_path.as_deref() {
            None => ASSETS_PATH.to_owned(),
            Some(path) if path.starts_with('/') => path.to_owned(),
            Some(path) => format!("/{path}"),
        }
    }
}
