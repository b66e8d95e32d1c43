//! Builds the file tree that a program sees: a separate root with the places of the plan and
//! nothing else.
//!
//! The helper prepares the shared part in a namespace that each program's namespace is a copy of.
//! It mounts this part over its own root directory, which does not hide the old root from the
//! helper.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::process::{chdir, fchdir};

use super::super::kernel::{self, Attr, Seen};
use super::super::plan::{Bytes, How, Place, Plan};
use super::super::step::{Failed, Step};
use super::is;

/// The device files that programs need.
const DEVICES: [&CStr; 6] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

/// Symlinks in `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// Entries of `/proc` about the whole machine that root could read. They are hidden from programs.
const HIDDEN: [&str; 9] = [
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

/// The mode of folders that the plan does not name.
const FOLDER: Mode = Mode::from_bits_retain(0o755);

/// The size of the in-memory root, which programs cannot write to.
const BARE_BYTES: &CStr = c"1m";

/// The most retries if a place disappears before it is mounted.
const TRIES: usize = 100;

/// A place of the plan with its mount, if it needs one.
enum Source<'p> {
    Mount(&'p Path, OwnedFd),
    Link(&'p Path, &'p Path),
    Guard(&'p Path, u64),
}

/// Builds the part of the view that all programs share, and enters it.
pub(super) fn make_common(plan: &Plan) -> Result<(), Failed> {
    let sources = Step::Sources.done(sources(plan, plan.base.iter()))?;
    let devices = Step::Sources.done(devices())?;
    let root = Step::Root.done(bare())?;
    for source in &sources {
        Step::Root.done(put(root.as_fd(), source))?;
    }
    Step::Root.done(put_devices(&root, &devices))?;
    Step::Root.done(fchdir(root))
}

/// Builds one program's own part of the view, and enters it. Mounts `/proc` if `has_proc`. Handles
/// opened before are useless or closed afterwards.
pub(super) fn make_own(plan: &Plan, has_proc: bool) -> Result<(), Failed> {
    Step::Sources.done(kernel::keep_mounts_apart(Seen::None))?;
    let root = Step::Root.done(root())?;
    Step::Root.done(put_own_devices(&root))?;
    if has_proc {
        Step::Proc.done(put_proc(&root))?;
    }
    put_places(plan, &root, false)?;
    Step::Enter.done(enter(&root))
}

/// Adds the places that depend on the content of the workspace, right before a program starts.
pub(super) fn make_late(plan: &Plan) -> Result<(), Failed> {
    put_places(plan, &Step::Root.done(root())?, true)
}

/// Mounts the late or the early places of the view, depending on `are_late`.
fn put_places(plan: &Plan, root: &OwnedFd, are_late: bool) -> Result<(), Failed> {
    let workspace = plan.workspace.path();
    let places = plan.view.iter().filter(|place| place.is_late(workspace) == are_late);
    for source in Step::Sources.done(sources(plan, places))? {
        Step::Root.done(put(root.as_fd(), &source))?;
    }
    Ok(())
}

/// Opens the new root.
fn root() -> io::Result<OwnedFd> {
    Ok(step(CWD, Path::new("."), OFlags::DIRECTORY)?)
}

/// Opens the visible ones of `places`. Missing ones are left out.
fn sources<'p>(
    plan: &'p Plan,
    places: impl Iterator<Item = &'p Place>,
) -> io::Result<Vec<Source<'p>>> {
    let mut sources = Vec::new();
    for place in places {
        let source = match place {
            Place::Link { at, to } => Source::Link(at.path(), to.path()),
            Place::Held { at } => Source::Guard(at.path(), 0),
            Place::Guarded { at } => Source::Guard(at.path(), Attr::READ_ONLY),
            Place::Fresh { at, bytes, mode } => Source::Mount(at.path(), fresh(*bytes, *mode)?),
            Place::Workspace { how } => {
                Source::Mount(plan.workspace.path(), workspace(plan, *how)?)
            }
            Place::Same { at, how } => match same(plan, at, *how) {
                Ok(mount) => Source::Mount(at.path(), mount),
                Err(err) if is_not_there(&err) => continue,
                Err(err) => return Err(err),
            },
        };
        sources.push(source);
    }
    Ok(sources)
}

