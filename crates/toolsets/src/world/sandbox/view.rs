//! What a program sees: the system's programs, the toolchains in its `PATH`, the workspace, and
//! empty folders where it may leave what nobody keeps.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use super::guards::{Guards, held};
use super::plan::{How, Place};
use super::settings::{GitFolder, Profile, Settings};
use super::{Beside, Inside};

/// Where the system keeps its programs and what they need.
pub(super) const SYSTEM: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// What of `/etc` programs need, and no more of it: the rest may be secret.
pub(super) const ETC: &[&str] = &[
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

/// What there is on this machine, looked at once.
#[derive(Debug, Clone)]
pub(super) struct Base {
    places: Vec<Place>,
    /// The owner's git configuration.
    git: Vec<Place>,
    write: Vec<PathBuf>,
    guards: Guards,
    /// The server's own folders.
    hidden: Vec<PathBuf>,
}

/// What a program is to see and to write.
pub(super) struct Wanted<'i> {
    pub(super) profile: Profile,
    only_reads: bool,
    /// The folder of the repository that git, which it is, may change.
    repository: Option<&'i Path>,
    seen: &'i [PathBuf],
}

impl<'i> Wanted<'i> {
    /// All that any program gets.
    pub(super) const ALL: Self =
        Self { profile: Profile::Workspace, only_reads: false, repository: None, seen: &[] };

    pub(super) fn of(inside: &'i Inside) -> Self {
        let Inside { profile, workspace: _, only_reads, repository, seen, runs: _ } = inside;
        let repository = repository.as_deref();
        Self { profile: *profile, only_reads: *only_reads, repository, seen }
    }

    fn how(&self) -> How {
        if self.only_reads || self.profile == Profile::ReadOnly { How::Read } else { How::Write }
    }

    /// Whether names must be kept free that a program could take.
    pub(super) fn reserves(&self) -> bool {
        self.how() == How::Write
    }
}

