//! Decides which caller may use which tool with which input. The first matching rule decides.
//!
//! If a rule cannot be evaluated, the result is strict: a deny or confirm rule denies, and an allow
//! rule is skipped.

mod permit;
mod rule;
mod pattern;
mod expression;
mod binding;
mod plain;
mod texts;
mod explain;
#[cfg(any(fuzzing, test))]
mod fuzzing;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;
use serde_json::Value;
use toolgate_contract::{Caller, Effects, ToolId, ToolSpec};

use crate::scopes::{Needs, Scope, Scopes};
use expression::{Bounds, When};
use rule::{Matched, Over, Rule, Why};

pub use explain::{Decision, Explained};
#[cfg(any(fuzzing, test))]
pub(crate) use fuzzing::{paths, patterns, when};
pub(crate) use pattern::Pattern;
pub use pattern::{BadRule, KnownTools, check_pattern};
pub(crate) use permit::{Denied, Permit};
pub use rule::{Effect, PolicyRule};

/// Name of a rule in the audit record.
pub(crate) type RuleName = Arc<str>;

/// Rule name in the record if no rule matches.
const DEFAULT: &str = "default";
/// Rule name in the record if a token lacks a scope.
const SCOPES: &str = "scopes";

/// Rules over callers, tools and inputs.
pub struct Policy {
    /// Rules of the `[tools]` settings, which only deny, followed by those of `[[policy.rules]]`.
    rules: Vec<Rule>,
    /// Number of leading rules that come from `[tools]`; they depend on the tool alone.
    of_tools: usize,
    /// Rules of `tools.confirm`, which apply to allowed calls.
    confirm: Vec<Rule>,
    default: Effect,
    default_name: RuleName,
    /// Rules that concern each known tool, so that a call skips the others.
    known: HashMap<ToolId, Known>,
    bounds: Bounds,
    /// Scopes that callers with a token need in addition.
    scopes: Scopes,
}

/// Rules that concern a tool with these properties.
struct Known {
    effects: Effects,
    ruled_as: Option<ToolId>,
    tags: Vec<String>,
    rules: Box<[usize]>,
}

/// A request to decide about.
pub(crate) struct Of<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) spec: &'a ToolSpec,
    pub(crate) input: &'a Value,
    pub(crate) what: What,
}

/// Kind of a request: a tool call, another access guarded by a tool, or a text-only prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Tool,
    Beside,
    Words,
}

/// One rule that was checked.
pub(crate) struct Step {
    rule: RuleName,
    effect: Effect,
    matched: Matched,
}

/// A decision and the name of its rule.
struct Ruling<'p> {
    verdict: Verdict<'p>,
    rule: RuleName,
}

enum Verdict<'p> {
    Allowed,
    Confirm,
    Denied(Option<&'p str>),
    /// Denied, because a rule could not be evaluated.
    Failed,
}

impl Policy {
    /// Creates a policy that allows tools that match `allow`, do not match `deny`, and have at most
    /// the effects `effects_max`.
    pub fn new(allow: &[String], deny: &[String], effects_max: Effects) -> Result<Self, BadRule> {
        let mut rules = single("tools.deny", deny, Effect::Deny)?;
        if effects_max < Effects::Runs {
            let over = Over::Beyond(effects_max);
            rules.push(Rule::of_tools("tools.effects".to_owned(), Effect::Deny, over));
        }
        let allow: Vec<_> = allow
            .iter()
            .map(|pattern| Pattern::new("tools.allow", pattern))
            .collect::<Result<_, _>>()?;
        let over = Over::Outside(allow);
        rules.push(Rule::of_tools("tools.allow".to_owned(), Effect::Deny, over));
        Ok(Self {
            of_tools: rules.len(),
            rules,
            confirm: Vec::new(),
            default: Effect::Allow,
            default_name: DEFAULT.into(),
            known: HashMap::default(),
            bounds: Bounds::default(),
            scopes: Scopes::default(),
        })
    }

    /// Requires a confirmation for each call of a tool that matches `confirm`.
    pub fn with_confirm(self, confirm: &[String]) -> Result<Self, BadRule> {
        Ok(Self { confirm: single("tools.confirm", confirm, Effect::Confirm)?, ..self })
    }

    /// Sets the workspace path `root`, which is removed from absolute paths before rules see them.
    pub fn with_root(mut self, root: &Path) -> Self {
        self.bounds.root = root.to_str().map(|root| root.trim_end_matches('/').into());
        self
    }

    /// Adds `rules` in their order, and sets the `default` effect if none matches.
    pub fn with_rules(mut self, rules: &[PolicyRule], default: Effect) -> Result<Self, BadRule> {
        let mut names = HashSet::new();
        for written in rules {
            let rule = Rule::new(written, &self.bounds)?;
            if !names.insert(rule.name.clone()) {
                let why = "another rule has this name; the record would not tell them apart";
                return Err(BadRule::Policy { name: written.name.clone(), why: why.to_owned() });
            }
            self.rules.push(rule);
        }
        Ok(Self { default, ..self })
    }

