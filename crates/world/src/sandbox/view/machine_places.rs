//! Collects the paths of this machine that programs see: the system, and the toolchains that `PATH`
//! and other variables name.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::super::plan::{SandboxMount, SandboxMountAccess};

/// The system folders that contain programs and libraries.
pub(in crate::sandbox) const SYSTEM_FOLDERS: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// The entries of `/etc` that programs need. Other entries may be secret.
pub(in crate::sandbox) const ETC_ENTRIES: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "passwd",
    "group",
    "nsswitch.conf",
    "hosts",
    "host.conf",
    "hostname",
    "resolv.conf",
    "gai.conf",
    "localtime",
    "timezone",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "alternatives",
    "services",
    "protocols",
    "os-release",
    "debian_version",
    "lsb-release",
    "mime.types",
    "magic",
    "terminfo",
    "inputrc",
    "fonts",
    "java",
    "java-17-openjdk",
    "java-21-openjdk",
    "python3",
    "perl",
    "gitconfig",
    "gitattributes",
    "crypto-policies",
    "npmrc",
    "login.defs",
    "shells",
    "profile",
    "bash.bashrc",
];

/// The entries beside a `bin` folder that the programs in that folder need. Other entries may be
/// private.
const PREFIX_ENTRIES: &[&str] = &[
    "bin",
    "sbin",
    "shims",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "include",
    "share",
    "versions",
    "version",
    "plugins",
    "pyenv.d",
    "completions",
    "conda-meta",
    "pyvenv.cfg",
    "jmods",
    "conf",
    "release",
    "pkg",
    "node_modules",
];

/// The entries of cargo's home folder that builds need. The file with registry tokens is not among
/// them.
const CARGO_ENTRIES: &[&str] =
    &["bin", "env", "config", "config.toml", "registry", "git", ".crates.toml", ".crates2.json"];

/// Environment variables that name a toolchain or its cache.
const TOOLCHAIN_VARIABLES: &[&str] =
    &["RUSTUP_HOME", "JAVA_HOME", "DOTNET_ROOT", "GOROOT", "GOMODCACHE", "NUGET_PACKAGES"];

/// Environment variables that name the folder of an installation, such as a Python virtual
/// environment. In the sandbox, only its `bin` folder and the other entries that an installation
/// needs are visible.
const PREFIX_VARIABLES: &[&str] = &["VIRTUAL_ENV", "PYENV_ROOT"];

/// Environment variables that name a folder for temporary files or caches. At the path in the
/// variable, programs see an empty folder in memory.
const CACHE_VARIABLES: &[&str] = &["TMPDIR", "XDG_CACHE_HOME", "GOCACHE"];

/// The maximum number of bytes to read of the file that names a virtual environment's interpreter.
const PYVENV_BYTES: u64 = 64 << 10;

/// The entries of a Python installation that its programs need.
const PYTHON_ENTRIES: &[&str] = &["bin", "lib", "lib64", "include", "share"];

const TMP_BYTES: u64 = 1 << 30;
const HOME_BYTES: u64 = 512 << 20;

/// The folders of the user that the server's environment variables name.
pub(super) struct HomeFolders<'v> {
    /// The user's home folder.
    pub(super) home: Option<PathBuf>,
    variable: &'v dyn Fn(&str) -> Option<PathBuf>,
}

impl<'v> HomeFolders<'v> {
    /// Finds the user's folders by environment variables, and creates none on the disk. `variable`
    /// returns the value of a variable.
    pub(super) fn new(variable: &'v dyn Fn(&str) -> Option<PathBuf>) -> Self {
        let homes = Self { home: None, variable };
        let home = homes.folder("HOME").filter(|home| home.parent().is_some());
        Self { home, variable }
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).filter(|it| it.is_absolute())
    }

    /// Returns the folder in the variable `name`. Returns `usual` in the user's home folder if the
    /// variable is not set.
    fn folder_or(&self, name: &str, usual: &str) -> Option<PathBuf> {
        self.folder(name).or_else(|| Some(self.home.as_ref()?.join(usual)))
    }
}

