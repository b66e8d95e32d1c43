//! Compiles each schema once. Equal schemas share one validator.
//!
//! A tool's schemas are compiled at its first call, because most tools are never called. Schemas of
//! upstreams are measured before that.

mod compile;
mod repair;
mod validation_pool;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};
use toolgate_budget::{BlockingWorkPool, BoundedSchemaValidator, MemoryBudget, SchemaSize};
use toolgate_contract::{
    BoxFuture, CallError, LazySchema, RenamedArguments, ToolId, ToolSpec, ValidationProblem,
    canonical_json, fold_name, lock_mutex,
};

use crate::schema_errors;
use compile::{check_form, compile};
use validation_pool::{is_small, new_pool, validation_refusal};

/// Prefix of a tool's canonical id in the schemas.
const CANONICAL_PREFIX: &str = "mcp.tool:";
/// Maximum number of schema violations that are reported for one value.
const PROBLEMS_MAX: usize = 8;
/// Maximum memory of collected schema violations in bytes. Beyond it, only the first is reported.
const ERRORS_BYTES_MAX: u64 = 32 << 20;
/// Maximum memory of all compiled schemas, in bytes.
const SCHEMA_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of comparisons (about 1 ms) in a validation on a thread that serves calls.
const DIRECT_COMPARISONS_MAX: u64 = 20_000;
/// Maximum number of passes that repair a call's arguments. Unquoted values need a second pass.
const REPAIR_ROUNDS_MAX: usize = 2;

/// Id of a schema of messages that is shared by all tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedSchemaId {
    /// Schema of the envelope with the outcome of a call.
    Envelope,
    /// Schema of one request in a log of requests.
    RequestEnvelope,
    /// Schema of the data that all tool calls have in common.
    ToolIo,
}

/// Direction of a tool's schema: its input or its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToolSchemaDirection {
    /// Schema of a tool's input.
    Input,
    /// Schema of a tool's output.
    Output,
}

/// Schemas from files, read once when the server starts.
#[derive(Debug, Clone, Default)]
pub struct SchemaFiles {
    /// Schemas that apply in addition to the built-in shared ones.
    pub shared: Vec<(SharedSchemaId, SchemaFile)>,
    /// Additional schemas of tools, with the tool's id in any spelling.
    pub tools: Vec<(String, ToolSchemaDirection, SchemaFile)>,
}

/// A schema and the path of its file.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    /// Path of the schema's file, for messages.
    pub path: String,
    /// The schema in the file.
    pub schema: Value,
}

/// All schemas in use, each compiled at most once.
pub struct SchemaRegistry {
    compiled: Arc<CompiledSchemaCache>,
    pool: BlockingWorkPool,
    shared: Vec<SharedSchema>,
    files: BTreeMap<(String, ToolSchemaDirection), SchemaFile>,
    /// Validators of the tools' inputs and outputs, by the tool's id with `_` for each separator.
    tools: Mutex<BTreeMap<String, Arc<ToolIoValidators>>>,
    loaded_count: AtomicUsize,
}

/// A validator of values for one schema, compiled when it is first used.
#[derive(Clone)]
pub struct LazySchemaValidator {
    schema: LazySchema,
    /// Path of the file from which the schema comes, if any.
    path: Option<String>,
    compiled: OnceLock<Result<(SchemaFingerprint, Arc<BoundedSchemaValidator>), String>>,
    /// All validators in use, shared among equal schemas.
    all_compiled: Arc<CompiledSchemaCache>,
}

/// Validators for the input and output of one tool.
#[derive(Clone)]
pub struct ToolIoValidators {
    /// Canonical id of the tool.
    pub tool: String,
    shared: Vec<LazySchemaValidator>,
    input: Vec<LazySchemaValidator>,
    output: Vec<LazySchemaValidator>,
    /// Threads for validations that may take long.
    pool: BlockingWorkPool,
}

/// Identity of a schema: the SHA-256 of its canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaFingerprint([u8; 32]);

/// A schema that cannot be used, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}{why}", path.as_ref().map(|path| format!("the schema {path} is not usable: ")).unwrap_or_default())]
pub struct SchemaError {
    /// Path of the file from which the schema comes, if any.
    pub path: Option<String>,
    /// Description of the problem with the schema.
    pub why: String,
}

/// Reasons why the validators of a tool cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolIoError {
    /// The tool's id is not a canonical id.
    #[error("`{0}` is not a canonical tool id such as `mcp.tool:docs.load.fetch`")]
    NotCanonical(String),
    /// No tool has this id.
    #[error("no tool is named `{0}`")]
    Unknown(String),
}

