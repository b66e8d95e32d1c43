//! Tools: typed for their authors, without static types for the host.

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
    ContentBlock, Icon, JsonCache, LazySchema, MetaFields, ResultText, StartedWork, ToolContext,
    ToolError, ToolOutput, schema_of,
};

/// A boxed future that is `Send`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A tool with typed input and output: one action that an agent can call.
pub trait Tool: Send + Sync + 'static {
    /// The id, `toolset.verb` or a single verb.
    const NAME: &'static str;
    /// A short name for people, e.g. `Read file`.
    const TITLE: &'static str;
    /// A description for the agent: the action and advice on its use.
    const DESCRIPTION: &'static str;
    /// The kind of changes that a run can make.
    const EFFECTS: Effects;
    /// A tool whose rules for denial, confirmation and rates also apply to this one. A tool that
    /// runs caller-provided programs uses `exec.run`.
    const RULED_AS: Option<&'static str> = None;
    /// True if two runs with the same input have the effect of one.
    const IDEMPOTENT: bool = false;
    /// The time limit of one call. `None` is the configured default.
    const DEADLINE: Option<Duration> = None;
    /// The tool's relation to jobs: never, optional, preferred or always.
    const JOB: JobSupport = JobSupport::Optional;
    /// True if [`Tool::prepare`] is implemented.
    const HAS_PREPARE: bool = false;
    /// True if the arguments contain JSON documents that must keep floats such as `2.0`. Other
    /// tools receive `2`.
    const KEEPS_FLOATS: bool = false;
    /// Tags for policy rules, in addition to the id and the effects.
    const TAGS: &'static [&'static str] = &[];
    /// The arguments that are workspace paths. Policy rules match their normalized form.
    const PATHS: &'static [&'static str] =
        &["path", "paths", "source", "destination", "cwd", "folder", "file", "project", "repo"];
    /// The arguments. Use [`NoInput`] if there are none.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// The result: a serializable type with a schema, or [`ContentOnly`] for content without
    /// structure.
    type Output: ToolOutcome;

    /// Returns the schema of the arguments, which callers see and the gate checks.
    fn input_schema() -> Value {
        schema_of::<Self::Input>()
    }

    /// Checks the call before the work begins and before a job is created. Ask questions here if
    /// possible.
    fn prepare(
        &self,
        _ctx: &ToolContext,
        _input: &Self::Input,
    ) -> impl Future<Output = Result<(), ToolError>> + Send {
        async { Ok(()) }
    }

    /// Does the work.
    fn run(
        &self,
        ctx: &ToolContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;

    /// Returns the result as text; by default its JSON.
    fn decode_utf8(output: &Self::Output) -> ResultText {
        output.text()
    }

    /// Returns the way the work ended, for tools that return a result even after a failure.
    fn ending(_output: &Self::Output) -> CallEnding {
        CallEnding::Done
    }
}

/// A result of a typed tool.
pub trait ToolOutcome: Send + 'static {
    /// Returns the JSON Schema of the structured result, if there is one.
    fn schema() -> Option<LazySchema>;
    /// Returns the structured result.
    ///
    /// # Errors
    /// Fails if the result cannot be serialized as JSON.
    fn value(&self) -> Result<Value, serde_json::Error>;
    /// Returns the result as text for a person or a model.
    fn text(&self) -> ResultText;
    /// Returns further content to show with the text.
    fn content(self) -> Vec<ContentBlock>;
}

impl<T: Serialize + JsonSchema + Send + 'static> ToolOutcome for T {
    fn schema() -> Option<LazySchema> {
        Some(LazySchema::for_type::<T>())
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn text(&self) -> ResultText {
        ResultText::from_json(self)
    }

    fn content(self) -> Vec<ContentBlock> {
        Vec::new()
    }
}

/// A result without structure: text, images, audio and resources.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentOnly(pub Vec<ContentBlock>);

impl ContentOnly {
    /// Creates a result of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![ContentBlock::text(text)])
    }
}

impl ToolOutcome for ContentOnly {
    fn schema() -> Option<LazySchema> {
        None
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        Ok(Value::Null)
    }

    fn text(&self) -> ResultText {
        ResultText::default()
    }

    fn content(self) -> Vec<ContentBlock> {
        self.0
    }
}

/// Empty arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoInput {}

/// The relation of a tool to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JobSupport {
    /// Never a job.
    Never,
    /// A job if the caller requests one, or if the caller accepts jobs and the tool runs programs.
    #[default]
    Optional,
    /// A job if the caller accepts jobs or requests one.
    Preferred,
    /// Always a job.
    Required,
}

/// The way that work with a result ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallEnding {
    /// Success.
    Done,
    /// A program reported failure, by its exit code, a signal or a timeout.
    ProgramFailed,
    /// The tool reported failure. Its content explains the reason.
    ToolFailed,
}

/// The kind of changes that a tool can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effects {
    /// None.
    Reads,
    /// Additions only, such as a new folder or a copy.
    Adds,
    /// Overwriting and removal.
    Changes,
    /// Running programs, which can do everything that their sandbox allows.
    Runs,
}

