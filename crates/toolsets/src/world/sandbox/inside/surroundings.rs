//! All that a program sees: a root of its own, with in it what the plan names and nothing else.
//!
//! What all programs see the helper has ready, in a namespace that each program's is a copy of:
//! mounted over the root that it sees itself, which hides nothing from what has that for its root.

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

/// The devices that programs need.
const DEVICES: [&CStr; 6] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

/// What `/dev` leads to elsewhere.
const LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// What stands in `/proc` of the machine as a whole that root may read and programs need not.
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

/// What the folders are given that the plan does not name.
const FOLDER: Mode = Mode::from_bits_retain(0o755);

/// How large what is in memory may be that nothing is written to.
const BARE_BYTES: &CStr = c"1m";

/// How often a place is looked for that is gone before it was held.
const TRIES: usize = 100;

/// A place of the plan with its mount, if it needs one.
enum Source<'p> {
    Mount(&'p Path, OwnedFd),
    Link(&'p Path, &'p Path),
    Guard(&'p Path, u64),
}

/// Makes what all programs see, and goes there.
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

/// Makes there what one program sees beside that, of `/proc` if it `has_proc`, and goes there. All
/// handles from before are useless then, or closed.
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

/// Makes there what depends on what is in the workspace, once a program is to begin.
pub(super) fn make_late(plan: &Plan) -> Result<(), Failed> {
    put_places(plan, &Step::Root.done(root())?, true)
}

/// Puts those places of the view there that are late, or those that are not.
fn put_places(plan: &Plan, root: &OwnedFd, are_late: bool) -> Result<(), Failed> {
    let workspace = plan.workspace.path();
    let places = plan.view.iter().filter(|place| place.is_late(workspace) == are_late);
    for source in Step::Sources.done(sources(plan, places))? {
        Step::Root.done(put(root.as_fd(), &source))?;
    }
    Ok(())
}

/// The new root.
fn root() -> io::Result<OwnedFd> {
    Ok(step(CWD, Path::new("."), OFlags::DIRECTORY)?)
}

/// Opens those of `places` that are to be seen; what is not there is not seen.
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

/// What is at `at`, wherever that leads; where programs write it leads nowhere else.
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

/// The workspace, which is what the server has open, wherever its path may lead by now: a handle
/// from another namespace cannot be bound.
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
        // Devices are written on a mount that is read-only, too; their modes are not.
        How::Device => Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_EXEC,
    };
    kernel::restrict(&mount, Attr(attr), true)?;
    Ok(mount)
}

fn fresh(bytes: u64, mode: u32) -> io::Result<OwnedFd> {
    let (size, mode) = (number(bytes.to_string())?, number(format!("{mode:o}"))?);
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

/// The new root, empty, over the old one, which stays what paths begin at.
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
                // It leads there already, in a folder that is the same outside.
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

/// Makes what is at `at` a mount of its own, which is not moved away, as it would be were only
/// what lies in it mounted; with `attr` it is only read.
fn guard(root: impl AsFd, at: &Path, attr: u64) -> io::Result<()> {
    let at = at.strip_prefix("/").unwrap_or(at);
    let attr = Attr(attr | Attr::NO_SET_ID | Attr::NO_DEVICES);
    for _ in 0..TRIES {
        let target = match step(&root, at, OFlags::empty()) {
            // What is not there is nobody's to keep, and no folder is made for it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let mount = kernel::tree_of(&target)?;
        kernel::restrict(&mount, attr, true)?;
        match kernel::attach(mount, target) {
            // It is gone since: another server has let go of a name that it kept.
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

/// What of `/dev` each program has for itself.
fn put_own_devices(root: &OwnedFd) -> io::Result<()> {
    let shared = memory(c"256m", c"1777", c"65536")?;
    kernel::attach(shared, folder(root, Path::new("dev/shm"))?)?;
    let pts = [(c"newinstance", None), (c"ptmxmode", Some(c"0666")), (c"mode", Some(c"0600"))];
    let attr = Attr(Attr::NO_SET_ID | Attr::NO_EXEC);
    // Terminals are a comfort: a kernel without them confines no less.
    if let Ok(pts) = kernel::filesystem(c"devpts", &pts, attr) {
        kernel::attach(pts, folder(root, Path::new("dev/pts"))?)?;
    }
    Ok(())
}

/// Puts a `/proc` of this namespace's own there, which nothing is written to: who is root outside
/// owns the machine's settings in it.
fn put_proc(root: &OwnedFd) -> io::Result<()> {
    let attr = Attr::READ_ONLY | Attr::NO_SET_ID | Attr::NO_DEVICES | Attr::NO_EXEC;
    let proc = kernel::filesystem(c"proc", &[], Attr(attr))?;
    kernel::attach(proc, folder(root, Path::new("proc"))?)?;
    // As it is there already, restricted.
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

/// The folder `path` beneath `root`, made where it is not there.
///
/// No symlink is followed: what is there may have been put there by a program.
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

/// The file `path` beneath `root`, made where it is not there: empty, to put something onto it.
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

/// What of the view is a folder or file that is there, by its path: for rules about it.
pub(super) fn places(plan: &Plan) -> impl Iterator<Item = (&Bytes, How)> {
    let is_own = plan.spaces.is_some();
    plan.base.iter().chain(&plan.view).filter_map(move |place| match place {
        Place::Same { at, how } => Some((at, *how)),
        // What would be fresh is the machine's, where no view is made.
        Place::Fresh { at, .. } => is_own.then_some((at, How::Write)),
        Place::Workspace { how } => Some((&plan.workspace, *how)),
        Place::Link { .. } | Place::Held { .. } | Place::Guarded { .. } => None,
    })
}
