//! Validates inputs and outputs against JSON Schema 2020-12.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{
    CallError, PromptArguments, PromptSpec, RenamedArguments, ToolId, ToolOutput, ToolRunStatus,
    ToolSpec, ValidationProblem,
};

use crate::catalog::CatalogToolEntry;
use crate::header_params;
use crate::policy::{KnownToolSet, ToolPattern, ToolRuleError};
use crate::schemas::{SchemaValidationTask, ToolIoValidators, ToolSchemaDirection};

/// Name of the setting with the patterns of tools whose invalid output is logged instead of
/// refused.
const SETTING: &str = "validation.shadow";

/// Maximum number of schema violations that are reported for one value.
const PROBLEMS_MAX: usize = 8;

/// Handling of output that violates its tool's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputSchemaCheck {
    /// Output of the tool is not checked.
    Off,
    /// Output that violates the tool's schema is logged and sent.
    Shadow,
    /// Output that violates the tool's schema is refused.
    Enforce,
}

/// Rules that decide for each tool if output that violates the schema is ignored, logged or
/// refused.
#[derive(Debug, Clone)]
pub struct OutputSchemaCheckRules {
    rules: Arc<[(ToolPattern, OutputSchemaCheck)]>,
    default: OutputSchemaCheck,
}

impl OutputSchemaCheckRules {
    /// Creates checks from `rules` (a tool pattern and its check). The first match applies, or
    /// `default` if none matches.
    ///
    /// # Errors
    /// A pattern is invalid.
    pub fn new(
        rules: &[(&str, OutputSchemaCheck)],
        default: OutputSchemaCheck,
    ) -> Result<Self, ToolRuleError> {
        let rules =
            rules.iter().map(|(tools, check)| Ok((ToolPattern::new(SETTING, tools)?, *check)));
        Ok(Self { rules: rules.collect::<Result<_, ToolRuleError>>()?, default })
    }

    /// Checks that each rule matches one of the `known` tools.
    ///
    /// # Errors
    /// Returns the first rule that matches nothing.
    pub fn check_rules(&self, known: &KnownToolSet) -> Result<(), ToolRuleError> {
        self.rules.iter().try_for_each(|(tools, _)| tools.check(known))
    }

    /// Returns the output check that applies to the tool `id`.
    fn check_for(&self, id: &ToolId) -> OutputSchemaCheck {
        let rule = self.rules.iter().find(|(tools, _)| tools.matches(id));
        rule.map_or(self.default, |(_, check)| *check)
    }
}

impl From<OutputSchemaCheck> for OutputSchemaCheckRules {
    fn from(default: OutputSchemaCheck) -> Self {
        Self { rules: Arc::default(), default }
    }
}

/// Checks that `input` matches the tool's schema. Returns the input for the tool.
///
/// Models guess names of arguments, write `null` for absent arguments, and quote numbers. Input
/// that is otherwise valid is repaired.
pub(crate) async fn check_input(
    entry: &CatalogToolEntry,
    input: Value,
) -> Result<Value, CallError> {
    let tool = entry.shared_tool().clone();
    let valid = move |io: &ToolIoValidators, input| valid_input(io, tool.spec(), input);
    match entry.io.validate(ToolSchemaDirection::Input, input, entry.is_foreign(), valid) {
        SchemaValidationTask::Done(valid) => valid,
        SchemaValidationTask::Waiting(work) => work.await?,
    }
}

/// Checks `input` like [`check_input`], but on this thread and without a deadline.
pub(crate) fn check_input_here(entry: &CatalogToolEntry, input: Value) -> Result<Value, CallError> {
    valid_input(&entry.io, entry.spec(), input)
}

