//! Confines the programs that tools start: limits the files, processes and networks they reach.
//!
//! The server does not start a confined program directly. It starts itself under another name as a
//! [helper](enter_if_asked). The helper sets up the namespaces and mounts, drops privileges, and
//! then executes the program.

#![allow(
    clippy::disallowed_methods,
    reason = "what a program sees of the machine is this module's to look at"
)]

mod settings;
mod held;
mod view;
mod guards;
mod reserved;
mod orders;
mod ending;
mod standby;
mod layers;
mod groups;
mod calls;
mod plan;
mod step;
mod inside;
mod kernel;
mod ways;
mod confine;
mod outside;
mod own;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobMatcher};
use toolgate_contract::odd_glob;

pub use held::{Held, Lacking, Layer};
pub use own::{Reach, enter as confine_server};
#[cfg(any(fuzzing, test))]
pub(crate) use plan::check as fuzz_plans;
pub use settings::{For, GitFolder, Profile, Require, Settings};

pub(super) use confine::{Around, Start};
pub(crate) use held::Unheld;
pub(crate) use step::{Failed, Step};

use super::Root;
use super::processes::HELPER;
use guards::Guards;
use outside::Outside;
use reserved::Reserved;
pub(super) use reserved::{Leavings, is_reserved};
use standby::Idle;
use ways::Ways;

/// The sandbox for programs. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

struct Shared {
    settings: Settings,
    beside: Beside,
    rules: Vec<(GlobMatcher, Profile)>,
    reserved: Reserved,
    idle: Idle,
    /// A thread that tests this system. `None` if no program is confined.
    outside: Option<Outside>,
    /// The capabilities of this system, tested before the first confined program.
    ways: OnceLock<Result<Ways, String>>,
}

/// The confinement of one program.
pub struct Inside {
    /// The profile that applies.
    pub profile: Profile,
    /// The workspace that the program is confined to.
    pub workspace: Root,
    /// `true` if the program may only read the workspace, even if its profile allows more.
    pub only_reads: bool,
    /// The repository's `.git` folder, if the program is git and may change it.
    pub repository: Option<PathBuf>,
    /// Additional paths that the program can see.
    pub seen: Vec<PathBuf>,
    /// The only files and folders that may be executed. `None` allows everything visible.
    pub runs: Option<Vec<PathBuf>>,
}

/// Paths that the server supplies to the sandbox in addition to the [`Settings`].
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// Values of `PATH` in which programs are looked up.
    pub paths: Vec<String>,
    /// Paths relative to the workspace that no program may change.
    pub guarded: Vec<String>,
    /// The server's own folders, as absolute paths. They are hidden from every program that could
    /// see them.
    pub hidden: Vec<PathBuf>,
}

impl Sandbox {
    /// Creates a disabled sandbox: programs run with the server's rights.
    pub fn none() -> Self {
        let settings = Settings { profile: Profile::Off, ..Settings::default() };
        Self::by(settings, Beside::default(), Vec::new(), None)
    }

    /// Creates the sandbox that `settings` describe. The executable must call [`enter_if_asked`]
    /// first in `main`.
    ///
    /// # Errors
    /// If the settings are invalid, or no thread can be started.
    pub fn new(settings: &Settings, beside: Beside) -> Result<Self, String> {
        settings.check()?;
        let rules = settings.rules.iter().map(|rule| {
            let odd = |why: String| {
                format!("`{}` in sandbox.for is no pattern of tools: {why}", rule.tools)
            };
            if let Some(why) = odd_glob(&rule.tools) {
                return Err(odd(why));
            }
            let pattern = Glob::new(&rule.tools).map_err(|err| odd(err.to_string()))?;
            Ok((pattern.compile_matcher(), rule.profile))
        });
        let rules = rules.collect::<Result<_, String>>()?;
        let outside = Outside::start().map_err(|err| err.to_string())?;
        Ok(Self::by(settings.clone(), beside, rules, Some(outside)))
    }

    /// Returns the confinement of a program of `tool` in `workspace`. `None` if it is unconfined.
    ///
    /// The first matching rule decides. Without a rule, a tool that `only_reads` may not write
    /// under the `workspace` profile.
    pub fn inside(&self, tool: &str, only_reads: bool, workspace: &Root) -> Option<Inside> {
        let rule = self.0.rules.iter().find(|(pattern, _)| pattern.is_match(tool));
        let (profile, only_reads) = match (rule, self.0.settings.profile) {
            (Some((_, profile)), _) => (*profile, false),
            (None, Profile::Workspace) if only_reads => (Profile::ReadOnly, true),
            (None, profile) => (profile, only_reads),
        };
        Self::within(profile, only_reads, workspace)
    }

    /// Returns the confinement of a program in `workspace` under `profile`. `None` if it is
    /// unconfined.
    pub fn held_by(&self, profile: Profile, workspace: &Root) -> Option<Inside> {
        Self::within(profile, false, workspace)
    }

    fn within(profile: Profile, only_reads: bool, workspace: &Root) -> Option<Inside> {
        let inside = Inside {
            profile,
            workspace: workspace.clone(),
            only_reads,
            repository: None,
            seen: Vec::new(),
            runs: None,
        };
        (profile != Profile::Off).then_some(inside)
    }

    /// Returns the layers of `profile` that are in force for programs in `workspace`. `variables`
    /// is the server's environment.
    ///
    /// # Errors
    /// If nothing can be confined on this system.
    pub fn held(
        &self,
        profile: Profile,
        workspace: &Root,
        variables: &BTreeMap<OsString, OsString>,
    ) -> io::Result<Held> {
        match profile {
            Profile::Off => Ok(Held::off()),
            profile => Ok(self.ways(workspace, variables)?.held(profile)),
        }
    }

    /// Ends the idle helpers.
    pub(super) fn close(&self) {
        self.0.idle.close();
    }

    /// Returns the placeholders that killed servers may have left in the folder `workspace`.
    ///
    /// # Errors
    /// If there is no such folder.
    pub(super) fn leavings(&self, workspace: &Path) -> io::Result<Leavings> {
        // An earlier server may have protected more than this one, so all names are checked.
        let guards = Guards::of(&self.0.beside.guarded, false);
        Leavings::of(workspace, guards.reserved())
    }

    fn by(
        settings: Settings,
        beside: Beside,
        rules: Vec<(GlobMatcher, Profile)>,
        outside: Option<Outside>,
    ) -> Self {
        let reserved = Reserved::default();
        let idle = Idle::default();
        let ways = OnceLock::new();
        Self(Arc::new(Shared { settings, beside, rules, reserved, idle, outside, ways }))
    }
}

/// Runs the sandbox helper if this process was started as one, and never returns in that case. Call
/// it first in `main`.
pub fn enter_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER) {
        inside::enter();
    }
}
