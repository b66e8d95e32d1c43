//! Evaluates `when`: a CEL expression over the caller, the tool and the input.
//!
//! An expression is compiled once. It is refused then if it uses unknown names, or could take long
//! to evaluate.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use cel::common::ast::operators::INDEX;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};
use cel::common::types::{CelBool, CelMap, CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Program, Value};

use toolgate_contract::{Caller, CallerKind, ToolId, ToolSpec};

use super::binding::{self, Seen};
use super::plain;
use super::texts::Test;
use super::{Of, What};

/// Longest expression in bytes.
const BYTES_MAX: usize = 4096;
/// Functions that expressions may call, besides operators.
const FUNCTIONS: [&str; 15] = [
    "size",
    "startsWith",
    "endsWith",
    "contains",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "bytes",
    "type",
    "dyn",
    "plain",
    "under",
    "touches",
];
/// Names of types in expressions.
const TYPES: [&str; 10] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];

/// Settings that apply to all expressions.
#[derive(Debug, Default, Clone)]
pub(super) struct Bounds {
    /// Path of the workspace, which absolute paths may begin with.
    pub(super) root: Option<Arc<str>>,
}

/// A compiled boolean expression.
pub(super) struct When {
    program: Program,
    /// Fast form of the expression, if it only compares texts.
    texts: Option<Test>,
    found: Found,
    root: Option<Arc<str>>,
    /// Cached results, for expressions that do not use the input.
    known: RwLock<HashMap<Who, Result<bool, String>>>,
}

/// Largest number of cached results, after which the cache is emptied.
const KNOWN_MAX: usize = 4096;

/// Cache key: all values that an expression without input can use. A guard may share its id with a
/// tool that differs.
#[derive(PartialEq, Eq, Hash)]
struct Who {
    name: Arc<str>,
    kind: CallerKind,
    scopes: Arc<[Arc<str>]>,
    roles: Arc<[Arc<str>]>,
    tool: ToolId,
    effects: &'static str,
    ruled_as: Option<ToolId>,
    tags: Vec<String>,
}

/// Names and features that an expression uses.
#[derive(Default)]
struct Found {
    caller: bool,
    tool: bool,
    members: Vec<String>,
    all: bool,
    loops: bool,
}

impl When {
    /// Compiles `source`.
    ///
    /// # Errors
    /// A description of the problem with its line and column.
    pub(super) fn new(source: &str, bounds: &Bounds) -> Result<Self, String> {
        if source.len() > BYTES_MAX {
            return Err(format!("`when` is longer than {BYTES_MAX} bytes"));
        }
        let program = env().compile(source).map_err(|errors| match errors.errors.first() {
            Some(err) => {
                let (line, column) = err.pos;
                format!("in `when`, line {line}, column {column}: {}", err.msg)
            }
            None => "`when` is no expression of CEL".to_owned(),
        })?;
        let found = Found::default();
        let info = program.source_info();
        let mut walk = Walk { source, info, found, scope: Vec::new(), looping: false };
        walk.walk(program.expression())?;
        let found = walk.found;
        let texts = Test::of(program.expression());
        Ok(Self { program, texts, found, root: bounds.root.clone(), known: RwLock::default() })
    }

    /// Returns true if the result may depend on the input.
    pub(super) fn names_input(&self) -> bool {
        self.found.all || !self.found.members.is_empty()
    }

    /// Evaluates the expression for a request.
    ///
    /// # Errors
    /// The reason if it cannot be evaluated.
    pub(super) fn is_true(&self, asked: &Of<'_>) -> Result<bool, String> {
        let told = self.texts.as_ref().and_then(|it| it.is_true(asked, self.root.as_deref()));
        if let Some(is) = told {
            return Ok(is);
        }
        if self.names_input() {
            return self.by_cel(asked);
        }
        let Caller { name, kind, scopes, roles, bearer: _ } = asked.caller.clone();
        let ToolSpec { id, effects, ruled_as, tags, .. } = asked.spec;
        let tool = id.clone();
        let ruled_as = ruled_as.clone();
        let tags = tags.clone();
        let effects = binding::effects(*effects);
        let who = Who { name, kind, scopes, roles, tool, effects, ruled_as, tags };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&who) {
            return known.clone();
        }
        drop(known);
        let is = self.by_cel(asked);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(who, is.clone());
        is
    }

    /// Evaluates the expression with CEL, without cache or fast form.
    pub(super) fn by_cel(&self, asked: &Of<'_>) -> Result<bool, String> {
        let input = match self.names_input() {
            false => None,
            true => {
                let seen = match self.found.all {
                    true => Seen::All,
                    false => Seen::Members(self.found.members.clone()),
                };
                self.has_what_it_needs(asked)?;
                let root = self.root.as_deref();
                Some(binding::input(asked.input, asked.spec, &seen, self.found.loops, root)?)
            }
        };
        let seen = Variables {
            caller: self.found.caller.then(|| binding::caller(asked.caller)),
            tool: self.found.tool.then(|| binding::tool(asked.spec)),
            input,
        };
        let mut context = Context::with_env(env());
        context.set_variable_resolver(&seen);
        let _within = Within::enter(self.root.clone());
        let result = Value::resolve_val(self.program.expression(), &context);
        match result.map_err(|err| why(&err))?.downcast_ref::<CelBool>() {
            Some(is) => Ok(*is.inner()),
            None => Err("`when` comes to neither true nor false".to_owned()),
        }
    }
}