/// Returns the valid `input`, with corrected names and values if necessary.
fn valid_input(io: &ToolIoValidators, spec: &ToolSpec, input: Value) -> Result<Value, CallError> {
    let problems = io.argument_problems(&input);
    if problems.is_empty() {
        return Ok(input);
    }
    let Some(named) = RenamedArguments::new(spec, &input) else {
        return io.repaired_arguments(spec, &input).ok_or(CallError::InvalidInput { problems });
    };
    let problems = io.argument_problems(&named.input);
    if problems.is_empty() {
        return Ok(named.input);
    }
    io.repaired_arguments(spec, &named.input).ok_or_else(|| {
        // The caller finds its own names in the message.
        let problems = problems.into_iter().map(|ValidationProblem { pointer, message }| {
            ValidationProblem { pointer: named.original_pointer(&pointer), message }
        });
        CallError::InvalidInput { problems: problems.collect() }
    })
}

/// Checks that the arguments that `headers` repeat equal the arguments in `input`.
///
/// # Errors
/// A header differs from its argument, or the schema has an unusable header mark.
pub(crate) fn check_header_params(
    entry: &CatalogToolEntry,
    input: &Value,
    headers: Option<&[(String, Result<String, String>)]>,
) -> Result<(), CallError> {
    let Some(headers) = headers else { return Ok(()) };
    let params =
        entry.header_params().map_err(|error| CallError::Mismatch { message: error.to_owned() })?;
    header_params::check_headers(params, input, headers)
}

/// Checks that a prompt receives all required arguments and no unknown ones.
///
/// # Errors
/// An argument is missing or unknown.
pub(crate) fn check_prompt_arguments(
    prompt: &PromptSpec,
    arguments: &PromptArguments,
) -> Result<(), CallError> {
    let PromptSpec { name: prompt, arguments: known, .. } = prompt;
    let missing = known.iter().filter(|it| it.required && !arguments.contains_key(&it.name));
    let missing =
        missing.map(|it| format!("the prompt `{prompt}` needs the argument `{}`", it.name));
    let unknown = arguments.keys().filter(|name| known.iter().all(|it| it.name != **name));
    let unknown = unknown.map(|name| format!("the prompt `{prompt}` has no argument `{name}`"));
    let problems: Vec<_> = missing
        .chain(unknown)
        .take(PROBLEMS_MAX)
        .map(|message| ValidationProblem { pointer: "/arguments".to_owned(), message })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(CallError::InvalidInput { problems }) }
}

/// Checks that `output` matches the tool's schema, as far as `checks` requires. If the check cannot
/// be finished, `output` loses its value.
///
/// # Errors
/// The output violates the schema, and `checks` refuses such output.
pub(crate) async fn check_output(
    checks: &OutputSchemaCheckRules,
    entry: &CatalogToolEntry,
    output: &mut ToolOutput,
) -> Result<(), CallError> {
    // The output of a failed call need not have the shape of a success.
    let has_no_schema = entry.spec().output_schema.is_none() && !output.structured;
    if has_no_schema || output.ending == ToolRunStatus::ToolFailed {
        return Ok(());
    }
    let check = checks.check_for(&entry.spec().id);
    if check == OutputSchemaCheck::Off {
        return Ok(());
    }
    let problems = match output.structured {
        true => {
            // The value may be large, so it is moved and not cloned.
            let value = output.value.take();
            let find = |io: &ToolIoValidators, value: Value| (io.output_problems(&value), value);
            let checked = match entry.io.validate(
                ToolSchemaDirection::Output,
                value,
                entry.is_foreign(),
                find,
            ) {
                SchemaValidationTask::Done(found) => Ok(found),
                SchemaValidationTask::Waiting(work) => work.await,
            };
            let (problems, value) = checked.inspect_err(|error| {
                tracing::warn!(tool = %entry.spec().id, "{error}");
            })?;
            output.value = value;
            problems
        }
        false => vec![ValidationProblem {
            pointer: String::new(),
            message: "it has no structured content, which its output schema requires".to_owned(),
        }],
    };
    if problems.is_empty() {
        return Ok(());
    }
    let error = CallError::InvalidOutput { problems };
    tracing::warn!(tool = %entry.spec().id, "{error}");
    match check {
        OutputSchemaCheck::Off | OutputSchemaCheck::Shadow => Ok(()),
        OutputSchemaCheck::Enforce => Err(error),
    }
}
