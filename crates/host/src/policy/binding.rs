//! Converts the call data that an expression uses to CEL values.

use std::collections::HashMap;

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::Val;
use serde_json::{Map, Value};
use toolgate_contract::{Caller, ToolSpec, exact_json};

use super::plain_path::normalize_path;

/// Maximum number of input values that a policy expression may use.
const VALUES_MAX: usize = 10_000;
/// Limit on the cost of a policy expression with loops: the number of values times the bytes of all
/// texts.
const STEPS_MAX: usize = 1 << 26;

/// Part of a call's input that a policy expression uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExpressionInputPart {
    /// Only the members of the call's input that have these names.
    Members(Vec<String>),
    All,
}

/// Counter of the values and text bytes that a policy expression uses.
#[derive(Default)]
struct ExpressionInputSizeCounter {
    values: usize,
    bytes: usize,
}

impl ExpressionInputSizeCounter {
    fn count_value(&mut self) -> Result<(), String> {
        self.values += 1;
        match self.values <= VALUES_MAX {
            true => Ok(()),
            false => Err(format!("the expression uses more than {VALUES_MAX} values of the input")),
        }
    }
}

/// Value that a policy expression uses.
type ExpressionValue<'v> = Box<dyn Val + 'v>;

/// Converts the part `seen` of a call's `input` for a policy expression, and adds defaults of the
/// tool's schema for missing members. `loops` is true if the expression iterates over values.
///
/// # Errors
/// The input is not an object, or is too large for the expression.
pub(super) fn bind_input<'v>(
    input: &'v Value,
    spec: &'v ToolSpec,
    seen: &ExpressionInputPart,
    loops: bool,
    root: Option<&str>,
) -> Result<CelMap<'v>, String> {
    let Value::Object(given) = input else { return Err("the input is not an object".to_owned()) };
    let declared = spec.input_schema.get("properties").and_then(Value::as_object);
    let default = |name: &str| declared?.get(name)?.get("default");
    let mut meter = ExpressionInputSizeCounter::default();
    let mut bound = HashMap::new();
    let mut bind = |name: &'v str, value: &'v Value| -> Result<(), String> {
        let value = match spec.paths.iter().any(|path| path == name) {
            true => bind_path(value, root, &mut meter)?,
            false => bind_value(value, &mut meter)?,
        };
        bound.insert(CelMapKey::from(name), value);
        Ok(())
    };
    match seen {
        ExpressionInputPart::Members(names) => {
            for name in names {
                if let Some((name, value)) = given.get_key_value(name) {
                    bind(name, value)?;
                } else if let Some((name, declared)) =
                    declared.and_then(|all| all.get_key_value(name))
                    && let Some(default) = declared.get("default")
                {
                    bind(name, default)?;
                }
            }
        }
        ExpressionInputPart::All => {
            for (name, value) in given {
                bind(name, value)?;
            }
            for name in declared.into_iter().flat_map(Map::keys) {
                if let Some(default) = default(name).filter(|_| !given.contains_key(name)) {
                    bind(name, default)?;
                }
            }
        }
    }
    if loops && meter.values.saturating_mul(meter.bytes) > STEPS_MAX {
        return Err("the loops of the expression read too much of the input".to_owned());
    }
    Ok(CelMap::from(bound))
}

/// Converts a path, or a list of paths, in a call's input to normalized form.
fn bind_path<'v>(
    value: &'v Value,
    root: Option<&str>,
    meter: &mut ExpressionInputSizeCounter,
) -> Result<ExpressionValue<'v>, String> {
    match value {
        Value::String(text) => {
            meter.count_value()?;
            meter.bytes += text.len();
            Ok(Box::new(CelString::from(normalize_path(text, root))))
        }
        Value::Array(items) => {
            meter.count_value()?;
            let items = items.iter().map(|item| bind_path(item, root, meter));
            Ok(Box::new(CelList::from(items.collect::<Result<Vec<_>, _>>()?)))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            bind_value(value, meter)
        }
    }
}

fn bind_value<'v>(
    value: &'v Value,
    meter: &mut ExpressionInputSizeCounter,
) -> Result<ExpressionValue<'v>, String> {
    meter.count_value()?;
    Ok(match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(is) => Box::new(CelBool::from(*is)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Box::new(CelInt::from(integer)),
            (None, Some(integer)) => Box::new(CelUInt::from(integer)),
            // `1E400` is infinite, so a rule with a bound still matches it.
            (None, None) => Box::new(CelDouble::from(exact_json::nearest_float(number))),
        },
        Value::String(text) => {
            meter.bytes += text.len();
            Box::new(CelString::from(text.as_str()))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| bind_value(item, meter));
            Box::new(CelList::from(items.collect::<Result<Vec<_>, _>>()?))
        }
        Value::Object(members) => {
            let mut map = HashMap::with_capacity(members.len());
            for (name, member) in members {
                meter.bytes += name.len();
                map.insert(CelMapKey::from(name.as_str()), bind_value(member, meter)?);
            }
            Box::new(CelMap::from(map))
        }
    })
}

/// Fields of the variable `caller` in a policy expression.
pub(super) const CALLER_FIELDS: [&str; 4] = ["name", "kind", "roles", "scopes"];

pub(super) fn bind_caller(caller: &Caller) -> CelMap<'_> {
    let Caller { name, kind, scopes, roles, bearer: _ } = caller;
    cel_map([
        ("name", cel_text(name)),
        ("kind", cel_text(kind.as_str())),
        ("roles", cel_texts(roles.iter().map(|role| &**role))),
        ("scopes", cel_texts(scopes.iter().map(|scope| &**scope))),
    ])
}

/// Fields of the variable `tool` in a policy expression.
pub(super) const TOOL_FIELDS: [&str; 5] = ["id", "toolset", "ruled_as", "tags", "effects"];

pub(super) fn bind_tool(spec: &ToolSpec) -> CelMap<'_> {
    let ruled_as = spec.ruled_as.as_ref().unwrap_or(&spec.id);
    cel_map([
        ("id", cel_text(spec.id.as_str())),
        ("toolset", cel_text(spec.id.toolset())),
        ("ruled_as", cel_text(ruled_as.as_str())),
        ("tags", cel_texts(spec.tags.iter().map(String::as_str))),
        ("effects", cel_text(spec.effects.as_str())),
    ])
}

fn cel_map<'v, const N: usize>(fields: [(&'v str, ExpressionValue<'v>); N]) -> CelMap<'v> {
    let fields = fields.into_iter().map(|(name, value)| (CelMapKey::from(name), value));
    CelMap::from(fields.collect::<HashMap<_, _>>())
}

fn cel_text(text: &str) -> ExpressionValue<'_> {
    Box::new(CelString::from(text))
}

fn cel_texts<'v>(texts: impl Iterator<Item = &'v str>) -> ExpressionValue<'v> {
    Box::new(CelList::from(texts.map(cel_text).collect::<Vec<_>>()))
}
