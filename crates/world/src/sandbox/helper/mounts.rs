//! Builds the file tree that a program sees (its view): a separate root that contains the mounts of
//! the plan and nothing else.
//!
//! The helper prepares the part that all programs share in its own mount namespace. Each program
//! gets a copy of this namespace. The helper mounts this part over its root directory, but can
//! still reach the old root.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags};
use rustix::process::{chdir, fchdir};

use super::super::kernel;
use super::super::plan::{
    FileIdentity, OsStringBytes, SandboxMount, SandboxMountAccess, SandboxPlan,
};
use super::super::setup_step::{SandboxSetupFailure, SandboxSetupStep};
use super::check_identity;

const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
const NO_SET_ID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NO_DEVICES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;

/// The device files that programs see in a sandbox.
const DEVICES: [&CStr; 6] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

/// Symlinks in the `/dev` of a sandbox.
const DEV_LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// Entries of `/proc` about the whole machine, which root could read. The sandbox hides them.
const HIDDEN_PROC_ENTRIES: [&str; 9] = [
    "proc/kcore",
    "proc/kpagecount",
    "proc/kpageflags",
    "proc/kpagecgroup",
    "proc/kallsyms",
    "proc/keys",
    "proc/key-users",
    "proc/timer_list",
    "proc/config.gz",
];

/// The mode of the folders that are created as parents of a sandbox's mounts.
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o755);

/// The size of the in-memory root folder of a sandbox, as a mount option. Programs cannot write to
/// this folder.
const ROOT_SIZE: &CStr = c"1m";

/// The maximum number of retries if a file disappears before it is mounted.
const TRIES: usize = 100;

/// The prepared content of a sandbox mount: an open mount, a symlink, or a path to mount onto
/// itself.
enum SandboxMountSource<'p> {
    Mount(&'p Path, OwnedFd),
    Link(&'p Path, &'p Path),
    Guard(&'p Path, MountAttrFlags),
}

/// The files and folders that are mounted at their own paths.
#[derive(Debug, Clone, Default)]
pub(super) struct MountedFiles<'p> {
    identities: BTreeMap<&'p Path, FileIdentity>,
    /// The paths at which nothing is mounted because this process may not open them.
    refused: BTreeSet<&'p Path>,
}

impl<'p> MountedFiles<'p> {
    pub(super) fn extend(&mut self, other: MountedFiles<'p>) {
        self.identities.extend(other.identities);
        self.refused.extend(other.refused);
    }

    /// Compares the files with those that the server sees now at the prepared mounts of `plan`.
    /// Fails if they differ: a file was replaced before it was mounted, or created later.
    pub(super) fn check(
        &self,
        plan: &SandboxPlan,
        expected: &[Option<FileIdentity>],
    ) -> io::Result<()> {
        let is_current = |(mount, expected): (&SandboxMount, &Option<FileIdentity>)| match mount {
            SandboxMount::SamePath { at, .. } => {
                self.refused.contains(at.path())
                    || self.identities.get(at.path()) == expected.as_ref()
            }
            _ => true,
        };
        let is_current = plan.prepared_mounts().zip(expected).all(is_current);
        if is_current { Ok(()) } else { Err(Errno::STALE.into()) }
    }
}

/// Builds the part of the file tree that all programs of the sandbox helper share, and enters it.
/// Returns the files that are mounted.
pub(super) fn build_shared(plan: &SandboxPlan) -> Result<MountedFiles<'_>, SandboxSetupFailure> {
    let mut mounted = MountedFiles::default();
    let sources = open_sources(plan, plan.base.iter(), &mut mounted);
    let sources = SandboxSetupStep::Sources.check(sources)?;
    let devices = SandboxSetupStep::Sources.check(open_devices())?;
    let root = SandboxSetupStep::Root.check(mount_bare_root())?;
    for source in &sources {
        SandboxSetupStep::Root.check(mount_source(root.as_fd(), source))?;
    }
    SandboxSetupStep::Root.check(put_devices(&root, &devices))?;
    SandboxSetupStep::Root.check(fchdir(root))?;
    Ok(mounted)
}

