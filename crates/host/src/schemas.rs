//! Compiles schemas once and shares the validators: equal schemas have one validator.
//!
//! A tool's own schemas are compiled at its first call, since most tools are never called.

mod cost;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;
use sha2::{Digest, Sha256};
use toolgate_contract::{Problem, Schema, ToolId, ToolSpec, canonical_json, fold};

use crate::wording;
use cost::Size;

/// Prefix of a tool's canonical id.
const CANONICAL: &str = "mcp.tool:";
/// Most problems reported for one value.
const PROBLEMS_MAX: usize = 8;

/// A schema that belongs to no single tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Schema of the outcome of a call.
    Envelope,
    /// Schema of a request on a stream.
    RequestEnvelope,
    /// Schema of the common part of all tool calls.
    ToolIo,
}

/// Direction of a tool's schema: its input or its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Input of the tool.
    Input,
    /// Output of the tool.
    Output,
}

/// Schemas from files, read once at the start.
#[derive(Debug, Clone, Default)]
pub struct SchemaFiles {
    /// Replacements for the built-in shared schemas.
    pub shared: Vec<(Shared, SchemaFile)>,
    /// Additional schemas of tools, with the tool's id in any spelling.
    pub tools: Vec<(String, Side, SchemaFile)>,
}

/// A schema and the file that it comes from.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    /// Path of the file, for messages.
    pub path: String,
    /// The schema.
    pub schema: Value,
}

/// All schemas in use, each compiled at most once.
pub struct SchemaRegistry {
    /// Validators by the SHA-256 of their schema's canonical JSON.
    compiled: Arc<Mutex<InUse>>,
    shared: Vec<Kept>,
    files: BTreeMap<(String, Side), SchemaFile>,
    /// Validators of tools by folded tool id.
    tools: Mutex<BTreeMap<String, Arc<ToolIoValidators>>>,
    loaded: AtomicUsize,
}

/// A validator of values for one schema, compiled at its first use.
#[derive(Clone)]
pub struct Checker {
    schema: Schema,
    /// File of the schema, if it comes from one.
    path: Option<String>,
    compiled: OnceLock<Result<(Fingerprint, Arc<Compiled>), String>>,
    /// All validators in use, shared among equal schemas.
    all: Arc<Mutex<InUse>>,
}

/// Validators for the inputs and outputs of one tool.
#[derive(Clone)]
pub struct ToolIoValidators {
    /// Canonical id of the tool.
    pub tool: String,
    shared: Checker,
    input: Vec<Checker>,
    output: Vec<Checker>,
}

/// Identity of a schema: the SHA-256 of its canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

/// A schema that cannot be used, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}{why}", path.as_ref().map(|path| format!("the schema {path} is not usable: ")).unwrap_or_default())]
pub struct SchemaError {
    /// File of the schema, if it comes from one.
    pub path: Option<String>,
    /// Description of the problem.
    pub why: String,
}

/// Reasons why validators of a tool are not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoToolIo {
    /// The id has not the form of a canonical id.
    #[error("`{0}` is no canonical tool id; one reads `mcp.tool:docs.load.fetch`")]
    NotCanonical(String),
    /// No tool has this id.
    #[error("no tool is named `{0}`")]
    Unknown(String),
}

/// A compiled schema.
struct Compiled {
    validator: Validator,
    size: Size,
}

/// Compiled schemas that are still in use.
type InUse = HashMap<Fingerprint, Weak<Compiled>>;

/// A shared schema, compiled at its first use.
struct Kept {
    which: Shared,
    file: Option<SchemaFile>,
    checker: OnceLock<Checker>,
}

/// Counters of loaded schemas and compiled validators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of times that a schema was requested.
    pub schemas_loaded: usize,
    /// Number of different schemas in use, each compiled once.
    pub validators_compiled: usize,
}

impl Shared {
    /// All shared schemas.
    pub const ALL: [Self; 3] = [Self::Envelope, Self::RequestEnvelope, Self::ToolIo];

    /// Returns the file name of the built-in schema.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope.schema.json",
            Self::RequestEnvelope => "request_envelope.schema.json",
            Self::ToolIo => "tool_io.schema.json",
        }
    }

    /// Returns the text of the built-in schema.
    pub fn shipped(self) -> &'static str {
        match self {
            Self::Envelope => include_str!("../../../schemas/envelope.schema.json"),
            Self::RequestEnvelope => include_str!("../../../schemas/request_envelope.schema.json"),
            Self::ToolIo => include_str!("../../../schemas/tool_io.schema.json"),
        }
    }
}

