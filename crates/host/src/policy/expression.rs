//! Evaluates `when`: a CEL expression over the caller, the tool and the input.
//!
//! An expression is compiled once. Compilation fails if the expression uses unknown names or could
//! take long to evaluate.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock};

use cel::common::ast::operators::INDEX;
use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};
use cel::common::types::{CelBool, CelMap, CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, Program, Value};

use toolgate_contract::{Caller, CallerKind, ToolId, ToolSpec, lock_read, lock_write};

use super::binding::{self, ExpressionInputPart};
use super::plain_path;
use super::text_comparison::TextOnlyExpression;
use super::{PolicyRequest, PolicyRequestKind};

/// Longest policy expression in bytes.
const BYTES_MAX: usize = 4096;
/// Functions that policy expressions may call, besides operators.
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
/// Names of CEL types that policy expressions may use.
const TYPES: [&str; 10] =
    ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type"];

/// Settings that apply to all policy expressions.
#[derive(Debug, Default, Clone)]
pub(super) struct ExpressionSettings {
    /// Path of the workspace, with which absolute paths in inputs may begin.
    pub(super) root: Option<Arc<str>>,
}

/// A compiled boolean expression: the `when` condition of a policy rule.
pub(super) struct PolicyCondition {
    program: Program,
    /// Faster equivalent of the expression, if the expression only compares texts.
    text_expression: Option<TextOnlyExpression>,
    uses: ExpressionUsage,
    root: Option<Arc<str>>,
    /// Cached results, if the expression does not use the input of calls.
    cache: RwLock<HashMap<ExpressionCacheKey, Result<bool, String>>>,
}

/// Maximum number of cached results of an expression. At this number, the cache is emptied.
const CACHE_MAX: usize = 4096;

/// Key of a cached result: all values that an expression can use without the call's input. The id
/// of the tool does not suffice, because another spec with different properties may have the same
/// id.
#[derive(PartialEq, Eq, Hash)]
struct ExpressionCacheKey {
    name: Arc<str>,
    kind: CallerKind,
    scopes: Arc<[Arc<str>]>,
    roles: Arc<[Arc<str>]>,
    tool: ToolId,
    effects: &'static str,
    ruled_as: Option<ToolId>,
    tags: Vec<String>,
}

/// Names and features that a policy expression uses.
#[derive(Default)]
struct ExpressionUsage {
    caller: bool,
    tool: bool,
    members: Vec<String>,
    whole_input: bool,
    loops: bool,
}

impl PolicyCondition {
    /// Compiles the policy expression `source`.
    ///
    /// # Errors
    /// A description of the problem with its line and column.
    pub(super) fn new(source: &str, settings: &ExpressionSettings) -> Result<Self, String> {
        if source.len() > BYTES_MAX {
            return Err(format!("`when` is longer than {BYTES_MAX} bytes"));
        }
        let program = cel_env().compile(source).map_err(|errors| match errors.errors.first() {
            Some(err) => {
                let (line, column) = err.pos;
                format!("in `when`, line {line}, column {column}: {}", err.msg)
            }
            None => "`when` is not a CEL expression".to_owned(),
        })?;
        let found = ExpressionUsage::default();
        let info = program.source_info();
        let mut checker =
            ExpressionChecker { source, info, uses: found, scope: Vec::new(), in_loop: false };
        checker.check(program.expression())?;
        let found = checker.uses;
        let texts = TextOnlyExpression::from_expression(program.expression());
        Ok(Self {
            program,
            text_expression: texts,
            uses: found,
            root: settings.root.clone(),
            cache: RwLock::default(),
        })
    }

    /// Returns true if the result of the expression may depend on the call's input.
    pub(super) fn uses_input(&self) -> bool {
        self.uses.whole_input || !self.uses.members.is_empty()
    }

    /// Evaluates the expression for a request.
    ///
    /// # Errors
    /// The reason why the expression cannot be evaluated.
    pub(super) fn evaluate(&self, request: &PolicyRequest<'_>) -> Result<bool, String> {
        let fast_result =
            self.text_expression.as_ref().and_then(|it| it.evaluate(request, self.root.as_deref()));
        if let Some(result) = fast_result {
            return Ok(result);
        }
        if self.uses_input() {
            return self.evaluate_cel(request);
        }
        let Caller { name, kind, scopes, roles, bearer: _ } = request.caller.clone();
        let ToolSpec { id, effects, ruled_as, tags, .. } = request.spec;
        let tool = id.clone();
        let ruled_as = ruled_as.clone();
        let tags = tags.clone();
        let effects = effects.as_str();
        let key = ExpressionCacheKey { name, kind, scopes, roles, tool, effects, ruled_as, tags };
        let cached = lock_read(&self.cache);
        if let Some(cached) = cached.get(&key) {
            return cached.clone();
        }
        drop(cached);
        let result = self.evaluate_cel(request);
        let mut cached = lock_write(&self.cache);
        if cached.len() >= CACHE_MAX {
            cached.clear();
        }
        cached.insert(key, result.clone());
        result
    }