impl Base {
    /// What programs in `workspace` see that are sought in `paths`, by a server with the
    /// `variable`s.
    pub(super) fn look<'p, 'v>(
        settings: &Settings,
        beside: &Beside,
        workspace: &Path,
        paths: impl IntoIterator<Item = &'p str>,
        variable: impl Fn(&str) -> Option<&'v OsStr>,
    ) -> Self {
        let folder = |name: &str| variable(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let home = folder("HOME").filter(|home| home.parent().is_some());
        let at_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let write = settings.write.iter().map(|path| expanded(path, home.as_deref()));
        let write: Vec<_> = write.collect();
        let written = || write.iter().cloned().chain([workspace.to_owned()]).collect();
        let mut found = Found { places: Vec::new(), written: written() };
        SYSTEM.iter().for_each(|at| found.seen(Path::new(at)));
        ETC.iter().for_each(|name| found.seen(&Path::new("/etc").join(name)));
        found.fresh(Path::new("/tmp"), TMP_BYTES, 0o1777);
        found.fresh(Path::new("/var/tmp"), HOME_BYTES, 0o1777);
        home.iter().for_each(|home| found.fresh(home, HOME_BYTES, 0o755));
        for cache in CACHES.iter().filter_map(|name| folder(name)) {
            found.fresh(&cache, HOME_BYTES, 0o755);
        }
        let cargo = folder("CARGO_HOME").or_else(|| at_home(".cargo"));
        found.parts(cargo.as_deref(), CARGO);
        found.parts(folder("RUSTUP_HOME").or_else(|| at_home(".rustup")).as_deref(), &[""]);
        found.parts(folder("GOPATH").or_else(|| at_home("go")).as_deref(), &["bin", "pkg"]);
        HOMES.iter().for_each(|name| found.parts(folder(name).as_deref(), &[""]));
        PREFIXES.iter().for_each(|name| found.prefix(folder(name).as_deref(), home.as_deref()));
        let folders = paths.into_iter().flat_map(|path| path.split(':')).map(Path::new);
        for folder in folders.filter(|folder| folder.is_absolute()) {
            found.programs(folder, home.as_deref(), cargo.as_deref());
        }
        for path in &settings.read {
            found.named(&expanded(path, home.as_deref()));
        }
        let mut git = Found { places: Vec::new(), written: written() };
        git.parts(home.as_deref(), &[".gitconfig"]);
        let configuration = folder("XDG_CONFIG_HOME").or_else(|| at_home(".config"));
        configuration.iter().for_each(|folder| git.but_secrets(&folder.join("git")));
        Self {
            places: found.places,
            git: git.places,
            write,
            guards: Guards::of(&beside.guarded, settings.git == GitFolder::Write),
            hidden: beside.hidden.clone(),
        }
    }

    /// What a program in `workspace` sees: of what all see the places around which nothing of its
    /// own lies, and the others, both in the order in which they are made.
    pub(super) fn view(&self, workspace: &Path, wanted: &Wanted<'_>) -> (Vec<Place>, Vec<Place>) {
        let (mut base, mut own) = (Vec::new(), Vec::new());
        let mut owned: Vec<Spelled> = Vec::new();
        for Made { spelled, place, is_common } in self.made(workspace, wanted) {
            if is_common && !owned.iter().any(|around| spelled.lies_in(around)) {
                base.push(place);
            } else {
                owned.push(spelled);
                own.push(place);
            }
        }
        (base, own)
    }

    /// All that a program in `workspace` sees, what is around first.
    fn made(&self, workspace: &Path, wanted: &Wanted<'_>) -> Vec<Made> {
        let how = wanted.how();
        let git = if wanted.repository.is_some() { &self.git[..] } else { &[] };
        let write = self.write.iter().map(|at| Place::Same { at: at.into(), how });
        let seen = wanted.seen.iter().map(|at| Place::Same { at: at.into(), how: How::Read });
        let made = |place: Place, is_common| {
            let spelled = Spelled::of(at(&place, workspace));
            Made { spelled, place, is_common }
        };
        let common = self.places.iter().cloned().map(|place| {
            let is_common = !matches!(place, Place::Fresh { .. });
            made(place, is_common)
        });
        let mut places: Vec<_> = common.collect();
        let own = |place| made(place, false);
        places.extend(git.iter().cloned().chain(write).chain(seen).map(own));
        // What lies in the workspace is seen there, and is what that is.
        let around = Spelled::of(workspace);
        places.retain(|it| !it.spelled.lies_in(&around));
        places.push(own(Place::Workspace { how }));
        if how == How::Write {
            places.extend(self.guards.places(workspace, wanted.repository).into_iter().map(own));
        }
        let hidden = self.hidden.iter().filter(|at| at.starts_with(workspace) && at.is_dir());
        let hidden: Vec<_> = hidden.cloned().collect();
        let empty = |at: &Path| Place::Fresh { at: at.into(), bytes: 4096, mode: 0o555 };
        places.extend(held(workspace, &hidden, empty).into_iter().map(own));
        // What is around comes first; of two at one place the one that was named later hides.
        places.sort_by_key(|it| it.spelled.depth());
        let mut made: Vec<Made> = Vec::with_capacity(places.len());
        for place in places {
            if !is_seen_by(&made, &place) {
                made.push(place);
            }
        }
        made
    }

    /// Whether a program in `workspace` sees the file that is called `named`, and is `real`.
    pub(super) fn shows(
        &self,
        workspace: &Path,
        wanted: &Wanted<'_>,
        named: &Path,
        real: &Path,
    ) -> bool {
        // What a name says is only where it leads if it turns back nowhere, and if nobody who may
        // ask could have put a link on its way.
        let turns_back = named.components().any(|it| it == Component::ParentDir);
        let is_called = |at: &Path| !turns_back && named.starts_with(at);
        self.made(workspace, wanted).iter().any(|it| match &it.place {
            Place::Workspace { .. } => real.starts_with(workspace),
            Place::Same { at, how: How::Write } => real.starts_with(at.path()),
            Place::Same { at, .. } => real.starts_with(at.path()) || is_called(at.path()),
            Place::Link { at, .. } => is_called(at.path()),
            Place::Fresh { .. } | Place::Held { .. } | Place::Guarded { .. } => false,
        })
    }

    /// The names in a workspace that no program may take where nothing is yet.
    pub(super) fn reserved(&self) -> impl Iterator<Item = &str> {
        self.guards.reserved()
    }
}

/// Where `place` is.
fn at<'p>(place: &'p Place, workspace: &'p Path) -> &'p Path {
    match place {
        Place::Same { at, .. }
        | Place::Link { at, .. }
        | Place::Fresh { at, .. }
        | Place::Held { at }
        | Place::Guarded { at } => at.path(),
        Place::Workspace { .. } => workspace,
    }
}

/// A place of a view.
struct Made {
    spelled: Spelled,
    place: Place,
    /// Whether all programs see it.
    is_common: bool,
}

/// A path with one slash after each of its parts: paths are slow to compare, and here each is with
/// most others for each program.
struct Spelled(Vec<u8>);

impl Spelled {
    fn of(path: &Path) -> Self {
        let mut spelled = Vec::with_capacity(path.as_os_str().len() + 1);
        for part in path.components() {
            if part != Component::RootDir {
                spelled.extend_from_slice(part.as_os_str().as_bytes());
            }
            spelled.push(b'/');
        }
        Self(spelled)
    }

