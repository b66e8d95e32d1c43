//! What the kernel's refusals mean to the caller.

use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;
use toolgate_contract::{Fault, ToolError};

use super::Root;
use super::beneath::{self, Symlinks};
use super::path::shown;

impl Root {
    /// The refusal of `path`, relative to the root, that `err` stands for.
    pub(super) fn refusal(&self, path: &str, err: Errno) -> ToolError {
        if err == Errno::XDEV { self.escape(path) } else { refusal(path, err) }
    }

    /// Says how `path` leaves the root, without saying where to.
    fn escape(&self, path: &str) -> ToolError {
        let Some((link, target)) = self.absolute_symlink(path) else {
            let path = shown(path);
            return ToolError::not_allowed(format!("{path} leads out of the workspace"));
        };
        let link = shown(&link);
        let inside = target.strip_prefix(self.path()).ok().and_then(Path::to_str);
        ToolError::not_allowed(match inside {
            Some(inside) => format!(
                "{link} is a symlink to an absolute path, which is not followed even though it \
                 leads back inside; use {} instead",
                shown(inside)
            ),
            None => format!("{link} is a symlink that leads out of the workspace"),
        })
    }

    /// The first symlink on `path` whose target is absolute, and that target.
    ///
    /// Only for the message: nothing is opened by what is found here.
    fn absolute_symlink(&self, path: &str) -> Option<(String, PathBuf)> {
        let mut prefix = PathBuf::new();
        for component in Path::new(path).components() {
            prefix.push(component);
            if !matches!(component, Component::Normal(_)) {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let fd = beneath::open(self.dir(), &prefix, flags, Symlinks::Follow).ok()?;
            let Ok(target) = readlinkat(fd.as_fd(), "", Vec::new()) else { continue };
            let target = PathBuf::from(target.to_string_lossy().into_owned());
            if target.is_absolute() {
                return Some((prefix.to_string_lossy().into_owned(), target));
            }
        }
        None
    }
}

/// The refusal of `path` that `err` stands for, where it cannot be an escape.
pub(super) fn refusal(path: &str, err: Errno) -> ToolError {
    let path = shown(path);
    let invalid = |message: String| ToolError::invalid("/path", message);
    match err {
        Errno::NOENT => ToolError::not_found(format!("{path} does not exist")),
        Errno::NOTDIR => {
            invalid(format!("{path} is not a directory, or goes through something that is not"))
        }
        Errno::ISDIR => invalid(format!("{path} is a directory")),
        Errno::LOOP => {
            invalid(format!("{path} goes through a symlink that leads nowhere but round"))
        }
        Errno::NAMETOOLONG => invalid(format!("{path} is longer than the file system allows")),
        Errno::NXIO | Errno::NODEV => invalid(format!("{path} is not a regular file")),
        Errno::EXIST => {
            ToolError::new(Fault::Conflict(serde_json::Value::Null), format!("{path} exists"))
        }
        Errno::NOTEMPTY => ToolError::new(
            Fault::Conflict(serde_json::Value::Null),
            format!("{path} is a directory that is not empty"),
        ),
        Errno::ACCESS | Errno::PERM => {
            ToolError::not_allowed(format!("the file system does not permit this for {path}"))
        }
        Errno::ROFS => ToolError::not_allowed(format!("{path} is on a read-only file system")),
        Errno::BUSY | Errno::TXTBSY => ToolError::not_allowed(format!("{path} is in use")),
        Errno::NOSPC | Errno::DQUOT => {
            let full = format!("the disk is full; {path} is as it was");
            ToolError { cause: Some(err.to_string()), ..ToolError::new(Fault::Failed, full) }
        }
        Errno::FBIG => ToolError::new(Fault::TooLarge, format!("{path} would be too large")),
        Errno::MFILE | Errno::NFILE => ToolError::new(
            Fault::Unavailable,
            format!("too many files are open to open {path}; try again"),
        ),
        Errno::AGAIN => ToolError::new(
            Fault::Unavailable,
            format!("directories on the way to {path} keep being moved; try again"),
        ),
        err => ToolError::because(format!("the file system failed at {path}"), err),
    }
}

/// What stopped work that is not done with one call to the kernel.
pub(super) enum Stopped {
    /// The file system.
    Errno(Errno),
    /// The caller, or a limit.
    Told(ToolError),
}

impl Stopped {
    /// The refusal of `path` that this stands for.
    pub(super) fn at(self, path: &str) -> ToolError {
        match self {
            Self::Errno(err) => refusal(path, err),
            Self::Told(err) => err,
        }
    }
}

impl From<Errno> for Stopped {
    fn from(err: Errno) -> Self {
        Self::Errno(err)
    }
}

impl From<ToolError> for Stopped {
    fn from(err: ToolError) -> Self {
        Self::Told(err)
    }
}

/// The same refusal, said of the argument at `pointer`.
pub(super) fn about(pointer: &str) -> impl Fn(ToolError) -> ToolError {
    move |err| match err.fault {
        Fault::Invalid { .. } => {
            ToolError { fault: Fault::Invalid { pointer: pointer.into() }, ..err }
        }
        Fault::NotAllowed
        | Fault::NotFound
        | Fault::Conflict(_)
        | Fault::TooLarge
        | Fault::Unavailable
        | Fault::Canceled
        | Fault::Failed => err,
    }
}
