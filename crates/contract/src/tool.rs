//! What a tool is: typed as its author writes it, erased as the host runs it.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Ahead, Content, Ctx, Icon, Kept, MetaFields, Output, Schema, Text, ToolError, schema_of,
};

/// A future that can be sent to another thread and named in a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One thing an agent can call, as its author writes it: one file, all in sight.
pub trait Tool: Send + Sync + 'static {
    /// The id, `toolset.verb`, or a verb alone.
    const NAME: &'static str;
    /// A short name for people, e.g. `Read file`.
    const TITLE: &'static str;
    /// What it does and how to use it well, for the agent that will.
    const ABOUT: &'static str;
    /// What running it can change.
    const EFFECTS: Effects;
    /// The tool that it does no less than: what is denied, confirmed or rationed of that one is so
    /// of this one, too. A tool that runs what its caller says is ruled as `exec.run`.
    const RULED_AS: Option<&'static str> = None;
    /// Whether running it twice with the same input leaves what running it once does.
    const IDEMPOTENT: bool = false;
    /// How long one call may take, where the configured default does not fit.
    const DEADLINE: Option<Duration> = None;
    /// Whether a call of it may or must be a job.
    const JOB: AsJob = AsJob::May;
    /// Whether it looks before its work begins: whether [`Tool::before`] does anything.
    const LOOKS_BEFORE: bool = false;
    /// Whether its arguments hold JSON documents, which are to come as they were sent: with `2.0`
    /// where others get `2`.
    const VERBATIM: bool = false;
    /// What it is known by to policy, beside its id and its effects.
    const TAGS: &'static [&'static str] = &[];
    /// Which of its arguments are paths in the workspace: rules see each in its plain spelling.
    const PATHS: &'static [&'static str] =
        &["path", "paths", "source", "destination", "cwd", "folder", "file", "project", "repo"];
    /// The arguments: [`NoInput`] where there are none.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// The result: whatever is JSON and has a schema, or [`Shown`] for what is only to be seen.
    type Output: Outcome;

    /// The schema of the arguments: what callers see and what the gate checks.
    fn input_schema() -> Value {
        schema_of::<Self::Input>()
    }

    /// Looks, before the work begins and before a job is made of it. What has to be asked of
    /// whoever called is best asked here.
    fn before(
        &self,
        _ctx: &Ctx,
        _input: &Self::Input,
    ) -> impl Future<Output = Result<(), ToolError>> + Send {
        async { Ok(()) }
    }

    /// Does the work.
    fn run(
        &self,
        ctx: &Ctx,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;

    /// The result as a person or a model reads it; by default its JSON.
    fn text(output: &Self::Output) -> Text {
        output.text()
    }

    /// How the work ended, for tools whose work can end badly and still have a result.
    fn ending(_output: &Self::Output) -> Ending {
        Ending::Done
    }
}

/// What a typed tool can give back.
pub trait Outcome: Send + 'static {
    /// JSON Schema of the structured result, if there is one.
    fn schema() -> Option<Schema>;
    /// The structured result.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    fn value(&self) -> Result<Value, serde_json::Error>;
    /// The result as a person or a model reads it.
    fn text(&self) -> Text;
    /// What is shown beside the text.
    fn content(self) -> Vec<Content>;
}

impl<T: Serialize + JsonSchema + Send + 'static> Outcome for T {
    fn schema() -> Option<Schema> {
        Some(Schema::of::<T>())
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn text(&self) -> Text {
        Text::json(self)
    }

    fn content(self) -> Vec<Content> {
        Vec::new()
    }
}

/// A result that is only to be seen: text, pictures, sounds, resources.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown(pub Vec<Content>);

impl Shown {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![Content::text(text)])
    }
}

impl Outcome for Shown {
    fn schema() -> Option<Schema> {
        None
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        Ok(Value::Null)
    }

    fn text(&self) -> Text {
        Text::default()
    }

    fn content(self) -> Vec<Content> {
        self.0
    }
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoInput {}

/// Whether a call of a tool may or must be a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AsJob {
    /// It never is.
    Never,
    /// It may be, if whoever calls says so, or takes a job for an answer and the tool runs programs.
    #[default]
    May,
    /// It is one for whoever takes a job for an answer, and may be for others.
    Rather,
    /// It always is.
    Must,
}

