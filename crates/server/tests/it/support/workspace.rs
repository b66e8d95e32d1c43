//! A folder to serve.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// What `README.md` in every workspace holds.
pub(crate) const README: &str = "# A workspace\n\nIt is small.\n";

/// A folder with a `README.md`, gone when the test is over.
pub(crate) struct Workspace(TempDir);

impl Workspace {
    pub(crate) const README: &'static str = README;

    pub(crate) fn new() -> Self {
        Self(TempDir::with_prefix("toolgate-it-").unwrap()).file("README.md", README)
    }

    /// With a file more, and the folders on its way.
    pub(crate) fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    /// With a symlink `name` that says `target`.
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
