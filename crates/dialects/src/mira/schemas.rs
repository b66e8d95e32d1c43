//! The contract's schemas, for validation of parameters and for `tools/list`.

use std::sync::OnceLock;

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{ValidationError, Validator, draft202012};
use serde_json::Value;
use toolgate_contract::ValidationProblem;

/// The maximum number of problems that are reported for one invalid value.
const PROBLEMS_MAX: usize = 8;
/// The maximum number of characters of a parameter's name that an error repeats.
const NAME_CHARS_MAX: usize = 100;

/// The schemas of the parameters and the result of one method.
pub(super) struct MiraMethodSchemas {
    pub(super) params: MiraSchema,
    pub(super) result: MiraSchema,
}

/// A schema of Mira's contract, which is compiled on first use.
pub(super) struct MiraSchema {
    text: &'static str,
    value: OnceLock<Value>,
    validator: OnceLock<Validator>,
}

macro_rules! schemas {
    ($name:literal) => {
        MiraMethodSchemas {
            params: MiraSchema::new(include_str!(concat!($name, ".params.schema.json"))),
            result: MiraSchema::new(include_str!(concat!($name, ".result.schema.json"))),
        }
    };
}

pub(super) static LIST: MiraMethodSchemas = schemas!("tools_list");
pub(super) static READ: MiraMethodSchemas = schemas!("files_read");
pub(super) static WRITE: MiraMethodSchemas = schemas!("files_write");
pub(super) static RUN: MiraMethodSchemas = schemas!("exec_run");
pub(super) static SEARCH: MiraMethodSchemas = schemas!("vector_search");

impl MiraSchema {
    const fn new(text: &'static str) -> Self {
        Self { text, value: OnceLock::new(), validator: OnceLock::new() }
    }

    /// Returns the schema of Mira's contract as JSON.
    pub(super) fn value(&self) -> &Value {
        self.value.get_or_init(|| serde_json::from_str(self.text).expect("a schema is JSON"))
    }

    fn validator(&self) -> &Validator {
        self.validator
            .get_or_init(|| draft202012::new(self.value()).expect("a schema of the contract's"))
    }

    /// Returns the problems of `value` under the schema, at most [`PROBLEMS_MAX`]. Returns none if
    /// `value` satisfies the schema.
    pub(super) fn error_problems(&self, value: &Value) -> Vec<ValidationProblem> {
        let validator = self.validator();
        if validator.is_valid(value) {
            return Vec::new();
        }
        let schema = self.value();
        let problems = validator.iter_errors(value).flat_map(|error| problems(&error, schema));
        problems.take(PROBLEMS_MAX).collect()
    }
}

/// The message of the error about an unknown parameter.
const UNKNOWN_PARAMETER: &str = "unknown parameter; `tools/list` has the schema";
/// The lowest similarity (0 to 1) at which a known parameter is suggested for an unknown one.
const SIMILARITY_MIN: f64 = 0.88;

/// Converts an error of validation against `schema` to problems with positions. The problems never
/// contain values, which may be secret.
fn problems(error: &ValidationError<'_>, schema: &Value) -> Vec<ValidationProblem> {
    let here = error.instance_path().as_str();
    let at = |name: &str| format!("{here}/{}", escape_pointer(name));
    let one = |pointer, message| vec![ValidationProblem { pointer, message }];
    match error.kind() {
        Kind::Required { property } => {
            one(at(property.as_str().unwrap_or_default()), "it is missing".to_owned())
        }
        Kind::AdditionalProperties { unexpected } => unexpected
            .iter()
            .map(|name| ValidationProblem {
                pointer: at(name),
                message: match nearest_parameter(name, error, schema) {
                    Some(near) => format!("unknown parameter; did you mean `{near}`?"),
                    None => UNKNOWN_PARAMETER.to_owned(),
                },
            })
            .collect(),
        Kind::Type { kind: TypeKind::Single(kind) } => {
            one(here.to_owned(), format!("it must be of type {kind}"))
        }
        Kind::Type { kind: TypeKind::Multiple(kinds) } => {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.to_string()).collect();
            one(here.to_owned(), format!("it must be of type {}", kinds.join(" or ")))
        }
        Kind::Enum { options } => {
            let options: Vec<_> =
                options.as_array().into_iter().flatten().map(Value::to_string).collect();
            one(here.to_owned(), format!("it must be {}", options.join(" or ")))
        }
        Kind::Minimum { limit } => one(here.to_owned(), format!("it must be at least {limit}")),
        Kind::Maximum { limit } => one(here.to_owned(), format!("it must be at most {limit}")),
        _ => one(here.to_owned(), error.masked().to_string()),
    }
}

/// Returns the parameter that the unknown `name` probably means: a similar name of the same object
/// in `schema` which the request has not used yet.
fn nearest_parameter<'s>(
    name: &str,
    error: &ValidationError<'_>,
    schema: &'s Value,
) -> Option<&'s str> {
    // Comparing takes time in proportion to the name's length, which the client chooses.
    if name.len() > NAME_CHARS_MAX {
        return None;
    }
    let keyword = error.schema_path().as_str();
    let (object, _) = keyword.rsplit_once('/')?;
    let known = schema.pointer(object)?["properties"].as_object()?;
    let free = known.keys().filter(|known| error.instance().get(known.as_str()).is_none());
    let similarity = |known: &str| match name.split('_').any(|word| word == known) {
        // `file_path` contains `path`.
        true => 0.95,
        false => strsim::jaro_winkler(name, known),
    };
    let close = free.map(|known| (similarity(known), known.as_str()));
    let close = close.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN);
    close.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

fn escape_pointer(name: &str) -> String {
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_parameter_is_refused_with_the_near_one_that_is_not_given() {
        for (given, expected) in [
            (json!({"pat": "a"}), "did you mean `path`?"),
            (json!({"file_path": "a"}), "did you mean `path`?"),
            (json!({"path": "a", "lenght": 1}), "did you mean `length`?"),
            (json!({"path": "a", "file_path": "a"}), "`tools/list` has the schema"),
            (json!({"path": "a", "line": 1}), "`tools/list` has the schema"),
        ] {
            let problems = READ.params.error_problems(&given);
            assert!(problems.iter().any(|it| it.message.ends_with(expected)), "{problems:?}");
        }
        let problems = SEARCH.params.error_problems(&json!({"query": "a", "filter": {"tag": "x"}}));
        assert_eq!(problems[0].message, "unknown parameter; did you mean `tags`?");
    }
}
