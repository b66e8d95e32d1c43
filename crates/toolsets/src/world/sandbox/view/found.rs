//! What of this machine programs are to see: the system, and the toolchains that are named by
//! `PATH` and by variables.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::super::plan::{How, Place};

/// Where the system keeps its programs and what they need.
pub(in crate::world::sandbox) const SYSTEM: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// What of `/etc` programs need, and no more of it: the rest may be secret.
pub(in crate::world::sandbox) const ETC: &[&str] = &[
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

/// What the folder around a folder of programs has that these need; beside may lie anything.
const PREFIX: &[&str] = &[
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

/// What of cargo's home builds need: not the tokens.
const CARGO: &[&str] =
    &["bin", "env", "config", "config.toml", "registry", "git", ".crates.toml", ".crates2.json"];

/// Variables that name a folder which is a toolchain or its cache, and nothing else.
const HOMES: &[&str] =
    &["RUSTUP_HOME", "JAVA_HOME", "DOTNET_ROOT", "GOROOT", "GOMODCACHE", "NUGET_PACKAGES"];

/// Variables that name a folder as [`PREFIX`] knows it.
const PREFIXES: &[&str] = &["VIRTUAL_ENV", "PYENV_ROOT"];

/// Variables that name a folder for what can be made again.
const CACHES: &[&str] = &["TMPDIR", "XDG_CACHE_HOME", "GOCACHE"];

/// How much is read of what says where a virtual environment's interpreter is.
const PYVENV_BYTES: u64 = 64 << 10;

/// What an installation of Python is made of.
const PYTHON: &[&str] = &["bin", "lib", "lib64", "include", "share"];

const TMP_BYTES: u64 = 1 << 30;
const HOME_BYTES: u64 = 512 << 20;

/// The folders that a server's variables name.
pub(super) struct Homes<'v> {
    /// The owner's.
    pub(super) home: Option<PathBuf>,
    variable: &'v dyn Fn(&str) -> Option<PathBuf>,
}

impl<'v> Homes<'v> {
    /// What `variable` tells of each.
    pub(super) fn of(variable: &'v dyn Fn(&str) -> Option<PathBuf>) -> Self {
        let homes = Self { home: None, variable };
        let home = homes.folder("HOME").filter(|home| home.parent().is_some());
        Self { home, variable }
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).filter(|it| it.is_absolute())
    }

    /// The folder that `name` names, or else `usual` in the owner's.
    fn folder_or(&self, name: &str, usual: &str) -> Option<PathBuf> {
        self.folder(name).or_else(|| Some(self.home.as_ref()?.join(usual)))
    }
}

/// The places that were found so far.
pub(super) struct Found {
    pub(super) places: Vec<Place>,
    /// What programs write: where that leads is theirs to say, and nothing to be looked for.
    written: Vec<PathBuf>,
}

impl Found {
    /// None yet, where programs write what is `written`.
    pub(super) fn none(written: Vec<PathBuf>) -> Self {
        Self { places: Vec::new(), written }
    }

    /// The system, and what programs may fill.
    pub(super) fn system(&mut self, homes: &Homes<'_>) {
        SYSTEM.iter().for_each(|at| self.seen(Path::new(at)));
        ETC.iter().for_each(|name| self.seen(&Path::new("/etc").join(name)));
        self.fresh(Path::new("/tmp"), TMP_BYTES, 0o1777);
        self.fresh(Path::new("/var/tmp"), HOME_BYTES, 0o1777);
        let caches = CACHES.iter().filter_map(|name| homes.folder(name));
        for folder in homes.home.iter().cloned().chain(caches) {
            self.fresh(&folder, HOME_BYTES, 0o755);
        }
    }

