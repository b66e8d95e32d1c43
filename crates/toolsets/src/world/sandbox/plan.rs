//! What a helper is told: what programs are to see and to give up, and which program is to be.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::pread;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A file, by device and inode.
pub(super) type Identity = (u64, u64);

/// What all programs of one helper have in common, which it makes ready before it knows of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Where the workspace is, of which the helper is handed a handle.
    pub(super) workspace: Bytes,
    pub(super) workspace_identity: Identity,
    /// The namespaces that are a program's own; without, it sees what the server sees.
    pub(super) spaces: Option<Spaces>,
    /// What all programs see, whatever their profile.
    pub(super) base: Vec<Place>,
    /// What they see beside that, in the order in which it is put there.
    pub(super) view: Vec<Place>,
    /// The `cgroup.procs` of the groups that a helper is to join.
    pub(super) groups: Vec<Bytes>,
    /// Each resource's number and its limit.
    pub(super) limits: Vec<(u32, u64)>,
    pub(super) landlock: Option<Ground>,
    pub(super) filters: Filters,
}

/// What is one program's alone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Errand {
    /// `None` only tries whether all around it can be had.
    pub(super) program: Option<Becoming>,
    /// Where it starts, beneath the workspace, or absolute.
    pub(super) cwd: Bytes,
    pub(super) cwd_identity: Identity,
    /// What all its processes are to bear.
    pub(super) tag: Option<u64>,
    /// Files, and folders of them, that alone may be run; without, all that is seen may.
    pub(super) runs: Option<Vec<Bytes>>,
    /// How long what the program leaves running may go on.
    pub(super) grace_ms: u64,
}

/// The programs that look at each system call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Filters {
    /// Those that are there before a helper makes the first process: they refuse nothing that is
    /// needed from then on.
    pub(super) ahead: Vec<Vec<u64>>,
    /// Those that a process takes on last.
    pub(super) last: Vec<Vec<u64>>,
}

/// The program to become.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Becoming {
    /// Its file: absolute, or relative to where it starts.
    pub(super) path: Bytes,
    pub(super) identity: Identity,
    /// What it is told that it is called, and its arguments.
    pub(super) args: Vec<Bytes>,
    /// `NAME=value` each.
    pub(super) env: Vec<Bytes>,
    /// Whether its standard input is a pipe of the server's; else it is to have none.
    pub(super) is_fed: bool,
}

/// Which namespaces are its own, beside those of mounts, processes, queues, names and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spaces {
    /// Of users: what is needed where the server is not root.
    pub(super) user: bool,
    /// Of networks.
    pub(super) net: bool,
    /// Whether a `/proc` of its own can be had.
    pub(super) proc: bool,
}

/// Something a program sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// What is there outside, too; nothing where nothing is.
    Same { at: Bytes, how: How },
    /// A symlink.
    Link { at: Bytes, to: Bytes },
    /// An empty folder in memory, which is gone with the program.
    Fresh { at: Bytes, bytes: u64, mode: u32 },
    /// The workspace.
    Workspace { how: How },
    /// What is there in the workspace stays where it is, and is written as the rest.
    Held { at: Bytes },
    /// What is there in the workspace is read and neither changed nor moved away.
    Guarded { at: Bytes },
}

/// What can be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum How {
    Read,
    Write,
    /// It is a device: read, written and asked, and nothing of it changed.
    Device,
}

/// What Landlock is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ground {
    /// Which of its versions.
    pub(super) abi: i32,
    /// Whether TCP is refused.
    pub(super) tcp: bool,
}

/// What the system takes for a text: any bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Bytes {
    Text(String),
    Other(Vec<u8>),
}

/// `told`, a [`Plan`] or an [`Errand`], as a file in memory that nobody changes.
pub(super) fn seal(told: &impl Serialize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"toolgate-plan", flags)?);
    file.write_all(&serde_json::to_vec(told)?)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file.into())
}

/// What [`seal`] made.
pub(super) fn unseal<T: DeserializeOwned>(told: BorrowedFd<'_>) -> io::Result<T> {
    if !fcntl_get_seals(told)?.contains(SealFlags::WRITE) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // More than one process may read it, whose place in it is one.
    let mut text = vec![0; usize::try_from(fstat(told)?.st_size).map_err(io::Error::other)?];
    let read = pread(told, &mut text, 0)?;
    Ok(serde_json::from_slice(text.get(..read).unwrap_or_default())?)
}

impl Place {
    /// Whether it depends on what is in the workspace, which a program may have changed that ran
    /// before.
    pub(super) fn is_late(&self, workspace: &Path) -> bool {
        match self {
            Self::Held { .. } | Self::Guarded { .. } => true,
            Self::Fresh { at, .. } | Self::Same { at, .. } | Self::Link { at, .. } => {
                at.path().starts_with(workspace)
            }
            Self::Workspace { .. } => false,
        }
    }

    /// Where it is, for a program in `workspace`.
    pub(super) fn at<'p>(&'p self, workspace: &'p Path) -> &'p Path {
        match self {
            Self::Same { at, .. }
            | Self::Link { at, .. }
            | Self::Fresh { at, .. }
            | Self::Held { at }
            | Self::Guarded { at } => at.path(),
            Self::Workspace { .. } => workspace,
        }
    }
}

impl Bytes {
    pub(super) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.bytes()))
    }

    pub(super) fn string(&self) -> io::Result<CString> {
        CString::new(self.bytes()).map_err(io::Error::from)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Other(bytes) => bytes,
        }
    }
}

impl<T: Into<OsString>> From<T> for Bytes {
    fn from(text: T) -> Self {
        match text.into().into_string() {
            Ok(text) => Self::Text(text),
            Err(other) => Self::Other(other.into_vec()),
        }
    }
}

/// What is read is written as what reads the same.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    reads_again::<Plan>(bytes);
    let Some(errand) = reads_again::<Errand>(bytes) else { return };
    let program =
        errand.program.iter().flat_map(|program| [&program.path].into_iter().chain(&program.args));
    for bytes in program.chain([&errand.cwd]) {
        let _ = bytes.path();
        assert_eq!(bytes.string().is_err(), bytes.bytes().contains(&0));
    }
}

#[cfg(any(fuzzing, test))]
fn reads_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let told: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&told).expect("it was read");
    let again: T = serde_json::from_slice(&written).expect("it was written here");
    assert_eq!(serde_json::to_vec(&again).expect("it was read"), written);
    Some(told)
}