/// How work that has a result ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// As it should.
    Done,
    /// A program ran and reported failure, by its exit code, a signal or its timeout.
    ProgramFailed,
    /// The tool says that it could not do it, and what it shows says why.
    ToolFailed,
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
    /// with any number of further `.`-separated parts, or none but a verb. What others named may
    /// have upper case and `-`, too: [`ToolId::foreign`].
    pub fn new(id: &str) -> Option<Self> {
        let parts = id.split('.');
        let sound = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        parts.into_iter().all(sound).then(|| Self(id.into()))
    }

    /// The id written `id`, of a tool that others named: in `[A-Za-z0-9_-]`, with any number of
    /// `.`-separated parts.
    pub fn foreign(id: &str) -> Option<Self> {
        let sound = |part: &str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            !part.is_empty() && part.bytes().all(known)
        };
        id.split('.').all(sound).then(|| Self(id.into()))
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

/// How deep the braces of a glob may nest.
const GLOB_DEPTH_MAX: usize = 50;
/// How long a glob may be, in bytes.
const GLOB_BYTES_MAX: usize = 8 << 10;

/// Why `glob` is not made ready, whatever it means: what is too deep or too long ends whoever does.
pub fn odd_glob(glob: &str) -> Option<String> {
    if glob.len() > GLOB_BYTES_MAX {
        return Some(format!("it has {} bytes; at most {GLOB_BYTES_MAX} are taken", glob.len()));
    }
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in glob.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    (deepest > GLOB_DEPTH_MAX).then(|| format!("its braces nest deeper than {GLOB_DEPTH_MAX}"))
}

/// `name` with every separator a dialect may spell a tool with made one.
///
/// `files.read`, `files/read`, `files-read` and `files_read` fold to the same
/// string; the catalog refuses two tools that do.
pub fn fold(name: &str) -> Cow<'_, str> {
    const SEPARATORS: [char; 5] = ['.', '/', '-', ':', ' '];
    // Each call is found by its name, which most often is folded already.
    match name.contains(SEPARATORS) {
        true => name.replace(SEPARATORS, "_").into(),
        false => name.into(),
    }
}

/// Calls that are counted together, apart from all others: none of them keeps another waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Among {
    /// What they have in common, e.g. whose they are.
    pub name: Arc<str>,
    /// How many of them may run at once.
    pub at_once: usize,
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
    /// The tool whose denials, confirmations and rates hold for it beside its own.
    pub ruled_as: Option<ToolId>,
    /// Whether it reaches beyond what is known here, as the web is, where that is said; else it does
    /// if it runs programs.
    pub open_world: Option<bool>,
    /// What it is known by to policy, beside its id and its effects.
    pub tags: Vec<String>,
    /// Which of its arguments are paths in the workspace.
    pub paths: Vec<String>,
    /// Whether running it again is harmless.
    pub idempotent: bool,
    /// How long one call may take; `None` is the configured default.
    pub deadline: Option<Duration>,
    /// How many calls of it may run at once; `None` is as many as of any.
    pub at_once: Option<usize>,
    /// Which calls it counts among; `None` is all that are this server's own.
    pub among: Option<Among>,
    /// Which of the jobs that wait goes first: the higher.
    pub priority: i32,
    /// JSON Schema 2020-12 of the arguments; its root is an object.
    pub input_schema: Schema,
    /// JSON Schema 2020-12 of the structured result, if it has one.
    pub output_schema: Option<Schema>,
    /// What the structured result is held against where no `output_schema` promises it.
    pub unpromised: Option<Schema>,
    /// Whether a call of it may or must be a job.
    pub job: AsJob,
    /// What stands for it.
    pub icons: Vec<Icon>,
    /// What else is said of it, for whoever shows it.
    pub meta: MetaFields,
    /// How wires list it.
    pub listed: Kept,
}

impl ToolSpec {
    /// What is known of the tool `id` at least; it takes an object and has no structured result.
    pub fn new(
        id: ToolId,
        title: impl Into<String>,
        about: impl Into<String>,
        effects: Effects,
    ) -> Self {
        Self {
            id,
            title: title.into(),
            about: about.into(),
            effects,
            ruled_as: None,
            open_world: None,
            tags: Vec::new(),
            paths: Vec::new(),
            idempotent: false,
            deadline: None,
            at_once: None,
            among: None,
            priority: 0,
            input_schema: serde_json::json!({ "type": "object" }).into(),
            output_schema: None,
            unpromised: None,
            job: AsJob::May,
            icons: Vec::new(),
            meta: MetaFields::new(),
            listed: Kept::default(),
        }
    }
}