    /// The toolchains that variables name, and the programs that are sought in `paths`.
    pub(super) fn toolchains<'p>(
        &mut self,
        homes: &Homes<'_>,
        paths: impl IntoIterator<Item = &'p str>,
    ) {
        let home = homes.home.as_deref();
        let cargo = homes.folder_or("CARGO_HOME", ".cargo");
        self.parts(cargo.as_deref(), CARGO);
        self.parts(homes.folder_or("RUSTUP_HOME", ".rustup").as_deref(), &[""]);
        self.parts(homes.folder_or("GOPATH", "go").as_deref(), &["bin", "pkg"]);
        HOMES.iter().for_each(|name| self.parts(homes.folder(name).as_deref(), &[""]));
        PREFIXES.iter().for_each(|name| self.prefix(homes.folder(name).as_deref(), home));
        let folders = paths.into_iter().flat_map(|path| path.split(':')).map(Path::new);
        for folder in folders.filter(|folder| folder.is_absolute()) {
            self.programs(folder, home, cargo.as_deref());
        }
    }

    /// The owner's configuration of git, but for what may hold passwords.
    pub(super) fn git(&mut self, homes: &Homes<'_>) {
        self.parts(homes.home.as_deref(), &[".gitconfig"]);
        let folder = homes.folder_or("XDG_CONFIG_HOME", ".config").map(|it| it.join("git"));
        let entries = folder.and_then(|it| fs::read_dir(it).ok()).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if !name.contains("credential") && !name.contains("cookie") {
                self.seen(&entry.path());
            }
        }
    }

    fn is_written(&self, at: &Path) -> bool {
        self.written.iter().any(|written| at.starts_with(written))
    }

    /// What is at `at`, to be seen and run, unless programs decide what that is.
    fn seen(&mut self, at: &Path) {
        if !self.is_written(at) {
            self.named(at);
        }
    }

    /// What is at `at`, which somebody has named. A symlink into the system's own stays one.
    pub(super) fn named(&mut self, at: &Path) {
        let Ok(found) = fs::symlink_metadata(at) else { return };
        let place = if found.is_symlink() {
            let Ok(real) = fs::canonicalize(at) else { return };
            let is_system = SYSTEM.iter().any(|system| real.starts_with(system));
            match fs::read_link(at) {
                Ok(to) if is_system => Place::Link { at: at.into(), to: to.into() },
                _ => Place::Same { at: at.into(), how: How::Read },
            }
        } else {
            Place::Same { at: at.into(), how: How::Read }
        };
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    fn fresh(&mut self, at: &Path, bytes: u64, mode: u32) {
        let is_there = self.places.iter().any(|it| it.at(at) == at);
        // In what cannot be written no folder can be made to put it on.
        let fits = fs::metadata(at).is_ok_and(|it| it.is_dir()) || !is_system(at);
        if !is_there && fits {
            self.places.push(Place::Fresh { at: at.into(), bytes, mode });
        }
    }

    fn parts(&mut self, folder: Option<&Path>, parts: &[&str]) {
        let Some(folder) = folder else { return };
        for part in parts {
            let at = if part.is_empty() { folder.to_owned() } else { folder.join(part) };
            self.seen(&at);
        }
    }

    /// What programs need that lie in a folder of `prefix`.
    fn prefix(&mut self, prefix: Option<&Path>, home: Option<&Path>) {
        let Some(prefix) = prefix else { return };
        if is_of_people(prefix, home) || is_system(prefix) {
            return;
        }
        self.parts(Some(prefix), PREFIX);
        // Its own interpreter is another's.
        if let Some(base) = interpreter_of(prefix).filter(|base| !is_of_people(base, home)) {
            self.parts(Some(&base), PYTHON);
        }
    }

    /// The programs in a folder of `PATH`, and what lies around it for them.
    fn programs(&mut self, folder: &Path, home: Option<&Path>, cargo: Option<&Path>) {
        let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        // What is written is seen as that, and leads nowhere else.
        let folders = if self.is_written(folder) { [folder, folder] } else { [folder, &real] };
        for folder in folders {
            // A home is no toolchain, whoever put it there.
            if is_system(folder) || home.is_some_and(|home| home.starts_with(folder)) {
                return;
            }
            self.seen(folder);
            let is_bin = folder.file_name().is_some_and(|name| name == "bin" || name == "shims");
            let prefix = folder
                .parent()
                .filter(|prefix| is_bin && Some(*prefix) != cargo && !prefix.ends_with(".local"));
            let is_prefix = |prefix: &&Path| {
                ["lib", "lib64", "libexec", "pyvenv.cfg"].iter().any(|it| prefix.join(it).exists())
            };
            self.prefix(prefix.filter(is_prefix), home);
        }
    }
}

/// Whether in `folder` there is more than an installation of something.
fn is_of_people(folder: &Path, home: Option<&Path>) -> bool {
    folder.parent().is_none()
        || folder.ends_with(".local")
        || home.is_some_and(|it| it.starts_with(folder))
}

/// The installation of Python that the virtual environment `prefix` says it is made of, if it is
/// one: a program may have written what says so.
fn interpreter_of(prefix: &Path) -> Option<PathBuf> {
    let mut file = fs::OpenOptions::new();
    // Not to wait for what is no file.
    file.read(true).custom_flags(libc::O_NONBLOCK);
    let file = file.open(prefix.join("pyvenv.cfg")).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut told = String::new();
    file.take(PYVENV_BYTES).read_to_string(&mut told).ok()?;
    let programs = told.lines().find_map(|line| {
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
    SYSTEM.iter().any(|system| path.starts_with(system))
}