/// Builds the part of the file tree that belongs to one program, and enters it. Mounts `/proc` if
/// `has_proc` is set. Afterwards, handles that were opened before this call cannot be used. Returns
/// the files that are mounted.
pub(super) fn build_own(
    plan: &SandboxPlan,
    has_proc: bool,
) -> Result<MountedFiles<'_>, SandboxSetupFailure> {
    SandboxSetupStep::Sources.check(kernel::isolate_mounts(MountPropagationFlags::PRIVATE))?;
    let root = SandboxSetupStep::Root.check(open_root())?;
    SandboxSetupStep::Root.check(put_own_devices(&root))?;
    if has_proc {
        SandboxSetupStep::Proc.check(put_proc(&root))?;
    }
    let mounted = put_places(plan, &root, false)?;
    SandboxSetupStep::Enter.check(enter_root(&root))?;
    Ok(mounted)
}

/// Adds the mounts that depend on the content of the workspace. Call this right before a program
/// starts.
pub(super) fn build_late(plan: &SandboxPlan) -> Result<(), SandboxSetupFailure> {
    put_places(plan, &SandboxSetupStep::Root.check(open_root())?, true).map(drop)
}

/// Adds mounts of the plan below `root`. With `are_late`, adds only the mounts that depend on the
/// content of the workspace. Otherwise, adds all other mounts. Returns the files that are mounted.
fn put_places<'p>(
    plan: &'p SandboxPlan,
    root: &OwnedFd,
    are_late: bool,
) -> Result<MountedFiles<'p>, SandboxSetupFailure> {
    let mut mounted = MountedFiles::default();
    let workspace = plan.workspace.path();
    let places = plan.view.iter().filter(|place| place.is_late(workspace) == are_late);
    let sources = open_sources(plan, places, &mut mounted);
    for source in SandboxSetupStep::Sources.check(sources)? {
        SandboxSetupStep::Root.check(mount_source(root.as_fd(), &source))?;
    }
    Ok(mounted)
}

/// Opens the new root of the sandbox's file tree.
fn open_root() -> io::Result<OwnedFd> {
    Ok(open_step(CWD, Path::new("."), OFlags::DIRECTORY)?)
}

/// Opens the sources of the mounts `places` of `plan`, and adds the files to `mounted`. Leaves out
/// sources that do not exist.
fn open_sources<'p>(
    plan: &'p SandboxPlan,
    places: impl Iterator<Item = &'p SandboxMount>,
    mounted: &mut MountedFiles<'p>,
) -> io::Result<Vec<SandboxMountSource<'p>>> {
    let mut sources = Vec::new();
    for place in places {
        let source = match place {
            SandboxMount::Symlink { at, to } => SandboxMountSource::Link(at.path(), to.path()),
            SandboxMount::FixedFolder { at } => {
                SandboxMountSource::Guard(at.path(), MountAttrFlags::empty())
            }
            SandboxMount::ReadOnlyEntry { at } => SandboxMountSource::Guard(at.path(), READ_ONLY),
            SandboxMount::EmptyFolder { at, bytes, mode } => {
                SandboxMountSource::Mount(at.path(), new_tmpfs(*bytes, *mode)?)
            }
            SandboxMount::Workspace { how } => {
                SandboxMountSource::Mount(plan.workspace.path(), open_workspace(plan, *how)?)
            }
            SandboxMount::SamePath { at, how } => match open_same(plan, at, *how) {
                Ok(mount) => {
                    let stat = fstat(&mount)?;
                    mounted.identities.insert(at.path(), (stat.st_dev, stat.st_ino));
                    SandboxMountSource::Mount(at.path(), mount)
                }
                Err(err) if is_not_there(&err) => {
                    if matches!(err.raw_os_error(), Some(libc::ELOOP | libc::EACCES)) {
                        mounted.refused.insert(at.path());
                    }
                    continue;
                }
                Err(err) => return Err(err),
            },
        };
        sources.push(source);
    }
    Ok(sources)
}

/// Opens the file or folder at `at`. Refuses symlinks if programs can write to a folder that
/// contains it.
fn open_same(
    plan: &SandboxPlan,
    at: &OsStringBytes,
    how: SandboxMountAccess,
) -> io::Result<OwnedFd> {
    let is_around = |place: &SandboxMount| match place {
        SandboxMount::SamePath { at: around, how: SandboxMountAccess::Write } => {
            at != around && at.path().starts_with(around.path())
        }
        _ => false,
    };
    if !plan.view.iter().any(is_around) {
        return open_bound(&at.string()?, how);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let found = kernel::retry(|| Ok(openat2(CWD, at.path(), flags, Mode::empty(), resolve)?))?;
    restrict_mount(kernel::clone_mount_of(&found)?, how)
}

/// Opens the workspace by its path and checks that it is the folder that the server has open. The
/// server's own handle is from another namespace, so it cannot be mounted.
fn open_workspace(plan: &SandboxPlan, how: SandboxMountAccess) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(CWD, plan.workspace.path(), flags, Mode::empty())?;
    check_identity(&found, plan.workspace_identity)?;
    restrict_mount(kernel::clone_mount_of(&found)?, how)
}

