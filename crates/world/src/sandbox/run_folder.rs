//! Creates temporary folders for the files that belong to one run of a program.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tempfile::TempDir;

use super::capabilities::ServerEnvironmentVariables;
use super::settings::expand_home;
use super::{ProgramConfinement, Sandbox};

impl Sandbox {
    /// Creates an empty folder that a program sees only if the sandbox mounts it for that program.
    /// The folder's name begins with `prefix`. Dropping the result removes the folder. `variables`
    /// is the server's environment.
    ///
    /// The folder is in the server's state folder if programs can see the temporary folder.
    pub(super) fn create_run_folder(
        &self,
        inside: &ProgramConfinement,
        variables: &ServerEnvironmentVariables,
        prefix: &str,
    ) -> io::Result<TempDir> {
        let home = variables.get(OsStr::new("HOME")).map(Path::new);
        let temporary = std::env::temp_dir();
        let state = self.paths().allowed_hosts.as_deref().and_then(Path::parent);
        let is_shown =
            self.can_write(&inside.workspace, home, &temporary) || self.can_read(home, &temporary);
        let parent = match state {
            Some(state) if is_shown => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
                state
            }
            _ => temporary.as_path(),
        };
        tempfile::Builder::new().prefix(prefix).tempdir_in(parent)
    }

    /// Returns `true` if the setting `sandbox.read` shows the folder `at` to programs, under this
    /// path or its real path. `home` is the server's home folder.
    fn can_read(&self, home: Option<&Path>, at: &Path) -> bool {
        let real = fs::canonicalize(at).unwrap_or_else(|_| at.to_owned());
        self.0.settings.read.iter().any(|path| {
            let path = expand_home(path, home);
            let shown = fs::canonicalize(&path).unwrap_or(path);
            real.starts_with(shown)
        })
    }
}
