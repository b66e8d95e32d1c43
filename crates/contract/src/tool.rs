//! Tools: the typed trait that authors implement, and the untyped trait that the host uses.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::{
    ContentBlock, Effects, EncodedJsonCache, JobSupport, LazySchema, MetaFields, PreparedCallValue,
    ResultText, ToolContext, ToolError, ToolFuture, ToolId, ToolOutput, ToolRunStatus, ToolSpec,
    exact_json, schema_of,
};

/// A tool with typed input and output: one action that an agent can call.
pub trait Tool: Send + Sync + 'static {
    /// The id of the tool, `toolset.verb` or a single verb.
    const NAME: &'static str;
    /// A short name of the tool for people, e.g. `Read file`.
    const TITLE: &'static str;
    /// A description of the tool for the agent: the action and advice on its use.
    const DESCRIPTION: &'static str;
    /// The kind of changes that a run of the tool can make.
    const EFFECTS: Effects;
    /// A tool whose rules for denial, confirmation and rates also apply to this tool. A tool that
    /// runs programs from the caller uses `exec.run`.
    const RULED_AS: Option<&'static str> = None;
    /// True if two runs of the tool with the same input have the same effect as one.
    const IDEMPOTENT: bool = false;
    /// True if a result of the tool may leave out a part of a program's output, and refer to
    /// [`OUTPUT_TOOL`](crate::OUTPUT_TOOL) for it.
    const STORES_OUTPUT: bool = false;
    /// The time limit of one call of the tool. `None` is the configured default.
    const DEADLINE: Option<Duration> = None;
    /// The rule that decides if calls of the tool run as jobs: never, optionally, preferably or
    /// always.
    const JOB: JobSupport = JobSupport::Optional;
    /// True if the tool implements [`Tool::prepare`].
    const HAS_PREPARE: bool = false;
    /// True if the arguments contain JSON documents that must keep floats such as `2.0`. Other
    /// tools receive `2`.
    const KEEPS_FLOATS: bool = false;
    /// Tags of the tool for policy rules, in addition to the id and the effects.
    const TAGS: &'static [&'static str] = &[];
    /// The names of arguments that are workspace paths. Policy rules match these paths after
    /// normalization.
    const PATHS: &'static [&'static str] =
        &["path", "paths", "source", "destination", "cwd", "folder", "file", "project", "repo"];
    /// Names that models guess for arguments of this tool, each with the argument that it means.
    /// `edits[].old_string` is a field of each item of `edits`. The names that all tools share are
    /// accepted as well.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];
    /// Arguments that are left out of tool lists for models, because an agent rarely needs them.
    /// Calls accept these arguments.
    const RARE_ARGUMENTS: &'static [&'static str] = &[];
    /// False if tool lists for models leave the tool out, because another tool does the same. A
    /// call by its name still works.
    const LISTED: bool = true;
    /// The type of the arguments. Use [`NoInput`] if there are none.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// The type of the result: a serializable type with a schema, or [`UnstructuredResult`] for
    /// content without structure.
    type Output: TypedToolResult;

    /// Returns the schema of the tool's arguments. Callers see this schema, and the server
    /// validates calls against it.
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

    /// Runs the tool: does its work and returns the result.
    fn run(
        &self,
        ctx: &ToolContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, ToolError>> + Send;

    /// Returns the result of the tool as text. By default, this is its JSON.
    fn result_text(output: &Self::Output) -> ResultText {
        output.text()
    }

    /// Returns the status with which the tool's work ended, for tools that return a result even
    /// after a failure.
    fn ending(_output: &Self::Output) -> ToolRunStatus {
        ToolRunStatus::Done
    }
}

/// Result of a tool with static types, which is converted to a [`ToolOutput`].
pub trait TypedToolResult: Send + 'static {
    /// Returns the JSON Schema of the tool's structured result, if it has one.
    fn schema() -> Option<LazySchema>;
    /// Returns the structured result of the tool.
    ///
    /// # Errors
    /// Fails if the result cannot be serialized as JSON.
    fn value(&self) -> Result<Value, serde_json::Error>;
    /// Returns the result of the tool as text for a person or a model.
    fn text(&self) -> ResultText;
    /// Returns further content of the result, to show with the text.
    fn content(self) -> Vec<ContentBlock>;
    /// Returns the structured result and the further content. A result with a long text moves the
    /// text instead of copying it.
    ///
    /// # Errors
    /// Fails if the result cannot be serialized as JSON.
    fn into_value_and_content(self) -> Result<(Value, Vec<ContentBlock>), serde_json::Error>
    where
        Self: Sized,
    {
        let value = self.value()?;
        Ok((value, self.content()))
    }
}

