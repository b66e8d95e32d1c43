//! Schemas, compiled once and shared: one validator for one schema, whoever it is of.
//!
//! A tool's own schemas are compiled when it is first called: most tools of most servers never are.

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

/// What a tool's canonical id begins with.
const CANONICAL: &str = "mcp.tool:";
/// The most problems told of one value.
const PROBLEMS_MAX: usize = 8;

/// A schema that is of no one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shared {
    /// Of what came of a call.
    Envelope,
    /// Of a request on a line.
    RequestEnvelope,
    /// Of what every tool is called with.
    ToolIo,
}

/// What a tool takes, or what it gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// What it takes.
    Input,
    /// What it gives back.
    Output,
}

/// Schemas from files, read once.
#[derive(Debug, Clone, Default)]
pub struct SchemaFiles {
    /// Those that stand for what comes along.
    pub shared: Vec<(Shared, SchemaFile)>,
    /// Those that tools must satisfy beside their own, by the tool's id in any spelling.
    pub tools: Vec<(String, Side, SchemaFile)>,
}

/// A schema and where it stands.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    /// Its path, for people.
    pub path: String,
    /// It.
    pub schema: Value,
}

/// Every schema in use, each compiled at most once.
pub struct SchemaRegistry {
    /// By the SHA-256 of the schema as canonical JSON.
    compiled: Arc<Mutex<InUse>>,
    shared: Vec<Kept>,
    files: BTreeMap<(String, Side), SchemaFile>,
    /// By folded id.
    tools: Mutex<BTreeMap<String, Arc<ToolIoValidators>>>,
    loaded: AtomicUsize,
}

/// What a value is held against; compiled when the first is.
#[derive(Clone)]
pub struct Checker {
    schema: Schema,
    /// Where it stands, if that is a file.
    path: Option<String>,
    compiled: OnceLock<Result<(Fingerprint, Arc<Compiled>), String>>,
    /// All that are in use, to share what is alike.
    all: Arc<Mutex<InUse>>,
}

/// What the calls of one tool are held against.
#[derive(Clone)]
pub struct ToolIoValidators {
    /// The tool's canonical id.
    pub tool: String,
    shared: Checker,
    input: Vec<Checker>,
    output: Vec<Checker>,
}

/// Which schema it is: the SHA-256 of its canonical JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

/// Why a schema is of no use.
#[derive(Debug, thiserror::Error)]
#[error("{}{why}", path.as_ref().map(|path| format!("the schema {path} is not usable: ")).unwrap_or_default())]
pub struct SchemaError {
    /// Where it stands, if that is a file.
    pub path: Option<String>,
    /// What is wrong with it.
    pub why: String,
}

/// Why a tool has no validators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoToolIo {
    /// The id is not spelled as ids are.
    #[error("`{0}` is no canonical tool id; one reads `mcp.tool:docs.load.fetch`")]
    NotCanonical(String),
    /// No tool has it.
    #[error("no tool is named `{0}`")]
    Unknown(String),
}

/// What came of compiling a schema.
struct Compiled {
    validator: Validator,
    size: Size,
}

/// What was compiled, for as long as anybody holds values against it.
type InUse = HashMap<Fingerprint, Weak<Compiled>>;

/// A shared schema, compiled when it is first asked for.
struct Kept {
    which: Shared,
    file: Option<SchemaFile>,
    checker: OnceLock<Checker>,
}

/// How many schemas there are and how many had to be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// How often a schema was asked for.
    pub schemas_loaded: usize,
    /// How many different ones are in use, and so compiled.
    pub validators_compiled: usize,
}

impl Shared {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Envelope, Self::RequestEnvelope, Self::ToolIo];

    /// The file that comes along.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope.schema.json",
            Self::RequestEnvelope => "request_envelope.schema.json",
            Self::ToolIo => "tool_io.schema.json",
        }
    }

    /// The schema that comes along, as it is written.
    pub fn shipped(self) -> &'static str {
        match self {
            Self::Envelope => include_str!("../../../schemas/envelope.schema.json"),
            Self::RequestEnvelope => include_str!("../../../schemas/request_envelope.schema.json"),
            Self::ToolIo => include_str!("../../../schemas/tool_io.schema.json"),
        }
    }
}

impl Side {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl SchemaRegistry {
    /// A registry of what comes along and of `files`, all of which must be schemas.
    ///
    /// # Errors
    /// When one is none, naming the file.
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

    /// What envelopes are held against.
    pub fn load_envelope(&self) -> &Checker {
        self.shared(Shared::Envelope)
    }

