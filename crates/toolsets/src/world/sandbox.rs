//! What the programs that tools start can see, write and reach.
//!
//! A program that is confined is not started by the server: the server starts itself under
//! another name, and that [helper](enter_if_asked) makes the program's surroundings, gives up
//! what the program must not have, and only then becomes it.

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

/// How programs are confined. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

struct Shared {
    settings: Settings,
    beside: Beside,
    rules: Vec<(GlobMatcher, Profile)>,
    reserved: Reserved,
    idle: Idle,
    /// Where that is looked for; nowhere where no program is confined.
    outside: Option<Outside>,
    /// What this system has, once the first program is to be confined.
    ways: OnceLock<Result<Ways, String>>,
}

/// How one program is confined, and around what.
pub struct Inside {
    /// What it may do.
    pub profile: Profile,
    /// The workspace it is confined to.
    pub workspace: Root,
    /// Whether it only reads that, whatever the profile.
    pub only_reads: bool,
    /// The folder of the repository that it is git's own part to change.
    pub repository: Option<PathBuf>,
    /// What it sees beside what all see.
    pub seen: Vec<PathBuf>,
    /// The files, and folders of them, that alone may be run; `None` for all that it sees.
    pub runs: Option<Vec<PathBuf>>,
}

/// What else is said of programs than the [`Settings`] of the sandbox, by who serves a workspace.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// Values of `PATH` that programs are given or sought in.
    pub paths: Vec<String>,
    /// What of the workspace no program may change, relative to it.
    pub guarded: Vec<String>,
    /// Folders of the server's own that no program sees, absolute; they matter where they lie in
    /// what is seen.
    pub hidden: Vec<PathBuf>,
}

impl Sandbox {
    /// No sandbox: programs run as the server does.
    pub fn none() -> Self {
        let settings = Settings { profile: Profile::Off, ..Settings::default() };
        Self::by(settings, Beside::default(), Vec::new(), None)
    }

    /// The sandbox that `settings` ask for, and what is said `beside`, in a program that calls
    /// [`enter_if_asked`].
    ///
    /// # Errors
    /// When the settings are not sound, or there is no thread to spare.
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

    /// How a program of `tool`, which `only_reads` or not, is confined to `workspace`, if it is.
    ///
    /// What a rule says of the tool is taken as it is; by default nothing is written by what only
    /// reads.
    pub fn inside(&self, tool: &str, only_reads: bool, workspace: &Root) -> Option<Inside> {
        let rule = self.0.rules.iter().find(|(pattern, _)| pattern.is_match(tool));
        let (profile, only_reads) = match (rule, self.0.settings.profile) {
            (Some((_, profile)), _) => (*profile, false),
            (None, Profile::Workspace) if only_reads => (Profile::ReadOnly, true),
            (None, profile) => (profile, only_reads),
        };
        Self::within(profile, only_reads, workspace)
    }

    /// How a program is confined to `workspace` by `profile`, if it is.
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

    /// What is held of `profile` for programs in `workspace`, by a server with the environment
    /// `variables`.
    ///
    /// # Errors
    /// When nothing can be confined here.
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

    /// Ends the helpers that stand by.
    pub(super) fn close(&self) {
        self.0.idle.close();
    }

    /// What servers that were killed may have left in the folder `workspace`.
    ///
    /// # Errors
    /// When there is no such folder.
    pub(super) fn leavings(&self, workspace: &Path) -> io::Result<Leavings> {
        // Whatever holds now: another time programs may have been kept from more.
        let guards = Guards::of(&self.0.beside.guarded, false);
        Leavings::of(workspace, guards.reserved())
    }

    fn by(
        settings: Settings,
        beside: Beside,
        rules: Vec<(GlobMatcher, Profile)>,
        outside: Option<Outside>,
    ) -> Self {
        let (reserved, idle, ways) = (Reserved::default(), Idle::default(), OnceLock::new());
        Self(Arc::new(Shared { settings, beside, rules, reserved, idle, outside, ways }))
    }
}

/// Becomes the program that a server confines, if this process was started for that, and never
/// returns then. To be called before anything else in `main`.
pub fn enter_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER) {
        inside::enter();
    }
}
