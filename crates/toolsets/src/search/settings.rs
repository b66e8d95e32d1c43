//! What whoever runs the server decides about searching by meaning.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WORKSPACE;
use super::embedders::EmbedderSettings;
use super::engines::settings::EngineSettings;
use crate::places;

/// What is searched, and how much of it. Nothing is read before the first search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether the tools of this toolset and `docs_search` are offered.
    pub enabled: bool,
    /// Folders of the workspace that are searched by themselves where a call names them as its
    /// namespace, e.g. `{ docs = "docs" }`. Without a namespace the whole workspace is searched.
    pub namespaces: BTreeMap<String, String>,
    /// Folders outside the workspace that are searched by themselves where a call names them as its
    /// namespace, by their absolute paths, e.g. `{ std = "/usr/lib/rustlib/src" }`. Only searched:
    /// no other tool reads there.
    pub roots: BTreeMap<String, String>,
    /// Where indexes are kept: `user` (a folder for each workspace in this user's cache folder),
    /// an absolute folder, or `memory`. They can be deleted at any time: they are made again.
    pub cache: String,
    /// How many files of a root are in its index at most.
    pub files_max: usize,
    /// How many bytes of text are in the index of a root at most.
    pub text_bytes_max: u64,
    /// How many documents a namespace has at most that callers put with `search_upsert`.
    pub documents_max: usize,
    /// The place of the search index: `embedded` keeps it in this process, and a table
    /// `engine.postgres` names a PostgreSQL server that keeps it.
    pub engine: EngineSettings,
    /// Who makes vectors beside the model that is built in.
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
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for (table, names) in [("namespaces", &self.namespaces), ("roots", &self.roots)] {
            if let Some(name) = names.keys().find(|it| it.trim().is_empty() || *it == WORKSPACE) {
                return Err(format!(
                    "`search.{table}` names a namespace `{name}`; give it a name of its own \
                     (`{WORKSPACE}` is the whole folder)"
                ));
            }
        }
        for (name, folder) in &self.namespaces {
            places::check_folder(&format!("search.namespaces.{name}"), folder)?;
        }
        for (name, folder) in &self.roots {
            if self.namespaces.contains_key(name) {
                return Err(format!(
                    "`search.roots` and `search.namespaces` both name `{name}`; rename one"
                ));
            }
            if !Path::new(folder).is_absolute() {
                return Err(format!(
                    "`search.roots.{name}` is `{folder}`; give an absolute folder, or name one of \
                     the workspace in `search.namespaces`"
                ));
            }
        }
        let cache = self.cache.as_str();
        if !matches!(cache, "user" | "memory") && !Path::new(cache).is_absolute() {
            return Err(format!(
                "`search.cache` is `{cache}`; give `user`, `memory` or an absolute folder"
            ));
        }
        self.engine.check()?;
        self.embedder.check()
    }

    /// Takes the secrets that these name out of an environment, in which `variable` looks up.
    pub fn take_secrets<'v>(&mut self, variable: impl Fn(&str) -> Option<&'v str>) {
        self.engine.take_secrets(&variable);
        self.embedder.take_secrets(&variable);
    }
}
