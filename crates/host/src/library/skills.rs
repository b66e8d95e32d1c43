//! Lists and reads skills over all sources.

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{
    CallError, HostAnswer, Skill, SkillPage, SkillSource, ToolSpec, UriClaimStrength,
};

use super::{CallerContentRequest, MultiSourceRequestOutcome, truncate_uri};
use crate::pipeline::confirm;
use crate::pipeline::run_unrecorded;

impl CallerContentRequest<'_> {
    /// Refreshes this server's own sources for any caller, so that no upstream can claim the URIs
    /// of these sources.
    pub(super) async fn refresh_own_sources(&self) -> Result<(), CallError> {
        let own = &self.gate.library.resources;
        for source in own {
            let context = self.shared_look_context(own.len());
            let refreshing = async { source.refresh(&context.ctx).await };
            run_unrecorded(self.gate, &context, refreshing).await?;
        }
        Ok(())
    }

    fn shows_skills(&self, source: &dyn SkillSource) -> bool {
        let shows = |guard: &ToolSpec| self.gate.policy.shows(&self.call.caller, guard);
        source.guard().is_none_or(shows)
    }

    /// Returns true if the caller may see the skill at `uri` without a confirmation.
    fn may_see_skill(&self, guard: Option<&ToolSpec>, uri: &str) -> bool {
        let policy = &self.gate.policy;
        let caller = &self.call.caller;
        let may = |guard| policy.authorise_guarded(caller, guard, &json!({ "uri": uri })).is_ok();
        guard.is_none_or(may)
    }

    pub(crate) async fn list_skills(self, after: Option<String>) -> Result<HostAnswer, CallError> {
        let gate = self.gate;
        let size = self.gate.settings.page_size;
        let mut results = MultiSourceRequestOutcome::default();
        let mut dynamic = gate.library.dynamic_skills();
        if !dynamic.is_empty()
            && results.accept("skills", self.refresh_own_sources().await).is_none()
        {
            // A skill of an upstream could be mistaken for one of this server.
            dynamic.clear();
        }
        let sources = gate.library.skills.iter().cloned().chain(dynamic);
        let sources: Vec<_> = sources.filter(|source| self.shows_skills(&**source)).collect();
        let mut all: Vec<(Option<&ToolSpec>, Skill)> = Vec::new();
        for source in &sources {
            let context = self.shared_look_context(sources.len());
            let listing = async { source.all(&context.ctx).await };
            let listed = run_unrecorded(gate, &context, listing).await;
            self.check_cancelled()?;
            let name = source.guard().map_or("skills", |guard| guard.id.as_str());
            let listed = results.accept(name, listed).unwrap_or_default();
            all.extend(listed.into_iter().map(|skill| (source.guard(), skill)));
        }
        results.into_result()?;
        // The sort is stable: of two skills with one URI, the first source's skill remains.
        all.sort_by(|(_, a), (_, b)| a.uri.cmp(&b.uri));
        all.dedup_by(|(_, a), (_, b)| a.uri == b.uri);
        all.retain(|(guard, skill)| self.may_see_skill(*guard, &skill.uri));
        let all = all.into_iter().map(|(_, skill)| skill);
        let mut rest = all.filter(|skill| after.as_ref().is_none_or(|after| skill.uri > *after));
        let mut skills: Vec<_> = rest.by_ref().take(size).collect();
        let next = skills.last().filter(|_| rest.next().is_some()).map(|last| last.uri.clone());
        skills.iter_mut().for_each(|skill| gate.secrets.redact_value(skill));
        Ok(HostAnswer::Skills(SkillPage { skills, next }))
    }

    pub(crate) async fn get_skill(self, uri: &str) -> Result<HostAnswer, CallError> {
        let gate = self.gate;
        let dynamic = gate.library.dynamic_skills();
        if !dynamic.is_empty() {
            self.refresh_own_sources().await?;
        }
        let all = gate.library.skills.iter().cloned().chain(dynamic);
        let with_claim = |source: Arc<dyn SkillSource>| Some((source.claim(uri)?, source));
        let mut sources: Vec<_> =
            all.filter(|source| self.shows_skills(&**source)).filter_map(with_claim).collect();
        // The sort is stable: among equal claims, the first source is asked first.
        sources.sort_by_key(|(claim, _)| *claim);
        let mut failure = None;
        for (claim, source) in &sources {
            // No `look`: a refusal is final, but after a failure the next source is asked.
            if let Some(guard) = source.guard() {
                let input = json!({ "uri": uri });
                let permit = gate.policy.authorise_guarded(&self.call.caller, guard, &input)?;
                confirm::confirm_if_required(gate, guard, &self.call, &input, &permit).await?;
            }
            let context = self.shared_look_context(sources.len());
            let getting = async { source.get(&context.ctx, uri).await };
            let result = run_unrecorded(gate, &context, getting).await;
            self.check_cancelled()?;
            match result {
                Ok(Some(mut skill)) => {
                    gate.secrets.redact_value(&mut skill);
                    return Ok(HostAnswer::Skill(Box::new(skill)));
                }
                Ok(None) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
            // This source certainly has the skill, so no other is asked.
            if *claim == UriClaimStrength::Listed {
                break;
            }
        }
        let reason = sources.iter().find_map(|(_, source)| source.unusable_reason(uri));
        let message = reason.unwrap_or_else(|| format!("no skill is at `{}`", truncate_uri(uri)));
        Err(failure.unwrap_or(CallError::NotFound { message }))
    }
}