/// Compiled schemas that are still in use, and the memory that they take.
struct CompiledSchemaCache {
    /// Validators by the SHA-256 of their schema's canonical JSON.
    validators: Mutex<HashMap<SchemaFingerprint, Weak<BoundedSchemaValidator>>>,
    memory: MemoryBudget,
    errors_memory: MemoryBudget,
}

/// A shared schema and the file that narrows it, if there is one. Both are compiled when they are
/// first used.
struct SharedSchema {
    which: SharedSchemaId,
    file: Option<SchemaFile>,
    /// Validators of the built-in schema and of the file's schema.
    checkers: OnceLock<Vec<LazySchemaValidator>>,
}

/// Counters of loaded schemas and compiled validators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaCounts {
    /// Number of times that a schema was requested.
    pub schemas_loaded: usize,
    /// Number of different schemas that are compiled, once each.
    pub validators_compiled: usize,
}

impl SharedSchemaId {
    /// All shared schemas of messages.
    pub const ALL: [Self; 3] = [Self::Envelope, Self::RequestEnvelope, Self::ToolIo];

    /// Returns the file name of the built-in shared schema.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope.schema.json",
            Self::RequestEnvelope => "request_envelope.schema.json",
            Self::ToolIo => "tool_io.schema.json",
        }
    }

    /// Returns the JSON text of the built-in shared schema.
    pub fn builtin_text(self) -> &'static str {
        match self {
            Self::Envelope => include_str!("../../../schemas/envelope.schema.json"),
            Self::RequestEnvelope => include_str!("../../../schemas/request_envelope.schema.json"),
            Self::ToolIo => include_str!("../../../schemas/tool_io.schema.json"),
        }
    }
}

impl ToolSchemaDirection {
    /// Returns the direction as the word `input` or `output`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl SchemaRegistry {
    /// Creates a registry of the built-in schemas and of `files`.
    ///
    /// # Errors
    /// A file is not a valid schema. The error names the file.
    pub fn new(files: SchemaFiles) -> Result<Self, SchemaError> {
        let shared = SharedSchemaId::ALL.map(|which| {
            let mut found = files.shared.iter().filter(|(other, _)| *other == which);
            let file = found.next_back().map(|(_, file)| file.clone());
            SharedSchema { which, file, checkers: OnceLock::new() }
        });
        let files = files.tools.into_iter();
        let files = files.map(|(tool, side, file)| ((fold_name(&tool).into_owned(), side), file));
        let registry = Self {
            compiled: Arc::new(CompiledSchemaCache {
                validators: Mutex::default(),
                memory: MemoryBudget::new(SCHEMA_BYTES_MAX),
                errors_memory: MemoryBudget::new(ERRORS_BYTES_MAX),
            }),
            pool: new_pool(),
            shared: shared.into(),
            files: files.collect(),
            tools: Mutex::default(),
            loaded_count: AtomicUsize::new(0),
        };
        let from_files = registry.shared.iter().filter_map(|entry| entry.file.as_ref());
        for file in from_files.chain(registry.files.values()) {
            registry.checker_from_file(file)?;
        }
        registry.loaded_count.store(0, Ordering::Relaxed);
        Ok(registry)
    }

    /// Returns the validator of envelopes. If a file narrows the built-in schema, returns the
    /// validator of the file's schema.
    pub fn load_envelope(&self) -> &LazySchemaValidator {
        self.shared(SharedSchemaId::Envelope)
    }

    /// Returns the validator of the shared schema `which`. If a file narrows that schema, returns
    /// the validator of the file's schema.
    pub fn shared(&self, which: SharedSchemaId) -> &LazySchemaValidator {
        self.shared_checkers(which).last().expect("the built-in schema is always there")
    }

    /// Returns the violations of a shared schema by `value`: first of the built-in schema `which`,
    /// then of the file that narrows it.
    pub fn shared_problems(&self, which: SharedSchemaId, value: &Value) -> Vec<ValidationProblem> {
        first_problems(self.shared_checkers(which), value)
    }

    fn shared_checkers(&self, which: SharedSchemaId) -> &[LazySchemaValidator] {
        let found = self.shared.iter().find(|entry| entry.which == which);
        let SharedSchema { file, checkers, .. } =
            found.expect("there is one of each from the start");
        checkers.get_or_init(|| {
            let schema: Value = serde_json::from_str(which.builtin_text()).expect("it is JSON");
            let builtin = self.new_checker(schema.into(), None);
            // Schemas from files were compiled at the start.
            let file = file.as_ref().map(|file| self.checker_from_file(file).expect("a schema"));
            [builtin].into_iter().chain(file).collect()
        })
    }

