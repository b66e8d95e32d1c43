//! What a tool is: typed as its author writes it, erased as the host runs it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Ctx, Output, Text, ToolError};

/// A future that can be sent to another thread and named in a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One thing an agent can call, as its author writes it: one file, all in sight.
pub trait Tool: Send + Sync + 'static {
    /// The id, `toolset.verb`.
    const NAME: &'static str;
    /// A short name for people, e.g. `Read file`.
    const TITLE: &'static str;
    /// What it does and how to use it well, for the agent that will.
    const ABOUT: &'static str;
    /// What running it can change.
    const EFFECTS: Effects;
    /// Whether running it twice with the same input leaves what running it once does.
    const IDEMPOTENT: bool = false;
    /// How long one call may take, where the configured default does not fit.
    const DEADLINE: Option<Duration> = None;
    /// The arguments. Its schema is what callers see and what the gate checks.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// The structured result.
    type Output: Serialize + JsonSchema + Send + 'static;

    /// Does the work.
    fn run(
        &self,
        ctx: &Ctx,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;

    /// The result as a person or a model reads it; by default its JSON.
    fn text(output: &Self::Output) -> Text {
        Text::json(output)
    }

    /// How the work ended, for tools whose work can end badly and still have a result.
    fn ending(_output: &Self::Output) -> Ending {
        Ending::Done
    }
}

/// How work that has a result ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// As it should.
    Done,
    /// A program ran and reported failure, by its exit code, a signal or its timeout.
    ProgramFailed,
}

/// What running a tool can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effects {
    /// Nothing.
    Reads,
    /// It adds, and takes nothing away: a new folder, a copy.
    Adds,
    /// It can overwrite or remove.
    Changes,
    /// It runs programs, which can do whatever their confinement allows.
    Runs,
}

/// The id of a tool, `toolset.verb`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolId(Arc<str>);

impl ToolId {
    /// The id written `id`; `None` unless it reads `toolset.verb` in `[a-z0-9_]`,
    /// with any number of further `.`-separated parts.
    pub fn new(id: &str) -> Option<Self> {
        let parts = id.split('.');
        let sound = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        (id.contains('.') && parts.into_iter().all(sound)).then(|| Self(id.into()))
    }

    /// The id as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first part: which toolset the tool belongs to.
    pub fn toolset(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `name` with every separator a dialect may spell a tool with made one.
///
/// `files.read`, `files/read`, `files-read` and `files_read` fold to the same
/// string; the catalog refuses two tools that do.
pub fn fold(name: &str) -> String {
    name.chars().map(|c| if matches!(c, '.' | '/' | '-' | ':' | ' ') { '_' } else { c }).collect()
}

/// What the host and the dialects know of a tool without running it.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Its id.
    pub id: ToolId,
    /// A short name for people.
    pub title: String,
    /// What it does, for the agent.
    pub about: String,
    /// What running it can change.
    pub effects: Effects,
    /// Whether running it again is harmless.
    pub idempotent: bool,
    /// How long one call may take; `None` is the configured default.
    pub deadline: Option<Duration>,
    /// How many calls of it may run at once; `None` is as many as of any.
    pub at_once: Option<usize>,
    /// Which of the jobs that wait goes first: the higher.
    pub priority: i32,
    /// JSON Schema 2020-12 of the arguments; its root is an object.
    pub input_schema: Value,
    /// JSON Schema 2020-12 of the structured result, if it has one.
    pub output_schema: Option<Value>,
}

/// A tool whose types are forgotten, as the catalog holds it.
pub trait AnyTool: Send + Sync + 'static {
    /// What is known of it without running it.
    fn spec(&self) -> &ToolSpec;
    /// The input with its other spellings gone, before it is checked against the schema.
    fn normalised(&self, input: Value) -> Value {
        input
    }
    /// Runs it on input that already satisfies its schema.
    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>>;
}

/// Forgets the types of `tool`.
///
/// # Panics
/// When `T::NAME` is not a tool id: a mistake of the author, seen at start.
pub fn erase<T: Tool>(tool: T) -> Arc<dyn AnyTool> {
    let spec = ToolSpec {
        id: ToolId::new(T::NAME).unwrap_or_else(|| panic!("`{}` is not `toolset.verb`", T::NAME)),
        title: T::TITLE.to_owned(),
        about: T::ABOUT.to_owned(),
        effects: T::EFFECTS,
        idempotent: T::IDEMPOTENT,
        deadline: T::DEADLINE,
        at_once: None,
        priority: 0,
        input_schema: schema_of::<T::Input>(),
        output_schema: Some(schema_of::<T::Output>()),
    };
    Arc::new(Erased { spec, tool })
}

struct Erased<T> {
    spec: ToolSpec,
    tool: T,
}

impl<T: Tool> AnyTool for Erased<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let input = if has_float(&input) { with_integers(input) } else { input };
            let input = serde_json::from_value(input)
                .map_err(|err| ToolError::invalid("", err.to_string()))?;
            let output = self.tool.run(ctx, input).await?;
            let value = serde_json::to_value(&output)
                .map_err(|err| ToolError::because("the result is not JSON", err))?;
            Ok(Output { value, text: T::text(&output), ending: T::ending(&output) })
        })
    }
}

fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_float),
        Value::Object(fields) => fields.values().any(has_float),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// The value with `2.0` written `2`: one integer to JSON Schema, two things to Rust.
fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // Beyond 2^53 a float may not be the integer that was meant.
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                #[allow(clippy::cast_possible_truncation, reason = "it is whole and within range")]
                let integer = float as i64;
                Value::from(integer)
            }
            Some(_) | None => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(with_integers).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, with_integers(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}

/// The schema of `T`, whole in one object: no `$ref`, no `$schema`, no Rust names.
pub fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.remove("title");
        root.remove("description");
    }
    schema
}