    fn lies_in(&self, around: &Self) -> bool {
        self.0.starts_with(&around.0)
    }

    fn depth(&self) -> usize {
        self.0.iter().filter(|byte| **byte == b'/').count()
    }
}

/// Whether what is `made` shows a place as it is already.
fn is_seen_by(made: &[Made], Made { spelled, place, .. }: &Made) -> bool {
    let around = made.iter().rev().find(|it| spelled.lies_in(&it.spelled));
    match (around.map(|it| &it.place), place) {
        (Some(Place::Same { how: How::Read, .. }), Place::Same { how: How::Read, .. }) => true,
        (Some(one), other) => one == other,
        (None, _) => false,
    }
}

/// `path`, beneath `home` if it begins with `~/`.
pub(super) fn expanded(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// The places that were found so far.
struct Found {
    places: Vec<Place>,
    /// What programs write: where that leads is theirs to say, and nothing to be looked for.
    written: Vec<PathBuf>,
}

impl Found {
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
    fn named(&mut self, at: &Path) {
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

    /// What is in `folder`, but for what may hold passwords.
    fn but_secrets(&mut self, folder: &Path) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if !name.contains("credential") && !name.contains("cookie") {
                self.seen(&entry.path());
            }
        }
    }

    fn fresh(&mut self, at: &Path, bytes: u64, mode: u32) {
        let is_there = self.places.iter().any(|it| super::view::at(it, at) == at);
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

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "/root/src/app";

    fn view(profile: Profile) -> Vec<Place> {
        let settings = Settings { write: vec!["~/shared".to_owned()], ..Settings::default() };
        let home = OsStr::new("/root");
        let variable = |name: &str| (name == "HOME").then_some(home);
        let base =
            Base::look(&settings, &Beside::default(), Path::new(WORKSPACE), ["/usr/bin"], variable);
        let (all, own) = base.view(Path::new(WORKSPACE), &Wanted { profile, ..Wanted::ALL });
        [all, own].concat()
    }

    #[test]
    fn what_is_around_comes_first_and_the_workspace_lies_over_an_empty_home() {
        let view = view(Profile::Workspace);
        let workspace = Path::new(WORKSPACE);
        let position = |path: &str| {
            view.iter().position(|place| at(place, workspace) == Path::new(path)).unwrap()
        };
        assert!(position("/root") < position(WORKSPACE));
        assert!(position("/root") < position("/root/shared"));
        assert!(matches!(view[position("/root")], Place::Fresh { .. }));
        assert!(matches!(view[position(WORKSPACE)], Place::Workspace { how: How::Write }));
    }

    #[test]
    fn a_program_that_only_reads_writes_nothing_that_lasts() {
        let lasts = |place: &Place| {
            matches!(
                place,
                Place::Same { how: How::Write, .. } | Place::Workspace { how: How::Write }
            )
        };
        assert!(!view(Profile::ReadOnly).iter().any(lasts));
        assert!(view(Profile::Workspace).iter().any(lasts));
    }

    #[test]
    fn of_etc_nothing_is_seen_that_is_secret() {
        let secret = ["/etc/shadow", "/etc/ssl/private", "/etc/ssl", "/etc"];
        for place in view(Profile::Network) {
            let at = at(&place, Path::new(WORKSPACE)).to_owned();
            assert!(!secret.contains(&at.to_str().unwrap()), "{at:?}");
        }
    }
}
