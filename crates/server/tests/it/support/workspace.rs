//! Temporary folder that a test serves with toolgate.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

const README: &str = "# A workspace\n\nIt is small.\n";

/// Temporary folder with a `README.md`. The folder is deleted when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct TempWorkspace(Arc<TempDir>);

impl TempWorkspace {
    /// The content of `README.md` in every workspace.
    pub(crate) const README: &'static str = README;

    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("toolgate-it-").unwrap();
        Self(Arc::new(folder)).file("README.md", README)
    }

    /// Adds a file with `content`, and its parent folders.
    pub(crate) fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.put(name, content);
        self
    }

    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns a workspace that declares `count` commands with the names `a.t000` and so on, which
    /// come first in every list of tools.
    pub(crate) fn with_many_tools(count: usize) -> Self {
        let command = |at| {
            format!(
                "[command.\"a.t{at:03}\"]\nabout = \"Says {at}.\"\nprogram = \"echo\"\n\
                 argv = [\"{at}\"]\n"
            )
        };
        Self::new().file("toolgate.toml", (0..count).map(command).collect::<String>())
    }

    /// Adds a symlink `name` to `target`.
    pub(crate) fn link(self, name: &str, target: impl AsRef<Path>) -> Self {
        std::os::unix::fs::symlink(target, self.path(name)).unwrap();
        self
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}
