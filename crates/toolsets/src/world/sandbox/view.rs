//! The files that a program sees: system programs, toolchains in its `PATH`, the workspace, and
//! empty folders for temporary files.

mod found;

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

pub(super) use self::found::{ETC, SYSTEM};
use self::found::{Found, Homes};
use super::guards::{self, Guards, held};
use super::plan::{How, Place};
use super::settings::{GitFolder, Profile, Settings};
use super::{Beside, Inside};

/// The relevant paths of this machine, collected once.
#[derive(Debug, Clone)]
pub(super) struct Base {
    places: Vec<Place>,
    /// The user's git configuration.
    git: Vec<Place>,
    write: Vec<PathBuf>,
    guards: Guards,
    /// The server's own folders.
    hidden: Vec<PathBuf>,
}

/// The view that one program needs.
pub(super) struct Wanted<'i> {
    pub(super) profile: Profile,
    only_reads: bool,
    /// The repository's folder that the program, git, may change.
    repository: Option<&'i Path>,
    /// `true` if git runs no other program and the repository is the workspace's own.
    is_plain: bool,
    seen: &'i [PathBuf],
}

impl<'i> Wanted<'i> {
    /// The largest view that a program can have.
    pub(super) const ALL: Self = Self {
        profile: Profile::Workspace,
        only_reads: false,
        repository: None,
        is_plain: false,
        seen: &[],
    };

    pub(super) fn of(inside: &'i Inside) -> Self {
        let Inside { profile, workspace, only_reads, repository, seen, runs } = inside;
        let repository = repository.as_deref();
        let is_own = repository == Some(&*guards::top(workspace.path()));
        let is_plain = is_own && runs.is_some();
        Self { profile: *profile, only_reads: *only_reads, repository, is_plain, seen }
    }

    fn how(&self) -> How {
        if self.only_reads || self.profile == Profile::ReadOnly { How::Read } else { How::Write }
    }
}

impl Base {
    /// Collects the paths for programs in `workspace` that are looked up in `paths`. `variable`
    /// returns the server's environment variables.
    pub(super) fn look<'p>(
        settings: &Settings,
        beside: &Beside,
        workspace: &Path,
        paths: impl IntoIterator<Item = &'p str>,
        variable: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Self {
        let homes = Homes::of(variable);
        let home = homes.home.as_deref();
        let write: Vec<_> = settings.write.iter().map(|path| expanded(path, home)).collect();
        let written: Vec<_> = write.iter().cloned().chain([workspace.to_owned()]).collect();
        let mut found = Found::none(written.clone());
        found.system(&homes);
        found.toolchains(&homes, paths);
        settings.read.iter().for_each(|path| found.named(&expanded(path, home)));
        let mut git = Found::none(written);
        git.git(&homes);
        Self {
            places: found.places,
            git: git.places,
            write,
            guards: Guards::of(&beside.guarded, settings.git == GitFolder::Write),
            hidden: beside.hidden.clone(),
        }
    }