/// A tool whose types are forgotten, as the catalog holds it.
pub trait AnyTool: Send + Sync + 'static {
    /// What is known of it without running it.
    fn spec(&self) -> &ToolSpec;
    /// The input with its other spellings gone, before it is checked against the schema.
    fn normalised(&self, input: Value) -> Value {
        input
    }
    /// Looks, before the work begins and before a job is made of it; see [`Tool::before`].
    fn before<'a>(
        &'a self,
        _ctx: &'a Ctx,
        _input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }
    /// Whether [`AnyTool::before`] does anything.
    fn looks_before(&self) -> bool {
        false
    }
    /// Whether all of it is done with what looking before began, so that no job need be made of it.
    fn is_done(&self, _ahead: &Ahead) -> bool {
        false
    }
    /// Runs it on input that already satisfies its schema.
    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>>;
    /// Whether what it gave back is longer than is given at once.
    fn is_too_long(&self, _output: &Output) -> bool {
        false
    }
    /// What is given at once of what it gave back, where that is too long: once it was held against
    /// its schema, and has no secret in it.
    fn given(&self, _ctx: &Ctx, output: Output) -> Result<Output, ToolError> {
        Ok(output)
    }
}

/// The same tool, which `icons` stand for.
pub fn with_icons(tool: Arc<dyn AnyTool>, icons: Vec<Icon>) -> Arc<dyn AnyTool> {
    let spec = ToolSpec { icons, ..tool.spec().clone() };
    Arc::new(Pictured { spec, tool })
}

struct Pictured {
    spec: ToolSpec,
    tool: Arc<dyn AnyTool>,
}

impl AnyTool for Pictured {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn normalised(&self, input: Value) -> Value {
        self.tool.normalised(input)
    }

    fn before<'a>(
        &'a self,
        ctx: &'a Ctx,
        input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        self.tool.before(ctx, input)
    }

    fn looks_before(&self) -> bool {
        self.tool.looks_before()
    }

    fn is_done(&self, ahead: &Ahead) -> bool {
        self.tool.is_done(ahead)
    }

    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.tool.run(ctx, input)
    }

    fn is_too_long(&self, output: &Output) -> bool {
        self.tool.is_too_long(output)
    }

    fn given(&self, ctx: &Ctx, output: Output) -> Result<Output, ToolError> {
        self.tool.given(ctx, output)
    }
}

/// Forgets the types of `tool`.
///
/// # Panics
/// When `T::NAME` or `T::RULED_AS` is not a tool id: a mistake of the author, seen at start.
pub fn erase<T: Tool>(tool: T) -> Arc<dyn AnyTool> {
    let id = |name| ToolId::new(name).unwrap_or_else(|| panic!("`{name}` is not `toolset.verb`"));
    let spec = ToolSpec {
        id: id(T::NAME),
        title: T::TITLE.to_owned(),
        about: T::ABOUT.to_owned(),
        effects: T::EFFECTS,
        ruled_as: T::RULED_AS.map(id),
        open_world: None,
        tags: T::TAGS.iter().copied().map(str::to_owned).collect(),
        paths: T::PATHS.iter().copied().map(str::to_owned).collect(),
        idempotent: T::IDEMPOTENT,
        deadline: T::DEADLINE,
        at_once: None,
        among: None,
        priority: 0,
        input_schema: Schema::later(T::input_schema),
        output_schema: T::Output::schema(),
        unpromised: None,
        job: T::JOB,
        icons: Vec::new(),
        meta: MetaFields::new(),
        listed: Kept::default(),
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

    fn before<'a>(
        &'a self,
        ctx: &'a Ctx,
        input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async move { self.tool.before(ctx, &typed::<T>(input.clone())?).await })
    }

    fn looks_before(&self) -> bool {
        T::LOOKS_BEFORE
    }

    fn run<'a>(&'a self, ctx: &'a Ctx, input: Value) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async move {
            let output = self.tool.run(ctx, typed::<T>(input)?).await?;
            let value =
                output.value().map_err(|err| ToolError::because("the result is not JSON", err))?;
            let structured = self.spec.output_schema.is_some();
            let (text, ending) = (T::text(&output), T::ending(&output));
            let (content, meta) = (output.content(), MetaFields::new());
            Ok(Output { value, structured, text, content, meta, ending })
        })
    }
}

fn typed<T: Tool>(input: Value) -> Result<T::Input, ToolError> {
    let input = if !T::VERBATIM && has_float(&input) { with_integers(input) } else { input };
    serde_json::from_value(input).map_err(|err| ToolError::invalid("", err.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_that_end_whoever_makes_them_ready_are_odd() {
        let nested = |depth: usize| "{".repeat(depth) + "a" + &"}".repeat(depth);
        assert_eq!(odd_glob(&nested(50)), None);
        assert_eq!(odd_glob("src/**/*.{rs,toml}"), None);
        assert!(odd_glob(&nested(51)).is_some_and(|why| why.contains("nest deeper than 50")));
        assert!(odd_glob(&"a".repeat(8193)).is_some_and(|why| why.contains("8193 bytes")));
    }
}