impl Side {
    /// Returns `input` or `output`.
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
    /// If a file is not a valid schema; the error names the file.
    pub fn new(files: SchemaFiles) -> Result<Self, SchemaError> {
        let shared = Shared::ALL.map(|which| {
            let mut stands = files.shared.iter().filter(|(other, _)| *other == which);
            let file = stands.next_back().map(|(_, file)| file.clone());
            Kept { which, file, checker: OnceLock::new() }
        });
        let files = files.tools.into_iter();
        let files = files.map(|(tool, side, file)| ((fold(&tool).into_owned(), side), file));
        let registry = Self {
            compiled: Arc::default(),
            shared: shared.into(),
            files: files.collect(),
            tools: Mutex::default(),
            loaded: AtomicUsize::new(0),
        };
        let from_files = registry.shared.iter().filter_map(|kept| kept.file.as_ref());
        for file in from_files.chain(registry.files.values()) {
            registry.of_file(file)?;
        }
        registry.loaded.store(0, Ordering::Relaxed);
        Ok(registry)
    }

    /// Returns the validator of envelopes.
    pub fn load_envelope(&self) -> &Checker {
        self.shared(Shared::Envelope)
    }

    /// Returns the validator of the shared schema `which`.
    pub fn shared(&self, which: Shared) -> &Checker {
        let found = self.shared.iter().find(|kept| kept.which == which);
        let Kept { file, checker, .. } = found.expect("there is one of each from the start");
        checker.get_or_init(|| {
            let checker = match file {
                Some(file) => self.of_file(file),
                None => {
                    let schema: Value = serde_json::from_str(which.shipped()).expect("it is JSON");
                    Ok(self.checker(schema.into(), None))
                }
            };
            // Schemas from files were compiled at the start, and a test compiles the built-in ones.
            checker.expect("it is a schema")
        })
    }

    /// Returns the validators of the tool `id`, for example `mcp.tool:docs.load.fetch`.
    ///
    /// # Errors
    /// If the id is not canonical, or no tool of the catalog has it.
    pub fn load_tool_io(&self, id: &str) -> Result<Arc<ToolIoValidators>, NoToolIo> {
        let name = canonical(id).ok_or_else(|| NoToolIo::NotCanonical(id.to_owned()))?;
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.get(&*fold(name)).cloned().ok_or_else(|| NoToolIo::Unknown(id.to_owned()))
    }

    /// Registers the schemas of the tool `spec` and returns its validators.
    pub(crate) fn register(
        &self,
        spec: &ToolSpec,
    ) -> Result<Arc<ToolIoValidators>, (Side, SchemaError)> {
        let folded = fold(spec.id.as_str()).into_owned();
        let of = |side: Side, own: Option<&Schema>| {
            let own = own.map(|schema| self.checker(schema.clone(), None));
            let file = self.files.get(&(folded.clone(), side)).map(|file| self.of_file(file));
            let file = file.transpose().map_err(|err| (side, err))?;
            Ok([own, file].into_iter().flatten().collect::<Vec<_>>())
        };
        let io = Arc::new(ToolIoValidators {
            tool: format!("{CANONICAL}{}", spec.id),
            shared: self.shared(Shared::ToolIo).clone(),
            input: of(Side::Input, Some(&spec.input_schema))?,
            output: of(Side::Output, spec.output_schema.as_ref().or(spec.unpromised.as_ref()))?,
        });
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.insert(folded, io.clone());
        Ok(io)
    }

    /// Removes the validators of the tool `id`, which is no longer available.
    pub(crate) fn forget(&self, id: &ToolId) {
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.remove(&*fold(id.as_str()));
    }

