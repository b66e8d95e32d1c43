//! Skills of an upstream, listed as it lists them and validated when they are read.

mod held;
mod shelved;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use toolgate_contract::{BoxFuture, Claim, Ctx, Skill, Skills, ToolError, ToolSpec};

use crate::resources::Source;

pub(crate) use shelved::{Shelved, is_plain};

/// Most fetched skills that are remembered.
const GOT_MAX: usize = 64;

impl Skills for Source {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn claims(&self, uri: &str) -> Option<Claim> {
        let shelved = self.upstream.shelved();
        let listing = self.upstream.listing();
        // An upstream need not list all its skills.
        let may = listing.has_skills && is_plain(uri) && shelved.may_have(uri);
        let claim = match shelved.skill(uri) {
            Some(_) => Some(Claim::Listed),
            None => may.then_some(Claim::Scheme),
        };
        claim.filter(|_| !self.is_own(uri))
    }

    fn all<'a>(&'a self, _ctx: &'a Ctx) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>> {
        Box::pin(async move {
            self.upstream.is_listed().await;
            let shelved = self.upstream.shelved();
            let all = shelved.all.iter().filter(|one| !self.is_own(&one.uri));
            Ok(all.cloned().collect())
        })
    }

    fn get<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>> {
        Box::pin(async move {
            match self.upstream.shelved().skill(uri) {
                Some(skill) => Ok(Some(skill.clone())),
                None => self.upstream.skill(ctx, uri).await,
            }
        })
    }
}

/// The skills that were fetched last. They cover skills that are not listed, and newer versions of
/// listed ones.
#[derive(Default)]
pub(crate) struct Got(Mutex<VecDeque<Skill>>);

impl Got {
    fn put(&self, skill: Skill) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.uri != skill.uri);
        all.push_back(skill);
        if all.len() > GOT_MAX {
            all.pop_front();
        }
    }

    /// Returns the skill whose folder contains `uri`.
    fn skill_of(&self, uri: &str) -> Option<Skill> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().filter(|skill| shelved::is_in_folder(skill, uri));
        found.max_by_key(|skill| skill.uri.len()).cloned()
    }
}