    /// Evaluates the expression with CEL, without the cache and the faster equivalent.
    pub(super) fn evaluate_cel(&self, request: &PolicyRequest<'_>) -> Result<bool, String> {
        let input = match self.uses_input() {
            false => None,
            true => {
                let view = match self.uses.whole_input {
                    true => ExpressionInputPart::All,
                    false => ExpressionInputPart::Members(self.uses.members.clone()),
                };
                self.check_members(request)?;
                let root = self.root.as_deref();
                Some(binding::bind_input(
                    request.input,
                    request.spec,
                    &view,
                    self.uses.loops,
                    root,
                )?)
            }
        };
        let variables = ExpressionVariables {
            caller: self.uses.caller.then(|| binding::bind_caller(request.caller)),
            tool: self.uses.tool.then(|| binding::bind_tool(request.spec)),
            input,
        };
        let mut context = Context::with_env(cel_env());
        context.set_variable_resolver(&variables);
        let _root = ExpressionWorkspaceGuard::enter(self.root.clone());
        let result = Value::resolve_val(self.program.expression(), &context);
        match result.map_err(|err| describe_error(&err))?.downcast_ref::<CelBool>() {
            Some(is) => Ok(*is.inner()),
            None => Err("the result of `when` is neither true nor false".to_owned()),
        }
    }
}

impl PolicyCondition {
    /// Checks that a request other than a tool call has all input members that the expression uses.
    /// Otherwise a missing member would look like an omitted argument.
    ///
    /// # Errors
    /// A member is missing.
    fn check_members(&self, request: &PolicyRequest<'_>) -> Result<(), String> {
        let missing = |name: &&String| request.input.get(name.as_str()).is_none();
        match (request.kind, self.uses.members.iter().find(missing)) {
            (PolicyRequestKind::Guarded, Some(name)) => {
                Err(format!("the request is not a tool call, and has no `{name}`"))
            }
            (PolicyRequestKind::Guarded, None)
            | (PolicyRequestKind::Tool | PolicyRequestKind::TextPrompt, _) => Ok(()),
        }
    }
}

/// Variables of a policy expression and their values.
struct ExpressionVariables<'v> {
    caller: Option<CelMap<'v>>,
    tool: Option<CelMap<'v>>,
    input: Option<CelMap<'v>>,
}

impl VariableResolver for ExpressionVariables<'_> {
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
    /// Workspace path for the policy expression that this thread evaluates. The path is
    /// thread-local, because functions receive only their arguments.
    static ROOT: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Guard that sets the workspace path `ROOT` during an evaluation.
struct ExpressionWorkspaceGuard;

impl ExpressionWorkspaceGuard {
    fn enter(root: Option<Arc<str>>) -> Self {
        ROOT.set(root);
        Self
    }
}

impl Drop for ExpressionWorkspaceGuard {
    fn drop(&mut self) {
        ROOT.take();
    }
}

/// Returns the functions that policy expressions may call: those of CEL without optional values,
/// and the path functions.
fn cel_env() -> Arc<Env> {
    static ENV: OnceLock<Arc<Env>> = OnceLock::new();
    ENV.get_or_init(|| {
        let mut env = Env::stdlib().with_optional_support(false);
        let added = env
            .add_overload("plain", "plain_string", vec![STRING_TYPE], |args| {
                let path = text_arg(&args, 0)?;
                let path = ROOT.with_borrow(|root| {
                    plain_path::normalize_path(path, root.as_deref()).into_owned()
                });
                Ok(CowVal::owned(CelString::from(path)))
            })
            .and_then(|()| {
                env.add_overload("under", "under_string_string", two_strings(), |args| {
                    compare_paths(&args, plain_path::under)
                })
            })
            .and_then(|()| {
                env.add_overload("touches", "touches_string_string", two_strings(), |args| {
                    compare_paths(&args, plain_path::touches)
                })
            });
        added.expect("no function of CEL has these names");
        Arc::new(env)
    })
    .clone()
}

fn two_strings() -> Vec<Type> {
    vec![STRING_TYPE, STRING_TYPE]
}

fn compare_paths<'v>(
    args: &[CowVal<'_, '_>],
    compare: fn(&str, &str, Option<&str>) -> bool,
) -> Result<CowVal<'v, 'v>, ExecutionError> {
    let path = text_arg(args, 0)?;
    let folder = text_arg(args, 1)?;
    let is = ROOT.with_borrow(|root| compare(path, folder, root.as_deref()));
    Ok(CowVal::owned(CelBool::from(is)))
}

fn text_arg<'a>(args: &'a [CowVal<'_, '_>], at: usize) -> Result<&'a str, ExecutionError> {
    let text = args.get(at).and_then(|arg| arg.downcast_ref::<CelString<'_>>());
    text.map(CelString::inner).ok_or_else(ExecutionError::missing_argument_or_target)
}