/// Opens the entry at `at`. If programs can write to a place around it, symlinks are refused.
fn same(plan: &Plan, at: &Bytes, how: How) -> io::Result<OwnedFd> {
    let is_around = |place: &Place| match place {
        Place::Same { at: around, how: How::Write } => {
            at != around && at.path().starts_with(around.path())
        }
        _ => false,
    };
    if !plan.view.iter().any(is_around) {
        return bound(&at.string()?, how);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let found = kernel::again(|| Ok(openat2(CWD, at.path(), flags, Mode::empty(), resolve)?))?;
    restricted(kernel::tree_of(&found)?, how)
}

/// Opens the workspace by its path and checks that it is the server's open folder. A handle from
/// another namespace cannot be mounted.
fn workspace(plan: &Plan, how: How) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(CWD, plan.workspace.path(), flags, Mode::empty())?;
    is(&found, plan.workspace_identity)?;
    restricted(kernel::tree_of(&found)?, how)
}

fn is_not_there(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES))
}

fn bound(path: &CStr, how: How) -> io::Result<OwnedFd> {
    restricted(kernel::tree(path)?, how)
}

fn restricted(mount: OwnedFd, how: How) -> io::Result<OwnedFd> {
    let attr = match how {
        How::Read => Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_DEVICES,
        How::Write => Attr::NO_SET_ID | Attr::NO_DEVICES,
        // Devices can be written even on a read-only mount, which protects only their modes.
        How::Device => Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_EXEC,
    };
    kernel::restrict(&mount, Attr(attr), true)?;
    Ok(mount)
}

fn fresh(bytes: u64, mode: u32) -> io::Result<OwnedFd> {
    let size = number(bytes.to_string())?;
    let mode = number(format!("{mode:o}"))?;
    memory(&size, &mode, c"65536")
}

fn number(text: String) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::from)
}

fn memory(size: &CStr, mode: &CStr, files: &CStr) -> io::Result<OwnedFd> {
    let options = [(c"size", Some(size)), (c"mode", Some(mode)), (c"nr_inodes", Some(files))];
    kernel::filesystem(c"tmpfs", &options, Attr(Attr::NO_SET_ID | Attr::NO_DEVICES))
}

