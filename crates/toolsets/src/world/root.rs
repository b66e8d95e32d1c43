//! The workspace: one directory held open, and every path below it.
//!
//! No path is ever joined and opened from outside. The kernel resolves each one below the open
//! directory (`openat2`, `RESOLVE_BENEATH`). Therefore `..`, absolute paths, symlinks and races
//! cannot leave it. Opening the root fails if the kernel has no `openat2` (before Linux 5.6, or
//! filtered by a container), because there is no weaker fallback.

mod path;
mod beneath;
mod refusal;
mod protected;
mod hidden;
mod meta;
mod etag;
mod file;
mod place;
mod replace;
mod temp;
mod lock;
mod look;
mod entries;
mod ignores;
mod walk;
mod tree;
mod stray;
mod remove;
mod rename;
mod copy;
mod work;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use tokio::sync::Semaphore;
use toolgate_contract::ToolError;

use beneath::Symlinks;
use lock::Locks;
#[cfg(any(fuzzing, test))]
pub(crate) use path::check as fuzz_paths;
use protected::Protected;
#[cfg(any(fuzzing, test))]
pub(crate) use protected::check as fuzz_protected;

pub(crate) use copy::{Bounds, Copied};
pub(crate) use entries::Page;
pub use etag::Etag;
pub use file::File;
pub use hidden::hide;
pub(crate) use look::Look;
pub use meta::{Kind, Meta};
pub(crate) use meta::{Moment, Stamp};
pub(crate) use path::shown;
pub use place::Parents;
pub(in crate::world) use protected::is_settings_of_others;
pub(crate) use remove::Extent;
pub(crate) use rename::Standing;
pub(crate) use replace::{Existing, Missing, Outcome, Terms};
pub(crate) use stray::{Heed, Stray, Why};
pub(crate) use walk::{Folder, Found, Looked, Sight, Start, Walk};
pub(crate) use work::Watch;

/// A workspace, held open as a directory. Cheap to clone.
///
/// Symlinks that stay inside are followed. All others are refused.
#[derive(Clone)]
pub struct Root {
    held: Arc<Held>,
    rules: Arc<Ruled>,
}

/// Settings of a workspace that its owner chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Names that can be read but never changed, at any depth.
    pub protected: Vec<String>,
    /// The largest file, in bytes, whose etag is a hash of its content. Default 64 MiB.
    pub hashed_bytes_max: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            protected: protected::DEFAULT.iter().map(|&name| name.to_owned()).collect(),
            hashed_bytes_max: 64 << 20,
        }
    }
}

struct Held {
    dir: OwnedFd,
    path: PathBuf,
    locks: Locks,
    room: Arc<Semaphore>,
}

struct Ruled {
    protected: Protected,
    hashed_bytes_max: u64,
}

impl Root {
    /// Opens the directory at `path` with the default rules.
    ///
    /// # Errors
    /// If it cannot be opened, or this system cannot confine paths to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty())?;
        beneath::probe(dir.as_fd())?;
        let path = beneath::whereabouts(dir.as_fd()).map_err(|err| {
            let why = format!("/proc is needed to tell where files are, and cannot be read: {err}");
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        hidden::opened(&path);
        let room = Arc::new(Semaphore::new(work::AT_ONCE));
        let held = Held { dir, path, locks: Locks::default(), room };
        Ok(Self { held: Arc::new(held), rules: Arc::new(Ruled::new(&Rules::default())) })
    }

    /// Opens the directory at `path` as a root of its own, which nothing in it leads out of.
    ///
    /// # Errors
    /// If it is missing, not a directory, or not below this root.
    pub fn within(&self, path: &str) -> Result<Self, ToolError> {
        let dir = self.open_dir(path)?;
        let path = beneath::whereabouts(dir.as_fd())
            .map_err(|err| ToolError::because(format!("`{path}` cannot be opened"), err))?;
        let locks = Locks::default();
        let room = self.held.room.clone();
        let held = Held { dir, path, locks, room };
        Ok(Self { held: Arc::new(held), rules: self.rules.clone() })
    }

    /// Returns this root with other `rules`.
    pub fn with_rules(self, rules: &Rules) -> Self {
        Self { rules: Arc::new(Ruled::new(rules)), ..self }
    }

    /// Returns the path at the time of opening, with symlinks resolved. Only for display, never to
    /// open it.
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Opens the directory at `path` as a handle for entering and lookups (`O_PATH`).
    ///
    /// # Errors
    /// If it is missing, not a directory, or not below the root.
    pub fn open_dir(&self, path: &str) -> Result<OwnedFd, ToolError> {
        let path = self.relative(path)?;
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY).map_err(|err| self.refusal(path, err))
    }

    /// Checks `path` and makes it relative to the root.
    fn relative<'p>(&self, path: &'p str) -> Result<&'p str, ToolError> {
        path::relative(path, &self.held.path)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        beneath::open(self.dir(), Path::new(path), flags, Symlinks::Follow)
    }

    fn dir(&self) -> BorrowedFd<'_> {
        self.held.dir.as_fd()
    }
}

impl Ruled {
    fn new(rules: &Rules) -> Self {
        let Rules { protected, hashed_bytes_max } = rules;
        Self { protected: Protected::new(protected), hashed_bytes_max: *hashed_bytes_max }
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.held.path).finish()
    }
}