/// Describes a failed evaluation without any text of the call's input, which may be secret.
fn describe_error(err: &ExecutionError) -> String {
    match err {
        ExecutionError::NoSuchKey(name) => {
            let name: String = name.chars().take(64).flat_map(char::escape_debug).collect();
            format!("`{name}` is missing")
        }
        ExecutionError::NoSuchOverload(overload) => overload.to_string(),
        ExecutionError::UndeclaredReference(name) => format!("unknown name `{name}`"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "it divides by zero".to_owned()
        }
        ExecutionError::Overflow(..) => "a number is too large".to_owned(),
        _ => "a value has the wrong type".to_owned(),
    }
}

/// Checker that walks through a policy expression, collects its names and refuses forbidden
/// features.
struct ExpressionChecker<'e> {
    source: &'e str,
    info: &'e SourceInfo,
    uses: ExpressionUsage,
    /// Variables that the enclosing macros (such as `all`) define.
    scope: Vec<&'e str>,
    in_loop: bool,
}

impl<'e> ExpressionChecker<'e> {
    fn check(&mut self, at: &'e IdedExpr) -> Result<(), String> {
        match &at.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Unspecified | Expr::Struct(_) => {
                Err(self.error_at(at, "custom types are not supported"))
            }
            Expr::Ident(name) => self.check_name(at, name),
            Expr::Select(select) => match self.global_name(&select.operand) {
                Some(name) => self.check_member(&select.operand, name, &select.field),
                None => self.check(&select.operand),
            },
            Expr::Call(call) => {
                let operator = call.func_name.contains(['_', '@']);
                if !operator && !FUNCTIONS.contains(&call.func_name.as_str()) {
                    let why = format!(
                        "unknown function `{}`; available: {}",
                        call.func_name,
                        FUNCTIONS.join(", ")
                    );
                    return Err(self.error_at(at, &why));
                }
                if let (INDEX, [operand, index]) = (call.func_name.as_str(), &call.args[..])
                    && let (Some(name), Expr::Literal(LiteralValue::String(field))) =
                        (self.global_name(operand), &index.expr)
                {
                    return self.check_member(operand, name, field.inner());
                }
                call.target.iter().try_for_each(|target| self.check(target))?;
                call.args.iter().try_for_each(|arg| self.check(arg))
            }
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.check(element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.check(&entry.key)?;
                    self.check(&entry.value)
                }
                EntryExpr::StructField(_) => {
                    Err(self.error_at(at, "custom types are not supported"))
                }
            }),
            Expr::Comprehension(each) => {
                if self.in_loop {
                    let why = "`all`, `exists`, `exists_one`, `map` and `filter` cannot be nested";
                    return Err(self.error_at(at, why));
                }
                self.uses.loops = true;
                self.check(&each.iter_range)?;
                let names = [Some(&each.iter_var), each.iter_var2.as_ref(), Some(&each.accu_var)];
                let before = self.scope.len();
                for name in names.into_iter().flatten() {
                    if ["caller", "tool", "input"].contains(&name.as_str()) {
                        return Err(
                            self.error_at(at, &format!("`{name}` is reserved; use another name"))
                        );
                    }
                    self.scope.push(name);
                }
                self.in_loop = true;
                for part in [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result] {
                    self.check(part)?;
                }
                self.in_loop = false;
                self.scope.truncate(before);
                Ok(())
            }
        }
    }

    /// Returns the name at `at`, unless an enclosing macro defines that name.
    fn global_name(&self, at: &'e IdedExpr) -> Option<&'e str> {
        match &at.expr {
            Expr::Ident(name) if !self.scope.contains(&name.as_str()) => Some(name),
            _ => None,
        }
    }

    fn check_name(&mut self, at: &IdedExpr, name: &str) -> Result<(), String> {
        match name {
            name if self.scope.contains(&name) || TYPES.contains(&name) => Ok(()),
            "input" => {
                self.uses.whole_input = true;
                Ok(())
            }
            "caller" => Err(self.error_at(at, "use a field of `caller`, such as `caller.name`")),
            "tool" => Err(self.error_at(at, "use a field of `tool`, such as `tool.id`")),
            name => {
                let why = format!("unknown name `{name}`; available: `caller`, `tool`, `input`");
                Err(self.error_at(at, &why))
            }
        }
    }

    fn check_member(&mut self, at: &IdedExpr, object: &str, name: &str) -> Result<(), String> {
        let known: &[&str] = match object {
            "input" => {
                if !self.uses.members.iter().any(|member| member == name) {
                    self.uses.members.push(name.to_owned());
                }
                return Ok(());
            }
            "caller" => {
                self.uses.caller = true;
                &binding::CALLER_FIELDS
            }
            "tool" => {
                self.uses.tool = true;
                &binding::TOOL_FIELDS
            }
            other => return self.check_name(at, other),
        };
        match known.contains(&name) {
            true => Ok(()),
            false => {
                let known = known.join("`, `");
                Err(self.error_at(at, &format!("`{object}` has no `{name}`; it has `{known}`")))
            }
        }
    }

    /// Returns the error `why` with its line and column in the expression.
    fn error_at(&self, at: &IdedExpr, why: &str) -> String {
        let offset = self.info.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        // The offset counts characters, not bytes.
        let before: String = self.source.chars().take(offset).collect();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("in `when`, line {line}, column {column}: {why}")
    }
}
