//! Skills of an upstream. They are listed unchanged, and validated when they are read.

mod skill_checks;

use toolgate_contract::{Skill, SkillSource, ToolContext, ToolFuture, ToolSpec, UriClaimStrength};

use crate::listing::skill_index::is_normal_form;
use crate::resources::UpstreamResources;

impl SkillSource for UpstreamResources {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn claim(&self, uri: &str) -> Option<UriClaimStrength> {
        let index = self.upstream.skill_index();
        let listing = self.upstream.listing();
        // An upstream need not list all its skills.
        let may = listing.has_skills && is_normal_form(uri) && index.may_have(uri);
        let claim = match index.skill(uri) {
            Some(_) => Some(UriClaimStrength::Listed),
            None => may.then_some(UriClaimStrength::Scheme),
        };
        claim.filter(|_| !self.is_own(uri))
    }

    fn all<'a>(&'a self, _ctx: &'a ToolContext) -> ToolFuture<'a, Vec<Skill>> {
        Box::pin(async move {
            self.upstream.wait_listed().await;
            let index = self.upstream.skill_index();
            let all = index.all.iter().filter(|one| !self.is_own(&one.uri));
            Ok(all.cloned().collect())
        })
    }

    fn get<'a>(&'a self, ctx: &'a ToolContext, uri: &'a str) -> ToolFuture<'a, Option<Skill>> {
        Box::pin(async move {
            match self.upstream.skill_index().skill(uri) {
                Some(skill) => Ok(Some(skill.clone())),
                None => self.upstream.fetch_skill(ctx, uri).await,
            }
        })
    }
}