    /// Returns the validators of the tool `id`, for example `mcp.tool:docs.load.fetch`.
    ///
    /// # Errors
    /// The id is not canonical, or no tool of the catalog has it.
    pub fn load_tool_io(&self, id: &str) -> Result<Arc<ToolIoValidators>, ToolIoError> {
        let name = canonical_name(id).ok_or_else(|| ToolIoError::NotCanonical(id.to_owned()))?;
        let tools = lock_mutex(&self.tools);
        tools.get(&*fold_name(name)).cloned().ok_or_else(|| ToolIoError::Unknown(id.to_owned()))
    }

    /// Registers the schemas of `spec`. Returns the tool's validators or the first schema error.
    pub(crate) fn register(
        &self,
        spec: &ToolSpec,
    ) -> Result<Arc<ToolIoValidators>, (ToolSchemaDirection, SchemaError)> {
        let folded = fold_name(spec.id.as_str()).into_owned();
        let checkers = |side: ToolSchemaDirection, own: Option<&LazySchema>| {
            let own = own.map(|schema| self.new_checker(schema.clone(), None));
            let file =
                self.files.get(&(folded.clone(), side)).map(|file| self.checker_from_file(file));
            let file = file.transpose().map_err(|err| (side, err))?;
            Ok([own, file].into_iter().flatten().collect::<Vec<_>>())
        };
        let io = Arc::new(ToolIoValidators {
            tool: format!("{CANONICAL_PREFIX}{}", spec.id),
            shared: self.shared_checkers(SharedSchemaId::ToolIo).to_vec(),
            input: checkers(ToolSchemaDirection::Input, Some(&spec.input_schema))?,
            output: checkers(ToolSchemaDirection::Output, spec.output_schema.as_ref())?,
            pool: self.pool.clone(),
        });
        let mut tools = lock_mutex(&self.tools);
        tools.insert(folded, io.clone());
        Ok(io)
    }

    /// Removes the validators of the tool `id`, which is no longer available.
    pub(crate) fn unregister(&self, id: &ToolId) {
        let mut tools = lock_mutex(&self.tools);
        tools.remove(&*fold_name(id.as_str()));
    }

    /// Returns the number of times that schemas were requested, and the number of compiled
    /// validators.
    pub fn counts(&self) -> SchemaCounts {
        let compiled = lock_mutex(&self.compiled.validators);
        SchemaCounts {
            schemas_loaded: self.loaded_count.load(Ordering::Relaxed),
            validators_compiled: compiled.values().filter(|it| it.strong_count() > 0).count(),
        }
    }

    /// Measures the schemas of one tool and checks that they are valid, without compiling them.
    ///
    /// # Errors
    /// The first schema that is invalid or too large.
    pub(crate) fn check_tool(io: &ToolIoValidators) -> Result<(), (ToolSchemaDirection, String)> {
        for side in [ToolSchemaDirection::Input, ToolSchemaDirection::Output] {
            for checker in io.checkers(side) {
                SchemaSize::measure(&checker.schema).map_err(|why| (side, why))?;
                check_form(&checker.schema).map_err(|why| (side, why))?;
            }
        }
        Ok(())
    }

