//! Tracks the servers that share the folder, and detects dead ones.
//!
//! Each server keeps a locked file in `servers/`, whose name is the server's id. The kernel
//! releases the lock when the server ends for any reason.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of tries to create this server's file, if another server removes it as abandoned.
const REGISTER_TRIES: usize = 8;

/// Id of a server, which the rows of its jobs contain.
pub(super) type SqliteServerId = i64;

/// Registration of this server in the folder of the job store: a locked file.
pub(super) struct ServerRegistration {
    pub(super) owner: SqliteServerId,
    path: PathBuf,
    /// The registration file of the server, which stays locked.
    _file: File,
}

impl ServerRegistration {
    /// Registers a server in the `folder` of the job store, which is created if needed.
    pub(super) fn register(folder: &Path, mark: u64) -> io::Result<Self> {
        let servers = folder.join("servers");
        DirBuilder::new().recursive(true).mode(0o700).create(&servers)?;
        let random = getrandom::u64().map_err(io::Error::other)? >> 1;
        let owner = SqliteServerId::try_from(random).map_err(io::Error::other)?;
        let path = servers.join(file_name(owner));
        let draft = path.with_extension("new");
        for _ in 0..REGISTER_TRIES {
            // Locked before it gets its final name, or others would take this server for dead.
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
            file.lock()?;
            file.write_all(mark.to_string().as_bytes())?;
            match std::fs::rename(&draft, &path) {
                Ok(()) => return Ok(Self { owner, path, _file: file }),
                // Another server saw it before it was locked, and removed it as abandoned.
                Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                Err(err) => return Err(err),
            }
        }
        Err(io::Error::other("another server keeps removing this server's lock file"))
    }

    /// Removes the registration of this server.
    pub(super) fn unregister(&self) {
        if let Err(err) = std::fs::remove_file(&self.path) {
            tracing::warn!("`{}` cannot be removed: {err}", self.path.display());
        }
    }

    /// Returns the dead servers among those with a registration file and among `owners`.
    ///
    /// Read `owners` before this call. Otherwise a new server might count as dead.
    pub(super) fn dead_servers(
        &self,
        owners: Vec<SqliteServerId>,
    ) -> io::Result<Vec<DeadServerLock>> {
        let mut alive = vec![self.owner];
        let mut dead = Vec::new();
        for entry in std::fs::read_dir(self.path.parent().unwrap_or(Path::new(".")))? {
            let path = entry?.path();
            if path == self.path {
                continue;
            }
            let named = path.file_name().and_then(|name| parse_file_name(name.to_str()?));
            match (inspect_file(&path)?, named) {
                (ServerLockFileState::Unlocked(file), Some(owner)) => {
                    dead.push(DeadServerLock {
                        owner,
                        mark: read_mark(&file),
                        file: Some((path, file)),
                    });
                }
                // A server that died during its registration.
                (ServerLockFileState::Unlocked(_), None)
                    if path.extension().is_some_and(|it| it == "new") =>
                {
                    remove_if_exists(&path);
                }
                (ServerLockFileState::Locked, Some(owner)) => alive.push(owner),
                (ServerLockFileState::Unlocked(_) | ServerLockFileState::Locked, None)
                | (ServerLockFileState::Missing, _) => {}
            }
        }
        for owner in owners {
            if !alive.contains(&owner) && dead.iter().all(|dead| dead.owner != owner) {
                dead.push(DeadServerLock { owner, mark: None, file: None });
            }
        }
        Ok(dead)
    }
}

/// A dead server. While this value exists, no other server takes over the dead server's jobs.
pub(super) struct DeadServerLock {
    pub(super) owner: SqliteServerId,
    pub(super) mark: Option<u64>,
    /// The dead server's registration file, which stays locked.
    file: Option<(PathBuf, File)>,
}

impl DeadServerLock {
    /// Removes the dead server's registration file. Call this function after the server's jobs were
    /// taken over.
    pub(super) fn remove_file(self) {
        if let Some((path, _locked)) = &self.file {
            remove_if_exists(path);
        }
    }
}

enum ServerLockFileState {
    Missing,
    Locked,
    Unlocked(File),
}

fn inspect_file(path: &Path) -> io::Result<ServerLockFileState> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            return Ok(ServerLockFileState::Missing);
        }
        Err(err) => return Err(err),
    };
    match file.try_lock() {
        // It may have been removed since it was opened, with its jobs taken over.
        Ok(()) if file.metadata()?.nlink() == 0 => Ok(ServerLockFileState::Missing),
        Ok(()) => Ok(ServerLockFileState::Unlocked(file)),
        Err(TryLockError::WouldBlock) => Ok(ServerLockFileState::Locked),
        Err(TryLockError::Error(err)) => Err(err),
    }
}

fn remove_if_exists(path: &Path) {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("`{}` cannot be removed: {err}", path.display());
        }
        Err(_) | Ok(()) => {}
    }
}

/// Reads the mark, a number that identifies a server's programs, from the server's registration
/// file. The mark is missing if the machine stopped before it was on disk. In that case no programs
/// survived either.
fn read_mark(mut file: &File) -> Option<u64> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

fn file_name(owner: SqliteServerId) -> String {
    format!("{owner:016x}")
}

fn parse_file_name(name: &str) -> Option<SqliteServerId> {
    let owner = SqliteServerId::from_str_radix(name, 16).ok()?;
    (file_name(owner) == name).then_some(owner)
}