    /// Returns the view of a program in `workspace`: the places that all programs share, and its
    /// own. Both are in the order of mounting.
    pub(super) fn view(&self, workspace: &Path, wanted: &Wanted<'_>) -> (Vec<Place>, Vec<Place>) {
        let mut base = Vec::new();
        let mut own = Vec::new();
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

    /// Returns all places that a program in `workspace` sees, parents first.
    fn made(&self, workspace: &Path, wanted: &Wanted<'_>) -> Vec<Made> {
        let how = wanted.how();
        let git = if wanted.repository.is_some() { &self.git[..] } else { &[] };
        let write = self.write.iter().map(|at| Place::Same { at: at.into(), how });
        let seen = wanted.seen.iter().map(|at| Place::Same { at: at.into(), how: How::Read });
        let made = |place: Place, is_common| {
            let spelled = Spelled::of(place.at(workspace));
            Made { spelled, place, is_common }
        };
        let common = self.places.iter().cloned().map(|place| {
            let is_common = !matches!(place, Place::Fresh { .. });
            made(place, is_common)
        });
        let mut places: Vec<_> = common.collect();
        let own = |place| made(place, false);
        places.extend(git.iter().cloned().chain(write).chain(seen).map(own));
        // Entries of the workspace are visible through the workspace.
        let around = Spelled::of(workspace);
        places.retain(|it| !it.spelled.lies_in(&around));
        places.push(own(Place::Workspace { how }));
        if how == How::Write {
            let brings = self.guards.lets_git_bring(wanted.is_plain);
            let guarded = self.guards.places(workspace, wanted.repository, brings);
            places.extend(guarded.into_iter().map(own));
        }
        let hidden = self.hidden.iter().filter(|at| at.starts_with(workspace) && at.is_dir());
        let hidden: Vec<_> = hidden.cloned().collect();
        let empty = |at: &Path| Place::Fresh { at: at.into(), bytes: 4096, mode: 0o555 };
        places.extend(held(workspace, &hidden, empty).into_iter().map(own));
        // Parents come first. Of two entries at one place, the later one hides the other.
        places.sort_by_key(|it| it.spelled.depth());
        let mut made: Vec<Made> = Vec::with_capacity(places.len());
        for place in places {
            if !is_seen_by(&made, &place) {
                made.push(place);
            }
        }
        made
    }

    /// Returns `true` if a program in `workspace` sees the file with the path `named` and the real
    /// path `real`.
    pub(super) fn shows(
        &self,
        workspace: &Path,
        wanted: &Wanted<'_>,
        named: &Path,
        real: &Path,
    ) -> bool {
        // The name alone counts only if it has no `..`, and if no program could have put a symlink
        // into it.
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

    /// Returns `true` if a program with the view `wanted` could create names that must stay free.
    pub(super) fn reserves(&self, wanted: &Wanted<'_>) -> bool {
        wanted.how() == How::Write && !self.guards.lets_git_bring(wanted.is_plain)
    }

    /// Returns the names that no program may create in a workspace.
    pub(super) fn reserved(&self) -> impl Iterator<Item = &str> {
        self.guards.reserved()
    }
}

/// A place of a view.
struct Made {
    spelled: Spelled,
    place: Place,
    /// `true` if all programs see it.
    is_common: bool,
}

/// A path as bytes with one slash after each part. It is quicker to compare than a `Path`, and each
/// program needs many comparisons.
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

/// Returns `true` if the places in `made` already show this place with the same access.
fn is_seen_by(made: &[Made], Made { spelled, place, .. }: &Made) -> bool {
    let around = made.iter().rev().find(|it| spelled.lies_in(&it.spelled));
    match (around.map(|it| &it.place), place) {
        (Some(Place::Same { how: How::Read, .. }), Place::Same { how: How::Read, .. }) => true,
        (Some(one), other) => one == other,
        (None, _) => false,
    }
}

/// Expands a leading `~/` in `path` to `home`.
pub(super) fn expanded(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "/root/src/app";

    fn view(profile: Profile) -> Vec<Place> {
        let settings = Settings { write: vec!["~/shared".to_owned()], ..Settings::default() };
        let variable = |name: &str| (name == "HOME").then(|| "/root".into());
        let beside = Beside::default();
        let base = Base::look(&settings, &beside, Path::new(WORKSPACE), ["/usr/bin"], &variable);
        let (all, own) = base.view(Path::new(WORKSPACE), &Wanted { profile, ..Wanted::ALL });
        [all, own].concat()
    }

    #[test]
    fn what_is_around_comes_first_and_the_workspace_lies_over_an_empty_home() {
        let view = view(Profile::Workspace);
        let workspace = Path::new(WORKSPACE);
        let position = |path: &str| {
            view.iter().position(|place| place.at(workspace) == Path::new(path)).unwrap()
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
            let at = place.at(Path::new(WORKSPACE)).to_owned();
            assert!(!secret.contains(&at.to_str().unwrap()), "{at:?}");
        }
    }
}