fn devices() -> io::Result<Vec<(&'static CStr, OwnedFd)>> {
    let mut devices = Vec::new();
    for path in DEVICES {
        match bound(path, How::Device) {
            Ok(mount) => devices.push((path, mount)),
            Err(err) if is_not_there(&err) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(devices)
}

/// Mounts an empty new root over the old one. Absolute paths still start at the old root.
fn bare() -> io::Result<OwnedFd> {
    let root = memory(BARE_BYTES, c"755", c"8192")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    kernel::attach(&root, openat(CWD, c"/", flags, Mode::empty())?)?;
    Ok(root)
}

fn put(root: impl AsFd, source: &Source<'_>) -> io::Result<()> {
    match source {
        Source::Link(at, to) => {
            let (folder, name) = parent(root, at)?;
            match symlinkat(*to, folder, name) {
                // The link already exists, in a folder that is shared with the outside.
                Err(Errno::EXIST | Errno::ROFS) => Ok(()),
                made => Ok(made?),
            }
        }
        Source::Guard(at, attr) => guard(root, at, *attr),
        Source::Mount(at, mount) => {
            let is_folder = FileType::from_raw_mode(fstat(mount)?.st_mode) == FileType::Directory;
            let target = if is_folder { folder(root, at)? } else { file(root, at)? };
            kernel::attach(mount, target)
        }
    }
}

/// Mounts the entry at `at` onto itself, so that it cannot be moved away. `attr` can make it
/// read-only.
fn guard(root: impl AsFd, at: &Path, attr: u64) -> io::Result<()> {
    let at = at.strip_prefix("/").unwrap_or(at);
    let attr = Attr(attr | Attr::NO_SET_ID | Attr::NO_DEVICES);
    for _ in 0..TRIES {
        let target = match step(&root, at, OFlags::empty()) {
            // A missing entry needs no protection, and no folder is created for it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let mount = kernel::tree_of(&target)?;
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
        kernel::attach(mount, file(root, path)?)?;
    }
    for (at, to) in LINKS {
        symlinkat(to, root, at)?;
    }
    Ok(())
}

/// Mounts the parts of `/dev` that each program has alone.
fn put_own_devices(root: &OwnedFd) -> io::Result<()> {
    let shared = memory(c"256m", c"1777", c"65536")?;
    kernel::attach(shared, folder(root, Path::new("dev/shm"))?)?;
    let pts = [(c"newinstance", None), (c"ptmxmode", Some(c"0666")), (c"mode", Some(c"0600"))];
    let attr = Attr(Attr::NO_SET_ID | Attr::NO_EXEC);
    // Terminals are optional: without them the program is confined all the same.
    if let Ok(pts) = kernel::filesystem(c"devpts", &pts, attr) {
        kernel::attach(pts, folder(root, Path::new("dev/pts"))?)?;
    }
    Ok(())
}

/// Mounts a separate `/proc` read-only, because root outside owns the machine's settings in it.
fn put_proc(root: &OwnedFd) -> io::Result<()> {
    let attr = Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_DEVICES | Attr::NO_EXEC;
    let proc = kernel::filesystem(c"proc", &[], Attr(attr))?;
    kernel::attach(proc, folder(root, Path::new("proc"))?)?;
    // The mounted `/dev/null` is already restricted.
    let Ok(nothing) = step(root, Path::new("dev/null"), OFlags::empty()) else { return Ok(()) };
    for at in HIDDEN {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(target) = openat(root, at, flags, Mode::empty()) else { continue };
        kernel::attach(kernel::tree_of(&nothing)?, target)?;
    }
    Ok(())
}

fn enter(root: &OwnedFd) -> io::Result<()> {
    fchdir(root)?;
    kernel::turn_root()?;
    chdir(c"/")?;
    kernel::restrict(root, Attr(Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_DEVICES), false)?;
    Ok(())
}

/// Opens the folder `path` below `root`, and creates it if it is missing.
///
/// Symlinks are not followed, because a program may have created them.
fn folder(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let path = path.strip_prefix("/").unwrap_or(path);
    let whole = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match step(root.as_fd(), whole, OFlags::DIRECTORY) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    let mut folder = step(root.as_fd(), Path::new("."), OFlags::DIRECTORY)?;
    for part in path.components() {
        let Component::Normal(part) = part else { continue };
        let part = Path::new(part);
        folder = match step(folder.as_fd(), part, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {
                mkdirat(&folder, part, FOLDER)?;
                step(folder.as_fd(), part, OFlags::DIRECTORY)?
            }
            opened => opened?,
        };
    }
    Ok(folder)
}

/// Opens the file `path` below `root`, and creates an empty mount point if it is missing.
fn file(root: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let (folder, name) = parent(root, path)?;
    match step(folder.as_fd(), Path::new(name), OFlags::empty()) {
        Err(Errno::NOENT) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&folder, name, flags, Mode::from_raw_mode(0o644))?);
            Ok(step(folder.as_fd(), Path::new(name), OFlags::empty())?)
        }
        opened => Ok(opened?),
    }
}

fn parent(root: impl AsFd, path: &Path) -> io::Result<(OwnedFd, &std::ffi::OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok((folder(root, path.parent().unwrap_or(Path::new("")))?, name))
}

fn step(folder: impl AsFd, name: &Path, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = || Ok(openat2(&folder, name, flags, Mode::empty(), resolve)?);
    kernel::again(open).map_err(|err| Errno::from_io_error(&err).unwrap_or(Errno::IO))
}

/// Returns the files and folders of the view by path, for Landlock rules.
pub(super) fn places(plan: &Plan) -> impl Iterator<Item = (&Bytes, How)> {
    let is_own = plan.spaces.is_some();
    plan.base.iter().chain(&plan.view).filter_map(move |place| match place {
        Place::Same { at, how } => Some((at, *how)),
        // Without a separate view, these are the machine's own folders.
        Place::Fresh { at, .. } => is_own.then_some((at, How::Write)),
        Place::Workspace { how } => Some((&plan.workspace, *how)),
        Place::Link { .. } | Place::Held { .. } | Place::Guarded { .. } => None,
    })
}