impl When {
    /// Checks that a request that is no tool call has all members that the expression uses. A
    /// missing member would otherwise seem an omitted argument.
    fn has_what_it_needs(&self, asked: &Of<'_>) -> Result<(), String> {
        let missing = |name: &&String| asked.input.get(name.as_str()).is_none();
        match (asked.what, self.found.members.iter().find(missing)) {
            (What::Beside, Some(name)) => {
                Err(format!("what is asked for is no call of the tool, and has no `{name}`"))
            }
            (What::Beside, None) | (What::Tool | What::Words, _) => Ok(()),
        }
    }
}

struct Variables<'v> {
    caller: Option<CelMap<'v>>,
    tool: Option<CelMap<'v>>,
    input: Option<CelMap<'v>>,
}

impl VariableResolver for Variables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let bound = match variable {
            "caller" => &self.caller,
            "tool" => &self.tool,
            "input" => &self.input,
            _ => &None,
        };
        let bound: &'b (dyn Val + 'b) = bound.as_ref()?;
        Some(CowVal::Borrowed(bound))
    }
}

thread_local! {
    /// Workspace path of the expression that this thread evaluates, since functions receive only
    /// their arguments.
    static ROOT: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Guard that sets `ROOT` during an evaluation.
struct Within;

impl Within {
    fn enter(root: Option<Arc<str>>) -> Self {
        ROOT.set(root);
        Self
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        ROOT.take();
    }
}

/// Returns the available functions: those of CEL without optional values, and the path functions.
fn env() -> Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib().with_optional_support(false);
        let added = env
            .add_overload("plain", "plain_string", vec![STRING_TYPE], |args| {
                let path = text(&args, 0)?;
                let path =
                    ROOT.with_borrow(|root| plain::plain(path, root.as_deref()).into_owned());
                Ok(CowVal::owned(CelString::from(path)))
            })
            .and_then(|()| {
                env.add_overload("under", "under_string_string", two(), |args| {
                    compared(&args, plain::under)
                })
            })
            .and_then(|()| {
                env.add_overload("touches", "touches_string_string", two(), |args| {
                    compared(&args, plain::touches)
                })
            });
        added.expect("no function of CEL has these names");
        Arc::new(env)
    })
    .clone()
}

fn two() -> Vec<Type> {
    vec![STRING_TYPE, STRING_TYPE]
}

fn compared<'v>(
    args: &[CowVal<'_, '_>],
    compare: fn(&str, &str, Option<&str>) -> bool,
) -> Result<CowVal<'v, 'v>, ExecutionError> {
    let path = text(args, 0)?;
    let folder = text(args, 1)?;
    let is = ROOT.with_borrow(|root| compare(path, folder, root.as_deref()));
    Ok(CowVal::owned(CelBool::from(is)))
}

fn text<'a>(args: &'a [CowVal<'_, '_>], at: usize) -> Result<&'a str, ExecutionError> {
    let text = args.get(at).and_then(|arg| arg.downcast_ref::<CelString<'_>>());
    text.map(CelString::inner).ok_or_else(ExecutionError::missing_argument_or_target)
}

/// Returns the reason of a failed evaluation without any text of the input, which may be secret.
fn why(err: &ExecutionError) -> String {
    match err {
        ExecutionError::NoSuchKey(name) => {
            let name: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            format!("there is no `{name}`")
        }
        ExecutionError::NoSuchOverload(overload) => overload.to_string(),
        ExecutionError::UndeclaredReference(name) => format!("nothing is called `{name}`"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "it divides by zero".to_owned()
        }
        ExecutionError::Overflow(..) => "a number is too large".to_owned(),
        _ => "what it looks at is not of the type that it takes it for".to_owned(),
    }
}