impl<T: Serialize + JsonSchema + Send + 'static> TypedToolResult for T {
    fn schema() -> Option<LazySchema> {
        Some(LazySchema::for_type::<T>())
    }

    fn value(&self) -> Result<Value, serde_json::Error> {
        exact_json::to_value(self)
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
pub struct UnstructuredResult(pub Vec<ContentBlock>);

impl UnstructuredResult {
    /// Creates a tool's result of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![ContentBlock::text(text)])
    }
}

impl TypedToolResult for UnstructuredResult {
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

/// The arguments of a tool that has none: an empty object.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoInput {}

/// A tool without its static types, as the catalog stores it.
pub trait AnyTool: Send + Sync + 'static {
    /// Returns the description of the tool.
    fn spec(&self) -> &ToolSpec;
    /// Rewrites alternative spellings of the tool's arguments, before the schema check.
    fn normalize_input(&self, input: Value) -> Value {
        input
    }
    /// Returns the program and the arguments that a call with `input` would run, if the tool runs
    /// one command line. `input` has not been validated.
    fn command_line(&self, _input: &Value) -> Option<Vec<String>> {
        None
    }
    /// Checks the call before the work begins. See [`Tool::prepare`].
    fn prepare<'a>(&'a self, _ctx: &'a ToolContext, _input: &'a Value) -> ToolFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Returns true if [`AnyTool::prepare`] is implemented.
    fn has_prepare(&self) -> bool {
        false
    }
    /// Returns true if [`AnyTool::prepare`] has already finished the work, so that no job is
    /// needed.
    fn is_done(&self, _ahead: &PreparedCallValue) -> bool {
        false
    }
    /// Runs the tool on input that satisfies its schema.
    fn run<'a>(&'a self, ctx: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput>;
    /// Returns true if `output` of the tool is too long to send in full with the answer.
    fn is_too_long(&self, _ctx: &ToolContext, _output: &ToolOutput) -> bool {
        false
    }
    /// Returns a text with the settings that decide what the tool does, beyond its spec. Servers
    /// with different texts do not run each other's jobs of the tool.
    fn settings_fingerprint(&self) -> String {
        String::new()
    }
    /// Returns true if a call needs the token that authenticated its caller. A job of the tool runs
    /// only at the server that accepted it, because no token is stored.
    fn needs_caller_token(&self) -> bool {
        false
    }
    /// Returns the part of a long `output` that is sent with the answer. `output` has been
    /// validated and redacted.
    fn shorten<'a>(
        &'a self,
        _ctx: &'a ToolContext,
        output: ToolOutput,
    ) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move { Ok(output) })
    }
}

/// Returns `tool` with `spec` instead of its own description.
pub fn with_spec(tool: Arc<dyn AnyTool>, spec: ToolSpec) -> Arc<dyn AnyTool> {
    Arc::new(SpecOverrideTool { spec, tool })
}

/// Tool whose own description is replaced.
struct SpecOverrideTool {
    spec: ToolSpec,
    tool: Arc<dyn AnyTool>,
}

impl AnyTool for SpecOverrideTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn normalize_input(&self, input: Value) -> Value {
        self.tool.normalize_input(input)
    }

    fn command_line(&self, input: &Value) -> Option<Vec<String>> {
        self.tool.command_line(input)
    }

    fn prepare<'a>(&'a self, ctx: &'a ToolContext, input: &'a Value) -> ToolFuture<'a, ()> {
        self.tool.prepare(ctx, input)
    }

    fn has_prepare(&self) -> bool {
        self.tool.has_prepare()
    }

    fn is_done(&self, ahead: &PreparedCallValue) -> bool {
        self.tool.is_done(ahead)
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput> {
        self.tool.run(ctx, input)
    }

    fn is_too_long(&self, ctx: &ToolContext, output: &ToolOutput) -> bool {
        self.tool.is_too_long(ctx, output)
    }

    fn settings_fingerprint(&self) -> String {
        self.tool.settings_fingerprint()
    }

    fn needs_caller_token(&self) -> bool {
        self.tool.needs_caller_token()
    }

    fn shorten<'a>(
        &'a self,
        ctx: &'a ToolContext,
        output: ToolOutput,
    ) -> ToolFuture<'a, ToolOutput> {
        self.tool.shorten(ctx, output)
    }
}

