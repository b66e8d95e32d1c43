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
mod layers;
mod groups;
mod calls;
mod plan;
mod step;
mod inside;
mod kernel;
mod confine;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobMatcher};

pub use held::{Held, Lacking, Layer};
pub use settings::{For, GitFolder, Profile, Require, Settings};

pub(super) use confine::{Around, Confined, Start};
pub(crate) use held::Unheld;
pub(crate) use step::{Failed, Step};

use super::Root;
use super::processes::HELPER;
use confine::Ways;

/// How programs are confined. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

struct Shared {
    settings: Settings,
    rules: Vec<(GlobMatcher, Profile)>,
    helper: PathBuf,
    /// What this system has, once the first program is to be confined.
    ways: OnceLock<Result<Ways, String>>,
}

/// How one program is confined, and around what.
pub struct Inside {
    /// What it may do.
    pub profile: Profile,
    /// The workspace it is confined to.
    pub workspace: Root,
    /// The tool whose program it is.
    pub tool: Arc<str>,
}

impl Sandbox {
    /// No sandbox: programs run as the server does.
    pub fn none() -> Self {
        let settings = Settings { profile: Profile::Off, ..Settings::default() };
        Self::by("/proc/self/exe".into(), settings, Vec::new())
    }

    /// The sandbox that `settings` ask for, in a program that calls [`enter_if_asked`].
    ///
    /// # Errors
    /// When the settings are not sound.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        Self::with_helper("/proc/self/exe".into(), settings)
    }

    /// The same with another program that calls [`enter_if_asked`], for one that does not.
    ///
    /// # Errors
    /// As [`new`](Self::new)'s.
    pub fn with_helper(helper: PathBuf, settings: &Settings) -> Result<Self, String> {
        settings.check()?;
        let rules = settings.rules.iter().map(|rule| {
            let pattern = Glob::new(&rule.tools).map_err(|err| {
                format!("`{}` in sandbox.for is no pattern of tools: {err}", rule.tools)
            })?;
            Ok((pattern.compile_matcher(), rule.profile))
        });
        let rules = rules.collect::<Result<_, String>>()?;
        Ok(Self::by(helper, settings.clone(), rules))
    }

    /// What the programs of `tool` may do.
    pub fn profile(&self, tool: &str) -> Profile {
        let rule = self.0.rules.iter().find(|(pattern, _)| pattern.is_match(tool));
        rule.map_or(self.0.settings.profile, |(_, profile)| *profile)
    }

    /// How a program of `tool` is confined to `workspace`, if it is.
    pub fn inside(&self, tool: &Arc<str>, workspace: &Root) -> Option<Inside> {
        match self.profile(tool) {
            Profile::Off => None,
            profile => Some(Inside { profile, workspace: workspace.clone(), tool: tool.clone() }),
        }
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

    fn by(helper: PathBuf, settings: Settings, rules: Vec<(GlobMatcher, Profile)>) -> Self {
        Self(Arc::new(Shared { settings, rules, helper, ways: OnceLock::new() }))
    }
}

/// Becomes the program that a server confines, if this process was started for that, and never
/// returns then. To be called before anything else in `main`.
pub fn enter_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER) {
        inside::enter();
    }
}
