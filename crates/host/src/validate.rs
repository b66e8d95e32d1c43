//! JSON Schema 2020-12 on the way in and on the way out.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{Arguments, CallError, Ending, Output, Problem, PromptSpec, ToolId};

use crate::catalog::Entry;
use crate::mirrored;
use crate::policy::{BadRule, KnownTools, Pattern};

/// Where rules over outputs stand.
const SETTING: &str = "validation.rules";

/// The most problems told of one value.
const PROBLEMS_MAX: usize = 8;

/// What happens to output that breaks its tool's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputCheck {
    /// It is not looked at.
    Off,
    /// It is logged and served.
    Shadow,
    /// It is refused.
    Enforce,
}

/// What happens to the output of each tool that breaks its schema.
#[derive(Debug, Clone)]
pub struct OutputChecks {
    rules: Arc<[(Pattern, OutputCheck)]>,
    otherwise: OutputCheck,
}

impl OutputChecks {
    /// What the first of `rules` says, which are patterns over tools, and `otherwise` where none
    /// matches.
    ///
    /// # Errors
    /// When one is no pattern.
    pub fn new(rules: &[(&str, OutputCheck)], otherwise: OutputCheck) -> Result<Self, BadRule> {
        let rules = rules.iter().map(|(tools, check)| Ok((Pattern::new(SETTING, tools)?, *check)));
        Ok(Self { rules: rules.collect::<Result<_, BadRule>>()?, otherwise })
    }

    /// Refuses rules that match none of what is `known`.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self, known: &KnownTools) -> Result<(), BadRule> {
        self.rules.iter().try_for_each(|(tools_of, _)| tools_of.check(known))
    }

    /// What happens to the output of the tool `id`.
    fn of(&self, id: &ToolId) -> OutputCheck {
        let rule = self.rules.iter().find(|(tools, _)| tools.matches(id));
        rule.map_or(self.otherwise, |(_, check)| *check)
    }
}

impl From<OutputCheck> for OutputChecks {
    fn from(otherwise: OutputCheck) -> Self {
        Self { rules: Arc::default(), otherwise }
    }
}

/// Whether `input` satisfies the tool's schema.
pub(crate) fn input(entry: &Entry, input: &Value) -> Result<(), CallError> {
    let problems = entry.io.argument_problems(input);
    if problems.is_empty() { Ok(()) } else { Err(CallError::InvalidInput { problems }) }
}

/// Whether what came beside the arguments says what they say.
pub(crate) fn mirrored(
    entry: &Entry,
    input: &Value,
    said: Option<&[(String, Result<String, String>)]>,
) -> Result<(), CallError> {
    let Some(said) = said else { return Ok(()) };
    let mirrors = entry.mirrors().map_err(|why| CallError::Mismatch { message: why.to_owned() })?;
    mirrored::agree(mirrors, input, said)
}

/// Whether a prompt knows all it is told, and is told all that it must be.
pub(crate) fn arguments(prompt: &PromptSpec, arguments: &Arguments) -> Result<(), CallError> {
    let missing = prompt.arguments.iter().filter(|one| one.required);
    let missing = missing.filter(|one| !arguments.contains_key(&one.name));
    let missing = missing.map(|one| format!("the prompt `{}` needs `{}`", prompt.name, one.name));
    let unknown = arguments.keys().filter(|name| prompt.arguments.iter().all(|a| a.name != **name));
    let unknown = unknown.map(|name| format!("the prompt `{}` has no `{name}`", prompt.name));
    let wrong = missing.chain(unknown).take(PROBLEMS_MAX);
    let problems: Vec<_> =
        wrong.map(|message| Problem { pointer: "/arguments".to_owned(), message }).collect();
    if problems.is_empty() { Ok(()) } else { Err(CallError::InvalidInput { problems }) }
}

/// Whether `output` satisfies the tool's schema, as far as `checks` care.
pub(crate) fn output(
    checks: &OutputChecks,
    entry: &Entry,
    output: &Output,
) -> Result<(), CallError> {
    // What says that it failed need not have the shape of what succeeds.
    let promises_none = entry.spec().output_schema.is_none() && !output.structured;
    if promises_none || output.ending == Ending::ToolFailed {
        return Ok(());
    }
    let check = checks.of(&entry.spec().id);
    if check == OutputCheck::Off {
        return Ok(());
    }
    let problems = match output.structured {
        true => entry.io.output_problems(&output.value),
        false => vec![Problem {
            pointer: String::new(),
            message: "it has no structured content, which its tool's schema promises".to_owned(),
        }],
    };
    if problems.is_empty() {
        return Ok(());
    }
    let broken = CallError::InvalidOutput { problems };
    tracing::warn!(tool = %entry.spec().id, "{broken}");
    match check {
        OutputCheck::Off | OutputCheck::Shadow => Ok(()),
        OutputCheck::Enforce => Err(broken),
    }
}
