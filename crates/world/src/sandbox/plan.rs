//! The data that a sandbox helper receives: the view (the file tree that a program sees), the
//! limits and filters, and the program to execute.

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

/// Device and inode number by which a file is identified.
pub(super) type FileIdentity = (u64, u64);

/// The confinement that all programs of one sandbox helper share. The helper applies it before the
/// first program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxPlan {
    /// The path of the workspace. The helper also receives an open handle of the workspace.
    pub(super) workspace: OsStringBytes,
    pub(super) workspace_identity: FileIdentity,
    /// The separate namespaces of the programs. `None` if the programs share the server's file tree
    /// and processes.
    pub(super) spaces: Option<SandboxNamespaces>,
    /// The mounts that all programs share, whatever their profile is.
    pub(super) base: Vec<SandboxMount>,
    /// The mounts that this plan adds to those in `base`, in the order of mounting.
    pub(super) view: Vec<SandboxMount>,
    /// The `cgroup.procs` files of the control groups that the helper joins.
    pub(super) groups: Vec<OsStringBytes>,
    /// Resource limits: pairs of a resource number and its limit.
    pub(super) limits: Vec<(u32, u64)>,
    pub(super) landlock: Option<LandlockConfig>,
    pub(super) filters: SeccompFilters,
    /// `true` if the helper opens the listener of a forwarder in its network namespace.
    #[serde(default)]
    pub(super) has_forwarder: bool,
}

/// The program that a sandbox helper starts next, and the confinement that only this program needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SandboxSpawnRequest {
    /// The program to execute. With `None`, the helper only tests if the confinement works.
    pub(super) program: Option<SandboxedExecutable>,
    /// The working directory: relative to the workspace, or absolute.
    pub(super) cwd: OsStringBytes,
    pub(super) cwd_identity: FileIdentity,
    /// The tag that all processes of the program will carry.
    pub(super) tag: Option<u64>,
    /// The files that the server sees at the [prepared mounts](SandboxPlan::prepared_mounts), in
    /// their order. `None` for a missing file. A process that was prepared for an earlier program
    /// must show the same files.
    #[serde(default)]
    pub(super) mounted_files: Vec<Option<FileIdentity>>,
    /// The ports of the two listeners of a network test, for a request without a program.
    pub(super) network_test: Option<NetworkTest>,
    /// The only files and folders that may be executed. `None` allows every file that the program
    /// sees.
    pub(super) runs: Option<Vec<OsStringBytes>>,
    /// The time in milliseconds that other processes of the program have to stop after its main
    /// process has ended.
    pub(super) grace_ms: u64,
}

/// A test of the network of a program that has a forwarder. The forwarder allows one of two
/// listeners on the machine's loopback interface and refuses the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NetworkTest {
    /// The port of the listener that the forwarder allows.
    pub(super) allowed_port: u16,
    /// The port of the listener that the forwarder refuses.
    pub(super) refused_port: u16,
}

/// The seccomp filters of a sandboxed program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeccompFilters {
    /// Filters that are applied before the sandbox helper creates its first process. They refuse
    /// only system calls that are not needed later.
    pub(super) ahead: Vec<Vec<u64>>,
    /// Filters that each process of the program applies as its last step.
    pub(super) last: Vec<Vec<u64>>,
}

/// The program that the sandbox helper executes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SandboxedExecutable {
    /// The path of the executable file: absolute, or relative to the working directory.
    pub(super) path: OsStringBytes,
    pub(super) identity: FileIdentity,
    /// The arguments, starting with the program's name.
    pub(super) args: Vec<OsStringBytes>,
    /// Environment variables of the form `NAME=value`.
    pub(super) env: Vec<OsStringBytes>,
    /// `true` if standard input is a pipe from the server. Otherwise standard input is empty.
    pub(super) is_fed: bool,
}

/// The namespaces that a program gets only on some systems or under some profiles. Mount, process,
/// IPC, UTS and control group namespaces are always separate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxNamespaces {
    /// True for a separate user namespace. A server without root rights needs it to create the
    /// other namespaces.
    pub(super) user: bool,
    /// True for a separate network namespace.
    pub(super) net: bool,
    /// True for a separate mount of `/proc`.
    pub(super) proc: bool,
}

