//! The view of a program, that is, the files that it sees: system programs, the toolchains in its
//! `PATH`, the workspace, and empty folders for temporary files.

mod machine_places;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

pub(super) use self::machine_places::{ETC_ENTRIES, SYSTEM_FOLDERS};
use self::machine_places::{HomeFolders, SandboxMountCollector};
use super::guarded_paths::{self, GuardedPaths, with_fixed_parents};
use super::plan::{SandboxMount, SandboxMountAccess};
use super::settings::{GitFolderAccess, SandboxProfile, SandboxSettings, expand_home};
use super::{OutsideRepositoryPath, ProgramConfinement, SandboxPaths};

/// The paths of this machine that sandboxed programs see, collected once for all programs.
#[derive(Debug, Clone)]
pub(super) struct MachineMountPaths {
    places: Vec<SandboxMount>,
    /// Mounts for the user's git configuration.
    git_places: Vec<SandboxMount>,
    writable: Vec<PathBuf>,
    /// Paths that the setting `sandbox.read` names.
    readable: Vec<PathBuf>,
    guards: GuardedPaths,
    /// The server's own folders, which are hidden from programs.
    hidden: Vec<PathBuf>,
}

/// The description of one program that decides which files it sees in its sandbox.
pub(super) struct SandboxViewRequest<'i> {
    pub(super) profile: SandboxProfile,
    read_only: bool,
    /// The `.git` folder, if the program is git and may change this folder.
    repository: Option<&'i Path>,
    /// `true` if the program is git, runs no other program, and works with the `.git` folder of the
    /// workspace.
    runs_only_git: bool,
    visible_paths: &'i [PathBuf],
    repository_places: &'i [OutsideRepositoryPath],
    cache_folders: &'i [PathBuf],
}

impl<'i> SandboxViewRequest<'i> {
    /// The request of an ordinary program, which may write the workspace and sees no additional
    /// paths.
    pub(super) const LARGEST: Self = Self {
        profile: SandboxProfile::Workspace,
        read_only: false,
        repository: None,
        runs_only_git: false,
        visible_paths: &[],
        repository_places: &[],
        cache_folders: &[],
    };

    pub(super) fn new(inside: &'i ProgramConfinement) -> Self {
        let ProgramConfinement {
            profile,
            workspace,
            read_only: only_reads,
            git_folder: repository,
            visible_paths,
            repository_places,
            cache_folders,
            cache_sources: _,
            executables: runs,
            hosts: _,
        } = inside;
        let repository = repository.as_deref();
        let is_own = repository == Some(&*guarded_paths::repository_path(workspace.path()));
        let runs_only_git = is_own && runs.is_some();
        Self {
            profile: *profile,
            read_only: *only_reads,
            repository,
            runs_only_git,
            visible_paths,
            repository_places,
            cache_folders,
        }
    }

    /// Returns this request with the additional paths `paths` instead of its own.
    pub(super) fn with_visible_paths(self, paths: &'i [PathBuf]) -> Self {
        Self { visible_paths: paths, ..self }
    }

    fn workspace_access(&self) -> SandboxMountAccess {
        if self.read_only || self.profile == SandboxProfile::ReadOnly {
            SandboxMountAccess::Read
        } else {
            SandboxMountAccess::Write
        }
    }
}

impl MachineMountPaths {
    /// Collects the paths for programs in `workspace`. The programs are looked up in `paths`.
    /// `variable` returns the server's environment variables.
    pub(super) fn detect<'p>(
        settings: &SandboxSettings,
        sandbox_paths: &SandboxPaths,
        workspace: &Path,
        paths: impl IntoIterator<Item = &'p str>,
        variable: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Self {
        let homes = HomeFolders::new(variable);
        let home = homes.home.as_deref();
        let hidden = sandbox_paths.hidden.clone();
        let mut writable = writable_folders(settings, variable);
        writable.retain(|at| !lies_in_hidden(&hidden, at));
        create_hidden_folders(&hidden, &writable);
        let mut readable: Vec<_> =
            settings.read.iter().map(|path| expand_home(path, home)).collect();
        readable.retain(|at| !lies_in_hidden(&hidden, at));
        let written: Vec<_> = writable.iter().cloned().chain([workspace.to_owned()]).collect();
        let mut found = SandboxMountCollector::new(written.clone());
        found.add_system(&homes);
        found.add_toolchains(&homes, paths);
        readable.iter().for_each(|path| found.add(path));
        let mut git = SandboxMountCollector::new(written);
        git.add_git_config(&homes);
        Self {
            places: found.places,
            git_places: git.places,
            writable,
            readable,
            guards: GuardedPaths::new(sandbox_paths, settings.git == GitFolderAccess::Write),
            hidden,
        }
    }