fn is_not_there(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES))
}

fn open_bound(path: &CStr, how: SandboxMountAccess) -> io::Result<OwnedFd> {
    restrict_mount(kernel::clone_mount(path)?, how)
}

fn restrict_mount(mount: OwnedFd, how: SandboxMountAccess) -> io::Result<OwnedFd> {
    let attr = match how {
        SandboxMountAccess::Read => READ_ONLY | NO_SET_ID | NO_DEVICES,
        SandboxMountAccess::Write => NO_SET_ID | NO_DEVICES,
        // Devices can be written even on a read-only mount, which protects only their modes.
        SandboxMountAccess::Device => READ_ONLY | NO_SET_ID | NO_EXEC,
    };
    kernel::restrict(&mount, attr, true)?;
    Ok(mount)
}

fn new_tmpfs(bytes: u64, mode: u32) -> io::Result<OwnedFd> {
    let size = decimal_string(bytes.to_string())?;
    let mode = decimal_string(format!("{mode:o}"))?;
    mount_tmpfs(&size, &mode, c"65536")
}

fn decimal_string(text: String) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::from)
}

fn mount_tmpfs(size: &CStr, mode: &CStr, files: &CStr) -> io::Result<OwnedFd> {
    let options = [(c"size", Some(size)), (c"mode", Some(mode)), (c"nr_inodes", Some(files))];
    kernel::create_filesystem(c"tmpfs", &options, NO_SET_ID | NO_DEVICES)
}

