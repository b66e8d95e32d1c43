//! One argument of a declared command, and what a call gives for all of them.

use serde_json::{Map, Value};

use super::note::Note;
use super::table::{Dash, Many};

/// An argument.
#[derive(Debug, Clone)]
pub(super) struct Argument {
    pub(super) name: String,
    pub(super) about: Option<String>,
    pub(super) note: Note,
    /// What the program takes where it is absent: told, never passed.
    pub(super) assumed: Option<Value>,
    /// Its schema, where no note says it.
    pub(super) schema: Option<Value>,
    pub(super) aliases: Vec<String>,
    pub(super) option: String,
    pub(super) many: Many,
    pub(super) joined: bool,
    pub(super) dash: Dash,
}

impl Argument {
    /// Where its value is in the input.
    pub(super) fn pointer(&self) -> String {
        pointer(&self.name)
    }

    /// Its JSON Schema, with what it means.
    pub(super) fn described(&self) -> Value {
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

/// Where the field `name` is in the input.
pub(super) fn pointer(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// What a call gives: a value for each argument, or its default, or nothing.
pub(super) struct Given<'c> {
    arguments: &'c [Argument],
    input: &'c Map<String, Value>,
}

impl<'c> Given<'c> {
    pub(super) fn new(arguments: &'c [Argument], input: &'c Map<String, Value>) -> Self {
        Self { arguments, input }
    }

    pub(super) fn argument(&self, index: usize) -> &'c Argument {
        &self.arguments[index]
    }

    /// The value of an argument.
    pub(super) fn value(&self, index: usize) -> Option<&'c Value> {
        let argument = &self.arguments[index];
        self.input.get(&argument.name).or(argument.note.default.as_ref())
    }

    /// The values of an argument: those of a list, or the one.
    pub(super) fn values(&self, index: usize) -> &'c [Value] {
        match self.value(index) {
            Some(Value::Array(items)) => items,
            Some(one) => std::slice::from_ref(one),
            None => &[],
        }
    }

    /// Whether nothing is said with an argument: it is absent, or a flag that is not set.
    pub(super) fn is_absent(&self, index: usize) -> bool {
        matches!(self.value(index), None | Some(Value::Bool(false)))
    }
}