/// The mounts that have been collected so far for the sandboxes of programs.
pub(super) struct SandboxMountCollector {
    pub(super) places: Vec<SandboxMount>,
    /// Folders that programs can write. Symlinks in these folders are not followed, because
    /// programs control them.
    writable: Vec<PathBuf>,
}

impl SandboxMountCollector {
    /// Creates an empty collection of mounts. `writable` lists the folders that programs can write.
    pub(super) fn new(writable: Vec<PathBuf>) -> Self {
        Self { places: Vec::new(), writable }
    }

    /// Adds the system's folders, and folders in memory for temporary files.
    pub(super) fn add_system(&mut self, homes: &HomeFolders<'_>) {
        SYSTEM_FOLDERS.iter().for_each(|at| self.add_unless_writable(Path::new(at)));
        ETC_ENTRIES.iter().for_each(|name| self.add_unless_writable(&Path::new("/etc").join(name)));
        self.add_memory_folder(Path::new("/tmp"), TMP_BYTES, 0o1777);
        self.add_memory_folder(Path::new("/var/tmp"), HOME_BYTES, 0o1777);
        let caches = CACHE_VARIABLES.iter().filter_map(|name| homes.folder(name));
        for folder in homes.home.iter().cloned().chain(caches) {
            self.add_memory_folder(&folder, HOME_BYTES, 0o755);
        }
    }

    /// Adds the toolchains that environment variables name, and the program folders in `paths`.
    pub(super) fn add_toolchains<'p>(
        &mut self,
        homes: &HomeFolders<'_>,
        paths: impl IntoIterator<Item = &'p str>,
    ) {
        let home = homes.home.as_deref();
        let cargo = homes.folder_or("CARGO_HOME", ".cargo");
        self.add_entries(cargo.as_deref(), CARGO_ENTRIES);
        self.add_entries(homes.folder_or("RUSTUP_HOME", ".rustup").as_deref(), &[""]);
        self.add_entries(homes.folder_or("GOPATH", "go").as_deref(), &["bin", "pkg"]);
        TOOLCHAIN_VARIABLES
            .iter()
            .for_each(|name| self.add_entries(homes.folder(name).as_deref(), &[""]));
        PREFIX_VARIABLES
            .iter()
            .for_each(|name| self.add_prefix(homes.folder(name).as_deref(), home));
        let folders = paths.into_iter().flat_map(|path| path.split(':')).map(Path::new);
        for folder in folders.filter(|folder| folder.is_absolute()) {
            self.add_program_folder(folder, home, cargo.as_deref());
        }
    }

    /// Adds the user's git configuration, except files that may contain passwords.
    pub(super) fn add_git_config(&mut self, homes: &HomeFolders<'_>) {
        self.add_entries(homes.home.as_deref(), &[".gitconfig"]);
        let folder = homes.folder_or("XDG_CONFIG_HOME", ".config").map(|it| it.join("git"));
        let entries = folder.and_then(|it| fs::read_dir(it).ok()).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if !name.contains("credential") && !name.contains("cookie") {
                self.add_unless_writable(&entry.path());
            }
        }
    }

    fn is_writable(&self, at: &Path) -> bool {
        self.writable.iter().any(|written| at.starts_with(written))
    }

    /// Adds the entry at `at` for reading and execution, unless programs can write to it.
    fn add_unless_writable(&mut self, at: &Path) {
        if !self.is_writable(at) {
            self.add(at);
        }
    }

    /// Adds the entry at `at` to the mounts. A symlink to a system folder stays a symlink.
    pub(super) fn add(&mut self, at: &Path) {
        let Ok(found) = fs::symlink_metadata(at) else { return };
        let place = if found.is_symlink() {
            let Ok(real) = fs::canonicalize(at) else { return };
            let is_system = SYSTEM_FOLDERS.iter().any(|system| real.starts_with(system));
            match fs::read_link(at) {
                Ok(to) if is_system => SandboxMount::Symlink { at: at.into(), to: to.into() },
                _ => SandboxMount::SamePath { at: at.into(), how: SandboxMountAccess::Read },
            }
        } else {
            SandboxMount::SamePath { at: at.into(), how: SandboxMountAccess::Read }
        };
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    fn add_memory_folder(&mut self, at: &Path, bytes: u64, mode: u32) {
        let is_there = self.places.iter().any(|it| it.path(at) == at);
        // A mount point cannot be created in a read-only folder.
        let fits = fs::metadata(at).is_ok_and(|it| it.is_dir()) || !is_system(at);
        if !is_there && fits {
            self.places.push(SandboxMount::EmptyFolder { at: at.into(), bytes, mode });
        }
    }

    fn add_entries(&mut self, folder: Option<&Path>, parts: &[&str]) {
        let Some(folder) = folder else { return };
        for part in parts {
            let at = if part.is_empty() { folder.to_owned() } else { folder.join(part) };
            self.add_unless_writable(&at);
        }
    }

    /// Adds those entries of the installation in the folder `prefix` that its programs need.
    fn add_prefix(&mut self, prefix: Option<&Path>, home: Option<&Path>) {
        let Some(prefix) = prefix else { return };
        if is_personal(prefix, home) || is_system(prefix) {
            return;
        }
        self.add_entries(Some(prefix), PREFIX_ENTRIES);
        // A virtual environment needs the interpreter that it was made from.
        if let Some(base) = python_of_venv(prefix).filter(|base| !is_personal(base, home)) {
            self.add_entries(Some(&base), PYTHON_ENTRIES);
        }
    }

    /// Adds the folder `folder` of `PATH`, and the entries around it that its programs need.
    fn add_program_folder(&mut self, folder: &Path, home: Option<&Path>, cargo: Option<&Path>) {
        let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        // A writable folder is used as it is, without following symlinks.
        let folders = if self.is_writable(folder) { [folder, folder] } else { [folder, &real] };
        for folder in folders {
            // A home is no toolchain, even if it is in `PATH`.
            if is_system(folder) || home.is_some_and(|home| home.starts_with(folder)) {
                return;
            }
            self.add_unless_writable(folder);
            let is_bin = folder.file_name().is_some_and(|name| name == "bin" || name == "shims");
            let prefix = folder
                .parent()
                .filter(|prefix| is_bin && Some(*prefix) != cargo && !prefix.ends_with(".local"));
            let is_prefix = |prefix: &&Path| {
                ["lib", "lib64", "libexec", "pyvenv.cfg"].iter().any(|it| prefix.join(it).exists())
            };
            self.add_prefix(prefix.filter(is_prefix), home);
        }
    }
}

