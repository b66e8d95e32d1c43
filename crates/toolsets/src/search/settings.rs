//! What whoever runs the server decides about searching by meaning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WORKSPACE;
use crate::places;

/// What is searched, and how much of it. Nothing is read before the first search.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether `search_semantic` and `docs_search` are offered.
    pub enabled: bool,
    /// Folders of the workspace that are searched by themselves where a call names them as its
    /// namespace, e.g. `{ docs = "docs" }`. Without a namespace the whole workspace is searched.
    pub namespaces: BTreeMap<String, String>,
    /// How many files of a namespace are in its index at most.
    pub files_max: usize,
    /// How many bytes of text are in the index of a namespace at most; in memory it takes about
    /// twice as much.
    pub text_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            namespaces: BTreeMap::new(),
            files_max: 20_000,
            text_bytes_max: 128 << 20,
        }
    }
}

impl Settings {
    /// What is wrong with these, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for (name, folder) in &self.namespaces {
            if name.trim().is_empty() || name == WORKSPACE {
                return Err(format!(
                    "`search.namespaces` names a namespace `{name}`; give it a name of its own \
                     (`{WORKSPACE}` is the whole folder)"
                ));
            }
            places::check_folder(&format!("search.namespaces.{name}"), folder)?;
        }
        Ok(())
    }
}