    /// Returns the mounts for a program in `workspace`: those that all programs share, and the
    /// program's own. Both lists are in the order of mounting.
    pub(super) fn view(
        &self,
        workspace: &Path,
        wanted: &SandboxViewRequest<'_>,
    ) -> (Vec<SandboxMount>, Vec<SandboxMount>) {
        let mut base = Vec::new();
        let mut own = Vec::new();
        let mut owned: Vec<SlashTerminatedPath> = Vec::new();
        for PlannedMount { path: spelled, place, is_common } in
            self.planned_places(workspace, wanted)
        {
            if is_common && !owned.iter().any(|around| spelled.lies_in(around)) {
                base.push(place);
            } else {
                owned.push(spelled);
                own.push(place);
            }
        }
        (base, own)
    }

    /// Returns all mounts for a program in `workspace` that `wanted` describes, parents first.
    fn planned_places(
        &self,
        workspace: &Path,
        wanted: &SandboxViewRequest<'_>,
    ) -> Vec<PlannedMount> {
        let how = wanted.workspace_access();
        let git = if wanted.repository.is_some() { &self.git_places[..] } else { &[] };
        let writable = self.writable.iter().chain(wanted.cache_folders);
        let write = writable.map(|at| SandboxMount::SamePath { at: at.into(), how });
        let seen = wanted
            .visible_paths
            .iter()
            .map(|at| SandboxMount::SamePath { at: at.into(), how: SandboxMountAccess::Read });
        let outside = wanted.repository_places.iter().map(|part| SandboxMount::SamePath {
            at: (&part.path).into(),
            how: if part.is_writable { how } else { SandboxMountAccess::Read },
        });
        let made = |place: SandboxMount, is_common| {
            let spelled = SlashTerminatedPath::new(place.path(workspace));
            PlannedMount { path: spelled, place, is_common }
        };
        let common = self.places.iter().cloned().map(|place| {
            let is_common = !matches!(place, SandboxMount::EmptyFolder { .. });
            made(place, is_common)
        });
        let mut places: Vec<_> = common.collect();
        let own = |place| made(place, false);
        places.extend(git.iter().cloned().chain(write).chain(seen).chain(outside).map(own));
        // Entries of the workspace are visible through the workspace.
        let around = SlashTerminatedPath::new(workspace);
        places.retain(|it| !it.path.lies_in(&around));
        places.push(own(SandboxMount::Workspace { how }));
        if how == SandboxMountAccess::Write {
            let brings = self.guards.allows_git_settings(wanted.runs_only_git);
            let guarded = self.guards.places(workspace, wanted.repository, brings);
            places.extend(guarded.into_iter().map(own));
        }
        let hidden = self.hidden_mounts(workspace, &places);
        places.extend(hidden.into_iter().map(own));
        // Parents come first. Of two entries at one place, the later one hides the other.
        places.sort_by_key(|it| it.path.depth());
        let mut made: Vec<PlannedMount> = Vec::with_capacity(places.len());
        for place in places {
            if !is_covered_by(&made, &place) {
                made.push(place);
            }
        }
        made
    }

