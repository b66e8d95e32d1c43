//! Arguments of declared commands, and the values that a call gives them.

use serde_json::{Map, Value};

use super::table::{LeadingDashPolicy, ListOptionStyle};
use super::type_note::ArgumentTypeNote;

/// An argument of a declared command, with its type and default value.
#[derive(Debug, Clone)]
pub(super) struct CommandArgument {
    pub(super) name: String,
    pub(super) about: Option<String>,
    pub(super) note: ArgumentTypeNote,
    /// The default that the program itself uses. The argument's JSON Schema shows this value, but
    /// toolgate never passes it.
    pub(super) assumed: Option<Value>,
    /// The JSON Schema of the argument, if the declaration has a schema instead of a type note such
    /// as `"string!"`.
    pub(super) schema: Option<Value>,
    pub(super) aliases: Vec<String>,
    pub(super) option: String,
    pub(super) many: ListOptionStyle,
    pub(super) joined: bool,
    pub(super) dash: LeadingDashPolicy,
}

impl CommandArgument {
    /// Returns the JSON Pointer to the argument in the input of a call.
    pub(super) fn pointer(&self) -> String {
        pointer(&self.name)
    }

    /// Returns the argument's JSON Schema, with the description and default from the declaration.
    pub(super) fn full_schema(&self) -> Value {
        let mut schema = self.schema.clone().unwrap_or_else(|| self.note.schema());
        if let Value::Object(fields) = &mut schema {
            if let Some(about) = &self.about {
                fields.insert("description".to_owned(), Value::from(about.as_str()));
            }
            if let Some(default) = self.note.default.as_ref().or(self.assumed.as_ref()) {
                fields.insert("default".to_owned(), default.clone());
            }
        }
        schema
    }
}

/// Returns the JSON Pointer to the field `name` of a tool's input.
pub(super) fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// The values of a call's arguments. Absent arguments have their default values.
pub(super) struct CommandArgumentValues<'c> {
    arguments: &'c [CommandArgument],
    input: &'c Map<String, Value>,
}

impl<'c> CommandArgumentValues<'c> {
    pub(super) fn new(arguments: &'c [CommandArgument], input: &'c Map<String, Value>) -> Self {
        Self { arguments, input }
    }

    pub(super) fn argument(&self, index: usize) -> &'c CommandArgument {
        &self.arguments[index]
    }

    /// Returns the call's value for the argument at `index`, or the argument's default.
    pub(super) fn value(&self, index: usize) -> Option<&'c Value> {
        let argument = &self.arguments[index];
        self.input.get(&argument.name).or(argument.note.default.as_ref())
    }

    /// Returns the values of the argument at `index`: the items of a list, or the single value.
    /// Returns an empty slice if the argument has no value.
    pub(super) fn values(&self, index: usize) -> &'c [Value] {
        match self.value(index) {
            Some(Value::Array(items)) => items,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        }
    }

    /// Returns true if the argument at `index` has no effect: it has no value, or is a flag that is
    /// false.
    pub(super) fn is_absent(&self, index: usize) -> bool {
        matches!(self.value(index), None | Some(Value::Bool(false)))
    }
}