/// Converts a typed tool to an [`AnyTool`].
///
/// # Panics
/// Panics if `T::NAME` or `T::RULED_AS` is not a tool id. This is a mistake of the author that
/// shows at startup.
pub fn erase_tool<T: Tool>(tool: T) -> Arc<dyn AnyTool> {
    let id = |name| ToolId::new(name).unwrap_or_else(|| panic!("`{name}` is not `toolset.verb`"));
    let spec = ToolSpec {
        id: id(T::NAME),
        title: T::TITLE.to_owned(),
        description: T::DESCRIPTION.to_owned(),
        effects: T::EFFECTS,
        announced_effects: None,
        ruled_as: T::RULED_AS.map(id),
        open_world: None,
        tags: T::TAGS.iter().copied().map(str::to_owned).collect(),
        paths: T::PATHS.iter().copied().map(str::to_owned).collect(),
        aliases: T::ALIASES,
        rare_arguments: T::RARE_ARGUMENTS,
        listed: T::LISTED,
        idempotent: T::IDEMPOTENT,
        stores_output: T::STORES_OUTPUT,
        deadline: T::DEADLINE,
        concurrency_max: None,
        group: None,
        priority: 0,
        input_schema: LazySchema::lazy(T::input_schema),
        output_schema: T::Output::schema(),
        job: T::JOB,
        icons: Vec::new(),
        meta: MetaFields::new(),
        list_cache: EncodedJsonCache::default(),
    };
    Arc::new(TypeErasedTool { spec, tool })
}

/// Adapter that makes an [`AnyTool`] from a [`Tool`].
struct TypeErasedTool<T> {
    spec: ToolSpec,
    tool: T,
}

impl<T: Tool> AnyTool for TypeErasedTool<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare<'a>(&'a self, ctx: &'a ToolContext, input: &'a Value) -> ToolFuture<'a, ()> {
        Box::pin(async move { self.tool.prepare(ctx, &parse_input::<T>(input.clone())?).await })
    }

    fn has_prepare(&self) -> bool {
        T::HAS_PREPARE
    }

    fn run<'a>(&'a self, ctx: &'a ToolContext, input: Value) -> ToolFuture<'a, ToolOutput> {
        Box::pin(async move {
            let output = self.tool.run(ctx, parse_input::<T>(input)?).await?;
            let text = T::result_text(&output);
            let ending = T::ending(&output);
            let (value, content) = output.into_value_and_content().map_err(|err| {
                let message =
                    "the tool's result cannot be written as JSON; this is a bug in the tool";
                ToolError::with_cause(message, err)
            })?;
            let structured = self.spec.output_schema.is_some();
            let meta = MetaFields::new();
            let from_upstream = false;
            Ok(ToolOutput { value, structured, text, content, meta, ending, from_upstream })
        })
    }
}

fn parse_input<T: Tool>(input: Value) -> Result<T::Input, ToolError> {
    let input = if T::KEEPS_FLOATS {
        input
    } else {
        if let Some(pointer) = find_infinite(&input) {
            return Err(ToolError::invalid(pointer, "the number is too large"));
        }
        if has_other_form(&input) { with_integers(input) } else { input }
    };
    serde_json::from_value(input).map_err(|err| ToolError::invalid("", err.to_string()))
}

/// Returns the JSON pointer to the first number such as `1E400`, which would be infinite for the
/// tool.
fn find_infinite(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => number.as_f64().is_none().then(String::new),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(nth, item)| find_infinite(item).map(|below| format!("/{nth}{below}"))),
        Value::Object(fields) => fields.iter().find_map(|(name, field)| {
            let below = find_infinite(field)?;
            Some(format!("/{}{below}", name.replace('~', "~0").replace('/', "~1")))
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Returns true if `value` contains a number that is not written as a 64-bit integer, such as
/// `2.0`.
fn has_other_form(value: &Value) -> bool {
    match value {
        Value::Number(number) => is_other_form(number),
        Value::Array(items) => items.iter().any(has_other_form),
        Value::Object(fields) => fields.values().any(has_other_form),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Returns true if `number` is not written as a 64-bit integer, such as `2.0`, `2e0` or `-0`.
fn is_other_form(number: &Number) -> bool {
    number.as_u64().is_none() && (number.as_i64().is_none() || number.as_str() == "-0")
}

/// Replaces numbers such as `2.0` with `2`. JSON Schema treats both as integers, but Rust's
/// deserializers do not.
fn with_integers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // Above 2^53, a float may differ from the integer that was sent.
            Some(float) if is_other_form(&number) && float.fract() == 0.0 && float.abs() < 9e15 => {
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
