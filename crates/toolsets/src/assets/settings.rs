//! Settings of the `assets` toolset.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::uri_paths;
use toolgate_net::HttpUrl;

/// The default folder of schemas for assets, used if it exists.
pub(super) const SCHEMAS_FOLDER_DEFAULT: &str = "libs/synesthetic-schemas/jsonschema";
/// The default folder of example assets, used if it exists.
pub(super) const EXAMPLES_FOLDER_DEFAULT: &str = "libs/synesthetic-schemas/examples";
/// The default URL path to which assets are posted at the backend.
const ASSETS_PATH_DEFAULT: &str = "/synesthetic-assets/";

/// Folders of JSON assets, and the backend that stores them.
///
/// By default, the folders in `libs/synesthetic-schemas` are used, if the workspace has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AssetSettings {
    /// Folder of schemas (`*.json`), relative to the workspace. Default:
    /// `libs/synesthetic-schemas/jsonschema`, if it exists.
    pub schemas: Option<String>,
    /// Folder of examples (`*.json`), relative to the workspace. Default:
    /// `libs/synesthetic-schemas/examples`, if it exists.
    pub examples: Option<String>,
    /// URL of the backend that stores assets, such as `https://assets.example`. Default: no
    /// backend.
    pub backend_url: Option<String>,
    /// Settings from the owner's environment, which a settings file cannot change.
    #[serde(skip)]
    pub owner: EnvironmentAssetSettings,
}

/// Asset settings that the server owner sets in environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentAssetSettings {
    /// Folder of schemas, absolute or relative to the server's working directory. The folder must
    /// exist, and overrides the `schemas` setting.
    pub schemas: Option<String>,
    /// Folder of examples, absolute or relative to the server's working directory. The folder must
    /// exist, and overrides the `examples` setting.
    pub examples: Option<String>,
    /// URL path to which assets are posted at the backend. Default: `/synesthetic-assets/`.
    pub backend_assets_path: Option<String>,
    /// True if the `assets` tools are offered even if the workspace has no assets.
    pub always_offered: bool,
}

impl AssetSettings {
    /// Checks the settings of the `assets` toolset.
    ///
    /// # Errors
    /// Describes the first invalid setting and its fix.
    pub fn check(&self) -> Result<(), String> {
        let folders = [("assets.schemas", &self.schemas), ("assets.examples", &self.examples)];
        let mut named = folders.into_iter().filter_map(|(it, folder)| Some((it, folder.as_ref()?)));
        named.try_for_each(|(setting, folder)| uri_paths::check_folder(setting, folder))
    }

    /// Returns the reason why assets cannot be sent to the backend, if its URL is unusable. The
    /// other `assets` tools work without the backend.
    pub fn backend_problem(&self) -> Option<String> {
        let url = self.backend()?;
        let why = HttpUrl::parse_below(url, &self.assets_path()).err()?;
        let url = url.escape_debug();
        Some(format!(
            "no asset can be sent: `assets.backend_url` (SYN_BACKEND_URL) is `{url}`, which {why}; \
             give a URL such as `https://assets.example`"
        ))
    }

    /// Returns the paths of the folder of schemas and the folder of examples of the workspace
    /// `root`. The folders need not exist.
    pub fn folders(&self, root: &Path) -> [PathBuf; 2] {
        let folder = |owners: &Option<String>, named: &Option<String>, by_default: &str| {
            // A relative folder of the owner starts from the server's working directory.
            let owners = owners.as_ref().map(PathBuf::from);
            owners.unwrap_or_else(|| root.join(named.as_deref().unwrap_or(by_default)))
        };
        [
            folder(&self.owner.schemas, &self.schemas, SCHEMAS_FOLDER_DEFAULT),
            folder(&self.owner.examples, &self.examples, EXAMPLES_FOLDER_DEFAULT),
        ]
    }

    /// Returns the URL of the backend, if one is configured.
    pub(super) fn backend(&self) -> Option<&str> {
        self.backend_url.as_deref().filter(|url| !url.trim().is_empty())
    }

    /// Returns the URL path to which assets are posted at the backend, with a leading slash.
    pub(super) fn assets_path(&self) -> String {
        match self.owner.backend_assets_path.as_deref() {
            None => ASSETS_PATH_DEFAULT.to_owned(),
            Some(path) if path.starts_with('/') => path.to_owned(),
            Some(path) => format!("/{path}"),
        }
    }
}
