//! Who may use which tool, and with what: rules in order, of which the first that fits decides.
//!
//! A rule that cannot be decided decides against the caller: one that denies or confirms denies,
//! one that allows does not.

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

/// What a rule is called in the record.
pub(crate) type RuleName = Arc<str>;

/// What decides where no rule does.
const DEFAULT: &str = "default";
/// What decides over a token whose scopes are not enough.
const SCOPES: &str = "scopes";

/// Rules over callers, tools and what these are given.
pub struct Policy {
    /// Those of the settings under `[tools]`, which only deny, and then those of `[[policy.rules]]`.
    rules: Vec<Rule>,
    /// How many of them are of `[tools]`: they are over tools alone.
    of_tools: usize,
    /// What a person is asked about, whatever allows it.
    confirm: Vec<Rule>,
    default: Effect,
    default_name: RuleName,
    /// Which rules are about each tool, so that a call looks at no other.
    known: HashMap<ToolId, Known>,
    bounds: Bounds,
    /// What callers that have a token need beside.
    scopes: Scopes,
}

/// Which rules are about a tool that is like this.
struct Known {
    effects: Effects,
    ruled_as: Option<ToolId>,
    tags: Vec<String>,
    rules: Box<[usize]>,
}

/// What is decided about.
pub(crate) struct Of<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) spec: &'a ToolSpec,
    pub(crate) input: &'a Value,
    pub(crate) what: What,
}

/// What is asked for: a tool, what is known by one and is no call of it, or words alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Tool,
    Beside,
    Words,
}

/// One rule that was looked at.
pub(crate) struct Step {
    rule: RuleName,
    effect: Effect,
    matched: Matched,
}

/// What is decided, and by whom.
struct Ruling<'p> {
    verdict: Verdict<'p>,
    rule: RuleName,
}

enum Verdict<'p> {
    Allowed,
    Confirm,
    Denied(Option<&'p str>),
    /// Denied, since it could not be decided.
    Failed,
}

impl Policy {
    /// Offers the tools that match `allow` and not `deny` and do no more than `effects_max`.
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

    /// The same, with a person asked before each call of a tool that matches `confirm`.
    pub fn with_confirm(self, confirm: &[String]) -> Result<Self, BadRule> {
        Ok(Self { confirm: single("tools.confirm", confirm, Effect::Confirm)?, ..self })
    }

    /// The same, with paths that begin with `root` seen as the tools see them: without it.
    pub fn with_root(mut self, root: &Path) -> Self {
        self.bounds.root = root.to_str().map(|root| root.trim_end_matches('/').into());
        self
    }

    /// The same with `rules`, in their order, and `default` for what none of them decides.
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

    /// The same, knowing which rules are about each of `tools`.
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

    /// The same, with callers that have a token held to what its scopes are for, if any are known.
    pub fn with_scopes(self, scopes: &[Scope]) -> Result<Self, BadRule> {
        Ok(Self { scopes: Scopes::new(scopes)?, ..self })
    }

    /// Refuses rules that match none of what is `known`: a misspelled one must not seem to hold.
    pub fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        let (of_tools, others) = self.rules.split_at(self.of_tools);
        of_tools.iter().chain(&self.confirm).try_for_each(|rule| rule.check(known))?;
        // What prompts are known by that are words alone.
        let words = ToolId::new("prompts");
        let tools = known.tools.iter().cloned().chain(words).collect();
        let all = KnownTools { tools, later: known.later.clone() };
        others.iter().try_for_each(|rule| rule.check(&all))?;
        self.scopes.check(known)
    }

    /// Allows the call of the tool with `input`, or says why not.
    pub(crate) fn authorise(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<Permit, Denied> {
        self.permit(&Of { caller, spec, input, what: What::Tool })
    }

    /// The same for what is known by a tool and is no call of it: a resource, a prompt.
    pub(crate) fn authorise_beside(
        &self,
        caller: &Caller,
        spec: &ToolSpec,
        input: &Value,
    ) -> Result<Permit, Denied> {
        self.permit(&Of { caller, spec, input, what: What::Beside })
    }

    /// The same for a prompt that is words alone; `spec` is what such are known by.
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

    /// Refuses what the caller's token was not given for.
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

    /// Whether `caller` sees the tool: what one may not use, whatever it is given, one does not see.
    /// What another token would be enough for is seen: else nobody could ask for one.
    pub(crate) fn shows(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.needed(caller, spec) != Needs::NoScope
            && self.shows_some(&Of { caller, spec, input: &Value::Null, what: What::Tool })
    }

    /// The same for prompts that are words alone.
    pub(crate) fn shows_words(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.shows_some(&Of { caller, spec, input: &Value::Null, what: What::Words })
    }

    /// Whether `caller`, who sees it, is told what there is of that which `spec` guards: not without a
    /// token that is given for it.
    pub(crate) fn tells(&self, caller: &Caller, spec: &ToolSpec) -> bool {
        self.scopes.needed(caller, spec) == Needs::Nothing
    }

    /// Whether some input of what is asked for is allowed, as far as that can be told without one.
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
                    // There may be input that it says nothing of.
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

    /// Decides about what is asked: the one place where it is done. `trace` is told each rule that
    /// is looked at.
    fn decide(&self, asked: &Of<'_>, mut trace: Option<&mut Vec<Step>>) -> Ruling<'_> {
        let mut failed: Option<&RuleName> = None;
        let mut decided = None;
        // Whoever is told why is told of every rule.
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
                let (tool, caller) = (&asked.spec.id, &asked.caller.name);
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
            // What would have allowed it may have failed.
            Some(name) => {
                Ruling { rule: format!("{}, {name} (failed)", ruling.rule).into(), ..ruling }
            }
            None => ruling,
        }
    }

    /// `ruling`, with a person asked where `tools.confirm` says so, whichever rule allows it.
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
            let (effect, matched) = (rule.effect, Matched::Yes);
            trace.push(Step { rule: rule.name.clone(), effect, matched });
        }
        Ruling { verdict: Verdict::Confirm, rule: rule.name.clone() }
    }

    /// The rules that are about the tool, in order, by their places.
    fn about(&self, spec: &ToolSpec) -> Places<'_> {
        let known = self.known.get(&spec.id).filter(|known| {
            // What something is read by may have the id of a tool that is otherwise.
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

    /// Whether the rule at `at` is over tools alone, and words are asked for.
    fn is_beyond(&self, at: usize, asked: &Of<'_>) -> bool {
        asked.what == What::Words && at < self.of_tools
    }
}

/// Places of rules, in order.
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

/// A rule for each of `patterns`, named by it.
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