    /// What is held against the shared schema `which`.
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
            // Those of files were compiled at the start, and a test compiles what comes along.
            checker.expect("it is a schema")
        })
    }

    /// What calls of the tool `id`, e.g. `mcp.tool:docs.load.fetch`, are held against.
    ///
    /// # Errors
    /// When the id is not canonical, or no tool of the catalog has it.
    pub fn load_tool_io(&self, id: &str) -> Result<Arc<ToolIoValidators>, NoToolIo> {
        let name = canonical(id).ok_or_else(|| NoToolIo::NotCanonical(id.to_owned()))?;
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.get(&*fold(name)).cloned().ok_or_else(|| NoToolIo::Unknown(id.to_owned()))
    }

    /// What calls of the tool that is known by `spec` are held against, from now on.
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

    /// Forgets what calls of the tool `id` were held against: it is not on offer any more.
    pub(crate) fn forget(&self, id: &ToolId) {
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.remove(&*fold(id.as_str()));
    }

    /// How many schemas there are, and how many of them were compiled.
    pub fn counts(&self) -> Counts {
        let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Counts {
            schemas_loaded: self.loaded.load(Ordering::Relaxed),
            validators_compiled: compiled.values().filter(|it| it.strong_count() > 0).count(),
        }
    }

    /// Compiles what calls of one tool are held against.
    ///
    /// # Errors
    /// With the first that is none.
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
    /// With the first that is none, and whose it is.
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

    /// The schema that stands in `file`, which was not made here and so is compiled at once.
    fn of_file(&self, file: &SchemaFile) -> Result<Checker, SchemaError> {
        let path = Some(file.path.clone());
        let checker = self.checker(file.schema.clone().into(), path.clone());
        match checker.compiled() {
            Ok(_) => Ok(checker),
            Err(why) => Err(SchemaError { path, why: why.to_owned() }),
        }
    }

    /// `schema` as what a value is held against.
    fn checker(&self, schema: Schema, path: Option<String>) -> Checker {
        self.loaded.fetch_add(1, Ordering::Relaxed);
        let (compiled, all) = (OnceLock::new(), self.compiled.clone());
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
    /// What is wrong with `value`; nothing where it satisfies the schema.
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

    /// The schema.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Which schema it is.
    pub fn fingerprint(&self) -> Fingerprint {
        match self.compiled() {
            Ok((fingerprint, _)) => *fingerprint,
            Err(_) => Fingerprint::of(&self.schema),
        }
    }

    /// The schema compiled; the same where another like it was before.
    fn compiled(&self) -> Result<&(Fingerprint, Arc<Compiled>), &str> {
        let compiled = self.compiled.get_or_init(|| {
            let fingerprint = Fingerprint::of(&self.schema);
            let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = match all.get(&fingerprint).and_then(Weak::upgrade) {
                Some(compiled) => compiled,
                None => {
                    let compiled = Arc::new(compile(&self.schema)?);
                    // Tools of others come and go.
                    all.retain(|_, compiled| compiled.strong_count() > 0);
                    all.insert(fingerprint, Arc::downgrade(&compiled));
                    compiled
                }
            };
            Ok((fingerprint, compiled))
        });
        compiled.as_ref().map_err(String::as_str)
    }

    /// The file it stands in, if it does.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

impl ToolIoValidators {
    /// What is wrong with `io` as a call of the tool, whole: what all calls have in common, and
    /// the tool's own.
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

    /// What is wrong with `input` as the tool's arguments.
    pub fn argument_problems(&self, input: &Value) -> Vec<Problem> {
        first_broken(&self.input, input)
    }

    /// What is wrong with `output` as what the tool gives back. Nothing is asked of it beside.
    pub fn output_problems(&self, output: &Value) -> Vec<Problem> {
        first_broken(&self.output, output)
    }

    /// What its arguments or its results are held against.
    pub fn checkers(&self, side: Side) -> &[Checker] {
        match side {
            Side::Input => &self.input,
            Side::Output => &self.output,
        }
    }
}

/// What the first schema says that `value` breaks.
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

/// The tool's own id in the canonical `id`, if it is one.
fn canonical(id: &str) -> Option<&str> {
    let name = id.strip_prefix(CANONICAL)?;
    ToolId::foreign(name).map(|_| name)
}

/// How many steps a pattern that looks around may go back to match one text.
const STEPS_BACK_MAX: usize = 100_000;

/// Compiles `schema` by the draft that it says, or 2020-12; a reference to the network is refused,
/// not followed, and so is one that would take too long to hold anything against.
fn compile(schema: &Value) -> Result<Compiled, String> {
    let size = Size::of(schema)?;
    let by = |draft| {
        let patterns = PatternOptions::fancy_regex().backtrack_limit(STEPS_BACK_MAX);
        let options = jsonschema::options().with_draft(draft).with_pattern_options(patterns);
        options.offline().build(schema).map_err(|err| err.to_string())
    };
    let validator = match Draft::Unknown.detect(schema) {
        // Before MCP said which it means most servers meant draft 7, and not all said so.
        Draft::Unknown => {
            by(Draft::Draft202012).or_else(|why| by(Draft::Draft7).map_err(|_| why))?
        }
        said => by(said)?,
    };
    Ok(Compiled { validator, size })
}

#[cfg(test)]
mod tests;