fn open_devices() -> io::Result<Vec<(&'static CStr, OwnedFd)>> {
    let mut devices = Vec::new();
    for path in DEVICES {
        match open_bound(path, SandboxMountAccess::Device) {
            Ok(mount) => devices.push((path, mount)),
            Err(err) if is_not_there(&err) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(devices)
}

/// Mounts an empty new root over the old root, and returns the new root. Absolute paths still start
/// at the old root.
fn mount_bare_root() -> io::Result<OwnedFd> {
    let root = mount_tmpfs(ROOT_SIZE, c"755", c"8192")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    kernel::attach(&root, openat(CWD, c"/", flags, Mode::empty())?)?;
    Ok(root)
}

fn mount_source(root: impl AsFd, source: &SandboxMountSource<'_>) -> io::Result<()> {
    match source {
        SandboxMountSource::Link(at, to) => {
            let (folder, name) = ensure_parent(root, at)?;
            match symlinkat(*to, folder, name) {
                // The link already exists, in a folder that is shared with the outside.
                Err(Errno::EXIST | Errno::ROFS) => Ok(()),
                made => Ok(made?),
            }
        }
        SandboxMountSource::Guard(at, attr) => mount_onto_itself(root, at, *attr),
        SandboxMountSource::Mount(at, mount) => {
            let is_folder = FileType::from_raw_mode(fstat(mount)?.st_mode) == FileType::Directory;
            let target = if is_folder { ensure_folder(root, at)? } else { ensure_file(root, at)? };
            kernel::attach(mount, target)
        }
    }
}

/// Mounts the entry at `at` below `root` onto itself, so that it cannot be moved. `attr` can make
/// the mount read-only.
fn mount_onto_itself(root: impl AsFd, at: &Path, attr: MountAttrFlags) -> io::Result<()> {
    let at = at.strip_prefix("/").unwrap_or(at);
    let attr = attr | NO_SET_ID | NO_DEVICES;
    for _ in 0..TRIES {
        let target = match open_step(&root, at, OFlags::empty()) {
            // A missing entry needs no protection, and no folder is created for it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let mount = kernel::clone_mount_of(&target)?;
        kernel::restrict(&mount, attr, true)?;
        match kernel::attach(mount, target) {
            // The entry has disappeared: another server has released a name that it reserved.
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            attached => return attached,
        }
    }
    Err(Errno::BUSY.into())
}

fn put_devices(root: &OwnedFd, devices: &[(&CStr, OwnedFd)]) -> io::Result<()> {
    for (path, mount) in devices {
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        kernel::attach(mount, ensure_file(root, path)?)?;
    }
    for (at, to) in DEV_LINKS {
        symlinkat(to, root, at)?;
    }
    Ok(())
}

/// Mounts the entries of `/dev` that each program gets separately.
fn put_own_devices(root: &OwnedFd) -> io::Result<()> {
    let shared = mount_tmpfs(c"256m", c"1777", c"65536")?;
    kernel::attach(shared, ensure_folder(root, Path::new("dev/shm"))?)?;
    let pts = [(c"newinstance", None), (c"ptmxmode", Some(c"0666")), (c"mode", Some(c"0600"))];
    let attr = NO_SET_ID | NO_EXEC;
    // Terminals are optional: without them the program is confined all the same.
    if let Ok(pts) = kernel::create_filesystem(c"devpts", &pts, attr) {
        kernel::attach(pts, ensure_folder(root, Path::new("dev/pts"))?)?;
    }
    Ok(())
}

/// Mounts a separate `/proc`, read-only. `/proc` contains the machine's settings, which root could
/// change, and the program may run as root.
fn put_proc(root: &OwnedFd) -> io::Result<()> {
    let attr = READ_ONLY | NO_SET_ID | NO_DEVICES | NO_EXEC;
    let proc = kernel::create_filesystem(c"proc", &[], attr)?;
    kernel::attach(proc, ensure_folder(root, Path::new("proc"))?)?;
    // The mounted `/dev/null` is already restricted.
    let Ok(nothing) = open_step(root, Path::new("dev/null"), OFlags::empty()) else {
        return Ok(());
    };
    for at in HIDDEN_PROC_ENTRIES {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(target) = openat(root, at, flags, Mode::empty()) else { continue };
        kernel::attach(kernel::clone_mount_of(&nothing)?, target)?;
    }
    Ok(())
}

fn enter_root(root: &OwnedFd) -> io::Result<()> {
    fchdir(root)?;
    kernel::switch_root()?;
    chdir(c"/")?;
    kernel::restrict(root, READ_ONLY | NO_SET_ID | NO_DEVICES, false)?;
    Ok(())
}

/// Opens the folder `path` below `root`. Creates it if it is missing.
///
/// Symlinks are not followed, because a program may have created them.
fn ensure_folder(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let path = path.strip_prefix("/").unwrap_or(path);
    let whole = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match open_step(root.as_fd(), whole, OFlags::DIRECTORY) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let mut folder = open_step(root.as_fd(), Path::new("."), OFlags::DIRECTORY)?;
    for part in path.components() {
        let Component::Normal(part) = part else { continue };
        let part = Path::new(part);
        folder = match open_step(folder.as_fd(), part, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                mkdirat(&folder, part, FOLDER_MODE)?;
                open_step(folder.as_fd(), part, OFlags::DIRECTORY)?
            }
            opened => opened?,
        };
    }
    Ok(folder)
}

/// Opens the file `path` below `root`. If the file is missing, creates an empty file as a mount
/// point.
fn ensure_file(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let (folder, name) = ensure_parent(root, path)?;
    match open_step(folder.as_fd(), Path::new(name), OFlags::empty()) {
        Err(Errno::NOENT) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&folder, name, flags, Mode::from_raw_mode(0o644))?);
            Ok(open_step(folder.as_fd(), Path::new(name), OFlags::empty())?)
        }
        opened => Ok(opened?),
    }
}

fn ensure_parent(root: impl AsFd, path: &Path) -> io::Result<(OwnedFd, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((ensure_folder(root, path.parent().unwrap_or(Path::new("")))?, name))
}

fn open_step(folder: impl AsFd, name: &Path, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = || Ok(openat2(&folder, name, flags, Mode::empty(), resolve)?);
    kernel::retry(open).map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))
}

/// Returns the files and folders of the plan that programs see, each with its access, for Landlock
/// rules.
pub(super) fn places(
    plan: &SandboxPlan,
) -> impl Iterator<Item = (&OsStringBytes, SandboxMountAccess)> {
    let is_own = plan.spaces.is_some();
    plan.base.iter().chain(&plan.view).filter_map(move |place| match place {
        SandboxMount::SamePath { at, how } => Some((at, *how)),
        // Without a separate view, these are the machine's own folders.
        SandboxMount::EmptyFolder { at, .. } => is_own.then_some((at, SandboxMountAccess::Write)),
        SandboxMount::Workspace { how } => Some((&plan.workspace, *how)),
        SandboxMount::Symlink { .. }
        | SandboxMount::FixedFolder { .. }
        | SandboxMount::ReadOnlyEntry { .. } => None,
    })
}