/// A mount in a program's sandbox: a path, and the content that the program finds there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SandboxMount {
    /// A file or folder of the machine, mounted at the same path. Left out if it is missing.
    SamePath { at: OsStringBytes, how: SandboxMountAccess },
    /// Symlink in the sandbox at the path `at`, which leads to `to`.
    Symlink { at: OsStringBytes, to: OsStringBytes },
    /// An empty folder in memory, which is removed when the program ends.
    EmptyFolder { at: OsStringBytes, bytes: u64, mode: u32 },
    /// The workspace, mounted at its own path.
    Workspace { how: SandboxMountAccess },
    /// A folder in the workspace that the program can write but not move.
    FixedFolder { at: OsStringBytes },
    /// An entry of the workspace that the program can neither change nor move.
    ReadOnlyEntry { at: OsStringBytes },
}

/// The access of a program to one mount of its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SandboxMountAccess {
    Read,
    Write,
    /// A device file. It can be read, written and controlled, but not replaced.
    Device,
}

/// The Landlock configuration of a sandboxed program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LandlockConfig {
    /// The version of Landlock to use.
    pub(super) abi: i32,
    /// `true` if TCP connections are refused by Landlock.
    pub(super) tcp: bool,
}

/// A string of the operating system: any bytes, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum OsStringBytes {
    Text(String),
    Other(Vec<u8>),
}

/// Writes `value`, a [`SandboxPlan`] or a [`SandboxSpawnRequest`], to a sealed file in memory.
pub(super) fn seal(value: &impl Serialize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"toolgate-plan", flags)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file.into())
}

/// Reads a value from a file that [`seal`] created. Fails if the file is not sealed.
pub(super) fn unseal<T: DeserializeOwned>(sealed: BorrowedFd<'_>) -> io::Result<T> {
    if !fcntl_get_seals(sealed)?.contains(SealFlags::WRITE) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Several processes may share the file position, so it is read by offset.
    let mut text = vec![0; usize::try_from(fstat(sealed)?.st_size).map_err(io::Error::other)?];
    let read = pread(sealed, &mut text, 0)?;
    Ok(serde_json::from_slice(text.get(..read).unwrap_or_default())?)
}

impl SandboxPlan {
    /// Returns the mounts that the helper prepares before it knows the program.
    pub(super) fn prepared_mounts(&self) -> impl Iterator<Item = &SandboxMount> {
        let workspace = self.workspace.path();
        self.base.iter().chain(&self.view).filter(|it| !it.is_late(workspace))
    }
}

impl SandboxMount {
    /// Returns `true` if the mount depends on the content of the workspace, which may change while
    /// the helper is idle.
    pub(super) fn is_late(&self, workspace: &Path) -> bool {
        match self {
            Self::FixedFolder { .. } | Self::ReadOnlyEntry { .. } => true,
            Self::EmptyFolder { at, .. } | Self::SamePath { at, .. } | Self::Symlink { at, .. } => {
                at.path().starts_with(workspace)
            }
            Self::Workspace { .. } => false,
        }
    }

    /// Returns the path at which a program in `workspace` sees the mount.
    pub(super) fn path<'p>(&'p self, workspace: &'p Path) -> &'p Path {
        match self {
            Self::SamePath { at, .. }
            | Self::Symlink { at, .. }
            | Self::EmptyFolder { at, .. }
            | Self::FixedFolder { at }
            | Self::ReadOnlyEntry { at } => at.path(),
            Self::Workspace { .. } => workspace,
        }
    }
}

impl OsStringBytes {
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

impl<T: Into<OsString>> From<T> for OsStringBytes {
    fn from(text: T) -> Self {
        match text.into().into_string() {
            Ok(text) => Self::Text(text),
            Err(other) => Self::Other(other.into_vec()),
        }
    }
}

/// Checks with fuzzed bytes that a parsed message that is serialized and parsed again stays the
/// same.
#[cfg(any(fuzzing, test))]
pub(crate) fn check(bytes: &[u8]) {
    reads_again::<SandboxPlan>(bytes);
    let Some(request) = reads_again::<SandboxSpawnRequest>(bytes) else { return };
    let program =
        request.program.iter().flat_map(|program| [&program.path].into_iter().chain(&program.args));
    for bytes in program.chain([&request.cwd]) {
        let _ = bytes.path();
        assert_eq!(bytes.string().is_err(), bytes.bytes().contains(&0));
    }
}

#[cfg(any(fuzzing, test))]
fn reads_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&value).expect("it was read");
    let again: T = serde_json::from_slice(&written).expect("it was written here");
    assert_eq!(serde_json::to_vec(&again).expect("it was read"), written);
    Some(value)
}
