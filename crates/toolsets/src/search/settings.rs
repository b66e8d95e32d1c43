//! Settings of the search toolset.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WORKSPACE;
use super::embedders::EmbedderSettings;
use super::engines::settings::SearchEngineSettings;
use crate::uri_paths;

/// Highest value of `search.wait_ms`.
const WAIT_MS_MAX: u64 = 60_000;

/// Search over the workspace and other folders. Nothing is read before the first search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SearchSettings {
    /// Folders that a call can search separately, by namespace, e.g. `{ docs = "docs", std =
    /// "/usr/lib/rustlib/src" }`. A call without a namespace searches the whole workspace.
    ///
    /// If the path is relative, the namespace is a folder of the workspace. If the path is
    /// absolute, the namespace is a folder outside the workspace, which only the search tools read.
    pub namespaces: BTreeMap<String, String>,
    /// Location of the indexes: `user` (a folder for each workspace in this user's cache folder),
    /// an absolute folder, or `memory`. You can delete the indexes at any time, because toolgate
    /// builds missing indexes again.
    pub cache: String,
    /// Maximum time in milliseconds that a search waits for its index: up to 60000, but at most
    /// half of the call's time limit. When the time is over, the search uses the files that are
    /// indexed so far, and the result begins with a note.
    pub wait_ms: u64,
    /// Location of the search index: `embedded` for this process, or a table `engine.postgres` for
    /// a PostgreSQL server.
    pub engine: SearchEngineSettings,
    /// Embedding model to use in addition to the built-in model.
    pub embedder: EmbedderSettings,
    /// Limits of the indexes, which a settings file cannot change.
    #[serde(skip)]
    pub limits: IndexLimits,
}

/// Size limits of the search indexes.
///
/// The limits are constants, not settings. They far exceed useful sizes, and only prevent a full
/// memory or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexLimits {
    /// Maximum number of files in the index of a folder. Default: 200,000.
    pub files_max: usize,
    /// Maximum number of bytes of text in the index of a folder. Default: 2 GiB.
    pub text_bytes_max: u64,
    /// Maximum number of documents that callers can put into a namespace with `search.upsert`.
    /// Default: 10,000.
    pub documents_max: u64,
}

impl Default for IndexLimits {
    fn default() -> Self {
        Self { files_max: 200_000, text_bytes_max: 2 << 30, documents_max: 10_000 }
    }
}

impl Default for SearchSettings {
    fn default() -> Self {
        Self {
            namespaces: BTreeMap::new(),
            cache: "user".to_owned(),
            wait_ms: 5_000,
            engine: SearchEngineSettings::default(),
            embedder: EmbedderSettings::default(),
            limits: IndexLimits::default(),
        }
    }
}

impl SearchSettings {
    /// Checks the settings of the search.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid. The error describes a fix.
    pub fn check(&self) -> Result<(), String> {
        for (name, folder) in &self.namespaces {
            if name.trim().is_empty() || name == WORKSPACE {
                return Err(format!(
                    "`search.namespaces` has a namespace `{name}`; use another name (`{WORKSPACE}` \
                     is the whole folder)"
                ));
            }
            if !Path::new(folder).is_absolute() {
                uri_paths::check_folder(&format!("search.namespaces.{name}"), folder)?;
            }
        }
        let cache = self.cache.as_str();
        if !matches!(cache, "user" | "memory") && !Path::new(cache).is_absolute() {
            return Err(format!(
                "`search.cache` is `{cache}`; set `user`, `memory` or an absolute folder"
            ));
        }
        if self.wait_ms > WAIT_MS_MAX {
            return Err(format!("`search.wait_ms` is {}; set at most {WAIT_MS_MAX}", self.wait_ms));
        }
        self.engine.check()?;
        self.embedder.check()
    }

    /// Returns the folders outside the workspace that calls can search.
    pub fn outside_folders(&self) -> impl Iterator<Item = &Path> {
        self.namespaces.values().map(Path::new).filter(|folder| folder.is_absolute())
    }

    /// Reads the secrets from the environment variables that these settings name. `variable` looks
    /// up an environment variable.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        self.engine.take_secrets(&variable);
        self.embedder.take_secrets(&variable);
    }
}
