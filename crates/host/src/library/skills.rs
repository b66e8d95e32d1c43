//! Lists and reads skills over all sources.

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{CallError, HostAnswer, Skill, SkillPage, SkillSource, ToolSpec, UriClaim};

use super::{LibraryReader, SourceResults, truncate_uri};
use crate::pipeline::confirm;
use crate::pipeline::run_unrecorded;

impl LibraryReader<'_> {
    /// Refreshes this server's own sources for any caller, so that no upstream can claim their
    /// URIs.
    pub(super) async fn refresh_own_sources(&self) -> Result<(), CallError> {
        let own = &self.gate.library.resources;
        for source in own {
            let stand = self.shared_look_context(own.len());
            run_unrecorded(self.gate, &stand, async { source.refresh(&stand.ctx).await }).await?;
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
        let mut heard = SourceResults::default();
        let mut others = gate.library.dynamic_skills();
        if !others.is_empty() && heard.accept("skills", self.refresh_own_sources().await).is_none()
        {
            // A skill of an upstream could be mistaken for one of this server.
            others.clear();
        }
        let all = gate.library.skills.iter().cloned().chain(others);
        let sources: Vec<_> = all.filter(|source| self.shows_skills(&**source)).collect();
        let mut all: Vec<(Option<&ToolSpec>, Skill)> = Vec::new();
        for source in &sources {
            let stand = self.shared_look_context(sources.len());
            let said = run_unrecorded(gate, &stand, async { source.all(&stand.ctx).await }).await;
            self.check_cancelled()?;
            let name = source.guard().map_or("skills", |guard| guard.id.as_str());
            let said = heard.accept(name, said).unwrap_or_default();
            all.extend(said.into_iter().map(|skill| (source.guard(), skill)));
        }
        heard.into_result()?;
        // The sort is stable: of two skills with one URI, the first source's skill remains.
        all.sort_by(|(_, a), (_, b)| a.uri.cmp(&b.uri));
        all.dedup_by(|(_, a), (_, b)| a.uri == b.uri);
        all.retain(|(guard, skill)| self.may_see_skill(*guard, &skill.uri));
        let all = all.into_iter().map(|(_, skill)| skill);
        let mut rest = all.filter(|one| after.as_ref().is_none_or(|a| one.uri > *a));
        let mut skills: Vec<_> = rest.by_ref().take(size).collect();
        let next = skills.last().filter(|_| rest.next().is_some()).map(|last| last.uri.clone());
        skills.iter_mut().for_each(|skill| gate.secrets.redact_value(skill));
        Ok(HostAnswer::Skills(SkillPage { skills, next }))
    }

    pub(crate) async fn get_skill(self, uri: &str) -> Result<HostAnswer, CallError> {
        let gate = self.gate;
        let others = gate.library.dynamic_skills();
        if !others.is_empty() {
            self.refresh_own_sources().await?;
        }
        let all = gate.library.skills.iter().cloned().chain(others);
        let claims = |source: Arc<dyn SkillSource>| Some((source.claim(uri)?, source));
        let mut sources: Vec<_> =
            all.filter(|source| self.shows_skills(&**source)).filter_map(claims).collect();
        // The sort is stable: among equal claims, the first source is asked first.
        sources.sort_by_key(|(claim, _)| *claim);
        let mut failed = None;
        for (claim, source) in &sources {
            if let Some(guard) = source.guard() {
                let asked = json!({ "uri": uri });
                let permit = gate.policy.authorise_guarded(&self.call.caller, guard, &asked)?;
                confirm::confirm_if_required(gate, guard, &self.call, &asked, &permit).await?;
            }
            let stand = self.shared_look_context(sources.len());
            let said =
                run_unrecorded(gate, &stand, async { source.get(&stand.ctx, uri).await }).await;
            self.check_cancelled()?;
            match said {
                Ok(Some(mut skill)) => {
                    gate.secrets.redact_value(&mut skill);
                    return Ok(HostAnswer::Skill(Box::new(skill)));
                }
                Ok(None) => {}
                Err(err) => failed = failed.or(Some(err)),
            }
            // This source certainly has the skill, so no other is asked.
            if *claim == UriClaim::Listed {
                break;
            }
        }
        let trouble = sources.iter().find_map(|(_, source)| source.unusable_reason(uri));
        let message = trouble.unwrap_or_else(|| format!("no skill is at `{}`", truncate_uri(uri)));
        Err(failed.unwrap_or(CallError::NotFound { message }))
    }
}