    /// Returns the mounts that hide the server's own folders where the mounts `places` of a program
    /// in `workspace` would show them. Paths inside these folders that the server adds stay
    /// visible, because they are mounted later.
    fn hidden_mounts(&self, workspace: &Path, places: &[PlannedMount]) -> Vec<SandboxMount> {
        let empty =
            |at: &Path| SandboxMount::EmptyFolder { at: at.into(), bytes: 4096, mode: 0o555 };
        let fixed = |at: &Path| SandboxMount::FixedFolder { at: at.into() };
        let hidden: Vec<_> = self.hidden.iter().filter(|at| at.is_dir()).collect();
        let mut mounts = Vec::new();
        for PlannedMount { place, .. } in places {
            if !matches!(place, SandboxMount::SamePath { .. } | SandboxMount::Workspace { .. }) {
                continue;
            }
            let at = place.path(workspace);
            // A path of the settings may be a symlink to a folder around a hidden one.
            let is_configured = self.writable.iter().chain(&self.readable).any(|it| it == at);
            let real = if is_configured { fs::canonicalize(at).ok() } else { None };
            for folder in &hidden {
                let mut around = [Some(at), real.as_deref()].into_iter().flatten();
                let rest = around.find_map(|around| folder.strip_prefix(around).ok());
                let Some(rest) = rest else { continue };
                if rest.as_os_str().is_empty() {
                    mounts.push(empty(at));
                    continue;
                }
                let seen = at.join(rest);
                // An empty folder around it, such as the home, hides it already.
                let over = places.iter().filter(|it| seen.starts_with(it.place.path(workspace)));
                match over.max_by_key(|it| it.path.depth()).map(|it| &it.place) {
                    Some(SandboxMount::EmptyFolder { at: over, .. }) => {
                        mounts.extend(with_fixed_parents(at, &[over.path().to_owned()], fixed));
                    }
                    _ => mounts.extend(with_fixed_parents(at, &[seen], empty)),
                }
            }
        }
        mounts
    }

    /// Returns `true` if a program in `workspace` that `wanted` describes sees the file with the
    /// path `named` and the real path `real`.
    pub(super) fn shows_path(
        &self,
        workspace: &Path,
        wanted: &SandboxViewRequest<'_>,
        named: &Path,
        real: &Path,
    ) -> bool {
        // The name alone counts only if it has no `..`, and if no program could have put a symlink
        // into it.
        let turns_back = named.components().any(|it| it == Component::ParentDir);
        let is_called = |at: &Path| !turns_back && named.starts_with(at);
        let places = self.planned_places(workspace, wanted);
        // A file in a hidden folder is visible only through a mount inside this folder.
        let hidden = self.hidden.iter().find(|hidden| real.starts_with(hidden));
        let mut showing = places
            .iter()
            .filter(|it| hidden.is_none_or(|hidden| it.place.path(workspace).starts_with(hidden)));
        showing.any(|it| match &it.place {
            SandboxMount::Workspace { .. } => real.starts_with(workspace),
            SandboxMount::SamePath { at, how: SandboxMountAccess::Write } => {
                real.starts_with(at.path())
            }
            SandboxMount::SamePath { at, .. } => {
                real.starts_with(at.path()) || is_called(at.path())
            }
            SandboxMount::Symlink { at, .. } => is_called(at.path()),
            SandboxMount::EmptyFolder { .. }
            | SandboxMount::FixedFolder { .. }
            | SandboxMount::ReadOnlyEntry { .. } => false,
        })
    }

    /// Returns `true` if a program that `wanted` describes could create one of the [reserved
    /// names](Self::reserved_names).
    pub(super) fn needs_reservation(&self, wanted: &SandboxViewRequest<'_>) -> bool {
        wanted.workspace_access() == SandboxMountAccess::Write
            && !self.guards.allows_git_settings(wanted.runs_only_git)
    }

    /// Returns the names that no program may create in a workspace.
    pub(super) fn reserved_names(&self) -> impl Iterator<Item = &str> {
        self.guards.reserved_names()
    }
}

/// A mount that is planned for the sandbox of a program.
struct PlannedMount {
    path: SlashTerminatedPath,
    place: SandboxMount,
    /// `true` if all programs of the sandbox see this mount.
    is_common: bool,
}

/// A path as bytes, with one slash after each part. Comparing these bytes is faster than comparing
/// a `Path`, and each program needs many comparisons.
struct SlashTerminatedPath(Vec<u8>);