    /// Compiles the schemas of all tools.
    ///
    /// # Errors
    /// The first invalid schema and its tool.
    pub fn check_all(&self) -> Result<(), (ToolId, ToolSchemaDirection, SchemaError)> {
        let tools = lock_mutex(&self.tools);
        for io in tools.values() {
            let id = canonical_name(&io.tool).and_then(ToolId::foreign);
            for side in [ToolSchemaDirection::Input, ToolSchemaDirection::Output] {
                for checker in io.checkers(side) {
                    checker.compile().map_err(|why| {
                        let id = id.clone().expect("it was made of one");
                        let why = why.to_owned();
                        (id, side, SchemaError { path: checker.path.clone(), why })
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Creates the validator of the schema in `file` and compiles the schema at once.
    fn checker_from_file(&self, file: &SchemaFile) -> Result<LazySchemaValidator, SchemaError> {
        let path = Some(file.path.clone());
        let checker = self.new_checker(file.schema.clone().into(), path.clone());
        match checker.compile() {
            Ok(_) => Ok(checker),
            Err(why) => Err(SchemaError { path, why: why.to_owned() }),
        }
    }

    /// Creates a validator of `schema` without compiling the schema.
    fn new_checker(&self, schema: LazySchema, path: Option<String>) -> LazySchemaValidator {
        self.loaded_count.fetch_add(1, Ordering::Relaxed);
        let compiled = OnceLock::new();
        let all = self.compiled.clone();
        LazySchemaValidator { schema, path, compiled, all_compiled: all }
    }
}

impl Default for SchemaRegistry {
    fn default() -> Self {
        Self::new(SchemaFiles::default()).expect("no file is read")
    }
}

impl fmt::Debug for SchemaRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchemaRegistry").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl LazySchemaValidator {
    /// Returns the schema violations of `value`, at most 8. The list is empty if `value` matches
    /// the schema.
    pub fn problems(&self, value: &Value) -> Vec<ValidationProblem> {
        let whole = |message: String| vec![ValidationProblem { pointer: String::new(), message }];
        let compiled = match self.compile() {
            Ok((_, compiled)) => compiled,
            Err(why) => {
                return whole(format!("the value cannot be validated: invalid schema: {why}"));
            }
        };
        match compiled.check(value) {
            Ok(true) => return Vec::new(),
            Ok(false) => {}
            Err(why) => return whole(why),
        }
        let Some(errors) = compiled.errors(value, &self.all_compiled.errors_memory) else {
            let message = "the value does not match the schema; the problem cannot be located, \
                           because the value is too large or the schema too recursive";
            return whole(message.to_owned());
        };
        let problems = errors.take(PROBLEMS_MAX).map(|error| ValidationProblem {
            pointer: schema_errors::shorten_middle(error.instance_path().as_str()),
            message: schema_errors::describe_error(&error, &self.schema),
        });
        let problems: Vec<_> = problems.collect();
        if problems.is_empty() {
            return whole(
                "a string in the value takes too long to match a pattern of the schema".to_owned(),
            );
        }
        problems
    }

    /// Returns true if a regular expression of the schema may take many steps.
    fn may_backtrack(&self) -> bool {
        self.compile().is_ok_and(|(_, compiled)| compiled.may_backtrack())
    }

    /// Returns true if the schema is compiled, and the validation of `value` takes little time.
    fn is_cheap_for(&self, value: &Value) -> bool {
        let compiled = self.compiled.get().and_then(|compiled| compiled.as_ref().ok());
        compiled.is_some_and(|(_, compiled)| compiled.is_cheap_for(value, DIRECT_COMPARISONS_MAX))
    }

    /// Returns `value` with `null` and quoted numbers replaced as the schema demands, or `None` if
    /// that changes nothing.
    fn repair(&self, value: &Value) -> Option<Value> {
        let (_, compiled) = self.compile().ok()?;
        repair::repair(compiled.errors(value, &self.all_compiled.errors_memory)?, value)
    }

    /// Returns the schema against which values are validated.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Returns the fingerprint of the schema, which is equal for equal schemas.
    pub fn fingerprint(&self) -> SchemaFingerprint {
        match self.compile() {
            Ok((fingerprint, _)) => *fingerprint,
            Err(_) => SchemaFingerprint::from_schema(&self.schema),
        }
    }

    /// Returns the compiled schema, which equal schemas share, or the reason why it is unusable.
    fn compile(&self) -> Result<&(SchemaFingerprint, Arc<BoundedSchemaValidator>), &str> {
        let compiled = self.compiled.get_or_init(|| {
            let fingerprint = SchemaFingerprint::from_schema(&self.schema);
            let known =
                lock_mutex(&self.all_compiled.validators).get(&fingerprint).and_then(Weak::upgrade);
            let compiled = match known {
                Some(compiled) => compiled,
                None => {
                    let compiled = Arc::new(compile(&self.schema, &self.all_compiled.memory)?);
                    let mut all = lock_mutex(&self.all_compiled.validators);
                    // Tools of upstreams come and go, so unused validators are dropped here.
                    all.retain(|_, compiled| compiled.strong_count() > 0);
                    all.insert(fingerprint, Arc::downgrade(&compiled));
                    compiled
                }
            };
            Ok((fingerprint, compiled))
        });
        compiled.as_ref().map_err(String::as_str)
    }

    /// Returns the path of the file from which the schema comes, if any.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

/// Validation of a value: finished with its result, or running on another thread as a boxed future,
/// so that the future of a call stays small.
pub(crate) enum SchemaValidationTask<T> {
    /// Validation that is finished, with its result.
    Done(T),
    /// Validation on another thread, which fails if it takes too long.
    Waiting(BoxFuture<'static, Result<T, CallError>>),
}

impl ToolIoValidators {
    /// Runs `validate` with these validators and `value`: at once if that takes little time, and
    /// otherwise on another thread with a deadline. `is_foreign` is true for schemas that this
    /// server did not define.
    ///
    /// # Errors
    /// The validation takes too long, or all threads are busy.
    pub(crate) fn validate<T: Send + 'static>(
        self: &Arc<Self>,
        side: ToolSchemaDirection,
        value: Value,
        is_foreign: bool,
        validate: impl FnOnce(&Self, Value) -> T + Send + 'static,
    ) -> SchemaValidationTask<T> {
        let checkers = self.checkers(side);
        let is_direct = !is_foreign
            && is_small(&value)
            && !checkers.iter().any(LazySchemaValidator::may_backtrack);
        if is_direct || checkers.iter().all(|checker| checker.is_cheap_for(&value)) {
            return SchemaValidationTask::Done(validate(self, value));
        }
        let io = self.clone();
        SchemaValidationTask::Waiting(Box::pin(async move {
            let pool = io.pool.clone();
            let done = pool.run(move || validate(&io, value)).await;
            done.map_err(|refusal| validation_refusal(side, refusal))
        }))
    }

    /// Returns the schema violations of `io`, which is a whole call of the tool. Checks the part
    /// that is common to all tools first, then the tool's input.
    pub fn input_problems(&self, io: &Value) -> Vec<ValidationProblem> {
        let mut problems = first_problems(&self.shared, io);
        if problems.is_empty() && io["tool"] != self.tool.as_str() {
            let message = format!("it must be `{}`", self.tool);
            problems.push(ValidationProblem { pointer: "/tool".to_owned(), message });
        }
        if problems.is_empty() {
            let within = self.argument_problems(&io["input"]).into_iter();
            problems.extend(within.map(|ValidationProblem { pointer, message }| {
                ValidationProblem { pointer: format!("/input{pointer}"), message }
            }));
        }
        problems
    }

    /// Returns the schema violations of `input` as the tool's arguments.
    pub fn argument_problems(&self, input: &Value) -> Vec<ValidationProblem> {
        first_problems(&self.input, input)
    }

    /// Returns a copy of a tool's `input` with `null`, quoted values and property names corrected
    /// by the `spec`, if that copy is valid.
    pub(crate) fn repaired_arguments(&self, spec: &ToolSpec, input: &Value) -> Option<Value> {
        let mut value = input.clone();
        for _ in 0..REPAIR_ROUNDS_MAX {
            let mut has_changed = false;
            for checker in &self.input {
                if let Some(repaired) = checker.repair(&value) {
                    (value, has_changed) = (repaired, true);
                }
            }
            if !has_changed {
                return None;
            }
            // What was quoted may have guessed names.
            if let Some(named) = RenamedArguments::new(spec, &value) {
                value = named.input;
            }
            if self.argument_problems(&value).is_empty() {
                return Some(value);
            }
        }
        None
    }

    /// Returns the violations of the tool's own schemas by `output`, the tool's result.
    pub fn output_problems(&self, output: &Value) -> Vec<ValidationProblem> {
        first_problems(&self.output, output)
    }

    /// Returns the validators of the tool's input or output.
    pub fn checkers(&self, side: ToolSchemaDirection) -> &[LazySchemaValidator] {
        match side {
            ToolSchemaDirection::Input => &self.input,
            ToolSchemaDirection::Output => &self.output,
        }
    }
}

/// Returns the violations of the first schema that `value` does not match.
fn first_problems(checkers: &[LazySchemaValidator], value: &Value) -> Vec<ValidationProblem> {
    let mut broken = checkers.iter().map(|checker| checker.problems(value));
    broken.find(|problems| !problems.is_empty()).unwrap_or_default()
}

impl SchemaFingerprint {
    fn from_schema(schema: &Value) -> Self {
        Self(Sha256::digest(canonical_json(schema).as_bytes()).into())
    }
}

impl fmt::Display for SchemaFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// Returns the tool's own id within the canonical `id`, or `None` if `id` is not canonical.
fn canonical_name(id: &str) -> Option<&str> {
    let name = id.strip_prefix(CANONICAL_PREFIX)?;
    ToolId::foreign(name).map(|_| name)
}

#[cfg(test)]
mod tests;