/// Walk through an expression that collects its names and refuses forbidden features.
struct Walk<'e> {
    source: &'e str,
    info: &'e SourceInfo,
    found: Found,
    /// Variables of the enclosing macros.
    scope: Vec<&'e str>,
    looping: bool,
}

impl<'e> Walk<'e> {
    fn walk(&mut self, at: &'e IdedExpr) -> Result<(), String> {
        match &at.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Unspecified | Expr::Struct(_) => {
                Err(self.wrong(at, "there are no types of one's own here"))
            }
            Expr::Ident(name) => self.name(at, name),
            Expr::Select(select) => match self.global(&select.operand) {
                Some(name) => self.member(&select.operand, name, &select.field),
                None => self.walk(&select.operand),
            },
            Expr::Call(call) => {
                let operator = call.func_name.contains(['_', '@']);
                if !operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
                    let why = format!(
                        "no function is called `{}`; there are {}",
                        call.func_name,
                        FUNCTIONS.join(", ")
                    );
                    return Err(self.wrong(at, &why));
                }
                if let (INDEX, [of, index]) = (call.func_name.as_str(), &call.args[..])
                    && let (Some(name), Expr::Literal(LiteralValue::String(field))) =
                        (self.global(of), &index.expr)
                {
                    return self.member(of, name, field.inner());
                }
                call.target.iter().try_for_each(|target| self.walk(target))?;
                call.args.iter().try_for_each(|arg| self.walk(arg))
            }
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.walk(element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.walk(&entry.key)?;
                    self.walk(&entry.value)
                }
                EntryExpr::StructField(_) => {
                    Err(self.wrong(at, "there are no types of one's own here"))
                }
            }),
            Expr::Comprehension(each) => {
                if self.looping {
                    let why = "one `all`, `exists`, `exists_one`, `map` or `filter` inside \
                               another would take time beyond measure";
                    return Err(self.wrong(at, why));
                }
                self.found.loops = true;
                self.walk(&each.iter_range)?;
                let names = [Some(&each.iter_var), each.iter_var2.as_ref(), Some(&each.accu_var)];
                let before = self.scope.len();
                for name in names.into_iter().flatten() {
                    if ["caller", "tool", "input"].contains(&name.as_str()) {
                        return Err(self.wrong(at, &format!("`{name}` is taken; use another name")));
                    }
                    self.scope.push(name);
                }
                self.looping = true;
                for part in [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result] {
                    self.walk(part)?;
                }
                self.looping = false;
                self.scope.truncate(before);
                Ok(())
            }
        }
    }

    /// Returns the name `at`, unless an enclosing macro defines it.
    fn global(&self, at: &'e IdedExpr) -> Option<&'e str> {
        match &at.expr {
            Expr::Ident(name) if !self.scope.contains(&name.as_str()) => Some(name),
            _ => None,
        }
    }

    fn name(&mut self, at: &IdedExpr, name: &str) -> Result<(), String> {
        match name {
            name if self.scope.contains(&name) || TYPES.contains(&name) => Ok(()),
            "input" => {
                self.found.all = true;
                Ok(())
            }
            "caller" | "tool" => Err(self.wrong(at, &format!("say what of `{name}` is meant"))),
            name => {
                let why =
                    format!("nothing is called `{name}`; there are `caller`, `tool`, `input`");
                Err(self.wrong(at, &why))
            }
        }
    }

    fn member(&mut self, at: &IdedExpr, of: &str, name: &str) -> Result<(), String> {
        let known: &[&str] = match of {
            "input" => {
                if !self.found.members.iter().any(|member| member == name) {
                    self.found.members.push(name.to_owned());
                }
                return Ok(());
            }
            "caller" => {
                self.found.caller = true;
                &binding::OF_CALLER
            }
            "tool" => {
                self.found.tool = true;
                &binding::OF_TOOL
            }
            other => return self.name(at, other),
        };
        match known.contains(&name) {
            true => Ok(()),
            false => {
                let known = known.join("`, `");
                Err(self.wrong(at, &format!("`{of}` has no `{name}`; it has `{known}`")))
            }
        }
    }

    /// Returns the error `why` with its line and column.
    fn wrong(&self, at: &IdedExpr, why: &str) -> String {
        let offset = self.info.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        // The offset counts characters, not bytes.
        let before: String = self.source.chars().take(offset).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("in `when`, line {line}, column {column}: {why}")
    }
}