impl SlashTerminatedPath {
    fn new(path: &Path) -> Self {
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

/// Returns `true` if the mounts in `made` already show the files of `planned`, with the same
/// access.
fn is_covered_by(made: &[PlannedMount], planned: &PlannedMount) -> bool {
    let PlannedMount { path: spelled, place, .. } = planned;
    let around = made.iter().rev().find(|it| spelled.lies_in(&it.path));
    match (around.map(|it| &it.place), place) {
        (
            Some(SandboxMount::SamePath { how: SandboxMountAccess::Read, .. }),
            SandboxMount::SamePath { how: SandboxMountAccess::Read, .. },
        ) => true,
        (Some(one), other) => one == other,
        (None, _) => false,
    }
}

/// Returns `true` if `at` or its real path lies in one of the folders `hidden`.
fn lies_in_hidden(hidden: &[PathBuf], at: &Path) -> bool {
    let real = fs::canonicalize(at).ok();
    let mut paths = [Some(at), real.as_deref()].into_iter().flatten();
    paths.any(|path| hidden.iter().any(|hidden| path.starts_with(hidden)))
}

/// Creates the missing folders of `hidden` that lie in one of the folders `writable`. Otherwise, a
/// program could create them.
fn create_hidden_folders(hidden: &[PathBuf], writable: &[PathBuf]) {
    let real: Vec<_> = writable.iter().filter_map(|at| fs::canonicalize(at).ok()).collect();
    for folder in hidden.iter().filter(|it| real.iter().any(|real| it.starts_with(real))) {
        if let Err(err) = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            tracing::warn!("{} is not hidden from programs: {err}", folder.display());
        }
    }
}

/// Returns the folders outside the workspace that programs may write, as absolute paths.
pub(super) fn writable_folders(
    settings: &SandboxSettings,
    variable: &dyn Fn(&str) -> Option<PathBuf>,
) -> Vec<PathBuf> {
    let homes = HomeFolders::new(variable);
    settings.writable_folders(homes.home.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "/root/src/app";

    fn view(profile: SandboxProfile) -> Vec<SandboxMount> {
        view_of(&SandboxViewRequest { profile, ..SandboxViewRequest::LARGEST })
    }

    fn view_of(wanted: &SandboxViewRequest<'_>) -> Vec<SandboxMount> {
        let settings =
            SandboxSettings { write: vec!["~/shared".to_owned()], ..SandboxSettings::default() };
        let variable = |name: &str| (name == "HOME").then(|| "/root".into());
        let sandbox_paths = SandboxPaths::default();
        let base = MachineMountPaths::detect(
            &settings,
            &sandbox_paths,
            Path::new(WORKSPACE),
            ["/usr/bin"],
            &variable,
        );
        let (all, own) = base.view(Path::new(WORKSPACE), wanted);
        [all, own].concat()
    }

    #[test]
    fn parents_come_first_and_the_workspace_is_mounted_over_an_empty_home() {
        let view = view(SandboxProfile::Workspace);
        let workspace = Path::new(WORKSPACE);
        let position = |path: &str| {
            view.iter().position(|place| place.path(workspace) == Path::new(path)).unwrap()
        };
        assert!(position("/root") < position(WORKSPACE));
        assert!(position("/root") < position("/root/shared"));
        assert!(matches!(view[position("/root")], SandboxMount::EmptyFolder { .. }));
        assert!(matches!(
            view[position(WORKSPACE)],
            SandboxMount::Workspace { how: SandboxMountAccess::Write }
        ));
    }

    #[test]
    fn a_read_only_program_has_no_permanent_writable_place() {
        let lasts = |place: &SandboxMount| {
            matches!(
                place,
                SandboxMount::SamePath { how: SandboxMountAccess::Write, .. }
                    | SandboxMount::Workspace { how: SandboxMountAccess::Write }
            )
        };
        assert!(!view(SandboxProfile::ReadOnly).iter().any(lasts));
        assert!(view(SandboxProfile::Workspace).iter().any(lasts));
    }

    #[test]
    fn only_the_writable_parts_of_a_repository_outside_can_be_changed() {
        let part =
            |path: &str, is_writable| OutsideRepositoryPath { path: path.into(), is_writable };
        let parts = [part("/root/r/.git", true), part("/root/r/.git/config", false)];
        for (read_only, expected) in [
            (false, [SandboxMountAccess::Write, SandboxMountAccess::Read]),
            (true, [SandboxMountAccess::Read, SandboxMountAccess::Read]),
        ] {
            let view = view_of(&SandboxViewRequest {
                read_only,
                repository: Some(Path::new("")),
                repository_places: &parts,
                ..SandboxViewRequest::LARGEST
            });
            for (part, expected) in parts.iter().zip(expected) {
                // A part without a place of its own has the access of the folder around it.
                let around = view.iter().rev().find_map(|place| match place {
                    SandboxMount::SamePath { at, how } if part.path.starts_with(at.path()) => {
                        Some(*how)
                    }
                    _ => None,
                });
                assert_eq!(around, Some(expected), "{part:?}, {read_only}");
            }
        }
    }

    #[test]
    fn the_servers_folders_are_hidden_in_folders_that_programs_may_write_or_read() {
        let home = tempfile::tempdir().expect("a folder");
        let home = home.path().canonicalize().expect("it exists");
        let at = |path: &str| home.join(path);
        let hidden = vec![at("data/state/toolgate"), at("data/cache/toolgate")];
        fs::create_dir_all(at("data/cache/toolgate")).expect("created");
        std::os::unix::fs::symlink(at("data"), at("link")).expect("created");
        let sandbox_paths = SandboxPaths { hidden, ..SandboxPaths::default() };
        let settings = SandboxSettings {
            write: vec!["~/data".to_owned(), "~/data/cache/toolgate/packages".to_owned()],
            read: vec!["~/link".to_owned()],
            ..SandboxSettings::default()
        };
        let variable = |name: &str| (name == "HOME").then(|| home.clone());
        let workspace = Path::new(WORKSPACE);
        let paths = ["/usr/bin"];
        let mounts =
            MachineMountPaths::detect(&settings, &sandbox_paths, workspace, paths, &variable);
        let caches = [at("data/cache/toolgate/packages/one/npm")];
        let wanted = SandboxViewRequest { cache_folders: &caches, ..SandboxViewRequest::LARGEST };
        let (all, own) = mounts.view(workspace, &wanted);
        let view = [all, own].concat();
        let last = |path: &str| {
            let path = at(path);
            let around = view.iter().filter(|place| path.starts_with(place.path(workspace)));
            around.max_by_key(|place| place.path(workspace).components().count())
        };
        for path in [
            "data/state/toolgate/x",
            "data/cache/toolgate/packages/two/npm/x",
            "link/state/toolgate/x",
            "link/cache/toolgate/x",
        ] {
            let place = last(path);
            assert!(matches!(place, Some(SandboxMount::EmptyFolder { .. })), "{path}: {place:?}");
        }
        for (path, is_fixed) in
            [("data/cache", true), ("data/cache/toolgate/packages/one/npm", false)]
        {
            let place = last(path);
            assert_eq!(matches!(place, Some(SandboxMount::FixedFolder { .. })), is_fixed, "{path}");
            let is_same = matches!(place, Some(SandboxMount::SamePath { .. }));
            assert_eq!(is_same, !is_fixed, "{path}: {place:?}");
        }
        let shows = |path: &str| mounts.shows_path(workspace, &wanted, &at(path), &at(path));
        assert!(shows("data/x") && shows("data/cache/toolgate/packages/one/npm/x"));
        assert!(!shows("data/state/toolgate/x") && !shows("data/cache/toolgate/x"));
    }

    #[test]
    fn the_secrets_in_etc_are_not_visible() {
        let secret = ["/etc/shadow", "/etc/ssl/private", "/etc/ssl", "/etc"];
        for place in view(SandboxProfile::Network) {
            let at = place.path(Path::new(WORKSPACE)).to_owned();
            assert!(!secret.contains(&at.to_str().unwrap()), "{at:?}");
        }
    }
}
