//! The ready file of a stdio server, which exists while the server serves.
#![allow(
    clippy::disallowed_methods,
    reason = "the file that the starting process asked for, outside the workspace"
)]

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::OFlags;

/// File that exists while this process is ready to serve. Dropping this value removes the file.
pub struct ServerReadyFile {
    path: PathBuf,
    /// Content of the ready file: process id and creation time.
    line: String,
}

impl ServerReadyFile {
    /// Writes the ready file at `path` atomically. Replaces a file that an earlier server left
    /// behind.
    ///
    /// A symbolic link at `path` is replaced, not followed.
    ///
    /// # Errors
    /// The folder cannot be created or written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let pid = std::process::id();
        let line = format!("{pid} {}\n", Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00"));
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let next = folder.join(format!(".{}.{:016x}", name.to_string_lossy(), random_u64()?));
        // `create_new` fails if the path exists, even as a symbolic link.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&next)?;
        // The starting process may run as another user, so the umask must not hide the file.
        let written = file
            .set_permissions(fs::Permissions::from_mode(0o644))
            .and_then(|()| file.write_all(line.as_bytes()))
            .and_then(|()| fs::rename(&next, path));
        if let Err(err) = written {
            let _ = fs::remove_file(&next);
            return Err(err);
        }
        Ok(Self { path: path.to_owned(), line })
    }

    /// Removes the ready file if this process still owns it.
    pub fn remove(&self) {
        if self.is_ours() {
            // Another process may have removed it first; that is fine.
            let _ = fs::remove_file(&self.path);
        }
    }

    fn is_ours(&self) -> bool {
        // Do not follow a link, and do not block on a named pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened =
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&self.path);
        let Ok(file) = opened else { return false };
        let mut content = Vec::new();
        let limit = self.line.len() as u64 + 1;
        file.take(limit).read_to_end(&mut content).is_ok() && content == self.line.as_bytes()
    }
}

impl Drop for ServerReadyFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn random_u64() -> io::Result<u64> {
    let mut bits = [0; 8];
    getrandom::fill(&mut bits).map_err(io::Error::other)?;
    Ok(u64::from_le_bytes(bits))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn the_file_has_the_process_and_the_time_and_is_removed_on_drop() {
        let folder = folder();
        let path = folder.path().join("deep/er/mcp.ready");
        let ready = ServerReadyFile::create(&path).expect("a file");
        let text = fs::read_to_string(&path).expect("the file");
        let (pid, when) = text.trim_end().split_once(' ').expect("two words");
        assert_eq!(pid, std::process::id().to_string());
        when.parse::<Timestamp>().expect("a time");
        drop(ready);
        assert!(!path.exists());
        let left = fs::read_dir(path.parent().expect("its folder")).expect("a folder").count();
        assert_eq!(left, 0, "files were left in the folder");
    }

    #[test]
    fn a_link_at_the_path_is_not_followed() {
        let folder = folder();
        let path = folder.path().join("mcp.ready");
        let other = folder.path().join("precious");
        fs::write(&other, "precious").expect("a file");
        symlink(&other, &path).expect("a link");
        let ready = ServerReadyFile::create(&path).expect("a file");
        assert!(!fs::symlink_metadata(&path).expect("the file").is_symlink());
        fs::remove_file(&path).expect("ours");
        symlink(&other, &path).expect("a link");
        drop(ready);
        assert!(
            fs::symlink_metadata(&path).expect("the link").is_symlink(),
            "the file of another process"
        );
        assert_eq!(fs::read_to_string(&other).expect("the file"), "precious");
    }

    #[test]
    fn the_file_of_another_server_is_not_removed() {
        let folder = folder();
        let path = folder.path().join("mcp.ready");
        let first = ServerReadyFile::create(&path).expect("a file");
        fs::write(&path, "1 2026-11-22T10:00:00+00:00\n").expect("another's");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn a_folder_at_the_path_is_an_error_and_leaves_no_file() {
        let folder = folder();
        let path = folder.path().join("mcp.ready");
        fs::create_dir(&path).expect("a folder");
        assert!(ServerReadyFile::create(&path).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
