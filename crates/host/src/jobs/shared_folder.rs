//! Stores large files where all servers of a fleet can reach them, such as in a folder of a network
//! file system.
#![allow(clippy::disallowed_methods, reason = "the folder is the host's own, outside every root")]

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolgate_contract::BoxFuture;
use toolgate_net::spawn_blocking;

use super::artefacts::copy_all;

/// Storage, shared by all servers of a fleet, for files that are too large for the fleet's
/// database.
pub trait LargeFileStore: fmt::Debug + Send + Sync + 'static {
    /// Stores a copy of `content` under `name`. Replaces an earlier file of this name.
    fn put<'a>(&'a self, name: &'a str, content: Arc<File>) -> BoxFuture<'a, io::Result<()>>;
    /// Opens the file `name`, which has `bytes` bytes. Returns `None` if the file was removed.
    fn fetch<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<Option<File>>>;
    /// Removes the file `name` of `bytes` bytes, even if the file is incomplete. Does nothing if
    /// there is no such file.
    fn delete<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<()>>;
}

/// Location of files that are too large for the database of a fleet.
#[derive(Debug, Clone)]
pub enum FleetLargeFileLocation {
    /// Path of a folder that all machines share. The folder must exist.
    Folder(PathBuf),
    /// Store other than a folder, such as a bucket of object storage.
    Store(Arc<dyn LargeFileStore>),
}

impl FleetLargeFileLocation {
    /// Returns the store of the large files of `workspace`.
    pub(super) fn store_of(&self, workspace: &str) -> Arc<dyn LargeFileStore> {
        match self {
            Self::Folder(folder) => Arc::new(SharedFolder::new(folder, workspace)),
            Self::Store(store) => store.clone(),
        }
    }
}

/// Checks that this server can write, read and remove files of `store`.
pub(super) async fn check_store(store: &dyn LargeFileStore) -> Result<(), String> {
    const NAME: &str = "check";
    let written = || -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        io::Write::write_all(&mut file, b"x")?;
        Ok(file)
    };
    let checked = async {
        store.put(NAME, Arc::new(written()?)).await?;
        let found = store.fetch(NAME, 1).await?;
        store.delete(NAME, 1).await?;
        found.map(drop).ok_or_else(|| io::Error::other("a file is missing after it was written"))
    };
    checked.await.map_err(|err: io::Error| err.to_string())
}

/// Folder of one workspace, within a folder that several machines share.
#[derive(Debug, Clone)]
struct SharedFolder {
    /// Folder of all workspaces. The folder must exist, so that nothing is written below the mount
    /// point of a file system that is not mounted.
    base: PathBuf,
    folder: PathBuf,
}

impl SharedFolder {
    /// Creates a handle of the folder of `workspace` within the folder `base`. Creates no folder on
    /// disk.
    fn new(base: &Path, workspace: &str) -> Self {
        let name = blake3::hash(workspace.as_bytes()).to_hex();
        Self { base: base.to_owned(), folder: base.join(&name[..16]) }
    }

    /// Stores a copy of `content` under `name`. Other machines see either the complete copy or
    /// none.
    fn store(&self, name: &str, content: &File) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err),
            Ok(()) | Err(_) => {}
        }
        let part = self.part(name);
        let stored = copy_to(&part, content).and_then(|()| {
            fs::rename(&part, self.folder.join(name))?;
            // So the new name survives a crash, too.
            File::open(&self.folder)?.sync_all()
        });
        if stored.is_err() {
            // A full disk gets its space back.
            let _ = fs::remove_file(&part);
        }
        stored
    }

    /// Opens the stored file `name`, which has `bytes` bytes. Returns `None` if the file was
    /// removed.
    fn open(&self, name: &str, bytes: u64) -> io::Result<Option<File>> {
        match File::open(self.folder.join(name)) {
            Ok(file) if file.metadata()?.len() == bytes => Ok(Some(file)),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("`{name}` does not have its {bytes} bytes"),
            )),
            Err(err) if err.kind() == io::ErrorKind::NotFound => self.check_base().map(|()| None),
            Err(err) => Err(err),
        }
    }

    /// Removes the stored file `name`, whether the file is complete or not.
    fn remove(&self, name: &str) -> io::Result<()> {
        self.check_base()?;
        for path in [self.folder.join(name), self.part(name)] {
            match fs::remove_file(path) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Returns the temporary path at which the file `name` is being written.
    fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.part"))
    }

    /// Checks that the folder of all workspaces exists.
    fn check_base(&self) -> io::Result<()> {
        fs::metadata(&self.base).map(drop)
    }
}

impl LargeFileStore for SharedFolder {
    fn put<'a>(&'a self, name: &'a str, content: Arc<File>) -> BoxFuture<'a, io::Result<()>> {
        let (folder, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            let stored = spawn_blocking(move || folder.store(&name, &content)).await;
            stored.map_err(io::Error::other).flatten()
        })
    }

    fn fetch<'a>(&'a self, name: &'a str, bytes: u64) -> BoxFuture<'a, io::Result<Option<File>>> {
        let (folder, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            let opened = spawn_blocking(move || folder.open(&name, bytes)).await;
            opened.map_err(io::Error::other).flatten()
        })
    }

    fn delete<'a>(&'a self, name: &'a str, _bytes: u64) -> BoxFuture<'a, io::Result<()>> {
        let (folder, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            let removed = spawn_blocking(move || folder.remove(&name)).await;
            removed.map_err(io::Error::other).flatten()
        })
    }
}

fn copy_to(path: &Path, content: &File) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let copy = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    copy_all(content, &copy, u64::MAX)?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn file(text: &str) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(text.as_bytes()).expect("it is written");
        file
    }

    #[tokio::test]
    async fn a_stored_content_is_read_until_it_is_removed_and_leaves_nothing_else() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = SharedFolder::new(base.path(), "app");
        folder.store("one", &file("text")).expect("it is stored");
        folder.store("one", &file("text")).expect("it is stored again");
        let mut text = String::new();
        let opened = folder.open("one", 4).expect("it is open").expect("it exists");
        (&opened).read_to_string(&mut text).expect("it is read");
        assert_eq!(text, "text");
        assert!(folder.open("one", 5).is_err(), "another length is an error");
        assert!(SharedFolder::new(base.path(), "other").open("one", 4).expect("none").is_none());
        fs::write(folder.part("two"), "te").expect("a part");
        check_store(&folder).await.expect("it can be written");
        for name in ["one", "two", "three"] {
            folder.remove(name).expect("it is removed");
        }
        assert!(folder.open("one", 4).expect("none").is_none());
        assert_eq!(fs::read_dir(&folder.folder).expect("a folder").count(), 0);
    }

    #[tokio::test]
    async fn a_folder_that_is_not_mounted_is_an_error_and_is_not_created() {
        let base = tempfile::tempdir().expect("a folder");
        let missing = base.path().join("not-mounted");
        let folder = SharedFolder::new(&missing, "app");
        assert!(folder.store("one", &file("text")).is_err());
        assert!(folder.open("one", 4).is_err());
        assert!(folder.remove("one").is_err());
        assert!(check_store(&folder).await.is_err());
        assert!(!missing.exists());
    }
}
