//! Skills of an upstream, listed as it lists them and validated when they are read.

mod skill_checks;
mod skill_index;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use toolgate_contract::{
    BoxFuture, Skill, SkillSource, ToolContext, ToolError, ToolSpec, UriClaim,
};

use crate::resources::UpstreamResources;

pub(crate) use skill_index::{SkillIndex, is_normal_form};

/// Most fetched skills that are remembered.
const FETCHED_MAX: usize = 64;

impl SkillSource for UpstreamResources {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn claim(&self, uri: &str) -> Option<UriClaim> {
        let shelved = self.upstream.skill_index();
        let listing = self.upstream.listing();
        // An upstream need not list all its skills.
        let may = listing.has_skills && is_normal_form(uri) && shelved.may_have(uri);
        let claim = match shelved.skill(uri) {
            Some(_) => Some(UriClaim::Listed),
            None => may.then_some(UriClaim::Scheme),
        };
        claim.filter(|_| !self.is_own(uri))
    }

    fn all<'a>(&'a self, _ctx: &'a ToolContext) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>> {
        Box::pin(async move {
            self.upstream.wait_listed().await;
            let shelved = self.upstream.skill_index();
            let all = shelved.all.iter().filter(|one| !self.is_own(&one.uri));
            Ok(all.cloned().collect())
        })
    }

    fn get<'a>(
        &'a self,
        ctx: &'a ToolContext,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>> {
        Box::pin(async move {
            match self.upstream.skill_index().skill(uri) {
                Some(skill) => Ok(Some(skill.clone())),
                None => self.upstream.fetch_skill(ctx, uri).await,
            }
        })
    }
}

/// The skills that were fetched last. They cover skills that are not listed, and newer versions of
/// listed ones.
#[derive(Default)]
pub(crate) struct FetchedSkills(Mutex<VecDeque<Skill>>);

impl FetchedSkills {
    fn remember(&self, skill: Skill) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.uri != skill.uri);
        all.push_back(skill);
        if all.len() > FETCHED_MAX {
            all.pop_front();
        }
    }

    /// Returns the skill whose folder contains `uri`.
    fn skill_of(&self, uri: &str) -> Option<Skill> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().filter(|skill| skill_index::is_in_folder(skill, uri));
        found.max_by_key(|skill| skill.uri.len()).cloned()
    }
}
