//! Keeps contents in a folder that the machines of a fleet share, such as a network file system.
#![allow(clippy::disallowed_methods, reason = "the folder is the host's own, outside every root")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::artefacts::copy_all;

/// The folder of one workspace in the folder that machines share.
#[derive(Debug, Clone)]
pub(super) struct SharedFolder {
    /// Folder of all workspaces. It must exist, so that nothing is written below the mount point of
    /// a file system that is not mounted.
    base: PathBuf,
    folder: PathBuf,
}

impl SharedFolder {
    /// Returns the folder of `workspace` in the folder `base`. Does not create it.
    pub(super) fn new(base: &Path, workspace: &str) -> Self {
        let name = blake3::hash(workspace.as_bytes()).to_hex();
        Self { base: base.to_owned(), folder: base.join(&name[..16]) }
    }

    /// Stores a copy of `content` under `name`. Other machines see all of it or nothing.
    pub(super) fn store(&self, name: &str, content: &File) -> io::Result<()> {
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

    /// Opens the content `name` of `bytes` bytes. Returns `None` if it was removed.
    pub(super) fn open(&self, name: &str, bytes: u64) -> io::Result<Option<File>> {
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

    /// Removes the content `name`, whether it is complete or not.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.check_base()?;
        for path in [self.folder.join(name), self.part(name)] {
            match fs::remove_file(path) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Checks that this server can write and remove contents.
    pub(super) fn check(&self) -> io::Result<()> {
        const NAME: &str = "check";
        self.store(NAME, &tempfile::tempfile()?)?;
        self.remove(NAME)
    }

    /// Returns the path of the content `name` while it is being written.
    fn part(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.part"))
    }

    /// Checks that the folder of all workspaces exists.
    fn check_base(&self) -> io::Result<()> {
        fs::metadata(&self.base).map(drop)
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

    #[test]
    fn a_stored_content_is_read_until_it_is_removed_and_leaves_nothing_else() {
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
        folder.check().expect("it can be written");
        for name in ["one", "two", "three"] {
            folder.remove(name).expect("it is removed");
        }
        assert!(folder.open("one", 4).expect("none").is_none());
        assert_eq!(fs::read_dir(&folder.folder).expect("a folder").count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_mounted_is_an_error_and_is_not_created() {
        let base = tempfile::tempdir().expect("a folder");
        let missing = base.path().join("not-mounted");
        let folder = SharedFolder::new(&missing, "app");
        assert!(folder.store("one", &file("text")).is_err());
        assert!(folder.open("one", 4).is_err());
        assert!(folder.remove("one").is_err());
        assert!(folder.check().is_err());
        assert!(!missing.exists());
    }
}
