//! Lists and reads skills over all sources.

use std::sync::Arc;

use serde_json::json;
use toolgate_contract::{Answer, CallError, Claim, Skill, SkillPage, Skills, ToolSpec};

use super::{Heard, Reader, shortened};
use crate::confirm;
use crate::pipeline::looked;

impl Reader<'_> {
    /// Refreshes this server's own sources for any caller, so that no upstream can claim their
    /// URIs.
    pub(super) async fn look_at_own(&self) -> Result<(), CallError> {
        let own = &self.gate.library.resources;
        for source in own {
            let stand = self.looking_as_one_of(own.len());
            looked(self.gate, &stand, async { source.look(&stand.ctx).await }).await?;
        }
        Ok(())
    }

    fn shows_skills(&self, source: &dyn Skills) -> bool {
        let shows = |guard: &ToolSpec| self.gate.policy.shows(&self.call.caller, guard);
        source.guard().is_none_or(shows)
    }

    /// Returns true if the caller may see the skill at `uri` without a confirmation.
    fn may_see(&self, guard: Option<&ToolSpec>, uri: &str) -> bool {
        let policy = &self.gate.policy;
        let caller = &self.call.caller;
        let may = |guard| policy.authorise_beside(caller, guard, &json!({ "uri": uri })).is_ok();
        guard.is_none_or(may)
    }

    pub(crate) async fn list_skills(self, after: Option<String>) -> Result<Answer, CallError> {
        let gate = self.gate;
        let size = self.gate.settings.page_size;
        let mut heard = Heard::default();
        let mut others = gate.library.other_skills();
        if !others.is_empty() && heard.take("skills", self.look_at_own().await).is_none() {
            // A skill of an upstream could be mistaken for one of this server.
            others.clear();
        }
        let all = gate.library.skills.iter().cloned().chain(others);
        let sources: Vec<_> = all.filter(|source| self.shows_skills(&**source)).collect();
        let mut all: Vec<(Option<&ToolSpec>, Skill)> = Vec::new();
        for source in &sources {
            let stand = self.looking_as_one_of(sources.len());
            let said = looked(gate, &stand, async { source.all(&stand.ctx).await }).await;
            self.is_wanted()?;
            let name = source.guard().map_or("skills", |guard| guard.id.as_str());
            let said = heard.take(name, said).unwrap_or_default();
            all.extend(said.into_iter().map(|skill| (source.guard(), skill)));
        }
        heard.or_failure()?;
        // The sort is stable: of two skills with one URI, the first source's skill remains.
        all.sort_by(|(_, a), (_, b)| a.uri.cmp(&b.uri));
        all.dedup_by(|(_, a), (_, b)| a.uri == b.uri);
        all.retain(|(guard, skill)| self.may_see(*guard, &skill.uri));
        let all = all.into_iter().map(|(_, skill)| skill);
        let mut rest = all.filter(|one| after.as_ref().is_none_or(|a| one.uri > *a));
        let mut skills: Vec<_> = rest.by_ref().take(size).collect();
        let next = skills.last().filter(|_| rest.next().is_some()).map(|last| last.uri.clone());
        skills.iter_mut().for_each(|skill| gate.secrets.clear(skill));
        Ok(Answer::Skills(SkillPage { skills, next }))
    }

    pub(crate) async fn skill(self, uri: &str) -> Result<Answer, CallError> {
        let gate = self.gate;
        let others = gate.library.other_skills();
        if !others.is_empty() {
            self.look_at_own().await?;
        }
        let all = gate.library.skills.iter().cloned().chain(others);
        let claims = |source: Arc<dyn Skills>| Some((source.claims(uri)?, source));
        let mut sources: Vec<_> =
            all.filter(|source| self.shows_skills(&**source)).filter_map(claims).collect();
        // The sort is stable: among equal claims, the first source is asked first.
        sources.sort_by_key(|(claim, _)| *claim);
        let mut failed = None;
        for (claim, source) in &sources {
            if let Some(guard) = source.guard() {
                let asked = json!({ "uri": uri });
                let permit = gate.policy.authorise_beside(&self.call.caller, guard, &asked)?;
                confirm::agreed(gate, guard, &self.call, &asked, &permit).await?;
            }
            let stand = self.looking_as_one_of(sources.len());
            let said = looked(gate, &stand, async { source.get(&stand.ctx, uri).await }).await;
            self.is_wanted()?;
            match said {
                Ok(Some(mut skill)) => {
                    gate.secrets.clear(&mut skill);
                    return Ok(Answer::Skill(Box::new(skill)));
                }
                Ok(None) => {}
                Err(err) => failed = failed.or(Some(err)),
            }
            // This source certainly has the skill, so no other is asked.
            if *claim == Claim::Listed {
                break;
            }
        }
        let trouble = sources.iter().find_map(|(_, source)| source.trouble(uri));
        let message = trouble.unwrap_or_else(|| format!("no skill is at `{}`", shortened(uri)));
        Err(failed.unwrap_or(CallError::NotFound { message }))
    }
}