/// Returns `true` if `folder` may contain personal files beside an installation.
fn is_personal(folder: &Path, home: Option<&Path>) -> bool {
    folder.parent().is_none()
        || folder.ends_with(".local")
        || home.is_some_and(|it| it.starts_with(folder))
}

/// Returns the folder of the Python installation that the virtual environment `prefix` names.
/// Checks this folder, because a program may have written its name.
fn python_of_venv(prefix: &Path) -> Option<PathBuf> {
    let mut file = fs::OpenOptions::new();
    // Avoids blocking on a FIFO.
    file.read(true).custom_flags(libc::O_NONBLOCK);
    let file = file.open(prefix.join("pyvenv.cfg")).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(PYVENV_BYTES).read_to_string(&mut text).ok()?;
    let programs = text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "home").then(|| PathBuf::from(value.trim()))
    })?;
    let programs = fs::canonicalize(programs).ok().filter(|it| it.ends_with("bin"))?;
    let base = programs.parent()?.to_owned();
    let libraries = fs::read_dir(base.join("lib")).ok()?;
    let has_library = libraries
        .flatten()
        .any(|it| it.file_name().as_encoded_bytes().starts_with(b"python3") && it.path().is_dir());
    (has_library && programs.join("python3").is_file()).then_some(base)
}

fn is_system(path: &Path) -> bool {
    SYSTEM_FOLDERS.iter().any(|system| path.starts_with(system))
}
