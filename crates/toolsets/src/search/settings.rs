//! Settings of the search toolset.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WORKSPACE;
use super::embedders::EmbedderSettings;
use super::engines::settings::EngineSettings;
use crate::uri_paths;

/// Search over the workspace and other folders. Nothing is read before the first search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Offers the tools of this toolset and `docs_search`.
    pub enabled: bool,
    /// Folders of the workspace that a call can search alone, by namespace, e.g.
    /// `{ docs = "docs" }`. A call without a namespace searches the whole workspace.
    pub namespaces: BTreeMap<String, String>,
    /// Folders outside the workspace that a call can search by namespace, as absolute paths, e.g.
    /// `{ std = "/usr/lib/rustlib/src" }`. No other tool reads them.
    pub roots: BTreeMap<String, String>,
    /// Location of the indexes: `user` (a folder for each workspace in this user's cache folder),
    /// an absolute folder, or `memory`. You can delete them at any time: toolgate builds them
    /// again.
    pub cache: String,
    /// Largest number of files in the index of a root.
    pub files_max: usize,
    /// Largest size of the text in the index of a root, in bytes.
    pub text_bytes_max: u64,
    /// Largest number of documents that callers can put into a namespace with `search_upsert`.
    pub documents_max: usize,
    /// Location of the search index: `embedded` keeps it in this process, and a table
    /// `engine.postgres` names a PostgreSQL server that keeps it.
    pub engine: EngineSettings,
    /// Embedding model to use in addition to the built-in one.
    pub embedder: EmbedderSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            namespaces: BTreeMap::new(),
            roots: BTreeMap::new(),
            cache: "user".to_owned(),
            files_max: 200_000,
            text_bytes_max: 2 << 30,
            documents_max: 10_000,
            engine: EngineSettings::default(),
            embedder: EmbedderSettings::default(),
        }
    }
}

impl Settings {
    /// Checks these settings.
    ///
    /// # Errors
    ///
    /// If a value is invalid, with the way to fix it.
    pub fn check(&self) -> Result<(), String> {
        for (table, names) in [("namespaces", &self.namespaces), ("roots", &self.roots)] {
            if let Some(name) = names.keys().find(|it| it.trim().is_empty() || *it == WORKSPACE) {
                return Err(format!(
                    "`search.{table}` has a namespace `{name}`; use another name (`{WORKSPACE}` is \
                     the whole folder)"
                ));
            }
        }
        for (name, folder) in &self.namespaces {
            uri_paths::check_folder(&format!("search.namespaces.{name}"), folder)?;
        }
        for (name, folder) in &self.roots {
            if self.namespaces.contains_key(name) {
                return Err(format!(
                    "`search.roots` and `search.namespaces` both have `{name}`; rename one"
                ));
            }
            if !Path::new(folder).is_absolute() {
                return Err(format!(
                    "`search.roots.{name}` is `{folder}`; set an absolute folder, or add a folder \
                     of the workspace to `search.namespaces`"
                ));
            }
        }
        let cache = self.cache.as_str();
        if !matches!(cache, "user" | "memory") && !Path::new(cache).is_absolute() {
            return Err(format!(
                "`search.cache` is `{cache}`; set `user`, `memory` or an absolute folder"
            ));
        }
        self.engine.check()?;
        self.embedder.check()
    }

    /// Reads the secrets that these settings name. `variable` looks up an environment variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        self.engine.take_secrets(&variable);
        self.embedder.take_secrets(&variable);
    }
}