/// The id of a tool, `toolset.verb`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolId(Arc<str>);

impl ToolId {
    /// Parses `id`: one or more `.`-separated parts of `[a-z0-9_]`. Returns `None` if it is
    /// malformed. Use [`ToolId::foreign`] for names of other servers.
    pub fn new(id: &str) -> Option<Self> {
        let parts = id.split('.');
        let sound = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        parts.into_iter().all(sound).then(|| Self(id.into()))
    }

    /// Parses the id of another server's tool: one or more `.`-separated parts of `[A-Za-z0-9_-]`.
    pub fn foreign(id: &str) -> Option<Self> {
        let sound = |part: &str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
            !part.is_empty() && part.bytes().all(known)
        };
        id.split('.').all(sound).then(|| Self(id.into()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first part, the name of the toolset.
    pub fn toolset(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl fmt::Display for ToolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The deepest nesting of braces in a glob.
const GLOB_DEPTH_MAX: usize = 50;
/// The longest glob in bytes.
const GLOB_BYTES_MAX: usize = 8 << 10;

/// Returns the reason to reject `glob`: longer than 8 KiB, or braces nested deeper than 50.
/// Compiling such a glob could exhaust the process.
pub fn glob_problem(glob: &str) -> Option<String> {
    if glob.len() > GLOB_BYTES_MAX {
        return Some(format!("it has {} bytes; at most {GLOB_BYTES_MAX} are taken", glob.len()));
    }
    let mut depth = 0_usize;
    let mut deepest = 0;
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

/// Replaces every separator in a tool's name with `_`.
///
/// `files.read`, `files/read`, `files-read` and `files_read` fold to the same string. The catalog
/// refuses two tools whose names fold to the same string.
pub fn fold_name(name: &str) -> Cow<'_, str> {
    const SEPARATORS: [char; 5] = ['.', '/', '-', ':', ' '];
    // This runs on every call, and most names need no change.
    match name.contains(SEPARATORS) {
        true => name.replace(SEPARATORS, "_").into(),
        false => name.into(),
    }
}

/// A concurrency group: its calls are counted separately from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrencyGroup {
    /// The group's name, e.g. its owner.
    pub name: Arc<str>,
    /// The most calls of the group that may run at once.
    pub concurrency_max: usize,
}

/// The description of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// The id.
    pub id: ToolId,
    /// A short name for people.
    pub title: String,
    /// A description for the agent.
    pub description: String,
    /// The kind of changes that a run can make.
    pub effects: Effects,
    /// A tool whose rules for denial, confirmation and rates also apply to this one.
    pub ruled_as: Option<ToolId>,
    /// True if the tool interacts with external systems such as the web. `None` means that it does
    /// if it runs programs.
    pub open_world: Option<bool>,
    /// Tags for policy rules, in addition to the id and the effects.
    pub tags: Vec<String>,
    /// The arguments that are workspace paths.
    pub paths: Vec<String>,
    /// True if a second run is harmless.
    pub idempotent: bool,
    /// The time limit of one call; `None` is the configured default.
    pub deadline: Option<Duration>,
    /// The most calls of this tool that may run at once; `None` is no separate limit.
    pub concurrency_max: Option<usize>,
    /// The concurrency group; `None` is the group of the server's own tools.
    pub group: Option<ConcurrencyGroup>,
    /// The priority among waiting jobs. Higher runs first.
    pub priority: i32,
    /// JSON Schema 2020-12 of the arguments. Its root is an object.
    pub input_schema: LazySchema,
    /// JSON Schema 2020-12 of the structured result, if it has one.
    pub output_schema: Option<LazySchema>,
    /// A schema that validates the result but is not published, used if there is no
    /// `output_schema`.
    pub unlisted_output_schema: Option<LazySchema>,
    /// The tool's relation to jobs.
    pub job: JobSupport,
    /// The icons.
    pub icons: Vec<Icon>,
    /// Further metadata for clients.
    pub meta: MetaFields,
    /// The cached list entries of the dialects.
    pub list_cache: JsonCache,
}

impl ToolSpec {
    /// Creates a minimal description: an object as input and no structured result.
    pub fn new(
        id: ToolId,
        title: impl Into<String>,
        about: impl Into<String>,
        effects: Effects,
    ) -> Self {
        Self {
            id,
            title: title.into(),
            description: about.into(),
            effects,
            ruled_as: None,
            open_world: None,
            tags: Vec::new(),
            paths: Vec::new(),
            idempotent: false,
            deadline: None,
            concurrency_max: None,
            group: None,
            priority: 0,
            input_schema: serde_json::json!({ "type": "object" }).into(),
            output_schema: None,
            unlisted_output_schema: None,
            job: JobSupport::Optional,
            icons: Vec::new(),
            meta: MetaFields::new(),
            list_cache: JsonCache::default(),
        }
    }
}

/// A tool without its static types, as the catalog stores it.
pub trait AnyTool: Send + Sync + 'static {
    /// Returns the description.
    fn spec(&self) -> &ToolSpec;
    /// Rewrites alternative spellings of arguments, before the schema check.
    fn normalize_input(&self, input: Value) -> Value {
        input
    }
    /// Checks the call before the work begins; see [`Tool::prepare`].
    fn prepare<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        _input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async { Ok(()) })
    }
    /// Returns true if [`AnyTool::prepare`] is implemented.
    fn has_prepare(&self) -> bool {
        false
    }
    /// Returns true if the check before the call has finished the work, so that no job is needed.
    fn is_done(&self, _ahead: &StartedWork) -> bool {
        false
    }
    /// Runs the tool on input that satisfies its schema.
    fn run<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: Value,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>>;
    /// Returns true if `output` is too long to return whole.
    fn is_too_long(&self, _output: &ToolOutput) -> bool {
        false
    }
    /// Returns the part of a long output to send at once. The output has been validated and
    /// redacted.
    fn shorten(&self, _ctx: &ToolContext, output: ToolOutput) -> Result<ToolOutput, ToolError> {
        Ok(output)
    }
}

