//! Lists, validates and resolves namespaces.

use std::path::Path;

use toolgate_contract::{ToolError, ToolErrorKind, lock_mutex};
use toolgate_search::{DocumentFilter, is_at_or_below};

use super::{SearchService, not_current_message, unavailable_error};
use crate::search::WORKSPACE;
use toolgate_world::Root;
use toolgate_world::root::WalkStartPoint;

/// The longest name of a namespace of documents, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Identity of a search index: its folder or its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SearchableIndexKey {
    Workspace,
    /// The index of a folder outside the workspace, by the name of the folder in the settings.
    Root(String),
    /// The index of a namespace of documents that callers store, by the name of the namespace.
    Documents(String),
}

/// The location of a search namespace: an index, and a folder in this index.
pub(super) struct NamespaceLocation {
    pub(super) key: SearchableIndexKey,
    /// The folder of the namespace relative to the root of the index. Empty for the complete index.
    pub(super) folder: String,
}

impl NamespaceLocation {
    /// Restricts `filter` to the folder of this namespace. Returns `None` if `filter` accepts no
    /// path in this folder.
    pub(super) fn restrict(&self, filter: DocumentFilter) -> Option<DocumentFilter> {
        if self.folder.is_empty() {
            return Some(filter);
        }
        let folder = format!("{}/", self.folder);
        if filter.prefixes.is_empty() {
            return Some(DocumentFilter { prefixes: vec![folder], ..filter });
        }
        let inner = filter.prefixes.into_iter().filter_map(|prefix| {
            if is_at_or_below(&prefix, &folder) {
                Some(prefix)
            } else {
                is_at_or_below(&folder, &prefix).then(|| folder.clone())
            }
        });
        let prefixes: Vec<String> = inner.collect();
        (!prefixes.is_empty()).then_some(DocumentFilter { prefixes, ..filter })
    }
}

impl SearchService {
    /// Resolves the search namespace `name`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such namespace, or its folder or server is unavailable.
    pub(super) async fn resolve(&self, name: &str) -> Result<NamespaceLocation, ToolError> {
        if name == WORKSPACE {
            return Ok(NamespaceLocation {
                key: SearchableIndexKey::Workspace,
                folder: String::new(),
            });
        }
        if let Some(folder) = self.settings.namespaces.get(name) {
            if Path::new(folder).is_absolute() {
                return Ok(NamespaceLocation {
                    key: SearchableIndexKey::Root(name.to_owned()),
                    folder: String::new(),
                });
            }
            let root = self.root.clone();
            let path = folder.clone();
            let real = toolgate_net::spawn_blocking(move || real_folder(&root, &path)).await;
            let real =
                real.map_err(|err| ToolError::with_cause("resolving a folder failed", err))?;
            let folder = real.map_err(|err| {
                let message = format!("{}: {}", not_current_message(name), err.message);
                ToolError { fault: ToolErrorKind::Unavailable, message, cause: err.cause }
            })?;
            return Ok(NamespaceLocation { key: SearchableIndexKey::Workspace, folder });
        }
        let mut document_names = self.document_names().await;
        if let Some(server) = &self.server
            && !document_names.iter().any(|known| known == name)
        {
            let on_server = server.document_namespaces(self.root.path()).await;
            document_names = on_server.map_err(|err| unavailable_error(name, &err))?;
        }
        if document_names.iter().any(|known| known == name) {
            return Ok(NamespaceLocation {
                key: SearchableIndexKey::Documents(name.to_owned()),
                folder: String::new(),
            });
        }
        Err(self.unknown_namespace(name).await)
    }

    /// Returns the error for the unknown namespace `name`, which lists the existing namespaces.
    pub(crate) async fn unknown_namespace(&self, name: &str) -> ToolError {
        let names = self.namespace_names().await.join(", ");
        ToolError::invalid(
            "/namespace",
            format!("unknown namespace `{name}`; known namespaces: {names}"),
        )
    }

    /// Returns the names of all search namespaces, sorted.
    pub(super) async fn namespace_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.settings.namespaces.keys().cloned().collect();
        names.push(WORKSPACE.to_owned());
        names.extend(self.document_names().await);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the names of the search namespaces of documents.
    pub(super) async fn document_names(&self) -> Vec<String> {
        let mut names: Vec<String> = {
            let collections = lock_mutex(&self.collections);
            let named = |key: &SearchableIndexKey| match key {
                SearchableIndexKey::Documents(name) => Some(name.clone()),
                SearchableIndexKey::Workspace | SearchableIndexKey::Root(_) => None,
            };
            collections.keys().filter_map(named).collect()
        };
        if let Some(folder) = self.folders.documents.clone() {
            let stored = toolgate_net::spawn_blocking(move || folder_names(&folder)).await;
            names.extend(stored.unwrap_or_default());
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Checks that `name` is a valid name for a namespace of documents.
    pub(super) fn check_name(&self, name: &str) -> Result<(), ToolError> {
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        if name == WORKSPACE || self.settings.namespaces.contains_key(name) {
            let message = format!("`{name}` has files; use another for documents, e.g. `notes`");
            return Err(ToolError::invalid("/namespace", message));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_valid) {
            let message = "it must be 1 to 64 lower-case letters, digits, `_` and `-`";
            return Err(ToolError::invalid("/namespace", message));
        }
        Ok(())
    }
}

/// Resolves symlinks in the folder `path` below `root`. Returns the path with which the paths of
/// its files begin in the index. Fails if the folder cannot be opened.
fn real_folder(root: &Root, path: &str) -> Result<String, ToolError> {
    match root.walk_start(path)? {
        WalkStartPoint::Folder(folder) => Ok(folder.path.to_string_lossy().into_owned()),
        WalkStartPoint::File(_) => {
            Err(ToolError::failed(format!("`{path}` is a file, not a folder")))
        }
    }
}

/// Returns the names of the subfolders of `folder`. Each subfolder belongs to a namespace of
/// documents.
#[allow(clippy::disallowed_methods, reason = "a folder of the server's own, not the workspace")]
fn folder_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
    folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
