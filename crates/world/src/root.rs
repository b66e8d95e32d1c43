//! The workspace: one open directory, and all paths below it.
//!
//! The kernel resolves each path below the open directory (`openat2`, `RESOLVE_BENEATH`). Therefore
//! `..`, absolute paths, symlinks and races cannot leave the directory. A workspace cannot be
//! opened if the kernel has no `openat2` (before Linux 5.6, or filtered by a container), because
//! there is no other method that is as safe.

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
mod entry_details;
mod entries;
mod ignore_rules;
mod walk;
mod tree;
mod escaped_paths;
mod placeholder;
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
use toolgate_contract::ToolError;

use beneath::SymlinkPolicy;
use ignore_rules::IgnoreRules;
use lock::DirectoryLocks;
#[cfg(any(fuzzing, test))]
pub(crate) use path::check as fuzz_paths;
use protected::ProtectedPaths;
#[cfg(any(fuzzing, test))]
pub(crate) use protected::check as fuzz_protected;

pub use copy::{EntryCopyOptions, EntryCopyTotals};
pub use entries::DirectoryPage;
pub use entry_details::EntryDetails;
pub use escaped_paths::{OutsideRootReason, PathCheckDepth, PathOutsideRoot};
pub use etag::Etag;
pub use file::WorkspaceFile;
pub use hidden::hide_path;
pub use meta::{EntryFingerprint, FileTime};
pub use meta::{EntryKind, EntryMeta};
pub use path::{path_text, quoted_path};
pub use place::MissingParentPolicy;
pub(crate) use placeholder::{PLACEHOLDER_MODE, is_placeholder, open_folder};
pub use protected::is_foreign_settings;
pub use remove::DirectoryOperationScope;
pub use rename::DestinationConflict;
pub use replace::{ExistingFilePolicy, FileWriteConditions, FileWriteOutcome, MissingFilePolicy};
pub use walk::{OpenWalkFolder, TreeWalk, WalkEntry, WalkFilter, WalkFolder, WalkStartPoint};
pub use work::DiskWorkMonitor;
use work::DiskWorkSlots;

/// A workspace, held open as a directory. Clones are cheap.
///
/// Symlinks that lead to a path in the workspace are followed. All other symlinks are refused.
#[derive(Clone)]
pub struct Root {
    handle: Arc<WorkspaceRootHandle>,
    rules: Arc<CompiledOwnerSettings>,
    /// The ignore rules of the folders above the root, if the root is in a larger repository.
    ignored_above: Option<Arc<IgnoreRules>>,
}

/// The rules that the owner of a workspace sets: its protected paths, and the limit of files that
/// get a hash as etag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceOwnerSettings {
    /// Names of files and folders that tools can read but never change, at any depth.
    pub protected: Vec<String>,
    /// Paths relative to the root that tools can read but never change, such as `skills`.
    pub protected_at_root: Vec<String>,
    /// The size of the largest file whose etag is a hash of its content, in bytes. Default: 64 MiB.
    pub hashed_bytes_max: u64,
}

impl Default for WorkspaceOwnerSettings {
    fn default() -> Self {
        Self {
            protected: protected::DEFAULT_PROTECTED.iter().map(|it| it.name.to_owned()).collect(),
            protected_at_root: Vec::new(),
            hashed_bytes_max: 64 << 20,
        }
    }
}

/// The open directory of a workspace and its settings, which all clones of a [`Root`] share.
struct WorkspaceRootHandle {
    dir: OwnedFd,
    path: PathBuf,
    locks: DirectoryLocks,
    work_slots: Arc<DiskWorkSlots>,
}

/// The owner's settings of a workspace, with compiled patterns.
struct CompiledOwnerSettings {
    protected: ProtectedPaths,
    hashed_bytes_max: u64,
}

impl Root {
    /// Opens the directory at `path` with the default rules.
    ///
    /// # Errors
    /// The directory cannot be opened, or this system cannot confine paths to it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty())?;
        beneath::check_support(dir.as_fd())?;
        let path = beneath::path_of_fd(dir.as_fd()).map_err(|err| {
            let why = format!("cannot read /proc, which is needed to locate files: {err}");
            io::Error::new(io::ErrorKind::Unsupported, why)
        })?;
        hidden::note_root_opened(&path);
        let room = Arc::default();
        let held =
            WorkspaceRootHandle { dir, path, locks: DirectoryLocks::default(), work_slots: room };
        Ok(Self {
            handle: Arc::new(held),
            rules: Arc::new(CompiledOwnerSettings::new(&WorkspaceOwnerSettings::default())),
            ignored_above: None,
        })
    }

    /// Opens the directory at `path` as a separate root. No path in that root leads out of it.
    ///
    /// # Errors
    /// The path is missing, not a directory, or not below this root.
    pub fn open_sub_root(&self, path: &str) -> Result<Self, ToolError> {
        let dir = self.open_dir(path)?;
        let path = beneath::path_of_fd(dir.as_fd())
            .map_err(|err| ToolError::with_cause(format!("`{path}` cannot be opened"), err))?;
        let locks = DirectoryLocks::default();
        let room = self.handle.work_slots.clone();
        let held = WorkspaceRootHandle { dir, path, locks, work_slots: room };
        Ok(Self { handle: Arc::new(held), rules: self.rules.clone(), ignored_above: None })
    }

    /// Returns this root with the owner's settings replaced by `rules`.
    pub fn with_rules(self, rules: &WorkspaceOwnerSettings) -> Self {
        Self { rules: Arc::new(CompiledOwnerSettings::new(rules)), ..self }
    }

    /// Returns this root with the ignore rules of the folders above it, if it is a folder in a
    /// larger repository. Reads these rules now, and never again.
    pub fn with_ignore_rules_above(self) -> Self {
        let ignored_above = IgnoreRules::above_root(self.path());
        Self { ignored_above, ..self }
    }

    /// Returns the path of the root at the time of opening, with symlinks resolved. Use it for
    /// display only, never to open files.
    pub fn path(&self) -> &Path {
        &self.handle.path
    }

    /// Opens the directory at `path` as a handle for entering it and for lookups below it
    /// (`O_PATH`).
    ///
    /// # Errors
    /// The path is missing, not a directory, or not below the root.
    pub fn open_dir(&self, path: &str) -> Result<OwnedFd, ToolError> {
        let path = self.relative(path)?;
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY).map_err(|err| self.refusal(path, err))
    }

    /// Checks the caller's `path` and returns it relative to the root.
    fn relative<'p>(&self, path: &'p str) -> Result<&'p str, ToolError> {
        path::relative_to_root(path, &self.handle.path)
    }

    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        beneath::open(self.dir(), Path::new(path), flags, SymlinkPolicy::Follow)
    }

    fn dir(&self) -> BorrowedFd<'_> {
        self.handle.dir.as_fd()
    }
}

impl CompiledOwnerSettings {
    fn new(rules: &WorkspaceOwnerSettings) -> Self {
        let WorkspaceOwnerSettings { protected, protected_at_root, hashed_bytes_max } = rules;
        Self {
            protected: ProtectedPaths::new(protected, protected_at_root),
            hashed_bytes_max: *hashed_bytes_max,
        }
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.handle.path).finish()
    }
}