    /// Returns the numbers of loaded schemas and of compiled validators.
    pub fn counts(&self) -> Counts {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            schemas_loaded: self.loaded.load(Ordering::Relaxed),
            validators_compiled: compiled.values().filter(|it| it.strong_count() > 0).count(),
        }
    }

    /// Compiles the schemas of one tool.
    ///
    /// # Errors
    /// The first invalid schema.
    pub(crate) fn check_one(io: &ToolIoValidators) -> Result<(), (Side, String)> {
        for side in [Side::Input, Side::Output] {
            for checker in io.checkers(side) {
                checker.compiled().map_err(|why| (side, why.to_owned()))?;
            }
        }
        Ok(())
    }

    /// Compiles the schemas of all tools.
    ///
    /// # Errors
    /// The first invalid schema and its tool.
    pub fn check(&self) -> Result<(), (ToolId, Side, SchemaError)> {
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        for io in tools.values() {
            let id = canonical(&io.tool).and_then(ToolId::foreign);
            for side in [Side::Input, Side::Output] {
                for checker in io.checkers(side) {
                    checker.compiled().map_err(|why| {
                        let id = id.clone().expect("it was made of one");
                        let why = why.to_owned();
                        (id, side, SchemaError { path: checker.path.clone(), why })
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Creates the validator of a schema from `file` and compiles it at once.
    fn of_file(&self, file: &SchemaFile) -> Result<Checker, SchemaError> {
        let path = Some(file.path.clone());
        let checker = self.checker(file.schema.clone().into(), path.clone());
        match checker.compiled() {
            Ok(_) => Ok(checker),
            Err(why) => Err(SchemaError { path, why: why.to_owned() }),
        }
    }

    /// Creates a validator of `schema` without compiling it.
    fn checker(&self, schema: Schema, path: Option<String>) -> Checker {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        let compiled = OnceLock::new();
        let all = self.compiled.clone();
        Checker { schema, path, compiled, all }
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

impl Checker {
    /// Returns the problems of `value`; the list is empty if it matches the schema. At most 8 are
    /// returned.
    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        let Compiled { validator, size } = match self.compiled() {
            Ok((_, compiled)) => &**compiled,
            Err(why) => {
                let message = format!("it cannot be checked, since its schema is none: {why}");
                return vec![Problem { pointer: String::new(), message }];
            }
        };
        if validator.is_valid(value) {
            return Vec::new();
        }
        if !size.is_told_of(value) {
            let message = "it does not satisfy the schema, which leads back to itself in too many \
                           places to say where in what is nested so deep";
            return vec![Problem { pointer: String::new(), message: message.to_owned() }];
        }
        let errors = validator.iter_errors(value).take(PROBLEMS_MAX);
        let problems = errors.map(|error| Problem {
            pointer: wording::shortened(error.instance_path().as_str()),
            message: wording::told(&error, &self.schema),
        });
        problems.collect()
    }

    /// Returns the schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Returns the identity of the schema.
    pub fn fingerprint(&self) -> Fingerprint {
        match self.compiled() {
            Ok((fingerprint, _)) => *fingerprint,
            Err(_) => Fingerprint::of(&self.schema),
        }
    }

    /// Returns the compiled schema, shared with equal schemas.
    fn compiled(&self) -> Result<&(Fingerprint, Arc<Compiled>), &str> {
        let compiled = self.compiled.get_or_init(|| {
            let fingerprint = Fingerprint::of(&self.schema);
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = match all.get(&fingerprint).and_then(Weak::upgrade) {
                Some(compiled) => compiled,
                None => {
                    let compiled = Arc::new(compile(&self.schema)?);
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

    /// Returns the file of the schema, if it comes from one.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

impl ToolIoValidators {
    /// Returns the problems of `io` as a whole call of the tool: first of the part common to all
    /// tools, then of the tool's input.
    pub fn input_problems(&self, io: &Value) -> Vec<Problem> {
        let mut problems = self.shared.problems(io);
        if problems.is_empty() && io["tool"] != self.tool.as_str() {
            let message = format!("it must be `{}`", self.tool);
            problems.push(Problem { pointer: "/tool".to_owned(), message });
        }
        if problems.is_empty() {
            let within = self.argument_problems(&io["input"]).into_iter();
            problems.extend(within.map(|Problem { pointer, message }| Problem {
                pointer: format!("/input{pointer}"),
                message,
            }));
        }
        problems
    }

    /// Returns the problems of `input` as the tool's arguments.
    pub fn argument_problems(&self, input: &Value) -> Vec<Problem> {
        first_broken(&self.input, input)
    }

    /// Returns the problems of `output` as the tool's result, by its own schemas only.
    pub fn output_problems(&self, output: &Value) -> Vec<Problem> {
        first_broken(&self.output, output)
    }

    /// Returns the validators of one direction.
    pub fn checkers(&self, side: Side) -> &[Checker] {
        match side {
            Side::Input => &self.input,
            Side::Output => &self.output,
        }
    }
}

/// Returns the problems of the first schema that `value` does not match.
fn first_broken(checkers: &[Checker], value: &Value) -> Vec<Problem> {
    let mut broken = checkers.iter().map(|checker| checker.problems(value));
    broken.find(|problems| !problems.is_empty()).unwrap_or_default()
}

impl Fingerprint {
    fn of(schema: &Value) -> Self {
        Self(Sha256::digest(canonical_json(schema).as_bytes()).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the tool's own id within the canonical `id`, or `None` if `id` is not canonical.
fn canonical(id: &str) -> Option<&str> {
    let name = id.strip_prefix(CANONICAL)?;
    ToolId::foreign(name).map(|_| name)
}

/// Backtracking limit of a regular expression with lookaround, per text.
const STEPS_BACK_MAX: usize = 100_000;

/// Compiles `schema` by its declared draft, or by 2020-12.
///
/// # Errors
/// If the schema is invalid, refers to the network, or would take too long to check a value.
fn compile(schema: &Value) -> Result<Compiled, String> {
    let size = Size::of(schema)?;
    let by = |draft| {
        let patterns = PatternOptions::fancy_regex().backtrack_limit(STEPS_BACK_MAX);
        let options = jsonschema::options().with_draft(draft).with_pattern_options(patterns);
        options.offline().build(schema).map_err(|err| err.to_string())
    };
    let validator = match Draft::Unknown.detect(schema) {
        // Older servers often omit the draft and mean draft 7.
        Draft::Unknown => {
            by(Draft::Draft202012).or_else(|why| by(Draft::Draft7).map_err(|_| why))?
        }
        said => by(said)?,
    };
    Ok(Compiled { validator, size })
}

#[cfg(test)]
mod tests;