/// Returns the tool with `icons`.
pub fn with_icons(tool: Arc<dyn AnyTool>, icons: Vec<Icon>) -> Arc<dyn AnyTool> {
    let spec = ToolSpec { icons, ..tool.spec().clone() };
    Arc::new(ToolWithIcons { spec, tool })
}

struct ToolWithIcons {
    spec: ToolSpec,
    tool: Arc<dyn AnyTool>,
}

impl AnyTool for ToolWithIcons {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn normalize_input(&self, input: Value) -> Value {
        self.tool.normalize_input(input)
    }

    fn prepare<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        self.tool.prepare(ctx, input)
    }

    fn has_prepare(&self) -> bool {
        self.tool.has_prepare()
    }

    fn is_done(&self, ahead: &StartedWork) -> bool {
        self.tool.is_done(ahead)
    }

    fn run<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: Value,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.tool.run(ctx, input)
    }

    fn is_too_long(&self, output: &ToolOutput) -> bool {
        self.tool.is_too_long(output)
    }

    fn shorten(&self, ctx: &ToolContext, output: ToolOutput) -> Result<ToolOutput, ToolError> {
        self.tool.shorten(ctx, output)
    }
}

/// Converts a typed tool to an [`AnyTool`].
///
/// # Panics
/// Panics if `T::NAME` or `T::RULED_AS` is not a tool id. This is a mistake of the author, found at
/// startup.
pub fn erase_tool<T: Tool>(tool: T) -> Arc<dyn AnyTool> {
    let id = |name| ToolId::new(name).unwrap_or_else(|| panic!("`{name}` is not `toolset.verb`"));
    let spec = ToolSpec {
        id: id(T::NAME),
        title: T::TITLE.to_owned(),
        description: T::DESCRIPTION.to_owned(),
        effects: T::EFFECTS,
        ruled_as: T::RULED_AS.map(id),
        open_world: None,
        tags: T::TAGS.iter().copied().map(str::to_owned).collect(),
        paths: T::PATHS.iter().copied().map(str::to_owned).collect(),
        idempotent: T::IDEMPOTENT,
        deadline: T::DEADLINE,
        concurrency_max: None,
        group: None,
        priority: 0,
        input_schema: LazySchema::lazy(T::input_schema),
        output_schema: T::Output::schema(),
        unlisted_output_schema: None,
        job: T::JOB,
        icons: Vec::new(),
        meta: MetaFields::new(),
        list_cache: JsonCache::default(),
    };
    Arc::new(ErasedTool { spec, tool })
}

struct ErasedTool<T> {
    spec: ToolSpec,
    tool: T,
}

impl<T: Tool> AnyTool for ErasedTool<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: &'a Value,
    ) -> BoxFuture<'a, Result<(), ToolError>> {
        Box::pin(async move { self.tool.prepare(ctx, &parse_input::<T>(input.clone())?).await })
    }

    fn has_prepare(&self) -> bool {
        T::HAS_PREPARE
    }

    fn run<'a>(
        &'a self,
        ctx: &'a ToolContext,
        input: Value,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let output = self.tool.run(ctx, parse_input::<T>(input)?).await?;
            let value = output
                .value()
                .map_err(|err| ToolError::with_cause("the result is not JSON", err))?;
            let structured = self.spec.output_schema.is_some();
            let text = T::decode_utf8(&output);
            let ending = T::ending(&output);
            let content = output.content();
            let meta = MetaFields::new();
            Ok(ToolOutput { value, structured, text, content, meta, ending })
        })
    }
}

fn parse_input<T: Tool>(input: Value) -> Result<T::Input, ToolError> {
    let input = if !T::KEEPS_FLOATS && has_float(&input) { with_integers(input) } else { input };
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

/// Replaces `2.0` with `2`. JSON Schema treats both as integers, but Rust's deserializers do not.
fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // Above 2^53, a float may differ from the integer that was sent.
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
        assert_eq!(glob_problem(&nested(50)), None);
        assert_eq!(glob_problem("src/**/*.{rs,toml}"), None);
        assert!(glob_problem(&nested(51)).is_some_and(|why| why.contains("nest deeper than 50")));
        assert!(glob_problem(&"a".repeat(8193)).is_some_and(|why| why.contains("8193 bytes")));
    }
}