    /// Precomputes the rules that concern each of `tools`.
    pub(crate) fn with_tools<'t>(mut self, tools: impl Iterator<Item = &'t ToolSpec>) -> Self {
        for spec in tools {
            let about = |at: &usize| self.rules[*at].covers(spec).is_ok();
            let known = Known {
                effects: spec.effects,
                ruled_as: spec.ruled_as.clone(),
                tags: spec.tags.clone(),
                rules: (0..self.rules.len()).filter(about).collect(),
            };
            self.known.insert(spec.id.clone(), known);
        }
        self
    }

    /// Restricts callers with a token to the tools of their scopes, if there are any scopes.
    pub fn with_scopes(self, scopes: &[Scope]) -> Result<Self, BadRule> {
        Ok(Self { scopes: Scopes::new(scopes)?, ..self })
    }

    /// Checks that each rule matches one of the `known` tools, because a misspelled rule would have
    /// no effect.
    pub fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        let (of_tools, others) = self.rules.split_at(self.of_tools);
        of_tools.iter().chain(&self.confirm).try_for_each(|rule| rule.check(known))?;
        // Guard id of text-only prompts.
        let words = ToolId::new("prompts");
        let tools = known.tools.iter().cloned().chain(words).collect();
        let all = KnownTools { tools, later: known.later.clone() };
        others.iter().try_for_each(|rule| rule.check(&all))?;
        self.scopes.check(known)
    }

    /// Decides about a call of the tool with `input`.
    pub(crate) fn authorise(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<Permit, Denied> {
        self.permit(&Of { caller, spec, input, what: What::Tool })
    }

    /// Decides about an access that a tool guards without being called: a resource or a prompt.
    pub(crate) fn authorise_beside(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<Permit, Denied> {
        self.permit(&Of { caller, spec, input, what: What::Beside })
    }

    /// Decides about a text-only prompt; `spec` is the common spec of such prompts.
    pub(crate) fn authorise_words(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<Permit, Denied> {
        self.permit(&Of { caller, spec, input, what: What::Words })
    }

    fn permit(&self, asked: &Of<'_>) -> Result<Permit, Denied> {
        let Ruling { verdict, rule } = self.decide(asked, None);
        let id = &asked.spec.id;
        let denied = |message| Err(Denied { rule: rule.clone(), message, needs: None });
        match verdict {
            Verdict::Allowed | Verdict::Confirm => {
                self.scoped(asked)?;
                Ok(Permit { rule, confirm: matches!(verdict, Verdict::Confirm) })
            }
            Verdict::Denied(Some(message)) => denied(message.to_owned()),
            Verdict::Denied(None) => denied(format!("`{id}` is not allowed here")),
            Verdict::Failed => denied(format!(
                "`{id}` is not allowed: a rule about it could not be decided for this call"
            )),
        }
    }

    /// Refuses requests that the scopes of the caller's token do not cover.
    fn scoped(&self, asked: &Of<'_>) -> Result<(), Denied> {
        let Of { caller, spec, what, .. } = asked;
        let denied = |message, needs| Err(Denied { rule: SCOPES.into(), message, needs });
        match self.scopes.needed(caller, spec) {
            _ if *what == What::Words => Ok(()),
            Needs::Nothing => Ok(()),
            Needs::NoScope => denied(format!("`{}` is not allowed here", spec.id), None),
            Needs::Scope(scope) => denied(
                format!("`{}` needs the scope {scope}, which this token does not have", spec.id),
                Some(scope),
            ),
        }
    }

    /// Returns true if `caller` sees the tool. A tool is hidden if no input of it could be allowed.
    ///
    /// A tool that needs another scope is visible, so that the client can request that scope.
    pub(crate) fn shows(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.needed(caller, spec) != Needs::NoScope
            && self.shows_some(&Of { caller, spec, input: &Value::Null, what: What::Tool })
    }

    /// Returns true if `caller` sees text-only prompts.
    pub(crate) fn shows_words(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.shows_some(&Of { caller, spec, input: &Value::Null, what: What::Words })
    }

    /// Returns true if `caller` may list the contents of sources guarded by `spec`: the token has
    /// the needed scope.
    pub(crate) fn tells(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.needed(caller, spec) == Needs::Nothing
    }

    /// Returns true if some input could be allowed, as far as that is known without the input.
    fn shows_some(&self, asked: &Of<'_>) -> bool {
        for at in self.about(asked.spec) {
            let rule = &self.rules[at];
            if self.is_beyond(at, asked) {
                continue;
            }
            if rule.when.as_ref().is_some_and(When::names_input) {
                if rule.covers(asked.spec).and(rule.is_about(asked.caller)).is_err() {
                    continue;
                }
                match rule.effect {
                    Effect::Allow | Effect::Confirm => return true,
                    // Other inputs may not match this rule.
                    Effect::Deny => continue,
                }
            }
            match (rule.matched(asked), rule.effect) {
                (Matched::Yes, Effect::Allow | Effect::Confirm) => return true,
                (Matched::Yes, Effect::Deny) => return false,
                (Matched::Failed(_), Effect::Deny | Effect::Confirm) => return false,
                (Matched::No(_), _) | (Matched::Failed(_), Effect::Allow) => {}
            }
        }
        self.default != Effect::Deny
    }

    /// Makes the decision; no other function does. If given, `trace` receives each checked rule.
    fn decide(&self, asked: &Of<'_>, mut trace: Option<&mut Vec<Step>>) -> Ruling<'_> {
        let mut failed: Option<&RuleName> = None;
        let mut decided = None;
        // An explanation includes the rules about other tools.
        let about = if trace.is_some() { self.all() } else { self.about(asked.spec) };
        for at in about {
            let rule = &self.rules[at];
            let matched = if self.is_beyond(at, asked) {
                Matched::No(Why::Words)
            } else {
                rule.matched(asked)
            };
            decided = match (&matched, rule.effect) {
                (Matched::No(_), _) => None,
                (Matched::Yes, Effect::Allow) => Some((Verdict::Allowed, rule)),
                (Matched::Yes, Effect::Confirm) => Some((Verdict::Confirm, rule)),
                (Matched::Yes, Effect::Deny) => {
                    Some((Verdict::Denied(rule.message.as_deref()), rule))
                }
                (Matched::Failed(_), Effect::Deny | Effect::Confirm) => {
                    Some((Verdict::Failed, rule))
                }
                (Matched::Failed(_), Effect::Allow) => {
                    failed = failed.or(Some(&rule.name));
                    None
                }
            };
            if let Matched::Failed(why) = &matched
                && trace.is_none()
            {
                let tool = &asked.spec.id;
                let caller = &asked.caller.name;
                tracing::warn!(%tool, %caller, "the rule `{}` failed: {why}", rule.name);
            }
            if let Some(trace) = &mut trace {
                trace.push(Step { rule: rule.name.clone(), effect: rule.effect, matched });
            }
            if decided.is_some() {
                break;
            }
        }
        let ruling = match decided {
            Some((Verdict::Failed, rule)) => {
                let rule = format!("{} (failed)", rule.name).into();
                return Ruling { verdict: Verdict::Failed, rule };
            }
            Some((verdict, rule)) => Ruling { verdict, rule: rule.name.clone() },
            None => {
                let verdict = match self.default {
                    Effect::Allow => Verdict::Allowed,
                    Effect::Confirm => Verdict::Confirm,
                    Effect::Deny => Verdict::Denied(None),
                };
                Ruling { verdict, rule: self.default_name.clone() }
            }
        };
        let ruling = self.confirmed(asked, ruling, trace);
        match failed {
            // The failed rule might have allowed the call.
            Some(name) => {
                Ruling { rule: format!("{}, {name} (failed)", ruling.rule).into(), ..ruling }
            }
            None => ruling,
        }
    }

    /// Applies `tools.confirm` to an allowed call.
    fn confirmed<'p>(
        &'p self,
        asked: &Of<'_>,
        ruling: Ruling<'p>,
        trace: Option<&mut Vec<Step>>,
    ) -> Ruling<'p> {
        if asked.what == What::Words || !matches!(ruling.verdict, Verdict::Allowed) {
            return ruling;
        }
        let mut confirm = self.confirm.iter();
        let Some(rule) = confirm.find(|rule| rule.covers(asked.spec).is_ok()) else {
            return ruling;
        };
        if let Some(trace) = trace {
            let effect = rule.effect;
            let matched = Matched::Yes;
            trace.push(Step { rule: rule.name.clone(), effect, matched });
        }
        Ruling { verdict: Verdict::Confirm, rule: rule.name.clone() }
    }

    /// Returns the indexes of the rules that concern the tool, in order.
    fn about(&self, spec: &ToolSpec) -> Places<'_> {
        let known = self.known.get(&spec.id).filter(|known| {
            // A guard may share its id with a tool that differs.
            known.effects == spec.effects
                && known.ruled_as == spec.ruled_as
                && known.tags == spec.tags
        });
        match known {
            Some(known) => Places::Some(known.rules.iter()),
            None => self.all(),
        }
    }

    fn all(&self) -> Places<'_> {
        Places::All(0..self.rules.len())
    }

    /// Returns true if the rule at `at` concerns only tools and the request is a text-only prompt.
    fn is_beyond(&self, at: usize, asked: &Of<'_>) -> bool {
        asked.what == What::Words && at < self.of_tools
    }
}

/// Indexes of rules, in order.
enum Places<'p> {
    All(std::ops::Range<usize>),
    Some(std::slice::Iter<'p, usize>),
}

impl Iterator for Places<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::All(places) => places.next(),
            Self::Some(places) => places.next().copied(),
        }
    }
}

/// Creates a rule for each of `patterns`, named after its pattern.
fn single(
    setting: &'static str,
    patterns: &[String],
    effect: Effect,
) -> Result<Vec<Rule>, BadRule> {
    let rules = patterns.iter().map(|pattern| {
        let tools = vec![Pattern::new(setting, pattern)?];
        let over = Over::Those { tools, tags: Vec::new(), effects: Vec::new() };
        Ok(Rule::of_tools(format!("{setting}: {pattern}"), effect, over))
    });
    rules.collect()
}
