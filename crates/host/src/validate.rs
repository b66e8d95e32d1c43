//! JSON Schema 2020-12 on the way in and on the way out, compiled once per catalog.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, Validator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolgate_contract::{CallError, Output, Problem};

use crate::catalog::Entry;

/// The most problems told of one value.
const PROBLEMS_MAX: usize = 8;
/// The most characters of one problem's message; it can quote the value.
const MESSAGE_CHARS_MAX: usize = 300;

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

/// Compiles `schema`; a reference to the network is refused, not followed.
pub(crate) fn compile(schema: &Value) -> Result<Validator, String> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .offline()
        .build(schema)
        .map_err(|err| err.to_string())
}

/// Whether `input` satisfies the tool's schema.
pub(crate) fn input(entry: &Entry, input: &Value) -> Result<(), CallError> {
    if entry.input.is_valid(input) {
        return Ok(());
    }
    Err(CallError::InvalidInput {
        problems: problems(&entry.input, input, &entry.spec().input_schema),
    })
}

/// Whether `output` satisfies the tool's schema, as far as `check` cares.
pub(crate) fn output(check: OutputCheck, entry: &Entry, output: &Output) -> Result<(), CallError> {
    let Some(validator) = entry.output.as_ref().filter(|_| check != OutputCheck::Off) else {
        return Ok(());
    };
    if validator.is_valid(&output.value) {
        return Ok(());
    }
    let broken =
        CallError::InvalidOutput { problems: problems(validator, &output.value, &Value::Null) };
    tracing::warn!(tool = %entry.spec().id, "{broken}");
    match check {
        OutputCheck::Off | OutputCheck::Shadow => Ok(()),
        OutputCheck::Enforce => Err(broken),
    }
}

fn problems(validator: &Validator, value: &Value, schema: &Value) -> Vec<Problem> {
    let told = validator.iter_errors(value).take(PROBLEMS_MAX).map(|err| {
        let mut message = shortened(err.to_string());
        if let ValidationErrorKind::AdditionalProperties { unexpected } = err.kind() {
            message += &known_instead(schema, err.instance_path().as_str(), unexpected);
        }
        Problem { pointer: shortened(err.instance_path().to_string()), message }
    });
    told.collect()
}

/// What may stand at the top of the arguments instead of what does: the nearest name, or all.
fn known_instead(schema: &Value, pointer: &str, unexpected: &[String]) -> String {
    let Some(known) = schema["properties"].as_object().filter(|_| pointer.is_empty()) else {
        return String::new();
    };
    // Comparing takes time by the length of the name, which is whatever a client sends.
    let short = unexpected.iter().filter(|name| name.len() <= 64).take(4);
    let near = short.filter_map(|name| {
        let close = |known: &&String| strsim::normalized_damerau_levenshtein(name, known);
        let best = known.keys().max_by(|a, b| close(a).total_cmp(&close(b)))?;
        (close(&best) >= 0.6).then(|| format!("`{best}` instead of `{name}`"))
    });
    let near: Vec<_> = near.collect();
    if near.is_empty() {
        let names: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
        return format!("; known are {}", names.join(", "));
    }
    format!("; did you mean {}?", near.join(", "))
}

fn shortened(message: String) -> String {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => message,
        Some((cut, _)) => {
            let tail: String =
                message.chars().rev().take(80).collect::<Vec<_>>().into_iter().rev().collect();
            format!("{}… {tail}", &message[..cut])
        }
    }
}
