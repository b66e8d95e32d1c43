//! What the programs that tools start can see, write and reach.
//!
//! A program that is confined is not started by the server: the server starts itself under
//! another name, and that [helper](enter_if_asked) makes the program's surroundings, gives up
//! what the program must not have, and only then becomes it.

mod settings;

use std::sync::Arc;

use globset::{Glob, GlobMatcher};

pub use settings::{For, Profile, Require, Settings};

use super::Root;

/// How programs are confined. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox(Arc<Shared>);

struct Shared {
    settings: Settings,
    rules: Vec<(GlobMatcher, Profile)>,
}

/// How one program is confined, and around what.
pub struct Inside {
    /// What it may do.
    pub profile: Profile,
    /// The workspace it is confined to.
    pub workspace: Root,
}

impl Sandbox {
    /// No sandbox: programs run as the server does.
    pub fn none() -> Self {
        let settings = Settings { profile: Profile::Off, ..Settings::default() };
        Self(Arc::new(Shared { settings, rules: Vec::new() }))
    }

    /// The sandbox that `settings` ask for.
    ///
    /// # Errors
    /// When a rule of theirs is no pattern of tools.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        if settings.profile != Profile::Off || !settings.rules.is_empty() {
            return Err(
                "programs cannot be confined in this version: leave `sandbox` out".to_owned()
            );
        }
        let rules = settings.rules.iter().map(|rule| {
            let pattern = Glob::new(&rule.tools).map_err(|err| {
                format!("`{}` in sandbox.for is no pattern of tools: {err}", rule.tools)
            })?;
            Ok((pattern.compile_matcher(), rule.profile))
        });
        let rules = rules.collect::<Result<_, String>>()?;
        Ok(Self(Arc::new(Shared { settings: settings.clone(), rules })))
    }

    /// What the programs of `tool` may do.
    pub fn profile(&self, tool: &str) -> Profile {
        let rule = self.0.rules.iter().find(|(pattern, _)| pattern.is_match(tool));
        rule.map_or(self.0.settings.profile, |(_, profile)| *profile)
    }

    /// How a program of `tool` is confined to `workspace`, if it is.
    pub fn inside(&self, tool: &str, workspace: &Root) -> Option<Inside> {
        match self.profile(tool) {
            Profile::Off => None,
            profile => Some(Inside { profile, workspace: workspace.clone() }),
        }
    }
}

/// Becomes the program that a server confines, if this process was started for that, and never
/// returns then. To be called before anything else in `main`.
pub fn enter_if_asked() {}
