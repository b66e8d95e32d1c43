//! Lists, validates and resolves namespaces.

use std::path::Path;
use std::sync::PoisonError;

use toolgate_contract::{Fault, ToolError};
use toolgate_search::Filter;

use super::{Service, cannot, unavailable};
use crate::search::{Settings, WORKSPACE};
use crate::world::Root;
use crate::world::root::Start;

/// The longest name of a namespace of documents, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The identity of an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Workspace,
    /// A root that the settings name.
    Root(String),
    /// Documents that callers put.
    Documents(String),
}

/// The location of a namespace.
pub(super) struct Place {
    pub(super) key: Key,
    /// The folder relative to its root, empty for all of it.
    pub(super) folder: String,
}

impl Place {
    /// Restricts `filter` to this folder. Returns `None` if they do not overlap.
    pub(super) fn within(&self, filter: Filter) -> Option<Filter> {
        if self.folder.is_empty() {
            return Some(filter);
        }
        let folder = format!("{}/", self.folder);
        if filter.prefixes.is_empty() {
            return Some(Filter { prefixes: vec![folder], ..filter });
        }
        let inner = filter.prefixes.into_iter().filter_map(|prefix| {
            if prefix.starts_with(&folder) {
                Some(prefix)
            } else {
                folder.starts_with(&prefix).then(|| folder.clone())
            }
        });
        let prefixes: Vec<String> = inner.collect();
        (!prefixes.is_empty()).then_some(Filter { prefixes, ..filter })
    }
}

impl Service {
    /// Resolves the namespace `name`.
    ///
    /// # Errors
    ///
    /// If there is no such namespace, or its folder or server is unavailable.
    pub(super) async fn find(&self, name: &str) -> Result<Place, ToolError> {
        if name == WORKSPACE {
            return Ok(Place { key: Key::Workspace, folder: String::new() });
        }
        if let Some(folder) = self.settings.namespaces.get(name) {
            let root = self.root.clone();
            let path = folder.clone();
            let real = tokio::task::spawn_blocking(move || real_folder(&root, &path)).await;
            let real =
                real.map_err(|err| ToolError::because("looking for a folder failed", err))?;
            let folder = real.map_err(|err| {
                let message = format!("{}: {}", cannot(name), err.message);
                ToolError { fault: Fault::Unavailable, message, cause: err.cause }
            })?;
            return Ok(Place { key: Key::Workspace, folder });
        }
        if self.settings.roots.contains_key(name) {
            return Ok(Place { key: Key::Root(name.to_owned()), folder: String::new() });
        }
        let mut of_documents = self.document_names().await;
        if let Some(server) = &self.server
            && !of_documents.iter().any(|known| known == name)
        {
            let there = server.document_namespaces(self.root.path()).await;
            of_documents = there.map_err(|err| unavailable(name, &err))?;
        }
        if of_documents.iter().any(|known| known == name) {
            return Ok(Place { key: Key::Documents(name.to_owned()), folder: String::new() });
        }
        Err(self.unknown(name).await)
    }

    /// Returns the error for an unknown namespace, which lists the known ones.
    pub(crate) async fn unknown(&self, name: &str) -> ToolError {
        let names = self.names().await.join(", ");
        ToolError::invalid(
            "/namespace",
            format!("no namespace is named `{name}`; there are {names}"),
        )
    }

    /// Returns the names of all namespaces, sorted.
    pub(super) async fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.settings.namespaces.keys().cloned().collect();
        names.extend(self.settings.roots.keys().cloned());
        names.push(WORKSPACE.to_owned());
        names.extend(self.document_names().await);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the names of the namespaces of documents.
    pub(super) async fn document_names(&self) -> Vec<String> {
        let mut names: Vec<String> = {
            let collections = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
            let named = |key: &Key| match key {
                Key::Documents(name) => Some(name.clone()),
                Key::Workspace | Key::Root(_) => None,
            };
            collections.keys().filter_map(named).collect()
        };
        if let Some(folder) = self.folders.documents.clone() {
            let kept = tokio::task::spawn_blocking(move || kept_names(&folder)).await;
            names.extend(kept.unwrap_or_default());
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Checks that `name` is valid for a namespace of documents.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ToolError> {
        let is_sound = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        let Settings { namespaces, roots, .. } = &self.settings;
        if name == WORKSPACE || namespaces.contains_key(name) || roots.contains_key(name) {
            let message = format!("`{name}` has files; name another for documents, e.g. `notes`");
            return Err(ToolError::invalid("/namespace", message));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_sound) {
            let message = "it may be small letters, digits, `_` and `-`, at most 64 of them";
            return Err(ToolError::invalid("/namespace", message));
        }
        Ok(())
    }
}

/// Resolves the folder at `path` to the path that its files begin with.
fn real_folder(root: &Root, path: &str) -> Result<String, ToolError> {
    match root.start(path)? {
        Start::Folder(folder) => Ok(folder.path.to_string_lossy().into_owned()),
        Start::File(_) => Err(ToolError::failed(format!("`{path}` is a file, not a folder"))),
    }
}

/// Returns the names of the subfolders of `folder`, one for each namespace of documents.
#[allow(clippy::disallowed_methods, reason = "a folder of the server's own, not the workspace")]
fn kept_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
